// Package tokenizer turns text into token ids and back: byte-level BPE, as GPT-2 introduced it and Qwen2 uses it
// (Sennrich et al. 2016, arXiv:1508.07909; Radford et al. 2019).
//
// A text goes through five stages.
//
//  1. Special and other added tokens are cut out, leftmost first and longest first at one place.
//  2. What lies between them is normalised (NFC for Qwen2, nothing for the others).
//  3. A pattern cuts it into pre-tokens: words with the blank before them, digits, signs, white space. Only three
//     published patterns are known, each written as a scan over character classes; there is no regular expression
//     engine that a file could make run for ever.
//  4. The bytes of a pre-token are merged: always the adjacent pair of the lowest rank, the leftmost of equal ones.
//     Short pre-tokens are scanned, long ones use a heap, and what short words became is remembered.
//  5. The ids are appended.
//
// Decoding joins the bytes that each id stands for. Every string can be encoded, and comes back as its form NFC.
//
// A tokenizer comes from a Hugging Face folder (Load, Parse) or from the flat lists of .apr metadata and GGUF
// (FromData), and goes back to both (MarshalTokenizer, MarshalConfig, Data). Compare says whether two tokenizers are
// the same, which distillation needs to know of teacher and student. NewChat recognises chat templates of the ChatML
// family and renders conversations into tokens that are, or are not, targets of training.
//
// # Caveats
//
//   - Mode Recognise turns the text of a special token into that token, wherever the text comes from. Documents and
//     messages from strangers belong in mode PlainText.
//   - Encode adds neither begin nor end token.
//   - Refused, since ids would differ from the original's: models other than byte-level BPE, dropout, ignore_merges,
//     byte fallback, subword prefixes and suffixes, other patterns and normalisers than the published pairs, added
//     tokens with single_word, lstrip or rstrip, post-processors that add tokens, truncation and padding.
//   - Stricter than Hugging Face's library: keys given twice, unknown keys, merges given twice or with a part or a
//     result outside the vocabulary, merges that make a special token, a vocabulary without one of the 256 bytes, added
//     tokens over 256 bytes, ids far beyond the number of tokens.
//   - The flat form has no word for added tokens that are looked for after normalisation; they become ordinary added
//     tokens, which differ only in text that is not in form NFC.
//   - One pre-token, such as a run of one letter, has to be shorter than 2 GiB.
//   - Character classes and normalisation are those of Unicode 15, of the Go release. A letter assigned later is a sign
//     here.
package tokenizer
