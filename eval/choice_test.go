package eval_test

import (
	"context"
	"math"
	"testing"

	"apr/eval"
	"apr/internal/fault"
	"apr/internal/near"
	"apr/internal/ref"
)

// Log-likelihoods of continuations of unlike lengths are those of float64, each row for itself, whatever is padded.
func TestLogLikelihoodsAgainstFloat64(t *testing.T) {
	const vocab = 310
	s, on, exact := goldenModels(t)
	ids := randomText(200, vocab).IDs
	var rows []eval.Continuation
	var want []float64
	for i, n := range []int{2, 17, 5, 30, 30, 9} {
		r := eval.Continuation{IDs: ids[i*31 : i*31+n], From: 1 + i%(n-1)}
		in := make([]int, n-1)
		for j := range in {
			in[j] = int(r.IDs[j])
		}
		z := exact[0].Forward(in, 1).Logits.ColRange(0, vocab)
		sum := 0.0
		for j := r.From; j < n; j++ {
			sum += ref.LogSoftmax(z.Row(j-1), 1)[r.IDs[j]]
		}
		rows, want = append(rows, r), append(want, sum)
	}
	got, err := eval.LogLikelihoods(context.Background(), s, on[0], rows, vocab)
	if err != nil {
		t.Fatal(err)
	}
	near.CheckRel(t, "log-likelihoods", got, want, 1e-6)
	for name, r := range map[string]eval.Continuation{"nothing scored": {IDs: ids[:4], From: 4}, "no context": {IDs: ids[:4]}} {
		if _, err := eval.LogLikelihoods(context.Background(), s, on[0], []eval.Continuation{r}, vocab); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := eval.LogLikelihoods(context.Background(), s, on[0], nil, vocab); fault.KindOf(err) != fault.Invalid {
		t.Errorf("no rows: %v", err)
	}
}

func TestBest(t *testing.T) {
	for _, tt := range []struct {
		in   []float64
		want int
	}{
		{[]float64{-3, -1, -2}, 1}, {[]float64{-1, -2, -1}, -1}, {[]float64{-2, -2, -1}, 2}, {[]float64{-1}, 0}, {nil, -1},
		{[]float64{-1, -1, -1, -0.5}, 3}, {[]float64{0, math.Inf(-1)}, 0},
	} {
		if got := eval.Best(tt.in); got != tt.want {
			t.Errorf("Best(%v) = %d, want %d", tt.in, got, tt.want)
		}
	}
}
