//go:build gpu

package cuda_test

import (
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// TestExpertsSpeed prints, at the shapes of Qwen3-30B-A3B, how fast slots are chosen, sorted and multiplied with experts in blocks and in
// bfloat16, tokens spread evenly and all on the same experts.
func TestExpertsSpeed(t *testing.T) {
	d := open(t, cuda.Options{})
	defer d.Close()
	if err := d.Prewarm(); err != nil {
		t.Fatal(err)
	}
	s := d.NewStream()
	const experts, active = 128, 8
	type stack struct {
		out, in int
		d       tensor.DType
		w       device.Weight
	}
	var stacks []stack
	for _, shape := range [][2]int{{768, 2048}, {2048, 768}} {
		for _, dtype := range []tensor.DType{tensor.Q4_K, tensor.Q6_K, tensor.BF16} {
			w, err := d.Weight(device.WeightSpec{
				Name: "w", Component: device.TeacherWeights, Parts: []device.Source{inBlocks(t, dtype, experts*shape[0], shape[1])}, Experts: experts,
				Form: device.Form{Blocks: true},
			})
			if err != nil {
				t.Fatal(err)
			}
			stacks = append(stacks, stack{shape[0], shape[1], dtype, w})
		}
	}
	for _, tokens := range []int{1, 8, 64, 512, 4096} {
		for _, skewed := range []bool{false, true} {
			slots := tokens * active
			ints := func(n int) device.Tensor { return s.Temp("slots", device.Batch, tensor.I32, n, 1) }
			r := device.Routing{Experts: experts, Active: active, Renorm: true, Chosen: ints(slots), Slots: ints(slots), Rows: ints(slots), Starts: ints(experts + 1)}
			z, w := s.Temp("z", device.Activations, tensor.F32, tokens, experts), s.Temp("w", device.Activations, tensor.F32, tokens, active)
			host, seed := make([]float32, tokens*experts), uint32(tokens)
			for i := range host {
				seed = seed*1664525 + 1013904223
				if host[i] = float32(seed >> 8); skewed {
					host[i] = -float32(i % experts)
				}
			}
			s.Upload(z, host)
			took := profiled(t, d, s, func() { s.Route(w, z, device.Tensor{}, r) })
			t.Logf("%4d tokens, skewed %v: choice and order %7.4f ms", tokens, skewed, 1e3*took)
			for _, m := range stacks {
				x, y := s.Temp("x", device.Activations, tensor.BF16, slots, m.in), s.Temp("y", device.Activations, tensor.BF16, slots, m.out)
				s.Zero(x)
				took := profiled(t, d, s, func() { s.GroupedMatMul(y, x, m.w, device.Tensor{}, r) })
				read := float64(m.w.Bytes()) * float64(min(slots, experts)) / experts
				if skewed {
					read = float64(m.w.Bytes()) * active / experts
				}
				t.Logf("    %4d×%-4d %v: %7.4f ms, %4.0f TFLOP/s, %5.2f TB/s of the experts read", m.out, m.in, m.d, 1e3*took,
					2*float64(slots)*float64(m.out)*float64(m.in)/took/1e12, read/took/1e12)
				s.Release(x, y)
			}
			s.Release(r.Chosen, r.Slots, r.Rows, r.Starts, z, w)
		}
	}
}
