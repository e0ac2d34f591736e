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
)

// What a product by codes is cut by, in cycles of a multiprocessor of an H200. They are counted, not measured.
const (
	codesDecode  = 330 // a span of a tile: its codes and scales, for each warp of a scheduler
	codesIssue   = 36  // and its instructions for 8 rows of x
	codesProduct = 117 // and their products, beside codes
	codesAlone   = 900 // a span, however few warps there are
	codesReads   = 32  // reads of x from shared memory, of each warp, for 8 rows
	codesChunk   = 400 // barriers of a chunk, and its sums
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
	s := shapeCodes(parts, int(a.tokens), a.product != 0, q.Multiprocessors())
	a.stages, a.pitch, a.chunk = uint32(s.stages), uint32(s.pitch), uint32(s.chunk)
	a.shares, a.warps = uint32(s.shares), uint32(s.warps)
	if s.shares > 1 {
		a.sums = q.Scratch(4 * s.shares * int(a.tokens*a.width))
	}
	q.Launch(Launch{
		Module: tilesC, Kernel: fmt.Sprintf("gemm_tiles_c_%d", 8*s.columns),
		Grid: [3]int{s.groups, s.shares, 1}, Block: 32 * s.warps, Shared: s.shared(), Args: unsafe.Pointer(a),
	})
	if s.shares > 1 {
		a.join(q, tilesC, "tiles_join_c")
	}
}

// codesShape is how a product by codes is cut. Bits depend on the shares of a row's spans alone.
type codesShape struct {
	columns       int // blocks of 8 rows of x: 1 or 2
	warps         int // of a block, a tile each; of gate and of up in turns
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

// fit chooses the largest chunk that there is room for, then as many stages as it leaves room for, and reports whether
// there is any.
func (s *codesShape) fit() bool {
	best := 0
	for stages := 2; stages <= max(2, min(codesStages, s.spans)); stages++ {
		try := *s
		try.stages, try.chunk = stages, min(s.spans, codesChunkSpans)
		for try.chunk > 0 && try.shared() > tilesShared {
			try.chunk--
		}
		if try.chunk > 0 && try.chunk >= best {
			best, *s = try.chunk, try
		}
	}
	return best > 0
}

// cycles is how long a block takes with tiles of `size` bytes.
func (s codesShape) cycles(size int) float64 {
	busy := ceil(s.warps, 4) * max(codesDecode+s.columns*codesIssue, s.columns*codesProduct)
	bytes, reads := s.warps*size+s.columns*4<<10, s.warps*s.columns*codesReads
	span := max(busy, bytes/tilesBytes, reads, codesAlone+s.columns*codesProduct)
	return float64(tilesBegin + s.spans*span + ceil(s.spans, s.chunk)*codesChunk)
}

// shapeCodes chooses warps and shares as shapeTiles does.
func shapeCodes(parts []Blocks, tokens int, gated bool, multiprocessors int) (best codesShape) {
	size, width := 0, 0
	for _, w := range parts {
		size, width = max(size, TileRows*int(w.Type.RowBytes(256))), width+w.Rows
	}
	columns, spans, least := ceil(tokens, 8), parts[0].Cols/256, math.Inf(1)
	for warps := 2; warps <= codesWarps; warps += 2 {
		groups := 0
		for i, w := range parts {
			if tiles := ceil(w.Rows, TileRows); !gated {
				groups += ceil(tiles, warps)
			} else if i == 0 {
				groups = ceil(tiles, warps/2)
			}
		}
		for shares := 1; shares <= spans; shares++ {
			s := codesShape{columns: columns, warps: warps, groups: groups, shares: shares, pitch: ringPitch(size)}
			s.spans = ceil(spans, shares)
			if !s.fit() {
				continue
			}
			cost := float64(ceil(groups*shares, max(1, multiprocessors))) * s.cycles(size)
			if sums := 4 * shares * tokens * width; shares > 1 {
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
