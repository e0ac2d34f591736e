package teacher

import (
	"fmt"

	"apr/internal/fault"
	"apr/model"
	"apr/tokenizer"
)

// Align finds V, the number of ids that two models share: the real ids of their tokenizers, which must agree token by
// token, in merges and in pattern. What either model has beyond is padding, to be cut before the softmax. other may have
// no files (nil): it then takes big's tokenizer, and otherRows is its configuration's vocabulary.
//
// A difference that is not padding is a fault of kind Invalid naming the first id and both texts, and the sizes where they
// differ; fewer rows than V are
// one of kind Load.
func Align(big, other *model.Files, otherPath string, otherRows int) (tok *tokenizer.Tokenizer, vocab int, err error) {
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
				sizes = fmt.Sprintf("; it has %d ids in %d rows, the other %d in %d", n, otherRows, vocab, big.Config.VocabSize)
			}
			return nil, 0, fault.In(fault.Invalid, otherPath, "its tokenizer differs from that of %s: %s%s", big.Path, d, sizes).
				WithHint("both models must turn every text into the same ids").WithID("E-VOCAB-001")
		}
		tok = small
	}
	for _, m := range []struct {
		path string
		rows int
	}{{big.Path, big.Config.VocabSize}, {otherPath, otherRows}} {
		if m.rows < vocab {
			return nil, 0, fault.In(fault.Load, m.path, "has %d vocabulary rows, fewer than the tokenizer's %d ids", m.rows, vocab).WithID("E-VOCAB-002")
		}
	}
	return tok, vocab, nil
}
