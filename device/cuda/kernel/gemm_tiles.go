package kernel

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"apr/tensor"
)

// TileProductRows is how many rows of x GemmTiles takes at most.
const TileProductRows = 64

const (
	tilesK      = "gemm_tiles_k_sm90" // of Q4_K, Q5_K and Q6_K
	tilesG      = "gemm_tiles_g_sm90" // of the others
	tilesParts  = 4                   // TILES_PARTS of gemm_tiles.cuh
	wideWarps   = 20                  // WIDE_WARPS of gemm_tiles_wide.cuh
	wideThreads = 128                 // X_THREADS
	wideHalf    = 2 << 10             // bytes of half a span of 8 rows of x: size of Halves
	wideSums    = 4 * 8 * 20          // bytes of a warp's sums of 8 rows of x: size of finish_tiles
	wideAlign   = 1 << 10             // of x
	wideStages  = 4                   // spans of a warp in shared memory at most
	wideHalves  = 6                   // halves of spans of x there at most
	tilesAlign  = 128                 // align of TileRing
	tilesShared = 220 << 10           // bytes of a block at most
	tilesSums   = MaxScratch / 2
)

// What the cut of a product is chosen by, in cycles of a multiprocessor of an H200.
const (
	tilesBegin  = 4000 // until the first span is there
	tilesJoin   = 5000 // a launch of tiles_join
	tilesBytes  = 18   // that come in, each cycle
	wideSpan    = 2700 // a span, however few warps there are
	wideDecode  = 80   // more of it for each warp: its codes
	wideProduct = 10   // and its products with 8 rows of x
	wideBring   = 100  // a span of 8 rows of x
)

// tilesPart is struct TilesPart of gemm_tiles.cuh.
type tilesPart struct {
	w           uint64
	rows, first uint32
	dtype       uint32
	bytes       uint32
}

// tilesArgs is struct TilesArgs of gemm_tiles.cuh.
type tilesArgs struct {
	y, x, bias, product, sums uint64
	yStride, xStride          int64
	productStride             int64
	part                      [tilesParts]tilesPart
	cols, tokens, width       uint32
	flags                     uint32
	parts, stages, shares     uint32
	pitch, warps              uint32
	chunk, split              uint32
}

// TileProductServes reports whether GemmTiles takes this matrix once it is in tiles.
func TileProductServes(b Blocks) bool { return TileServes(b) && b.Rows > 0 && b.Cols > 0 }

// TileProductModule names the module that GemmTiles needs for a type; none where it has no tiles.
func TileProductModule(d tensor.DType) string {
	switch n, ok := layersTypes[d]; {
	case !ok:
		return ""
	case n <= layersTypes[tensor.Q6_K]:
		return tilesK
	}
	return tilesG
}

// TileProductModules names the modules that GemmTiles needs for a matrix whose parts are of these types, with + between
// them.
func TileProductModules(types string) (all []string) {
	for d := range layersTypes {
		m := TileProductModule(d)
		if !slices.Contains(strings.Split(types, "+"), d.String()) || slices.Contains(all, m) {
			continue
		}
		if all = append(all, m); m == tilesK {
			all = append(all, tilesC)
		}
	}
	return all
}

// GemmTiles computes y = x·Wᵀ (+ bias), or y += with add, for up to TileProductRows rows of x of bfloat16. W is the
// rows of parts, each in tiles as Tile leaves them; of a part the first rows may be asked for, and its tiles are
// whole. Sums are float32. Values are rounded to bfloat16 as Dequantize rounds them; of 2 to 16 rows of x and Q4_K,
// Q5_K and Q6_K it is codes times codes of scales that are rounded, see gemm_tiles_codes.cuh; with one row of x they
// are multiplied as Gemv does.
//
// Bytes moved: those of the blocks, once; x once for each group of rows of W that blocks share it for.
func GemmTiles(q Queue, y, x Mat, parts []Blocks, bias Mat, add bool) {
	rows := 0
	for _, w := range parts {
		rows += w.Rows
	}
	need(y.Rows == x.Rows && y.Cols == rows, "GemmTiles", "shapes differ")
	need(bias.IsZero() || bias.Cols == y.Cols && bias.Type == tensor.F32, "GemmTiles", "bias")
	for first := 0; len(parts) > 0; {
		n := 1
		for n < min(len(parts), tilesParts) && TileProductModule(parts[n].Type) == TileProductModule(parts[0].Type) {
			n++
		}
		some := parts[:n]
		parts = parts[n:]
		a, end := newTiles(some, x), first
		for _, w := range some {
			end += w.Rows
		}
		a.y, a.yStride, a.width = y.Ptr+uint64(first*y.Type.BlockBytes()), int64(y.Stride), uint32(end-first)
		if !bias.IsZero() {
			a.bias = bias.Ptr + uint64(4*first)
		}
		if add {
			a.flags |= gemvAdd
		}
		if y.Type == tensor.F32 {
			a.flags |= gemvFloat
		}
		if first = end; x.Rows == 1 {
			a.launchRow(q, some)
		} else {
			a.launch(q, some)
		}
	}
}

