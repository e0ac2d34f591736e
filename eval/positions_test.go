package eval_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/eval"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/model"
)

// Every position has the figures of float64 and its place in the text; overlapping windows and masked targets too.
func TestPositionsAgainstFloat64(t *testing.T) {
	const vocab, seqLen = 310, 16
	s, on, exact := goldenModels(t)
	text := randomText(83, vocab)
	for _, stride := range []int{16, 5} {
		w, err := corpus.NewWindows(text, seqLen, stride)
		if err != nil {
			t.Fatal(err)
		}
		var want []float64
		var at []int
		for j := range w.Len() {
			ids := make([]int, seqLen)
			for i := range ids {
				ids[i] = int(text.IDs[j*stride+i])
			}
			z := exact[0].Forward(ids, 1).Logits.ColRange(0, vocab)
			tz := exact[1].Forward(ids, 1).Logits.ColRange(0, vocab)
			for i := range seqLen {
				k := j*stride + i + 1
				if text.Mask[k] == 0 || j > 0 && i < seqLen-stride {
					continue
				}
				at = append(at, k)
				want = append(want, figures(z.Row(i), tz.Row(i), int(text.IDs[k]))...)
			}
		}
		for _, o := range []eval.Options{{Vocab: vocab}, {Vocab: vocab, Rows: 2, ChunkRows: 7}} {
			all, err := eval.Positions(context.Background(), s, on[1], on[0], w, o)
			if err != nil {
				t.Fatal(err)
			}
			var got []float64
			for i, p := range all {
				if i < len(at) && p.At != at[i] {
					t.Fatalf("position %d is target %d of the text, want %d", i, p.At, at[i])
				}
				got = append(got, p.Own.CE, p.Ref.CE, p.KL, p.Own.Entropy, p.Ref.Entropy, p.Accept, p.Own.Confidence, p.Ref.Confidence, one(p.Agree), one(p.Own.Right))
			}
			near.CheckRel(t, "positions", got, want, 2e-6)
			contracttest.Cases(t, len(all))
			a := eval.Summarise(all, true)
			scores, err := eval.Compare(context.Background(), s, on[1], []eval.Subject{{Name: "student", Model: on[0]}}, w, o)
			if err != nil {
				t.Fatal(err)
			}
			kl, _ := scores[0].KL()
			top1, _ := scores[0].Top1()
			entropy, _ := scores[0].Entropy()
			acceptance, _ := scores[0].Acceptance()
			near.CheckRel(t, "as the device sums", []float64{a.NatsPerToken, a.KL.Mean, a.Top1, a.RefEntropy, a.Acceptance,
				float64(a.Targets)}, []float64{scores[0].NatsPerToken(), kl, top1, entropy, acceptance,
				float64(scores[0].Targets)}, 1e-6)
		}
	}
}

// figures are those of one position, in float64 and from the definitions.
func figures(z, t []float64, y int) []float64 {
	lq, lp := ref.LogSoftmax(z, 1), ref.LogSoftmax(t, 1)
	pos := ref.LossAt(z, t, y, device.LossSpec{Temperature: 1})
	own, accept, conf, refConf := 0.0, 0.0, 0.0, 0.0
	for i := range lq {
		p, q := math.Exp(lp[i]), math.Exp(lq[i])
		own -= q * lq[i]
		accept += math.Min(p, q)
		conf, refConf = math.Max(conf, q), math.Max(refConf, p)
	}
	return []float64{-lq[y], -lp[y], pos.D, own, pos.Entropy, accept, conf, refConf, one(pos.Agree), one(ref.ArgMax(ref.Of(1, len(z), z))[0] == y)}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func TestPositionsRefusals(t *testing.T) {
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
	huge := on[0].Config
	huge.InitRange = math.MaxFloat32
	broken := model.NewTrainable(on[0].Device(), huge)
	broken.Init(s, 1)
	for name, c := range map[string]struct {
		m     *model.Model
		w     *corpus.Windows
		vocab int
		kind  fault.Kind
		want  string
	}{
		"no windows":       {on[0], &corpus.Windows{SeqLen: 16, Stride: 16}, 300, fault.Invalid, "no window"},
		"no targets":       {on[0], masked, 300, fault.Invalid, "no target"},
		"small vocabulary": {on[0], w, 340, fault.Load, "320 vocabulary rows"},
		"not finite":       {broken.Frozen(), w, 300, fault.Inference, "not finite at token"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := eval.Positions(context.Background(), s, nil, c.m, c.w, eval.Options{Vocab: c.vocab})
			if fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one of kind %v that says %q", err, c.kind, c.want)
			}
		})
	}
}

// With documents kept apart, a document has in a window of several the figures that it has alone.
func TestPositionsOfDocumentsApart(t *testing.T) {
	const vocab = 310
	s, on, _ := goldenModels(t)
	text := randomText(40, vocab)
	text.Mask = nil
	text.Docs = []corpus.Doc{{End: 13}, {End: 22}, {End: 40}}
	score := func(text *corpus.Tokens, apart bool) []eval.Position {
		w, err := corpus.NewWindows(text, len(text.IDs)-1, len(text.IDs)-1)
		if err != nil {
			t.Fatal(err)
		}
		w.Documents = apart
		all, err := eval.Positions(t.Context(), s, on[1], on[0], w, eval.Options{Vocab: vocab})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	figures := func(all []eval.Position) (out []float64) {
		for _, p := range all {
			out = append(out, p.Own.CE, p.Ref.CE, p.KL)
		}
		return out
	}
	together, across := score(text, true), score(text, false)
	from := 0
	for _, d := range text.Docs {
		contracttest.Cases(t, 1)
		alone := figures(score(&corpus.Tokens{IDs: text.IDs[from:d.End], EOS: text.EOS}, false))
		near.CheckRel(t, "a document", figures(together[from:d.End-1]), alone, 2e-6)
		if from > 0 && near.Rel("", figures(across[from:d.End-1]), alone, 1e-3) == nil {
			t.Error("a document that sees those before it has the same figures")
		}
		from = int(d.End)
	}
}
