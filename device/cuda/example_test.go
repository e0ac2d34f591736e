package cuda_test

import (
	"context"
	"fmt"
	"os"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// The first GPU computes silu(g)·u of one row.
func Example() {
	d, err := cuda.Open(cuda.Options{KernelLog: os.Stderr})
	if err != nil {
		fmt.Println(err) // without a GPU: what was looked for, and where
		return
	}
	defer d.Close()
	s := d.NewStream()
	gu := s.Temp("gate_up", device.Activations, tensor.BF16, 1, 4)
	m := s.Temp("swiglu", device.Activations, tensor.BF16, 1, 2)
	s.Upload(gu, []float32{1, 2, 3, 4}) // g, then u
	s.GLU(m, gu, device.SiLU)
	out := make([]float32, 2)
	if err := s.Download(out, m); err != nil {
		fmt.Println(err)
		return
	}
	s.Release(m, gu)
	if _, err := s.Wait(context.Background()); err != nil {
		fmt.Println(err)
	}
	fmt.Println(out)
}
