package cuda

import (
	"fmt"
	"unsafe"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/tensor"
)

var _ device.Decoder = (*Stream)(nil)

// Decode runs all layers for one position as one launch, where all their matrices are in blocks. The first time it puts
// them into tiles, in their place; products of many rows put what they expand back into rows.
func (s *Stream) Decode(y, x device.Tensor, d device.Decode) error {
	device.CheckDecode(y, x, d)
	shape := kernel.DecodeShape{
		Hidden: x.Cols, Inter: d.Inter, Heads: d.Heads, KVHeads: d.KVHeads, HeadDim: d.HeadDim, Eps: d.Eps, Shared: s.dev.desc.SharedPerBlockOptin,
	}
	if !s.dev.decodesLayers() || x.DType != tensor.BF16 || y.DType != tensor.BF16 {
		return fmt.Errorf("the kernel of all layers is for bfloat16 on compute capability 9.0, this is %s on %d.%d", s.dev.act, s.dev.desc.Major, s.dev.desc.Minor)
	}
	layers, err := decodeLayers(d, shape)
	if err == nil {
		err = kernel.DecodeServes(layers, shape, s.dev.desc.Multiprocessors)
	}
	if err != nil {
		return err
	}
	touched := []device.Tensor{y, x, d.Norm}
	for _, l := range d.Layers {
		touched = append(touched, l.Cache)
	}
	for _, l := range d.Layers {
		for _, w := range []device.Weight{l.QKV, l.O, l.GateUp, l.Down} {
			if w := w.(*weight); !w.tiled {
				s.tile(w)
			}
		}
	}
	o := s.begin("Decode", touched...)
	if o == nil {
		return nil
	}
	o.sized(len(layers), shape.Hidden, d.Position)
	table, err := s.rotary(device.Rotary{HeadDim: d.HeadDim, Theta: d.Theta, SeqLen: 1, Offset: d.Position}, d.Position+1)
	if err != nil {
		s.fail(err)
		return nil
	}
	n := kernel.DecodeTableBytes(len(layers))
	at := o.Scratch(n)
	s.dev.uploads.send(o, n, func(dst []byte) { kernel.DecodeTable(dst, layers) }, func(o *operation, p unsafe.Pointer) {
		o.call(func(t *driver.Thread) error { return t.CopyHtoD(at, p, int64(n), s.dev.stream) })
		kernel.DecodeLayers(o, mat(y), mat(x), mat(d.Norm), layers, shape, d.Position, at, mat(table).Ptr)
	})
	return nil
}

// decodesLayers reports whether the device has the kernel of kernel.DecodeLayers.
func (d *Device) decodesLayers() bool {
	return d.act == tensor.BF16 && d.desc.Major == 9 && d.desc.Minor == 0
}

// decodeLayers returns the layers as the kernel reads them; all matrices must be in blocks.
func decodeLayers(d device.Decode, s kernel.DecodeShape) (all []kernel.DecodeLayer, err error) {
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	for i, l := range d.Layers {
		var k kernel.DecodeLayer
		var o, down [1]kernel.Blocks
		if !cut(k.QKV[:], l.QKV, q, kv, kv) || !cut(o[:], l.O, s.Hidden) || !cut(k.GateUp[:], l.GateUp, s.Inter, s.Inter) || !cut(down[:], l.Down, s.Hidden) {
			return nil, fmt.Errorf("a matrix of layer %d is not in blocks", i)
		}
		k.O, k.Down = o[0], down[0]
		k.Norms = [2]kernel.Mat{mat(l.InputNorm), mat(l.PostNorm)}
		k.Bias, k.Cache = mat(l.Bias), mat(l.Cache)
		all = append(all, k)
	}
	return all, nil
}

// cut returns consecutive rows of a matrix in blocks, if each piece lies in one part of it.
func cut(dst []kernel.Blocks, w device.Weight, rows ...int) bool {
	m, first := w.(*weight), 0
	if m.parts == nil || m.eighth != nil || !m.inBlocks() {
		return false
	}
	for i, n := range rows {
		found := false
		for _, k := range m.parts {
			if k.first <= first && first+n <= k.first+k.rows {
				dst[i], found = k.blocks.Slice(first-k.first, first-k.first+n), true
			}
		}
		if !found {
			return false
		}
		first += n
	}
	return first == m.t.Rows
}
