package distill

import (
	"runtime"

	"golang.org/x/sync/errgroup"

	"apr/device"
	"apr/quant"
	"apr/tensor"
)

// q4k is a matrix whose values are rounded to Q4_K, row by row. A row that is in quantised blocks already is rounded on
// a grid that is shifted by half a group of 32: its own grid would give Q4_K back unchanged, and say that Q4_K costs
// nothing.
//
// What is read is float32 or, for teachers that stay in blocks because memory is short, Q8_0, whose own rounding is
// small beside that of Q4_K.
type q4k struct {
	device.Source
	stored tensor.Info // of the file
	as     tensor.DType
	shift  int
}

// groupShift is half a group of Q4_K.
const groupShift = 16

func newQ4K(s device.Source, blocks bool) device.Source {
	info := s.Info()
	r := q4k{Source: s, stored: info, as: tensor.F32}
	if info.DType.IsQuantized() {
		r.shift = groupShift % max(1, info.Cols())
	}
	if blocks && info.Cols()%tensor.Q8_0.BlockLen() == 0 {
		r.as = tensor.Q8_0
	}
	return r
}

// Info describes the matrix as it is read.
func (r q4k) Info() tensor.Info {
	info := r.stored
	info.DType = r.as
	info.Size = int64(info.Rows()) * r.as.RowBytes(info.Cols())
	return info
}

// ReadRows reads rows, on all processors.
func (r q4k) ReadRows(dst []byte, lo, hi int) error {
	from, to := int(r.stored.DType.RowBytes(r.stored.Cols())), int(r.as.RowBytes(r.stored.Cols()))
	raw := make([]byte, (hi-lo)*from)
	if err := r.Source.ReadRows(raw, lo, hi); err != nil {
		return err
	}
	var tasks errgroup.Group
	step := max(1, (hi-lo+runtime.GOMAXPROCS(0)-1)/runtime.GOMAXPROCS(0))
	for first := 0; first < hi-lo; first += step {
		tasks.Go(func() error {
			w := r.worker()
			for i := first; i < min(first+step, hi-lo); i++ {
				if err := w.round(dst[i*to:(i+1)*to], raw[i*from:(i+1)*from]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return tasks.Wait()
}

// q4kWorker is the memory in which a row is rounded.
type q4kWorker struct {
	q4k
	row, turned []float32 // turned is a multiple of a block long
	blocks      []byte
}

func (r q4k) worker() *q4kWorker {
	cols, n := r.stored.Cols(), tensor.Q4_K.BlockLen()
	padded := (cols + n - 1) / n * n
	return &q4kWorker{q4k: r, row: make([]float32, cols), turned: make([]float32, padded), blocks: make([]byte, tensor.Q4_K.RowBytes(padded))}
}

// round writes a row of the file to dst, rounded.
func (w *q4kWorker) round(dst, raw []byte) error {
	if w.stored.DType.IsQuantized() {
		quant.DequantizeRange(w.row, raw, 0, w.stored.DType)
	} else {
		tensor.Widen(w.row, raw, w.stored.DType)
	}
	cols := len(w.row)
	copy(w.turned, w.row[w.shift:])
	copy(w.turned[cols-w.shift:cols], w.row[:w.shift])
	clear(w.turned[cols:])
	if err := quant.Quantize(w.blocks, w.turned, tensor.Q4_K); err != nil {
		return err
	}
	quant.Dequantize(w.turned, w.blocks, tensor.Q4_K)
	copy(w.row[w.shift:], w.turned[:cols-w.shift])
	copy(w.row[:w.shift], w.turned[cols-w.shift:cols])
	if w.as == tensor.F32 {
		tensor.Narrow(dst, w.row, tensor.F32)
		return nil
	}
	return quant.Quantize(dst, w.row, w.as)
}
