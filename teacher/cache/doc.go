// Package cache keeps what a teacher says of rows of tokens: draws from its distribution, or its last hidden states.
//
// A cache is a folder: header.json says what was asked for, shards hold whole rows, and manifest.json, written last,
// has the size and the hash of every file. Rows are found by a hash of what the teacher reads, so that training may
// go through them in any order. docs/cache-format.md specifies every byte.
//
// Caveats. The package knows nothing of models: ids, counts and values go in and come out. A folder may have several
// writers at a time; each shard appears whole or not at all, and what a shard holds follows from its name.
package cache
