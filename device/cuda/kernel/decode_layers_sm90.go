package kernel

import (
	"errors"
	"fmt"
	"unsafe"

	"apr/tensor"
)

// LayersModule has the kernel of DecodeLayers; VariantsModule has that of models whose layers are Variants.
const (
	LayersModule   = "decode_layers_sm90"
	VariantsModule = "decode_variants_sm90"
)

// TileRows are the rows of a tile, TILE of decode_layers.cuh.
const TileRows = 16

const tileSpans = 8 // TILE_SPANS

const (
	layersWarps    = 16      // DECODE_WARPS of decode_layers.cuh
	layersPacks    = 2       // MOST_HIDDEN
	layersStatic   = 4 << 10 // bytes of shared memory that the kernel declares, and more
	layersMatrices = 7
	layersSlots    = 8   // SLOTS
	layersAlign    = 128 // bytes, of slots, to which copies are faster
	layersZeros    = 256 // ZEROS
	layersX        = 640 // SPAN_X
)

// DecodeLayer is a layer as DecodeLayers reads it.
type DecodeLayer struct {
	QKV    [3]Blocks
	O      Blocks
	GateUp [2]Blocks
	Down   Blocks
	Norms  [2]Mat // [1, hidden] float32, before q, k, v and before gate, up
	Bias   Mat    // [1, (heads + 2·kv)·d] float32 of q, k, v, or zero
	Cache  Mat    // [capacity, 2·kv·d] bfloat16: a rotated key, then its value
	Router Mat    // [experts, hidden] bfloat16 of a layer of experts: see DecodeExperts

	// What only the kernels of VariantsModule read.
	QNorm, KNorm     Mat     // [1, d] float32, or zero
	Table            uint64  // the row of RotaryTable for the position
	Pairs            int     // of a head that turn
	QScale           float64 // of q after it turned
	Row, First, Keys int     // of the cache: the position's row, and those that it sees, with its own
}

// matrices returns q, k, v, o, gate, up and down.
func (l *DecodeLayer) matrices() [layersMatrices]Blocks {
	return [...]Blocks{l.QKV[0], l.QKV[1], l.QKV[2], l.O, l.GateUp[0], l.GateUp[1], l.Down}
}

// DecodeShape is what all layers have in common.
type DecodeShape struct {
	Hidden, Inter, Heads, KVHeads, HeadDim int
	Eps                                    float64
	Scale                                  float64 // of the scores; 0: 1/√HeadDim
	Residual                               float64 // factor of what is added to x, with Variants
	Variants                               bool    // layers have norms of heads, tables or rows of the cache of their own, or factors
	Shared                                 int     // bytes of shared memory that the device lets a thread block ask for
}

// decodeLayer is struct DecodeLayer of decode_layers.cuh.
type decodeLayer struct {
	w      [layersMatrices]uint64
	norm   [2]uint64
	bias   uint64
	cache  uint64
	kinds  [8]uint16
	router uint64
}

// decodeVariant is struct DecodeVariant of decode_layers.cuh.
type decodeVariant struct {
	qNorm, kNorm, table    uint64
	row, first, keys, half uint32
	qScale, _              float32
}

// variantArgs is struct VariantArgs of decode_layers.cuh.
type variantArgs struct {
	decodeArgs
	variants       uint64
	invD, residual float32
}

// The sizes of both arguments.
var (
	_ [168]byte = [unsafe.Sizeof(decodeArgs{})]byte{}
	_ [184]byte = [unsafe.Sizeof(variantArgs{})]byte{}
	_ [48]byte  = [unsafe.Sizeof(decodeVariant{})]byte{}
)

// decodeArgs is struct DecodeArgs of decode_layers.cuh.
type decodeArgs struct {
	layers, arrived       uint64
	x, y, norm, between   uint64
	table, part           uint64
	cacheStride           int64
	count, hidden, inter  uint32
	heads, kvHeads, d     uint32
	position, splits      uint32
	slots, pitch          uint32
	spans, tiles          uint32
	ringAt, zerosAt       uint32
	sumsAt, ownAt, biasAt uint32
	spansAt, tilesAt      uint32
	layersAt              uint32
	eps, invHidden, scale float32
}

