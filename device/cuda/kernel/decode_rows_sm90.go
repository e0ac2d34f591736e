package kernel

import (
	"fmt"
	"math"
	"unsafe"

	"apr/tensor"
)

// PassModule has the kernels of DecodeRows.
const PassModule = "decode_rows_sm90"

// DecodeRowsMost is how many positions DecodeRows computes at most.
const DecodeRowsMost = 4

const (
	passSpan = 3*512 + 80 + 512 + 2*256 // SPAN_4X of decode_rows_sm90.cu
	passSent = 5 * 512                  // SPAN_SENT
)

// passArgs is struct PassArgs of decode_rows_sm90.cu.
type passArgs struct {
	decodeArgs
	variants         uint64
	xStride, yStride int64
	rows, kept       uint32
	invD, two23      float32
	minusOne, _      uint32
}

var _ [216]byte = [unsafe.Sizeof(passArgs{})]byte{}

// DecodeRowsServes returns nil if DecodeRows supports these layers, in tiles, for so many positions on a device with
// `blocks` multiprocessors, else the reason. Of what VariantsModule has beyond LayersModule it supports norms of heads
// alone.
func DecodeRowsServes(layers []DecodeLayer, s DecodeShape, rows, blocks int) error {
	if err := DecodeServes(layers, s, blocks); err != nil {
		return err
	}
	if rows < 1 || rows > DecodeRowsMost {
		return fmt.Errorf("%d positions: 1 to %d are wanted", rows, DecodeRowsMost)
	}
	if s.HeadDim != 64 && s.HeadDim != 128 && s.HeadDim != 256 {
		return fmt.Errorf("heads of %d columns: 64, 128 or 256 are wanted", s.HeadDim)
	}
	for i := range layers {
		l := &layers[i]
		for j, w := range l.matrices() {
			if layersTypes[w.Type] > layersTypes[tensor.Q6_K] {
				return fmt.Errorf("matrix %d of layer %d is of %v: Q4_K, Q5_K and Q6_K are wanted", j, i, w.Type)
			}
		}
	}
	if _, ok := shapePass(layers, s, rows, blocks); !ok {
		return fmt.Errorf("%d rows of %d columns need more shared memory than the %d bytes of a block", rows,
			max(s.Hidden, s.Inter), s.Shared)
	}
	return nil
}

// shapePass divides shared memory for several rows of x, as shapeLayers does for one. In front is x of all products but
// down, or each warp's 256 columns of down's x, or what attention needs.
func shapePass(layers []DecodeLayer, s DecodeShape, rows, blocks int) (p layersPlan, ok bool) {
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	for i := range layers {
		for _, w := range layers[i].matrices() {
			p.hold(w)
		}
	}
	p.warpSpans = p.divide(blocks, []productShape{
		{q + 2*kv, 1, s.Hidden}, {s.Hidden, 1, q}, {s.Inter, 2, s.Hidden}, {s.Hidden, 1, s.Inter},
	})
	attention := 4*decodePart*layersWarps + 2*256*(1+2*DecodeRowsMost)
	spans := max(ceil(max(s.Hidden, q), 256), layersWarps)
	front := max(passSpan*spans, attention)
	return p.place(front, s.Shared-layersStatic, [...]int{
		4 * TileRows * (layersWarps + p.blockTiles) * rows, 4 * TileRows * ceil(s.Hidden/TileRows, blocks) * rows,
		4 * TileRows * ceil((q+2*kv)/TileRows, blocks), 8 * p.warpSpans * layersWarps, 2 * 4 * p.blockTiles,
		layersBytes(len(layers)),
	})
}

// DecodeRows is DecodeLayers for up to DecodeRowsMost consecutive positions, x [n, hidden], of which the first is
// `position`: each sees the keys of those before it. y [r, hidden] is of the last r. A row gets the bits that
// DecodeLayers gives it. DecodeRowsServes says what layers and shapes may be.
//
// Bytes moved: those of the blocks, and of the keys and values up to the last position, once.
func DecodeRows(queue Queue, y, x, norm Mat, layers []DecodeLayer, s DecodeShape, position int, table, rotary uint64) {
	const op = "DecodeRows"
	blocks := max(1, queue.Multiprocessors())
	p, ok := shapePass(layers, s, x.Rows, blocks)
	need(ok && rowsAt(x, 16) && rowsAt(y, 16) && rowsAt(norm, 16), op, "shared memory or alignment")
	need(x.Cols == s.Hidden && y.Cols == s.Hidden && norm.Cols == s.Hidden && y.Rows <= x.Rows, op, "shapes differ")
	a := &passArgs{
		decodeArgs: decodeArgs{
			layers: table + layersHead, arrived: table, x: x.Ptr, y: y.Ptr, norm: norm.Ptr,
			table: rotary + uint64(4*position*s.HeadDim), position: uint32(position),
			cacheStride: int64(layers[0].Cache.Stride), count: uint32(len(layers)),
			hidden: uint32(s.Hidden), inter: uint32(s.Inter), heads: uint32(s.Heads), kvHeads: uint32(s.KVHeads),
			d: uint32(s.HeadDim), slots: uint32(p.slots), pitch: uint32(p.pitch), spans: uint32(p.warpSpans),
			tiles: uint32(p.blockTiles), ringAt: uint32(p.ring), sumsAt: uint32(p.sums), ownAt: uint32(p.own),
			biasAt: uint32(p.bias), spansAt: uint32(p.spans), tilesAt: uint32(p.tiles), layersAt: uint32(p.layers),
			eps: float32(s.Eps), invHidden: 1 / float32(s.Hidden), scale: s.scoreScale(),
		},
		xStride: int64(x.Stride), yStride: int64(y.Stride), rows: uint32(x.Rows), kept: uint32(y.Rows),
		invD: 1 / float32(s.HeadDim), two23: 1 << 23, minusOne: math.MaxUint32,
	}
	if s.Variants {
		a.variants = table + layersHead + uint64(layersBytes(len(layers)))
	}
	values := x.Rows * (2*((2*s.Heads+2*s.KVHeads)*s.HeadDim+2*s.Hidden) + 4*s.Inter)
	a.between = queue.Scratch(2*values + 4*ceil(s.Inter, 256)*passSent) // PassExchange
	if splits := min(ceil(position+x.Rows, decodeShare), decodeSplits); splits > 1 {
		a.part = queue.Scratch(4 * decodePart * splits * x.Rows * s.Heads)
	}
	kernel := "decode_rows_4"
	if x.Rows <= 2 {
		kernel = "decode_rows_2"
	}
	queue.Launch(Launch{
		Module: PassModule, Kernel: kernel,
		Grid: [3]int{blocks, 1, 1}, Block: 32 * layersWarps, Shared: p.shared, Together: true, Args: unsafe.Pointer(a),
	})
}

// scoreScale is the factor of scores, whose powers are of two.
func (s DecodeShape) scoreScale() float32 {
	if s.Scale != 0 {
		return float32(math.Log2E * s.Scale)
	}
	return float32(math.Log2E / math.Sqrt(float64(s.HeadDim)))
}
