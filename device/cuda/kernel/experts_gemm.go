package kernel

import (
	"unsafe"

	"apr/tensor"
)

// The modules of grouped products, by the type of activations.
var (
	expertsDense  = map[tensor.DType]string{tensor.BF16: "experts_gemm", tensor.F32: "experts_gemm_f32"}
	expertsBlocks = map[tensor.DType]string{tensor.BF16: "experts_blocks", tensor.F32: "experts_blocks_f32"}
)

// expertsRows has the products of few slots of bfloat16.
const expertsRows = "experts_rows"

// expertTypes are the numbers of types in with_blocks of experts_blocks.cuh.
var expertTypes = map[tensor.DType]uint32{
	tensor.Q4_K: 0, tensor.Q5_K: 1, tensor.Q6_K: 2, tensor.Q8_0: 3, tensor.Q4_0: 4, tensor.Q5_0: 5, tensor.IQ4_NL: 6, tensor.IQ4_XS: 7,
	tensor.MXFP4: 8,
}

// plainExperts is the number of matrices that are not in blocks, in products of few slots.
const plainExperts = 9

// ExpertRowTokens is up to how many tokens of bfloat16 a grouped product reads the matrices of their experts once for each slot: it is bound by
// their bytes then.
const ExpertRowTokens = 8

// A tile of slots has expertsHigh rows, or expertsLow where an expert has fewer than expertsFew slots on average; all are 64 wide.
const (
	expertsHigh, expertsLow, expertsFew = 128, 32, 48
	expertsWide                         = 64
	expertsShared                       = 36 << 10 // of 128 rows: 3 stages of 12 KiB
	expertsSharedLow                    = 24 << 10 // of 32 rows: 4 stages of 6 KiB
)

// expertArgs is struct ExpertArgs of experts.cuh.
type expertArgs struct {
	gemm                gemmArgs
	starts              uint64
	step, biasStride    int64
	experts, first, end int32
	dtype               uint32
}

// expertRowsArgs is struct ExpertRowsArgs of experts_rows.cuh.
type expertRowsArgs struct {
	gemv             gemvArgs
	starts           uint64
	step, biasStride int64
	experts, dtype   uint32
}

// Experts are the matrices [out, in] of all experts below each other: in blocks or, where there are none, plain, of the type of activations.
type Experts struct {
	Plain  Mat
	Blocks Blocks
}

// ExpertsServe reports whether grouped products take matrices in blocks of this type as they are.
func ExpertsServe(d tensor.DType) bool {
	_, ok := expertTypes[d]
	return ok
}

// ExpertModules names the modules of ExpertsNT and ExpertsNN with matrices of a type, by its name, and activations of act. few: for few
// tokens, whose rows may turn out not to be aligned.
func ExpertModules(w string, act tensor.DType, few bool) []string {
	all := []string{expertsDense[act]}
	few = few && act == tensor.BF16
	for d := range expertTypes {
		if d.String() != w {
			continue
		}
		all[0] = expertsBlocks[act]
		if _, ok := pairTypes[d]; ok && few {
			all = append(all, pairsModule)
		}
	}
	if few {
		all = append(all, expertsRows)
	}
	return all
}

// ExpertGradModule names the module of ExpertsWeightGrad.
func ExpertGradModule(act tensor.DType) string { return expertsDense[act] }

// ExpertsNT computes c[j] = W_e·a[j] (+ bias[e]) for the slots j of each expert e: a [slots, in] bfloat16 or float32, c [slots, out] of
// either, bias [Experts, out] float32 or zero. a and c are the slots from the first-th on. The sums of a slot are of one order, whatever
// the other slots; those of a generation's few tokens, in bfloat16, are of another, and x is rounded as in
// Gemv where matrices are of pairTypes.
//
// Grids are of the worst split of slots. Bytes moved: the matrices of the experts that have slots, for each 128 of their slots.
func ExpertsNT(q Queue, c, a Mat, w Experts, bias Mat, r Routing, first int) {
	if first == 0 && a.Type == tensor.BF16 && a.Rows <= ExpertRowTokens*r.Active && expertsRowsServe(a, w) {
		expertRows(q, c, a, w, bias, r)
		return
	}
	w.product(q, GemmNT, c, a, bias, false, r, first)
}