// layersTypes are the numbers of types in Operand.add.
var layersTypes = map[tensor.DType]uint16{tensor.Q4_K: 0, tensor.Q5_K: 1, tensor.Q6_K: 2, tensor.Q8_0: 3, tensor.Q4_0: 4, tensor.Q5_0: 5}

// layersHead is the room for the count of blocks that begins the table of layers.
const layersHead = 64

// DecodeTable writes what DecodeLayers reads of layers to the first DecodeTableBytes of dst, host memory at a multiple
// of 8 bytes. Copy the table to the device, at the address that DecodeLayers gets, before every launch.
func DecodeTable(dst []byte, layers []DecodeLayer) {
	clear(dst[:layersHead])
	all := unsafe.Slice((*decodeLayer)(unsafe.Pointer(unsafe.SliceData(dst[layersHead:]))), len(layers))
	for i := range layers {
		l := &layers[i]
		norms := [2]uint64{l.Norms[0].Ptr, l.Norms[1].Ptr}
		all[i] = decodeLayer{norm: norms, bias: l.Bias.Ptr, cache: l.Cache.Ptr, router: l.Router.Ptr}
		for j, w := range l.matrices() {
			all[i].w[j], all[i].kinds[j] = w.Ptr, layersTypes[w.Type]<<12|uint16(w.Type.RowBytes(256))
		}
	}
	variants := unsafe.Slice((*decodeVariant)(unsafe.Pointer(unsafe.SliceData(dst[layersHead+layersBytes(len(layers)):]))), len(layers))
	for i := range layers {
		l := &layers[i]
		variants[i] = decodeVariant{
			qNorm: l.QNorm.Ptr, kNorm: l.KNorm.Ptr, table: l.Table, row: uint32(l.Row), first: uint32(l.First), keys: uint32(l.Keys),
			half: uint32(l.Pairs), qScale: float32(l.QScale),
		}
	}
}

// DecodeTableBytes returns the size of the table of n layers.
func DecodeTableBytes(n int) int {
	return layersHead + layersBytes(n) + n*int(unsafe.Sizeof(decodeVariant{}))
}

// layersBytes returns the size of the part of the table that blocks copy to shared memory.
func layersBytes(n int) int { return n * int(unsafe.Sizeof(decodeLayer{})) }

// tileArgs is struct TileArgs of decode_layers.cuh.
type tileArgs struct {
	dst, src             uint64
	row, span            uint32
	block, second, third uint32
	back                 uint32
}

// TileServes reports whether Tile takes these blocks and DecodeLayers their tiles.
func TileServes(b Blocks) bool {
	_, ok := layersTypes[b.Type]
	return ok && DequantizeServes(b) && b.Ptr%16 == 0 && b.Rows%TileRows == 0 && b.Cols%32 == 0 && int64(b.RowBytes) == b.Type.RowBytes(b.Cols)
}

// Tile copies blocks to dst, where they take as many bytes, in tiles of 16 rows, as DecodeLayers reads them: the bytes of a tile
// stand where its rows do, in the order of, first, spans of 256 columns (the last may be less), then fields of blocks (of Q6_K,
// which has no words of 16 bytes: codes, scales, the scale of scales; others have one), then rows, then blocks. With back it copies
// tiles to rows. dst is another place.
//
// Bytes moved: those of the blocks, twice.
func Tile(q Queue, dst uint64, b Blocks, back bool) {
	need(TileServes(b) && dst%16 == 0, "Tile", "type, shape or alignment")
	if b.Rows == 0 {
		return
	}
	name, width := "tile_wide", 16
	span := int(b.Type.RowBytes(256))
	if span%width != 0 || b.RowBytes%width != 0 {
		name, width = "tile_narrow", 2
	}
	a := &tileArgs{dst: dst, src: b.Ptr, row: uint32(b.RowBytes / width), span: uint32(span / width), block: 1, second: 1, third: 1}
	if b.Type == tensor.Q6_K {
		a.block, a.second, a.third = 210/2, 192/2, 208/2
	}
	if back {
		a.back = 1
	}
	q.Launch(Launch{Module: LayersModule, Kernel: name, Grid: [3]int{b.Rows / TileRows, ceil(b.RowBytes, tileSpans*span), 1}, Block: 256, Args: unsafe.Pointer(a)})
}

