package eval

import "apr/corpus"

// Documents returns how many documents of t have a scored target; all are positions in the order of the text.
func Documents(t *corpus.Tokens, all []Position) int {
	documents := 0
	for _, d := range t.Docs {
		n := 0
		for n < len(all) && int64(all[n].At) < d.End {
			n++
		}
		if n > 0 {
			documents++
		}
		all = all[n:]
	}
	return documents
}
