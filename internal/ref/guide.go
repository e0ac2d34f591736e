package ref

import (
	"cmp"
	"math"
	"slices"

	"apr/device"
)

// Mix returns T·ln(w·softmax(t/T)) by rows, or, unless y has no values, T·ln(e^{y/T} + w·softmax(t/T)).
func Mix(y, t Mat, w, temperature float64) Mat {
	out := New(t.Rows, t.Cols)
	for r := range t.Rows {
		for c, l := range LogSoftmax(t.Row(r), temperature) {
			v := l + math.Log(w)
			if y.V != nil {
				v = logSumExp([]float64{y.Row(r)[c] / temperature, v})
			}
			out.Row(r)[c] = temperature * v
		}
	}
	return out
}

// Project returns the distribution softmax(t/T) of each row over other ids, as T·ln p, of a matrix by columns: entries
// [starts[s], starts[s+1]) of ids and weights are what arrives at s. No logarithm is below device.ProjectFloor.
func Project(t Mat, starts, ids []int, weights []float64, temperature float64) Mat {
	out := New(t.Rows, len(starts)-1)
	for r := range t.Rows {
		logs := LogSoftmax(t.Row(r), temperature)
		for s := range out.Cols {
			sum := 0.0
			for k := starts[s]; k < starts[s+1]; k++ {
				sum += weights[k] * math.Exp(logs[ids[k]])
			}
			out.Row(r)[s] = temperature * max(math.Log(sum), device.ProjectFloor)
		}
	}
	return out
}

// NextLimits are the limits of a row of device.NextDrawer.
type NextLimits struct{ T, P, K float64 }

// DrawNext returns the scores that device.NextDrawer draws by, (x[r,i] + never[i])/T − ln(−ln u(keys[r], i)), and
// −∞ for ids that left leaves out of x[r] + never. never and limits are nil for none.
func DrawNext(
	x Mat, never []float64, keys []uint64, limits []NextLimits, left func(y []float64, l NextLimits) []bool,
) Mat {
	scores := New(x.Rows, x.Cols)
	for r := range x.Rows {
		y := slices.Clone(x.Row(r))
		for i := range y {
			if never != nil {
				y[i] += never[i]
			}
		}
		l := NextLimits{T: 1}
		if limits != nil {
			l = limits[r]
		}
		in := left(y, l)
		for i, v := range y {
			scores.Row(r)[i] = math.Inf(-1)
			if in[i] {
				scores.Row(r)[i] = v/l.T - math.Log(-math.Log1p(-device.NextUniform(keys[r], i)))
			}
		}
	}
	return scores
}

// Left reports which ids limits leave, by sorting them all: the first K, and of these as many as have the part P of
// their weights exp(y/T).
func Left(y []float64, l NextLimits) []bool {
	ids, in := make([]int, len(y)), make([]bool, len(y))
	for i := range ids {
		ids[i] = i
	}
	slices.SortStableFunc(ids, func(a, b int) int { return cmp.Compare(y[b], y[a]) })
	if k := int(l.K); k > 0 {
		ids = ids[:min(k, len(ids))]
	}
	weight := func(i int) float64 { return math.Exp((y[i] - y[ids[0]]) / l.T) }
	sum, mass := 0.0, 0.0
	for _, i := range ids {
		sum += weight(i)
	}
	for n, i := range ids {
		if l.P > 0 && l.P < 1 && n > 0 && mass >= l.P*sum {
			break
		}
		in[i] = true
		mass += weight(i)
	}
	return in
}

// SquaredError returns Σ_r ‖u[r]−t[r]‖²/m, m the columns, and the gradient of weight·invN times it over u.
func SquaredError(u, t Mat, weight, invN float64) (sum float64, grad Mat) {
	grad = New(u.Rows, u.Cols)
	m := float64(u.Cols)
	for i, v := range u.V {
		d := v - t.V[i]
		sum += d * d / m
		grad.V[i] = weight * invN * 2 / m * d
	}
	return sum, grad
}