// DecodeServes returns nil if DecodeLayers supports these layers, in tiles, on a device with `blocks` multiprocessors,
// else the reason.
func DecodeServes(layers []DecodeLayer, s DecodeShape, blocks int) error {
	if len(layers) == 0 {
		return errors.New("there are no layers")
	}
	if err := decodeHeads(s); err != nil {
		return err
	}
	for i := range layers {
		if err := layers[i].readable(i, layers[0].Cache.Stride, s.shapes()); err != nil {
			return err
		}
	}
	if _, ok := shapeLayers(layers, s, blocks); !ok {
		return noRoom(max(s.Hidden, s.Heads*s.HeadDim, s.Inter), s.Shared)
	}
	return nil
}

// noRoom is the error of rows that are too long.
func noRoom(cols, shared int) error {
	return fmt.Errorf("rows of %d columns need more shared memory than the %d bytes of a block", cols, shared)
}

// decodeHeads returns nil if the kernels support rows and heads of a shape.
func decodeHeads(s DecodeShape) error {
	q, most := s.Heads*s.HeadDim, 32*layersWarps*layersPacks*8
	switch {
	case s.Hidden%32 != 0 || q%32 != 0 || s.Inter%32 != 0 || s.Hidden > most:
		return fmt.Errorf("rows of %d, %d and %d columns: multiples of 32 are wanted, and %d at most of the first", s.Hidden, q, s.Inter, most)
	case s.HeadDim%16 != 0 || s.HeadDim > 256 || s.Heads%s.KVHeads != 0:
		return fmt.Errorf("%d heads of %d columns with %d for keys: multiples of 16 up to 256, and of heads for keys, are wanted", s.Heads, s.HeadDim, s.KVHeads)
	case s.Variants && s.HeadDim%64 != 0:
		return fmt.Errorf("heads of %d columns with norms, windows or tables of their own: multiples of 64 are wanted", s.HeadDim)
	}
	return nil
}

// shapes returns the rows and columns of a layer's matrices.
func (s DecodeShape) shapes() [layersMatrices][2]int {
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	return [...][2]int{
		{q, s.Hidden}, {kv, s.Hidden}, {kv, s.Hidden}, {s.Hidden, q},
		{s.Inter, s.Hidden}, {s.Inter, s.Hidden}, {s.Hidden, s.Inter},
	}
}

// readable returns nil if the kernels can read layer i, whose matrices should have these shapes, and the cache rows of
// stride values.
func (l *DecodeLayer) readable(i, stride int, shapes [layersMatrices][2]int) error {
	for j, w := range l.matrices() {
		if !TileServes(w) || [2]int{w.Rows, w.Cols} != shapes[j] {
			return fmt.Errorf("matrix %d of layer %d, %d×%d of %v: it has no tiles of %d rows",
				j, i, w.Rows, w.Cols, w.Type, TileRows)
		}
	}
	cache := l.Cache.Stride == stride && l.Cache.Type == tensor.BF16 && rowsAt(l.Cache, 16)
	if !rowsAt(l.Norms[0], 16) || !rowsAt(l.Norms[1], 16) || !cache {
		return fmt.Errorf("norms or cache of layer %d stand as the kernel cannot read them", i)
	}
	return nil
}

// layersPlan is how shared memory is divided.
type layersPlan struct {
	slots, pitch                                               int // spans of a warp, bytes of one
	warpSpans, blockTiles                                      int
	ring, zeros, sums, own, bias, spans, tiles, layers, shared int
}

