//go:build emulate || gpu

package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// TestStaged: products of one row with a dense matrix that has room in shared memory are those of float64, but for the
// sums' order, which does not depend on the number of multiprocessors.
func TestStaged(t *testing.T) {
	findDriver(t)
	t.Setenv("APR_EMULATOR_CC", "9.0")
	for _, c := range []struct {
		rows, cols int
		bias, add  bool
	}{{290, 4096, false, false}, {300, 520, true, true}, {320, 8, true, false}, {263, 2120, false, true}} {
		var before []float32
		for _, multiprocessors := range []string{"11", "16"} {
			t.Setenv("APR_EMULATOR_MULTIPROCESSORS", multiprocessors)
			t.Run(fmt.Sprintf("%d×%d on %s", c.rows, c.cols, multiprocessors), func(t *testing.T) {
				b := &decodeBench{t: t, rng: rand.New(rand.NewPCG(1, 2)), d: open(t, cuda.Options{})}
				defer b.d.Close()
				b.s = b.d.NewStream()
				rounded := func(n int) []float32 {
					v := b.values(n, 1)
					bytes := make([]byte, 2*n)
					tensor.Narrow(bytes, v, tensor.BF16)
					tensor.Widen(v, bytes, tensor.BF16)
					return v
				}
				w, x, y, bias := rounded(c.rows*c.cols), rounded(c.cols), rounded(c.rows), b.values(c.rows, 1)
				info := tensor.Info{Name: "w", DType: tensor.BF16, Shape: []int{c.rows, c.cols}, Size: int64(2 * len(w))}
				s := stacked{info, make([]byte, info.Size)}
				tensor.Narrow(s.bytes, w, tensor.BF16)
				put := func(d tensor.DType, v []float32) device.Tensor {
					t := b.d.Alloc("t", device.Batch, d, 1, len(v))
					b.s.Upload(t, v)
					return t
				}
				var onDevice device.Tensor
				if c.bias {
					onDevice = put(tensor.F32, bias)
				}
				row, out := put(tensor.BF16, x), put(tensor.BF16, y)
				launches := func(w device.Weight) int64 {
					b.download(row) // waits
					before := b.d.Stats().Launches
					b.s.MatMul(out, row, w, onDevice, c.add)
					b.download(row)
					return b.d.Stats().Launches - before
				}
				if n := launches(b.loaded(s, 0)); n != 1 {
					t.Errorf("%d launches", n)
				}
				got := b.download(out)
				student := b.d.Alloc("student", device.StudentWeights, tensor.F32, c.rows, c.cols)
				b.s.Upload(student, w)
				if n := launches(b.d.Frozen(student)); !c.bias && n != 0 { // a bias is rounded by a launch
					t.Errorf("%d launches with a matrix that may change", n)
				}
				for r := range c.rows {
					want, size := 0.0, 0.0
					for i := range c.cols {
						p := float64(w[r*c.cols+i]) * float64(x[i])
						want, size = want+p, size+math.Abs(p)
					}
					if c.bias {
						want += float64(bias[r])
					}
					if c.add {
						want += float64(y[r])
					}
					if d := math.Abs(float64(got[r]) - want); !(d <= math.Abs(want)/256+1e-6*size+1e-30) {
						t.Fatalf("row %d: %g, want %g", r, got[r], want)
					}
				}
				if before != nil && !slices.Equal(before, got) {
					t.Error("other bits on another number of multiprocessors")
				}
				before = got
			})
		}
	}
}
