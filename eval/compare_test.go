package eval_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"apr/arch"
	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/eval"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/model"
	"apr/model/modeltest"
)

const golden = "../testdata/golden/qwen2/tied_gqa"

// goldenModels returns student (320 ids) and teacher (352 ids) on one device, and both in float64.
func goldenModels(t *testing.T) (s device.Stream, on [2]*model.Model, exact [2]*ref.Net) {
	t.Helper()
	d := modeltest.CPU(t, cpu.Options{})
	for i, name := range []string{"student", "teacher"} {
		f := modeltest.Open(t, filepath.Join(golden, name))
		on[i] = modeltest.On(t, d, f)
		c := f.Config
		exact[i] = &ref.Net{Arch: c, Params: map[string]ref.Mat{}}
		for name, shape := range arch.Shapes(c) {
			v, err := f.ReadFloat32(name)
			if err != nil {
				t.Fatal(err)
			}
			rows := 1
			if len(shape) == 2 {
				rows = shape[0]
			}
			exact[i].Params[name] = ref.Of(rows, len(v)/rows, v)
		}
	}
	return d.NewStream(), on, exact
}

// randomText returns ids below vocab, a third of which are no targets.
func randomText(n, vocab int) *corpus.Tokens {
	rng := rand.New(rand.NewPCG(3, 4))
	t := &corpus.Tokens{IDs: make([]int32, n), Mask: make([]uint8, n)}
	for i := range n {
		t.IDs[i] = rng.Int32N(int32(vocab))
		if rng.IntN(3) > 0 {
			t.Mask[i] = 1
		}
	}
	return t
}

// Cross-entropy, divergence from the reference, agreement and entropy are those of float64, whatever the windows
// overlap and however rows are grouped and cut; masked targets and those of an earlier window are left out.
func TestCompareAgainstFloat64(t *testing.T) {
	const vocab, seqLen = 310, 16
	s, on, exact := goldenModels(t)
	text := randomText(83, vocab)
	for _, stride := range []int{16, 5} {
		w, err := corpus.NewWindows(text, seqLen, stride)
		if err != nil {
			t.Fatal(err)
		}
		var ce, teacherCE, kl, entropy, agree, n float64
		for j := range w.Len() {
			ids := make([]int, seqLen)
			for i := range ids {
				ids[i] = int(text.IDs[j*stride+i])
			}
			z := exact[0].Forward(ids, 1).Logits.ColRange(0, vocab)
			tz := exact[1].Forward(ids, 1).Logits.ColRange(0, vocab)
			for i := range seqLen {
				at := j*stride + i + 1
				if text.Mask[at] == 0 || j > 0 && i < seqLen-stride {
					continue
				}
				p := ref.LossAt(z.Row(i), tz.Row(i), int(text.IDs[at]), device.LossSpec{Temperature: 1})
				ce, kl, entropy, n = ce+p.CE, kl+p.D, entropy+p.Entropy, n+1
				teacherCE += ref.LossAt(tz.Row(i), nil, int(text.IDs[at]), device.LossSpec{Temperature: 1}).CE
				if p.Agree {
					agree++
				}
			}
		}
		for _, o := range []eval.Options{{Vocab: vocab}, {Vocab: vocab, Rows: 2, ChunkRows: 7}, {Vocab: vocab, Rows: 1, ChunkRows: 1}} {
			contracttest.Cases(t, 1)
			done := 0
			o.Progress = func(d, total int) { done = d * 1000 / total }
			scores, err := eval.Compare(context.Background(), s, on[1], []eval.Subject{{Name: "student", Model: on[0]}, {Name: "teacher", Model: on[1]}}, w, o)
			if err != nil {
				t.Fatal(err)
			}
			got := scores[0]
			gotKL, _ := got.KL()
			gotTop, _ := got.Top1()
			gotEntropy, _ := got.Entropy()
			near.CheckRel(t, "student", []float64{float64(got.Targets), got.NatsPerToken(), gotKL, gotEntropy, gotTop},
				[]float64{n, ce / n, kl / n, entropy / n, agree / n}, 1e-6)
			near.CheckRel(t, "perplexity, bits", []float64{got.Perplexity(), eval.BitsPerByte(got.NatsPerToken(), &corpus.Tokens{IDs: make([]int32, 30), Docs: []corpus.Doc{{End: 30, Bytes: 90}}})},
				[]float64{math.Exp(ce / n), ce / n / 3 / math.Ln2}, 1e-5)
			near.CheckRel(t, "teacher", []float64{scores[1].NatsPerToken()}, []float64{teacherCE / n}, 1e-6)
			if done != 1000 {
				t.Errorf("progress ended at %d of 1000", done)
			}
		}
	}
}

