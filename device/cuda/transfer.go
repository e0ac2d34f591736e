package cuda

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"unsafe"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/tensor"
)

// pieces of a tensor: eachPiece calls f for consecutive pieces of t of at most limit bytes, in the order of rows. A
// piece is whole rows, or part of one if rows are long, or of all of t if it has no gaps.
func eachPiece(t device.Tensor, limit int, f func(piece device.Tensor)) {
	if t.Rows == 0 || t.Cols == 0 {
		return
	}
	if t.Dense() {
		n := t.Rows * t.Cols
		t.Rows, t.Cols, t.Stride = 1, n, n
	}
	most := limit / t.DType.BlockBytes()
	if t.Cols > most {
		for r := range t.Rows {
			for lo := 0; lo < t.Cols; lo += most {
				f(t.RowRange(r, r+1).ColRange(lo, min(lo+most, t.Cols)))
			}
		}
		return
	}
	for lo := 0; lo < t.Rows; lo += most / t.Cols {
		f(t.RowRange(lo, min(lo+most/t.Cols, t.Rows)))
	}
}

// upload sends the elements of t; fill(dst, i) writes a piece from element i on.
func (s *Stream) upload(op string, t device.Tensor, fill func(dst []byte, from int)) {
	size := t.DType.BlockBytes()
	sent := 0
	eachPiece(t, ringBytes, func(p device.Tensor) {
		o := s.begin(op, p)
		if o == nil {
			return
		}
		from := sent
		sent += p.Rows * p.Cols
		n := p.Rows * p.Cols * size
		s.dev.uploads.send(o, n, func(dst []byte) { fill(dst, from) },
			func(o *operation, src unsafe.Pointer) { o.place(mat(p), src, n) })
	})
}

// place copies n pinned bytes to m, through scratch if m has gaps.
func (o *operation) place(m kernel.Mat, src unsafe.Pointer, n int) {
	d, at := o.dev, m.Ptr
	gaps := m.Stride != m.Cols && m.Rows > 1
	if gaps {
		at = o.Scratch(n)
	}
	o.call(func(t *driver.Thread) error { return t.CopyHtoD(at, src, int64(n), d.stream) })
	if gaps {
		o.copy(m, kernel.Mat{Ptr: at, Rows: m.Rows, Cols: m.Cols, Stride: m.Cols, Type: m.Type})
	}
}

// smallCopy is up to how many bytes a kernel copies, which starts sooner after other kernels than a copy of the driver.
const smallCopy = 64 << 10

// copy copies src to dst, of the same shape and type.
func (o *operation) copy(dst, src kernel.Mat) {
	if dst.Rows == 0 || dst.Cols == 0 {
		return
	}
	d, n := o.dev, int64(dst.Rows)*int64(dst.Cols)*int64(dst.Type.BlockBytes())
	if n > smallCopy && ((dst.Stride == dst.Cols && src.Stride == src.Cols) || dst.Rows == 1) {
		o.call(func(t *driver.Thread) error { return t.CopyDtoD(dst.Ptr, src.Ptr, n, d.stream) })
		return
	}
	kernel.Copy(o, dst, src)
}

// Upload copies host values to t, rounding them to nearest even if t is bfloat16.
func (s *Stream) Upload(t device.Tensor, src []float32) {
	device.CheckUpload(t, src)
	t.Buf.(*buffer).ids = nil
	size := t.DType.BlockBytes()
	s.upload("Upload", t, func(dst []byte, from int) {
		part := src[from : from+len(dst)/size]
		if t.DType == tensor.F32 {
			copy(unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(dst))), len(part)), part)
		} else {
			tensor.Narrow(dst, part, t.DType)
		}
	})
}

// UploadStored copies values of t's type to t as they are.
func (s *Stream) UploadStored(t device.Tensor, src []byte) {
	device.CheckUploadStored(t, src)
	t.Buf.(*buffer).ids = nil
	size := t.DType.BlockBytes()
	s.upload("Upload", t, func(dst []byte, from int) { copyWide(dst, src[from*size:]) })
}

// copyWide copies as much of src as dst holds, by several processors where it is much: one moves some 10 GB a second.
func copyWide(dst, src []byte) {
	const piece = 1 << 20
	var wait sync.WaitGroup
	for lo := 0; lo < len(dst); lo += piece {
		hi := min(lo+piece, len(dst))
		wait.Go(func() { copy(dst[lo:hi], src[lo:hi]) })
	}
	wait.Wait()
}