// ExpertsNN computes c[j] (+)= W_eᵀ·a[j] for the slots j of each expert e: a [slots, out], c [slots, in], as in ExpertsNT.
func ExpertsNN(q Queue, c, a Mat, w Experts, add bool, r Routing, first int) {
	w.product(q, GemmNN, c, a, Mat{}, add, r, first)
}

// shape returns the rows and columns of one expert's matrix.
func (w Experts) shape(experts int) (out, in int) {
	if w.Plain.IsZero() {
		return w.Blocks.Rows / experts, w.Blocks.Cols
	}
	return w.Plain.Rows / experts, w.Plain.Cols
}

// product launches a product that reads matrices.
func (w Experts) product(q Queue, form GemmForm, c, a, bias Mat, add bool, r Routing, first int) {
	out, in := w.shape(r.Experts)
	n, k := out, in
	if form == GemmNN {
		n, k = in, out
	}
	need(a.Cols == k && c.Cols == n && a.Rows == c.Rows, "Experts", "shapes differ")
	if c.Rows == 0 || n == 0 {
		return
	}
	x := &expertArgs{
		gemm: gemmArgs{
			a: a.Ptr, c: c.Ptr, bias: bias.Ptr, lda: int64(a.Stride), ldc: int64(c.Stride), m: int32(c.Rows), n: int32(n), k: int32(k),
			flags: gemmFlags(c, a, w.Plain, add),
		},
		starts: r.Starts.Ptr, biasStride: int64(bias.Stride), experts: int32(r.Experts), first: int32(first), end: int32(first + a.Rows),
	}
	suffix := [...]string{GemmNT: "nt", GemmNN: "nn"}[form]
	l := Launch{Module: expertsDense[a.Type], Block: gemmThreads, Args: unsafe.Pointer(x)}
	name := "experts_"
	if w.Plain.IsZero() {
		need(ExpertsServe(w.Blocks.Type) && DequantizeServes(w.Blocks), "Experts", "type or alignment")
		x.gemm.b, x.gemm.ldb, x.step = w.Blocks.Ptr, int64(w.Blocks.RowBytes), int64(out)*int64(w.Blocks.RowBytes)
		x.dtype, l.Module, name = expertTypes[w.Blocks.Type], expertsBlocks[a.Type], "experts_blocks_"
	} else {
		need(w.Plain.Type == a.Type, "Experts", "types differ")
		x.gemm.b, x.gemm.ldb = w.Plain.Ptr, int64(w.Plain.Stride)
		x.step = int64(out) * int64(w.Plain.Stride) * int64(a.Type.BlockBytes())
	}
	high := expertsHigh
	switch {
	case a.Type == tensor.F32:
		l.Kernel = "experts_f32_" + name[len("experts_"):] + suffix
	case w.Plain.IsZero() && form == GemmNN:
		l.Kernel, l.Shared = name+suffix, expertsShared
	case c.Rows < expertsFew*min(r.Experts, c.Rows):
		l.Kernel, l.Shared, high = name+suffix+"_32", expertsSharedLow, expertsLow
	default:
		l.Kernel, l.Shared = name+suffix+"_128", expertsShared
	}
	l.Grid = [3]int{worstTiles(c.Rows, r.Experts, high) * ceil(n, expertsWide), 1, 1}
	q.Launch(l)
}

// worstTiles returns the most tiles of `high` rows that slots can need: at least one for each expert that has slots.
func worstTiles(slots, experts, high int) int {
	with := min(slots, experts)
	return with + (slots-with)/high
}

// gemmFlags returns the flags of a product.
func gemmFlags(c, a, b Mat, add bool) (flags uint32) {
	for bit, on := range map[uint32]bool{
		gemmAdd: add, gemmFloat: c.Type == tensor.F32, gemmVectorA: rowsAt(a, 16), gemmVectorB: !b.IsZero() && rowsAt(b, 16),
		gemmPairs: rowsAt(c, 2*c.Type.BlockBytes()),
	} {
		if on {
			flags |= bit
		}
	}
	return flags
}

