package cpu_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/near"
	"apr/quant"
	"apr/tensor"
)

// stored is a tensor in memory that plays one in a file.
type stored struct {
	info tensor.Info
	data []byte
}

func (s stored) Info() tensor.Info { return s.info }

func (s stored) ReadRows(dst []byte, lo, hi int) error {
	if lo == 0 && hi == s.info.Rows() {
		if len(dst) != len(s.data) {
			return fmt.Errorf("%d bytes asked of %d", len(dst), len(s.data))
		}
		copy(dst, s.data)
		return nil
	}
	size := int(s.info.DType.RowBytes(s.info.Cols()))
	if len(dst) != (hi-lo)*size {
		return fmt.Errorf("%d bytes for rows [%d,%d)", len(dst), lo, hi)
	}
	copy(dst, s.data[lo*size:hi*size])
	return nil
}

// randomStored returns a matrix of type d in layout l with its values.
func randomStored(t testing.TB, rng *rand.Rand, rows, cols int, d tensor.DType, l quant.Layout) (stored, []float32) {
	t.Helper()
	s := stored{info: tensor.Info{Name: "w." + d.String(), DType: d, Shape: []int{rows, cols}}}
	values := make([]float32, rows*cols)
	if d.IsFloat() {
		s.data = make([]byte, rows*cols*d.BlockBytes())
		for i := range values {
			values[i] = float32(rng.NormFloat64())
		}
		if d == tensor.F64 {
			for i, v := range values {
				binary.LittleEndian.PutUint64(s.data[8*i:], math.Float64bits(float64(v)))
			}
		} else {
			tensor.Narrow(s.data, values, d)
			tensor.Widen(values, s.data, d)
		}
		s.info.Size = int64(len(s.data))
		return s, values
	}
	n, ok := quant.MatrixLen(rows, cols, l, d)
	if !ok {
		t.Fatal("length")
	}
	s.data = make([]byte, n)
	for i := range s.data {
		s.data[i] = byte(rng.Uint32())
	}
	tame(s.data, d)
	s.info.Size = n
	quant.DequantizeMatrix(values, s.data, rows, cols, l, d)
	return s, values
}

// tame gives every block of random bytes a modest scale.
func tame(data []byte, d tensor.DType) {
	one := tensor.F32ToF16(1.0 / 64)
	if d == tensor.AprQ8 {
		binary.LittleEndian.PutUint32(data, math.Float32bits(1.0/64))
		return
	}
	size := d.BlockBytes()
	for b := 0; b+size <= len(data); b += size {
		switch d {
		case tensor.MXFP4:
			data[b] = 122
		case tensor.Q6_K: // the scale stands last
			binary.LittleEndian.PutUint16(data[b+size-2:], one)
		case tensor.Q4_K, tensor.Q5_K:
			binary.LittleEndian.PutUint16(data[b+2:], one)
			fallthrough
		default:
			binary.LittleEndian.PutUint16(data[b:], one)
		}
	}
}

// TestWeightTypes reads every type and layout, as stored and expanded, through gathers and products.
func TestWeightTypes(t *testing.T) {
	cases := []struct {
		d      tensor.DType
		cols   int
		layout quant.Layout
	}{
		{tensor.F32, 37, 0}, {tensor.F64, 37, 0}, {tensor.F16, 37, 0}, {tensor.BF16, 37, 0},
		{tensor.Q4_0, 64, quant.Flat}, {tensor.Q4_0, 40, quant.Flat}, {tensor.Q5_0, 64, quant.Flat}, {tensor.Q8_0, 96, quant.Flat},
		{tensor.AprQ4, 40, quant.Flat}, {tensor.AprQ8, 33, quant.Flat},
		{tensor.Q4_K, 256, quant.RowPadded}, {tensor.Q4_K, 300, quant.RowPadded}, {tensor.Q5_K, 512, quant.RowPadded},
		{tensor.Q6_K, 256, quant.RowPadded}, {tensor.Q6_K, 130, quant.Flat},
		{tensor.IQ4_NL, 96, quant.Flat}, {tensor.IQ4_NL, 40, quant.Flat}, {tensor.MXFP4, 96, quant.Flat}, {tensor.MXFP4, 40, quant.Flat}, {tensor.IQ4_XS, 512, quant.RowPadded}, {tensor.IQ4_XS, 300, quant.RowPadded},
	}
	for _, c := range cases {
		for _, keep := range []int64{0, 1 << 30} {
			t.Run(fmt.Sprintf("%v/%d %v/keep %d", c.d, c.cols, c.layout, keep), func(t *testing.T) {
				contracttest.Cases(t, 1)
				checkStored(t, c.d, c.cols, c.layout, keep)
			})
		}
	}
}

