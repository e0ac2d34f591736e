package cuda

import (
	"errors"
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
	if err := decodeLacks(d); err != nil {
		return err
	}
	first := &d.Layers[0]
	shape := kernel.DecodeShape{
		Hidden: x.Cols, Inter: first.Down.Cols(), Heads: first.Heads, KVHeads: first.KVHeads, HeadDim: first.HeadDim, Eps: d.Eps,
		Scale: first.Scale, Residual: one(first.Residual), Variants: decodesVariants(d), Shared: s.dev.desc.SharedPerBlockOptin,
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
	table, err := s.decodeTables(d, layers)
	if err != nil {
		s.fail(err)
		return nil
	}
	n := kernel.DecodeTableBytes(len(layers))
	at := o.Scratch(n)
	s.dev.uploads.send(o, n, func(dst []byte) { kernel.DecodeTable(dst, layers) }, func(o *operation, p unsafe.Pointer) {
		o.call(func(t *driver.Thread) error { return t.CopyHtoD(at, p, int64(n), s.dev.stream) })
		kernel.DecodeLayers(o, mat(y), mat(x), mat(d.Norm), layers, shape, d.Position, at, table)
	})
	return nil
}

// decodeTables sets how layers turn heads at the position, and returns the first table that there is.
func (s *Stream) decodeTables(d device.Decode, layers []kernel.DecodeLayer) (first uint64, err error) {
	for i := range layers {
		l := &d.Layers[i]
		layers[i].QScale = device.Rotary{QBeta: l.QBeta, QLength: l.QLength}.QScale(d.Position)
		if l.Rope == nil {
			continue
		}
		table, err := s.rotary(l.Rope, d.Position+1)
		if err != nil {
			return 0, err
		}
		if first == 0 {
			first = mat(table).Ptr
		}
		layers[i].Pairs = len(l.Rope.Inv)
		layers[i].Table = mat(table).Ptr + uint64(4*d.Position*2*layers[i].Pairs)
	}
	return first, nil
}

// one returns a factor of which 0 means 1.
func one(f float64) float64 {
	if f == 0 {
		return 1
	}
	return f
}

// decodeLacks returns what the kernels of all layers lack for d, or nil: they compute layers of one shape with norms before
// attention and network, perhaps norms of heads, heads that rotate, a part of them or none, a cache of which the position sees some rows,
// SiLU, a factor of what layers add, and nothing else.
func decodeLacks(d device.Decode) error {
	if len(d.Layers) == 0 {
		return errors.New("there are no layers")
	}
	for i := range d.Layers {
		if what := decodeLayerLacks(&d.Layers[i], &d.Layers[0]); what != "" {
			return fmt.Errorf("the kernel of all layers does not compute %s (layer %d)", what, i)
		}
	}
	return nil
}

// decodeLayerLacks is decodeLacks for layer l of a model whose first layer is first, or "".
func decodeLayerLacks(l, first *device.DecodeLayer) string {
	switch {
	case l.AttnNorm.IsZero() || l.FFNNorm.IsZero():
		return "layers without norms before attention and network"
	case !l.AttnPost.IsZero() || !l.FFNPost.IsZero():
		return "norms after attention and network"
	case l.Heads != first.Heads || l.KVHeads != first.KVHeads || l.HeadDim != first.HeadDim:
		return "layers of several kinds of heads"
	case l.Down.Cols() != first.Down.Cols():
		return "layers of several widths"
	case !l.QNorm.IsZero() && l.QNorm.Cols != l.HeadDim || !l.KNorm.IsZero() && l.KNorm.Cols != l.HeadDim:
		return "norms of rows of q and k"
	case l.Gate:
		return "gated attention"
	case !l.Sinks.IsZero():
		return "attention sinks"
	case l.VNorm:
		return "norms of v"
	case l.VIsK:
		return "values that are keys"
	case l.Shared:
		return "caches that layers share"
	case l.Scale != first.Scale:
		return "attention scores of several scales"
	case l.Cap != 0:
		return "attention soft-caps"
	case !l.OBias.IsZero():
		return "biases of o"
	case l.Act != device.SiLU:
		return "the activation " + l.Act.String()
	case l.PerLayer != nil:
		return "per-layer embeddings"
	case one(l.Residual) != one(first.Residual):
		return "several factors of the residual branches"
	case l.OutScale != 0 && l.OutScale != 1:
		return "factors of a layer's output"
	}
	return ""
}

// decodesVariants reports whether layers have norms of heads, factors, rotary embeddings but one of whole heads, or see a part of their
// cache.
func decodesVariants(d device.Decode) bool {
	first := &d.Layers[0]
	for i := range d.Layers {
		l := &d.Layers[i]
		turns := l.Rope != nil && l.Rope == first.Rope && 2*len(l.Rope.Inv) == l.HeadDim && l.QBeta == 0
		sees := l.Row == d.Position && l.First == 0 && l.Keys == d.Position+1
		if !turns || !sees || !l.QNorm.IsZero() || !l.KNorm.IsZero() || one(l.Residual) != 1 {
			return true
		}
	}
	return false
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
		k.Norms = [2]kernel.Mat{mat(l.AttnNorm), mat(l.FFNNorm)}
		k.Bias, k.Cache = mat(l.Bias), mat(l.Cache)
		k.QNorm, k.KNorm, k.Row, k.First, k.Keys = mat(l.QNorm), mat(l.KNorm), l.Row, l.First, l.Keys
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
