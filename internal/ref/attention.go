package ref

import (
	"math"

	"apr/device"
)

// Attention returns o = softmax(cap(Scale·q·kᵀ), masked)·v per head and lse, the log-sum-exp of what the softmax is over
// [Batch·QLen, Heads]. Query head h reads key-value head ⌊h·KVHeads/Heads⌋; device.Attn says which keys a query sees, but
// for Attn.First, whose values are in first (nil: none). sinks are the values of Attn.Sinks, of which each head's joins its softmax.
func Attention(q, k, v Mat, a device.Attn, first []int, sinks []float64) (o, lse Mat) {
	o, lse = New(q.Rows, q.Cols), New(q.Rows, a.Heads)
	forEachQuery(q, k, a, first, sinks, func(n, h int, s sight) {
		lse.Row(n)[h] = s.lse
		for j, p := range s.probs {
			for c, x := range headOf(v.Row(s.first+j), s.kv, a.HeadDim) {
				o.Row(n)[h*a.HeadDim+c] += p * x
			}
		}
	})
	return o, lse
}

// AttentionBackward returns the gradients of q, k and v, given o, the output of Attention as it was kept. With p the
// probabilities of a query, t its capped scores and dp_j = do·v_j:
//
//	dv_j += p_j·do,  ds_j = p_j(dp_j − do·o)(1−(t_j/Cap)²)·Scale,  dq = Σ_j ds_j k_j,  dk_j += ds_j q
func AttentionBackward(do, o, q, k, v Mat, a device.Attn, first []int, sinks []float64) (dq, dk, dv Mat) {
	dq, dk, dv = New(q.Rows, q.Cols), New(k.Rows, k.Cols), New(v.Rows, v.Cols)
	forEachQuery(q, k, a, first, sinks, func(n, h int, s sight) {
		d := headOf(do.Row(n), h, a.HeadDim)
		qn, dqn := headOf(q.Row(n), h, a.HeadDim), headOf(dq.Row(n), h, a.HeadDim)
		mean := dot(d, headOf(o.Row(n), h, a.HeadDim))
		for j, p := range s.probs {
			row := s.first + j
			ds := p * (dot(d, headOf(v.Row(row), s.kv, a.HeadDim)) - mean) * s.slope[j] * a.ScoreScale()
			kj, dkj := headOf(k.Row(row), s.kv, a.HeadDim), headOf(dk.Row(row), s.kv, a.HeadDim)
			dvj := headOf(dv.Row(row), s.kv, a.HeadDim)
			for c := range a.HeadDim {
				dvj[c] += p * d[c]
				dqn[c] += ds * kj[c]
				dkj[c] += ds * qn[c]
			}
		}
	})
	return dq, dk, dv
}

// SinkGrad returns the gradient of the sinks, [1, Heads], given o as it was kept: with p_b = e^(b−lse) the probability of a
// head's sink, −Σ_rows p_b·(do·o).
func SinkGrad(do, o, q, k Mat, a device.Attn, first []int, sinks []float64) Mat {
	db := New(1, a.Heads)
	forEachQuery(q, k, a, first, sinks, func(n, h int, s sight) {
		db.V[h] -= math.Exp(sinks[h]-s.lse) * dot(headOf(do.Row(n), h, a.HeadDim), headOf(o.Row(n), h, a.HeadDim))
	})
	return db
}

// sight is what a query head sees: the rows of k from first on, with probabilities and the slopes of the soft-cap.
type sight struct {
	first, kv    int
	probs, slope []float64
	lse          float64
}

// forEachQuery calls f for row n of q and head h.
func forEachQuery(q, k Mat, a device.Attn, first []int, sinks []float64, f func(n, h int, s sight)) {
	for n := range a.Batch * a.QLen {
		from, own := keysOf(n, a, first)
		for h := range a.Heads {
			s := sight{
				first: n/a.QLen*a.KStride + from, kv: h * a.KVHeads / a.Heads,
				probs: make([]float64, own-from+1), slope: make([]float64, own-from+1),
			}
			for j := range s.probs {
				x := dot(headOf(q.Row(n), h, a.HeadDim), headOf(k.Row(s.first+j), s.kv, a.HeadDim)) * a.ScoreScale()
				s.slope[j] = 1
				if a.Cap > 0 {
					t := math.Tanh(x / a.Cap)
					x, s.slope[j] = a.Cap*t, 1-t*t
				}
				s.probs[j] = x
			}
			s.lse = logSumExp(s.probs)
			if sinks != nil {
				s.lse = logSumExp([]float64{s.lse, sinks[h]})
			}
			for j, x := range s.probs {
				s.probs[j] = math.Exp(x - s.lse)
			}
			f(n, h, s)
		}
	}
}

// keysOf returns the first and the last key that row n of q sees.
func keysOf(n int, a device.Attn, first []int) (from, own int) {
	own = min(a.QOffset+n%a.QLen, a.KLen-1)
	if a.Window > 0 {
		from = max(0, own-a.Window+1)
	}
	if first != nil {
		from = max(from, min(first[n], own))
	}
	return from, own
}

// headOf returns the d values of head h in a row of heads.
func headOf(row []float64, h, d int) []float64 { return row[h*d : (h+1)*d] }

func dot(a, b []float64) float64 {
	sum := 0.0
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// logSumExp returns ln Σ e^x; terms of −∞ count nothing.
func logSumExp(x []float64) float64 {
	largest := math.Inf(-1)
	for _, v := range x {
		largest = math.Max(largest, v)
	}
	sum := 0.0
	for _, v := range x {
		sum += math.Exp(v - largest)
	}
	return largest + math.Log(sum)
}
