package tokenizer

import (
	"crypto/sha256"
	"fmt"
)

// IDsSHA256 returns the SHA-256 of what decides the ids of words: equal for two tokenizers exactly where Compare finds no
// difference, whatever format they were read from.
func (t *Tokenizer) IDsSHA256() string {
	h := sha256.New()
	for id := range t.tokens {
		if s, ok := t.Bytes(int32(id)); ok {
			fmt.Fprintf(h, "token %d %d %q\n", id, int(t.Kind(int32(id))), s)
		}
	}
	var scores []float32
	if t.pieces != nil {
		scores = t.pieces.scored()
	}
	for id, s := range scores {
		fmt.Fprintf(h, "score %d %v\n", id, s)
	}
	if scores == nil { // else they stand for the merges, whose order among equal ones differs by format
		for rank := range t.rules.pairs {
			fmt.Fprintf(h, "merge %q\n", t.mergeText(rank))
		}
	}
	fmt.Fprintf(h, "%q %q\n", t.cut(), t.identity())
	return fmt.Sprintf("%x", h.Sum(nil))
}
