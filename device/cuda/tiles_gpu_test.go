//go:build gpu

package cuda_test

import (
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// TestTilesSpeed prints, at the shapes of a 7B model, how fast 1 … 64 rows are multiplied with matrices in tiles, beside the same with matrices
// that are read row by row or expanded.
func TestTilesSpeed(t *testing.T) {
	d := open(t, cuda.Options{})
	defer d.Close()
	if err := d.Prewarm(); err != nil {
		t.Fatal(err)
	}
	s := d.NewStream().(*cuda.Stream)
	for _, parts := range [][]device.Source{
		{inBlocks(t, tensor.Q4_K, 3584, 3584), inBlocks(t, tensor.Q4_K, 512, 3584), inBlocks(t, tensor.Q6_K, 512, 3584)},
		{inBlocks(t, tensor.Q4_K, 3584, 3584)},
		{inBlocks(t, tensor.Q4_K, 18944, 3584), inBlocks(t, tensor.Q4_K, 18944, 3584)},
		{inBlocks(t, tensor.Q4_K, 3584, 18944)}, {inBlocks(t, tensor.Q6_K, 3584, 18944)}, {inBlocks(t, tensor.Q8_0, 3584, 18944)},
	} {
		for _, n := range []int{1, 2, 4, 8, 16, 32, 64} {
			var took [2]float64
			var w device.Weight
			for i := range took {
				var err error
				w, err = d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: parts, Form: device.Form{Blocks: true}})
				if err != nil {
					t.Fatal(err)
				}
				if i == 1 {
					s.Arrange(2, w)
				}
				x := s.Temp("x", device.Activations, tensor.BF16, n, w.Cols())
				y := s.Temp("y", device.Activations, tensor.BF16, n, w.Rows())
				s.Zero(x)
				took[i] = profiled(t, d, s, func() { s.MatMul(y, x, w, device.Tensor{}, false) })
				s.Release(x, y)
			}
			last := parts[len(parts)-1].Info().DType
			t.Logf("%6d×%-6d …%v %2d rows: %7.4f ms in tiles, %5.2f TB/s of blocks, %3.0f TFLOP/s; otherwise %7.4f ms", w.Rows(), w.Cols(), last, n,
				1e3*took[1], float64(w.Bytes())/took[1]/1e12, 2*float64(n)*float64(w.Rows())*float64(w.Cols())/took[1]/1e12, 1e3*took[0])
		}
	}
}
