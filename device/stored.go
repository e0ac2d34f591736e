package device

import "apr/tensor"

// storedUploader is a Stream that copies values in a tensor's own type, which need not be widened and rounded again.
type storedUploader interface{ UploadStored(t Tensor, src []byte) }

// UploadStored copies values of t's type, little-endian, to t: by the stream itself if it can, else by Upload.
func UploadStored(s Stream, t Tensor, src []byte) {
	if u, ok := s.(storedUploader); ok {
		u.UploadStored(t, src)
		return
	}
	CheckUploadStored(t, src)
	values := make([]float32, t.Rows*t.Cols)
	tensor.Widen(values, src, t.DType)
	s.Upload(t, values)
}

// storedDownloader is a Stream that copies values in a tensor's own type to the host.
type storedDownloader interface {
	DownloadStored(dst []byte, t Tensor) error
}

// DownloadStored copies the values of t in its type, little-endian, to dst and waits, as Stream.Download does: by the
// stream itself if it can, else by Download.
func DownloadStored(s Stream, dst []byte, t Tensor) error {
	if d, ok := s.(storedDownloader); ok {
		return d.DownloadStored(dst, t)
	}
	CheckDownloadStored(dst, t)
	values := make([]float32, t.Rows*t.Cols)
	if err := s.Download(values, t); err != nil {
		return err
	}
	tensor.Narrow(dst, values, t.DType)
	return nil
}