// UploadInts copies ids to t, and remembers them for the checks of operations that read them.
func (s *Stream) UploadInts(t device.Tensor, src []int32) {
	device.CheckUploadInts(t, src)
	if s.failed() {
		return
	}
	t.Buf.(*buffer).remember(t, src)
	s.upload("UploadInts", t, func(dst []byte, from int) {
		for i, id := range src[from : from+len(dst)/4] {
			binary.NativeEndian.PutUint32(dst[4*i:], uint32(id))
		}
	})
}

// Zero sets t to zero.
func (s *Stream) Zero(t device.Tensor) {
	device.CheckZero(t)
	if s.putOff(t) {
		return
	}
	o := s.begin("Zero", t)
	if o == nil || t.Rows == 0 || t.Cols == 0 {
		return
	}
	t.Buf.(*buffer).ids = nil
	m, d := mat(t), s.dev
	if t.Dense() {
		n := int64(m.Rows) * int64(m.Cols) * int64(t.DType.BlockBytes())
		o.call(func(th *driver.Thread) error { return th.Memset8(m.Ptr, 0, n, d.stream) })
	} else {
		kernel.Zero(o, m)
	}
	o.end()
}

// Copy copies src to dst, of the same shape and type.
func (s *Stream) Copy(dst, src device.Tensor) {
	device.CheckCopy(dst, src)
	if o := s.begin("Copy", dst, src); o != nil {
		dst.Buf.(*buffer).ids = nil
		o.copy(mat(dst), mat(src))
		o.end()
	}
}

// downloads is the pinned memory through which values come to the host.
type downloads struct {
	mu sync.Mutex
	p  unsafe.Pointer // ringBytes
}

// Download copies t to dst and waits; an earlier error of the stream is returned.
func (s *Stream) Download(dst []float32, t device.Tensor) error {
	device.CheckDownload(dst, t)
	return s.download("Download", t, func(src []byte) {
		n := len(src) / t.DType.BlockBytes()
		if t.DType == tensor.F32 {
			copy(dst[:n], unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(src))), n))
		} else {
			tensor.Widen(dst[:n], src, t.DType)
		}
		dst = dst[n:]
	})
}

// DownloadStored copies the values of t, as they are, to dst and waits.
func (s *Stream) DownloadStored(dst []byte, t device.Tensor) error {
	device.CheckDownloadStored(dst, t)
	return s.downloadBytes("Download", dst, t)
}

// downloadBytes copies the bytes of t, without gaps, to dst and waits.
func (s *Stream) downloadBytes(op string, dst []byte, t device.Tensor) error {
	return s.download(op, t, func(src []byte) {
		copyWide(dst[:len(src)], src)
		dst = dst[len(src):]
	})
}

// download hands the bytes of t to take, piece by piece.
func (s *Stream) download(op string, t device.Tensor, take func(src []byte)) (err error) {
	d := s.dev
	s.begin(op, t) // a tensor without memory is an error
	d.down.mu.Lock()
	defer d.down.mu.Unlock()
	if t.Rows*t.Cols == 0 {
		return s.sync(op, nil)
	}
	eachPiece(t, ringBytes, func(p device.Tensor) {
		if err != nil {
			return
		}
		if err = s.sync(op, func(th *driver.Thread) error { return s.fetch(th, mat(p)) }); err == nil {
			take(unsafe.Slice((*byte)(d.down.p), p.Rows*p.Cols*t.DType.BlockBytes()))
		}
	})
	return err
}

// fetch copies m to pinned memory, through scratch if it has gaps.
func (s *Stream) fetch(t *driver.Thread, m kernel.Mat) error {
	d := s.dev
	n := int64(m.Rows) * int64(m.Cols) * int64(m.Type.BlockBytes())
	o := operation{dev: d, stream: s, name: "Download"}
	at := m.Ptr
	if m.Stride != m.Cols && m.Rows > 1 {
		at = o.Scratch(int(n))
		o.copy(kernel.Mat{Ptr: at, Rows: m.Rows, Cols: m.Cols, Stride: m.Cols, Type: m.Type}, m)
	}
	o.call(func(t *driver.Thread) error { return t.CopyDtoH(d.down.p, at, n, d.stream) })
	return o.perform(t)
}

// advance raises a to n.
func advance(a *atomic.Int64, n int64) {
	for old := a.Load(); old < n && !a.CompareAndSwap(old, n); old = a.Load() {
	}
}
