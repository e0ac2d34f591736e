package kernel

import (
	"unsafe"

	"apr/tensor"
)

// What speed alone depends on: see rowsBlocks.
const (
	tileRowWarps  = 8        // of a thread block
	tileRowBlocks = 2        // of a multiprocessor
	tileRowStages = 5        // items of a warp in shared memory at most
	tileRowSums   = 12 << 10 // bytes of a thread block's sums at most
)

// tileRowArgs is struct TileRowArgs of tiles_row.cuh.
type tileRowArgs struct {
	y, x, bias, product uint64
	yStride             int64
	part                [tilesParts]tilesPart
	norm                rowNorm
	cols, flags         uint32
	parts, tiles, each  uint32
	stages, pitch       uint32
}

// tileRowShape is how a product of one row is cut; bits do not depend on it.
type tileRowShape struct{ tiles, each, blocks, stages, pitch, shared int }

// shapeTileRow cuts parts so that all multiprocessors have tileRowBlocks thread blocks, or more thread blocks where sums would take too much room.
func shapeTileRow(parts []Blocks, gated bool, multiprocessors int) tileRowShape {
	spans := ceil(parts[0].Cols, 256)
	s := tileRowShape{stages: tileRowStages}
	for _, w := range parts {
		s.tiles += ceil(w.Rows, TileRows)
		s.pitch = max(s.pitch, TileRows*int(w.Type.RowBytes(256)))
	}
	step := 1
	if gated {
		step = 2
	}
	sums := spans * TileRows * 4 // bytes of a tile's
	s.each = min(ceil(ceil(s.tiles, tileRowBlocks*max(1, multiprocessors)), step), max(1, tileRowSums/(sums*step))) * step
	shared := func() int { return spans*640 + 256 + tileRowWarps*s.stages*s.pitch + s.each*sums }
	for s.stages > 2 && shared() > rowsShared {
		s.stages--
	}
	for s.each > step && shared() > rowsShared {
		s.each -= step
	}
	s.blocks, s.shared = ceil(s.tiles, s.each), shared()
	return s
}

// NormTilesServes reports whether NormTiles makes a norm: parts take one launch.
func NormTilesServes(norm Normed, parts []Blocks) bool {
	for _, w := range parts {
		if TileProductModule(w.Type) != TileProductModule(parts[0].Type) {
			return false
		}
	}
	return len(parts) > 0 && len(parts) <= tilesParts && norm.serves(32*tileRowWarps) &&
		shapeTileRow(parts, false, 1).shared <= rowsShared
}

// NormTiles is GemmTiles of norm.Y, which it makes and writes as RMSNorm does.
func NormTiles(q Queue, y Mat, norm Normed, parts []Blocks, bias Mat) {
	need(NormTilesServes(norm, parts) && y.Rows == 1, "NormTiles", "norm or parts")
	a := newTiles(parts, norm.Y)
	a.y, a.yStride, a.bias = y.Ptr, int64(y.Stride), bias.Ptr
	if y.Type == tensor.F32 {
		a.flags |= gemvFloat
	}
	a.launchNormed(q, parts, norm.row())
}

// NormTilesSwiGLU is GemmTilesSwiGLU of norm.Y.
func NormTilesSwiGLU(q Queue, m, gu Mat, norm Normed, gate, up Blocks, keep bool) {
	need(NormTilesServes(norm, []Blocks{gate, up}) && m.Rows == 1, "NormTiles", "norm or parts")
	a := newTilesSwiGLU(m, gu, norm.Y, gate, up, keep)
	a.launchNormed(q, []Blocks{gate, up}, norm.row())
}

// launchRow is launch with one row of x.
func (a *tilesArgs) launchRow(q Queue, parts []Blocks) { a.launchNormed(q, parts, rowNorm{}) }

// launchNormed is launchRow with x that is a norm, or none.
func (a *tilesArgs) launchNormed(q Queue, parts []Blocks, norm rowNorm) {
	s := shapeTileRow(parts, a.product != 0, q.Multiprocessors())
	if s.shared > rowsShared { // rows are too long
		a.launch(q, parts)
		return
	}
	r := &tileRowArgs{
		y: a.y, x: a.x, bias: a.bias, product: a.product, yStride: a.yStride, part: a.part, norm: norm, cols: a.cols,
		flags: a.flags,
		parts: a.parts, tiles: uint32(s.tiles), each: uint32(s.each), stages: uint32(s.stages), pitch: uint32(s.pitch),
	}
	module, name := TileProductModule(parts[0].Type), "tiles_row_k"
	if module == tilesG {
		name = "tiles_row_g"
	}
	q.Launch(Launch{
		Module: module, Kernel: name, Grid: [3]int{s.blocks, 1, 1}, Block: 32 * tileRowWarps, Shared: s.shared, Args: unsafe.Pointer(r),
	})
}
