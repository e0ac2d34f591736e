// Package bench measures: distillation steps by phase, and generation.
//
// It runs the code that trains and generates, on random token ids and, where asked, random weights: speed does not
// depend on what the numbers are. Figures are medians over the measured iterations, which follow warm-up ones.
package bench

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"apr/corpus"
	"apr/device"
	"apr/distill"
	"apr/generate"
	"apr/internal/fault"
	"apr/model"
	"apr/optim"
	"apr/plan"
	"apr/teacher"
)

// Loss is the objective of measured steps, that of the programs they are compared with.
var Loss = device.LossSpec{Alpha: 0.5, Temperature: 2}

// StepOptions describe a distillation step to measure.
type StepOptions struct {
	BatchSize, SeqLen  int
	Warmup, Iterations int
	Setting            plan.Setting // how the step is cut
	Vocab              int
	Started            func(first time.Duration) // told when the first step is done, and how long it took
	Progress           func(done, total int)
	SearchEvery        int             // of a student in blocks, see distill.Quantize; 0: once
	Loss               device.LossSpec // the zero spec: Loss
	GroupRows          int             // sequences that go through the teacher at a time; 0: teacher.GroupRows
	// Ranks share a step of World × BatchSize rows; all of them measure.
	Ranks distill.Ranks
}

// Step is what was measured of a step, in milliseconds.
type Step struct {
	Tokens          int                `json:"tokens"`
	Milliseconds    []float64          `json:"iterations_ms"`
	Median          float64            `json:"median_ms"`
	P95             float64            `json:"p95_ms"`
	TokensPerSecond float64            `json:"tokens_per_second"`
	Phases          map[string]float64 `json:"phases_ms"` // medians
	// Of a student in blocks: the time of a search for the scales of all of them, which no iteration holds, and what it
	// adds to a step on average.
	Search    *float64 `json:"search_ms,omitempty"`
	Amortised *float64 `json:"search_ms_per_step,omitempty"`
	phases    map[string][]float64
}

// RunSteps takes n steps like those that MeasureStep times, for a profile.
func RunSteps(ctx context.Context, s device.Stream, student, big *model.Model, n int, o StepOptions) error {
	o.Warmup, o.Iterations, o.Started, o.Progress = 0, n, nil, nil
	_, err := steps(ctx, s, student, big, o)
	return err
}

// MeasureStep times whole optimiser steps: teacher forward, student forward, head and loss, backward, clip, AdamW, on
// fresh random ids each. A loss of alpha 0 asks no teacher: big may be nil. When ctx ends between two steps, the
// error is its own.
//
// The steps of a student in blocks round under the scales that are there. A search for these is timed apart, so that
// the figures do not depend on how many steps were measured.
func MeasureStep(ctx context.Context, s device.Stream, student *model.Model, big *model.Model, o StepOptions) (*Step, error) {
	r, err := steps(ctx, s, student, big, o)
	if err != nil {
		return nil, err
	}
	return r, r.search(ctx, s, student, o.SearchEvery)
}

// steps takes steps, and times those after the warm-up.
func steps(ctx context.Context, s device.Stream, student *model.Model, big *model.Model, o StepOptions) (*Step, error) {
	tr := distill.NewTrainer(student, s, o.BatchSize, o.SeqLen)
	defer tr.Free()
	tr.Loss.Spec, tr.Loss.Vocab = cmp.Or(o.Loss, Loss), o.Vocab
	if tr.Loss.Spec.Alpha != 0 {
		group := cmp.Or(o.GroupRows, teacher.GroupRows(student.Device().Info(), o.SeqLen))
		tr.Teacher = &teacher.Resident{Model: big, Group: group}
	}
	tr.Cut(o.Setting)
	tr.Ranks = o.Ranks
	o.BatchSize *= o.Ranks.World()
	tr.Optimizer = optim.Optimizer{
		Schedule: optim.Schedule{Kind: optim.Constant, Peak: 1e-3, Steps: o.Warmup + o.Iterations},
		AdamW:    device.AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}, MaxNorm: 1,
	}
	rng := rand.New(rand.NewPCG(1, 2))
	r := &Step{Tokens: o.BatchSize * o.SeqLen, phases: map[string][]float64{}}
	for i := range o.Warmup + o.Iterations {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b := randomBatch(rng, o)
		start := time.Now()
		rec, err := tr.Apply(ctx, b)
		took := time.Since(start)
		if err != nil {
			return nil, err
		}
		if i == 0 && o.Started != nil {
			o.Started(took)
		}
		if o.Progress != nil {
			o.Progress(i+1, o.Warmup+o.Iterations)
		}
		if i < o.Warmup {
			continue
		}
		r.Milliseconds = append(r.Milliseconds, ms(took))
		for p := range device.NumPhases {
			r.phases[p.String()] = append(r.phases[p.String()], ms(rec.Phases[p]))
		}
	}
	r.finish()
	return r, nil
}

// searches is how many searches for the scales of a student in blocks are timed.
const searches = 3

// search times the searches for the scales of a student in blocks.
func (r *Step) search(ctx context.Context, s device.Stream, student *model.Model, every int) error {
	if !student.Quantized() {
		return nil
	}
	var all []float64
	for range searches {
		start := time.Now()
		s.(device.Quantizer).Quantize(student.Params(), true)
		if _, err := s.Wait(ctx); err != nil {
			return err
		}
		all = append(all, ms(time.Since(start)))
	}
	took, share := Percentile(all, 50), 0.0
	if every > 0 {
		share = max(0, took-r.Phases[device.PhaseQuantize.String()]) / float64(every)
	}
	r.Search, r.Amortised = &took, &share
	return nil
}

