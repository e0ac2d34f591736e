package cpu_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/device/cpu/vec"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// TestLossOfWideVocabulary compares one position over the vocabulary of Qwen2.5 with float64: the sums to 1e-6, the
// gradient, whose terms sum to zero, to 1e-5 of its size.
func TestLossOfWideVocabulary(t *testing.T) {
	const vocab = 151936
	rng := rand.New(rand.NewPCG(9, 9))
	z, te := make([]float32, vocab), make([]float32, vocab)
	for i := range z {
		te[i] = float32(2*rng.NormFloat64() + 3)
		z[i] = te[i] + float32(rng.NormFloat64()) - 40 // an offset that must cancel
	}
	z[17], te[17] = -23, 17 // half of the mass
	specs := []device.LossSpec{
		{Alpha: 0.5, Temperature: 1}, {Alpha: 0.5, Temperature: 2}, {Alpha: 0.3, Temperature: 1, Divergence: device.ReverseKL},
		{Alpha: 0.5, Temperature: 2, Divergence: device.JSD, Beta: 0.3}, {Alpha: 1, Temperature: 1, Divergence: device.TVD},
		{Alpha: 0.5, Temperature: 1, Divergence: device.SkewForward, Beta: 0.1},
		{Alpha: 0.5, Temperature: 1, Divergence: device.SkewReverse, Beta: 0.1},
	}
	for _, isa := range vec.Available() {
		for _, spec := range specs {
			t.Run(fmt.Sprintf("%v/divergence %d temperature %g", isa, spec.Divergence, spec.Temperature), func(t *testing.T) {
				checkPosition(t, isa.String(), z, te, 4711, spec)
			})
		}
	}
}

func checkPosition(t *testing.T, isa string, z, te []float32, y int, spec device.LossSpec) {
	wide := func(x []float32) []float64 { return ref.Of(1, len(x), x).V }
	want := ref.LossAt(wide(z), wide(te), y, spec)
	wantGrad := ref.LossGradAt(wide(z), wide(te), y, spec)

	d := open(t, cpu.Options{ISA: isa})
	s := d.Stream()
	tz := d.Alloc("z", device.Logits, tensor.F32, 1, len(z))
	tt := d.Alloc("t", device.Logits, tensor.F32, 1, len(z))
	ty := d.Alloc("y", device.Batch, tensor.I32, 1, 1)
	s.Upload(tz, z)
	s.Upload(tt, te)
	s.UploadInts(ty, []int32{int32(y)})
	s.SetScalars(device.Scalars{InvN: 1})
	s.Loss(tz, tz, tt, ty, spec)
	rec, err := s.Wait(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	near.CheckRel(t, "CE", []float64{rec.CE}, []float64{want.CE}, 1e-6)
	near.CheckRel(t, "D", []float64{rec.D}, []float64{want.D}, 1e-6)
	near.CheckRel(t, "entropy", []float64{rec.Entropy}, []float64{want.Entropy}, 1e-6)
	if rec.Positions != 1 || (rec.Agree == 1) != want.Agree {
		t.Errorf("record %+v, want agreement %v", rec, want.Agree)
	}
	grad := make([]float32, len(z))
	if err := s.Download(grad, tz); err != nil {
		t.Fatal(err)
	}
	near.CheckL2(t, "gradient", grad, wantGrad, 1e-6)
	sum := 0.0
	for _, g := range grad {
		sum += float64(g)
	}
	if !(math.Abs(sum) <= 2e-6) {
		t.Errorf("the gradient sums to %g, want 0", sum)
	}
}

// TestLossOfNaN: a NaN logit must reach the verdict, whatever lane or block it stands in.
func TestLossOfNaN(t *testing.T) {
	for _, isa := range vec.Available() {
		d := open(t, cpu.Options{ISA: isa.String()})
		for _, at := range []int{0, 15, 1030, 2046} {
			for _, inTeacher := range []bool{false, true} {
				s := d.Stream()
				z := d.Alloc("z", device.Logits, tensor.F32, 1, 2047)
				te := d.Alloc("t", device.Logits, tensor.F32, 1, 2047)
				y := d.Alloc("y", device.Batch, tensor.I32, 1, 1)
				host := make([]float32, 2047)
				host[at] = float32(math.NaN())
				if inTeacher {
					s.Upload(te, host)
				} else {
					s.Upload(z, host)
				}
				s.SetScalars(device.Scalars{InvN: 1})
				s.Loss(device.Tensor{}, z, te, y, device.LossSpec{Alpha: 0.5, Temperature: 1})
				s.Verdict(nil)
				rec, err := s.Wait(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				if rec.Finite {
					t.Errorf("%v: NaN at %d (teacher %v) went unnoticed: %+v", isa, at, inTeacher, rec)
				}
			}
		}
	}
}
