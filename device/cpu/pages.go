package cpu

import (
	"apr/device"
	"apr/internal/fault"
)

var _ device.Pager = (*Stream)(nil)

// PutRows copies rows and leaves the others of dst: see device.Pager.
func (s *Stream) PutRows(dst, src, rows device.Tensor) {
	device.CheckPutRows(dst, src, rows)
	if !s.begin() {
		return
	}
	o := &s.ops.scatter
	o.dst, o.src, o.ids = floats(dst), floats(src), ints(rows)
	if s.inRange("PutRows", o.ids, o.dst.rows) {
		s.split(o.src.rows, rowGrain(o.dst.cols), o.run)
	}
	s.end(device.OpPutRows, 0)
}

// pagesOp is attention of one query a row over pages. A task is one key/value head of one row, whose keys it gathers,
// so that the rest is what attention does: the bits are the same.
type pagesOp struct {
	attentionOp
	table, from, keys []int32
	run               func(worker, lo, hi int)
}

// AttendPages attends for one query a row: see device.Pager.
func (s *Stream) AttendPages(o, q, k, v device.Tensor, a device.Paged) {
	device.CheckAttendPages(o, q, k, v, a)
	if !s.begin() {
		return
	}
	op := &s.ops.pages
	op.set(q, k, v, o, device.Tensor{}, a.Attn(q.Rows, 1))
	op.table, op.from, op.keys = ints(a.Table), ints(a.First), ints(a.Keys)
	pairs := 0
	for r, n := range op.keys {
		if !op.there(r, a.Most) {
			s.fail(fault.New(fault.Invalid, "AttendPages: %d keys from entry %d on are not there", n, op.from[r]).
				At("row %d", r).WithID("E-CPU-014"))
			break
		}
		pairs += int(n)
	}
	if s.err == nil {
		s.split(q.Rows*a.KVHeads, 1, op.run)
	}
	s.end(device.OpAttendPages, 4*int64(a.Heads*a.HeadDim)*int64(pairs))
}

// there reports whether the keys of a row are.
func (o *pagesOp) there(r, most int) bool {
	from, n := int(o.from[r]), int(o.keys[r])
	if n < 0 || n > most || from < 0 || from+n > len(o.table) {
		return false
	}
	for _, row := range o.table[from : from+n] {
		if row < 0 || int(row) >= o.k.rows {
			return false
		}
	}
	return true
}

// one attends for a key/value head of a row.
func (o *pagesOp) one(worker, task, _ int) {
	l, isa, d := &o.s.local[worker], o.s.isa, o.a.HeadDim
	r, g := task/o.a.KVHeads, task%o.a.KVHeads
	n, head := int(o.keys[r]), g*o.group
	out := o.o.row(r)[head*d:][:o.group*d]
	if n == 0 {
		clear(out)
		return
	}
	l.keys, l.values = grow(l.keys, n*d), grow(l.values, n*d)
	for j, row := range o.table[o.from[r]:][:n] {
		copy(l.keys[j*d:(j+1)*d], o.k.row(int(row))[g*d:])
		copy(l.values[j*d:(j+1)*d], o.v.row(int(row))[g*d:])
	}
	l.scores, l.scale = grow(l.scores, o.group*n), grow(l.scale, o.group)
	l.gemm.Multiply(false, true, o.group, n, d, o.scale, o.q.row(r)[head*d:], d, l.keys, d, l.scores, n, false)
	for i := range o.group {
		l.scale[i], _ = o.softmax(l.scores[i*n:(i+1)*n], head+i)
	}
	l.gemm.Multiply(false, false, o.group, d, n, 1, l.scores, n, l.values, d, out, d, false)
	for i := range o.group {
		isa.Scale(out[i*d:(i+1)*d], l.scale[i])
	}
}
