package ref

import (
	"math"

	"apr/device"
)

// Attention returns o = softmax(q·kᵀ/√d, causal)·v per head and lse, the log-sum-exp of the scaled scores
// [Batch·QLen, Heads]. Query head h reads key-value head ⌊h·KVHeads/Heads⌋; query i of a batch row stands at
// QOffset+i and sees the keys j ≤ QOffset+i, j < KLen, of its row.
func Attention(q, k, v Mat, a device.Attn) (o, lse Mat) {
	o, lse = New(q.Rows, q.Cols), New(q.Rows, a.Heads)
	forEachQuery(q, k, v, a, func(n, h int, probs, _ []float64, vs [][]float64, norm float64) {
		lse.Row(n)[h] = norm
		for j, p := range probs {
			for c, x := range vs[j] {
				o.Row(n)[h*a.HeadDim+c] += p * x
			}
		}
	})
	return o, lse
}

// AttentionBackward returns the gradients of q, k and v, given o, the output of Attention as it was kept. With p the
// probabilities of a query and dp_j = do·v_j:
//
//	dv_j += p_j·do,  ds_j = p_j(dp_j − do·o),  dq = Σ_j ds_j k_j/√d,  dk_j += ds_j q/√d
func AttentionBackward(do, o, q, k, v Mat, a device.Attn) (dq, dk, dv Mat) {
	dq, dk, dv = New(q.Rows, q.Cols), New(k.Rows, k.Cols), New(v.Rows, v.Cols)
	scale := 1 / math.Sqrt(float64(a.HeadDim))
	forEachQuery(q, k, v, a, func(n, h int, probs, qv []float64, vs [][]float64, _ float64) {
		d := headOf(do.Row(n), h, a.HeadDim)
		dp, mean := make([]float64, len(probs)), dot(d, headOf(o.Row(n), h, a.HeadDim))
		for j := range probs {
			dp[j] = dot(d, vs[j])
		}
		kvHead := h * a.KVHeads / a.Heads
		for j, p := range probs {
			row := n/a.QLen*a.KStride + j
			ds := p * (dp[j] - mean) * scale
			kj, dkj := headOf(k.Row(row), kvHead, a.HeadDim), headOf(dk.Row(row), kvHead, a.HeadDim)
			dvj, dqn := headOf(dv.Row(row), kvHead, a.HeadDim), headOf(dq.Row(n), h, a.HeadDim)
			for c := range a.HeadDim {
				dvj[c] += p * d[c]
				dqn[c] += ds * kj[c]
				dkj[c] += ds * qv[c]
			}
		}
	})
	return dq, dk, dv
}

// forEachQuery calls f for row n of q and head h with the probabilities over the keys it sees, the query, the values
// it sees, and the log-sum-exp of the scaled scores.
func forEachQuery(q, k, v Mat, a device.Attn,
	f func(n, h int, probs, qv []float64, vs [][]float64, lse float64)) {
	for n := range a.Batch * a.QLen {
		b, i := n/a.QLen, n%a.QLen
		sees := min(a.KLen, a.QOffset+i+1)
		for h := range a.Heads {
			kvHead := h * a.KVHeads / a.Heads
			qv := headOf(q.Row(n), h, a.HeadDim)
			scores, vs := make([]float64, sees), make([][]float64, sees)
			for j := range sees {
				row := b*a.KStride + j
				scores[j] = dot(qv, headOf(k.Row(row), kvHead, a.HeadDim)) / math.Sqrt(float64(a.HeadDim))
				vs[j] = headOf(v.Row(row), kvHead, a.HeadDim)
			}
			lse := logSumExp(scores)
			for j := range scores {
				scores[j] = math.Exp(scores[j] - lse)
			}
			f(n, h, scores, qv, vs, lse)
		}
	}
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
