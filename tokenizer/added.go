package tokenizer

import (
	"slices"
	"strings"
)

// addedSet finds added tokens (special tokens and the like) in text: leftmost, and at one place the longest.
type addedSet struct {
	ids     map[string]int32
	lengths [256][]int // by first byte: lengths of the contents that begin with it, longest first
	only    int        // the one first byte when all contents share it, else -1
}

// newAddedSet returns nil for no tokens.
func newAddedSet(tokens map[string]int32) *addedSet {
	if len(tokens) == 0 {
		return nil
	}
	a := &addedSet{ids: tokens, only: -1}
	for text := range tokens {
		l := &a.lengths[text[0]]
		if !slices.Contains(*l, len(text)) {
			*l = append(*l, len(text))
		}
		a.only = int(text[0])
	}
	for first := range a.lengths {
		slices.SortFunc(a.lengths[first], func(x, y int) int { return y - x })
		if len(a.lengths[first]) > 0 && first != a.only {
			a.only = -1
		}
	}
	return a
}

// find returns the first added token in s at or after i, as s[start:end], and its id; start is len(s) when there is
// none.
func (a *addedSet) find(s string, i int) (start, end int, id int32) {
	if a == nil {
		return len(s), len(s), -1
	}
	for ; i < len(s); i++ {
		if a.only >= 0 {
			skip := strings.IndexByte(s[i:], byte(a.only))
			if skip < 0 {
				break
			}
			i += skip
		}
		for _, n := range a.lengths[s[i]] {
			if n > len(s)-i {
				continue
			}
			if id, ok := a.ids[s[i:i+n]]; ok {
				return i, i + n, id
			}
		}
	}
	return len(s), len(s), -1
}
