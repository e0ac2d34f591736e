package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/quant"
	"apr/tensor"
)

// BenchmarkStoredWeight is a linear layer of the 0.5B model from every kind of storage, for a batch and for one token.
func BenchmarkStoredWeight(b *testing.B) {
	const in, out = 1024, 4864
	rng := rand.New(rand.NewPCG(1, 1))
	for _, rows := range []int{1, 1024} {
		for _, d := range []tensor.DType{tensor.F32, tensor.BF16, tensor.Q8_0, tensor.Q4_K, tensor.Q6_K} {
			b.Run(fmt.Sprintf("rows=%d/%v", rows, d), func(b *testing.B) {
				dev := open(b, cpu.Options{})
				src, _ := randomStored(b, rng, out, in, d, quant.RowPadded)
				w, err := dev.Weight(device.WeightSpec{Name: "w", Parts: []device.Source{src}})
				if err != nil {
					b.Fatal(err)
				}
				x := dev.Alloc("x", device.Scratch, tensor.F32, rows, in)
				y := dev.Alloc("y", device.Scratch, tensor.F32, rows, out)
				s := dev.Stream()
				for b.Loop() {
					s.MatMul(y, x, w, device.Tensor{}, false)
				}
				b.ReportMetric(2*float64(rows)*in*out*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}
