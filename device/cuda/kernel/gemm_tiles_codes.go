package kernel

import (
	"fmt"
	"math"
	"unsafe"
)

const (
	tilesC          = "gemm_tiles_c_sm90" // of Q4_K, Q5_K and Q6_K, by codes
	codesWarps      = 18                  // CODES_WARPS of gemm_tiles_codes.cuh
	codesStages     = 4                   // spans of a warp in shared memory at most
	codesX          = 8 * (512 + 32)      // bytes of a span of 8 rows of x, and of its sums
	codesChunkSpans = 32                  // of a chunk at most
	codesChunkLeast = 4                   // unless there is room for fewer only
)

// What a product by codes is cut by, in cycles of a multiprocessor of an H200. They are counted, not measured.
const (
	codesDecode  = 330 // a span of a tile: its codes and scales, for each warp of a scheduler
	codesIssue   = 36  // and its instructions for 8 rows of x
	codesProduct = 117 // and their products, beside codes
	codesAlone   = 900 // a span, however few warps there are
	codesReads   = 32  // reads of x from shared memory, of each warp, for 8 rows
	codesChunk   = 400 // barriers of a chunk, and its sums
	codesCopy    = 40  // bytes of W and x that come in from the second cache, each cycle
)

// codesRows is up to how many rows of x products with Q4_K, Q5_K and Q6_K in tiles are made by codes
// (gemm_tiles_codes.cuh), and not by values (gemm_tiles.cuh): on an H200 those took longer up to 16 rows, and less
// time with 32 and 64.
const codesRows = 16

// byCodes reports whether a launch with these parts is by codes; so is one with a single row of x that is too long for
// launchRow.
func (a *tilesArgs) byCodes(parts []Blocks) bool {
	return int(a.tokens) <= codesRows && TileProductModule(parts[0].Type) == tilesK
}

// launchCodes is launch by codes.
func (a *tilesArgs) launchCodes(q Queue, parts []Blocks) {
	s := shapeOf(&codesShapes, shapeCodes, parts, int(a.tokens), a.product != 0, q.Multiprocessors())
	a.stages, a.pitch, a.chunk = uint32(s.stages), uint32(s.pitch), uint32(s.chunk)
	a.shares, a.warps, a.split = uint32(s.shares), uint32(s.warps), uint32(s.split)
	if s.shares > 1 {
		a.sums = q.Scratch(4 * s.shares * int(a.tokens*a.width))
	}
	q.Launch(Launch{
		Module: tilesC, Kernel: fmt.Sprintf("gemm_tiles_c_%d", 8*s.columns),
		Grid: [3]int{s.groups, s.shares, 1}, Block: 32 * max(2, s.warps), Shared: s.shared(), Args: unsafe.Pointer(a),
	})
	if s.shares > 1 {
		a.join(q, tilesC, "tiles_join_c")
	}
}

// codesShape is how a product by codes is cut. Bits depend on the shares of a row's spans and on split alone.
type codesShape struct {
	columns       int // blocks of 8 rows of x: 1 or 2
	warps         int // of a block
	split         int // that have a tile together; tiles are of gate and of up in turns
	groups        int // of tiles
	shares        int // of a row's spans, each another block's
	spans         int // of the largest share
	chunk         int // spans of x in shared memory together, once if that is all of a share's, else twice
	stages, pitch int // spans of a warp in shared memory, bytes of one
}

func (s codesShape) buffers() int {
	if s.chunk < s.spans {
		return 2
	}
	return 1
}

// shared is how many bytes of shared memory a block has.
func (s codesShape) shared() int {
	return s.buffers()*s.chunk*s.columns*codesX + s.warps*s.stages*(s.pitch+8)
}

// fit chooses as many stages as there is room for beside x of all spans or, if there is none, beside chunks that are
// not short or, if there is none for those either, beside any, and reports whether there is room.
func (s *codesShape) fit() bool {
	for _, least := range []int{s.spans, min(codesChunkLeast, s.spans), 1} {
		for s.stages = max(2, min(codesStages, ceil(s.spans, s.split))); s.stages > 1; s.stages-- {
			for s.chunk = min(s.spans, codesChunkSpans); s.chunk > 0 && s.shared() > tilesShared; {
				s.chunk--
			}
			if s.chunk >= least {
				return true
			}
		}
	}
	return false
}

// cycles is how long a block takes with tiles of `size` bytes: until those are there or, if that is longer, until its
// warps are through with their spans. Before that, x of a chunk has to come.
func (s codesShape) cycles(size int) float64 {
	busy := ceil(s.warps, 4) * max(codesDecode+s.columns*codesIssue, s.columns*codesProduct)
	span := max(busy, s.warps*s.columns*codesReads, codesAlone+s.columns*codesProduct)
	x, w, chunks := s.spans*s.columns*4<<10, s.warps/s.split*s.spans*size, ceil(s.spans, s.chunk)
	both := max(ceil(s.spans, s.split)*span, w/tilesBytes, (w+x)/codesCopy)
	return float64(tilesBegin + both + x/chunks/codesCopy + chunks*codesChunk)
}

// shapeCodes chooses warps and shares as shapeTiles does.
func shapeCodes(parts []Blocks, tokens int, gated bool, multiprocessors int) (best codesShape) {
	size, step := 0, 1 // step: tiles of a block are a multiple of it
	for _, w := range parts {
		size = max(size, TileRows*int(w.Type.RowBytes(256)))
	}
	if gated {
		step = 2
	}
	least := math.Inf(1)
	for tiles := step; tiles <= codesWarps; tiles += step {
		for split := 1; split*tiles <= codesWarps; split++ {
			s := codesShape{columns: ceil(tokens, 8), warps: split * tiles, split: split, pitch: ringPitch(size)}
			for i, w := range parts {
				if all := ceil(w.Rows, TileRows); !gated {
					s.groups += ceil(all, tiles)
				} else if i == 0 {
					s.groups = ceil(all, tiles/2)
				}
			}
			if cost := s.share(parts, tokens, size, max(1, multiprocessors)); cost < least {
				best, least = s, cost
			}
		}
	}
	return best
}

// share chooses the shares of a row's spans with which the product takes the fewest cycles, and returns them.
func (s *codesShape) share(parts []Blocks, tokens, size, multiprocessors int) float64 {
	best, least, width := *s, math.Inf(1), 0
	for _, w := range parts {
		width += w.Rows
	}
	spans := parts[0].Cols / 256
	for shares := 1; shares <= spans; shares++ {
		try := *s
		try.shares, try.spans = shares, ceil(spans, shares)
		if try.split > try.spans || !try.fit() {
			continue
		}
		// Warps that have a tile together were slower on an H200 with two blocks of 8 rows of x (3,584² with 16 rows: 19.3
		// µs, 15.8 with shares), and where x comes in chunks (3,584 × 18,944 with 8 rows: 46.6 µs, 26.9).
		if try.split > 1 && (try.columns > 1 || try.chunk < try.spans) {
			continue
		}
		cost := float64(ceil(try.groups*shares, multiprocessors)) * try.cycles(size)
		if sums := 4 * shares * tokens * width; shares > 1 {
			if sums > tilesSums {
				break
			}
			cost += tilesJoin + 2*float64(sums)/float64(tilesBytes*multiprocessors)
		}
		if cost < least {
			best, least = try, cost
		}
	}
	*s = best
	return least
}
