package bench_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"apr/arch"
	"apr/bench"
	"apr/device"
	"apr/device/cpu"
	"apr/model"
	"apr/plan"
	"apr/tensor"
)

// The nearest rank of the p-th percentile of n values is ⌈p·n/100⌉, counted from 1.
func TestPercentile(t *testing.T) {
	for _, c := range []struct {
		n    int
		p    float64
		want float64
	}{{1, 50, 1}, {1, 95, 1}, {2, 50, 1}, {3, 50, 2}, {4, 50, 2}, {5, 50, 3}, {10, 95, 10}, {11, 95, 11}, {20, 95, 19}, {20, 100, 20}, {20, 0, 1}, {21, 95, 20}} {
		var values []float64
		for i := range c.n {
			values = append(values, float64(c.n-i)) // in falling order
		}
		was := slices.Clone(values)
		if got := bench.Percentile(values, c.p); got != c.want {
			t.Errorf("percentile %g of 1…%d is %g, want %g", c.p, c.n, got, c.want)
		}
		if !slices.Equal(values, was) {
			t.Error("the values were moved")
		}
	}
}

func models(tb testing.TB) (device.Device, *model.Model, *model.Model) {
	tb.Helper()
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { d.Close() })
	c := arch.Qwen2(arch.Sizes{Hidden: 16, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 8, Width: 24, Vocab: 40,
		MaxPositions: 64, Theta: 1e6, Eps: 1e-6, Tied: true, InitRange: 0.02,
	})
	student, big := model.NewTrainable(d, c), model.NewTrainable(d, c)
	student.Init(d.NewStream(), 1)
	big.Init(d.NewStream(), 2)
	return d, student, big.Frozen()
}

// What a search for the scales of blocks takes is told beside steps that round, and its share is that of every n-th step.
func TestMeasureBlocks(t *testing.T) {
	d, _, big := models(t)
	c := big.Config
	types := map[string]tensor.DType{}
	for _, s := range arch.Slots(c) {
		if len(s.Shape) == 2 {
			types[s.Name] = tensor.BF16 // blocks of one value
		}
	}
	s := d.NewStream()
	student := model.NewTrainableAs(d, c, types)
	student.Init(s, 1)
	o := bench.StepOptions{BatchSize: 2, SeqLen: 8, Iterations: 2, Setting: plan.Setting{MicroRows: 2, ChunkRows: 16}, Vocab: 40}
	for every, share := range map[int]float64{0: 0, 1: 1, 4: .25} {
		o.SearchEvery = every
		step, err := bench.MeasureStep(context.Background(), s, student, big, o)
		if err != nil {
			t.Fatal(err)
		}
		want := share * max(0, *step.Search-step.Phases[device.PhaseQuantize.String()])
		if !(*step.Search > 0) || !(math.Abs(*step.Amortised-want) <= 1e-12) {
			t.Errorf("every %d: a search takes %g ms, %g a step, want %g", every, *step.Search, *step.Amortised, want)
		}
	}
}

// Figures come from as many iterations as were asked for, after the warm-up ones, and agree with each other.
func TestMeasurements(t *testing.T) {
	d, student, big := models(t)
	s, ctx := d.NewStream(), context.Background()
	var seen []int
	step, err := bench.MeasureStep(ctx, s, student, big, bench.StepOptions{BatchSize: 2, SeqLen: 8, Warmup: 2, Iterations: 3, Setting: plan.Setting{MicroRows: 2, ChunkRows: 16}, Vocab: 40,
		Progress: func(done, total int) { seen = append(seen, done, total) }})
	if err != nil {
		t.Fatal(err)
	}
	if step.Tokens != 16 || len(step.Milliseconds) != 3 || len(step.Phases) != int(device.NumPhases) || !slices.Equal(seen, []int{1, 5, 2, 5, 3, 5, 4, 5, 5, 5}) {
		t.Errorf("step %+v, progress %v", step, seen)
	}
	if step.Search != nil || step.Amortised != nil {
		t.Errorf("a student without blocks searches for scales: %v, %v", step.Search, step.Amortised)
	}
	if want := 16e3 / step.Median; !(math.Abs(step.TokensPerSecond/want-1) < 1e-12) || !slices.Contains(step.Milliseconds, step.Median) || step.P95 < step.Median {
		t.Errorf("median %g ms, 95 %% %g ms of %v; %g tokens a second, want %g", step.Median, step.P95, step.Milliseconds, step.TokensPerSecond, want)
	}
	g, err := bench.MeasureGeneration(ctx, s, student.Frozen(), []int32{1, 2, 3}, 4, 40, 1, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	if g.PromptTokens != 3 || g.Tokens != 4 || len(g.FirstMS) != 2 || len(g.TokenMS) != 2 || !(g.TokensPerSecond > 0) || !(g.PromptPerSecond > 0) {
		t.Errorf("generation %+v", g)
	}
	sum := 0.0
	for _, l := range g.Latencies {
		sum += l
	}
	// Three further tokens of each of two iterations, whose times add up to those of the iterations, but for the first token's emission.
	if whole := 3 * (g.TokenMS[0] + g.TokenMS[1]); len(g.Latencies) != 6 || slices.Min(g.Latencies) <= 0 || sum > whole || sum < whole/2 {
		t.Errorf("latencies %v add up to %g of %g ms", g.Latencies, sum, whole)
	}
	if rate, err := bench.PeakGFLOPS(ctx, d, s, 64); err != nil || !(rate > 0) {
		t.Errorf("peak %g (%v)", rate, err)
	}
}

func ExamplePercentile() {
	ms := []float64{12, 10, 11, 30}
	fmt.Println(bench.Percentile(ms, 50), bench.Percentile(ms, 95))
	// Output:
	// 11 30
}

// A measurement ends between two steps when its context does.
func TestMeasureStepStops(t *testing.T) {
	d, student, big := models(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	steps := 0
	_, err := bench.MeasureStep(ctx, d.NewStream(), student, big, bench.StepOptions{BatchSize: 2, SeqLen: 8, Warmup: 2, Iterations: 3,
		Setting: plan.Setting{MicroRows: 2, ChunkRows: 16}, Vocab: 40, Progress: func(int, int) {
			steps++
			cancel()
		}})
	if !errors.Is(err, context.Canceled) || steps != 1 {
		t.Errorf("%d steps, then %v", steps, err)
	}
}
