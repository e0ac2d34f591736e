package cuda

import (
	"apr/device"
	"apr/device/cuda/kernel"
)

var _ device.Pager = (*Stream)(nil)

// PutRows copies rows and leaves the others of dst: see device.Pager.
func (s *Stream) PutRows(dst, src, rows device.Tensor) {
	device.CheckPutRows(dst, src, rows)
	if o := s.begin("PutRows", dst, src, rows); o != nil && s.known("PutRows", rows, dst.Rows) {
		kernel.PutRows(o, mat(dst), mat(src), mat(rows))
		o.end()
	}
}

// AttendPages attends for one query a row straight from pages: see device.Pager. The host looks at the rows' numbers,
// and the kernel at the table, which is long.
func (s *Stream) AttendPages(o, q, k, v device.Tensor, a device.Paged) {
	device.CheckAttendPages(o, q, k, v, a)
	const name = "AttendPages"
	op := s.begin(name, o, q, k, v, a.Table, a.First, a.Keys, a.Sinks)
	if op == nil || !s.known(name, a.First, a.Table.Rows*a.Table.Cols) || !s.known(name, a.Keys, a.Most+1) {
		return
	}
	op.sized(q.Rows, a.Most, a.Heads, a.HeadDim)
	kernel.AttendPages(op, mat(o), mat(q), mat(k), mat(v), mat(a.Table), mat(a.First), mat(a.Keys), mat(a.Sinks), a)
	op.end()
}
