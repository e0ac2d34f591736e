package kernel

import "apr/device"

// Attended are the operands of attention.
type Attended struct {
	O, LSE, Q, K, V Mat
	First, Sinks    Mat // or none
	Attn            device.Attn
}

// batches calls fn for ranges of batch rows whose queries and keys each span no more than a binding.
func (a Attended) batches(q Queue, fn func(a Attended, lo, hi int)) {
	n, span := a.Attn.Batch, max(a.O.Span(), a.Q.Span(), a.K.Span(), a.V.Span())
	step := n
	if span > q.Limit() {
		step = max(1, n*q.Limit()/span)
	}
	for lo := 0; lo < n; lo += step {
		hi, p := min(n, lo+step), a
		p.Attn.Batch = hi - lo
		rows := func(m Mat) Mat { return m.Range(lo*a.Attn.QLen, hi*a.Attn.QLen) }
		p.O, p.LSE, p.Q = rows(a.O), rows(a.LSE), rows(a.Q)
		p.K, p.V = a.keys(a.K, lo, hi), a.keys(a.V, lo, hi)
		if !a.First.IsZero() {
			p.First = part(a.First, lo*a.Attn.QLen, hi*a.Attn.QLen)
		}
		fn(p, lo, hi)
	}
}

// keys returns the rows of k, v or their gradients that belong to batch rows [lo,hi).
func (a Attended) keys(m Mat, lo, hi int) Mat {
	return m.Range(lo*a.Attn.KStride, (hi-1)*a.Attn.KStride+a.Attn.KLen)
}

// Attention writes O, and LSE unless it is none.
func Attention(q Queue, a Attended) {
	a.batches(q, func(p Attended, _, _ int) {
		t := p.Attn
		q.Launch(Launch{"attention", []Mat{p.O, p.LSE, p.Q, p.K, p.V, p.First, p.Sinks},
			[]uint32{uint32(t.QLen), uint32(t.KLen), uint32(t.QOffset), uint32(t.KStride), uint32(t.Heads),
				uint32(t.Heads / t.KVHeads), uint32(t.HeadDim),
				uint32(t.Window), f(t.ScoreScale()), f(t.Cap), b(!p.First.IsZero()), b(!p.LSE.IsZero()),
				b(!p.Sinks.IsZero())}, t.Batch * t.QLen * t.Heads})
	})
}

// AttentionBackward writes dq, dk and dv, and adds to dsinks unless it is none.
func AttentionBackward(q Queue, dq, dk, dv, do Mat, a Attended, dsinks Mat) {
	a.batches(q, func(p Attended, lo, hi int) {
		t := p.Attn
		dq, do := dq.Range(lo*t.QLen, hi*t.QLen), do.Range(lo*t.QLen, hi*t.QLen)
		dk, dv := a.keys(dk, lo, hi), a.keys(dv, lo, hi)
		delta := q.Scratch(t.Batch*t.QLen, t.Heads)
		q.Launch(Launch{"attention_delta", []Mat{delta, do, p.O}, []uint32{uint32(t.Heads), uint32(t.HeadDim)},
			delta.Rows * t.Heads})
		group, documents, sunk := uint32(t.Heads/t.KVHeads), b(!p.First.IsZero()), b(!p.Sinks.IsZero())
		q.Launch(Launch{"attention_dq", []Mat{dq, do, p.LSE, delta, p.Q, p.K, p.V, p.First},
			[]uint32{uint32(t.QLen), uint32(t.QOffset), uint32(t.KStride), uint32(t.Heads), group, uint32(t.HeadDim),
				uint32(t.Window),
				f(t.ScoreScale()), f(t.Cap), documents, sunk}, delta.Rows * t.Heads})
		q.Launch(Launch{"attention_dkv", []Mat{dk, dv, do, p.LSE, delta, p.Q, p.K, p.V, p.First},
			[]uint32{uint32(t.QLen), uint32(t.KLen), uint32(t.QOffset), uint32(t.KStride), uint32(t.Heads), group,
				uint32(t.HeadDim), uint32(t.Window),
				f(t.ScoreScale()), f(t.Cap), documents, sunk}, t.Batch * t.KLen * t.KVHeads})
		if !dsinks.IsZero() {
			q.Launch(Launch{"attention_sinks", []Mat{dsinks, p.LSE, delta, p.Sinks}, []uint32{uint32(delta.Rows)}, t.Heads})
		}
	})
}
