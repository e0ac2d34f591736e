package devicetest

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"apr/device"
	"apr/internal/fault"
	"apr/internal/ref"
	"apr/quant"
	"apr/tensor"
)

// stored is a weight matrix in memory that plays a tensor of a file.
type stored struct {
	info tensor.Info
	data []byte
	fail error
}

func (s *stored) Info() tensor.Info { return s.info }

func (s *stored) ReadRows(dst []byte, lo, hi int) error {
	if s.fail != nil {
		return s.fail
	}
	size := int(s.info.DType.RowBytes(s.info.Cols()))
	if lo < 0 || hi < lo || hi > s.info.Rows() || len(dst) != (hi-lo)*size {
		return fmt.Errorf("%s: rows [%d,%d) read into %d bytes, want %d bytes a row of %d rows",
			s.info.Name, lo, hi, len(dst), size, s.info.Rows())
	}
	copy(dst, s.data[lo*size:])
	return nil
}

// store encodes m as type d and returns it with the values that were stored.
func (l *lab) store(name string, m ref.Mat, d tensor.DType) (*stored, ref.Mat) {
	s := &stored{info: tensor.Info{Name: name, DType: d, Shape: []int{m.Rows, m.Cols}}}
	s.info.Size = int64(m.Rows) * d.RowBytes(m.Cols)
	s.data = make([]byte, s.info.Size)
	back := make([]float32, len(m.V))
	switch {
	case d.IsFloat():
		round(m, l.act) // the device may keep plain weights in its activation type
		tensor.Narrow(s.data, singles(m), d)
		tensor.Widen(back, s.data, d)
	case quant.CanQuantize(d):
		if err := quant.Quantize(s.data, singles(m), d); err != nil {
			l.errorf("quantising %s: %v", name, err)
		}
		quant.Dequantize(back, s.data, d)
	default: // decode only: random nibbles under a modest scale
		size := d.BlockBytes()
		for b := 0; b < len(s.data); b += size {
			scale := tensor.F32ToF16(float32(0.05 + 0.1*l.rng.Float64()))
			s.data[b], s.data[b+1] = byte(scale), byte(scale>>8)
			for i := b + 2; i < b+size; i++ {
				s.data[i] = byte(l.rng.Uint32())
			}
		}
		quant.Dequantize(back, s.data, d)
	}
	return s, ref.Of(m.Rows, m.Cols, back)
}

// storedTypes are the types a file may hold a weight in.
var storedTypes = []tensor.DType{
	tensor.F32, tensor.F16, tensor.BF16, tensor.Q4_0, tensor.Q5_0, tensor.Q8_0, tensor.Q4_K, tensor.Q5_K, tensor.Q6_K,
	tensor.AprQ4, tensor.IQ4_NL, tensor.IQ4_XS, tensor.MXFP4,
}

// part is one stored matrix of a weight: its type, its rows and how many of them are used.
type part struct {
	d          tensor.DType
	rows, used int
}

func weightCases() []Case {
	var all []Case
	add := func(name string, cols int, parts ...part) {
		all = append(all, Case{Name: "weight/" + name, check: func(l *lab) { checkWeight(l, cols, parts) }})
	}
	for _, d := range storedTypes {
		for _, cols := range []int{256, 768} {
			add(fmt.Sprintf("%v of %d columns", d, cols), cols, part{d, 33, 33})
		}
		add(fmt.Sprintf("%v cut to fewer rows", d), 256, part{d, 40, 31})
		if d.BlockLen() < 256 {
			add(fmt.Sprintf("%v of 96 columns", d), 96, part{d, 17, 17})
		}
	}
	add("f32 of 33 columns", 33, part{tensor.F32, 17, 17})
	add("bf16 of 1 column", 1, part{tensor.BF16, 3, 2})
	add("stacked q4_k, q4_k and q6_k", 256, part{tensor.Q4_K, 32, 32}, part{tensor.Q4_K, 8, 8}, part{tensor.Q6_K, 8, 8})
	add("stacked f32, bf16 and q8_0, cut", 512, part{tensor.F32, 7, 5}, part{tensor.BF16, 9, 9}, part{tensor.Q8_0, 20, 13})
	add("one row each", 256, part{tensor.Q5_K, 3, 1}, part{tensor.F16, 3, 1}, part{tensor.Q4_0, 3, 1})
	add("stacked iq4_xs, iq4_nl and q4_k", 256, part{tensor.IQ4_XS, 32, 32}, part{tensor.IQ4_NL, 8, 8}, part{tensor.Q4_K, 8, 8})
	add("stacked mxfp4, bf16 and mxfp4", 96, part{tensor.MXFP4, 17, 16}, part{tensor.BF16, 8, 8}, part{tensor.MXFP4, 8, 8})
	all = append(all, Case{Name: "weight/of a source that fails", check: checkFailingSource})
	return all
}

