//go:build gpu

package cuda_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// lossBench is a chunk of logits with targets and a place for the gradient.
type lossBench struct {
	testing.TB
	s                 device.Stream
	z, t, targets, dz device.Tensor
}

const lossVocab = 151936

func newLossBench(t testing.TB, rows int) *lossBench {
	d := open(t, cuda.Options{})
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	s := d.NewStream()
	temp := func(dt tensor.DType, rows, cols int) device.Tensor {
		return s.Temp("loss", device.Logits, dt, rows, cols)
	}
	b := &lossBench{t, s, temp(tensor.F32, rows, lossVocab), temp(tensor.F32, rows, lossVocab), temp(tensor.I32, rows, 1), temp(tensor.BF16, rows, lossVocab)}
	ids := make([]int32, rows)
	for i := range ids {
		ids[i] = int32(i * 7919 % lossVocab)
	}
	s.UploadInts(b.targets, ids)
	for i, m := range []device.Tensor{b.z, b.t} {
		for lo := 0; lo < rows; lo += 64 {
			part := m.RowRange(lo, min(lo+64, rows))
			s.Upload(part, bells(part.Rows*part.Cols, uint64(2*lo+i+1)))
		}
	}
	return b
}

// bells returns n sums of four uniform numbers, of standard deviation 2.
func bells(n int, seed uint64) []float32 {
	v, state := make([]float32, n), seed*0x9e3779b97f4a7c15
	for i := range v {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		sum := int(state&0xffff) + int(state>>16&0xffff) + int(state>>32&0xffff) + int(state>>48) - 2*0xffff
		v[i] = float32(2 * math.Sqrt(3) * float64(sum) / 0xffff)
	}
	return v
}

// run queues n times the loss and returns the record and the time of one.
func (b *lossBench) run(n int, spec device.LossSpec) (device.Scalars, time.Duration) {
	b.Helper()
	b.s.SetScalars(device.Scalars{InvN: 1 / float64(b.z.Rows)})
	if _, err := b.s.Wait(context.Background()); err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	for range n {
		b.s.Loss(b.dz, b.z, b.t, b.targets, spec)
	}
	r, err := b.s.Wait(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	return r, time.Since(start) / time.Duration(n)
}

// gradient is all of the gradient's first and last rows.
func (b *lossBench) gradient() []float32 {
	b.Helper()
	var all []float32
	for _, r := range []int{0, 1, b.dz.Rows / 2, b.dz.Rows - 1} {
		v := make([]float32, lossVocab)
		if err := b.s.Download(v, b.dz.RowRange(r, r+1)); err != nil {
			b.Fatal(err)
		}
		all = append(all, v...)
	}
	return all
}

// TestLossRate prints the time of a chunk for every divergence.
func TestLossRate(t *testing.T) {
	for _, rows := range []int{512, 1024} {
		t.Run(fmt.Sprint(rows), func(t *testing.T) {
			b := newLossBench(t, rows)
			pairs := float64(rows) * lossVocab
			report := func(name string, spec device.LossSpec, bytes float64) {
				b.run(5, spec)
				best := time.Hour
				for range 5 {
					_, d := b.run(20, spec)
					best = min(best, d)
				}
				t.Logf("%4d rows, %-34s %.3f ms, %5.0f GB/s at %2.0f bytes a logit", rows, name, best.Seconds()*1e3, pairs*bytes/best.Seconds()/1e9, bytes)
			}
			for _, o := range []struct {
				name  string
				spec  device.LossSpec
				bytes float64
			}{
				{"forward KL:", device.LossSpec{Alpha: .5, Temperature: 1}, 18},
				{"forward KL, T 2:", device.LossSpec{Alpha: .5, Temperature: 2}, 18},
				{"reverse KL:", device.LossSpec{Alpha: .5, Temperature: 2, Divergence: device.ReverseKL}, 26},
				{"TVD:", device.LossSpec{Alpha: .5, Temperature: 2, Divergence: device.TVD}, 26},
				{"JSD:", device.LossSpec{Alpha: .5, Temperature: 2, Divergence: device.JSD, Beta: .5}, 26},
				{"cross-entropy beside a teacher:", device.LossSpec{Temperature: 2}, 14},
			} {
				report(o.name, o.spec, o.bytes)
			}
		})
	}
}

// TestLossSame: where z and t have the same bits, all that needs no logarithm is exactly 0 on the GPU, too.
func TestLossSame(t *testing.T) {
	b := newLossBench(t, 8)
	b.t = b.z
	for _, d := range []device.Divergence{device.ForwardKL, device.ReverseKL, device.TVD} {
		for _, temp := range []float64{1, 2, .8, 1.5} {
			r, _ := b.run(1, device.LossSpec{Alpha: 1, Temperature: temp, Divergence: d})
			if r.D != 0 || r.Agree != 8 {
				t.Errorf("divergence %d, T %g: D %g, %d agree", d, temp, r.D, r.Agree)
			}
			for i, v := range b.gradient() {
				if v != 0 {
					t.Errorf("divergence %d, T %g: gradient %d is %g", d, temp, i, v)
					break
				}
			}
		}
	}
}