func checkStored(t *testing.T, d tensor.DType, cols int, layout quant.Layout, keep int64) {
	rng := rand.New(rand.NewPCG(1, uint64(d)))
	src, values := randomStored(t, rng, 9, cols, d, layout)
	other, more := randomStored(t, rng, 5, cols, tensor.F16, 0)
	const used = 7 // of 9 rows
	all := append(append([]float32{}, values[:used*cols]...), more...)
	rows := used + 5

	dev := open(t, cpu.Options{KeepExpanded: keep})
	w, err := dev.Weight(device.WeightSpec{
		Name: "w", Component: device.TeacherWeights, Parts: []device.Source{src, other}, Rows: []int{used, 5},
	})
	if err != nil {
		t.Fatal(err)
	}
	now, _ := dev.Memory()
	if w.Rows() != rows || w.Cols() != cols || w.Bytes() != now[device.TeacherWeights] {
		t.Fatalf("weight of %d×%d, %d bytes; %d bytes accounted", w.Rows(), w.Cols(), w.Bytes(), now[device.TeacherWeights])
	}
	if wide := 4 * int64(rows) * int64(cols); keep > 0 && w.Bytes() != wide {
		t.Errorf("expanded weight has %d bytes, want %d", w.Bytes(), wide)
	}
	s := dev.Stream()
	ids := dev.Alloc("ids", device.Batch, tensor.I32, rows, 1)
	back := dev.Alloc("rows", device.Batch, tensor.F32, rows, cols)
	host := make([]int32, rows)
	for i := range host {
		host[i] = int32(rows - 1 - i)
	}
	s.UploadInts(ids, host)
	s.Embed(back, w, ids)
	got := make([]float32, rows*cols)
	if err := s.Download(got, back); err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		near.Check(t, "row", got[(rows-1-i)*cols:][:cols], all[i*cols:][:cols], 0)
	}
	checkProducts(t, dev, s, w, all)
}

// checkProducts compares both products with those of a float32 weight, bit for bit.
func checkProducts(t *testing.T, dev *cpu.Device, s *cpu.Stream, w device.Weight, values []float32) {
	rows, cols, none := w.Rows(), w.Cols(), device.Tensor{}
	plain := dev.Alloc("plain", device.Scratch, tensor.F32, rows, cols)
	s.Upload(plain, values)
	x := dev.Alloc("x", device.Scratch, tensor.F32, 6, max(rows, cols))
	rng := rand.New(rand.NewPCG(3, 3))
	host := make([]float32, 6*max(rows, cols))
	for i := range host {
		host[i] = float32(rng.NormFloat64())
	}
	s.Upload(x, host)
	use := rows - 1 // fewer rows than the weight has
	var out [2][]float32
	for i, weight := range []device.Weight{w, dev.Frozen(plain)} {
		y := dev.Alloc("y", device.Scratch, tensor.F32, 6, use)
		s.MatMul(y, x.ColRange(0, cols), weight, none, false)
		dx := dev.Alloc("dx", device.Scratch, tensor.F32, 6, cols)
		s.MatMulInputGrad(dx, x.ColRange(0, use), weight, false)
		a, b := make([]float32, 6*use), make([]float32, 6*cols)
		if err := s.Download(a, y); err != nil {
			t.Fatal(err)
		}
		if err := s.Download(b, dx); err != nil {
			t.Fatal(err)
		}
		out[i] = append(a, b...)
	}
	near.Check(t, "products", out[0], out[1], 0)
}

// TestWideInputGradient has more rows than are decoded at a time.
func TestWideInputGradient(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	src, values := randomStored(t, rng, 1100, 64, tensor.Q8_0, quant.Flat)
	dev := open(t, cpu.Options{})
	w, err := dev.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{src}})
	if err != nil {
		t.Fatal(err)
	}
	s := dev.Stream()
	plain := dev.Alloc("plain", device.Scratch, tensor.F32, 1100, 64)
	s.Upload(plain, values)
	dy := dev.Alloc("dy", device.Scratch, tensor.F32, 3, 1100)
	host := make([]float32, 3300)
	for i := range host {
		host[i] = float32(rng.NormFloat64())
	}
	s.Upload(dy, host)
	dx := dev.Alloc("dx", device.Scratch, tensor.F32, 6, 64)
	s.MatMulInputGrad(dx.RowRange(0, 3), dy, w, false)
	s.MatMulInputGrad(dx.RowRange(3, 6), dy, dev.Frozen(plain), false)
	got := make([]float32, 6*64)
	if err := s.Download(got, dx); err != nil {
		t.Fatal(err)
	}
	near.CheckRel(t, "dx", got[:3*64], got[3*64:], 1e-6) // blocks of the sum differ
}

