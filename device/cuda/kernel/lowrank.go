package kernel

import (
	"slices"
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// LowRankModule has the kernels of products with the factors of adapters, in bfloat16.
const LowRankModule = "lowrank"

// ThinPart is an adapter of columns [Lo,Hi) of a wide matrix and [From,To) of a thin one.
type ThinPart struct {
	W                Mat // B [Hi−Lo, To−From] or, of products with A, A [To−From, Hi−Lo]
	D                Mat // its gradient, float32; only ThinGrad reads it
	Lo, Hi, From, To int
	Scale            float64
	Add              bool // D is added to, else overwritten
}

// thinMost is the highest rank of a part that kernels keep in registers, and that of one with a gated unit.
const thinMost, thinMostGated = 128, 64

// thinParts are those of one launch.
const thinParts = 4

// thinPart is struct ThinPart of lowrank.cu.
type thinPart struct {
	w, d                 uint64
	wStride, dStride     int64
	lo, cols, from, rank uint32
	first, add           uint32
	scale                float32
	chunks               uint32
}

// thinArgs is struct ThinArgs of lowrank.cu.
type thinArgs struct {
	wide, thin, gated, sums             uint64
	wideStride, thinStride, gatedStride int64
	part                                [thinParts]thinPart
	rows, parts, units                  uint32
	each, splits, add                   uint32
}

// ThinRank reports whether the kernels know a rank.
func ThinRank(r int) bool { return r%8 == 0 && r <= thinMost }

// ThinServes reports whether the kernels compute with these: bfloat16, columns and rows at multiples of 16 bytes, ranks of up to 128.
func ThinServes(wide, thin Mat, parts []ThinPart) bool {
	fits := func(m Mat) bool { return m.Type == tensor.BF16 && rowsAt(m, 16) }
	if !fits(wide) || !fits(thin) || wide.Rows > 1<<20 {
		return false
	}
	units := 0
	for _, p := range parts {
		if !fits(p.W) || p.Lo%8 != 0 || p.Hi%8 != 0 || p.From%8 != 0 || !ThinRank(p.To-p.From) {
			return false
		}
		units += ceil(p.Hi-p.Lo, 64) * ceil(p.To-p.From, 32)
	}
	return units*thinSums <= MaxScratch/2
}

// newThin fills the arguments, and counts the units of each part.
func newThin(wide, thin Mat, parts []ThinPart, units func(p ThinPart) int) *thinArgs {
	need(ThinServes(wide, thin, parts), "LowRank", "operands that these kernels do not serve")
	a := &thinArgs{wide: wide.Ptr, thin: thin.Ptr, wideStride: int64(wide.Stride), thinStride: int64(thin.Stride), rows: uint32(wide.Rows), parts: uint32(len(parts))}
	for i, p := range parts {
		a.part[i] = thinPart{
			w: p.W.Ptr, d: p.D.Ptr, wStride: int64(p.W.Stride), dStride: int64(p.D.Stride), lo: uint32(p.Lo), cols: uint32(p.Hi - p.Lo),
			from: uint32(p.From), rank: uint32(p.To - p.From), first: a.units, add: uint32(flag(p.Add)), scale: float32(p.Scale), chunks: uint32(ceil(p.To-p.From, 32)),
		}
		a.units += uint32(units(p))
	}
	return a
}

// thinDepth is the name of the kernel that keeps the ranks of all parts in registers.
func thinDepth(parts []ThinPart) int {
	depth := 1
	for _, p := range parts {
		depth = max(depth, ceil(p.To-p.From, 32))
	}
	return depth
}

// thinSuffix names the kernels of A or of B.
func thinSuffix(a bool) string { return [...]string{"b", "a"}[flag(a)] }

// streamed launches a kernel whose warps, 4 to a block, keep a unit's factor and pass over rows: some 32 for each multiprocessor.
func (a *thinArgs) streamed(q Queue, name string) {
	if a.rows == 0 || a.units == 0 {
		return
	}
	high := max(1, 32*q.Multiprocessors()/int(a.units))
	a.each = uint32(min(512, max(32, 16*ceil(int(a.rows), 16*high))))
	q.Launch(Launch{
		Module: LowRankModule, Kernel: name, Grid: [3]int{ceil(int(a.units), 4), ceil(int(a.rows), int(a.each)), 1}, Block: 128, Args: unsafe.Pointer(a),
	})
}

// ThinUp: of each part y[:, Lo:Hi] += Scale·u[:, From:To]·Bᵀ, or with products of A instead u·A; without add the sum is written. Where
// the product is zero y keeps its bits.
//
// Bytes moved per element of y: 4 and, of u and factors, those of the second cache.
func ThinUp(q Queue, y, u Mat, parts []ThinPart, ofA, add bool) {
	for some := range slices.Chunk(parts, thinParts) {
		a := newThin(y, u, some, func(p ThinPart) int { return ceil(p.Hi-p.Lo, 64) })
		a.add = uint32(flag(add))
		a.streamed(q, "thin_up_"+thinSuffix(ofA)+"_"+string(rune('0'+thinDepth(some))))
	}
}

// ThinGLUServes reports whether ThinGLU computes with these: parts are of gate and up, or of one of them.
func ThinGLUServes(m, y, u Mat, parts []ThinPart, act device.Activation) bool {
	f := y.Cols / 2
	for i, p := range parts {
		if p.To-p.From > thinMostGated || p.Hi-p.Lo != f || p.Lo%f != 0 || i > 0 && p.Lo == parts[0].Lo {
			return false
		}
	}
	return (act == device.SiLU || act == device.GELUTanh) && len(parts) <= 2 && f%8 == 0 && m.Type == tensor.BF16 && rowsAt(m, 16) && ThinServes(y, u, parts)
}

// ThinGLU is ThinUp with B, and m = act(g)·u of y = g, u as stored.
//
// Bytes moved per element of m: 10.
func ThinGLU(q Queue, m, y, u Mat, parts []ThinPart, act device.Activation) {
	need(ThinGLUServes(m, y, u, parts, act), "LowRank", "a gated unit that these kernels do not serve")
	f := y.Cols / 2
	both := []ThinPart{{Hi: f}, {Lo: f, Hi: 2 * f}} // what is not there has no rank
	for i := range both {
		both[i].W = Mat{Ptr: u.Ptr, Type: tensor.BF16}
	}
	for _, p := range parts {
		both[p.Lo/f] = p
	}
	a := newThin(y, u, both, func(ThinPart) int { return 0 })
	a.units, a.gated, a.gatedStride = uint32(ceil(f, 32)), m.Ptr, int64(m.Stride)
	a.streamed(q, "thin_"+gluModules[act]+"_"+string(rune('0'+thinDepth(both))))
}

// ThinDown: of each part u[:, From:To] = Scale·x[:, Lo:Hi]·Aᵀ, or with products of B instead x·B. Bytes moved per element of x: 2 for
// every 32 columns of u, but for the first from the second cache.
func ThinDown(q Queue, u, x Mat, parts []ThinPart, ofA bool) {
	for some := range slices.Chunk(parts, thinParts) {
		a := newThin(x, u, some, func(p ThinPart) int { return ceil(p.To-p.From, 32) })
		if a.rows == 0 || a.units == 0 {
			continue
		}
		q.Launch(Launch{
			Module: LowRankModule, Kernel: "thin_down_" + thinSuffix(ofA), Grid: [3]int{int(a.units), ceil(x.Rows, 64), 1}, Block: 256, Args: unsafe.Pointer(a),
		})
	}
}

// thinSums are the bytes of a unit's sums.
const thinSums = 4 * 64 * 32

// ThinGrad: of each part D += Scale·x[:, Lo:Hi]ᵀ·u[:, From:To], the gradient of B, or of A its transpose. Rows are shared among blocks,
// whose sums are added in order: the same bits every time.
//
// Bytes moved per element of x: 2, and for every 512 to 4,096 rows those of D twice.
func ThinGrad(q Queue, x, u Mat, parts []ThinPart, ofA bool) {
	for some := range slices.Chunk(parts, thinParts) {
		thinGrad(q, newThin(x, u, some, func(p ThinPart) int { return ceil(p.Hi-p.Lo, 64) * ceil(p.To-p.From, 32) }), x.Rows, ofA)
	}
}

func thinGrad(q Queue, a *thinArgs, rows int, ofA bool) {
	if a.units == 0 {
		return
	}
	units := int(a.units)
	splits := max(1, min(ceil(rows, 512), ceil(8*q.Multiprocessors(), units), MaxScratch/2/(thinSums*units)))
	a.each = uint32(max(128, 128*ceil(rows, 128*splits)))
	a.splits = uint32(ceil(rows, int(a.each)))
	if a.splits > 0 {
		a.sums = q.Scratch(thinSums * units * int(a.splits))
		q.Launch(Launch{Module: LowRankModule, Kernel: "thin_grad", Grid: [3]int{units, int(a.splits), 1}, Block: 256, Args: unsafe.Pointer(a)})
	}
	q.Launch(Launch{Module: LowRankModule, Kernel: "thin_join_" + thinSuffix(ofA), Grid: [3]int{units, 1, 1}, Block: 256, Args: unsafe.Pointer(a)})
}
