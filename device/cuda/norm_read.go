package cuda

import (
	"apr/device"
	"apr/device/cuda/kernel"
	"apr/tensor"
)

var _ device.NormReader = (*Stream)(nil)

// norm is where a norm stands that is still to be made.
func norm(n device.Normed) kernel.Normed {
	return kernel.Normed{Y: mat(n.Y), X: mat(n.X), W: mat(n.W), Eps: n.Eps}
}

// NormMatMul makes a norm in the product that reads it: see device.NormReader.
func (s *Stream) NormMatMul(z device.Tensor, n device.Normed, bias device.Tensor, ws ...device.Weight) bool {
	device.CheckNormMatMul(z, n, bias, ws...)
	if s.failed() {
		return true // tensors need not have a place
	}
	product := readsNorm(z, n, ws)
	if product == nil {
		return false
	}
	tensors := []device.Tensor{z, n.Y, n.X, n.W, bias}
	for _, w := range ws {
		tensors = append(tensors, w.(*weight).t)
	}
	o := s.begin("NormMatMul", tensors...)
	if o == nil {
		return true
	}
	o.sized(z.Rows, z.Cols, n.X.Cols)
	s.dev.counts.products.Add(1)
	product(o, mat(z), norm(n), mat(bias))
	o.end()
	return true
}

// normProduct makes a norm and multiplies it.
type normProduct func(q kernel.Queue, z kernel.Mat, n kernel.Normed, bias kernel.Mat)

// readsNorm returns the product with ws that makes the norm that it reads, nil if there is none.
func readsNorm(z device.Tensor, n device.Normed, ws []device.Weight) normProduct {
	var parts []kernel.Blocks
	tiled := ws[0].(*weight).tiled
	for left := z.Cols; len(ws) > 0; ws = ws[1:] {
		w := ws[0].(*weight)
		if w.parts == nil || w.host != nil || w.fp8 != nil || !w.inBlocks() || w.tiled != tiled {
			return nil
		}
		parts = append(parts, w.blocks(left)...)
		left -= w.t.Rows
	}
	switch {
	case tiled && kernel.NormTilesServes(norm(n), parts):
		return func(q kernel.Queue, z kernel.Mat, n kernel.Normed, bias kernel.Mat) {
			kernel.NormTiles(q, z, n, parts, bias)
		}
	case !tiled && kernel.NormGemvPartsServes(norm(n)):
		return func(q kernel.Queue, z kernel.Mat, n kernel.Normed, bias kernel.Mat) {
			kernel.NormGemvParts(q, z, n, parts, bias)
		}
	}
	return nil
}

// NormMatMulGLU makes a norm in the product that reads it, if gate and up are in blocks of one type: see
// device.NormReader.
func (s *Stream) NormMatMulGLU(
	m, gu device.Tensor, n device.Normed, w device.Weight, act device.Activation, keep bool,
) bool {
	device.CheckNormMatMulGLU(m, gu, n, w, act)
	if s.failed() {
		return true // tensors need not have a place
	}
	k := w.(*weight)
	if act != device.SiLU || k.parts == nil || k.host != nil || k.fp8 != nil || !k.inBlocks() || n.Y.DType != tensor.BF16 {
		return false
	}
	gate, up, ok := k.gateUp()
	if !ok || !kernel.GemvSwiGLUServes(mat(gu), gate, up) {
		return false
	}
	product := kernel.NormGemvSwiGLU
	if k.tiled {
		product = kernel.NormTilesSwiGLU
		ok = gate.Rows%kernel.TileRows == 0 && kernel.NormTilesServes(norm(n), []kernel.Blocks{gate, up})
	} else {
		ok = kernel.NormGemvPartsServes(norm(n))
	}
	if !ok {
		return false
	}
	if o := s.begin("NormMatMulGLU", m, gu, n.Y, n.X, n.W); o != nil {
		o.sized(gu.Rows, gu.Cols, n.X.Cols)
		s.dev.counts.products.Add(1)
		product(o, mat(m), mat(gu), norm(n), gate, up, keep)
		o.end()
	}
	return true
}

// NormRoute is RMSNorm, MatMul and Route of one token by one kernel: see device.NormReader.
func (s *Stream) NormRoute(
	w, z device.Tensor, n device.Normed, router device.Weight, bias, scale device.Tensor, r device.Routing,
) bool {
	device.CheckNormRoute(w, z, n, router, bias, scale, r)
	if s.failed() {
		return true // tensors need not have a place
	}
	m := router.(*weight)
	if m.parts != nil || m.host != nil || m.fp8 != nil || !kernel.RouterServes(norm(n), mat(m.t), routing(r)) {
		return false
	}
	o := s.begin("NormRoute", w, z, n.Y, n.X, n.W, m.t, bias, scale, r.Chosen, r.Slots, r.Rows, r.Starts)
	if o == nil {
		return true
	}
	o.sized(r.Experts, n.X.Cols, r.Active)
	s.dev.counts.products.Add(1)
	for _, t := range []device.Tensor{r.Chosen, r.Slots, r.Rows, r.Starts} {
		t.Buf.(*buffer).ids = nil // only the device knows them
	}
	kernel.Router(o, mat(w), mat(z), norm(n), mat(m.t), mat(bias), mat(scale), routing(r))
	o.end()
	return true
}
