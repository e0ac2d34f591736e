//go:build emulate || gpu

package cuda_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/tensor"
)

// TestWeightThatFitsNoBlock: it is an error that names tensor and element, of the rows of any type, and the stream can
// be used afterwards.
func TestWeightThatFitsNoBlock(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	s := d.NewStream()
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), -65505} {
		contracttest.Cases(t, 1)
		d.Param(device.ParamSpec{Name: "other", Rows: 2, Cols: 32, Blocks: []device.BlockRows{{DType: tensor.Q8_0, Rows: 2}}})
		p := d.Param(device.ParamSpec{Name: "w", Rows: 5, Cols: 256, Blocks: []device.BlockRows{{DType: tensor.Q4_K, Rows: 2}, {DType: tensor.Q6_K, Rows: 3}}})
		x := make([]float32, 5*256)
		x[3*256+7] = bad
		s.Upload(p.Value, x)
		s.RefreshWeight(p)
		if _, err := s.Wait(context.Background()); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), `tensor "w", element 775`) {
			t.Errorf("%g: %v", bad, err)
		}
		x[3*256+7] = 1
		s.Upload(p.Value, x)
		s.RefreshWeight(p)
		if _, err := s.Wait(context.Background()); err != nil {
			t.Error(err)
		}
	}
}
