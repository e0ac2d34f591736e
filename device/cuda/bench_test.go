//go:build emulate || gpu

package cuda_test

import (
	"context"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// inMemory is a stored bfloat16 matrix whose file is in memory.
type inMemory struct {
	rows, cols int
	data       []byte
}

func (m inMemory) Info() tensor.Info {
	return tensor.Info{Name: "weight", DType: tensor.BF16, Shape: []int{m.rows, m.cols}, Size: int64(len(m.data))}
}

func (m inMemory) ReadRows(dst []byte, lo, hi int) error {
	copy(dst, m.data[2*lo*m.cols:2*hi*m.cols])
	return nil
}

// BenchmarkWeight is the rate at which a weight comes from the page cache to the device: the down projection of a model
// of 7B, stored as the device keeps it.
func BenchmarkWeight(b *testing.B) {
	findDriver(b)
	d := open(b, cuda.Options{})
	defer d.Close()
	src := inMemory{rows: 3584, cols: 18944, data: make([]byte, 2*3584*18944)}
	for i := range src.data {
		src.data[i] = byte(i)
	}
	b.SetBytes(int64(len(src.data)))
	s := d.NewStream()
	for b.Loop() {
		if _, err := d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{src}}); err != nil {
			b.Fatal(err)
		}
		if _, err := s.Wait(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOperation is the host's cost of an operation of one small kernel, and what it allocates.
func BenchmarkOperation(b *testing.B) {
	findDriver(b)
	d := open(b, cuda.Options{})
	defer d.Close()
	s := d.NewStream()
	gu := s.Temp("gu", device.Activations, d.Info().Activations, 1, 16)
	m := s.Temp("m", device.Activations, d.Info().Activations, 1, 8)
	s.Zero(gu)
	b.ReportAllocs()
	for b.Loop() {
		s.GLU(m, gu, device.SiLU)
	}
	if _, err := s.Wait(context.Background()); err != nil {
		b.Fatal(err)
	}
}
