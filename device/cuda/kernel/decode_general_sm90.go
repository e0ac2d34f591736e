package kernel

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"apr/tensor"
)

// GeneralModule has the kernel of DecodeGeneral.
const GeneralModule = "decode_general_sm90"

const (
	generalMatrices = layersMatrices + 2 // ALL_MATRICES of decode_general.cuh
	generalProducts = 6                  // ALL_PRODUCTS
	generalKinds    = 4                  // KINDS
	generalWide     = 512                // WIDE
	generalStatic   = 8 << 10            // bytes of shared memory that the kernel declares, and more
)

// GeneralLayer is a layer as DecodeGeneral reads it. Absent matrices and vectors are zero. Norms of the embedded DecodeLayer are those before
// attention and network; its QNorm and KNorm may have the width of a head or of all heads.
type GeneralLayer struct {
	DecodeLayer
	Heads, KVHeads, HeadDim, Inter int

	Post        [2]Mat    // [1, hidden] float32, norms after attention and network
	OBias       Mat       // [1, hidden] float32
	VNorm, VIsK bool      // v is normalised, v is k before its norm and rotation
	Shared      bool      // Cache has the position's key and value already; QKV is q alone
	Scale, Cap  float64   // of the scores; 0: 1/√HeadDim, no cap
	GELU        bool      // instead of SiLU
	PerLayer    [2]Blocks // [p, hidden], [hidden, p]: gate and projection of per-layer embeddings
	Input       Mat       // [1, p] bfloat16
	InputNorm   Mat       // [1, hidden] float32
	Residual    float64   // factor of what attention and network add to x
	OutScale    float64   // factor of x after the layer
}

// GeneralShape is what all layers have in common.
type GeneralShape struct {
	Hidden int
	Eps    float64
	Shared int // bytes of shared memory that the device lets a thread block ask for
}

// all returns q, k, v, o, gate, up, down, and both matrices of per-layer embeddings.
func (l *GeneralLayer) all() (m [generalMatrices]Blocks) {
	some := l.matrices()
	copy(m[copy(m[:], some[:]):], l.PerLayer[:])
	return m
}

// shapes returns how many rows and columns these matrices have; 0 rows: there is none.
func (l *GeneralLayer) shapes(hidden int) (rows, cols [generalMatrices]int) {
	q, k := l.Heads*l.HeadDim, l.KVHeads*l.HeadDim
	v, p, projected := k, l.PerLayer[0].Rows, 0
	if l.VIsK {
		v = 0
	}
	if l.Shared {
		k, v = 0, 0
	}
	if p > 0 {
		projected = hidden
	}
	return [...]int{q, k, v, hidden, l.Inter, l.Inter, hidden, p, projected}, [...]int{hidden, hidden, hidden, q, hidden, hidden, l.Inter, hidden, p}
}

// rowNorms reports whether q and k are normalised over all heads.
func (l *GeneralLayer) rowNorms() bool { return max(l.QNorm.Cols, l.KNorm.Cols) > l.HeadDim }

// layerKind is struct LayerKind of decode_general.cuh.
type layerKind struct{ heads, kvHeads, d, inter, kRows, vRows, extra, _ uint32 }

func (l *GeneralLayer) kind() layerKind {
	rows, _ := l.shapes(0)
	return layerKind{
		heads: uint32(l.Heads), kvHeads: uint32(l.KVHeads), d: uint32(l.HeadDim), inter: uint32(l.Inter),
		kRows: uint32(rows[1]), vRows: uint32(rows[2]), extra: uint32(l.PerLayer[0].Rows),
	}
}

// products are the shapes of a layer's products.
func (l *GeneralLayer) products(hidden int) []productShape {
	rows, cols := l.shapes(hidden)
	return []productShape{
		{rows[0] + rows[1] + rows[2], 1, hidden}, {hidden, 1, cols[3]}, {l.Inter, 2, hidden}, {hidden, 1, l.Inter}, {rows[7], 1, hidden}, {rows[8], 1, cols[8]},
	}
}

// kindsOf returns the shapes that layers have, and the number of each layer's.
func kindsOf(layers []GeneralLayer) (kinds []layerKind, of []int) {
	seen := map[layerKind]int{}
	for i := range layers {
		k := layers[i].kind()
		if _, ok := seen[k]; !ok {
			seen[k] = len(kinds)
			kinds = append(kinds, k)
		}
		of = append(of, seen[k])
	}
	return kinds, of
}

