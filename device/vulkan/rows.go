package vulkan

import (
	"apr/device"
	"apr/device/vulkan/kernel"
	"apr/tensor"
)

// narrow reports whether kernels do not see t: elements that are no words.
func narrow(t device.Tensor) bool { return t.DType != tensor.F32 && t.DType != tensor.I32 }

// Zero sets t to zero.
func (s *Stream) Zero(t device.Tensor) {
	device.CheckZero(t)
	if !s.begin() || t.Rows*t.Cols == 0 {
		return
	}
	t.Buf.(*buffer).ids = nil
	if narrow(t) {
		s.put(t, make([]byte, t.Rows*t.Cols*t.DType.BlockBytes()))
		return
	}
	kernel.Fill(s, mat(t), 0)
	s.end()
}

// Copy copies src to dst, of the same shape and type.
func (s *Stream) Copy(dst, src device.Tensor) {
	device.CheckCopy(dst, src)
	if !s.begin() || dst.Rows*dst.Cols == 0 {
		return
	}
	to, from := dst.Buf.(*buffer), src.Buf.(*buffer)
	to.ids = nil
	if !narrow(dst) {
		kernel.Copy(s, mat(dst), mat(src))
		s.end()
		return
	}
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	for r := range dst.Rows {
		a, n := rowBytes(dst, r)
		b, _ := rowBytes(src, r)
		_ = s.dev.check(s.dev.record().Copy(to.buf, to.at+a, from.buf, from.at+b, n))
	}
}

// Embed gathers rows: dst[i] = w[ids[i]].
func (s *Stream) Embed(dst device.Tensor, w device.Weight, ids device.Tensor) {
	device.CheckEmbed(dst, w, ids)
	m := w.(*weight)
	if !s.begin() || !s.known("Embed", ids, m.rows) {
		return
	}
	for _, p := range m.parts {
		kernel.Embed(s, mat(dst), p.Weight, mat(ids), p.first, m.rows)
	}
	s.end()
}

// EmbedBackward adds rows: grad[ids[i]] += dx[i], in ascending i.
func (s *Stream) EmbedBackward(grad, ids, dx device.Tensor) {
	device.CheckEmbedBackward(grad, ids, dx)
	if s.begin() && s.known("EmbedBackward", ids, grad.Rows) {
		kernel.EmbedBackward(s, mat(grad), mat(ids), mat(dx))
		s.end()
	}
}

// Gather copies rows: dst[i] = src[rows[i]].
func (s *Stream) Gather(dst, src, rows device.Tensor) {
	device.CheckGather(dst, src, rows)
	if s.begin() && s.known("Gather", rows, src.Rows) {
		kernel.Gather(s, mat(dst), mat(src), mat(rows))
		s.end()
	}
}

// Scatter zeroes dst and copies rows: dst[rows[i]] = src[i]; the rows are distinct.
func (s *Stream) Scatter(dst, src, rows device.Tensor) {
	device.CheckScatter(dst, src, rows)
	if s.begin() && s.known("Scatter", rows, dst.Rows) {
		kernel.Scatter(s, mat(dst), mat(src), mat(rows))
		s.end()
	}
}

// ArgMax writes the column of the largest number of each row to ids, and it with the value to best unless that is
// zero.
func (s *Stream) ArgMax(ids, best, x device.Tensor) {
	device.CheckArgMax(ids, best, x)
	if s.begin() {
		ids.Buf.(*buffer).ids = nil // only the device knows them
		kernel.ArgMax(s, mat(ids), mat(best), mat(x))
		s.end()
	}
}