func (r *Step) finish() {
	r.Median, r.P95 = Percentile(r.Milliseconds, 50), Percentile(r.Milliseconds, 95)
	r.TokensPerSecond = float64(r.Tokens) / r.Median * 1e3
	r.Phases = map[string]float64{}
	for name, all := range r.phases {
		r.Phases[name] = Percentile(all, 50)
	}
}

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// Percentile returns the p-th percentile of n values by the nearest rank, the ⌈p·n/100⌉-th of them in ascending order;
// values may be in any order and not empty.
func Percentile(values []float64, p float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p * float64(len(sorted)) / 100))
	return sorted[max(0, min(len(sorted)-1, rank-1))]
}

// randomBatch returns uniform ids below Vocab; the targets are the inputs shifted by one.
func randomBatch(rng *rand.Rand, o StepOptions) corpus.Batch {
	n := o.BatchSize * o.SeqLen
	b := corpus.Batch{Rows: o.BatchSize, SeqLen: o.SeqLen, Tokens: make([]int32, n), Targets: make([]int32, n), Mask: make([]uint8, n)}
	for i := range n {
		b.Tokens[i], b.Mask[i] = rng.Int32N(int32(o.Vocab)), 1
	}
	for r := range o.BatchSize {
		row := b.Tokens[r*o.SeqLen : (r+1)*o.SeqLen]
		copy(b.Targets[r*o.SeqLen:], row[1:])
		b.Targets[(r+1)*o.SeqLen-1] = row[0]
	}
	return b
}

// Generation is what was measured of a generation.
type Generation struct {
	PromptTokens    int       `json:"prompt_tokens"`
	Tokens          int       `json:"tokens"`
	PromptPerSecond float64   `json:"prompt_tokens_per_second"` // prompt read, first token made
	TokensPerSecond float64   `json:"tokens_per_second"`        // of the further tokens
	FirstMS         []float64 `json:"first_token_ms"`
	TokenMS         []float64 `json:"token_ms"` // mean per iteration
	Decoding        string    `json:"decoding,omitempty"`
	Latencies       []float64 `json:"-"` // of each further token of each iteration, in milliseconds
}

// MeasureGeneration times greedy generation of n tokens after prompt.
func MeasureGeneration(ctx context.Context, s device.Stream, m *model.Model, prompt []int32, n, vocab, warmup, iterations int, progress func(done, total int)) (*Generation, error) {
	if n < 2 {
		return nil, fault.New(fault.Usage, "%d tokens have no time between them; at least 2 are needed", n)
	}
	g := &Generation{PromptTokens: len(prompt), Tokens: n}
	var made []time.Time
	emit := func(int32) error {
		made = append(made, time.Now())
		return nil
	}
	for i := range warmup + iterations {
		made = made[:0]
		r, err := generate.Generate(ctx, m, s, prompt, generate.Options{MaxTokens: n, RepeatPenalty: 1, Vocab: vocab}, emit)
		if err != nil {
			return nil, err
		}
		if progress != nil {
			progress(i+1, warmup+iterations)
		}
		if g.Decoding = r.Decoding; i >= warmup {
			g.FirstMS = append(g.FirstMS, ms(r.FirstToken))
			g.TokenMS = append(g.TokenMS, ms(r.Total-r.FirstToken)/float64(n-1))
			for j := 1; j < len(made); j++ {
				g.Latencies = append(g.Latencies, ms(made[j].Sub(made[j-1])))
			}
		}
	}
	g.PromptPerSecond = float64(len(prompt)) / Percentile(g.FirstMS, 50) * 1e3
	g.TokensPerSecond = 1e3 / Percentile(g.TokenMS, 50)
	return g, nil
}

// peakTime is how long PeakGFLOPS measures at least: longer than another process holds a processor at a stretch.
const peakTime = 50 * time.Millisecond

// peakTicks is how long a measurement of PeakGFLOPS takes at least: some ticks of the clock, which has 0.5 ms on Windows.
const peakTicks = 2 * time.Millisecond

// PeakGFLOPS measures the rate of a product of n×n matrices on the device, in 10⁹ operations a second: the ceiling that
// steps are compared with. n 0 is a size that fills the device.
func PeakGFLOPS(ctx context.Context, dev device.Device, s device.Stream, n int) (float64, error) {
	fills, rounds := 1024, 8
	if dev.Info().Kind == "cuda" {
		fills, rounds = 8192, 24 // long enough for its clock to settle
	}
	if n == 0 {
		n = fills
	}
	act := dev.Info().Activations
	x, y := s.Temp("peak.x", device.Scratch, act, n, n), s.Temp("peak.y", device.Scratch, act, n, n)
	defer s.Release(x, y)
	p := dev.Param(device.ParamSpec{Name: "peak.w", Rows: n, Cols: n})
	values := make([]float32, n*n)
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range values {
		values[i] = rng.Float32() - 0.5 // not zeros: those let a GPU run faster than data does
	}
	s.Upload(x, values)
	s.Upload(p.Value, values)
	s.RefreshWeight(p)
	best, products := math.Inf(1), 1 // seconds of a product; products timed at once
	for round, begun := 0, time.Now(); round < rounds || time.Since(begun) < peakTime; round++ {
		start := time.Now()
		for range products {
			s.MatMul(y, x, p.Weight, device.Tensor{}, false)
			if _, err := s.Wait(ctx); err != nil {
				return 0, err
			}
		}
		took := time.Since(start)
		if took < peakTicks {
			products *= 2
			continue
		}
		best = min(best, took.Seconds()/float64(products))
	}
	return 2 * math.Pow(float64(n), 3) / best / 1e9, nil
}
