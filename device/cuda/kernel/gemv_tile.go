package kernel

import (
	"fmt"
	"unsafe"

	"apr/tensor"
)

const (
	tileModule = "gemv_tile"
	tileRows   = 16 // of W, that a block multiplies
	tileParts  = 4  // of one launch
	tileTokens = 4  // rows of x of one launch at most
)

// What speed depends on, and tileWarps bits as well. A kernel's bounds are 14 warps of 72 registers, two blocks of them on
// a multiprocessor, or, of several rows of x, one block.
const (
	tileWarps     = 8         // of a block at most
	tileLong      = 32        // spans from which on they are tileLongWarps
	tileLongWarps = 14        // at most
	tileStages    = 4         // spans of a warp in shared memory at most, 2 … 4
	tileResident  = 28        // warps of a multiprocessor at most
	tileShared    = 227 << 10 // bytes of a multiprocessor that its blocks share, 1 KiB more for each
	tileBlock     = 110 << 10 // bytes of a block at most
)

// tilePart is struct TilePart of gemv_tile.cu.
type tilePart struct {
	w           uint64
	stride      int64
	rows, first uint32
	end, dtype  uint32
}

// tileBits is struct Bits of gemv_tile.cu.
type tileBits struct{ base, minus, lower4 uint32 }

// tileArgs is struct TileArgs of gemv_tile.cu.
type tileArgs struct {
	y, x, bias, product uint64
	yStride, xStride    int64 // elements
	productStride       int64
	part                [tileParts]tilePart
	cols, tokens        uint32
	flags, stages       uint32 // gemvAdd, gemvFloat, gemvDrop
	tiles               uint32
	bits                tileBits
}

// gemvDrop is the bit of tileArgs.flags by which y is not kept.
const gemvDrop = 4

// tileTypes are the numbers of types in mixed launches, and tilePitch the bytes that a row of a span takes in shared memory.
var (
	tileTypes = map[tensor.DType]uint32{tensor.Q4_K: 0, tensor.Q5_K: 1, tensor.Q6_K: 2}
	tilePitch = map[tensor.DType]int{
		tensor.Q4_K: 144, tensor.Q5_K: 176, tensor.Q6_K: 240, tensor.Q8_0: 304, tensor.Q4_0: 176, tensor.Q5_0: 208,
	}
)

// GemvParts is Gemv with W the rows of parts, one after the other, each in blocks of its own type, and x of bfloat16. One
// row of x takes one launch for up to four parts of one type or of Q4_K, Q5_K and Q6_K.
func GemvParts(q Queue, y, x Mat, parts []Blocks, bias Mat, add bool) {
	rows := 0
	for _, w := range parts {
		need(x.Cols == w.Cols && DequantizeServes(w), "Gemv", "type, alignment or columns")
		rows += w.Rows
	}
	need(y.Rows == x.Rows && y.Cols == rows, "Gemv", "shapes differ")
	need(bias.IsZero() || bias.Cols == y.Cols && bias.Type == tensor.F32, "Gemv", "bias")
	first := 0
	for len(parts) > 0 {
		n := 1
		for n < min(len(parts), tileParts) && (parts[n].Type == parts[0].Type || x.Rows == 1 && mixes(parts[:n+1])) {
			n++
		}
		eachTokens(x, func(lo, hi int) {
			a := newTiles(y.rows(lo, hi), x.rows(lo, hi), bias, add)
			at, blocks := first, 0
			for i, w := range parts[:n] {
				blocks += ceil(w.Rows, tileRows)
				a.part[i] = tilePart{w.Ptr, int64(w.RowBytes), uint32(w.Rows), uint32(at), uint32(blocks), tileTypes[w.Type]}
				at += w.Rows
			}
			for i := n; i < tileParts; i++ {
				a.part[i].end = uint32(blocks)
			}
			a.launch(q, parts[:n], blocks)
		})
		for _, w := range parts[:n] {
			first += w.Rows
		}
		parts = parts[n:]
	}
}

// GemvSwiGLU computes gu = x·Wᵀ and m = silu(g)·u of gu as stored, for few rows of x of bfloat16: W is gate, then up, of one
// type and shape. Without keep gu is not written. The bits are those of Gemv, then SwiGLU.
//
// Bytes moved: those of the blocks, once.
func GemvSwiGLU(q Queue, m, gu, x Mat, gate, up Blocks, keep bool) {
	need(GemvSwiGLUServes(gu, gate, up) && DequantizeServes(gate) && DequantizeServes(up), "GemvSwiGLU", "types or shapes")
	need(x.Cols == gate.Cols && gu.Cols == 2*gate.Rows && m.Cols == gate.Rows && m.Rows == x.Rows && gu.Rows == x.Rows, "GemvSwiGLU", "shapes differ")
	need(x.Type == tensor.BF16 && m.Type == tensor.BF16, "GemvSwiGLU", "type")
	eachTokens(x, func(lo, hi int) {
		a, blocks := newTiles(gu.rows(lo, hi), x.rows(lo, hi), Mat{}, false), ceil(gate.Rows, tileRows/2)
		a.product, a.productStride = m.rows(lo, hi).Ptr, int64(m.Stride)
		if !keep {
			a.flags |= gemvDrop
		}
		for i, w := range []Blocks{gate, up} {
			a.part[i] = tilePart{w.Ptr, int64(w.RowBytes), uint32(w.Rows), uint32(i * gate.Rows), uint32(blocks), tileTypes[w.Type]}
		}
		a.launch(q, []Blocks{gate}, blocks)
	})
}

