package device

import "apr/tensor"

// LowRank is what low-rank adapters add to the output y of products of x, some of whose columns have one each:
//
//	u = x·Aᵀ [n, R], y[:, Lo:Hi] += Scale·u[:, From:To]·Bᵀ of each part
//
// The rows of A are those of all parts, so that x is read once. Columns of parts do not overlap, neither in y nor in u.
type LowRank struct {
	A     Weight // [R, in]
	GradA Tensor // [R, in] F32; only LowRankWeightGrad reads it
	Parts []LowRankPart
}

// LowRankPart is the adapter of columns [Lo,Hi) of y, and of columns [From,To) of u.
type LowRankPart struct {
	Lo, Hi, From, To int
	Scale            float64
	B                Weight // [at least Hi−Lo, To−From]; its first Hi−Lo rows are used
	GradB            Tensor // [Hi−Lo, To−From] F32; only LowRankWeightGrad reads it
}

// Adapters are the operations of low-rank adapters.
type Adapters interface {
	// LowRank: u = x·Aᵀ, y[:, Lo:Hi] += Scale·u[:, From:To]·Bᵀ of each part, of u as stored, and then, unless m is zero, m = act(g)·u' of
	// y = g, u' as stored, as GLU has it. With y zero only u is written. x [n, in] and u [n, R] are of one type.
	LowRank(y, m, u, x Tensor, l LowRank, act Activation)
	// LowRankWeightGrad: GradB += Scale·dy[:, Lo:Hi]ᵀ·u[:, From:To], du[:, From:To] = Scale·dy[:, Lo:Hi]·B of each part, and then
	// GradA += duᵀ·x. du and u [n, R], x [n, in].
	LowRankWeightGrad(du, dy, x, u Tensor, l LowRank)
	// LowRankInputGrad: dx = du·A, or with add dx += du·A.
	LowRankInputGrad(dx, du Tensor, l LowRank, add bool)
}

// GatedAdapters is a Stream that can make the product of a gated layer, and what adapters add to it, in one.
type GatedAdapters interface {
	// ServesLowRankGLU reports whether MatMulLowRankGLU computes with these.
	ServesLowRankGLU(m, gu, x, u Tensor, w Weight, l LowRank, act Activation) bool
	// MatMulLowRankGLU: gu = x·Wᵀ, then LowRank(gu, m, u, …, l, act) but for u, which LowRank without y has written.
	MatMulLowRankGLU(m, gu, x, u Tensor, w Weight, l LowRank, act Activation)
}

// checkParts checks that the parts of l are columns of y and of u.
func (l LowRank) checkParts(op Op, y, u Tensor) {
	need(len(l.Parts) > 0, op, "there is no part")
	for _, p := range l.Parts {
		need(p.B != nil, op, noWeight)
		need(p.Lo >= 0 && p.Lo <= p.Hi && p.Hi <= y.Cols && p.From >= 0 && p.From <= p.To && p.To <= u.Cols, op, wrongShapes)
		need(p.B.Rows() >= p.Hi-p.Lo && p.B.Cols() == p.To-p.From, op, wrongShapes)
		need(finite(p.Scale), op, noFactor)
	}
}

// CheckLowRank checks a call of LowRank.
func CheckLowRank(y, m, u, x Tensor, l LowRank, act Activation) {
	const op = OpLowRank
	need(l.A != nil, op, noWeight)
	views(op, u, x)
	optional(op, y, m)
	floats(op, u, y)
	typed(op, u.DType, wrongTypes, x)
	need(x.Rows == u.Rows && x.Cols == l.A.Cols() && u.Cols == l.A.Rows(), op, wrongShapes)
	if y.IsZero() {
		need(m.IsZero(), op, noTensor)
		return
	}
	need(y.Rows == x.Rows, op, wrongShapes)
	l.checkParts(op, y, u)
	if !m.IsZero() {
		gated(op, m, y, act)
	}
}

// CheckMatMulLowRankGLU checks a call of GatedAdapters.MatMulLowRankGLU.
func CheckMatMulLowRankGLU(m, gu, x, u Tensor, w Weight, l LowRank, act Activation) {
	const op = OpLowRank
	CheckMatMulGLU(m, gu, x, w, act)
	views(op, u)
	typed(op, u.DType, wrongTypes, x)
	need(u.Rows == x.Rows && l.A != nil && u.Cols == l.A.Rows(), op, wrongShapes)
	l.checkParts(op, gu, u)
}

// CheckLowRankWeightGrad checks a call of LowRankWeightGrad.
func CheckLowRankWeightGrad(du, dy, x, u Tensor, l LowRank) {
	const op = OpLowRankWeightGrad
	views(op, du, dy, x, u, l.GradA)
	floats(op, dy, x)
	typed(op, x.DType, wrongTypes, du, u)
	typed(op, tensor.F32, noFloat32, l.GradA)
	need(dy.Rows == x.Rows && du.Rows == x.Rows, op, wrongShapes)
	shaped(op, du.Rows, du.Cols, u)
	shaped(op, du.Cols, x.Cols, l.GradA)
	l.checkParts(op, dy, u)
	for _, p := range l.Parts {
		views(op, p.GradB)
		typed(op, tensor.F32, noFloat32, p.GradB)
		shaped(op, p.Hi-p.Lo, p.To-p.From, p.GradB)
	}
}

// CheckLowRankInputGrad checks a call of LowRankInputGrad.
func CheckLowRankInputGrad(dx, du Tensor, l LowRank) {
	const op = OpLowRankInputGrad
	need(l.A != nil, op, noWeight)
	views(op, dx, du)
	floats(op, dx, du)
	need(dx.Rows == du.Rows && dx.Cols == l.A.Cols() && du.Cols == l.A.Rows(), op, wrongShapes)
}
