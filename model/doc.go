// Package model is Qwen2 (Qwen2 and Qwen2.5), written once for every device: its configuration, its weights from any
// file format, the forward pass that teachers and evaluation use, and the forward and backward passes of a student.
//
// A model speaks to device.Device only. Files opens what a user names (a Hugging Face folder, a safetensors or .apr
// file) with configuration, tokenizer and tensors; LoadFrozen puts it on a device for inference, NewTrainable makes a
// student with gradients and moments.
//
// Caveats. Attention is causal over the whole row, across documents. Sliding windows, scaled rotary embeddings and
// other architectures are refused, not approximated.
package model
