package device

import "apr/tensor"

// AttnMap is attention whose map is compared with another one's: q and k as Attention read them, and the lse that it kept.
type AttnMap struct {
	Q, K, LSE Tensor
	Attn      Attn
}

// MapComparer is the part of a Stream that compares attention maps.
type MapComparer interface {
	// CompareMaps adds the divergence of the student's attention map from the teacher's to the record, and the gradient of weight
	// times its mean over the step's targets to dq, dk and s.Attn.DSinks.
	//
	// With z_hk = t_hk − lse_h the logarithm of the probability that head h of a query gives key k, or the head's sink, which is one
	// more outcome, L_k = ln Σ_h e^{z_hk} over the heads, and p = e^{L_k}/H that of the teacher,
	//
	//	Sums[AttentionTransfer] += Σ_rows KL(p‖q) = Σ_rows Σ_k p_k·(L_k^t − ln H_t − L_k^s + ln H_s)
	//
	// over the queries that rows names, I32 [n, 1] ascending, or all if it is zero. Of the student, the probability P_hk = e^{z_hk} has
	// the gradient −p_k/(H·q_k), and with w_hk = e^{z_hk − L_k}, the part of head h in q_k, the Jacobian of the softmax makes of it
	//
	//	∂KL/∂t_hk = P_hk·E_h − p_k·w_hk,  E_h = Σ_k p_k·w_hk
	//
	// in which nothing is divided, and which sums to zero over the outcomes of a head. The score's gradient is multiplied by
	// weight·InvN, by the slope 1−(t/Cap)² and by Scale; then dq_h += Σ_k ds_hk·k_k and dk_k += Σ ds_hk·q_h as in AttentionBackward. A
	// query that sees one key and no sink adds nothing. Maps are computed a block of queries at a time.
	//
	// Both sides are of training, over the same rows, and have the same First. The student sees all that the teacher sees: no window
	// that is narrower, and sinks if the teacher has some.
	CompareMaps(dq, dk Tensor, s, t AttnMap, rows Tensor, weight float64)
}

// CheckCompareMaps checks a call of CompareMaps, but for the values of First and rows.
func CheckCompareMaps(dq, dk Tensor, s, t AttnMap, rows Tensor, weight float64) {
	const op = OpCompareMaps
	for _, m := range []*AttnMap{&s, &t} {
		views(op, m.Q, m.K, m.LSE)
		attention(op, m.Q, m.LSE, m.Q, m.K, m.K, m.Attn)
		need(m.Attn.QOffset == 0 && m.Attn.QLen == m.Attn.KLen && m.Attn.KLen == m.Attn.KStride, op, "queries and keys are not those of whole rows")
	}
	views(op, dq, dk)
	typed(op, s.Q.DType, wrongTypes, dq, dk, t.Q, t.K)
	shaped(op, s.Q.Rows, s.Q.Cols, dq)
	shaped(op, s.K.Rows, s.K.Cols, dk)
	optional(op, s.Attn.DSinks)
	need(t.Attn.DSinks.IsZero(), op, "a gradient of the teacher's sinks")
	need(s.Attn.DSinks.IsZero() || !s.Attn.Sinks.IsZero(), op, "a gradient of sinks that are not there")
	typed(op, tensor.F32, noFloat32, s.Attn.DSinks)
	vectors(op, s.Attn.Heads, s.Attn.DSinks)
	need(s.Attn.Batch == t.Attn.Batch && s.Attn.QLen == t.Attn.QLen, op, wrongShapes)
	need(s.Attn.First == t.Attn.First, op, "the maps are of other documents")
	need(s.Attn.Sees(t.Attn), op, "the student's window is narrower than the teacher's")
	need(!s.Attn.Sinks.IsZero() || t.Attn.Sinks.IsZero(), op, "the teacher has sinks and the student none")
	if !rows.IsZero() {
		ids(op, rows, rows.Rows*rows.Cols)
		need(rows.Rows*rows.Cols <= s.Q.Rows, op, wrongShapes)
	}
	need(finite(weight), op, noFactor)
}

// Sees reports whether the window of a shows every key that the window of b shows, over rows of QLen positions.
func (a Attn) Sees(b Attn) bool {
	return a.Window == 0 || a.Window >= a.QLen || b.Window > 0 && b.Window <= a.Window
}
