package selfcheck

import (
	"context"
	"fmt"
	"math"

	"apr/arch"
	"apr/device"
	"apr/model"
	"apr/tensor"
)

// firstDifference computes both again, operation by operation, and says which is the first whose result differs
// though its operands agree: the first in order whose rows have a cosine below LeastCosine, else the one with
// the lowest.
func (c *agreement) firstDifference(ctx context.Context, onHost *model.Model, host *lent, onDev *model.Model,
	dev *lent, x excerpt) (string, error) {
	want, got := newTrace(onHost, host.NewStream()), newTrace(onDev, dev.NewStream())
	if _, err := c.logits(ctx, onHost, want); err != nil {
		return "", err
	}
	if _, err := c.logits(ctx, onDev, got); err != nil {
		return "", err
	}
	at, lowest := -1, math.Inf(1)
	for i := range min(len(want.steps), len(got.steps)) {
		cos := rowCosine(got.steps[i], want.steps[i])
		if !(cos >= lowest) {
			at, lowest = i, cos
		}
		if !(lowest >= LeastCosine) {
			break
		}
	}
	if at < 0 {
		return "no operation could be compared", nil
	}
	s := want.steps[at]
	where := s.op
	if s.slot != "" {
		where += " (" + s.slot + ")"
	}
	if s.layer >= 0 {
		where = fmt.Sprintf("layer %d, %s", x.layers[s.layer], where)
	}
	first := "the first operation that differs is"
	if lowest >= LeastCosine {
		first = "no operation differs by so much alone; the one that differs most is"
	}
	return fmt.Sprintf("%s %s, with a cosine of %.6f", first, where, lowest), nil
}

// rowCosine is the lowest cosine of two rows.
func rowCosine(a, b traced) float64 {
	lowest := 1.0
	if len(a.values) != len(b.values) || a.op != b.op {
		return math.NaN()
	}
	for i := 0; i < len(a.values); i += a.cols {
		if cos := cosine(a.values[i:i+a.cols], b.values[i:i+a.cols]); !(cos >= lowest) {
			lowest = cos
		}
	}
	return lowest
}

// traced is the result of an operation.
type traced struct {
	op, slot string
	layer    int // −1: outside the layers
	cols     int
	values   []float32
}

// trace is a stream that keeps the results of the operations of a forward pass.
type trace struct {
	device.Stream
	matrices map[device.Weight][]arch.Slot
	vectors  map[device.Tensor]arch.Slot
	layer    int // of the latest weight
	steps    []traced
}

func newTrace(m *model.Model, s device.Stream) *trace {
	return &trace{Stream: s, matrices: m.Matrices(), vectors: m.Vectors(), layer: -1}
}

// keep downloads a result. An error of the stream is seen by what comes later.
func (t *trace) keep(op, slot string, ts ...device.Tensor) {
	for _, y := range ts {
		if y.IsZero() || y.Rows*y.Cols == 0 || y.DType != tensor.F32 {
			continue
		}
		host := make([]float32, y.Rows*y.Cols)
		_ = t.Stream.Download(host, y)
		t.steps = append(t.steps, traced{op, slot, t.layer, y.Cols, host})
	}
}

func (t *trace) matrix(w device.Weight) string {
	if s := t.matrices[w]; len(s) > 0 {
		t.layer = s[0].Layer
		return short(s[0].Name)
	}
	return ""
}

func (t *trace) vector(w device.Tensor) string {
	if s, ok := t.vectors[w]; ok {
		t.layer = s.Layer
		return short(s.Name)
	}
	return ""
}

// short returns the name of a slot within its layer.
func short(name string) string {
	var layer int
	var rest string
	if n, _ := fmt.Sscanf(name, "model.layers.%d.%s", &layer, &rest); n == 2 {
		return rest
	}
	return name
}

func (t *trace) Embed(dst device.Tensor, w device.Weight, ids device.Tensor) {
	t.Stream.Embed(dst, w, ids)
	t.keep("Embed", t.matrix(w), dst)
}

func (t *trace) RMSNorm(y, rstd, sum, x, delta, w device.Tensor, eps float64) {
	t.Stream.RMSNorm(y, rstd, sum, x, delta, w, eps)
	t.keep("RMSNorm", t.vector(w), sum, y)
}

func (t *trace) HeadNorm(y, rstd, x, w device.Tensor, headDim int, eps float64) {
	t.Stream.HeadNorm(y, rstd, x, w, headDim, eps)
	t.keep("HeadNorm", t.vector(w), y)
}

func (t *trace) MatMul(y, x device.Tensor, w device.Weight, bias device.Tensor, add bool) {
	t.Stream.MatMul(y, x, w, bias, add)
	t.keep("MatMul", t.matrix(w), y)
}

func (t *trace) MatMulGLU(m, gu, x device.Tensor, w device.Weight, act device.Activation, keep bool) {
	t.Stream.MatMulGLU(m, gu, x, w, act, keep)
	t.keep("MatMulGLU", t.matrix(w), m)
}

func (t *trace) GLU(m, gu device.Tensor, act device.Activation) {
	t.Stream.GLU(m, gu, act)
	t.keep("GLU", "", m)
}

func (t *trace) Rotate(x device.Tensor, r device.Rotary) {
	t.Stream.Rotate(x, r)
	t.keep("Rotate", "", x)
}

func (t *trace) Attention(o, lse, q, k, v device.Tensor, a device.Attn) {
	t.Stream.Attention(o, lse, q, k, v, a)
	t.keep("Attention", "", o)
}

func (t *trace) Deinterleave(a, b, x device.Tensor, width int) {
	t.Stream.Deinterleave(a, b, x, width)
	t.keep("Deinterleave", "", a, b)
}

func (t *trace) Interleave(x, a, b device.Tensor, width int) {
	t.Stream.Interleave(x, a, b, width)
	t.keep("Interleave", "", x)
}

func (t *trace) Add(dst, src device.Tensor) {
	t.Stream.Add(dst, src)
	t.keep("Add", "", dst)
}

func (t *trace) Scale(y, x device.Tensor, f float64) {
	t.Stream.Scale(y, x, f)
	t.keep("Scale", "", y)
}

func (t *trace) SoftCap(y, x device.Tensor, c float64) {
	t.Stream.SoftCap(y, x, c)
	t.keep("SoftCap", "", y)
}
