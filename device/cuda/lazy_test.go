//go:build emulate && !gpu

package cuda

import (
	"context"
	"errors"
	"testing"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/emulator"
	"apr/tensor"
)

// TestBiasAfterFailure: the copy of a bias that was due in a stream that has failed is not missing afterwards.
func TestBiasAfterFailure(t *testing.T) {
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(driver.LibDirVariable, dir)
	d, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	const n = 24
	alloc := func(dt tensor.DType, rows, cols int) device.Tensor {
		return d.Alloc("t", device.TeacherWeights, dt, rows, cols)
	}
	w, x, y, bias := d.Frozen(alloc(tensor.F32, n, 8)), alloc(tensor.BF16, 1, 8), alloc(tensor.BF16, 1, n), alloc(tensor.F32, 1, n)
	want := make([]float32, n)
	for i := range want {
		want[i] = float32(1 + i)
	}
	s := d.NewStream().(*Stream)
	s.Upload(bias, want)

	broken, gate := errors.New("broken"), make(chan struct{})
	o := s.begin("broken")
	o.call(func(*driver.Thread) error {
		<-gate // until the product is queued
		return broken
	})
	o.end()
	s.MatMul(y, x, w, bias, false)
	close(gate)
	if _, err := s.Wait(context.Background()); !errors.Is(err, broken) {
		t.Fatalf("got %v, want %v", err, broken)
	}
	s.MatMul(y, x, w, bias, false)
	got := make([]float32, n)
	if err := s.Download(got, y); err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("element %d is %g, want the bias %g", i, got[i], want[i])
		}
	}
}
