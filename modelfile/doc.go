// Package modelfile opens and saves models in every format: .apr files, GGUF files, Hugging Face folders, and safetensors files
// that stand alone, each with configuration and tokenizer.
//
// A model's tensors are the slots of arch.Slots, under their names. What a format has otherwise is undone while it is read,
// as arch.Place says: fused tensors are split, experts put below each other, rows and columns reordered, matrices turned,
// values that a format changes (w+1, −e^w) changed back. Nothing is copied for it: a row is read from where it stands, and
// quantised rows move byte for byte. Codes and scales of MXFP4, two tensors of Hugging Face's, become blocks. Saving does the same the other way round. A norm's values are those of Hugging Face, w;
// that a device multiplies by w+NormOffset is package model's business.
//
// Files of a model with tensors and description serve package model as its weights. Of a multimodal checkpoint the text
// model is read; Container.Left names the rest.
//
// Identify finds out whether two models are one, whatever files hold them.
//
// Caveats. A file of blocks that are no whole rows can be read tensor by tensor only.
package modelfile