// layerMatrices is struct LayerMatrices of decode_general.cuh.
type layerMatrices struct {
	w     [generalMatrices]uint64
	kinds [generalMatrices]uint16
	of    uint16
	_     [2]uint16
}

// The flags of generalLayer.
const (
	generalRowNorms = 1 << iota
	generalVNorm
	generalShared
	generalVIsK
	generalGELU
)

// generalLayer is struct GeneralLayer of decode_general.cuh.
type generalLayer struct {
	pre, post                      [2]uint64
	bias, oBias                    uint64
	qNorm, kNorm                   uint64
	table, cache                   uint64
	input, inputNorm               uint64
	stride, row, first, keys, half uint32
	splits, flags                  uint32
	qScale, scale, capIn, capOut   float32
	residual, outScale             float32
	_                              [3]uint32
}

// generalArgs is struct GeneralArgs of decode_general.cuh.
type generalArgs struct {
	matrices, layers, kinds, arrived uint64
	x, y, norm, between, part        uint64
	count, kindCount, hidden         uint32
	qkv, att, extra, inter           uint32
	slots, pitch, spans, tiles       uint32
	ringAt, zerosAt, sumsAt, rowAt   uint32
	biasAt, spansAt, tilesAt         uint32
	layersAt                         uint32
	eps                              float32
	_                                [2]uint32
}

// The sizes of what C reads.
var (
	_ [96]byte  = [unsafe.Sizeof(layerMatrices{})]byte{}
	_ [32]byte  = [unsafe.Sizeof(layerKind{})]byte{}
	_ [160]byte = [unsafe.Sizeof(generalLayer{})]byte{}
	_ [160]byte = [unsafe.Sizeof(generalArgs{})]byte{}
)

// generalPlaces says where the parts of a table of n layers begin: the count of blocks, the kinds, the matrices, the layers.
func generalPlaces(n int) (kinds, matrices, layers, end int) {
	kinds = layersHead
	matrices = kinds + generalKinds*int(unsafe.Sizeof(layerKind{}))
	layers = matrices + n*int(unsafe.Sizeof(layerMatrices{}))
	return kinds, matrices, layers, layers + n*int(unsafe.Sizeof(generalLayer{}))
}

// GeneralTableBytes returns the size of the table of n layers.
func GeneralTableBytes(n int) int {
	_, _, _, end := generalPlaces(n)
	return end
}

// GeneralTable writes what DecodeGeneral reads of layers to the first GeneralTableBytes of dst, host memory at a multiple of 8 bytes. Copy it
// to the device before every launch.
func GeneralTable(dst []byte, layers []GeneralLayer) {
	kindsAt, matricesAt, layersAt, _ := generalPlaces(len(layers))
	clear(dst[:matricesAt])
	kinds, of := kindsOf(layers)
	copy(unsafe.Slice((*layerKind)(unsafe.Pointer(unsafe.SliceData(dst[kindsAt:]))), len(kinds)), kinds)
	matrices := unsafe.Slice((*layerMatrices)(unsafe.Pointer(unsafe.SliceData(dst[matricesAt:]))), len(layers))
	records := unsafe.Slice((*generalLayer)(unsafe.Pointer(unsafe.SliceData(dst[layersAt:]))), len(layers))
	for i := range layers {
		matrices[i] = layerMatrices{of: uint16(of[i])}
		for j, w := range layers[i].all() {
			if w.Rows > 0 {
				matrices[i].w[j], matrices[i].kinds[j] = w.Ptr, layersTypes[w.Type]<<12|uint16(w.Type.RowBytes(256))
			}
		}
		records[i] = layers[i].record()
	}
}

// record returns l as the kernel reads it.
func (l *GeneralLayer) record() generalLayer {
	scale := l.Scale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(l.HeadDim))
	}
	r := generalLayer{
		pre: [2]uint64{l.Norms[0].Ptr, l.Norms[1].Ptr}, post: [2]uint64{l.Post[0].Ptr, l.Post[1].Ptr}, bias: l.Bias.Ptr, oBias: l.OBias.Ptr,
		qNorm: l.QNorm.Ptr, kNorm: l.KNorm.Ptr, table: l.Table, cache: l.Cache.Ptr, input: l.Input.Ptr, inputNorm: l.InputNorm.Ptr,
		stride: uint32(l.Cache.Stride), row: uint32(l.Row), first: uint32(l.First), keys: uint32(l.Keys), half: uint32(l.Pairs), splits: uint32(l.splits()),
		qScale: float32(l.QScale), scale: float32(math.Log2E * scale), residual: float32(l.Residual), outScale: float32(l.OutScale),
	}
	if l.Cap > 0 {
		r.capIn, r.capOut = float32(scale/l.Cap), float32(l.Cap/scale)
	}
	for flag, set := range map[uint32]bool{
		generalRowNorms: l.rowNorms(), generalVNorm: l.VNorm, generalShared: l.Shared, generalVIsK: l.VIsK, generalGELU: l.GELU,
	} {
		if set {
			r.flags |= flag
		}
	}
	return r
}

