package eval

import (
	"math"
	"testing"

	"apr/internal/near"
)

func TestAdvantage(t *testing.T) {
	low := func(items ...float64) Score { return Score{Items: items} }
	high := func(items ...float64) Score { return Score{Items: items, Higher: true} }
	for _, tt := range []struct {
		name         string
		a, b         Score
		mean, errors float64
	}{
		// differences 1, 2, 3: mean 2, deviation 1, standard error 1/√3
		{"lower is better", low(1, 1, 1), low(2, 3, 4), 2, 2 * math.Sqrt(3)},
		{"the other way round", low(2, 3, 4), low(1, 1, 1), -2, -2 * math.Sqrt(3)},
		{"higher is better", high(2, 3, 4), high(1, 1, 1), 2, 2 * math.Sqrt(3)},
		{"paired: common ups and downs do not count", high(10, 20, 31), high(9, 18, 28), 2, 2 * math.Sqrt(3)},
	} {
		mean, errors := tt.a.Advantage(tt.b)
		near.Check(t, tt.name, []float64{mean, errors}, []float64{tt.mean, tt.errors}, 1e-12)
	}
	if _, e := high(1, 1).Advantage(high(0, 0)); !math.IsInf(e, 1) {
		t.Errorf("without spread: %g standard errors", e)
	}
	for name, pair := range map[string][2]Score{"one item": {low(1), low(2)}, "unlike numbers": {low(1, 2), low(1, 2, 3)}, "equal": {low(1, 2), low(1, 2)}} {
		if _, e := pair[0].Advantage(pair[1]); !math.IsNaN(e) {
			t.Errorf("%s: %g standard errors", name, e)
		}
	}
}

func TestPasses(t *testing.T) {
	for _, tt := range []struct {
		value, threshold float64
		higher, want     bool
	}{
		{9, 10, false, true}, {10, 10, false, true}, {11, 10, false, false},
		{9, 10, true, false}, {10, 10, true, true}, {11, 10, true, true},
		{math.NaN(), 10, false, false}, {math.NaN(), 10, true, false},
	} {
		if got := (Score{Value: tt.value, Higher: tt.higher}).Passes(tt.threshold); got != tt.want {
			t.Errorf("%g, threshold %g, higher %v: %v", tt.value, tt.threshold, tt.higher, got)
		}
	}
}

func TestClusters(t *testing.T) {
	all := make([]Position, 200)
	for i := range all {
		all[i].KL = float64(i)
	}
	got := Clusters(all, func(p Position) float64 { return p.KL })
	near.Check(t, "means", got, []float64{31.5, 95.5, (128 + 199) / 2.}, 1e-12) // 64, 64, 72
	if one := Clusters(all[:5], func(p Position) float64 { return p.KL }); len(one) != 1 || one[0] != 2 {
		t.Errorf("five positions: %v", one)
	}
}
