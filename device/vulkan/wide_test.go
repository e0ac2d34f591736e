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

// TestRow: products of one row with more blocks than lanes share at a time, and with rows that fill no group.
func TestRow(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	s := newStream(d)
	rng := rand.New(rand.NewPCG(3, 4))
	const rows, cols = 13, 2304
	for _, typ := range []tensor.DType{tensor.Q4_K, tensor.Q6_K, tensor.Q8_0, tensor.BF16, tensor.F32} {
		src := source{tensor.Info{Name: "w", DType: typ, Shape: []int{rows, cols}},
			make([]byte, rows*int(typ.RowBytes(cols)))}
		src.info.Size = int64(len(src.data))
		for i := range src.data {
			src.data[i] = byte(rng.Uint32())
		}
		want := make([]float32, rows*cols)
		if tame(src.data, typ); typ.IsFloat() {
			tensor.Widen(want, src.data, typ)
		} else {
			quant.Dequantize(want, src.data, typ)
		}
		if typ == tensor.F32 || typ == tensor.BF16 { // random bits are numbers of any size
			for i := range want {
				want[i] = float32(rng.IntN(17) - 8)
			}
			tensor.Narrow(src.data, want, typ)
		}
		w, err := d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{src}})
		if err != nil {
			t.Fatal(err)
		}
		x := make([]float32, cols)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		xt, yt := s.Temp("x", device.Activations, tensor.F32, 1, cols), s.Temp("y", device.Activations, tensor.F32, 1, rows)
		s.Upload(xt, x)
		before := d.pipelines["row_"+kernelForm(typ)] != nil
		s.MatMul(yt, xt, w, device.Tensor{}, false)
		got := make([]float32, rows)
		if err := s.Download(got, yt); err != nil {
			t.Fatal(err)
		}
		s.Release(xt, yt)
		if before || d.pipelines["row_"+kernelForm(typ)] == nil {
			t.Errorf("%v: another kernel ran", typ)
		}
		for r, g := range got {
			sum, size := 0.0, 0.0
			for c, v := range x {
				p := float64(v) * float64(want[r*cols+c])
				sum, size = sum+p, size+math.Abs(p)
			}
			if !(math.Abs(float64(g)-sum) <= 1e-6*size) {
				t.Errorf("%v: row %d is %g, want %g", typ, r, g, sum)
			}
		}
	}
}

// kernelForm is how kernels call a type.
func kernelForm(typ tensor.DType) string {
	if typ == tensor.F32 {
		return "f32"
	}
	return forms[typ]
}
