package kernel

import (
	"unsafe"

	"apr/tensor"
)

// ExpertsModule has the kernels of this file.
const ExpertsModule = "experts"

// Routing is where a device.Routing stands: int32 vectors without gaps.
type Routing struct {
	Experts, Active             int
	Renorm                      bool
	Chosen, Slots, Rows, Starts Mat
}

const (
	routeExperts = 4096     // ROUTE_EXPERTS of experts.cu
	routeFew     = 16       // tokens that one thread block routes
	routeOne     = 256      // experts of one token that a warp routes
	routePiece   = 1024     // choices that a thread block sorts alone, and at least those of a piece
	routePieces  = 1024     // at most
	mostChoices  = 1 << 30  // of all tokens: kernels count them in 32 bits
	warpsOfBlock = 256 / 32 // that have a token, an expert or a slot each
)

// routeArgs is struct RouteArgs of experts.cu.
type routeArgs struct {
	w, z, scale                     uint64
	chosen, slots, rows, starts     uint64
	counts                          uint64
	wStride, zStride                int64
	tokens, experts, active, renorm uint32
	pieces, piece                   uint32
}

// routeBackArgs is struct RouteBackArgs of experts.cu.
type routeBackArgs struct {
	dz, dscale, dw, z, scale, plain uint64
	chosen, slots, starts           uint64
	dzStride, dwStride, zStride     int64
	tokens, experts, active, renorm uint32
}

// combineArgs is struct CombineArgs of experts.cu.
type combineArgs struct {
	y, x, w, slots, record     uint64
	yStride, xStride, wStride  int64
	active, limit, packs, item uint32
	add, code                  uint32
}

// combineBackArgs is struct CombineBackArgs of experts.cu.
type combineBackArgs struct {
	dx, dw, dy, x, w, slots, record                uint64
	dxStride, dwStride, dyStride, xStride, wStride int64
	active, limit, packs, code                     uint32
}

// expertBiasArgs is struct ExpertBiasArgs of experts.cu.
type expertBiasArgs struct {
	dbias, dy, starts     uint64
	dbiasStride, dyStride int64
	first, end            int32
	cols                  uint32
}

// balanceArgs is struct BalanceArgs of experts.cu.
type balanceArgs struct {
	dz, z, c          uint64
	dzStride, zStride int64
	f                 float64
	tokens, experts   uint32
}

// countArgs is struct CountArgs of experts.cu.
type countArgs struct {
	c, starts uint64
	experts   uint32
}

// Route chooses the experts of tokens by their logits z [n, Experts], weighs them and sorts their slots: see device.Stream. Slots are
// sorted by counting: each count and each place is that of all choices before, so that bits do not depend on the order of blocks.
//
// Bytes moved: those of z for each choice, and of the choices twice for each expert, from the caches.
func Route(q Queue, w, z, scale Mat, r Routing) {
	choices := z.Rows * r.Active
	a := newRoute(w, z, scale, r)
	if routesOne(z.Rows, r) {
		q.Launch(Launch{Module: ExpertsModule, Kernel: "route_one", Grid: [3]int{1, 1, 1}, Block: 32, Args: unsafe.Pointer(a)})
		return
	}
	if z.Rows > 0 && z.Rows <= routeFew && choices <= routePiece {
		q.Launch(Launch{Module: ExpertsModule, Kernel: "route_few", Grid: [3]int{1, 1, 1}, Block: 32 * routeFew, Args: unsafe.Pointer(a)})
		return
	}
	if z.Rows > 0 {
		launch(q, ExpertsModule, "route_choose", z.Rows, warpsOfBlock, 256, unsafe.Pointer(a))
	}
	if choices <= routePiece {
		q.Launch(Launch{Module: ExpertsModule, Kernel: "route_sort", Grid: [3]int{1, 1, 1}, Block: 512, Args: unsafe.Pointer(a)})
		return
	}
	piece := max(routePiece, ceil(ceil(choices, routePieces), 32)*32)
	a.piece, a.pieces = uint32(piece), uint32(ceil(choices, piece))
	a.counts = q.Scratch(4 * r.Experts * int(a.pieces))
	grid := [3]int{ceil(r.Experts, warpsOfBlock), int(a.pieces), 1}
	q.Launch(Launch{Module: ExpertsModule, Kernel: "route_count", Grid: grid, Block: 256, Args: unsafe.Pointer(a)})
	q.Launch(Launch{Module: ExpertsModule, Kernel: "route_add_up", Grid: [3]int{1, 1, 1}, Block: 512, Args: unsafe.Pointer(a)})
	q.Launch(Launch{Module: ExpertsModule, Kernel: "route_place", Grid: grid, Block: 256, Args: unsafe.Pointer(a)})
}

func newRoute(w, z, scale Mat, r Routing) *routeArgs {
	choices := z.Rows * r.Active
	need(z.Cols == r.Experts && r.Experts <= routeExperts && choices < mostChoices, "Route", "too many experts or choices")
	return &routeArgs{
		w: w.Ptr, z: z.Ptr, scale: scale.Ptr, chosen: r.Chosen.Ptr, slots: r.Slots.Ptr, rows: r.Rows.Ptr,
		starts: r.Starts.Ptr, wStride: int64(w.Stride), zStride: int64(z.Stride), tokens: uint32(z.Rows),
		experts: uint32(r.Experts), active: uint32(r.Active),
		renorm: uint32(flag(r.Renorm)), pieces: 1, piece: uint32(max(choices, 1)),
	}
}

// routesOne reports whether a warp routes the tokens, which are one.
func routesOne(tokens int, r Routing) bool {
	return tokens == 1 && r.Experts <= routeOne && r.Active <= 32
}

