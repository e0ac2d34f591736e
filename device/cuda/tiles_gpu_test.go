//go:build gpu

package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// TestTilesSpeed prints, at the shapes of a 7B model, how long products of 1 … 64 rows take with matrices in tiles,
// and with matrices that are read row by row or expanded, whose y the others are compared
// with: they may be apart by what rounds values to bfloat16. Matrices are taken in turns that exceed a GPU's second
// cache.
func TestTilesSpeed(t *testing.T) {
	d := open(t, cuda.Options{})
	defer d.Close()
	if err := d.Prewarm(); err != nil {
		t.Fatal(err)
	}
	for _, parts := range [][]device.Source{
		{inBlocks(t, tensor.Q4_K, 3584, 3584), inBlocks(t, tensor.Q4_K, 512, 3584)}, {inBlocks(t, tensor.Q6_K, 512, 3584)},
		{inBlocks(t, tensor.Q4_K, 3584, 3584)},
		{inBlocks(t, tensor.Q4_K, 18944, 3584), inBlocks(t, tensor.Q4_K, 18944, 3584)},
		{inBlocks(t, tensor.Q4_K, 3584, 18944)}, {inBlocks(t, tensor.Q6_K, 3584, 18944)},
		{inBlocks(t, tensor.Q5_K, 3584, 18944)},
		{inBlocks(t, tensor.Q8_0, 3584, 18944)},
	} {
		rows, first := 0, parts[0].Info()
		for _, p := range parts {
			rows += p.Info().Shape[0]
		}
		t.Run(fmt.Sprintf("%dx%d_%v", rows, first.Shape[1], first.DType), func(t *testing.T) { tilesSpeed(t, d, parts) })
	}
}

func tilesSpeed(t *testing.T, d *cuda.Device, parts []device.Source) {
	s := d.NewStream().(*cuda.Stream)
	spec := device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: parts, Form: device.Form{Blocks: true}}
	load := func() device.Weight {
		w, err := d.Weight(spec)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	plain := load()
	var tiled []device.Weight
	for bytes := 0; bytes < 150e6; bytes += int(plain.Bytes()) {
		tiled = append(tiled, load())
	}
	s.Arrange(2, tiled...)
	rng := rand.New(rand.NewPCG(3, uint64(plain.Cols())))
	one := 0.0
	for _, n := range []int{1, 2, 4, 8, 16, 32, 64} {
		x := s.Temp("x", device.Activations, tensor.BF16, n, plain.Cols())
		y := s.Temp("y", device.Activations, tensor.BF16, n, plain.Rows())
		values := make([]float32, n*plain.Cols())
		for i := range values {
			values[i] = float32(rng.NormFloat64())
		}
		s.Upload(x, values)
		result := func(w device.Weight) []float32 {
			got := make([]float32, n*plain.Rows())
			s.MatMul(y, x, w, device.Tensor{}, false)
			if err := s.Download(got, y); err != nil {
				t.Fatal(err)
			}
			return got
		}
		want, turn := result(plain), 0
		row := fmt.Sprintf("%6d×%-6d %v %2d rows:", plain.Rows(), plain.Cols(), parts[0].Info().DType, n)
		apart := apartBy(result(tiled[0]), want)
		took := 1e6 * profiled(t, d, s, func() {
			s.MatMul(y, x, tiled[turn%len(tiled)], device.Tensor{}, false)
			turn++
		})
		if n == 1 {
			one = took
		}
		rate := float64(plain.Bytes()) / took / 1e6
		row += fmt.Sprintf("  %7.1f µs, %4.2f × one, %4.2f TB/s, apart %.1e;", took, took/one, rate, apart)
		if !(apart < 8e-3) {
			t.Errorf("%s y is %.2g apart from that of the expanded matrix", row, apart)
		}
		t.Logf("%s otherwise %7.1f µs", row, 1e6*profiled(t, d, s, func() { s.MatMul(y, x, plain, device.Tensor{}, false) }))
		s.Release(x, y)
	}
}

// apartBy returns ‖got − want‖ / ‖want‖.
func apartBy(got, want []float32) float64 {
	var apart, all float64
	for i, v := range want {
		apart += math.Pow(float64(got[i]-v), 2)
		all += math.Pow(float64(v), 2)
	}
	return math.Sqrt(apart / all)
}
