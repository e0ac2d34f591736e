package model

import (
	"bytes"
	"io"

	"apr/device"
	"apr/tensor"
)

// DownloadSource returns a tensor of the device as one to be written to a file with elements of type d (F32, F16 or
// BF16). It is downloaded when it is written.
func DownloadSource(s device.Stream, name string, shape []int, t device.Tensor, d tensor.DType) tensor.Source {
	n, _ := tensor.Elements(shape)
	info := tensor.Info{Name: name, DType: d, Shape: shape, Size: n * int64(d.BlockBytes())}
	return tensor.Source{Info: info, Payload: func(w io.Writer) error {
		host := make([]float32, n)
		if err := s.Download(host, t); err != nil {
			return err
		}
		raw := make([]byte, info.Size)
		tensor.Narrow(raw, host, d)
		_, err := w.Write(raw)
		return err
	}}
}

// CompanionSource is DownloadSource for a part of a parameter's values or moments, which ranks may share.
func (m *Model) CompanionSource(s device.Stream, p Part, name string, c device.Companion,
	d tensor.DType) tensor.Source {
	if !p.Param.Shared(c) {
		t := p.Param.Companion(c)
		if c == device.OfValue {
			t = p.Param.Read()
		}
		return DownloadSource(s, name, p.Shape, p.Of(t), d)
	}
	src := DownloadSource(s, name, p.Shape, p.Of(p.Param.Staging(c)), d)
	download := src.Payload
	src.Payload = func(w io.Writer) error {
		m.whole(p.Param, c)
		return download(w)
	}
	return src
}

// Sources returns a trainable model's tensors as they are written to a file: matrices in type d, norms and biases in
// float32. Of matrices that are computed with as blocks hold them, these are the values of the blocks. A tied head is not listed.
func (m *Model) Sources(s device.Stream, d tensor.DType) []tensor.Source {
	var out []tensor.Source
	for _, p := range m.parts {
		dt := d
		if len(p.Shape) == 1 || p.Bias {
			dt = tensor.F32
		}
		src := m.CompanionSource(s, p, p.Name, device.OfValue, dt)
		if d := offset(m.Config, p.Slot); d != 0 {
			src = shiftedSource(src, -d)
		}
		out = append(out, src)
	}
	return append(out, m.FixedSources()...)
}

// shiftedSource adds d to every value of a source of float32.
func shiftedSource(s tensor.Source, d float32) tensor.Source {
	payload := s.Payload
	s.Payload = func(w io.Writer) error {
		var b bytes.Buffer
		if err := payload(&b); err != nil {
			return err
		}
		values := make([]float32, s.Elements())
		tensor.Widen(values, b.Bytes(), s.DType)
		raw := make([]byte, s.Size)
		tensor.Narrow(raw, shifted(values, d), s.DType)
		_, err := w.Write(raw)
		return err
	}
	return s
}