// RouteBackward writes dz, float32 or bfloat16, and adds to dscale, if there is a scale, in the order of slots: see device.Stream.
func RouteBackward(q Queue, dz, dscale, dw, z, scale Mat, r Routing) {
	if z.Rows == 0 {
		return
	}
	a := &routeBackArgs{
		dz: dz.Ptr, dscale: dscale.Ptr, dw: dw.Ptr, z: z.Ptr, scale: scale.Ptr, chosen: r.Chosen.Ptr, slots: r.Slots.Ptr, starts: r.Starts.Ptr,
		dzStride: int64(dz.Stride), dwStride: int64(dw.Stride), zStride: int64(z.Stride), tokens: uint32(z.Rows), experts: uint32(r.Experts),
		active: uint32(r.Active), renorm: uint32(flag(r.Renorm)),
	}
	if !scale.IsZero() {
		a.plain = q.Scratch(4 * z.Rows * r.Active)
	}
	launch(q, ExpertsModule, "route_back_"+typeName(dz.Type), z.Rows, warpsOfBlock, 256, unsafe.Pointer(a))
	if !scale.IsZero() {
		launch(q, ExpertsModule, "route_scale", r.Experts, warpsOfBlock, 256, unsafe.Pointer(a))
	}
}

// Combine sums the slots of each token, y[t] (+)= Σ_s w[t,s]·x[Slots[t·Active+s]], in float32 and in the order of s, and rounds once. The
// zero w is ones. A slot outside x is noted as FaultRow. Bytes moved: those of x and y.
func Combine(q Queue, y, x, w Mat, r Routing, add bool) {
	pack := packWidth(y.Cols, y, x)
	items := y.Rows * (y.Cols / pack)
	if items == 0 {
		return
	}
	need(items < mostChoices, "Combine", "too many elements")
	a := &combineArgs{
		y: y.Ptr, x: x.Ptr, w: w.Ptr, slots: r.Slots.Ptr, record: q.Record(), yStride: int64(y.Stride), xStride: int64(x.Stride),
		wStride: int64(w.Stride), active: uint32(r.Active), limit: uint32(x.Rows), packs: uint32(y.Cols / pack), item: uint32(items),
		add: uint32(flag(add)), code: FaultRow,
	}
	launch(q, ExpertsModule, packed("combine", y.Type, pack), items, 256, 256, unsafe.Pointer(a))
}

// CombineBackward writes dx[j] = w[t,s]·dy[t] and dw[t,s] = dy[t]·x[j], j = Slots[t·Active+s]; dx may be x. Bytes moved: those of x and dx, and
// dy for each of a token's slots, mostly from the caches.
func CombineBackward(q Queue, dx, dw, dy, x, w Mat, r Routing) {
	if x.Rows == 0 {
		return
	}
	pack := packWidth(dy.Cols, dy, x, dx)
	a := &combineBackArgs{
		dx: dx.Ptr, dw: dw.Ptr, dy: dy.Ptr, x: x.Ptr, w: w.Ptr, slots: r.Slots.Ptr, record: q.Record(),
		dxStride: int64(dx.Stride), dwStride: int64(dw.Stride), dyStride: int64(dy.Stride), xStride: int64(x.Stride), wStride: int64(w.Stride),
		active: uint32(r.Active), limit: uint32(x.Rows), packs: uint32(dy.Cols / pack), code: FaultRow,
	}
	launch(q, ExpertsModule, packed("combine_back", dy.Type, pack), x.Rows, warpsOfBlock, 256, unsafe.Pointer(a))
}

// packed names a kernel by the type and the width of its packs.
func packed(name string, d tensor.DType, pack int) string {
	if pack == 1 {
		return name + "_" + typeName(d) + "_1"
	}
	return name + "_" + typeName(d) + "_8"
}

// ExpertsBias adds columns of the slots of each expert: dbias[e] += Σ_j dy[j], dbias [Experts, out] float32. dy are the slots from the
// first-th on. Sums are float32, of an order that starts alone decide. Bytes moved: those of dy.
func ExpertsBias(q Queue, dbias, dy Mat, r Routing, first int) {
	if dy.Rows == 0 || dy.Cols == 0 {
		return
	}
	q.Launch(Launch{
		Module: ExpertsModule, Kernel: "experts_bias_" + typeName(dy.Type), Grid: [3]int{ceil(dy.Cols, 32), r.Experts, 1}, Block: 256,
		Args: unsafe.Pointer(&expertBiasArgs{
			dbias.Ptr, dy.Ptr, r.Starts.Ptr, int64(dbias.Stride), int64(dy.Stride), int32(first), int32(first + dy.Rows), uint32(dy.Cols),
		}),
	})
}

// CountSlots adds to c [1, Experts] float32 the slots of each expert.
func CountSlots(q Queue, c Mat, r Routing) {
	launch(q, ExpertsModule, "count_slots", r.Experts, 256, 256, unsafe.Pointer(&countArgs{c.Ptr, r.Starts.Ptr, uint32(r.Experts)}))
}

// BalanceBackward adds to dz, float32 or bfloat16, the gradient that spreads tokens over experts: see device.Stream.
func BalanceBackward(q Queue, dz, z, c Mat, f float64) {
	if z.Rows == 0 {
		return
	}
	launch(q, ExpertsModule, "balance_"+typeName(dz.Type), z.Rows, warpsOfBlock, 256, unsafe.Pointer(&balanceArgs{
		dz.Ptr, z.Ptr, c.Ptr, int64(dz.Stride), int64(z.Stride), f, uint32(z.Rows), uint32(z.Cols),
	}))
}
