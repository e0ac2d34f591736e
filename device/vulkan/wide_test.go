//go:build vulkan

package vulkan

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"apr/device"
	"apr/device/devicetest"
	"apr/quant"
	"apr/tensor"
)

// TestWide: products with wide tiles, which real cards take, pass the suite too.
func TestWide(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	d.wide = true
	tried := 0
	for _, c := range devicetest.Cases() {
		if group, _, _ := strings.Cut(c.Name, "/"); group != "matmul" {
			continue
		}
		tried++
		if err := c.Check(d); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	t.Logf("%d cases", tried)
}

// TestRow: products of one row whose teams have 8 to 128 lanes, with fewer and with more pieces than lanes, with scales
// that fill no vector, and with rows that fill no group.
func TestRow(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	d.wide = true // teams as a card has them
	ran := ""
	d.sabotage = func(l *launch) { ran = l.Kernel }
	s := newStream(d)
	rng := rand.New(rand.NewPCG(3, 4))
	for _, shape := range []struct{ rows, cols int }{{13, 2304}, {9, 256}, {70, 1024}, {5, 8448}, {16500, 256}} {
		for _, typ := range []tensor.DType{tensor.Q4_K, tensor.Q6_K, tensor.Q8_0, tensor.BF16, tensor.F32} {
			values, w := randomWeight(t, d, rng, typ, shape.rows, shape.cols)
			x := make([]float32, shape.cols)
			for i := range x {
				x[i] = float32(rng.NormFloat64())
			}
			xt, yt := s.Temp("x", device.Activations, tensor.F32, 1, shape.cols), s.Temp("y", device.Activations,
				tensor.F32, 1, shape.rows)
			s.Upload(xt, x)
			s.MatMul(yt, xt, w, device.Tensor{}, false)
			if ran != "row_"+kernelForm(typ) {
				t.Errorf("%v: kernel %s ran", typ, ran)
			}
			got := make([]float32, shape.rows)
			if err := s.Download(got, yt); err != nil {
				t.Fatal(err)
			}
			s.Release(xt, yt)
			d.Discard(w)
			for r, g := range got {
				sum, size := 0.0, 0.0
				for c, v := range x {
					p := float64(v) * float64(values[r*shape.cols+c])
					sum, size = sum+p, size+math.Abs(p)
				}
				if !(math.Abs(float64(g)-sum) <= 1e-6*size) {
					t.Fatalf("%v of %v: row %d is %g, want %g", typ, shape, r, g, sum)
				}
			}
		}
	}
}

// randomWeight makes a weight of random blocks, or of small integers in a type of floats, and returns its values.
func randomWeight(t *testing.T, d *Device, rng *rand.Rand, typ tensor.DType, rows, cols int) ([]float32,
	device.Weight) {
	src := source{tensor.Info{Name: "w", DType: typ, Shape: []int{rows, cols}}, make([]byte, rows*int(typ.RowBytes(cols)))}
	src.info.Size = int64(len(src.data))
	values := make([]float32, rows*cols)
	if typ.IsFloat() {
		for i := range values {
			values[i] = float32(rng.IntN(17) - 8)
		}
		tensor.Narrow(src.data, values, typ)
	} else {
		for i := range src.data {
			src.data[i] = byte(rng.Uint32())
		}
		tame(src.data, typ)
		quant.Dequantize(values, src.data, typ)
	}
	w, err := d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{src}})
	if err != nil {
		t.Fatal(err)
	}
	return values, w
}

// kernelForm is how kernels call a type.
func kernelForm(typ tensor.DType) string {
	if typ == tensor.F32 {
		return "f32"
	}
	return forms[typ]
}
