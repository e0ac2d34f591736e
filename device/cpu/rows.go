package cpu

import (
	"math"

	"apr/device"
	"apr/internal/fault"
)

// rowsOp is an operation from rows of src to rows of dst, chosen by ids.
type rowsOp struct {
	s        *Stream
	dst, src mat
	w        *weight
	ids      []int32
	run      func(worker, lo, hi int)
}

// Zero sets t to zero.
func (s *Stream) Zero(t device.Tensor) {
	device.CheckZero(t)
	if !s.begin() {
		return
	}
	if t.Cols > 0 {
		o := &s.ops.zeroBytes
		o.dst = t
		s.split(t.Rows, rowGrain(t.Cols), o.run)
	}
	s.end(device.OpZero, 0)
}

// bytesOp zeroes or copies rows of any plain type.
type bytesOp struct {
	dst, src device.Tensor
	run      func(worker, lo, hi int)
}

func (o *bytesOp) zero(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		clear(rowBytes(o.dst, r))
	}
}

func (o *bytesOp) copy(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		copy(rowBytes(o.dst, r), rowBytes(o.src, r))
	}
}

// Copy copies src to dst, of the same shape and type.
func (s *Stream) Copy(dst, src device.Tensor) {
	device.CheckCopy(dst, src)
	if !s.begin() {
		return
	}
	if dst.Cols > 0 {
		o := &s.ops.copyBytes
		o.dst, o.src = dst, src
		s.split(dst.Rows, rowGrain(dst.Cols), o.run)
	}
	s.end(device.OpCopy, 0)
}

type zeroOp struct {
	m   mat
	run func(worker, lo, hi int)
}

func (o *zeroOp) rows(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		clear(o.m.row(r))
	}
}

// inRange fails the stream, and returns false, if an id is not in [0, n).
func (s *Stream) inRange(op string, ids []int32, n int) bool {
	for i, id := range ids {
		if id < 0 || int(id) >= n {
			s.fail(fault.New(fault.Invalid, "%s: id %d is not below %d", op, id, n).At("position %d", i).WithID("E-CPU-006"))
			return false
		}
	}
	return true
}

// Embed gathers rows: dst[i] = w[ids[i]].
func (s *Stream) Embed(dst device.Tensor, w device.Weight, ids device.Tensor) {
	device.CheckEmbed(dst, w, ids)
	if !s.begin() {
		return
	}
	o := &s.ops.embed
	o.dst, o.w, o.ids = floats(dst), w.(*weight), ints(ids)
	if s.inRange("Embed", o.ids, o.w.rows) {
		s.split(o.dst.rows, rowGrain(o.dst.cols), o.run)
	}
	s.end(device.OpEmbed, 0)
}

func (o *rowsOp) embed(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		o.w.DecodeRow(o.dst.row(r), int(o.ids[r]), 0, o.w.cols)
	}
}

// EmbedBackward adds rows: grad[ids[i]] += dx[i], in ascending i. A task owns a strip of columns.
func (s *Stream) EmbedBackward(grad, ids, dx device.Tensor) {
	device.CheckEmbedBackward(grad, ids, dx)
	if !s.begin() {
		return
	}
	o := &s.ops.embedBackward
	o.dst, o.src, o.ids = floats(grad), floats(dx), ints(ids)
	if s.inRange("EmbedBackward", o.ids, o.dst.rows) {
		s.split(o.dst.cols, columnGrain, o.run)
	}
	s.end(device.OpEmbedBackward, 0)
}

func (o *rowsOp) addStrip(_, lo, hi int) {
	for i, id := range o.ids {
		o.s.isa.Add(o.dst.row(int(id))[lo:hi], o.src.row(i)[lo:hi])
	}
}

// Gather copies rows: dst[i] = src[rows[i]].
func (s *Stream) Gather(dst, src, rows device.Tensor) {
	device.CheckGather(dst, src, rows)
	if !s.begin() {
		return
	}
	o := &s.ops.gather
	o.dst, o.src, o.ids = floats(dst), floats(src), ints(rows)
	if s.inRange("Gather", o.ids, o.src.rows) {
		s.split(o.dst.rows, rowGrain(o.dst.cols), o.run)
	}
	s.end(device.OpGather, 0)
}

func (o *rowsOp) gather(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		copy(o.dst.row(r), o.src.row(int(o.ids[r])))
	}
}

// Scatter zeroes dst and copies rows: dst[rows[i]] = src[i]; the rows are distinct.
func (s *Stream) Scatter(dst, src, rows device.Tensor) {
	device.CheckScatter(dst, src, rows)
	if !s.begin() {
		return
	}
	o := &s.ops.scatter
	o.dst, o.src, o.ids = floats(dst), floats(src), ints(rows)
	if s.inRange("Scatter", o.ids, o.dst.rows) {
		s.ops.zero.m = o.dst
		s.split(o.dst.rows, rowGrain(o.dst.cols), s.ops.zero.run)
		s.split(o.src.rows, rowGrain(o.dst.cols), o.run)
	}
	s.end(device.OpScatter, 0)
}

func (o *rowsOp) scatter(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		copy(o.dst.row(int(o.ids[r])), o.src.row(r))
	}
}

// ArgMax writes the index of the largest value of each row to ids, the lowest on ties, and to best, if it is not zero, the index and
// the value. NaN is skipped; a row of NaN gives 0.
func (s *Stream) ArgMax(ids, best, x device.Tensor) {
	device.CheckArgMax(ids, best, x)
	if !s.begin() {
		return
	}
	o := &s.ops.argMax
	o.dst, o.src, o.ids = optional(best), floats(x), ints(ids)
	s.split(o.src.rows, rowGrain(o.src.cols), o.run)
	s.end(device.OpArgMax, 0)
}

func (o *rowsOp) argMax(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		x := o.src.row(r)
		top := o.s.isa.Max(x)
		told := top
		if squares := o.s.isa.SumSquares(x); squares != squares { // there is NaN, after which Max may have begun anew
			top, told = largest(x), float32(math.NaN())
		} else if math.IsInf(float64(top), 1) {
			told = float32(math.NaN())
		}
		at := max(0, o.s.isa.Index(x, top))
		o.ids[r] = int32(at)
		if o.dst.cols > 0 {
			best := o.dst.row(r)
			best[0], best[1] = float32(at), told
		}
	}
}

// largest returns the largest number of x, −∞ for none; NaN is skipped.
func largest(x []float32) float32 {
	top := float32(math.Inf(-1))
	for _, v := range x {
		if v > top {
			top = v
		}
	}
	return top
}
