package tokenizer

import (
	"cmp"
	"slices"
	"unicode/utf8"
)

// scoredMerges returns the merges that the scores of a SentencePiece vocabulary stand for: every way to put a token
// together of two others, the highest score first. Among the ways to one token, and tokens of one score, the longer left
// part goes first and then the longer right part, as the converter of Hugging Face's transformers orders them. llama.cpp
// takes the leftmost of equal scores instead; the two differ only where one text has two ways to one token that overlap.
func scoredMerges(normal map[string]int32, scores []float32) [][2]string {
	type way struct {
		merge       [2]string
		result      int32
		left, right int32
		nLeft, nAll int
	}
	var ways []way
	for text, id := range normal {
		n := utf8.RuneCountInString(text)
		eachSplit(text, normal, func(nLeft int, left, right string) {
			ways = append(ways, way{[2]string{left, right}, id, normal[left], normal[right], nLeft, n})
		})
	}
	slices.SortFunc(ways, func(a, b way) int {
		return cmp.Or(cmp.Compare(scores[b.result], scores[a.result]), b.nLeft-a.nLeft, (b.nAll-b.nLeft)-(a.nAll-a.nLeft),
			cmp.Compare(a.result, b.result), cmp.Compare(a.left, b.left), cmp.Compare(a.right, b.right))
	})
	merges := make([][2]string, len(ways))
	for i, w := range ways {
		merges[i] = w.merge
	}
	return merges
}

// maxScored is the length in bytes of the longest token that scores can stand for: looking for the ways to put a token
// together takes time in proportion to the square of its length.
const maxScored = 1024

// eachSplit calls f for every way to put text together of two tokens; nLeft is the left one's length in characters.
func eachSplit(text string, normal map[string]int32, f func(nLeft int, left, right string)) {
	if len(text) > maxScored {
		return
	}
	n := 0
	for i := range text {
		if i > 0 {
			_, okLeft := normal[text[:i]]
			_, okRight := normal[text[i:]]
			if okLeft && okRight {
				f(n, text[:i], text[i:])
			}
		}
		n++
	}
}

// mergeScores returns scores that stand for the merge rules, one for each token, or nil if none do: if some way to put a
// token together is not a rule, or the ways to one token have ranks on both sides of another's.
func (t *Tokenizer) mergeScores() []float32 {
	normal := make(map[string]int32, len(t.tokens))
	for id, k := range t.tokens {
		if k.kind == Normal || k.kind == UserDefined {
			normal[k.text] = int32(id)
		}
	}
	ways := make(map[int32]int)
	for text, id := range normal {
		eachSplit(text, normal, func(int, string, string) { ways[id]++ })
	}
	scores := make([]float32, len(t.tokens))
	seen := make(map[int32]bool, len(ways))
	level, open := 0, 0 // the score, negative; the ways still to come to tokens that have begun
	for _, id := range t.rules.result {
		if ways[id] == 0 {
			return nil
		}
		if !seen[id] {
			if open == 0 {
				level++
			}
			seen[id] = true
			scores[id] = -float32(level)
			open += ways[id]
		}
		open--
	}
	if open != 0 || len(seen) != len(ways) {
		return nil
	}
	return scores
}

// stored returns how the flat form and GGUF hold the merges: as scores beside them, by which llama.cpp goes with model
// llama, or, where no scores stand for them, with model gemma4 alone.
func (t *Tokenizer) stored() (model string, scores []float32) {
	p := t.pieces
	if p.scores != nil || p.model == "gemma4" {
		return p.model, p.scores
	}
	if scores = p.scored(); scores == nil {
		return "gemma4", nil
	}
	return "llama", scores
}
