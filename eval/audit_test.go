package eval

import (
	"math"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/internal/ref"
)

func predictions(confidence float64, right, wrong int) (out []Prediction) {
	for range right {
		out = append(out, Prediction{Confidence: confidence, Right: true})
	}
	for range wrong {
		out = append(out, Prediction{Confidence: confidence})
	}
	return out
}

// Known answers of the expected calibration error.
func TestCalibration(t *testing.T) {
	join := func(a, b []Prediction) []Prediction { return append(a, b...) }
	for _, tt := range []struct {
		name string
		in   []Prediction
		want float64
	}{
		{"right as often as sure", predictions(0.75, 3, 1), 0},
		{"sure and wrong", predictions(1, 0, 5), 1},
		{"sure and right", predictions(1, 5, 0), 0},
		{"unsure and right", predictions(0.25, 4, 0), 0.75},
		{"two bins do not cancel", join(predictions(0.9, 0, 1), predictions(0.1, 1, 0)), 0.9},
		{"one bin cancels", join(predictions(0.5, 1, 0), predictions(0.5, 0, 1)), 0},
		{"upper edge belongs to the lower bin", join(predictions(0.2, 1, 0), predictions(0.14, 0, 1)), (1 - 0.2 - 0.14) / 2},
		{"zero", predictions(0, 0, 1), 0},
	} {
		near.Check(t, tt.name, []float64{calibration(tt.in)}, []float64{tt.want}, 1e-15)
	}
}

func TestSpread(t *testing.T) {
	var v []float64
	for i := range 200 {
		v = append(v, float64((i*77)%200+1)) // 1…200 in some order
	}
	s := spread(v)
	near.Check(t, "of 1…200", []float64{s.Mean, s.Median, s.P95, s.P99, s.Max}, []float64{100.5, 100, 190, 198, 200}, 0)
	s = spread([]float64{7})
	near.Check(t, "of one", []float64{s.Mean, s.Median, s.P95, s.P99, s.Max}, []float64{7, 7, 7, 7, 7}, 0)
}

// One position against float64, and the answers that are known: equal logits, uniform ones, disjoint ones.
func TestJudge(t *testing.T) {
	v := 5
	uniform, peaked, other := make([]float32, v), []float32{0, 0, 300, 0, 0}, []float32{1, -2, 0.5, 3, 0}
	q, r := make([]float64, v), make([]float64, v)
	lnV := math.Log(float64(v))
	h := 0.0
	for _, l := range ref.LogSoftmax([]float64{1, -2, 0.5, 3, 0}, 1) {
		h -= math.Exp(l) * l
	}
	for _, tt := range []struct {
		name              string
		z, t              []float32
		ce, kl, accept, e float64
		agree, right      bool
	}{
		{"uniform, with itself", uniform, uniform, lnV, 0, 1, lnV, true, false},
		{"peaked, with itself", peaked, peaked, 0, 0, 1, 0, true, true},
		{"any, with itself", other, other, h + 0, 0, 1, h, true, false},
		{"uniform against other", uniform, other, lnV, lnV - h, -1, lnV, false, false},
		{"other against peaked", other, peaked, -1, -1, -1, h, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := judge(tt.z, tt.t, 2, q, r)
			lq := ref.LogSoftmax(widen(tt.z), 1)
			if tt.ce < 0 || tt.name == "any, with itself" {
				tt.ce = -lq[2]
			}
			lp := ref.LogSoftmax(widen(tt.t), 1)
			kl, accept := 0.0, 0.0
			for i := range lp {
				if p := math.Exp(lp[i]); p > 0 {
					kl += p * (lp[i] - lq[i])
				}
				accept += math.Min(math.Exp(lp[i]), math.Exp(lq[i]))
			}
			if tt.kl < 0 {
				tt.kl = kl
			}
			if tt.accept < 0 {
				tt.accept = accept
			}
			near.Check(t, "CE, KL, acceptance, entropy", []float64{got.Own.CE, got.KL, got.Accept, got.Own.Entropy},
				[]float64{tt.ce, tt.kl, tt.accept, tt.e}, 1e-12)
			near.Check(t, "against float64", []float64{got.KL, got.Accept}, []float64{kl, accept}, 1e-12)
			if got.Agree != tt.agree || got.Own.Right != tt.right {
				t.Errorf("agree %v, right %v", got.Agree, got.Own.Right)
			}
		})
	}
}

func widen(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// Acceptance by place multiplies what neighbouring targets keep, and passes over gaps in the text.
func TestDraft(t *testing.T) {
	at := func(at int, accept float64, agree bool) Position {
		return Position{At: at, Accept: accept, Agree: agree}
	}
	all := []Position{at(1, .5, true), at(2, .5, true), at(3, .4, false), at(4, 1, true), at(5, .8, true),
		at(9, .1, false), at(10, 1, true), at(11, 1, true)}
	contracttest.Cases(t, len(all))
	d := draft(all) // runs 1–4 and 2–5
	if d.Runs != 2 {
		t.Fatalf("%d runs, want 2", d.Runs)
	}
	reach := []float64{(.5 + .5) / 2, (.25 + .2) / 2, (.1 + .2) / 2, (.1 + .16) / 2}
	near.Check(t, "drawn", append(d.Drawn, d.DrawnPerPass), []float64{reach[0], reach[1] / reach[0], reach[2] / reach[1],
		reach[3] / reach[2], 1 + reach[0] + reach[1] + reach[2] + reach[3]}, 1e-12)
	near.Check(t, "greedy", append(d.Greedy, d.GreedyPerPass), []float64{1, .5, 0, 0, 2.5}, 1e-12)
	if none := draft(all[5:]); none.Runs != 0 || none.Drawn != nil {
		t.Errorf("of three targets %+v", none)
	}
}
