//go:build emulate || gpu

package cuda_test

import (
	"strings"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/device/devicetest"
)

// choices are the cases of the suite in which an operation chose how to compute: they alone can differ between devices
// that differ in that choice. By names of cases, from a device that went through all of them.
type choices struct {
	products, attention map[string]bool
}

// run runs a part of the suite and notes what its cases asked a device for.
func (c *choices) run(t *testing.T, open func() *cuda.Device, of func(devicetest.Case) bool) {
	t.Helper()
	c.products, c.attention = map[string]bool{}, map[string]bool{}
	before := map[device.Device]cuda.Stats{}
	devicetest.Part{Of: of, Done: func(x devicetest.Case, d device.Device) {
		now := d.(*cuda.Device).Stats()
		c.products[x.Name] = now.Products > before[d].Products
		c.attention[x.Name] = now.Attentions > before[d].Attentions
		if chooseNothing(x) && (x.Weighs() || c.products[x.Name] || c.attention[x.Name]) {
			t.Errorf("%s: has a weight, a product or attention", x.Name)
		}
		before[d] = now
	}}.Run(t, func() device.Device { return open() })
}

// chooseNothing reports the longest groups without a weight, a product or attention, which are all that depends on a
// GPU's compute capability.
func chooseNothing(x devicetest.Case) bool {
	return strings.HasPrefix(x.Name, "loss/") || strings.HasPrefix(x.Name, "delta/")
}

// TestConformance runs the suite of all devices in bfloat16 and float32 on cublasLt. On the kernels of this program go
// the cases that have a product, since nothing else asks whether there is cublasLt; in TF32, those with a product or
// attention, the two that TF32 changes.
func TestConformance(t *testing.T) {
	findDriver(t)
	var bf16, f32 choices
	for _, c := range []struct {
		name string
		o    cuda.Options
		has  *choices
		of   func(devicetest.Case) bool
	}{
		{"bf16", cuda.Options{}, &bf16, nil}, {"f32", cuda.Options{Compute: cuda.F32}, &f32, nil},
		{"bf16 without cublasLt", cuda.Options{ForceFallbackGEMM: true}, &choices{},
			func(x devicetest.Case) bool { return bf16.products == nil || bf16.products[x.Name] }},
		{"f32 without cublasLt", cuda.Options{Compute: cuda.F32, ForceFallbackGEMM: true}, &choices{},
			func(x devicetest.Case) bool { return f32.products == nil || f32.products[x.Name] }},
		{"tf32", cuda.Options{Compute: cuda.TF32}, &choices{},
			func(x devicetest.Case) bool {
				return f32.products == nil || f32.products[x.Name] || f32.attention[x.Name]
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.has.run(t, func() *cuda.Device { return open(t, c.o) }, c.of)
		})
	}
}

// open opens a device, which the test closes.
func open(t testing.TB, o cuda.Options) *cuda.Device {
	t.Helper()
	d, err := cuda.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
