// Package tokenizer turns text into token ids and back: byte-level BPE, as GPT-2 introduced it and Qwen, Llama 3, OLMo,
// Phi-4, Granite, gpt-oss and Ministral use it (Sennrich et al. 2016, arXiv:1508.07909; Radford et al. 2019), and
// SentencePiece-BPE with byte fallback, as Gemma, Mistral 7B and Phi-3 use it (Kudo and Richardson 2018, arXiv:1808.06226).
//
// A text goes through five stages.
//
//  1. Special and other added tokens are cut out, leftmost first and longest first at one place.
//  2. What lies between them is normalised: to form NFC for Qwen; SentencePiece writes ▁ for spaces, some put one in front.
//  3. A pattern cuts it into pre-tokens: words with the blank before them, digits, signs, white space. Only published
//     patterns are known, each written as a scan over character classes; there is no regular expression engine that a
//     file could make run for ever. SentencePiece cuts nothing.
//  4. The bytes of a pre-token are merged: always the adjacent pair of the lowest rank, the leftmost of equal ones.
//     Short pre-tokens are scanned, long ones use a heap, and what short words became is remembered. With ignore_merges
//     a whole pre-token that is in the vocabulary is one token. SentencePiece merges characters, and the bytes of those
//     that are not in the vocabulary.
//  5. The ids are appended.
//
// Decoding joins the bytes that each id stands for. Every string can be encoded; with byte-level BPE it comes back, as its
// form NFC where that is the normaliser.
//
// A tokenizer comes from a Hugging Face folder (Load, Parse) or from the flat lists of .apr metadata and GGUF
// (FromData), and goes back to both (MarshalTokenizer, MarshalConfig, Data). Compare says whether two tokenizers are
// the same, which distillation needs to know of teacher and student. NewChat takes a model's own chat
// template and renders conversations into tokens that are, or are not, targets of training.
//
// # Caveats
//
//   - Mode Recognise turns the text of a special token into that token, wherever the text comes from. Documents and
//     messages from strangers belong in mode PlainText.
//   - Encode adds neither begin nor end token; AddBOS and AddEOS say what the file's post-processor adds.
//   - Refused, since ids would differ from the original's: models other than BPE, dropout, subword prefixes and suffixes,
//     other patterns and normalisers than the published ones, added tokens with single_word, post-processors that add
//     more than one token at an end, truncation and padding.
//   - Stricter than Hugging Face's library: keys given twice, unknown keys, merges given twice or with a part or a
//     result outside the vocabulary, merges that make a special token, a vocabulary without one of the 256 bytes, added
//     tokens over 256 bytes, ids far beyond the number of tokens.
//   - Added tokens come back as their text; Hugging Face's library takes Latin-1 letters in those of byte-level BPE for bytes.
//   - Of a GGUF file without merges the scores stand for them, in the order of Hugging Face's converter; see scoredMerges.
//     Merges that no scores stand for are written as model gemma4, whose merges llama.cpp reads; it cuts texts at line
//     breaks then.
//   - Byte fallback together with ignore_merges, or with a pattern, is refused. So is llama.cpp's removal of extra blanks.
//   - One pre-token, such as a run of one letter, has to be shorter than 2 GiB.
//   - Character classes and normalisation are those of Unicode 15, of the Go release. A letter assigned later is a sign
//     here.
package tokenizer
