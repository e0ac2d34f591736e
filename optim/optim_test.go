package optim_test

import (
	"math"
	"strings"
	"testing"

	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/near"
	"apr/optim"
)

// The values follow from the formulas by hand: η = 2, W = 4 warm-up steps, K = 12, m = 0.1.
func TestScheduleKnownValues(t *testing.T) {
	root := math.Sqrt2 / 2
	for _, c := range []struct {
		kind optim.Kind
		k    int
		want float64
	}{
		{optim.Cosine, 0, 0.5}, {optim.Cosine, 1, 1}, {optim.Cosine, 3, 2}, // the warm-up ends at the peak
		{optim.Cosine, 4, 2},                                  // cos 0: the peak again
		{optim.Cosine, 6, 2 * (0.1 + 0.45*(1+root))},          // a quarter of the way
		{optim.Cosine, 8, 2 * 0.55},                           // half
		{optim.Cosine, 10, 2 * (0.1 + 0.45*(1-root))},         // three quarters
		{optim.Cosine, 11, 2 * (0.1 + 0.45*(1-0.9238795325))}, // the last step is not yet at the floor
		{optim.Cosine, 12, 0.2}, {optim.Cosine, 1000, 0.2},
		{optim.Linear, 0, 0.5}, {optim.Linear, 4, 2}, {optim.Linear, 8, 1.1}, {optim.Linear, 12, 0.2}, {optim.Linear, 13, 0.2},
		{optim.Constant, 0, 0.5}, {optim.Constant, 3, 2}, {optim.Constant, 4, 2}, {optim.Constant, 11, 2},
	} {
		s := optim.Schedule{Kind: c.kind, Peak: 2, Warmup: 4, Steps: 12, MinRatio: 0.1}
		near.CheckRel(t, string(c.kind), []float64{s.At(c.k)}, []float64{c.want}, 1e-9)
		contracttest.Cases(t, 1)
	}
}

func TestScheduleEdges(t *testing.T) {
	for name, c := range map[string]struct {
		s    optim.Schedule
		k    int
		want float64
	}{
		"no warm-up begins at the peak": {optim.Schedule{Kind: optim.Cosine, Peak: 3, Steps: 10, MinRatio: 0.1}, 0, 3},
		"one warm-up step is the peak":  {optim.Schedule{Kind: optim.Cosine, Peak: 3, Warmup: 1, Steps: 10}, 0, 3},
		"all steps warm up":             {optim.Schedule{Kind: optim.Cosine, Peak: 4, Warmup: 4, Steps: 4, MinRatio: 0.1}, 1, 2},
		"after a warm-up of all steps":  {optim.Schedule{Kind: optim.Cosine, Peak: 4, Warmup: 4, Steps: 4, MinRatio: 0.1}, 4, 4},
		"ratio 0 ends at 0":             {optim.Schedule{Kind: optim.Linear, Peak: 4, Steps: 4}, 4, 0},
		"ratio 1 is constant":           {optim.Schedule{Kind: optim.Cosine, Peak: 4, Steps: 4, MinRatio: 1}, 2, 4},
	} {
		if got := c.s.At(c.k); !(math.Abs(got-c.want) <= 1e-12) {
			t.Errorf("%s: %g, want %g", name, got, c.want)
		}
	}
}

func TestScheduleValidate(t *testing.T) {
	good := optim.Schedule{Kind: optim.Cosine, Peak: 1e-3, Warmup: 2, Steps: 10, MinRatio: 0.1}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		change func(*optim.Schedule)
		want   string
	}{
		"unknown kind":     {func(s *optim.Schedule) { s.Kind = "step" }, `"step"`},
		"no rate":          {func(s *optim.Schedule) { s.Peak = 0 }, "not positive"},
		"NaN rate":         {func(s *optim.Schedule) { s.Peak = math.NaN() }, "not positive"},
		"infinite rate":    {func(s *optim.Schedule) { s.Peak = math.Inf(1) }, "finite"},
		"negative warm-up": {func(s *optim.Schedule) { s.Warmup = -1 }, "-1 warm-up"},
		"no steps":         {func(s *optim.Schedule) { s.Steps = 0 }, "of 0 steps"},
		"ratio above 1":    {func(s *optim.Schedule) { s.MinRatio = 1.1 }, "[0,1]"},
		"NaN ratio":        {func(s *optim.Schedule) { s.MinRatio = math.NaN() }, "[0,1]"},
	} {
		s := good
		c.change(&s)
		if err := s.Validate(); fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one of kind usage that says %q", name, err, c.want)
		}
	}
}

// Bias corrections count applied updates, the schedule counts steps: after a refused step they differ.
func TestScalars(t *testing.T) {
	o := optim.Optimizer{
		Schedule: optim.Schedule{Kind: optim.Linear, Peak: 1, Steps: 10},
		AdamW:    device.AdamW{Beta1: 0.9, Beta2: 0.95}, MaxNorm: 3,
	}
	for _, c := range []struct {
		k, n, applied   int
		lr, inv, b1, b2 float64
	}{
		{0, 4, 0, 1, 0.25, 0.1, 0.05},
		{1, 1, 1, 0.9, 1, 0.19, 0.0975},
		{5, 10, 2, 0.5, 0.1, 1 - 0.729, 1 - 0.857375},
	} {
		o.Applied = c.applied
		s := o.Scalars(c.k, c.n)
		near.CheckRel(t, "scalars", []float64{s.LR, s.InvN, s.BiasCorr1, s.BiasCorr2, s.MaxNorm}, []float64{c.lr, c.inv, c.b1, c.b2, 3}, 1e-12)
	}
}
