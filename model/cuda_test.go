//go:build gpu || emulate

package model_test

import (
	"math"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/internal/ref"
	"apr/model"
	"apr/tensor"
)

// onCUDA makes the goldens run on a GPU, or its emulator, that computes as asked.
func onCUDA(t *testing.T, compute cuda.Compute) {
	openEmulator(t)
	testDevice = func(t *testing.T) device.Device {
		t.Helper()
		d, err := cuda.Open(cuda.Options{Compute: compute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	t.Cleanup(func() { testDevice = newCPU })
}

// float32 on a GPU has the tolerances of the CPU.
func TestCUDAFamiliesFloat32(t *testing.T) {
	onCUDA(t, cuda.F32)
	t.Run("forward", TestFamiliesForward)
	t.Run("backward", TestFamiliesBackward)
	t.Run("greedy", TestFamiliesGreedy)
	t.Run("balance", TestBalance)
}

// DeltaNet layers have the tolerances of the CPU in float32: logits and gradients by chunks, documents apart, and a cache.
func TestCUDADeltaNet(t *testing.T) {
	onCUDA(t, cuda.F32)
	testShape = func(name string) bool { return name == "qwen 3.5" }
	t.Cleanup(func() { testShape = func(string) bool { return true } })
	t.Run("float64", TestBlocksAgainstFloat64)
	t.Run("documents", TestDocumentsApart)
	t.Run("greedy", TestGreedyOfDeltaNet)
}

// In bfloat16 the cosine of every row of logits with the golden is at least 0.9995. Seven goldens, five
// of Gemma, Qwen3.5's, and gpt_oss_clamped, whose units are driven into their clamps, are so steep that roundings of bfloat16, 2¹⁶ times as coarse as those of
// float32, cannot keep to it: transformers' own float32 differs by e = 1.8e-6 to 9e-6 from its float64. They have 1 − (2¹⁶·e)²/2, the cosine of vectors that differ by 2¹⁶·e.
func TestCUDAFamiliesBFloat16(t *testing.T) {
	onCUDA(t, cuda.BF16)
	eachFamily(t, func(t *testing.T, f *fixture) {
		contracttest.Cases(t, 1)
		d := testDevice(t)
		s := d.NewStream()
		m, tokens := f.trainable(t, d, s), f.tokens(d, s)
		v := m.Forward(s, tokens, model.RecomputeNorms)
		z := s.Temp("z", device.Logits, tensor.F32, len(f.ids), f.config.Vocab)
		m.Logits(s, z, v.Hidden)
		got := download(t, s, z)
		want := f.want["logits"]
		if chosen := f.chosen(t, s, v); len(chosen) > 0 {
			want = f.routedAlike(t, chosen)
		}
		s.Release(z)
		v.ReleaseTo(s)
		worst := 1.0
		for r := range f.ids {
			lo, hi := r*f.config.Vocab, (r+1)*f.config.Vocab
			worst = math.Min(worst, cosine(got[lo:hi], want[lo:hi]))
		}
		least := .9995
		if e := math.Ldexp(f.golden.Float32, 16); f.golden.Float32 > 1.5e-6 {
			least = 1 - e*e/2
		}
		if !(worst >= least) {
			t.Errorf("cosine of a row of logits %.6f, want %.6f", worst, least)
		}
		t.Logf("logits: cosine %.6f", worst)
	})
}

func cosine[T float32 | float64](a []float32, b []T) float64 {
	var ab, aa, bb float64
	for i := range a {
		ab, aa, bb = ab+float64(a[i])*float64(b[i]), aa+float64(a[i])*float64(a[i]), bb+float64(b[i])*float64(b[i])
	}
	return ab / math.Sqrt(aa*bb)
}

// chosen downloads the choices of experts of a forward, by layer.
func (f *fixture) chosen(t *testing.T, s device.Stream, v *model.Saved) map[int][]int {
	t.Helper()
	all := map[int][]int{}
	for i, l := range f.config.Layers {
		if l.FFN.MoE.Experts == 0 {
			continue
		}
		numbers := s.Temp("numbers", device.Scratch, tensor.F32, l.FFN.MoE.Experts, 1)
		count := make([]float32, l.FFN.MoE.Experts)
		for e := range count {
			count[e] = float32(e)
		}
		s.Upload(numbers, count)
		ids := v.Chosen(i)
		out := s.Temp("chosen", device.Scratch, tensor.F32, ids.Rows*ids.Cols, 1)
		s.Gather(out, numbers, ids)
		for _, e := range download(t, s, out) {
			all[i] = append(all[i], int(e))
		}
		s.Release(numbers, out)
	}
	return all
}

// routedAlike returns the logits of float64 with the experts that a device chose. Where it chooses others than float64 does, their
// logits must be near: a rounding that decides a tie is followed by outputs as different as experts are.
func (f *fixture) routedAlike(t *testing.T, chosen map[int][]int) []float64 {
	t.Helper()
	net := f.net()
	net.Chosen = chosen
	p := net.Forward(f.ints(), f.rows)
	others, all := 0, 0
	p.Routers(func(layer int, z ref.Mat, got []int) {
		k := f.config.Layers[layer].FFN.MoE.Active
		own := ref.Choose(z, k)
		for n := range z.Rows {
			row, largest := z.Row(n), 0.0
			for _, v := range row {
				largest = math.Max(largest, math.Abs(v))
			}
			least := row[own[(n+1)*k-1]]
			for _, e := range got[n*k : (n+1)*k] {
				all++
				if slices.Contains(own[n*k:(n+1)*k], e) {
					continue
				}
				others++
				if !(least-row[e] <= .05*largest) {
					t.Errorf("layer %d, position %d: expert %d of logit %g is chosen, and one of %g is not", layer, n, e, row[e], least)
				}
			}
		}
	})
	t.Logf("%d of %d choices are others than in float64", others, all)
	if others > all/20 {
		t.Errorf("%d of %d choices are others than in float64", others, all)
	}
	return p.Logits.V
}