// GemmTilesSwiGLU computes gu = x·Wᵀ, where the rows of W are those of gate, then those of up, and m = silu(g)·u of
// the two halves of gu as they are stored. gate and up are in tiles and have one type and shape. gu is written only
// with keep. The bits are those of GemmTiles followed by SwiGLU, if both products are cut alike.
func GemmTilesSwiGLU(q Queue, m, gu, x Mat, gate, up Blocks, keep bool) {
	a := newTilesSwiGLU(m, gu, x, gate, up, keep)
	if x.Rows == 1 {
		a.launchRow(q, []Blocks{gate, up})
		return
	}
	a.launch(q, []Blocks{gate, up})
}

func newTilesSwiGLU(m, gu, x Mat, gate, up Blocks, keep bool) *tilesArgs {
	need(GemvSwiGLUServes(gu, gate, up), "GemmTilesSwiGLU", "types or shapes")
	need(gu.Cols == 2*gate.Rows && m.Cols == gate.Rows && m.Rows == x.Rows && gu.Rows == x.Rows && m.Type == tensor.BF16,
		"GemmTilesSwiGLU", "shapes differ")
	a := newTiles([]Blocks{gate, up}, x)
	a.y, a.yStride, a.width = gu.Ptr, int64(gu.Stride), uint32(gu.Cols)
	a.product, a.productStride = m.Ptr, int64(m.Stride)
	if !keep {
		a.flags |= gemvDrop
	}
	return a
}

func newTiles(parts []Blocks, x Mat) *tilesArgs {
	need(x.Rows >= 1 && x.Rows <= TileProductRows && x.Type == tensor.BF16 && rowsAt(x, 16),
		"GemmTiles", "rows, type or alignment of x")
	a := &tilesArgs{
		x: x.Ptr, xStride: int64(x.Stride), cols: uint32(x.Cols), tokens: uint32(x.Rows), parts: uint32(len(parts)),
	}
	first := 0
	for i, w := range parts {
		whole := w
		whole.Rows = ceil(w.Rows, TileRows) * TileRows
		need(TileProductServes(whole) && w.Cols == x.Cols, "GemmTiles", "type, shape or columns")
		a.part[i] = tilesPart{
			w.Ptr, uint32(w.Rows), uint32(first), uint32(layersTypes[w.Type]), uint32(w.Type.RowBytes(256)),
		}
		first += w.Rows
	}
	return a
}

func (a *tilesArgs) launch(q Queue, parts []Blocks) {
	if a.byCodes(parts) {
		a.launchCodes(q, parts)
		return
	}
	s := shapeOf(&tilesShapes, shapeTiles, parts, int(a.tokens), a.product != 0, q.Multiprocessors())
	a.stages, a.pitch, a.chunk = uint32(s.stages), uint32(s.pitch), uint32(s.halves)
	a.shares, a.warps = uint32(s.shares), uint32(s.warps)
	if s.shares > 1 {
		a.sums = q.Scratch(4 * s.shares * int(a.tokens*a.width))
	}
	module, suffix := TileProductModule(parts[0].Type), "k"
	if module == tilesG {
		suffix = "g"
	}
	q.Launch(Launch{
		Module: module, Kernel: fmt.Sprintf("gemm_tiles_%s_%d", suffix, 8*s.columns),
		Grid: [3]int{s.groups, s.shares, 1}, Block: 32*s.warps + wideThreads, Shared: s.shared(), Args: unsafe.Pointer(a),
	})
	if s.shares > 1 {
		a.join(q, module, "tiles_join_"+suffix)
	}
}

// join launches the sum of shares.
func (a *tilesArgs) join(q Queue, module, name string) {
	columns := int(a.width)
	if a.product != 0 {
		columns /= 2
	}
	grid := [3]int{ceil(columns, 256), int(a.tokens), 1}
	q.Launch(Launch{Module: module, Kernel: name, Grid: grid, Block: 256, Args: unsafe.Pointer(a)})
}

