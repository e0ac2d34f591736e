//go:build gpu || emulate

package model_test

import (
	"math"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/contracttest"
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

// TestCUDAMaps: attention maps have the tolerances of the CPU in float32, with shared keys, sinks and windows.
func TestCUDAMaps(t *testing.T) {
	onCUDA(t, cuda.F32)
	testShape = func(name string) bool { return name == "gemma 4" || name == "gpt-oss" || name == "gemma 2" }
	t.Cleanup(func() { testShape = func(string) bool { return true } })
	TestMapsAgainstFloat64(t)
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
		chosen, err := m.Choices(s, v)
		if err != nil {
			t.Fatal(err)
		}
		if len(chosen) > 0 {
			p, ties := f.net().AsChosen(f.ints(), f.rows, chosen)
			want = p.Logits.V
			t.Logf("choices of experts beside those of float64: %+v", ties)
			if !(ties.Others <= ties.All/20 && ties.Farthest <= .05) {
				t.Errorf("choices of experts beside those of float64: %+v", ties)
			}
		}
		least := .9995
		if e := math.Ldexp(f.golden.Float32, 16); f.golden.Float32 > 1.5e-6 {
			least = 1 - e*e/2
		}
		agree := func(what string) {
			t.Helper()
			worst := 1.0
			for r := range f.ids {
				lo, hi := r*f.config.Vocab, (r+1)*f.config.Vocab
				worst = math.Min(worst, cosine(got[lo:hi], want[lo:hi]))
			}
			if !(worst >= least) {
				t.Errorf("%s: cosine of a row of logits %.6f, want %.6f", what, worst, least)
			}
			t.Logf("%s: logits: cosine %.6f", what, worst)
		}
		agree("kept")
		if len(chosen) == 0 { // whose choices would be told from a pass that keeps them
			m.Hidden(s, v.Hidden, tokens)
			m.Logits(s, z, v.Hidden)
			got = download(t, s, z)
			agree("nothing kept")
		}
		s.Release(z)
		v.ReleaseTo(s)
	})
}

func cosine[T float32 | float64](a []float32, b []T) float64 {
	var ab, aa, bb float64
	for i := range a {
		ab, aa, bb = ab+float64(a[i])*float64(b[i]), aa+float64(a[i])*float64(a[i]), bb+float64(b[i])*float64(b[i])
	}
	return ab / math.Sqrt(aa*bb)
}
