//go:build emulate || gpu

package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/tensor"
)

// Positions computed by chunks are those computed one by one, and so is the state behind them, around the length of a chunk and of
// what steps take. The same call gives the same bits.
func TestDeltaNetByChunksAndByTokens(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{Compute: cuda.F32})
	defer d.Close()
	for _, n := range []int{1, 16, 17, 63, 64, 65, 127, 128, 129} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			contracttest.Cases(t, 1)
			rule := device.Delta{Sequences: device.Sequences{Batch: 1, Len: n}, KeyHeads: 2, ValueHeads: 4, KeyDim: 32, ValueDim: 48}
			chunks, state := runDelta(t, d, rule, n)
			tokens, last := runDelta(t, d, rule, 1)
			near.CheckRel(t, "o", chunks, tokens, 1e-5)
			near.CheckRel(t, "state", state, last, 1e-5)
			again, other := runDelta(t, d, rule, n)
			if !slices.Equal(chunks, again) || !slices.Equal(state, other) {
				t.Error("a second time there are other bits")
			}
		})
	}
}

// runDelta returns the output and the last state of random operands, given to the operation step positions at a time.
func runDelta(t *testing.T, dev *cuda.Device, d device.Delta, step int) (o, state []float32) {
	t.Helper()
	s, rng, n := dev.NewStream(), rand.New(rand.NewPCG(1, 2)), d.Len
	random := func(rows, cols int) device.Tensor {
		x := s.Temp("x", device.Activations, tensor.F32, rows, cols)
		host := make([]float32, rows*cols)
		for i := range host {
			host[i] = float32(rng.NormFloat64())
		}
		s.Upload(x, host)
		return x
	}
	u, ba, logA, dt := random(n, d.Channels()), random(n, 2*d.ValueHeads), random(1, d.ValueHeads), random(1, d.ValueHeads)
	out, carried := s.Temp("o", device.Activations, tensor.F32, n, d.Inner()), s.Temp("state", device.KVCache, tensor.F32, d.ValueHeads, d.KeyDim*d.ValueDim)
	defer s.Release(u, ba, logA, dt, out, carried)
	s.Zero(carried)
	for at := 0; at < n; at += step {
		part := d
		part.Len = step
		s.DeltaNet(out.RowRange(at, at+step), u.RowRange(at, at+step), ba.RowRange(at, at+step), logA, dt, carried, carried, part)
	}
	o, state = make([]float32, n*d.Inner()), make([]float32, d.ValueHeads*d.KeyDim*d.ValueDim)
	if err := s.Download(o, out); err != nil {
		t.Fatal(err)
	}
	if err := s.Download(state, carried); err != nil {
		t.Fatal(err)
	}
	return o, state
}

// TestDeltaStep: one position by one kernel has the bits of the convolution, the delta rule, the norm of heads and its
// gate, position after position; inputs that are written where other heads read them are declined.
func TestDeltaStep(t *testing.T) {
	findDriver(t)
	for _, compute := range []cuda.Compute{cuda.BF16, cuda.F32} {
		d := open(t, cuda.Options{Compute: compute})
		defer d.Close()
		for i, c := range []struct {
			keyHeads, valueHeads, keyDim, valueDim, taps int
			apart                                        bool
		}{
			{2, 4, 128, 128, 4, true}, {1, 3, 32, 48, 4, true}, {2, 2, 24, 8, 2, true}, {1, 1, 100, 104, 4, false},
		} {
			t.Run(fmt.Sprint(compute, i), func(t *testing.T) {
				contracttest.Cases(t, 1)
				b := &few{d: d, s: d.NewStream().(*cuda.Stream), rng: rand.New(rand.NewPCG(3, uint64(i)))}
				b.deltaSteps(t, device.Delta{
					Sequences: device.Sequences{Batch: 1, Len: 1}, KeyHeads: c.keyHeads, ValueHeads: c.valueHeads,
					KeyDim: c.keyDim, ValueDim: c.valueDim,
				}, c.taps, c.apart)
			})
		}
	}
}

// deltaSteps runs a few positions both ways.
func (b *few) deltaSteps(t *testing.T, d device.Delta, taps int, apart bool) {
	t.Helper()
	act, c, n := b.d.Info().Activations, d.Channels(), d.Inner()
	acts := func(rows, cols int) device.Tensor { return b.typed(act, rows, cols, 1) }
	state := func() device.Tensor { return b.values(d.ValueHeads, d.KeyDim*d.ValueDim, 1) }
	heads := func() device.Tensor { return b.values(1, d.ValueHeads, 1) }
	w, logA, dt, norm := b.values(c, taps, 1), heads(), heads(), b.values(1, d.ValueDim, 1)
	var none device.Tensor
	step := device.DeltaStep{Delta: d, Taps: w, LogA: logA, DT: dt, Norm: norm, Eps: 1e-5}
	var from, inputs device.Tensor
	for range 3 {
		x, ba, gated := acts(1, c), acts(1, 2*d.ValueHeads), acts(1, 2*n)
		u, o, want, y := acts(1, c), acts(1, n), acts(1, n), acts(1, n)
		wantTo, wantInputs := state(), acts(taps-1, c)
		b.s.Conv(u, x, w, inputs, wantInputs, d.Sequences)
		b.s.DeltaNet(o, u, ba, logA, dt, from, wantTo, d)
		b.s.HeadNorm(gated.ColRange(n, 2*n), none, o, norm, d.ValueDim, 1e-5)
		b.s.GLU(want, gated, device.SiLU)
		step.X, step.Z, step.BA, step.From, step.FromInputs = x, gated.ColRange(0, n), ba, from, inputs
		if step.To, step.Inputs = state(), acts(taps-1, c); !apart && !inputs.IsZero() {
			step.Inputs = inputs
		}
		if got := b.launches(t, func() {
			if !b.s.DeltaStep(y, step) {
				t.Error("the device has no such operation")
			}
		}); got != 1 {
			t.Errorf("%d launches", got)
		}
		pairs := map[string][2]device.Tensor{
			"output": {y, want}, "state": {step.To, wantTo}, "inputs": {step.Inputs, wantInputs},
		}
		for name, pair := range pairs {
			if !b.same(t, pair[0], pair[1]) {
				t.Errorf("%s differs", name)
			}
		}
		from, inputs = wantTo, wantInputs
	}
	step.From, step.FromInputs, step.Inputs = from, inputs, inputs
	if apart && d.KeyHeads < d.ValueHeads && b.s.DeltaStep(acts(1, n), step) {
		t.Error("inputs were written while other heads read them")
	}
}
