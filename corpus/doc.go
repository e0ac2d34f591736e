// Package corpus turns documents into batches: text or conversations → token ids → rows of S+1 ids → batches with a
// loss mask, in an order that depends on nothing but the data and a seed.
//
// The way of the data:
//
//	Read        paths → documents, streamed (JSON, Parquet, tables, text files, folders; .gz, .zst, .xz by content)
//	Load        documents → Tokens: every document's ids in data order, each followed by the end-of-text id
//	Cache.Load  the same, from a folder of tokens that were encoded before, where it is there
//	ReadShards  the same from .bin shards of little-endian u32, which EncodeCorpus writes
//	HoldOut     Tokens → training and held-out part, decided by each document's content hash
//	Pack        Tokens → Rows: row i is ids[i(S+1):(i+1)(S+1)]; the tail is dropped
//	Loader      Rows → Batch after Batch over the epochs, from a Position that a checkpoint can hold
//	NewWindows  ids → evaluation windows
//
// Inputs are row[:S] and targets row[1:]. That is the only shift: afterwards target i, mask i and position i belong
// together.
//
// Caveats. Token ids stay in memory, 4 bytes each (one more where a mask is needed); texts do not, but for the
// document at hand: a line of JSON Lines may hold 16 MiB, a text file 1 GiB. Attention covers a whole packed row,
// across its documents. A single text file is a single document, from which nothing can be held out.
//
// Bad records are left out, counted and listed; more than one in a thousand is an error. A bad file,
// as one in UTF-16 or with broken compression, is an error at once.
package corpus
