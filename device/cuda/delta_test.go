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
