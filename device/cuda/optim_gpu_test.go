//go:build gpu

package cuda_test

import (
	"context"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// timed prints the time of each operation that run queues once for every i below n, and the rate at which it moves its
// bytes, which are given by its name.
func timed(t *testing.T, d *cuda.Device, s device.Stream, what string, n int, bytes map[string]float64, run func(i int)) {
	t.Helper()
	wait := func() {
		t.Helper()
		if _, err := s.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		run(i)
	}
	wait()
	d.StartProfile()
	for i := range n {
		run(i)
	}
	wait()
	stats, err := d.Profile()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, st := range stats {
		name, sizes, _ := strings.Cut(st.Op, " ")
		if b, ok := bytes[name]; ok {
			seen++
			one := st.Time.Seconds() / float64(st.Calls)
			t.Logf("%-16s %-9s %-22s %7.4f ms  %5.0f GB/s", name, sizes, what, one*1e3, b/one/1e9)
		}
	}
	if seen != len(bytes) {
		t.Errorf("%s: timed %+v, want %v", what, stats, bytes)
	}
}

// halfBillion returns the parameters of a published model of 494 million.
func halfBillion(d device.Device) (params []*device.Param, weights, vectors int) {
	const h, q, kv, f, vocab, layers = 896, 896, 128, 4864, 151936, 24
	add := func(rows, cols int) {
		params = append(params, d.Param(device.ParamSpec{Name: "p", Rows: rows, Cols: cols, Decay: rows > 1}))
		if rows > 1 {
			weights += rows * cols
		} else {
			vectors += cols
		}
	}
	add(vocab, h)
	for range layers {
		add(1, h)
		add(q+2*kv, h)
		add(1, q+2*kv)
		add(h, q)
		add(1, h)
		add(2*f, h)
		add(h, f)
	}
	add(1, h)
	return params, weights, vectors
}

// TestOptimizerSpeed prints the times of Verdict and AdamW.
func TestOptimizerSpeed(t *testing.T) {
	d := open(t, cuda.Options{})
	defer d.Close()
	s := d.NewStream()
	params, weights, vectors := halfBillion(d)
	noise := bells(1<<22, 1)
	for _, p := range params {
		s.Zero(p.M)
		s.Zero(p.V)
		step := len(noise) / p.Cols
		for lo := 0; lo < p.Rows; lo += step {
			hi := min(lo+step, p.Rows)
			s.Upload(p.Value.RowRange(lo, hi), noise[:(hi-lo)*p.Cols])
			s.Upload(p.Grad.RowRange(lo, hi), noise[:(hi-lo)*p.Cols])
		}
	}
	s.SetScalars(device.Scalars{LR: 1e-5, InvN: 1, BiasCorr1: .1, BiasCorr2: .05, MaxNorm: 1})
	a := device.AdamW{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1}
	bytes := map[string]float64{"Verdict": 4 * float64(weights+vectors), "AdamW": 30*float64(weights) + 28*float64(vectors)}
	timed(t, d, s, "494 million parameters", 20, bytes, func(int) {
		s.Verdict(params)
		s.AdamW(params, a)
	})
	if r, err := s.Wait(context.Background()); err != nil || !r.Finite {
		t.Errorf("%+v, %v: nothing was updated", r, err)
	}
}

// TestRowSpeed prints the times of operations on 8192 rows. They work on several matrices in turn, more than the caches
// hold.
func TestRowSpeed(t *testing.T) {
	d := open(t, cuda.Options{})
	defer d.Close()
	s := d.NewStream()
	const rows, all = 8192, 512 << 20
	noise := bells(rows*1024, 2)
	matrices := func(n, cols int) []device.Tensor {
		ms := make([]device.Tensor, n)
		for i := range ms {
			ms[i] = s.Temp("rows", device.Activations, tensor.BF16, rows, cols)
			for lo, step := 0, len(noise)/cols; lo < rows; lo += step {
				hi := min(lo+step, rows)
				s.Upload(ms[i].RowRange(lo, hi), noise[:(hi-lo)*cols])
			}
		}
		return ms
	}
	for _, cols := range []int{3584, 896} {
		ms := matrices(all/(2*rows*cols), cols)
		w, dw := s.Temp("w", device.Activations, tensor.F32, 1, cols), s.Temp("dw", device.Activations, tensor.F32, 1, cols)
		rstd := s.Temp("rstd", device.Activations, tensor.F32, rows, 1)
		s.Upload(w, noise[:cols])
		s.Zero(dw)
		moved := float64(2 * rows * cols)
		of := func(i int) device.Tensor { return ms[i%len(ms)] }
		timed(t, d, s, "", 40, map[string]float64{"RMSNorm": 2 * moved}, func(i int) {
			s.RMSNorm(of(2*i), rstd, device.Tensor{}, of(2*i+1), device.Tensor{}, w, 1e-6)
		})
		timed(t, d, s, "with a residual", 40, map[string]float64{"RMSNorm": 4 * moved}, func(i int) {
			s.RMSNorm(of(3*i), rstd, of(3*i+1), of(3*i+1), of(3*i+2), w, 1e-6)
		})
		timed(t, d, s, "", 40, map[string]float64{"RMSNormBackward": 4 * moved}, func(i int) {
			s.RMSNormBackward(of(3*i), dw, of(3*i+1), of(3*i+2), rstd, w)
		})
		s.Release(append(ms, w, dw, rstd)...)
	}
	const f, heads = 4864, 4096
	gu, dm := matrices(4, 2*f), matrices(4, f)
	timed(t, d, s, "", 40, map[string]float64{"GLUBackward": 2 * rows * 5 * f}, func(i int) {
		s.GLUBackward(gu[i%4], dm[i%4], gu[(i+1)%4], device.SiLU)
	})
	x := matrices(8, heads)
	timed(t, d, s, "heads of 128", 40, map[string]float64{"Rotate": 2 * rows * 2 * heads}, func(i int) {
		s.Rotate(x[i%8], device.Rotary{HeadDim: 128, Table: frequencies(1e6, 128), SeqLen: 1024})
	})
	s.Release(append(append(gu, dm...), x...)...)
}
