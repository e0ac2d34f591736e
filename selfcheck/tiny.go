package selfcheck

import (
	"path/filepath"

	"apr/arch"
	"apr/device"
	"apr/model"
	"apr/modelfile"
	"apr/tensor"
	"apr/tokenizer"
)

// tinyTeacher and tinyStudent are the shapes of the models made for the check: untied and tied heads, grouped and single
// keys, rows beyond the real ids.
var (
	tinyTeacher = arch.Qwen2(arch.Sizes{Hidden: 64, Layers: 3, Heads: 4, KVHeads: 2, HeadDim: 16, Width: 160, Vocab: 320,
		MaxPositions: 256, Theta: 10000, Eps: 1e-6, InitRange: 0.12, BOS: -1, EOS: 256, DType: tensor.F32,
	})
	tinyStudent = arch.Qwen2(arch.Sizes{Hidden: 32, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 16, Width: 96, Vocab: 272,
		MaxPositions: 256, Theta: 10000, Eps: 1e-6, Tied: true, InitRange: 0.12, BOS: -1, EOS: 256, DType: tensor.F32,
	})
)

// tinyTokenizer has a token for each byte, end-of-text, and a few merges.
func tinyTokenizer() (*tokenizer.Tokenizer, error) {
	d := tokenizer.Data{PreType: tokenizer.DefaultPreType, BOS: tokenizer.None, EOS: 256, Pad: tokenizer.None}
	next := rune(256)
	for b := range 256 { // the printable form of bytes that byte-level vocabularies use
		r := rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae) {
			r, next = next, next+1
		}
		d.Vocabulary, d.TokenType = append(d.Vocabulary, string(r)), append(d.TokenType, int(tokenizer.Normal))
	}
	d.Vocabulary, d.TokenType = append(d.Vocabulary, "<|endoftext|>"), append(d.TokenType, int(tokenizer.Control))
	for _, m := range [][2]string{{"i", "n"}, {"a", "n"}, {"e", "r"}, {"f", "u"}, {"m", "a"}} {
		d.Merges = append(d.Merges, m[0]+" "+m[1])
		d.Vocabulary, d.TokenType = append(d.Vocabulary, m[0]+m[1]), append(d.TokenType, int(tokenizer.Normal))
	}
	return tokenizer.FromData("the tiny model", d)
}

// writeTiny makes both models by seed, writes one as .apr and one as a Hugging Face folder, and opens them.
func writeTiny(s device.Stream, dev device.Device, dir string) (teacher, student *modelfile.Files, err error) {
	tok, err := tinyTokenizer()
	if err != nil {
		return nil, nil, err
	}
	t := model.NewTrainable(dev, tinyTeacher)
	t.Init(s, 1)
	apr := filepath.Join(dir, "teacher.apr")
	if err := modelfile.SaveAPR(apr, tinyTeacher, tok, t.Sources(s, tensor.F32), nil, "apr check", true); err != nil {
		return nil, nil, err
	}
	m := model.NewTrainable(dev, tinyStudent)
	m.Init(s, 2)
	folder := filepath.Join(dir, "student")
	if _, err := modelfile.SaveHF(folder, tinyStudent, tok, m.Sources(s, tensor.F32), tensor.F32, true); err != nil {
		return nil, nil, err
	}
	if teacher, err = modelfile.Open(apr); err != nil {
		return nil, nil, err
	}
	student, err = modelfile.Open(folder)
	return teacher, student, err
}