// tilesShape is how a product is cut. Bits depend on the shares of a row's spans alone.
type tilesShape struct {
	columns       int // blocks of 8 rows of x: 1, 4 or 8
	warps         int // of a block, a tile each; of gate and of up in turns
	groups        int // of tiles
	shares        int // of a row's spans, each another block's
	stages, pitch int // spans of a warp in shared memory, bytes of one
	halves        int // of spans of x there
}

// shared is how many bytes of shared memory a block has.
func (s tilesShape) shared() int {
	rings := s.halves*(s.columns*wideHalf+16) + s.warps*s.stages*(s.pitch+8)
	return wideAlign + max(rings, s.warps*s.columns*wideSums)
}

// fit chooses as many stages as there is room for beside x, and then as many halves, and reports whether there is room
// for two stages and three halves.
func (s *tilesShape) fit(size int) bool {
	s.pitch = ringPitch(size)
	for _, least := range []int{4, 3} {
		for s.stages = wideStages; s.stages > 1; s.stages-- {
			for s.halves = wideHalves; s.halves >= least; s.halves-- {
				if s.shared() <= tilesShared {
					return true
				}
			}
		}
	}
	return false
}

// ringPitch is how many bytes a span of a tile, of `size` bytes, takes in a ring: where spans do not begin at multiples
// of tilesAlign, a copy begins up to so much before its span.
func ringPitch(size int) int {
	if size%tilesAlign == 0 {
		return size
	}
	return ceil(size, tilesAlign)*tilesAlign + tilesAlign
}

// span is how long a span takes, of tiles of `size` bytes.
func (s tilesShape) span(size int) float64 {
	busy := wideSpan + s.warps*(wideDecode+wideProduct*s.columns)
	return float64(max(s.warps*size/tilesBytes, wideBring*s.columns, busy))
}

// cut is what the shape of a product depends on.
type cut struct {
	parts [tilesParts]struct {
		dtype      tensor.DType
		rows, cols int
	}
	tokens, multiprocessors int
	gated                   bool
}

// Shapes by cut: finding one takes the host up to ten times as long as a launch.
var tilesShapes, codesShapes sync.Map

// shapeOf returns what find does, from m when it was asked for before.
func shapeOf[S any](
	m *sync.Map, find func(parts []Blocks, tokens int, gated bool, multiprocessors int) S,
	parts []Blocks, tokens int, gated bool, multiprocessors int,
) S {
	key := cut{tokens: tokens, multiprocessors: multiprocessors, gated: gated}
	for i, w := range parts {
		key.parts[i].dtype, key.parts[i].rows, key.parts[i].cols = w.Type, w.Rows, w.Cols
	}
	if s, ok := m.Load(key); ok {
		return s.(S)
	}
	s := find(parts, tokens, gated, multiprocessors)
	m.Store(key, s)
	return s
}

// shapeTiles chooses warps and shares so that the busiest multiprocessor has the least to do by a rough model: its
// blocks come one after the other, each needs tilesBegin, and a span takes as long as its bytes need to come or, if
// that is longer, its codes and products.
func shapeTiles(parts []Blocks, tokens int, gated bool, multiprocessors int) (best tilesShape) {
	columns, size, width := 8, 0, 0
	switch {
	case tokens <= 8:
		columns = 1
	case tokens <= 32:
		columns = 4
	}
	for _, w := range parts {
		size, width = max(size, TileRows*int(w.Type.RowBytes(256))), width+w.Rows
	}
	spans, least := ceil(parts[0].Cols, 256), math.Inf(1)
	for warps := 4; warps <= wideWarps; warps += 4 {
		s := tilesShape{columns: columns, warps: warps}
		if !s.fit(size) {
			continue
		}
		for i, w := range parts {
			if tiles := ceil(w.Rows, TileRows); !gated {
				s.groups += ceil(tiles, warps)
			} else if i == 0 {
				s.groups = ceil(tiles, warps/2)
			}
		}
		span := s.span(size)
		for s.shares = 1; s.shares <= spans; s.shares++ {
			waves := ceil(s.groups*s.shares, max(1, multiprocessors))
			cost := float64(waves) * (tilesBegin + float64(ceil(spans, s.shares))*span)
			if sums := 4 * s.shares * 8 * columns * width; s.shares > 1 {
				if sums > tilesSums {
					break
				}
				cost += tilesJoin + 2*float64(sums)/float64(tilesBytes*max(1, multiprocessors))
			}
			if cost < least {
				best, least = s, cost
			}
		}
	}
	return best
}
