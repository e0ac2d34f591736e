package kernel

import (
	"testing"

	"apr/device"
	"apr/tensor"
)

// TestThinLaunches: adapters of published models have kernels, whose launches a device accepts.
func TestThinLaunches(t *testing.T) {
	for _, n := range []int{1, 100, 8192, 1 << 18} {
		for _, rank := range []int{8, 16, 32, 64, 128} {
			for _, s := range []struct {
				in  int
				out []int
			}{{896, []int{896, 128, 128}}, {896, []int{896}}, {896, []int{4864, 4864}}, {4864, []int{896}}, {3584, []int{18944, 18944}}, {4096, []int{8, 16, 24, 32, 40, 4096}}} {
				var parts []ThinPart
				out := 0
				for i, w := range s.out {
					p := ThinPart{W: dense(tensor.BF16, w, rank), D: dense(tensor.F32, w, rank), Lo: out, Hi: out + w, From: i * rank, To: (i + 1) * rank, Scale: 2}
					parts, out = append(parts, p), out+w
				}
				all := min(128, len(s.out)*rank) // a stack's A may have too many rows
				x, y, u := dense(tensor.BF16, n, s.in), dense(tensor.BF16, n, out), dense(tensor.BF16, n, len(s.out)*rank)
				whole := []ThinPart{{W: dense(tensor.BF16, all, s.in), D: dense(tensor.F32, all, s.in), Hi: s.in, To: all, Scale: 1}}
				if !ThinServes(y, u, parts) || !ThinServes(x, u, whole) {
					t.Errorf("rank %d beside %d×%v: no kernels", rank, s.in, s.out)
					continue
				}
				checkLaunches(t, "ThinDown", func(q Queue) { ThinDown(q, u, x, whole, true) })
				checkLaunches(t, "ThinUp", func(q Queue) { ThinUp(q, y, u, parts, false, true) })
				checkLaunches(t, "ThinGrad of B", func(q Queue) { ThinGrad(q, y, u, parts, false) })
				checkLaunches(t, "ThinDown with B", func(q Queue) { ThinDown(q, u, y, parts, false) })
				checkLaunches(t, "ThinGrad of A", func(q Queue) { ThinGrad(q, x, u, whole, true) })
				checkLaunches(t, "ThinUp with A", func(q Queue) { ThinUp(q, x, u, whole, true, true) })
				m := dense(tensor.BF16, n, out/2)
				if len(s.out) == 2 && ThinGLUServes(m, y, u, parts, device.SiLU) != (rank <= 64) {
					t.Errorf("rank %d: a gated unit is served otherwise", rank)
				} else if len(s.out) == 2 && rank <= 64 {
					checkLaunches(t, "ThinGLU", func(q Queue) { ThinGLU(q, m, y, u, parts, device.GELUTanh) })
				}
			}
		}
	}
	x, u := dense(tensor.BF16, 64, 64), dense(tensor.BF16, 64, 8)
	for name, p := range map[string]ThinPart{
		"rank 4": {W: dense(tensor.BF16, 64, 4), Hi: 64, To: 4}, "rank 136": {W: dense(tensor.BF16, 64, 136), Hi: 64, To: 136},
		"columns at odd places": {W: dense(tensor.BF16, 60, 8), Lo: 4, Hi: 64, To: 8}, "float32": {W: dense(tensor.F32, 64, 8), Hi: 64, To: 8},
	} {
		if ThinServes(x, u, []ThinPart{p}) {
			t.Errorf("%s is served", name)
		}
	}
}
