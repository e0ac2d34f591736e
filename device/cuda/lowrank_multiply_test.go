//go:build gpu || emulate

package cuda_test

import (
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/device/dry"
	"apr/internal/near"
	"apr/tensor"
)

// TestMultiplyLowRank: each product of adapters, alone, gives what the same product of no adapters gives.
func TestMultiplyLowRank(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	s := d.NewStream().(dry.Multiplier)
	const n, wide, rank = 70, 136, 16
	seed := uint32(7)
	temp := func(dt tensor.DType, rows, cols int) device.Tensor {
		x := s.Temp("operand", device.Activations, dt, rows, cols)
		v := make([]float32, rows*cols)
		for i := range v {
			seed = seed*1664525 + 1013904223
			v[i] = float32(int32(seed)) / (1 << 31)
		}
		s.Upload(x, v)
		return x
	}
	for name, c := range map[string]struct {
		op             dry.Op
		out, in, other [2]int
	}{
		"u = x·Aᵀ":    {op: dry.Op{Kind: device.OpMatMul, M: n, N: rank, K: wide}, out: [2]int{n, rank}, in: [2]int{n, wide}, other: [2]int{rank, wide}},
		"y += u·Bᵀ":   {op: dry.Op{Kind: device.OpMatMul, M: n, N: wide, K: rank, Add: true}, out: [2]int{n, wide}, in: [2]int{n, rank}, other: [2]int{wide, rank}},
		"du = dy·B":   {op: dry.Op{Kind: device.OpMatMulInputGrad, M: n, N: rank, K: wide}, out: [2]int{n, rank}, in: [2]int{n, wide}, other: [2]int{wide, rank}},
		"dx += du·A":  {op: dry.Op{Kind: device.OpMatMulInputGrad, M: n, N: wide, K: rank, Add: true}, out: [2]int{n, wide}, in: [2]int{n, rank}, other: [2]int{rank, wide}},
		"dB += dyᵀ·u": {op: dry.Op{Kind: device.OpMatMulWeightGrad, M: wide, N: rank, K: n, Add: true}, out: [2]int{wide, rank}, in: [2]int{n, wide}, other: [2]int{n, rank}},
		"dA += duᵀ·x": {op: dry.Op{Kind: device.OpMatMulWeightGrad, M: rank, N: wide, K: n, Add: true}, out: [2]int{rank, wide}, in: [2]int{n, rank}, other: [2]int{n, wide}},
	} {
		t.Run(name, func(t *testing.T) {
			var results [2][]float32
			for i := range results {
				seed = 7
				outType := tensor.BF16
				if c.op.Kind == device.OpMatMulWeightGrad {
					outType = tensor.F32
				}
				m := dry.Operands{Out: temp(outType, c.out[0], c.out[1]), In: temp(tensor.BF16, c.in[0], c.in[1]), Other: temp(tensor.BF16, c.other[0], c.other[1])}
				o := c.op
				o.In, o.Out, o.InStride, o.OutStride, o.Thin = tensor.BF16, outType, c.in[1], c.out[1], rank*i
				s.Multiply(o, m)
				results[i] = make([]float32, c.out[0]*c.out[1])
				if err := s.Download(results[i], m.Out); err != nil {
					t.Fatal(err)
				}
				s.Release(m.Out, m.In, m.Other)
			}
			near.CheckL2(t, name, results[1], results[0], 4e-3)
		})
	}
}