// HiddenError is the term of the loss that compares hidden states: for rows x [n, H] of a student's residual stream, t [n, H′] of a
// teacher's and a projection p [H′, H],
//
//	Σ_r ‖P·x̂[r] − t̂[r]‖²/H′,  x̂ = x/√(mean(x²)+eps)
//
// with the gradients of weight·invN times it over x and P.
func HiddenError(x, t, p Mat, weight, invN, eps float64) (sum float64, dx, dp Mat) {
	one := func(n int) Mat { return onesUnless(Mat{}, n) }
	xh, rstd := RMSNorm(x, one(x.Cols), eps)
	th, _ := RMSNorm(t, one(t.Cols), eps)
	sum, du := SquaredError(Linear(xh, p, Mat{}), th, weight, invN)
	dxh, dp, _ := LinearBackward(du, xh, p)
	dx, _ = RMSNormBackward(dxh, x, rstd, one(x.Cols))
	return sum, dx, dp
}

// Map is attention whose map is compared: the operands of Attention.
type Map struct {
	Q, K  Mat
	Attn  device.Attn
	First []int
	Sinks []float64
}

// AttentionDivergence is the term of the loss that compares attention maps. With P_h the probabilities of head h of a row, over the
// keys that it sees and its sink, P̄ = mean_h P_h, p that of the teacher t and q that of the student s, it returns the sum over the
// rows that count (counts nil: all) of
//
//	KL(p‖q) = Σ_k p_k·ln(p_k/q_k)
//
// and the gradients of weight·invN times it over the student's q, k and sinks: with g_k = −p_k/(H·q_k) that over every P_h of the
// row, ds_hk = P_hk·(g_k − Σ_j P_hj·g_j) over its scores and its sink.
func AttentionDivergence(s, t Map, counts []bool, weight, invN float64) (sum float64, dq, dk, dsinks Mat) {
	a := s.Attn
	dq, dk, dsinks = New(s.Q.Rows, s.Q.Cols), New(s.K.Rows, s.K.Cols), New(1, a.Heads)
	own, big := s.seen(), t.seen()
	for n, heads := range own {
		if counts != nil && !counts[n] {
			continue
		}
		q, p, low := s.mean(heads), t.mean(big[n]), big[n][0].first-heads[0].first // the student sees at least what the teacher sees
		g := make([]float64, len(q))
		for j := range q {
			at := j - low
			if j == len(q)-1 {
				at = len(p) - 1 // the sinks
			}
			if at >= 0 && p[at] > 0 {
				sum += p[at] * math.Log(p[at]/q[j])
				g[j] = -p[at] / (float64(a.Heads) * q[j])
			}
		}
		for h, of := range heads {
			probs := append(of.probs[:len(of.probs):len(of.probs)], s.sink(h, of))
			mean := dot(probs, g)
			dsinks.V[h] += weight * invN * probs[len(of.probs)] * (g[len(of.probs)] - mean)
			for j, slope := range of.slope {
				ds := weight * invN * probs[j] * (g[j] - mean) * slope * a.ScoreScale()
				qn, kj := headOf(s.Q.Row(n), h, a.HeadDim), headOf(s.K.Row(of.first+j), of.kv, a.HeadDim)
				for c := range a.HeadDim {
					headOf(dq.Row(n), h, a.HeadDim)[c] += ds * kj[c]
					headOf(dk.Row(of.first+j), of.kv, a.HeadDim)[c] += ds * qn[c]
				}
			}
		}
	}
	return sum, dq, dk, dsinks
}

// seen returns what each head of each row sees.
func (m Map) seen() [][]sight {
	all := make([][]sight, m.Q.Rows)
	forEachQuery(m.Q, m.K, m.Attn, m.First, m.Sinks, func(n, _ int, s sight) { all[n] = append(all[n], s) })
	return all
}

// sink returns the probability of a head's sink; 0 without one.
func (m Map) sink(h int, s sight) float64 {
	if m.Sinks == nil {
		return 0
	}
	return math.Exp(m.Sinks[h] - s.lse)
}

// mean returns the mean over heads of the probabilities of a row's keys, and of its sink behind them.
func (m Map) mean(heads []sight) []float64 {
	p := make([]float64, len(heads[0].probs)+1)
	for h, s := range heads {
		for j, v := range append(s.probs[:len(s.probs):len(s.probs)], m.sink(h, s)) {
			p[j] += v / float64(len(heads))
		}
	}
	return p
}
