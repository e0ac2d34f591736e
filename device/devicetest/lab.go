package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// lab is what a case works with: a device, one stream, and tensors whose surroundings are watched.
type lab struct {
	dev     device.Device
	s       device.Stream
	act     tensor.DType // of activations
	tf32    bool         // products round to tf32
	gaps    bool         // tensors have an offset and gaps between their rows
	weighs  bool         // the case may ask for a device.Weight
	rng     *rand.Rand
	watched []watch
	errs    []error
	refused error // with which a case met an end before its own
}

// watch remembers what must still be so in the end.
type watch struct {
	whole, view device.Tensor
	lead        int       // columns before the view
	want        []float32 // content of the view; nil if the operation may write it
}

// guard fills what lies around a tensor; exact in every type.
const guard = -77

func (l *lab) errorf(format string, args ...any) {
	l.errs = append(l.errs, fmt.Errorf(format, args...))
}

func (l *lab) note(err error) {
	if err != nil {
		l.errs = append(l.errs, err)
	}
}

// weight asks the device for a weight, which only cases that say so may do: see RunWeights.
func (l *lab) weight(spec device.WeightSpec) (device.Weight, error) {
	if !l.weighs {
		panic("a case that is not among those of weights asks for one")
	}
	return l.dev.Weight(spec)
}

// place makes a tensor inside a larger buffer of guards: a row before and after it, and with gaps also columns.
func (l *lab) place(d tensor.DType, rows, cols int) device.Tensor {
	lead, stride := 0, cols
	if l.gaps {
		lead, stride = 8, (cols+7)/8*8+16
	}
	whole := l.s.Temp("devicetest", device.Activations, d, rows+2, stride)
	fill := make([]float32, whole.Rows*whole.Cols)
	for i := range fill {
		fill[i] = guard
	}
	l.s.Upload(whole, fill)
	view := whole.RowRange(1, rows+1).ColRange(lead, lead+cols)
	l.watched = append(l.watched, watch{whole: whole, view: view, lead: lead})
	return view
}

// in makes an input of m, which is rounded to d in place, so that the reference reads what the device reads.
func (l *lab) in(d tensor.DType, m ref.Mat) device.Tensor {
	t := l.inout(d, m)
	l.watched[len(l.watched)-1].want = singles(m)
	return t
}

// inout is in for tensors that the operation changes.
func (l *lab) inout(d tensor.DType, m ref.Mat) device.Tensor {
	round(m, d)
	t := l.place(d, m.Rows, m.Cols)
	l.s.Upload(t, singles(m))
	return t
}

// out makes an output that holds NaN.
func (l *lab) out(d tensor.DType, rows, cols int) device.Tensor {
	t := l.place(d, rows, cols)
	nan := make([]float32, rows*cols)
	for i := range nan {
		nan[i] = float32(math.NaN())
	}
	l.s.Upload(t, nan)
	return t
}

// ids makes an int32 column.
func (l *lab) ids(ids []int) device.Tensor {
	t := l.s.Temp("devicetest ids", device.Batch, tensor.I32, len(ids), 1)
	narrow := make([]int32, len(ids))
	for i, id := range ids {
		narrow[i] = int32(id)
	}
	l.s.UploadInts(t, narrow)
	return t
}

// get downloads t.
func (l *lab) get(t device.Tensor) ref.Mat {
	dst := make([]float32, t.Rows*t.Cols)
	if err := l.s.Download(dst, t); err != nil {
		l.errorf("Download: %v", err)
	}
	return ref.Of(t.Rows, t.Cols, dst)
}

// compare judges t against want with the tolerance of op for sums of n products.
func (l *lab) compare(name, op string, t device.Tensor, want ref.Mat, n int) {
	l.compareScaled(name, t, want, l.tol(op, t.DType, n))
}

// compareScaled judges t against want with its own tolerance. Float32 cannot hold less than 2⁻¹⁴⁹: below, zero is right.
func (l *lab) compareScaled(name string, t device.Tensor, want ref.Mat, tol float64) {
	got := l.get(t)
	if near.Abs(name, got.V, want.V, 0x1p-140) == nil {
		return
	}
	l.note(near.Rel(name, got.V, want.V, tol))
}

// inspect looks at the surroundings and inputs of all tensors, and gives them back.
func (l *lab) inspect() {
	for _, w := range l.watched {
		whole := l.get(w.whole)
		for r := range whole.Rows {
			for c, v := range whole.Row(r) {
				inside := r >= 1 && r <= w.view.Rows && c >= w.lead && c < w.lead+w.view.Cols
				switch {
				case !inside && v != guard:
					l.errorf("element (%d,%d) outside a tensor of %d×%d was overwritten with %g",
						r-1, c-w.lead, w.view.Rows, w.view.Cols, v)
					return
				case inside && w.want != nil && math.Float32bits(float32(v)) != math.Float32bits(w.want[(r-1)*w.view.Cols+c-w.lead]):
					l.errorf("input element (%d,%d) of a tensor of %d×%d was changed to %g",
						r-1, c-w.lead, w.view.Rows, w.view.Cols, v)
					return
				}
			}
		}
		l.s.Release(w.whole)
	}
	l.watched = nil
}

// random returns normal values times scale.
func (l *lab) random(rows, cols int, scale float64) ref.Mat {
	m := ref.New(rows, cols)
	for i := range m.V {
		m.V[i] = scale * l.rng.NormFloat64()
	}
	return m
}

// integers returns integers of at most 7, of either sign.
func (l *lab) integers(rows, cols int) ref.Mat {
	m := ref.New(rows, cols)
	for i := range m.V {
		m.V[i] = float64(l.rng.IntN(15) - 7)
	}
	return m
}

// randomIDs returns n ids below limit.
func (l *lab) randomIDs(n, limit int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = l.rng.IntN(limit)
	}
	return ids
}

// round rounds m to the numbers of type d, in place.
func round(m ref.Mat, d tensor.DType) {
	for i, v := range m.V {
		f := float32(v)
		if d == tensor.BF16 {
			f = tensor.BF16ToF32(tensor.F32ToBF16(f))
		}
		m.V[i] = float64(f)
	}
}

// singles returns the values of m in float32.
func singles(m ref.Mat) []float32 {
	out := make([]float32, len(m.V))
	for i, v := range m.V {
		out[i] = float32(v)
	}
	return out
}

// frozen returns m as a weight that reads device memory. Its values are rounded to the activation type, which a device
// may keep weights in.
func (l *lab) frozen(m ref.Mat) device.Weight {
	round(m, l.act)
	t := l.dev.Alloc("devicetest weight", device.StudentWeights, tensor.F32, m.Rows, m.Cols)
	l.s.Upload(t, singles(m))
	return l.dev.Frozen(t)
}

// param returns m as the value of a parameter.
func (l *lab) param(name string, m ref.Mat, decay bool) *device.Param {
	round(m, l.act)
	p := l.dev.Param(device.ParamSpec{Name: name, Rows: m.Rows, Cols: m.Cols, Decay: decay})
	l.s.Upload(p.Value, singles(m))
	l.s.RefreshWeight(p)
	return p
}
