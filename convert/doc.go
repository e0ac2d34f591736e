// Package convert takes model files from one form to another, and judges them: quantising and converting between
// Hugging Face folders, safetensors, .apr and GGUF, comparing two models, statistics of tensors, and validation of
// content.
//
// # Concept
//
// A model of any format is a [Container]: tensors by their Hugging Face names, a configuration, a tokenizer. A [Scheme]
// says which element type each tensor gets; the writers then stream one tensor at a time, row chunk by row chunk:
//
//	stored bytes → float32 rows → new element type → file
//
// A tensor whose type does not change is copied byte for byte. What the change costs is measured while it is written:
// the root mean square error √(1/n Σ(x−x̂)²) of each tensor, against the values that were stored.
//
// Experts in MXFP4 are blocks in .apr and GGUF, and in folders of gpt-oss codes and scales apart; between these, bytes move.
//
// # Caveats
//
// Norms and biases are always float32 in .apr and GGUF. A matrix whose last dimension is not divisible by 256 is never
// Q4_K or Q6_K: in .apr it stays BF16, in GGUF it falls back as in llama.cpp, to Q5_0, Q8_0, IQ4_NL, or F16. Blocks of GGUF stay
// byte for byte in .apr; aprender's own blocks, and blocks that cross rows, are widened to float32 and listed. A Hugging
// Face folder holds no block types; they are widened to float32 unless another type is asked for, and so are its matrices
// of 8-bit floats. IQ4_XS is kept, never made; IQ4_NL only as a fallback.
//
// [Importance] weighs the errors of columns by how large their inputs are; [TrainedTypes] are the types of a student that is trained in blocks.
package convert
