package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/device/cpu/vec"
	"apr/internal/near"
	"apr/quant"
	"apr/tensor"
)

// upload returns a tensor of normally distributed values.
func upload(dev *cpu.Device, s *cpu.Stream, rows, cols int) device.Tensor {
	rng := rand.New(rand.NewPCG(8, uint64(cols)))
	host := make([]float32, rows*cols)
	for i := range host {
		host[i] = float32(rng.NormFloat64())
	}
	x := dev.Alloc("x", device.Scratch, tensor.F32, rows, cols)
	s.Upload(x, host)
	return x
}

// roundedCase is a stacked weight and whether a device that rounds activations packs it.
type roundedCase struct {
	name   string
	cols   int
	types  []tensor.DType
	layout quant.Layout
	packed bool
}

var roundedCases = []roundedCase{
	{"one type", 512, []tensor.DType{tensor.Q4_K}, quant.RowPadded, true},
	{"q, k and v", 512, []tensor.DType{tensor.Q4_K, tensor.Q4_K, tensor.Q6_K}, quant.RowPadded, true},
	{"super and 32-blocks", 768, []tensor.DType{tensor.Q5_K, tensor.Q8_0, tensor.Q5_0, tensor.Q4_0}, quant.RowPadded, true},
	{"32-blocks only", 96, []tensor.DType{tensor.Q5_0}, quant.RowPadded, true},
	{"experts of gpt-oss", 288, []tensor.DType{tensor.MXFP4, tensor.Q8_0}, quant.RowPadded, true},
	{"not quantised", 512, []tensor.DType{tensor.BF16}, quant.RowPadded, false},
	{"partly quantised", 512, []tensor.DType{tensor.Q4_K, tensor.F16}, quant.RowPadded, false},
	{"tables of values", 512, []tensor.DType{tensor.IQ4_XS, tensor.IQ4_NL}, quant.RowPadded, false},
	{"apr's own", 512, []tensor.DType{tensor.AprQ8}, quant.RowPadded, false},
	{"blocks across rows", 40, []tensor.DType{tensor.Q8_0}, quant.Flat, false},
}

// A device that rounds activations differs from an exact one in products with quantised matrices only, and there by
// some hundred-thousandths; rows that are gathered and gradients are the same, and the dry device knows the memory.
func TestRoundActivations(t *testing.T) {
	for _, c := range roundedCases {
		t.Run(c.name, func(t *testing.T) { c.run(t) })
	}
}

func (c roundedCase) run(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	spec := device.WeightSpec{Name: "w", Component: device.TeacherWeights}
	for _, d := range c.types {
		src, _ := randomStored(t, rng, 33, c.cols, d, c.layout)
		spec.Parts = append(spec.Parts, src)
	}
	rows := 33 * len(c.types)
	var y, other [2][]float32
	for i, round := range []bool{false, true} {
		dev := open(t, cpu.Options{RoundActivations: round, KeepExpanded: 1 << 30})
		if kept, err := dev.Target().Keep(spec); err != nil {
			t.Fatal(err)
		} else if w, err := dev.Weight(spec); err != nil || w.Bytes() != kept.Bytes {
			t.Fatalf("%d bytes, %d planned: %v", w.Bytes(), kept.Bytes, err)
		}
		y[i], other[i] = outputs(t, dev, spec, rows, c.cols)
	}
	near.Check(t, "rows and gradients", other[1], other[0], 0)
	if !c.packed {
		near.Check(t, "product", y[1], y[0], 0)
		return
	}
	sum, diff := 0.0, 0.0
	for i, v := range y[0] {
		d := float64(y[1][i]) - float64(v)
		sum, diff = sum+float64(v)*float64(v), diff+d*d
	}
	if e := diff / sum; !(e <= 1e-9) || e == 0 {
		t.Errorf("relative square error %g", e)
	}
}

// outputs returns a product with bias, and the rows gathered with a gradient of the input.
func outputs(t *testing.T, dev *cpu.Device, spec device.WeightSpec, rows, cols int) (y, other []float32) {
	t.Helper()
	w, err := dev.Weight(spec)
	if err != nil {
		t.Fatal(err)
	}
	s := dev.Stream()
	out := dev.Alloc("y", device.Scratch, tensor.F32, 5, rows)
	s.MatMul(out, upload(dev, s, 5, cols), w, upload(dev, s, 1, rows), false)
	ids := dev.Alloc("ids", device.Batch, tensor.I32, 3, 1)
	s.UploadInts(ids, []int32{0, int32(rows - 1), 17})
	both := dev.Alloc("both", device.Scratch, tensor.F32, 7, cols)
	s.Embed(both.RowRange(0, 3), w, ids)
	s.MatMulInputGrad(both.RowRange(3, 7), upload(dev, s, 4, rows), w, false)
	y, other = make([]float32, 5*rows), make([]float32, 7*cols)
	for dst, src := range map[*[]float32]device.Tensor{&y: out, &other: both} {
		if err := s.Download(*dst, src); err != nil {
			t.Fatal(err)
		}
	}
	return y, other
}

// All instruction sets and numbers of workers give the same bits.
func TestRoundedProductsAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 9))
	spec := device.WeightSpec{Name: "w", Component: device.TeacherWeights}
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q6_K, tensor.Q8_0} {
		src, _ := randomStored(t, rng, 40, 768, d, quant.RowPadded)
		spec.Parts = append(spec.Parts, src)
	}
	var want []float32
	for _, isa := range vec.Available() {
		for _, workers := range []int{1, 2, 5} {
			got, _ := outputs(t, open(t, cpu.Options{ISA: isa.String(), Workers: workers, RoundActivations: true}), spec, 120, 768)
			if want == nil {
				want = got
			}
			near.Check(t, fmt.Sprint(isa, " with ", workers), got, want, 0)
		}
	}
}

// Experts in MXFP4 take 17 bytes for 32 values, packed or as they are stored, and the plan says so.
func TestBytesOfMXFP4(t *testing.T) {
	const experts, rows, cols = 4, 32, 512
	rng := rand.New(rand.NewPCG(11, 9))
	src, _ := randomStored(t, rng, experts*rows, cols, tensor.MXFP4, quant.RowPadded)
	spec := device.WeightSpec{Name: "experts", Component: device.TeacherWeights, Experts: experts, Parts: []device.Source{src}}
	for _, round := range []bool{false, true} {
		dev := open(t, cpu.Options{RoundActivations: round})
		kept, err := dev.Target().Keep(spec)
		if err != nil {
			t.Fatal(err)
		}
		w, err := dev.Weight(spec)
		if err != nil {
			t.Fatal(err)
		}
		if want := int64(experts * rows * cols / 32 * 17); w.Bytes() != want || kept.Bytes != want {
			t.Errorf("%d bytes, planned %d, want %d", w.Bytes(), kept.Bytes, want)
		}
	}
}
