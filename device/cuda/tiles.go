package cuda

import (
	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
)

// A matrix in tiles is read as it is by the launch of all layers (Decode), and by products of up to kernel.TileProductRows rows. A product
// of more rows puts what it expands back into rows.

var _ device.Arranger = (*Stream)(nil)

// Arrange converts block-quantised matrices to tiles, in place, if products of n rows read tiles. It does nothing if
// the device has no kernels for tiles, or a matrix cannot be cut into tiles.
func (s *Stream) Arrange(n int, ws ...device.Weight) {
	if n < 2 || n > kernel.TileProductRows || !s.dev.decodesLayers() {
		return
	}
	for _, w := range ws {
		w := w.(*weight)
		if w.parts != nil && w.host == nil && !w.tiled && !w.experts && w.fp8 == nil && w.inBlocks() && w.haveTiles() {
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

// reads reports whether a product of `rows` rows of x reads the blocks of w without expanding them.
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

// tile converts the blocks of a matrix to tiles, in place, as DecodeLayers reads them. Every later operation, on any
// stream, sees the tiles.
func (s *Stream) tile(w *weight) { s.arrange(w, false) }

// rows converts the matrices of experts back from tiles: but for the launch of all layers, and where they are
// expanded, products of experts read rows.
func (s *Stream) rows(ws ...*weight) {
	for _, w := range ws {
		if w.tiled {
			s.arrange(w, true)
		}
	}
}

// arrange converts the blocks of a matrix to tiles, or back. A matrix partly in tiles is unusable, so a failure is
// fatal to the device.
func (s *Stream) arrange(w *weight, back bool) {
	o := s.dev.internal().begin("Tile")
	if o == nil {
		return
	}
	w.tiled = !back
	s.dev.replays.changed()
	for _, k := range w.parts {
		step := tileStep(k.blocks, k.rows)
		at := o.Scratch(step * k.blocks.RowBytes)
		for lo := 0; lo < k.rows; lo += step {
			part := k.blocks.Slice(lo, min(lo+step, k.rows))
			kernel.Tile(o, at, part, back)
			n := int64(part.Rows * part.RowBytes)
			o.call(func(t *driver.Thread) error { return t.CopyDtoD(part.Ptr, at, n, s.dev.stream) })
		}
	}
	o.end()
}

// tileStep is how many of the rows are on their way between rows and tiles at a time.
func tileStep(b kernel.Blocks, rows int) int {
	const most = kernel.MaxScratch / 4
	return min(rows, max(1, most/(kernel.TileRows*b.RowBytes))*kernel.TileRows)
}

// expandBlocks decodes rows [lo,hi) of blocks, which are in tiles or not.
func (o *operation) expandBlocks(dst kernel.Mat, b kernel.Blocks, lo, hi int, tiled bool) {
	if !tiled {
		kernel.Dequantize(o, dst, b.Slice(lo, hi))
		return
	}
	end := (hi + kernel.TileRows - 1) / kernel.TileRows * kernel.TileRows
	limit(lo%kernel.TileRows == 0, device.OpMatMul, "rows of a tile are expanded apart")
	step := tileStep(b, end-lo)
	at := o.Scratch(step * b.RowBytes)
	for ; lo < hi; lo += step {
		part := b.Slice(lo, min(lo+step, end))
		kernel.Tile(o, at, part, true)
		rows := dst
		rows.Rows = min(part.Rows, hi-lo)
		kernel.Dequantize(o, rows, kernel.NewBlocks(at, rows.Rows, b.Cols, b.Type))
		dst.Ptr += uint64(rows.Rows * dst.Stride * dst.Type.BlockBytes())
	}
}
