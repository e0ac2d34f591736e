// Package model is a decoder, written once for every device: the forward pass that teachers and evaluation use, the forward
// and backward passes of a student, generation with a cache, and weights from any file format.
//
// A model is what an arch.Config describes; its tensors are the slots of arch.Slots. It speaks to device.Device only. Files
// opens what a user names (a Hugging Face folder, a safetensors or .apr file) with configuration, tokenizer and tensors;
// LoadFrozen puts it on a device for inference, NewTrainable makes a student with gradients and moments.
//
// Caveats. Attention is causal over the whole row, across documents. Computed names what of a description the arithmetic does
// not have yet; such a model is refused, not approximated. A norm is kept as what it multiplies by, w+NormOffset.
package model
