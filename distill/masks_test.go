package distill

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/model"
	"apr/tokenizer"
)

const conversations = `{"messages":[{"role":"user","content":"package main"},{"role":"assistant","content":"import \"fmt\""}]}
{"messages":[{"role":"system","content":"Go."},{"role":"user","content":"a := 1"},{"role":"assistant","content":"b := 2"},{"role":"user","content":"more"},{"role":"assistant","content":"return nil"}]}
`

// conversationRows encodes the conversations, one to a row, with or without the turns of others as targets.
func conversationRows(t *testing.T, tok *tokenizer.Tokenizer, turns corpus.Turns) corpus.Batch {
	t.Helper()
	path := filepath.Join(t.TempDir(), "chat.jsonl")
	if err := os.WriteFile(path, []byte(conversations), 0o600); err != nil {
		t.Fatal(err)
	}
	enc, err := corpus.ForTokenizer(tok, "auto")
	if err != nil {
		t.Fatal(err)
	}
	eos, err := corpus.EndOfText(tok)
	if err != nil {
		t.Fatal(err)
	}
	tokens, _, err := corpus.Load(context.Background(), []string{path}, enc, corpus.EncodeOptions{EOS: eos, Vocab: tok.RealIDs(), Turns: turns})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := corpus.OnePerRow(tokens, 64)
	if err != nil {
		t.Fatal(err)
	}
	loader, err := corpus.NewLoader(rows, corpus.LoaderOptions{BatchRows: 2})
	if err != nil {
		t.Fatal(err)
	}
	b, err := loader.Next()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Of a conversation the assistant's turns are learned, with the token that ends each, and nothing else: not the
// markers, not the others' turns, not the padding. The loss of a step is the mean over just these targets of the
// losses that a step without masks has at their places.
func TestMessagesTeachTheAssistantsTurns(t *testing.T) {
	const path = "../testdata/models/gosrc"
	tok, err := openModel(t, path).Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	b := conversationRows(t, tok, corpus.AutoTurns)
	var kept [2][]int32
	for i, m := range b.Mask {
		if m != 0 {
			kept[i/b.SeqLen] = append(kept[i/b.SeqLen], b.Targets[i])
		}
	}
	for r, want := range []string{"import \"fmt\"<|im_end|>", "b := 2<|im_end|>return nil<|im_end|>"} {
		got, err := tok.Decode(kept[r])
		if err != nil || got != want {
			t.Errorf("row %d learns %q (%v), want %q", r, got, err, want)
		}
	}

	all := conversationRows(t, tok, corpus.AllTurns)
	if !slices.Equal(all.Tokens, b.Tokens) || all.TargetCount() <= b.TargetCount() {
		t.Fatalf("%d targets of %d; the ids must be the same", b.TargetCount(), all.TargetCount())
	}
	d := newCPU(t)
	s := d.NewStream()
	te := loadTeacher(t, d, path)
	step := func(b corpus.Batch) Record {
		student := loadStudent(t, d, s, filepath.Join(goldens, "trajectory", "student"))
		tr := newTrainer(student, s, b, te, device.LossSpec{Alpha: 0.5, Temperature: 2})
		tr.MicroRows = 1
		return apply(t, tr, b)
	}
	got := step(b)
	var ce, div, n float64
	for i, m := range b.Mask { // each target alone, from a batch without any other mask
		if m == 0 {
			continue
		}
		one := all
		one.Mask = make([]uint8, len(b.Mask))
		one.Mask[i] = 1
		rec := step(one)
		ce, div, n = ce+rec.MeanCE, div+rec.MeanD, n+1
	}
	near.CheckRel(t, "CE, D", []float64{got.MeanCE, got.MeanD}, []float64{ce / n, div / n}, 1e-6)
}

// Ids that only pad the matrices of both models take no part: their rows of a trained student are as they began, and
// the loss is over the real ids alone.
func TestVocabularyPaddingIsNotTrained(t *testing.T) {
	c := tinyConfig(t)
	text, err := os.ReadFile(c.StudentConfig)
	if err != nil {
		t.Fatal(err)
	}
	const ids, rows, hidden = 4096, 4160, 32 // the teacher's rows; its tokenizer has 4096 ids
	for name, tied := range map[string]string{"tied": "true", "untied": "false"} {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			c := in(t, c)
			c.StudentConfig = filepath.Join(t.TempDir(), "config.json")
			padded := strings.NewReplacer(`"vocab_size":4096`, `"vocab_size":4160`, `"tie_word_embeddings":true`, `"tie_word_embeddings":`+tied).Replace(string(text))
			if err := os.WriteFile(c.StudentConfig, []byte(padded), 0o600); err != nil {
				t.Fatal(err)
			}
			c.Steps, c.AdamW.WeightDecay = 3, 0
			mustRun(t, c, 0)
			trained := openModel(t, filepath.Join(c.Output, "student"))
			d := newCPU(t)
			s := d.NewStream()
			m := model.NewTrainable(d, trained.Config)
			m.Init(s, c.Seed)
			for _, p := range m.Parts() {
				if p.Shape[0] != rows {
					continue
				}
				was := make([]float32, p.Elements())
				if err := s.Download(was, p.Of(p.Param.Value)); err != nil {
					t.Fatal(err)
				}
				is, err := trained.ReadFloat32(p.Name)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(is[ids*hidden:], was[ids*hidden:]) {
					t.Errorf("%s: rows of ids that do not exist were trained", p.Name)
				}
				if slices.Equal(is[:hidden], was[:hidden]) && p.Name == "lm_head.weight" {
					t.Errorf("%s: the first id was not trained", p.Name)
				}
			}
		})
	}
}

// What one batch leaves in memory does not reach the next: a trainer that saw other masks, and none, gives the
// gradients of a fresh one.
func TestBatchesDoNotLeak(t *testing.T) {
	masked, whole := unevenBatch(), unevenBatch()
	whole.Mask = slices.Repeat([]uint8{1}, len(whole.Mask))
	other := unevenBatch()
	slices.Reverse(other.Mask)
	short := other.Slice(1, 4)
	spec := device.LossSpec{Alpha: 0.5, Temperature: 2}
	used := tinyTrainer(t, masked, spec)
	used.MicroRows, used.Optimizer.Schedule.Peak = 3, 0
	for i, b := range []corpus.Batch{masked, whole, other, short, whole, masked} {
		fresh := tinyTrainer(t, b, spec)
		fresh.MicroRows = 3
		want, got := apply(t, fresh, b), apply(t, used, b)
		if got.Loss != want.Loss || got.GradNorm != want.GradNorm || got.Targets != want.Targets {
			t.Errorf("batch %d: loss %g, norm %g, %d targets; a fresh trainer %g, %g, %d", i, got.Loss, got.GradNorm, got.Targets, want.Loss, want.GradNorm, want.Targets)
		}
		clean := get(t, fresh, grad)
		for name, g := range get(t, used, grad) {
			if !slices.Equal(g, clean[name]) {
				t.Errorf("batch %d: other bits in the gradient of %s", i, name)
			}
		}
	}
}
