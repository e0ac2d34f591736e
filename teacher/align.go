package teacher

import (
	"fmt"

	"apr/internal/fault"
	"apr/modelfile"
	"apr/tokenizer"
)

// Align finds V, the number of ids that two models share: the real ids of their tokenizers, which must agree token by
// token, in merges and in pattern. What either model has beyond is padding, to be cut before the softmax. other may have
// no files (nil): it then takes big's tokenizer, and otherRows is its configuration's vocabulary.
//
// A difference that is not padding is a fault of kind Invalid naming the first id and both texts, and the sizes where they
// differ; fewer rows than V are
// one of kind Load.
func Align(big, other *modelfile.Files, otherPath string, otherRows int) (tok *tokenizer.Tokenizer, vocab int, err error) {
	if tok, err = big.Tokenizer(); err != nil {
		return nil, 0, err
	}
	vocab = tok.RealIDs()
	if other != nil {
		small, err := other.Tokenizer()
		if err != nil {
			return nil, 0, err
		}
		if d := tokenizer.Compare(tok, small); d != nil {
			sizes := ""
			if n := small.RealIDs(); n != vocab {
				sizes = fmt.Sprintf("; it has %d ids in %d rows, the other %d in %d", n, otherRows, vocab, big.Config.Vocab)
			}
			return nil, 0, fault.In(fault.Invalid, otherPath, "its tokenizer differs from that of %s: %s%s", big.Path, d, sizes).
				WithHint("both models must turn every text into the same ids").WithID("E-VOCAB-001")
		}
		tok = small
	}
	for _, m := range []struct {
		path string
		rows int
	}{{big.Path, big.Config.Vocab}, {otherPath, otherRows}} {
		if m.rows < vocab {
			return nil, 0, fault.In(fault.Load, m.path, "has %d vocabulary rows, fewer than the tokenizer's %d ids", m.rows, vocab).WithID("E-VOCAB-002")
		}
	}
	return tok, vocab, nil
}

// AlignIDs is Align for data of ids, whose text nobody needs. Where a model has no tokenizer, nothing proves that both mean
// the same by an id, and unproven says so: V is then the rows of the other model, the student's, all of which big must
// have. tok is the student's tokenizer, nil if it has none; a student without files has none but big's.
func AlignIDs(big, other *modelfile.Files, otherPath string, otherRows int) (tok *tokenizer.Tokenizer, vocab int, unproven string, err error) {
	var without []string
	for _, f := range []*modelfile.Files{big, other} {
		if f == nil {
			continue
		}
		switch t, err := f.Tokenizer(); {
		case err == nil && f == other:
			tok = t
		case err == nil:
		case modelfile.HasNoTokenizer(err):
			without = append(without, f.Path)
		default:
			return nil, 0, "", err
		}
	}
	if len(without) == 0 {
		tok, vocab, err = Align(big, other, otherPath, otherRows)
		return tok, vocab, "", err
	}
	if rows := big.Config.Vocab; rows < otherRows {
		return nil, 0, "", fault.In(fault.Load, big.Path, "has %d vocabulary rows, fewer than the %d of %s, and no tokenizers prove that the rest is padding", rows, otherRows, otherPath).
			WithID("E-VOCAB-003")
	}
	who := without[0] + " has no tokenizer"
	if len(without) == 2 {
		who = fmt.Sprintf("%s and %s have no tokenizers", without[0], without[1])
	}
	return tok, otherRows, fmt.Sprintf("%s: nothing proves that teacher and student mean the same by an id; all %d rows of the student count", who, otherRows), nil
}