func TestWeightRefusals(t *testing.T) {
	dev := open(t, cpu.Options{})
	info := func(d tensor.DType, size int64, shape ...int) stored {
		return stored{info: tensor.Info{Name: "w", DType: d, Shape: shape, Size: size}}
	}
	cases := []struct {
		name string
		spec device.WeightSpec
		kind fault.Kind
	}{
		{"too few bytes", device.WeightSpec{Parts: []device.Source{info(tensor.F32, 12, 2, 2)}}, fault.Format},
		{"not a weight", device.WeightSpec{Parts: []device.Source{info(tensor.I32, 16, 2, 2)}}, fault.Load},
		{"blocks of another size", device.WeightSpec{Parts: []device.Source{info(tensor.Q4_K, 100, 1, 256)}}, fault.Format},
		{"more rows than stored", device.WeightSpec{Parts: []device.Source{info(tensor.F32, 16, 2, 2)}, Rows: []int{3}}, fault.Load},
		{"columns differ", device.WeightSpec{Parts: []device.Source{info(tensor.F32, 16, 2, 2), info(tensor.F32, 12, 1, 3)}}, fault.Load},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if w, err := dev.Weight(c.spec); fault.KindOf(err) != c.kind {
				t.Errorf("Weight = %v, %v; want a fault of kind %v", w, err, c.kind)
			}
		})
	}
	if now, _ := dev.Memory(); now[device.TeacherWeights] != 0 {
		t.Errorf("refused weights are counted: %v", now)
	}
}

func TestStreamKeepsTheFirstError(t *testing.T) {
	dev := open(t, cpu.Options{})
	s := dev.Stream()
	table := dev.Alloc("table", device.Scratch, tensor.F32, 3, 4)
	ids := dev.Alloc("ids", device.Batch, tensor.I32, 2, 1)
	out := dev.Alloc("out", device.Scratch, tensor.F32, 2, 4)
	s.UploadInts(ids, []int32{0, 3})
	s.Embed(out, dev.Frozen(table), ids)
	s.Upload(out, []float32{1, 2, 3, 4, 5, 6, 7, 8}) // a no-op now
	if err := s.Download(make([]float32, 8), out); fault.KindOf(err) != fault.Invalid {
		t.Errorf("Download after an error: %v", err)
	}
	if _, err := s.Wait(context.Background()); fault.KindOf(err) != fault.Invalid {
		t.Errorf("Wait = %v", err)
	}
	got := []float32{9, 9, 9, 9, 9, 9, 9, 9}
	if err := s.Download(got, out); err != nil {
		t.Errorf("the error was not cleared: %v", err)
	}
	near.Check(t, "out", got, make([]float32, 8), 0)
}

func TestTempsAreCountedWhileInUse(t *testing.T) {
	dev := open(t, cpu.Options{})
	s := dev.Stream()
	for n := 1; n < 1<<20; n = n*3 + 1 {
		now0, _ := dev.Memory()
		a := s.Temp("a", device.Activations, tensor.F32, 1, n)
		now, _ := dev.Memory()
		size := now[device.Activations] - now0[device.Activations]
		if want := int64(4 * n); size < want || want > 256 && size > want+want/4 {
			t.Errorf("%d bytes counted for %d", size, want)
		}
		if got := a.Buf.Bytes(); got != int64(4*n) {
			t.Errorf("the buffer says %d bytes, asked for were %d", got, 4*n)
		}
		s.Release(a)
	}
	now, peak := dev.Memory()
	if now[device.Activations] != 0 || peak[device.Activations] < 1<<20 {
		t.Errorf("now %v, peak %v", now, peak)
	}
	defer func() {
		if recover() == nil {
			t.Error("second release of a temp went unnoticed")
		}
	}()
	a := s.Temp("a", device.Activations, tensor.F32, 1, 1)
	s.Release(a)
	s.Release(a)
}

func TestProfile(t *testing.T) {
	dev := open(t, cpu.Options{})
	s := dev.Stream()
	x := dev.Alloc("x", device.Scratch, tensor.F32, 8, 16)
	w := dev.Alloc("w", device.Scratch, tensor.F32, 4, 16)
	y := dev.Alloc("y", device.Scratch, tensor.F32, 8, 4)
	for range 3 {
		s.MatMul(y, x, dev.Frozen(w), device.Tensor{}, false)
	}
	stats := s.Profile()
	if len(stats) != 1 || stats[0].Op != device.OpMatMul || stats[0].Calls != 3 || stats[0].FLOPs != 3*2*8*4*16 || stats[0].Time <= 0 {
		t.Errorf("profile %+v", stats)
	}
	s.ResetProfile()
	if stats := s.Profile(); len(stats) != 0 {
		t.Errorf("profile after reset: %+v", stats)
	}
}

func TestUnknownISA(t *testing.T) {
	if _, err := cpu.New(cpu.Options{ISA: "mmx"}); fault.KindOf(err) != fault.Usage {
		t.Errorf("New = %v", err)
	}
}

func Example() {
	dev, err := cpu.New(cpu.Options{})
	if err != nil {
		panic(err)
	}
	defer dev.Close()
	s := dev.NewStream()
	x := dev.Alloc("x", device.Activations, tensor.F32, 1, 2)
	w := dev.Alloc("w", device.StudentWeights, tensor.F32, 3, 2)
	y := s.Temp("y", device.Activations, tensor.F32, 1, 3)
	s.Upload(x, []float32{1, 2})
	s.Upload(w, []float32{1, 0, 0, 1, 1, 1})
	s.MatMul(y, x, dev.Frozen(w), device.Tensor{}, false)
	out := make([]float32, 3)
	if err := s.Download(out, y); err != nil {
		panic(err)
	}
	fmt.Println(out)
	// Output: [1 2 3]
}
