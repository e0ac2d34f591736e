package teacher

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"

	"apr/internal/fault"
	"apr/modelfile"
	runlog "apr/run/log"
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

// Conventions returns the settings in which two tokenizers of one vocabulary differ: what text is put around a conversation, and which
// ids begin and end a text. A teacher that was trained with other ones than the run uses predicts worse than it could.
// A bos_token that neither puts anywhere is only a name: one format has a place for it that another lacks.
func Conventions(big, small *tokenizer.Tokenizer) (all []runlog.Convention) {
	begins := usesBOS(big) || usesBOS(small)
	for _, c := range []struct {
		name string
		of   func(*tokenizer.Tokenizer) string
	}{
		{"chat_template", func(t *tokenizer.Tokenizer) string { return templateName(t.ChatTemplate()) }},
		{"bos_token", func(t *tokenizer.Tokenizer) string { return tokenName(t, t.BOS()) }},
		{"eos_token", func(t *tokenizer.Tokenizer) string { return tokenName(t, t.EOS()) }},
		{"add_bos_token", func(t *tokenizer.Tokenizer) string { return strconv.FormatBool(t.AddBOS()) }},
		{"add_eos_token", func(t *tokenizer.Tokenizer) string { return strconv.FormatBool(t.AddEOS()) }},
	} {
		if x, y := c.of(big), c.of(small); x != y && (begins || c.name != "bos_token") {
			all = append(all, runlog.Convention{Name: c.name, Teacher: x, Student: y, Used: "student"})
		}
	}
	return all
}

// usesBOS reports whether a text or a conversation begins with bos_token.
func usesBOS(t *tokenizer.Tokenizer) bool {
	return t.AddBOS() || strings.Contains(t.ChatTemplate(), "bos_token")
}

// tokenName shows a special token.
func tokenName(t *tokenizer.Tokenizer, id int32) string {
	if id == tokenizer.None {
		return "none"
	}
	text, _ := t.Bytes(id)
	return fmt.Sprintf("%q (%d)", text, id)
}

// templateName names a chat template by its content. A line's end at its end renders nothing.
func templateName(text string) string {
	if text = strings.TrimRight(text, "\n"); text == "" {
		return "none"
	}
	sum := sha256.Sum256([]byte(text))
	return fmt.Sprintf("one of %d bytes, SHA-256 %x…", len(text), sum[:6])
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
