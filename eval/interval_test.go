package eval

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/near"
)

func TestEstimate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		blocks []block
		want   Estimate
	}{
		// means 1, 2, 3: their deviation is 1, the error 1/√3
		{"equal blocks", []block{{2, 2}, {2, 4}, {2, 6}}, Estimate{2, 1 / math.Sqrt(3), 3}},
		// m = 10/4; residuals 4 − 2.5 and 6 − 7.5: √(2·(1.5² + 1.5²))/4
		{"unequal blocks", []block{{1, 4}, {3, 6}}, Estimate{2.5, 0.75, 2}},
		{"no spread", []block{{1, 3}, {2, 6}}, Estimate{3, 0, 2}},
	} {
		got := estimate(tt.blocks)
		near.Check(t, tt.name, []float64{got.Mean, got.StandardError}, []float64{tt.want.Mean, tt.want.StandardError}, 1e-12)
		if got.Blocks != tt.want.Blocks {
			t.Errorf("%s: %d blocks", tt.name, got.Blocks)
		}
	}
	one := estimate([]block{{4, 8}})
	low, high := one.Interval()
	if one.Mean != 2 || !math.IsNaN(one.StandardError) || !math.IsNaN(low) || !math.IsNaN(high) {
		t.Errorf("one block has an error: %+v, %g to %g", one, low, high)
	}
}

// What is hard for both models is no error of their difference.
func TestMargin(t *testing.T) {
	a := Scores{blocks: []block{{10, 20}, {10, 90}, {10, 40}}}
	b := Scores{blocks: []block{{10, 21}, {10, 92}, {10, 43}}}
	got := a.Margin(b)
	near.Check(t, "margin", []float64{got.Mean, got.StandardError}, []float64{0.2, 0.1 / math.Sqrt(3)}, 1e-12)
	if back := b.Margin(a); back.Mean != -got.Mean || back.StandardError != got.StandardError {
		t.Errorf("the other way round: %+v", back)
	}
	for name, other := range map[string][]block{"fewer": a.blocks[:2], "others": {{10, 1}, {9, 1}, {11, 1}}} {
		if m := a.Margin(Scores{blocks: other}); !math.IsNaN(m.Mean) || !math.IsNaN(m.StandardError) {
			t.Errorf("%s blocks: %+v", name, m)
		}
	}
}

// Quantiles of Student's t as tables have them.
func TestStudentT(t *testing.T) {
	for df, want := range map[int]float64{1: 12.7062, 9: 2.2622, 10: 2.2281, 20: 2.0860, 31: 2.0395, 139: 1.9772, 1000: 1.9623} {
		near.Check(t, fmt.Sprintf("%d degrees", df), []float64{studentT(df)}, []float64{want}, 2e-4)
	}
}

// Of intervals from samples of a known mean, 95 % hold it: blocks of unequal size whose sums scatter with it.
func TestIntervalCovers(t *testing.T) {
	const trials, mean = 4000, 3.0
	rng := rand.New(rand.NewPCG(5, 6))
	for _, blocks := range []int{3, 12, 60} {
		contracttest.Cases(t, 1)
		held := 0
		for range trials {
			sample := make([]block, blocks)
			for i := range sample {
				n := 200 + rng.IntN(100)
				sample[i] = block{int64(n), float64(n) * (mean + 0.3*rng.NormFloat64())}
			}
			if low, high := estimate(sample).Interval(); low <= mean && mean <= high {
				held++
			}
		}
		// Four standard deviations of a count of 4000 are 1.4 %.
		if share := float64(held) / trials; !(math.Abs(share-0.95) <= 0.014) {
			t.Errorf("%d blocks: %.1f %% of the intervals hold the mean", blocks, 100*share)
		}
	}
}