// checkWeight loads a weight and uses it in products, forward and backward, and in a gather.
func checkWeight(l *lab, cols int, parts []part) {
	spec := device.WeightSpec{Name: "stacked", Component: device.TeacherWeights}
	var used []ref.Mat
	cut := false
	for i, p := range parts {
		s, m := l.store(fmt.Sprintf("part%d", i), l.random(p.rows, cols, 1), p.d)
		spec.Parts, spec.Rows = append(spec.Parts, s), append(spec.Rows, p.used)
		used = append(used, m.RowRange(0, p.used))
		cut = cut || p.used != p.rows
	}
	if !cut {
		spec.Rows = nil
	}
	before, _ := l.dev.Memory()
	weight, err := l.weight(spec)
	if err != nil {
		l.errorf("Weight: %v", err)
		return
	}
	w := ref.Stack(used...)
	if weight.Rows() != w.Rows || weight.Cols() != w.Cols || weight.Bytes() <= 0 {
		l.errorf("weight is %d×%d in %d bytes, want %d×%d", weight.Rows(), weight.Cols(), weight.Bytes(), w.Rows, w.Cols)
		return
	}
	if now, _ := l.dev.Memory(); now[device.TeacherWeights]-before[device.TeacherWeights] < weight.Bytes() {
		l.errorf("memory of %s does not count the weight's %d bytes", device.TeacherWeights, weight.Bytes())
	}
	const n = 5
	for _, rows := range []int{1, n} { // one row is what generation asks for
		x := l.random(rows, cols, 1)
		xt, y := l.in(l.act, x), l.out(l.act, rows, w.Rows)
		l.s.MatMul(y, xt, weight, device.Tensor{}, false)
		l.compare(fmt.Sprintf("product of %d rows", rows), "matmul", y, ref.Linear(x, w, ref.Mat{}), cols)
	}
	dy := l.random(n, w.Rows, 1)
	dyt, dx := l.in(l.act, dy), l.out(l.act, n, cols)
	l.s.MatMulInputGrad(dx, dyt, weight, false)
	want, _, _ := ref.LinearBackward(dy, ref.New(n, cols), w)
	l.compare("input gradient", "matmul", dx, want, w.Rows)

	ids := l.rng.Perm(w.Rows)
	rows := l.out(l.act, len(ids), cols)
	l.s.Embed(rows, weight, l.ids(ids))
	l.compare("gathered rows", "embed", rows, ref.Embed(w, ids), 0)
}

func checkFailingSource(l *lab) {
	good, _ := l.store("good", l.random(4, 64, 1), tensor.F32)
	bad, _ := l.store("bad", l.random(4, 64, 1), tensor.F32)
	cause := errors.New("disk on fire")
	bad.fail = fault.In(fault.IO, "model.safetensors", "cannot read").At("tensor %q", "bad").Because(cause)
	_, err := l.weight(device.WeightSpec{
		Name: "stacked", Component: device.TeacherWeights, Parts: []device.Source{good, bad},
	})
	if !errors.Is(err, cause) || !strings.Contains(fmt.Sprint(err), "model.safetensors") || fault.KindOf(err) != fault.IO {
		l.errorf("got %v, want an input/output fault that names the file and keeps its cause", err)
	}
	w := l.random(2, 64, 1) // the device still works
	y := l.out(l.act, 1, 2)
	x := ref.New(1, 64)
	l.s.MatMul(y, l.in(l.act, x), l.frozen(w), device.Tensor{}, false)
	l.compare("product with zeros", "matmul", y, ref.New(1, 2), 64)
}

// negativeInfinity is the logit of an id that cannot occur.
var negativeInfinity = math.Inf(-1)