// GemvSwiGLUServes reports whether GemvSwiGLU takes these.
func GemvSwiGLUServes(gu Mat, gate, up Blocks) bool {
	return gu.Type == tensor.BF16 && gate.Type == up.Type && gate.Rows == up.Rows && gate.Cols == up.Cols
}

// mixes reports whether one kernel serves parts of these types.
func mixes(parts []Blocks) bool {
	for _, w := range parts {
		if _, ok := tileTypes[w.Type]; !ok {
			return false
		}
	}
	return true
}

// eachTokens calls f for the rows of x of one launch.
func eachTokens(x Mat, f func(lo, hi int)) {
	need(x.Rows <= GemvRows, "Gemv", "too many rows")
	for lo := 0; lo < x.Rows; lo += tileTokens {
		f(lo, min(lo+tileTokens, x.Rows))
	}
}

func newTiles(y, x, bias Mat, add bool) *tileArgs {
	need(rowsAt(x, 16) && x.Type == tensor.BF16, "Gemv", "type or alignment")
	a := &tileArgs{
		y: y.Ptr, x: x.Ptr, bias: bias.Ptr, yStride: int64(y.Stride), xStride: int64(x.Stride),
		cols: uint32(x.Cols), tokens: uint32(x.Rows), bits: tileBits{0x43004300, 0xc300c300, 0x0f0f0f0f},
	}
	if add {
		a.flags |= gemvAdd
	}
	if y.Type == tensor.F32 {
		a.flags |= gemvFloat
	}
	return a
}

// launch starts the kernel for the types of parts, which have so many tiles.
func (a *tileArgs) launch(q Queue, parts []Blocks, tiles int) {
	spans := ceil(int(a.cols), 256)
	if tiles == 0 || spans == 0 {
		return
	}
	most, name, tokens := 0, parts[0].Type.String(), 1
	for _, w := range parts {
		most = max(most, tilePitch[w.Type])
		if w.Type != parts[0].Type {
			name = "mixed"
		}
	}
	if a.tokens > 1 {
		tokens = tileTokens
	}
	s := shapeTiles(spans, tiles, tokens, tileRows*most, q.Multiprocessors(), name == "mixed")
	a.tiles, a.stages = uint32(tiles), uint32(s.stages)
	q.Launch(Launch{
		Module: tileModule, Kernel: fmt.Sprintf("gemv_%s_tile_%d", name, tokens), Grid: [3]int{s.blocks, 1, 1}, Block: 32 * s.warps,
		Shared: s.shared, Args: unsafe.Pointer(a),
	})
}

// tileShape is how a product is cut.
type tileShape struct{ warps, stages, blocks, shared int }

// shapeTiles cuts tiles of so many spans of so many bytes. Warps have as many spans of a tile each as can be; their number
// is one of the columns alone, since bits depend on it. Blocks are as many as are resident together, or fewer where all
// multiprocessors then end together; where each tile has a block of its own, stages are no more than the spans of a warp.
func shapeTiles(spans, tiles, tokens, bytes, multiprocessors int, single bool) tileShape {
	most := tileWarps
	if spans >= tileLong {
		most = tileLongWarps
	}
	rounds := ceil(spans, most)
	s := tileShape{warps: ceil(spans, rounds), stages: 2}
	sums := 2 * 4 * s.warps * tileRows * tokens
	shared := func(stages int) int { return sums + s.warps*stages*bytes }
	resident := tileResident / s.warps
	if tokens > 1 {
		resident = max(1, resident/2)
	}
	resident = max(1, min(resident, tileShared/(shared(2)+1<<10)))
	s.blocks = tiles
	if !single {
		resident = balanced(tiles, max(1, multiprocessors), resident)
		s.blocks = min(tiles, max(1, multiprocessors)*resident)
	}
	last := tileStages
	if s.blocks == tiles {
		last = min(last, max(2, rounds))
	}
	for s.stages < last && shared(s.stages+1) <= min(tileBlock, tileShared/resident-1<<10) {
		s.stages++
	}
	s.shared = shared(s.stages)
	return s
}

// balanced returns how many blocks of up to most a multiprocessor should have, so that its blocks have as equal numbers of
// tiles as can be; of equals the most, and no fewer than about two thirds of most.
func balanced(tiles, multiprocessors, most int) int {
	slots := func(n int) int { return ceil(tiles, n*multiprocessors) * n * multiprocessors }
	best := most
	for n := most; 3*n >= 2*most && tiles > n*multiprocessors; n-- {
		if slots(n) < slots(best) {
			best = n
		}
	}
	return best
}
