package convert

import (
	"cmp"
	"context"
	"io"
	"math"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"apr/arch"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
)

// errorStat sums the squared error of a tensor, over all its values.
type errorStat struct {
	sum float64
	n   int64
}

func (e errorStat) rmse() float64 {
	if e.n == 0 {
		return 0
	}
	return math.Sqrt(e.sum / float64(e.n))
}

// encoder makes the payloads of a converted model and measures what the change costs.
type encoder struct {
	ctx        context.Context
	path       string
	progress   func(int64) // source bytes done
	importance Importance

	content *modelfile.Content // what is read is looked at

	mu     sync.Mutex
	rmse   map[string]float64 // tensors whose new type may lose something
	left   int                // tensors that are still to be written
	verify func() error       // called when none is left, before the output appears
	damage error              // of verify
}

// checked wraps a tensor so that the last one to be written calls verify: an error ends the output, which is still a
// temporary file then. It is of the model, not of that tensor, which the writer names.
func (e *encoder) checked(t tensor.Source) tensor.Source {
	payload := t.Payload
	t.Payload = func(w io.Writer) error {
		if err := payload(w); err != nil {
			if fault.KindOf(err) == fault.Format { // of content that was damaged, that is said
				e.damage = cmp.Or(e.verify(), err)
				return e.damage
			}
			return err
		}
		e.mu.Lock()
		e.left--
		done := e.left == 0
		e.mu.Unlock()
		if done {
			e.damage = e.verify()
		}
		return e.damage
	}
	return t
}

// source returns choice c as a tensor to be written.
func (e *encoder) source(c Choice) (tensor.Source, error) {
	if c.order == (arch.Order{}) && c.DType == c.Source.DType && (!c.DType.IsQuantized() || c.Source.Cols()%c.DType.BlockLen() == 0) {
		return tensor.Source{Info: c.Source.Info, Payload: func(w io.Writer) error {
			return e.content.Copy(&countingWriter{w, e}, c.Source)
		}}, nil
	}
	r, err := newRowReader(e.path, c.Source)
	if err != nil {
		return tensor.Source{}, err
	}
	r.look = func(raw []byte, at int64) error { return e.content.Look(c.Source, raw, at) }
	info := c.Source.Info
	info.DType = c.DType
	info.Size = int64(info.Rows()) * c.DType.RowBytes(info.Cols())
	r.order = c.order
	return tensor.Source{Info: info, Ordered: c.order != (arch.Order{}), Payload: func(w io.Writer) error { return e.write(w, r, c.DType) }}, nil
}

// countingWriter reports the bytes of a plain copy.
type countingWriter struct {
	w io.Writer
	e *encoder
}

func (c *countingWriter) Write(p []byte) (int, error) {
	if err := c.e.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.w.Write(p)
	c.e.done(int64(n))
	return n, err
}

func (e *encoder) done(n int64) {
	if e.progress != nil {
		e.progress(n)
	}
}

// write streams the tensor of r as type d: groups of row chunks are encoded in parallel and written in order, so the
// bytes, and the sum of errors, do not depend on the number of workers.
func (e *encoder) write(w io.Writer, r *rowReader, d tensor.DType) error {
	rows, step := r.t.Rows(), r.chunk()
	workers := runtime.GOMAXPROCS(0)
	group := 4 * workers // chunks in memory
	var total errorStat
	for lo := 0; lo < rows; lo += step * group {
		if err := e.ctx.Err(); err != nil {
			return err
		}
		parts := make([][]byte, group)
		stats, errs := make([]errorStat, group), make([]error, group)
		var g errgroup.Group
		g.SetLimit(workers)
		for k := range group {
			a := lo + k*step
			b := min(rows, a+step)
			if a >= rows {
				break
			}
			g.Go(func() error {
				parts[k], stats[k], errs[k] = e.chunk(r, d, a, b)
				return nil
			})
		}
		_ = g.Wait() // which collects nothing: the first error is that of the first chunk
		if err := cmp.Or(errs...); err != nil {
			return err
		}
		for k, p := range parts {
			if _, err := w.Write(p); err != nil {
				return err
			}
			total.sum += stats[k].sum
			total.n += stats[k].n
		}
		e.done(r.upTo(min(rows, lo+step*group)) - r.upTo(lo))
	}
	if d != tensor.F32 || r.t.DType == tensor.F64 { // widening is exact
		e.mu.Lock()
		e.rmse[r.t.Name] = total.rmse()
		e.mu.Unlock()
	}
	return nil
}

// chunk reads rows [lo,hi), encodes them and measures the squared error.
func (e *encoder) chunk(r *rowReader, d tensor.DType, lo, hi int) ([]byte, errorStat, error) {
	values := make([]float32, (hi-lo)*r.t.Cols())
	if err := r.read(values, lo, hi); err != nil {
		return nil, errorStat{}, err
	}
	if i := slices.IndexFunc(values, func(x float32) bool { return x-x != 0 }); i >= 0 {
		return nil, errorStat{}, modelfile.NotFinite(r.path, r.t, int64(lo)*int64(r.t.Cols())+int64(i))
	}
	values = r.reordered(values)
	weights := e.importance.rows(r.t.Info, lo, hi)
	if weights != nil {
		weights = r.reordered(weights)
	}
	raw, err := encodeRows(values, weights, d)
	if err != nil {
		return nil, errorStat{}, r.fail(fault.KindOf(err), "rows %d to %d cannot be stored as %s", lo, hi-1, d).Because(err)
	}
	back := make([]float32, len(values))
	decodeRows(back, raw, d)
	s := errorStat{n: int64(len(values))}
	for i, x := range values {
		if isInf(back[i]) {
			return nil, s, r.fail(fault.Invalid, "value %g does not fit %s", x, d).WithID("E-CONVERT-005")
		}
		if diff := float64(x) - float64(back[i]); diff != 0 {
			s.sum += diff * diff
		}
	}
	return raw, s, nil
}

func isInf(x float32) bool { return math.IsInf(float64(x), 0) }
