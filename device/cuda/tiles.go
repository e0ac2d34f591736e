package cuda

import (
	"apr/device"
	"apr/device/cuda/kernel"
)

// A matrix in tiles is read as it is by the launch of all layers (Decode), and by products of up to kernel.TileProductRows rows. A product
// of more rows puts what it expands back into rows.

var _ device.Arranger = (*Stream)(nil)

// Arrange puts matrices in blocks into tiles, in their place, for products of n rows that read them there. It does nothing where the
// device has no kernels for tiles, or the matrix no tiles.
func (s *Stream) Arrange(n int, ws ...device.Weight) {
	if n < 2 || n > kernel.TileProductRows || !s.dev.decodesLayers() {
		return
	}
	for _, w := range ws {
		if w := w.(*weight); w.parts != nil && !w.tiled && w.eighth == nil && w.inBlocks() && w.haveTiles() {
			s.tile(w)
		}
	}
}

// tiles reports whether Arrange would put a matrix into tiles.
func (d *Device) tiles(l *layout) bool {
	for _, p := range l.parts {
		if !kernel.TileServes(kernel.NewBlocks(0, p.rows, l.cols, p.as)) {
			return false
		}
	}
	return d.decodesLayers() && !l.fp8
}

// haveTiles reports whether all parts of w have tiles.
func (w *weight) haveTiles() bool {
	for _, k := range w.parts {
		if !kernel.TileServes(k.blocks) {
			return false
		}
	}
	return true
}

// reads reports whether a product of so many rows of x reads the blocks of w as they are.
func (w *weight) reads(rows int) bool {
	return w.parts != nil && (w.tiled && rows <= kernel.TileProductRows || w.decodes() && rows <= decodeRows)
}

// matMulTiles is MatMul for a few rows of x with a matrix in tiles.
func (s *Stream) matMulTiles(y, x device.Tensor, w *weight, bias device.Tensor, add bool) {
	o := s.begin("MatMul", y, x, bias)
	if o == nil || y.Rows == 0 || y.Cols == 0 {
		return
	}
	o.sized(y.Rows, y.Cols, x.Cols)
	s.dev.counts.products.Add(1)
	kernel.GemmTiles(o, mat(y), o.inPacks(x), w.blocks(y.Cols), mat(bias), add)
	o.end()
}

// gatedTiles is MatMulGLU with SiLU for a few rows of x with a matrix in tiles and reports whether one kernel serves it.
func (s *Stream) gatedTiles(m, gu, x device.Tensor, w *weight, keep bool) bool {
	if !w.tiled || x.Rows == 0 || x.Rows > kernel.TileProductRows {
		return false
	}
	gate, up, ok := w.gateUp()
	if !ok || gate.Rows%kernel.TileRows != 0 || !kernel.GemvSwiGLUServes(mat(gu), gate, up) {
		return false
	}
	if o := s.begin("MatMulGLU", m, gu, x); o != nil {
		o.sized(gu.Rows, gu.Cols, x.Cols)
		s.dev.counts.products.Add(1)
		kernel.GemmTilesSwiGLU(o, mat(m), mat(gu), o.inPacks(x), gate, up, keep)
		o.end()
	}
	return true
}

// inPacks returns x in the device's activation type, in rows that begin at multiples of 16 bytes.
func (o *operation) inPacks(x device.Tensor) kernel.Mat {
	m := o.narrow(x)
	if size := m.Type.BlockBytes(); m.Ptr%16 != 0 || m.Stride*size%16 != 0 {
		return o.rounded(m, m.Type)
	}
	return m
}
