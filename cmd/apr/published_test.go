package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/arch"
	"apr/bench/randmodel"
	"apr/internal/contracttest"
	"apr/modelfile"
	"apr/tensor"
	"apr/tokenizer"
)

// tokenizedFolder writes a model of random values, in the shape of a golden of the families, with a tokenizer.
func tokenizedFolder(t *testing.T, config, dir string, tok *tokenizer.Tokenizer) {
	t.Helper()
	rows := fmt.Sprintf(`"vocab_size": %d`, tok.RealIDs())
	text := strings.Replace(string(read(t, config)), `"vocab_size": 160`, rows, 1)
	c, err := arch.Parse(config, text, arch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c.BOS, c.EOS, c.Pad = int(tok.BOS()), []int{int(tok.EOS())}, -1
	var out []tensor.Source
	for name, values := range randmodel.Weights(c, tok, false) {
		raw := make([]byte, 2*len(values))
		tensor.Narrow(raw, values, tensor.BF16)
		info := tensor.Info{Name: name, DType: tensor.BF16, Shape: arch.Shapes(c)[name]}
		out = append(out, tensor.BytesSource(info, raw))
	}
	if _, err := modelfile.SaveHF(dir, c, tok, out, tensor.BF16, false); err != nil {
		t.Fatal(err)
	}
}

// A tokenizer that cuts text otherwise, or begins no text, than all published ones of its vocabulary is said of every
// format; the published ones are silent.
func TestUnpublishedTokenizers(t *testing.T) {
	root, err := filepath.Abs("../../testdata")
	if err != nil {
		t.Fatal(err)
	}
	config := func(family string) string { return filepath.Join(root, "golden/families", family, "config.json") }
	named := func(kind string, change func(d *tokenizer.Data)) *tokenizer.Tokenizer {
		tok, err := tokenizer.Load(filepath.Join(root, "tokenizers", kind))
		if err != nil {
			t.Fatal(err)
		}
		d := tok.Data()
		if change != nil {
			change(&d)
		}
		if tok, err = tokenizer.FromData(kind, d); err != nil {
			t.Fatal(err)
		}
		return tok
	}
	lost := func(d *tokenizer.Data) { d.AddBOS = false }
	tekken := named("tekken", func(d *tokenizer.Data) { // a special token where Mistral's have theirs
		const last = 647
		d.Vocabulary[3], d.Vocabulary[last] = "[INST]", d.Vocabulary[3]
		d.TokenType[3], d.TokenType[last] = d.TokenType[last], d.TokenType[3]
	})
	pieces, bare := named("mistral", nil), named("mistral", lost)
	t.Chdir(t.TempDir())
	tokenizedFolder(t, config("mistral"), "sound", pieces)
	tokenizedFolder(t, config("mistral"), "lost", bare)
	tokenizedFolder(t, config("ministral3"), "tekken", tekken)
	for _, name := range []string{"sound", "lost", "tekken"} {
		must(t, "convert", name, "-o", name+".gguf")
	}
	must(t, "convert", "lost", "-o", "lost.apr")
	file := read(t, "tekken.gguf")
	pre := append([]byte("tokenizer.ggml.pre\x08\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00"), "tekken"...)
	if bytes.Count(file, pre) != 1 {
		t.Fatalf("%d places of the pre-tokenizer", bytes.Count(file, pre))
	}
	other := bytes.Replace(file, pre, append(bytes.Clone(pre[:len(pre)-6]), "refact"...), 1)
	if err := os.WriteFile("refact.gguf", other, 0o600); err != nil {
		t.Fatal(err)
	}
	const begins = `it puts no begin of text in front, as every published tokenizer does in which "[INST]" has id 3`
	for model, says := range map[string]string{
		"sound": "", "sound.gguf": "", "tekken": "", "tekken.gguf": "", "lost": begins, "lost.gguf": begins,
		"lost.apr":    begins,
		"refact.gguf": `its pre-tokenizer cuts text as "refact" does, and not as "tekken", as every published tokenizer does`,
	} {
		contracttest.Cases(t, 1)
		code, v := call(t, "validate", model)
		said := fmt.Sprint(v["checks"])
		if code != 0 || !strings.Contains(said, says) || strings.Contains(said, "every published tokenizer") != (says != "") {
			t.Errorf("validate %s: exit %d: %s", model, code, said)
		}
	}
	code, v := call(t, "convert", "lost", "-o", "out.apr")
	if code != 0 || !strings.Contains(fmt.Sprint(v["warnings"]), begins) {
		t.Errorf("convert: exit %d: %v", code, v["warnings"])
	}
	if err := os.WriteFile("text.txt", bytes.Repeat([]byte("a line of text\n"), 40), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, "distill", "--alpha", "0", "--student", "lost", "-d", "text.txt", "--steps", "1", "--seq-len", "16",
		"--batch-size", "1", "--val-fraction", "0", "--control", "none", "--samples", "0", "-o", "taught")
	if all := strings.Join(warned(t), "\n"); !strings.Contains(all, begins) {
		t.Errorf("events: %s", all)
	}
}