// shapeLayers divides a thread block's shared memory: x in integers, or the sums of attention; the rings, with as many
// stages as fit; zeros; the sums of tiles; x of the block's rows; the layers. blocks are those of the launch, on which
// the block's tiles depend.
func shapeLayers(layers []DecodeLayer, s DecodeShape, blocks int) (p layersPlan, ok bool) {
	return shapeLayersWith(layers, s, blocks, 0)
}

// shapeLayersWith leaves `more` bytes behind x of the block's rows.
func shapeLayersWith(layers []DecodeLayer, s DecodeShape, blocks, more int) (p layersPlan, ok bool) {
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	for i := range layers {
		for _, w := range layers[i].matrices() {
			p.hold(w)
		}
	}
	p.warpSpans = p.divide(blocks, []productShape{{q + 2*kv, 1, s.Hidden}, {s.Hidden, 1, q}, {s.Inter, 2, s.Hidden}, {s.Hidden, 1, s.Inter}})
	front := max(ceil(max(s.Hidden, q, s.Inter), 256)*layersX, 4*decodePart*layersWarps)
	return p.place(front, s.Shared-layersStatic, [...]int{
		4 * TileRows * (layersWarps + p.blockTiles), 4*TileRows*ceil(s.Hidden/TileRows, blocks) + more,
		4 * TileRows * ceil((q+2*kv)/TileRows, blocks),
		8 * p.warpSpans * layersWarps, 2 * 4 * p.blockTiles, layersBytes(len(layers)),
	})
}

// hold makes the places of spans large enough for those of w.
func (p *layersPlan) hold(w Blocks) {
	span := TileRows * int(w.Type.RowBytes(256))
	pitch := span + layersAlign - gcd(layersAlign, gcd(span, TileRows*w.RowBytes))
	p.pitch = max(p.pitch, ceil(pitch, layersAlign)*layersAlign)
}

// productShape is the shape of matrices that are multiplied by the same x.
type productShape struct{ rows, matrices, cols int }

// divide returns how many spans a warp has of a layer's products at most, and notes the most tiles that a thread block
// has of one.
func (p *layersPlan) divide(blocks int, products []productShape) (spans int) {
	for _, m := range products {
		tiles := m.matrices * ceil(m.rows/TileRows, blocks)
		p.blockTiles = max(p.blockTiles, tiles)
		spans += ceil(tiles*ceil(m.cols, 256), layersWarps)
	}
	return spans
}

