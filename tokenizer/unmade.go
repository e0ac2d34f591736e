package tokenizer

import (
	"cmp"
	"fmt"
	"unicode/utf8"

	"apr/internal/fault"
)

// Of the tokens that merges should make, so many may be out of their reach without a word: a file that lost its last
// merges encodes every text, into shorter tokens than those that the model learned. In the vocabularies of trained
// tokenizers merges make every such token, for training adds a token and its merge together, and those of SentencePiece
// are made of pairs of pieces. What programs add by hand is a few: OPT's has three (madeupword0000 …), to make the size
// a multiple of 8. More than half, in percent, are refused, unless they are so few that the vocabulary may be one made
// up for a test.
const (
	unmadeFew     = 8
	unmadeMany    = 100
	unmadeRefused = 50
)

// CheckMerges says what is doubtful about the merges; a fault of kind Format, if they leave more than half of the
// tokens that they should make out of reach. Added tokens need none, and neither do those that ignore_merges lets be found whole.
func (t *Tokenizer) CheckMerges() (warning string, err error) {
	lost, whole, all := t.unmade()
	unmade := len(lost)
	switch {
	case unmade >= unmadeFew:
	case all >= unmadeMany && 100*whole > unmadeRefused*all:
		return fmt.Sprintf("%d of the %d tokens of more than one character are made by none of the %d merges, and are found only "+
			"where they are a whole word: is the tokenizer whole?", whole, all, t.listed), nil
	case t.sameScores():
		return "all tokens have one score, so that nothing says which merge comes first: were the scores lost?", nil
	default:
		return cmp.Or(t.unordered(), t.changedMerge(lost)), nil
	}
	text := fmt.Sprintf("%d of the %d tokens of more than one character are made by none of the %d merges", unmade, all, t.listed)
	if unmade < unmadeMany || 100*unmade <= unmadeRefused*all {
		return text + ": is the tokenizer whole?", nil
	}
	return "", fault.New(fault.Format, "%s", text).At("merges").WithHint("fetch the tokenizer again: most of its merges are missing").WithID("E-TOK-023")
}

// mostAscend is the share of merges, in percent, that make no token of a lower id than the merge before. Training numbers
// tokens as it finds their merges, and converters keep that order: all 22 of the project's tokenizers have 100 %. Merges in
// any other order cut text into other tokens than those that the model learned.
const mostAscend = 75

// unordered says that merges are in another order than the tokens that they make; "": they are not, or too few.
func (t *Tokenizer) unordered() string {
	made := t.rules.result
	if len(made) < unmadeMany {
		return ""
	}
	up := 0
	for i := range made[1:] {
		if made[i+1] >= made[i] {
			up++
		}
	}
	if 100*up >= mostAscend*(len(made)-1) {
		return ""
	}
	return fmt.Sprintf("%d of %d merges make a token of a lower id than the merge before: are they in the order of training?",
		len(made)-1-up, len(made))
}

// changedMerge says that a merge was changed so that it makes another token of the vocabulary. Merges make tokens in
// the order of their ids: an unmade token whose id is between those that the neighbours of a merge make, where the
// merge's own is not, is what the merge made before. What programs add by hand has no merge that stands so.
func (t *Tokenizer) changedMerge(lost []int) string {
	made := t.rules.result
	for i := 1; i+1 < len(made); i++ {
		before, after, own := int(made[i-1]), int(made[i+1]), int(made[i])
		if before <= own && own <= after {
			continue
		}
		for _, id := range lost {
			if before < id && id < after {
				p := t.rules.pairs[i]
				return fmt.Sprintf("merge %d of %q and %q makes %q, out of order, and none makes %q, whose turn it is: "+
					"was a bit of it changed?", i, t.tokens[p[0]].text, t.tokens[p[1]].text, t.tokens[own].text, t.tokens[id].text)
			}
		}
	}
	return ""
}

// sameScores reports whether the tokens of SentencePiece have scores, and all the same one.
func (t *Tokenizer) sameScores() bool {
	if t.pieces == nil || len(t.pieces.scores) < len(t.tokens) {
		return false
	}
	first, n := 0, 0
	for id, k := range t.tokens {
		switch {
		case k.kind != Normal:
		case n == 0:
			first, n = id, 1
		case t.pieces.scores[id] != t.pieces.scores[first]:
			return false
		default:
			n++
		}
	}
	return n >= unmadeMany
}

// unmade returns the tokens of more than one character that no text becomes, how many only a text that is one of them
// whole, and how many there are: those that are not added.
func (t *Tokenizer) unmade() (lost []int, whole, all int) {
	made := make([]bool, len(t.tokens))
	for id, k := range t.tokens {
		made[id] = k.kind != Normal || utf8.RuneCountInString(k.text) == 1 // byte-level text has a character for each byte
	}
	for more := true; more; { // once, and again as long as a rule stands before those that make its parts
		more = false
		for i, p := range t.rules.pairs {
			if r := t.rules.result[i]; !made[r] && made[p[0]] && made[p[1]] {
				made[r], more = true, true
			}
		}
	}
	e := t.NewEncoder()
	for id, k := range t.tokens {
		if k.kind != Normal || utf8.RuneCountInString(k.text) < 2 {
			continue
		}
		all++
		if made[id] {
			continue
		}
		if t.whole != nil {
			if ids := e.Append(nil, t.bytes[id], PlainText); len(ids) == 1 && int(ids[0]) == id {
				whole++
				continue
			}
		}
		lost = append(lost, id)
	}
	return lost, whole, all
}
