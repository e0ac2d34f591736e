package cuda

import (
	"apr/device"
	"apr/device/cuda/kernel"
)

// Embed gathers rows: dst[i] = w[ids[i]].
func (s *Stream) Embed(dst device.Tensor, w device.Weight, ids device.Tensor) {
	device.CheckEmbed(dst, w, ids)
	m := w.(*weight)
	t := m.t
	limit(m.host == nil, device.OpEmbed, "no rows come out of a matrix in memory of the host")
	if m.parts != nil {
		s.embedBlocks(dst, m, ids)
		return
	}
	limit(m.fp8 == nil, device.OpEmbed, "no rows come out of a matrix in 8-bit floats")
	if o := s.begin("Embed", dst, t, ids); o != nil && s.known("Embed", ids, t.Rows) {
		kernel.Embed(o, mat(dst), mat(t), mat(ids))
		o.end()
	}
}

// EmbedBackward adds rows: grad[ids[i]] += dx[i], in ascending i.
func (s *Stream) EmbedBackward(grad, ids, dx device.Tensor) {
	device.CheckEmbedBackward(grad, ids, dx)
	if o := s.begin("EmbedBackward", grad, ids, dx); o != nil && s.known("EmbedBackward", ids, grad.Rows) {
		kernel.EmbedBackward(o, mat(grad), mat(ids), mat(dx))
		o.end()
	}
}

// Gather copies rows: dst[i] = src[rows[i]].
func (s *Stream) Gather(dst, src, rows device.Tensor) {
	device.CheckGather(dst, src, rows)
	if o := s.begin("Gather", dst, src, rows); o != nil && s.known("Gather", rows, src.Rows) {
		kernel.Gather(o, mat(dst), mat(src), mat(rows))
		o.end()
	}
}

// Scatter zeroes dst and copies rows: dst[rows[i]] = src[i]; the rows are distinct.
func (s *Stream) Scatter(dst, src, rows device.Tensor) {
	device.CheckScatter(dst, src, rows)
	if o := s.begin("Scatter", dst, src, rows); o != nil && s.known("Scatter", rows, dst.Rows) {
		kernel.Scatter(o, mat(dst), mat(src), mat(rows))
		o.end()
	}
}

// ArgMax writes the index of the largest value of each row to ids, the lowest on ties, and to best, if it is not zero, the index and
// the value.
func (s *Stream) ArgMax(ids, best, x device.Tensor) {
	device.CheckArgMax(ids, best, x)
	if o := s.begin("ArgMax", ids, best, x); o != nil {
		ids.Buf.(*buffer).ids = nil // only the device knows them
		kernel.ArgMax(o, mat(ids), mat(best), mat(x))
		o.end()
	}
}

var _ device.NextDrawer = (*Stream)(nil)

// DrawNext draws an id of each row: see device.NextDrawer.
func (s *Stream) DrawNext(ids, out, x, never, keys, limits device.Tensor) {
	device.CheckDrawNext(ids, out, x, never, keys, limits)
	if o := s.begin("DrawNext", ids, out, x, never, keys, limits); o != nil {
		ids.Buf.(*buffer).ids = nil // only the device knows them
		kernel.DrawNext(o, mat(ids), mat(out), mat(x), mat(never), mat(keys), mat(limits))
		o.end()
	}
}

var _ device.ManyDrawer = (*Stream)(nil)

// DrawMany draws ids from the softmax of each row, in one launch: see device.ManyDrawer.
func (s *Stream) DrawMany(out, z, keys device.Tensor, temperature float64) {
	device.CheckDrawMany(out, z, keys, temperature)
	if o := s.begin("DrawMany", out, z, keys); o != nil {
		o.sized(z.Rows, z.Cols, out.Cols)
		kernel.DrawMany(o, mat(out), mat(z), mat(keys).Ptr, temperature)
		o.end()
	}
}

var _ device.Projector = (*Stream)(nil)

// Project moves distributions to the ids of another vocabulary: see device.Projector.
func (s *Stream) Project(y, t device.Tensor, w device.Projection, rows device.Tensor, temperature float64) {
	device.CheckProject(y, t, w, rows, temperature)
	limit(w.Teacher <= kernel.ProjectMost, device.OpProject, "more than 2²⁰ ids of a teacher")
	o := s.begin("Project", y, t, w.Starts, w.IDs, w.Weights, rows)
	if o == nil || !s.known("Project", rows, y.Rows) || !s.known("Project", w.IDs, w.Teacher) ||
		!s.known("Project", w.Starts, w.IDs.Rows*w.IDs.Cols+1) {
		return
	}
	o.sized(t.Rows, t.Cols, y.Cols)
	kernel.Project(o, mat(y), mat(t), kernel.Projection{
		Teacher: w.Teacher, Starts: mat(w.Starts), IDs: mat(w.IDs), Weights: mat(w.Weights),
	}, mat(rows), temperature)
	o.end()
}

// cast converts src to the type of dst.
func (s *Stream) cast(op string, dst, src device.Tensor) {
	if o := s.begin(op, dst, src); o != nil {
		kernel.Copy(o, mat(dst), mat(src))
		o.end()
	}
}
