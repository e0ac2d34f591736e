package dry_test

import (
	"fmt"

	"apr/device"
	"apr/device/dry"
	"apr/tensor"
)

func Example() {
	d := dry.New(dry.Target{Info: device.Info{Kind: "cuda", Activations: tensor.BF16}, Matrices: tensor.BF16})
	s := d.NewStream()
	w := d.Param(device.ParamSpec{Name: "w", Rows: 4096, Cols: 1024})
	x := s.Temp("x", device.Activations, tensor.BF16, 512, 1024)
	y := s.Temp("y", device.Activations, tensor.BF16, 512, 4096)
	s.MatMul(y, x, w.Weight, device.Tensor{}, false)
	s.Release(y, x)

	r := d.Record()
	fmt.Println(r.Static[device.StudentWeights]>>20, "MiB of weights,", r.Temps>>20, "MiB of temps")
	fmt.Printf("%.1f GFLOP\n", r.Cost().FLOPs/1e9)
	// Output:
	// 24 MiB of weights, 5 MiB of temps
	// 4.3 GFLOP
}