// place lays everything out in `bytes` bytes of shared memory: the front; the rings, with as many stages as fit; zeros;
// then parts of given sizes: sums, own, bias, spans, tiles, layers.
func (p layersPlan) place(front, bytes int, sizes [6]int) (layersPlan, bool) {
	at := layersZeros
	for i, to := range [...]*int{&p.sums, &p.own, &p.bias, &p.spans, &p.tiles, &p.layers} {
		*to = at
		at += ceil(sizes[i], 16) * 16
	}
	p.ring = layersAlign * ceil(front, layersAlign)
	p.slots = min(layersSlots, (bytes-p.ring-at)/(layersWarps*p.pitch))
	p.zeros = p.ring + layersWarps*p.slots*p.pitch
	for _, to := range [...]*int{&p.sums, &p.own, &p.bias, &p.spans, &p.tiles, &p.layers} {
		*to += p.zeros
	}
	p.shared = p.zeros + at
	return p, p.slots >= 1 && layersWarps+p.blockTiles < 256 && sizes[2] <= 4*32*layersWarps
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// DecodeLayers computes all layers for one position, whose hidden state is x [1, hidden] of bfloat16, and y = norm(x) after them:
//
//	x += o(attention(rope(qkv(norm(x))) and the cache)), then x += down(silu(g)·u), g and u of gateUp(norm(x))
//
// and puts the position's key and value into each layer's cache. table is where DecodeTable was put, rotary that of
// RotaryTable. With s.Variants q and k of a head are normalised first, where their layer has weights for it; table, pairs that turn, the
// scale of q, rows and keys are the layer's own; what is added to x is multiplied by s.Residual. Matrices are in tiles: see Tile. DecodeServes says what layers and shapes may be. All sums are float32, of
// products as Gemv has them; what passes from one product to another is rounded to bfloat16.
//
// Bytes moved: those of the blocks, and of the keys and values up to the position, once.
func DecodeLayers(queue Queue, y, x, norm Mat, layers []DecodeLayer, s DecodeShape, position int, table, rotary uint64) {
	blocks, module, name := max(1, queue.Multiprocessors()), LayersModule, "decode_layers"
	p, ok := shapeLayers(layers, s, blocks)
	need(ok && rowsAt(x, 16) && rowsAt(y, 16) && rowsAt(norm, 16), "DecodeLayers", "shared memory or alignment")
	need(x.Cols == s.Hidden && y.Cols == s.Hidden && norm.Cols == s.Hidden, "DecodeLayers", "shapes differ")
	if s.Variants {
		module, name = VariantsModule, "decode_variants"
	}
	v := newVariantArgs(queue, y, x, norm, layers, s, p, position, table, rotary, 0)
	queue.Launch(Launch{
		Module: module, Kernel: name + forTypes(layers), Grid: [3]int{blocks, 1, 1}, Block: 32 * layersWarps,
		Shared: p.shared, Together: true, Args: unsafe.Pointer(&v),
	})
}

// newVariantArgs returns what all kernels of this file read. Blocks exchange `more` bytes beside what Exchange has.
func newVariantArgs(
	queue Queue, y, x, norm Mat, layers []DecodeLayer, s DecodeShape, p layersPlan, position int, table, rotary uint64,
	more int,
) variantArgs {
	variants := table + layersHead + uint64(layersBytes(len(layers)))
	v := variantArgs{invD: 1 / float32(s.HeadDim), residual: float32(s.Residual), variants: variants}
	a := &v.decodeArgs
	*a = decodeArgs{
		layers: table + layersHead, arrived: table, x: x.Ptr, y: y.Ptr, norm: norm.Ptr,
		table: rotary + uint64(4*position*s.HeadDim), cacheStride: int64(layers[0].Cache.Stride), count: uint32(len(layers)),
		hidden: uint32(s.Hidden), inter: uint32(s.Inter), heads: uint32(s.Heads), kvHeads: uint32(s.KVHeads), d: uint32(s.HeadDim),
		position: uint32(position), slots: uint32(p.slots), pitch: uint32(p.pitch), ringAt: uint32(p.ring), zerosAt: uint32(p.zeros), sumsAt: uint32(p.sums),
		ownAt: uint32(p.own), biasAt: uint32(p.bias), spansAt: uint32(p.spans), tilesAt: uint32(p.tiles), layersAt: uint32(p.layers),
		spans: uint32(p.warpSpans), tiles: uint32(p.blockTiles),
		eps: float32(s.Eps), invHidden: 1 / float32(s.Hidden), scale: s.scoreScale(),
	}
	keys := position + 1
	if s.Variants {
		keys = 0
		for _, l := range layers {
			keys = max(keys, l.Keys)
		}
	}
	a.between = queue.Scratch(2*(2*((2*s.Heads+2*s.KVHeads)*s.HeadDim+2*s.Hidden)+4*s.Inter) + more) // Exchange
	a.splits = uint32(min(ceil(keys, decodeShare), decodeSplits))
	if a.splits > 1 {
		a.part = queue.Scratch(4 * decodePart * int(a.splits) * s.Heads)
	}
	return v
}

// forTypes returns what the name of the kernel ends with that knows all types of the layers' blocks.
func forTypes(layers []DecodeLayer) string {
	for i := range layers {
		for _, w := range layers[i].matrices() {
			if layersTypes[w.Type] > layersTypes[tensor.Q6_K] {
				return ""
			}
		}
	}
	return "_k"
}
