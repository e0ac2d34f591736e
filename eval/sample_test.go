package eval_test

import (
	"context"
	"testing"

	"apr/corpus"
	"apr/eval"
	"apr/internal/near"
)

// What Look sees of single targets adds up to what Compare scores.
func TestLookAddsUpToCompare(t *testing.T) {
	s, on, _ := goldenModels(t)
	text := randomText(40, 300)
	w, err := corpus.NewWindows(text, 39, 39)
	if err != nil {
		t.Fatal(err)
	}
	const vocab, top = 320, 5
	scores, err := eval.Compare(context.Background(), s, on[1], []eval.Subject{{Name: "small", Model: on[0]}}, w, eval.Options{Vocab: vocab})
	if err != nil {
		t.Fatal(err)
	}
	b := w.Batch(0, 1)
	views, err := eval.Look(context.Background(), s, on[1], on[0], b, top, eval.Options{Vocab: vocab})
	if err != nil {
		t.Fatal(err)
	}
	var kl float64
	var agree int
	for i, v := range views {
		if b.Mask[v.Position] == 0 || i > 0 && v.Position <= views[i-1].Position {
			t.Errorf("view %d is of position %d", i, v.Position)
		}
		kl += v.KL
		if v.Top[0][0].ID == v.Top[1][0].ID {
			agree++
		}
		for m, list := range v.Top {
			if len(list) != top {
				t.Fatalf("%d likeliest ids, want %d", len(list), top)
			}
			var sum float64
			for j, e := range list {
				sum += e.P
				if j > 0 && !(list[j-1].P >= e.P) {
					t.Errorf("position %d: likeliest ids are not in order: %v", i, list)
				}
				if e.ID == b.Targets[v.Position] && e.P != v.P[m] {
					t.Errorf("view %d: the target has probability %g and %g", i, e.P, v.P[m])
				}
			}
			if !(sum <= 1 && list[0].P >= v.P[m] && v.P[m] > 0) {
				t.Errorf("position %d: %v, target %g", i, list, v.P[m])
			}
		}
	}
	want, _ := scores[0].KL()
	top1, _ := scores[0].Top1()
	n := float64(len(views))
	near.CheckRel(t, "KL, top-1", []float64{n, kl / n, float64(agree) / n}, []float64{float64(scores[0].Targets), want, top1}, 1e-5)
}

// Only targets that count are looked at, and a model agrees with itself.
func TestLookOfMaskedTargets(t *testing.T) {
	s, on, _ := goldenModels(t)
	b := corpus.Batch{Rows: 2, SeqLen: 3, Tokens: []int32{1, 2, 3, 4, 5, 6}, Targets: []int32{2, 3, 4, 5, 6, 7}, Mask: []uint8{0, 1, 0, 0, 0, 1}}
	views, err := eval.Look(context.Background(), s, on[0], on[0], b, 2, eval.Options{Vocab: 320})
	if err != nil {
		t.Fatal(err)
	}
	if len(views) != 2 || views[0].Position != 1 || views[1].Position != 5 {
		t.Fatalf("views %+v, want those of positions 1 and 5", views)
	}
	for _, v := range views {
		if v.KL != 0 || v.P[0] != v.P[1] {
			t.Errorf("a model differs from itself: %+v", v)
		}
	}
	b.Mask = make([]uint8, 6)
	if views, err := eval.Look(context.Background(), s, on[0], on[0], b, 2, eval.Options{Vocab: 320}); err != nil || views != nil {
		t.Errorf("without targets: %v, %v", views, err)
	}
}
