package cpu_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/quant"
	"apr/tensor"
)

// TestTeacherResidencyTotal is harness verify_teacher_residency_dispatch: {frozen, trainable} × {Q4_K, Q6_K, F32, F16,
// BF16}. A frozen weight stays as it is stored, in blocks or not; a trainable one is float32, and no weight grows.
func TestTeacherResidencyTotal(t *testing.T) {
	const rows, cols = 3, 256
	stored := map[tensor.DType]int64{tensor.Q4_K: 144, tensor.Q6_K: 210, tensor.F32: 4 * cols, tensor.F16: 2 * cols, tensor.BF16: 2 * cols} // bytes of a row
	cases := 0
	for d, row := range stored {
		for _, frozen := range []bool{true, false} {
			cases++
			dev := open(t, cpu.Options{})
			var got, gradients int64
			want := int64(4 * rows * cols)
			if frozen {
				src, _ := randomStored(t, rand.New(rand.NewPCG(1, 2)), rows, cols, d, quant.RowPadded)
				_, err := dev.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{src}, Rows: []int{rows}})
				if err != nil {
					t.Fatal(err)
				}
				want = rows * row
			} else { // whatever the file has, training is in float32
				dev.Param(device.ParamSpec{Name: "w", Rows: rows, Cols: cols})
			}
			held, _ := dev.Memory()
			got = held[device.TeacherWeights] + held[device.StudentWeights]
			gradients = held[device.Gradients] + held[device.Moments]
			if got != want || frozen != (gradients == 0) {
				t.Errorf("%v, frozen %v: %d bytes, want %d; %d bytes of gradients and moments", d, frozen, got, want, gradients)
			}
		}
	}
	contracttest.Cases(t, cases)
}

// permutations calls f with every order of 0…n-1.
func permutations(n int, f func([]int)) {
	p := make([]int, n)
	for i := range p {
		p[i] = i
	}
	var walk func(k int)
	walk = func(k int) {
		if k == n {
			f(p)
			return
		}
		for i := k; i < n; i++ {
			p[k], p[i] = p[i], p[k]
			walk(k + 1)
			p[k], p[i] = p[i], p[k]
		}
	}
	walk(0)
}

// TestTruncationPreservesOrder is harness verify_truncation_preserves_top_k: every order of one to six logits by every
// cut. What is kept has the order that it had, its softmax sums to one without what was cut, and what was cut enters
// neither loss nor gradient.
func TestTruncationPreservesOrder(t *testing.T) {
	dev := open(t, cpu.Options{})
	s := dev.Stream()
	spec := device.LossSpec{Alpha: 0.5, Temperature: 1}
	cases := 0
	for n := 1; n <= 6; n++ {
		z := dev.Alloc("z", device.Logits, tensor.F32, 1, n)
		grad := dev.Alloc("grad", device.Logits, tensor.F32, 1, n)
		target := dev.Alloc("target", device.Batch, tensor.I32, 1, 1)
		permutations(n, func(p []int) {
			x := make([]float32, n)
			for i, v := range p {
				x[i] = float32(v)
			}
			for cut := 1; cut <= n; cut++ {
				cases++
				best, sum := 0, 0.0
				for i, v := range x[:cut] {
					if v > x[best] {
						best = i
					}
					sum += math.Exp(float64(v))
				}
				s.Upload(z, x)
				s.Zero(grad)
				s.UploadInts(target, []int32{int32(best)})
				s.SetScalars(device.Scalars{InvN: 1})
				kept := z.ColRange(0, cut)
				s.Loss(grad.ColRange(0, cut), kept, kept, target, spec)
				rec, err := s.Wait(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				dz := make([]float32, n)
				if err := s.Download(dz, grad); err != nil {
					t.Fatal(err)
				}
				want := math.Log(sum) - float64(x[best])
				if !(math.Abs(rec.CE-want) <= 1e-6) || !(math.Abs(rec.D) <= 1e-6) || rec.Agree != 1 {
					t.Fatalf("%v cut to %d: CE %g, D %g, %d agree; want %g, 0, 1", x, cut, rec.CE, rec.D, rec.Agree, want)
				}
				for i := range n {
					due := 0.0
					if i < cut {
						due = 0.5 * math.Exp(float64(x[i])) / sum
					}
					if i == best {
						due -= 0.5
					}
					if !(math.Abs(float64(dz[i])-due) <= 1e-6) {
						t.Fatalf("%v cut to %d: gradient %v, element %d should be %g", x, cut, dz, i, due)
					}
				}
			}
		})
	}
	if cases != 5039 {
		t.Errorf("%d cases, want Σ n·n! = 5039", cases)
	}
	contracttest.Cases(t, cases)
}
