//go:build gpu || emulate

package distill

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/near"
	"apr/model"
	"apr/tensor"
)

// onCUDA makes the goldens of t run on a GPU (or its emulator) that computes as asked.
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

// TestCUDAFloat32 holds the GPU's float32 to the tolerances of the CPU.
func TestCUDAFloat32(t *testing.T) {
	onCUDA(t, cuda.F32)
	t.Run("qwen2", TestGoldenQwen2)
	t.Run("trajectory", TestGoldenTrajectory)
}

// TestCUDABFloat16 holds bfloat16 to what its rounding allows: per row of logits the cosine with the float64 reference
// is at least 0.9995 and the KL divergence from it averages at most 10⁻³ nats; over 40 steps losses stay within 2 %.
func TestCUDABFloat16(t *testing.T) {
	onCUDA(t, cuda.BF16)
	for _, name := range []string{"tied_gqa", "untied_mha"} {
		dir := filepath.Join(goldens, "qwen2", name)
		x := openFixture(t, filepath.Join(dir, "golden.safetensors"))
		t.Run(name+" logits", func(t *testing.T) { nearLogits(t, dir, x) })
		t.Run(name+" gradients", func(t *testing.T) { nearGradients(t, dir, x) })
	}
	t.Run("trajectory", func(t *testing.T) { goldenTrajectory(t, 2e-2, 40) })
}

// nearLogits compares both models' logits row by row.
func nearLogits(t *testing.T, dir string, x fixture) {
	d := testDevice(t)
	s := d.NewStream()
	b := x.batch()
	for i := range b.Mask {
		b.Mask[i] = 1
	}
	db := model.NewBatch(d, b.Rows, b.SeqLen)
	db.Load(s, b, b.Rows)
	for _, m := range []struct {
		name string
		*model.Model
	}{
		{"student", loadStudent(t, d, s, filepath.Join(dir, "student")).Frozen()},
		{"teacher", loadTeacher(t, d, filepath.Join(dir, "teacher")).Model},
	} {
		n := b.Rows * b.SeqLen
		hidden := s.Temp("hidden", device.Activations, d.Info().Activations, n, m.Config.Hidden)
		logits := s.Temp("logits", device.Logits, tensor.F32, n, m.Config.Vocab)
		m.Hidden(s, hidden, db.Tokens)
		m.Logits(s, logits, hidden)
		got := make([]float32, n*m.Config.Vocab)
		if err := s.Download(got, logits); err != nil {
			t.Fatal(err)
		}
		want := x.floats(m.name + "_logits")
		worst, mean := 1.0, 0.0
		for r := range n {
			g, w := got[r*m.Config.Vocab:(r+1)*m.Config.Vocab], want[r*m.Config.Vocab:(r+1)*m.Config.Vocab]
			worst = math.Min(worst, cosine(g, w))
			mean += divergence(w, g) / float64(n)
		}
		near.Row(t, m.name+"'s logits: largest 1 - cosine of a row", 1-worst, 5e-4)
		near.Row(t, m.name+"'s logits: mean KL in nats", mean, 1e-3)
		s.Release(hidden, logits)
	}
}

// nearGradients compares the direction of every tensor's gradient: rounding turns it by less than asin 0.1; a wrong
// sign, mask or rotation by far more.
func nearGradients(t *testing.T, dir string, x fixture) {
	d := testDevice(t)
	s := d.NewStream()
	tr := newTrainer(loadStudent(t, d, s, filepath.Join(dir, "student")), s, x.batch(), loadTeacher(t, d, filepath.Join(dir, "teacher")),
		device.LossSpec{Alpha: 0.5, Temperature: 2})
	if _, err := tr.Apply(context.Background(), x.batch()); err != nil {
		t.Fatal(err)
	}
	worst := 0.0
	for _, p := range tr.Student.Parts() {
		got := make([]float32, p.Elements())
		if err := s.Download(got, p.Of(p.Param.Grad)); err != nil {
			t.Fatal(err)
		}
		want := x.floats("grad." + p.Name)
		var diff, norm float64
		for i := range want {
			diff += math.Pow(float64(got[i])-float64(want[i]), 2)
			norm += math.Pow(float64(want[i]), 2)
		}
		worst = math.Max(worst, math.Sqrt(diff/norm))
		near.CheckL2(t, "gradient of "+p.Name, got, want, 0.1)
	}
	near.Row(t, "gradients: largest relative L2 error of a tensor", worst, 0.1)
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}

// divergence returns KL(softmax(p) ‖ softmax(q)).
func divergence(p, q []float32) float64 {
	lse := func(v []float32) float64 {
		sum := 0.0
		for _, x := range v {
			sum += math.Exp(float64(x) - float64(v[0]))
		}
		return float64(v[0]) + math.Log(sum)
	}
	lp, lq, kl := lse(p), lse(q), 0.0
	for i := range p {
		a, b := float64(p[i])-lp, float64(q[i])-lq
		kl += math.Exp(a) * (a - b)
	}
	return kl
}

// TestCUDARepeats: twenty steps twice give the same bits, and a split into micro-batches gives nearly the same loss.
func TestCUDARepeats(t *testing.T) {
	onCUDA(t, cuda.BF16)
	dir := filepath.Join(goldens, "qwen2", "tied_gqa")
	x := openFixture(t, filepath.Join(dir, "golden.safetensors"))
	run := func() (weights []float32) {
		d := testDevice(t)
		s := d.NewStream()
		tr := newTrainer(loadStudent(t, d, s, filepath.Join(dir, "student")), s, x.batch(), loadTeacher(t, d, filepath.Join(dir, "teacher")),
			device.LossSpec{Alpha: 0.5, Temperature: 2})
		for range 20 {
			if _, err := tr.Apply(context.Background(), x.batch()); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range tr.Student.Parts() {
			got := make([]float32, p.Elements())
			if err := s.Download(got, p.Of(p.Param.Value)); err != nil {
				t.Fatal(err)
			}
			weights = append(weights, got...)
		}
		return weights
	}
	first, second := run(), run()
	differ := 0
	for i := range first {
		if math.Float32bits(first[i]) != math.Float32bits(second[i]) {
			differ++
		}
	}
	near.Row(t, fmt.Sprintf("20 steps twice: of %d weights, those whose bits differ", len(first)), float64(differ), 0)
}