// ExpertsWeightGrad computes dW_e = Σ_j a[j]ᵀ·b[j] over the slots j of each expert e, or adds it with add: a [slots, out] and b [slots, in] of
// bfloat16 or both of float32, dw [Experts·out, in] float32. a and b are the slots from the first-th on. Sums are float32, in the order
// of slots. Without add the matrices of experts without slots become zero.
func ExpertsWeightGrad(q Queue, dw, a, b Mat, add bool, r Routing, first int) {
	out, in := a.Cols, b.Cols
	need(dw.Rows == r.Experts*out && dw.Cols == in && a.Rows == b.Rows && a.Type == b.Type && dw.Type == tensor.F32, "ExpertsWeightGrad", "shapes or types differ")
	if out == 0 || in == 0 || add && a.Rows == 0 {
		return
	}
	x := &expertArgs{
		gemm: gemmArgs{
			a: a.Ptr, b: b.Ptr, c: dw.Ptr, lda: int64(a.Stride), ldb: int64(b.Stride), ldc: int64(dw.Stride), m: int32(out), n: int32(in),
			flags: gemmFlags(dw, a, b, add),
		},
		starts: r.Starts.Ptr, step: 4 * int64(out) * int64(dw.Stride), experts: int32(r.Experts), first: int32(first), end: int32(first + a.Rows),
	}
	l := Launch{Module: expertsDense[a.Type], Kernel: "experts_tn", Block: gemmThreads, Shared: expertsShared, Args: unsafe.Pointer(x)}
	if a.Type == tensor.F32 {
		l.Kernel, l.Shared = "experts_f32_tn", 0
	}
	l.Grid = [3]int{ceil(out, expertsHigh) * ceil(in, expertsWide), r.Experts, 1}
	q.Launch(l)
}

// expertsRowsServe reports whether a product of few slots can read rows in packs.
func expertsRowsServe(a Mat, w Experts) bool {
	if w.Plain.IsZero() {
		return packWidth(a.Cols, a) > 1
	}
	return packWidth(a.Cols, a, w.Plain) > 1
}

// expertRows is ExpertsNT of few slots: a warp computes columns of y of one slot, so that each slot reads its expert's matrix once.
func expertRows(q Queue, y, x Mat, w Experts, bias Mat, r Routing) {
	out, in := w.shape(r.Experts)
	need(x.Cols == in && y.Cols == out && x.Rows == y.Rows, "Experts", "shapes differ")
	if y.Rows == 0 || out == 0 {
		return
	}
	if pairsServe(w, 1) {
		expertProducts(q, y, x, w, bias, r)
		return
	}
	a := &expertRowsArgs{
		gemv: gemvArgs{
			y: y.Ptr, x: x.Ptr, bias: bias.Ptr, yStride: int64(y.Stride), xStride: int64(x.Stride), rows: uint32(out), cols: uint32(in), tokens: 1,
		},
		starts: r.Starts.Ptr, biasStride: int64(bias.Stride), experts: uint32(r.Experts),
	}
	if y.Type == tensor.F32 {
		a.gemv.flags |= gemvFloat
	}
	if w.Plain.IsZero() {
		need(ExpertsServe(w.Blocks.Type) && DequantizeServes(w.Blocks), "Experts", "type or alignment")
		a.gemv.w, a.gemv.wStride, a.dtype = w.Blocks.Ptr, int64(w.Blocks.RowBytes), expertTypes[w.Blocks.Type]
	} else {
		need(w.Plain.Type == x.Type, "Experts", "types differ")
		a.gemv.w, a.gemv.wStride, a.dtype = w.Plain.Ptr, int64(w.Plain.Stride*w.Plain.Type.BlockBytes()), plainExperts
	}
	a.step = int64(out) * a.gemv.wStride
	q.Launch(Launch{
		Module: expertsRows, Kernel: "experts_rows", Grid: [3]int{ceil(out, warpsOfBlock), y.Rows, 1}, Block: 256,
		Args: unsafe.Pointer(a),
	})
}
