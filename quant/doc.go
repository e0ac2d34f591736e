// Package quant encodes and decodes the block formats of quantised weights: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_0, Q4_0, Q5_0,
// IQ4_NL and MXFP4 of GGML. Its IQ4_XS, aprender's AprQ4 and AprQ8, and matrices of 8-bit floats with scales ([FP8]) are decoded only.
//
// # Concept
//
// A block packs 32 or 256 consecutive elements of a row into small integers q that share one or two half-precision
// scales. With d and dmin stored as halves, sc and m as small integers per group of 16 or 32 elements, an element is
//
//	Q4_K, Q5_K        x = (d·sc)·q − dmin·m   q in 0…15, 0…31; sc, m in 0…63 per 32 elements
//	Q2_K              x = (d·sc)·q − dmin·m   q in 0…3; sc, m in 0…15 per 16 elements
//	Q6_K              x = (d·sc)·(q − 32)     q in 0…63; sc in −128…127 per 16 elements
//	Q3_K              x = (d·sc)·(q − 4)      q in 0…7; sc in −32…31 per 16 elements
//	Q8_0, AprQ8       x = d·q                 q in −128…127 (AprQ8: d is a float32 and serves the whole tensor)
//	Q4_0, AprQ4       x = d·(q − 8)           q in 0…15
//	Q5_0              x = d·(q − 16)          q in 0…31
//	IQ4_NL            x = d·v[q]              q in 0…15, v a table of −127…113
//	IQ4_XS            x = (d·sc)·v[q]         sc in −32…31 per 32 elements
//	MXFP4             x = 2^(e−128)·v[q]      e a byte, v the doubled floats of 4 bits: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives
//
// Every operation is a float32 operation rounded on its own, in the order of the parentheses; no product is fused with
// the subtraction. So decoding gives the same bits on every processor, and the bits of GGML's reference.
//
// [Dequantize] decodes whole rows, [DequantizeRange] any part of one (fast from multiples of 32), [Quantize] encodes.
// Encoding minimises the plain squared error Σ(x−x̂)² of each block; see [Quantize] for the method, [QuantizeWeighted] for errors
// that do not count the same, and [Round] for blocks whose scales are given. MXFP4 is encoded as
// GGML does it, byte for byte. [MXFP4FromHF] and [MXFP4ToHF] move it from and to the order of Hugging Face's files.
//
// # Caveats
//
//   - A matrix whose rows do not fill blocks is stored in one of two layouts, which differ in size alone: see
//     [Layout].
//   - AprQ4 and Q4_0 have the same size but not the same order of elements.
//   - Lengths that do not fit each other are a caller's mistake and panic; the content of src never does. What a file
//     claims is compared with its size when the file is opened ([LayoutOf]).
//   - Scale 255 of MXFP4 is NaN, as its standard says, and its decoder gives NaN; GGML counts it as 2^127.
//   - A NaN or infinite scale decodes to NaN or infinite elements (AprQ4: to zeros, as aprender does). Encoding refuses
//     values that are not finite, or larger than [MaxAbs].
package quant
