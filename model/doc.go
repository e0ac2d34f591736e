// Package model is a decoder, written once for every device: the forward pass that teachers and evaluation use, the forward
// and backward passes of a student, and generation with a cache.
//
// A model is what an arch.Config describes; its tensors are the slots of arch.Slots. It speaks to device.Device only, and its
// weights come through the interface Weights, by slot: package modelfile has them from files. LoadFrozen puts a model on a
// device for inference, NewTrainable makes a student with gradients and moments.
//
// Caveats. Attention is causal over the whole row, across documents, unless Tokens keep these apart. Computed names what of a description the arithmetic does
// not have yet; such a model is refused, not approximated. A norm is kept as what it multiplies by, w+NormOffset, from loading
// (builder.vector, LoadWeights) to saving (Sources); devices know no offset.
package model