func TestCompareRefusals(t *testing.T) {
	s, on, _ := goldenModels(t)
	text := randomText(40, 300)
	w, err := corpus.NewWindows(text, 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	masked, err := corpus.NewWindows(&corpus.Tokens{IDs: text.IDs, Mask: make([]uint8, len(text.IDs))}, 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	zero := on[0].Config
	zero.InitRange = math.MaxFloat32
	broken := model.NewTrainable(on[0].Device(), zero)
	broken.Init(s, 1)
	student := []eval.Subject{{Name: "small", Model: on[0]}}
	for name, c := range map[string]struct {
		reference *model.Model
		subjects  []eval.Subject
		w         *corpus.Windows
		vocab     int
		kind      fault.Kind
		want      string
	}{
		"no model":             {nil, nil, w, 300, fault.Invalid, "nothing to evaluate: 2 windows, 0 models"},
		"no windows":           {nil, student, &corpus.Windows{SeqLen: 16, Stride: 16}, 300, fault.Invalid, "nothing to evaluate: 0 windows"},
		"no targets":           {nil, student, masked, 300, fault.Invalid, "small: no target was scored"},
		"small vocabulary":     {nil, student, w, 340, fault.Load, "small has 320 vocabulary rows, fewer than the 340 ids"},
		"small reference":      {on[0], []eval.Subject{{Name: "big", Model: on[1]}}, w, 340, fault.Load, "the reference has 320"},
		"not finite, by name":  {nil, []eval.Subject{{Name: "fine", Model: on[1]}, {Name: "broken", Model: broken.Frozen()}}, w, 300, fault.Inference, "broken: the loss is not finite"},
		"broken as a standard": {broken.Frozen(), student, w, 300, fault.Inference, "small: the loss is not finite"},
	} {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			_, err := eval.Compare(context.Background(), s, c.reference, c.subjects, c.w, eval.Options{Vocab: c.vocab})
			if fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one of kind %v that says %q", err, c.kind, c.want)
			}
		})
	}
}

// A comparison ends between two batches of windows when its context does.
func TestCompareStops(t *testing.T) {
	s, on, _ := goldenModels(t)
	w, err := corpus.NewWindows(randomText(40, 300), 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	batches := 0
	_, err = eval.Compare(ctx, s, nil, []eval.Subject{{Name: "small", Model: on[0]}}, w, eval.Options{Vocab: 320, Rows: 1, Progress: func(int, int) {
		batches++
		cancel()
	}})
	if !errors.Is(err, context.Canceled) || batches != 1 {
		t.Errorf("%d batches, then %v", batches, err)
	}
}

// Margins and errors are those of sums over pairs of neighbouring windows, position by position, whatever chunks of
// logits these were computed in.
func TestMarginOfWindows(t *testing.T) {
	const vocab, seqLen, windows = 310, 16, 64
	s, on, _ := goldenModels(t)
	text := randomText(seqLen*windows+1, vocab)
	w, err := corpus.NewWindows(text, seqLen, seqLen)
	if err != nil {
		t.Fatal(err)
	}
	var n, student, teacher [windows / 2]float64 // by pair
	for i, m := range on {
		all, err := eval.Positions(context.Background(), s, nil, m, w, eval.Options{Vocab: vocab})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			pair := (p.At - 1) / (2 * seqLen)
			if i == 0 {
				n[pair]++
				student[pair] += p.Own.CE
			} else {
				teacher[pair] += p.Own.CE
			}
		}
	}
	ratio := func(of func(pair int) float64) []float64 {
		var sum, targets, squares float64
		for i := range n {
			sum, targets = sum+of(i), targets+n[i]
		}
		mean := sum / targets
		for i := range n {
			squares += (of(i) - mean*n[i]) * (of(i) - mean*n[i])
		}
		return []float64{mean, math.Sqrt(squares/(1-1./float64(len(n)))) / targets}
	}
	for _, chunk := range []int{0, 32, 77} { // 77: more than two windows, and no multiple of one
		contracttest.Cases(t, 1)
		scores, err := eval.Compare(context.Background(), s, nil, []eval.Subject{{Name: "student", Model: on[0]}, {Name: "teacher", Model: on[1]}}, w, eval.Options{Vocab: vocab, ChunkRows: chunk})
		if err != nil {
			t.Fatal(err)
		}
		own, margin := scores[0].Nats(), scores[0].Margin(scores[1])
		if own.Blocks != len(n) || own.Mean != scores[0].NatsPerToken() {
			t.Errorf("%d blocks, want %d; mean %g, want %g", own.Blocks, len(n), own.Mean, scores[0].NatsPerToken())
		}
		near.CheckRel(t, "nats", []float64{own.Mean, own.StandardError}, ratio(func(i int) float64 { return student[i] }), 1e-5)
		near.CheckRel(t, "margin", []float64{margin.Mean, margin.StandardError}, ratio(func(i int) float64 { return teacher[i] - student[i] }), 1e-4)
	}
}