// splits returns how many shares the keys of a head are cut into.
func (l *GeneralLayer) splits() int { return min(ceil(l.Keys, decodeShare), decodeSplits) }

// partBytes returns the memory of these shares' sums.
func (l *GeneralLayer) partBytes() int {
	if l.splits() == 1 {
		return 0
	}
	return 4 * decodePart * l.splits() * l.Heads * ceil(l.HeadDim, 256)
}

// GeneralServes returns nil if DecodeGeneral supports these layers, whose matrices are in tiles, on a device with
// `blocks` multiprocessors, else the reason.
func GeneralServes(layers []GeneralLayer, s GeneralShape, blocks int) error {
	if len(layers) == 0 {
		return errors.New("there are no layers")
	}
	if kinds, _ := kindsOf(layers); len(kinds) > generalKinds {
		return fmt.Errorf("layers of %d shapes: %d at most are wanted", len(kinds), generalKinds)
	}
	for i := range layers {
		if err := layers[i].serves(s.Hidden); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	if _, ok := shapeGeneral(layers, s, blocks); !ok {
		return fmt.Errorf("%d layers of %d columns need more shared memory than the %d bytes of a block", len(layers), s.Hidden, s.Shared)
	}
	return nil
}

// serves returns nil if the kernel supports the layer in a model of `hidden` columns, else the reason.
func (l *GeneralLayer) serves(hidden int) error {
	rows, cols := l.shapes(hidden)
	most := 32 * layersWarps * layersPacks * 8
	switch {
	case hidden%32 != 0 || cols[3]%32 != 0 || l.Inter%32 != 0 || cols[8]%32 != 0 || hidden > most:
		return fmt.Errorf("rows of %d, %d, %d and %d columns: multiples of 32 are wanted, and %d at most of the first", hidden, cols[3], l.Inter, cols[8], most)
	case l.HeadDim%16 != 0 || l.HeadDim > 256 && l.HeadDim != generalWide || l.KVHeads == 0 || l.Heads%l.KVHeads != 0:
		return fmt.Errorf("%d heads of %d columns with %d for keys: multiples of 16 up to 256, or %d, and of heads for keys, are wanted",
			l.Heads, l.HeadDim, l.KVHeads, generalWide)
	case l.rowNorms() && (!l.QNorm.IsZero() && l.QNorm.Cols != cols[3] || !l.KNorm.IsZero() && l.KNorm.Cols != l.KVHeads*l.HeadDim):
		return errors.New("one of q and k is normalised over all heads, the other over each")
	case l.Cap > 0 && !(l.Scale >= 0):
		return errors.New("a soft-cap of scores whose factor is negative")
	}
	for j, w := range l.all() {
		if w.Rows != rows[j] || w.Rows > 0 && (w.Cols != cols[j] || !TileServes(w)) {
			return fmt.Errorf("matrix %d, %d×%d of %v: it has no tiles of %d rows", j, w.Rows, w.Cols, w.Type, TileRows)
		}
	}
	for _, v := range [...]Mat{l.Norms[0], l.Norms[1], l.Post[0], l.Post[1], l.InputNorm, l.QNorm, l.KNorm, l.Cache} {
		if !rowsAt(v, 16) {
			return errors.New("norms or cache stand as the kernel cannot read them")
		}
	}
	if l.Cache.Type != tensor.BF16 || l.Input.Type != tensor.BF16 && !l.Input.IsZero() || l.Cache.Stride > math.MaxInt32 {
		return errors.New("cache or per-layer embeddings stand as the kernel cannot read them")
	}
	return nil
}

// shapeGeneral is shapeLayers for layers of several kinds: all of x stands where x of the block's rows does there.
func shapeGeneral(layers []GeneralLayer, s GeneralShape, blocks int) (p layersPlan, ok bool) {
	widest, sums, rows := 0, layersWarps, 0
	for i := range layers {
		l := &layers[i]
		for _, w := range l.all() {
			if w.Rows > 0 {
				p.hold(w)
			}
		}
		products := l.products(s.Hidden)
		p.warpSpans = max(p.warpSpans, p.divide(blocks, products))
		for _, m := range products {
			widest = max(widest, m.cols)
		}
		rows = max(rows, products[0].rows, s.Hidden)
		if l.HeadDim > 256 {
			sums = 2 * layersWarps
		}
	}
	kinds, _ := kindsOf(layers)
	n := len(kinds)
	return p.place(max(ceil(widest, 256)*layersX, 4*decodePart*sums), s.Shared-generalStatic, [...]int{
		4 * TileRows * (layersWarps + p.blockTiles), 2 * s.Hidden, 4 * TileRows * ceil(ceil(rows, TileRows), blocks),
		8 * p.warpSpans * layersWarps * n, 2 * generalProducts * p.blockTiles * n, len(layers) * int(unsafe.Sizeof(layerMatrices{})),
	})
}

// DecodeGeneral is DecodeLayers for layers of several shapes, each of which computes what it has of
//
//	x += Residual·norm(o(attention(rope(norm(qkv(norm(x)))) and the cache)) + OBias, Post[0])
//	x += Residual·norm(down(act(g)·u), Post[1]), g and u of gateUp(norm(x))
//	x += norm(PerLayer[1]·(gelu(PerLayer[0]·x)·Input), InputNorm)
//	x *= OutScale
//
// table is where GeneralTable was put. GeneralServes says what layers may be. Norms and sums with x are of float32; x and what passes from one
// product to another is rounded to bfloat16.
//
// Bytes moved: those of the blocks, and of the keys and values that layers see, once.
func DecodeGeneral(queue Queue, y, x, norm Mat, layers []GeneralLayer, s GeneralShape, table uint64) {
	blocks, name := max(1, queue.Multiprocessors()), "decode_general_k"
	p, ok := shapeGeneral(layers, s, blocks)
	need(ok && rowsAt(x, 16) && rowsAt(y, 16) && rowsAt(norm, 16), "DecodeGeneral", "shared memory or alignment")
	need(x.Cols == s.Hidden && y.Cols == s.Hidden && norm.Cols == s.Hidden, "DecodeGeneral", "shapes differ")
	kinds, _ := kindsOf(layers)
	kindsAt, matricesAt, layersAt, _ := generalPlaces(len(layers))
	a := &generalArgs{
		matrices: table + uint64(matricesAt), layers: table + uint64(layersAt), kinds: table + uint64(kindsAt), arrived: table, x: x.Ptr, y: y.Ptr, norm: norm.Ptr,
		count: uint32(len(layers)), kindCount: uint32(len(kinds)), hidden: uint32(s.Hidden), slots: uint32(p.slots), pitch: uint32(p.pitch),
		spans: uint32(p.warpSpans), tiles: uint32(p.blockTiles), ringAt: uint32(p.ring), zerosAt: uint32(p.zeros), sumsAt: uint32(p.sums), rowAt: uint32(p.own),
		biasAt: uint32(p.bias), spansAt: uint32(p.spans), tilesAt: uint32(p.tiles), layersAt: uint32(p.layers), eps: float32(s.Eps),
	}
	part := 0
	for i := range layers {
		k := layers[i].kind()
		q := k.heads * k.d
		a.qkv, a.att, a.extra, a.inter = max(a.qkv, q+k.kRows+k.vRows), max(a.att, q), max(a.extra, k.extra), max(a.inter, k.inter)
		part = max(part, layers[i].partBytes())
		for _, w := range layers[i].all() {
			if w.Rows > 0 && layersTypes[w.Type] > layersTypes[tensor.Q6_K] {
				name = "decode_general" // for all types
			}
		}
	}
	a.between = queue.Scratch(2 * int(2*(a.qkv+a.att+3*a.hidden+a.extra)+4*a.inter)) // GeneralExchange
	if part > 0 {
		a.part = queue.Scratch(part)
	}
	queue.Launch(Launch{
		Module: GeneralModule, Kernel: name, Grid: [3]int{blocks, 1, 1}, Block: 32 * layersWarps, Shared: p.shared, Together: true,
		Args: unsafe.Pointer(a),
	})
}
