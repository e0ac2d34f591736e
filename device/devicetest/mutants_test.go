package devicetest

import (
	"math"
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/internal/ref"
	"apr/tensor"
)

// mutant is a device with one mistake.
type mutant struct {
	name  string
	group string // at least one case whose name begins so must notice
	plant func(*ops)
}

// mutants are mistakes most of which were seen in real trainers; cases named after must catch them.
var mutants = []mutant{
	{"rotary pairs of neighbours", "rotary/", func(o *ops) {
		o.rotate = func(x ref.Mat, r device.Rotary, at []int) ref.Mat {
			d := r.HeadDim
			half := func(i int) int { return i/2 + i%2*d/2 } // neighbour order to half-split order
			return permute(ref.Rotate(permute(x, d, half), r, at), d, func(i int) int { return i%(d/2)*2 + i/(d/2) })
		}
	}},
	{"rotary never inverse", "rotary/", func(o *ops) {
		o.rotate = func(x ref.Mat, r device.Rotary, at []int) ref.Mat { r.Inverse = false; return ref.Rotate(x, r, at) }
	}},
	{"rotary without offset", "rotary/", func(o *ops) {
		o.rotate = func(x ref.Mat, r device.Rotary, at []int) ref.Mat { r.Offset = 0; return ref.Rotate(x, r, at) }
	}},
	{"rotary positions run on over rows", "rotary/", func(o *ops) {
		o.rotate = func(x ref.Mat, r device.Rotary, at []int) ref.Mat { r.SeqLen = x.Rows; return ref.Rotate(x, r, at) }
	}},
	{"rotary base off by a thousandth", "rotary/", func(o *ops) {
		o.rotate = func(x ref.Mat, r device.Rotary, at []int) ref.Mat {
			r.Table = base(r.Table, 1.001)
			return ref.Rotate(x, r, at)
		}
	}},
	{"attention sees the next key", "attention/", func(o *ops) {
		o.attention = func(q, k, v ref.Mat, a device.Attn, first []int) (x, lse ref.Mat) {
			a.QOffset++
			return ref.Attention(q, k, v, a, first)
		}
	}},
	{"attention does not see itself", "attention/", func(o *ops) {
		o.attention = func(q, k, v ref.Mat, a device.Attn, first []int) (x, lse ref.Mat) {
			if a.QOffset > 0 {
				a.QOffset--
			}
			return ref.Attention(q, k, v, a, first)
		}
	}},
	{"attention scores not scaled", "attention/", func(o *ops) {
		o.attention = func(q, k, v ref.Mat, a device.Attn, first []int) (x, lse ref.Mat) {
			return ref.Attention(times(q, math.Sqrt(float64(a.HeadDim))), k, v, a, first)
		}
	}},
	{"attention heads dealt round", "attention/", func(o *ops) {
		o.attention = func(q, k, v ref.Mat, a device.Attn, first []int) (x, lse ref.Mat) {
			all := func(m ref.Mat) ref.Mat { // one kv head for each query head, h mod KVHeads
				var cols []ref.Mat
				for h := range a.Heads {
					lo := h % a.KVHeads * a.HeadDim
					cols = append(cols, m.ColRange(lo, lo+a.HeadDim))
				}
				return ref.Beside(cols...)
			}
			k, v = all(k), all(v)
			a.KVHeads = a.Heads
			return ref.Attention(q, k, v, a, first)
		}
	}},
	{"attention keys packed without stride", "attention/", func(o *ops) {
		o.attention = func(q, k, v ref.Mat, a device.Attn, first []int) (x, lse ref.Mat) {
			a.KStride = a.KLen
			return ref.Attention(q, k, v, a, first)
		}
	}},
	{"attention gradient off by a thousandth", "attention/", func(o *ops) {
		o.attentionBack = func(do, o, q, k, v ref.Mat, a device.Attn, first []int) (dq, dk, dv ref.Mat) {
			dq, dk, dv = ref.AttentionBackward(do, o, q, k, v, a, first)
			return times(dq, .999), dk, dv
		}
	}},
	{"attention gradient of keys and values swapped", "attention/", func(o *ops) {
		o.attentionBack = func(do, o, q, k, v ref.Mat, a device.Attn, first []int) (dq, dk, dv ref.Mat) {
			dq, dk, dv = ref.AttentionBackward(do, o, q, k, v, a, first)
			return dq, dv, dk
		}
	}},
	{"norm without eps", "rmsnorm/tiny", func(o *ops) {
		o.rmsNorm = func(x, w ref.Mat, _ float64) (y, rstd ref.Mat) { return ref.RMSNorm(x, w, 1e-12) }
	}},
	{"norm of the sum, not the mean", "rmsnorm/", func(o *ops) {
		o.rmsNorm = func(x, w ref.Mat, eps float64) (y, rstd ref.Mat) {
			y, rstd = ref.RMSNorm(times(x, math.Sqrt(float64(x.Cols))), w, eps)
			return times(y, 1/math.Sqrt(float64(x.Cols))), rstd
		}
	}},
	{"norm weight plus one", "rmsnorm/", func(o *ops) {
		o.rmsNorm = func(x, w ref.Mat, eps float64) (y, rstd ref.Mat) {
			w = w.Clone()
			for i := range w.V {
				w.V[i]++
			}
			return ref.RMSNorm(x, w, eps)
		}
	}},
	{"norm backward forgets the mean", "rmsnorm/", func(o *ops) {
		o.rmsNormBack = func(dy, x, rstd, w ref.Mat) (dx, dw ref.Mat) {
			dx, dw = ref.RMSNormBackward(dy, x, rstd, w)
			for r := range dx.Rows {
				for c := range dx.Cols {
					dx.Row(r)[c] = dy.Row(r)[c] * w.V[c] * rstd.V[r]
				}
			}
			return dx, dw
		}
	}},
	{"gradients overwritten instead of added", "matmul/", func(o *ops) {
		o.accumulate = func(into, m ref.Mat) { copy(into.V, m.V) }
	}},
	{"norm gradients overwritten instead of added", "rmsnorm/", func(o *ops) {
		o.accumulate = func(into, m ref.Mat) { copy(into.V, m.V) }
	}},
	{"bias forgotten", "matmul/", func(o *ops) {
		o.linear = func(x, w, _ ref.Mat) ref.Mat { return ref.Linear(x, w, ref.Mat{}) }
	}},
	{"last column of a product left out", "matmul/", func(o *ops) {
		o.linear = func(x, w, b ref.Mat) ref.Mat {
			return ref.Linear(x.ColRange(0, x.Cols-1), w.ColRange(0, x.Cols-1), b)
		}
	}},
	{"product rounded to half the digits", "matmul/", func(o *ops) {
		o.linear = func(x, w, b ref.Mat) ref.Mat {
			y := ref.Linear(x, w, b)
			round(y, tensor.BF16)
			return y
		}
	}},
	{"product is NaN", "matmul/", func(o *ops) {
		o.linear = func(x, w, b ref.Mat) ref.Mat { return times(ref.Linear(x, w, b), math.NaN()) }
	}},
	{"bias gradient is a mean", "matmul/", func(o *ops) {
		o.linearBack = func(dy, x, w ref.Mat) (dx, dw, db ref.Mat) {
			dx, dw, db = ref.LinearBackward(dy, x, w)
			return dx, dw, times(db, 1/float64(max(1, dy.Rows)))
		}
	}},
	{"parameter's copy goes stale", "matmul/of a parameter", func(o *ops) { o.refresh = false }},
	{"optimizer leaves the copy stale", "optimizer/three", func(o *ops) { o.adamWRefreshes = false }},
	{"rows of stacked parts not cut", "weight/", func(o *ops) {
		o.weightRows = func(_ []int, _, all int) int { return all }
	}},
	{"repeated ids counted once", "embed/", func(o *ops) {
		o.embedBack = func(grad ref.Mat, ids []int, dx ref.Mat) {
			for i, id := range ids {
				copy(grad.Row(id), dx.Row(i))
			}
		}
	}},
	{"gate and up swapped", "glu/silu", func(o *ops) {
		o.glu = func(gu ref.Mat, act device.Activation) ref.Mat {
			return ref.GLU(ref.Beside(gu.ColRange(gu.Cols/2, gu.Cols), gu.ColRange(0, gu.Cols/2)), act)
		}
	}},
	{"product under GLU not kept", "matmulglu/", func(o *ops) { o.keepsProduct = false }},
	{"product under GLU with rows of gate and up in turn", "matmulglu/", func(o *ops) {
		o.gated = func(gu ref.Mat, act device.Activation) ref.Mat {
			f := gu.Cols / 2
			half := func(odd int) ref.Mat {
				return permute(gu, gu.Cols, func(c int) int { return min(2*c+odd, gu.Cols-1) }).ColRange(0, f)
			}
			return ref.GLU(ref.Beside(half(0), half(1)), act)
		}
	}},
	{"gradients of gate and up written over a gate still to be read", "glu/silu", func(o *ops) { o.readsFirst = false }},
	{"gate gradient off by a ten-thousandth", "glu/silu", func(o *ops) {
		o.gluBack = func(dm, gu ref.Mat, act device.Activation) ref.Mat {
			return times(ref.GLUBackward(dm, gu, act), 1.0001)
		}
	}},
	{"scatter keeps what was there", "gather/", func(o *ops) { o.scatterZero = false }},
	{"highest id on ties", "argmax/", func(o *ops) {
		o.argMax = func(x ref.Mat) []int {
			ids := make([]int, x.Rows)
			for r := range ids {
				for c, v := range x.Row(r) {
					if v >= x.Row(r)[ids[r]] {
						ids[r] = c
					}
				}
			}
			return ids
		}
	}},
	{"NaN is the largest", "argmax/", func(o *ops) {
		o.argMax = func(x ref.Mat) []int {
			ids := ref.ArgMax(x)
			for r := range ids {
				if i := slices.IndexFunc(x.Row(r), math.IsNaN); i >= 0 {
					ids[r] = i
				}
			}
			return ids
		}
	}},
	{"the largest value where it is infinite", "argmax/", bestWith(func(row []float64, told float64) float64 {
		if top := slices.Max(row); math.IsInf(top, 1) {
			return top
		}
		return told
	})},
	{"the largest value beside NaN", "argmax/", bestWith(func(row []float64, told float64) float64 {
		if math.IsNaN(told) && !slices.Contains(row, math.Inf(1)) {
			return row[ref.ArgMax(ref.Of(1, len(row), row))[0]]
		}
		return told
	})},
	{"-Inf alone is no number", "argmax/", bestWith(func(_ []float64, told float64) float64 {
		if math.IsInf(told, -1) {
			return math.NaN()
		}
		return told
	})},
	{"stride taken for the columns", "move/", func(o *ops) { o.honourStride = false }},
	{"errors do not stick", "stream/", func(o *ops) { o.sticky = false }},
	{"decay of every parameter", "optimizer/", func(o *ops) {
		o.adamW = func(w, g, m, v ref.Mat, _ bool, a device.AdamW, s device.Scalars) { ref.AdamW(w, g, m, v, true, a, s) }
	}},
	{"decay of none", "optimizer/", func(o *ops) { o.adamW = withAdamW(func(a *device.AdamW, _ *device.Scalars) { a.WeightDecay = 0 }) }},
	{"clip forgotten", "optimizer/", func(o *ops) { o.adamW = withAdamW(func(_ *device.AdamW, s *device.Scalars) { s.Scale = 1 }) }},
	{"no bias correction", "optimizer/", func(o *ops) {
		o.adamW = withAdamW(func(_ *device.AdamW, s *device.Scalars) { s.BiasCorr1, s.BiasCorr2 = 1, 1 })
	}},
	{"eps inside the root", "optimizer/", func(o *ops) {
		o.adamW = withAdamW(func(a *device.AdamW, _ *device.Scalars) { a.Eps = math.Sqrt(a.Eps) })
	}},
	{"decay not times the rate", "optimizer/", func(o *ops) {
		o.adamW = withAdamW(func(a *device.AdamW, s *device.Scalars) { a.WeightDecay /= s.LR })
	}},
	{"a bad step is taken", "optimizer/not finite", func(o *ops) { o.guardFinite = false }},
	{"a diverging step is taken", "optimizer/limit", func(o *ops) { o.guardDiverged = false }},
	{"limit of the sum", "optimizer/limit", func(o *ops) {
		o.stepLoss = func(s device.Scalars) float64 { s.InvN = 1; return stepLoss(s) }
	}},
	{"limit of the cross-entropy", "optimizer/limit", func(o *ops) {
		o.stepLoss = func(s device.Scalars) float64 { return s.CE * s.InvN }
	}},
	{"limit of terms without weights", "optimizer/limit", func(o *ops) {
		o.stepLoss = func(s device.Scalars) float64 { return (s.CE + s.D) * s.InvN }
	}},
}

// lossMutants break the loss.
var lossMutants = []struct {
	name  string
	group string
	loss  func(z, t ref.Mat, targets []int, invN float64, spec device.LossSpec) (device.Scalars, ref.Mat)
}{
	{"KL the wrong way round", "loss/", withSpec(func(s *device.LossSpec) {
		s.Divergence = map[device.Divergence]device.Divergence{device.ForwardKL: device.ReverseKL, device.ReverseKL: device.ForwardKL}[s.Divergence]
	})},
	{"α weighs the cross-entropy", "loss/", withSpec(func(s *device.LossSpec) { s.Alpha = 1 - s.Alpha })},
	{"temperature forgotten", "loss/", withSpec(func(s *device.LossSpec) { s.Temperature = 1 })},
	{"β of the other side", "loss/", withSpec(func(s *device.LossSpec) {
		if s.Divergence >= device.JSD {
			s.Beta = 1 - s.Beta
		}
	})},
	{"β = 0 taken literally", "loss/", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		if s.Divergence == device.JSD && (s.Beta == 0 || s.Beta == 1) {
			s.Beta = math.Abs(s.Beta - 1e-9)
		}
		return ref.Loss(z, t, y, n, s)
	}},
	{"T² missing", "loss/", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		sums, dz := ref.Loss(z, t, y, n, s)
		ce := s
		ce.Alpha = 0
		_, own := ref.Loss(z, t, y, n*(1-s.Alpha), ce)
		for i := range dz.V {
			dz.V[i] = own.V[i] + (dz.V[i]-own.V[i])/(s.Temperature*s.Temperature)
		}
		return sums, dz
	}},
	{"normalised twice", "loss/", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		return ref.Loss(z, t, y, n*n, s)
	}},
	{"normalised by the chunk's rows", "loss/", func(z, t ref.Mat, y []int, _ float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		return ref.Loss(z, t, y, 1/float64(max(1, z.Rows)), s)
	}},
	{"sums normalised", "loss/", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		sums, dz := ref.Loss(z, t, y, n, s)
		sums.CE, sums.D, sums.Entropy = sums.CE*n, sums.D*n, sums.Entropy*n
		return sums, dz
	}},
	{"only the last row teaches", "loss/", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		sums, dz := ref.Loss(z, t, y, n, s)
		for i := range max(0, z.Rows-1) * z.Cols {
			dz.V[i] = 0
		}
		return sums, dz
	}},
	{"targets one row apart", "loss/", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		if len(y) > 1 {
			y = append(append([]int(nil), y[1:]...), y[0])
		}
		return ref.Loss(z, t, y, n, s)
	}},
	{"probabilities rounded to bfloat16 before subtracting", "loss/", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		sums, dz := ref.Loss(z, t, y, n, s)
		if s.Divergence == device.ForwardKL && s.Alpha == 1 {
			for r := range z.Rows {
				lp, lq := ref.LogSoftmax(t.Row(r), s.Temperature), ref.LogSoftmax(z.Row(r), s.Temperature)
				for c := range lp {
					pq := ref.Of(1, 2, []float64{math.Exp(lp[c]), math.Exp(lq[c])})
					round(pq, tensor.BF16)
					dz.Row(r)[c] = n * s.Temperature * (pq.V[1] - pq.V[0])
				}
			}
		}
		return sums, dz
	}},
	{"ln(p+ε)", "loss/", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		sums, dz := ref.Loss(z, t, y, n, s)
		if s.Divergence == device.ReverseKL {
			sums.D = 0
			for r := range z.Rows {
				lp, lq := ref.LogSoftmax(t.Row(r), s.Temperature), ref.LogSoftmax(z.Row(r), s.Temperature)
				for c := range lp {
					q := math.Exp(lq[c])
					sums.D += q * (math.Log(q+1e-8) - math.Log(math.Exp(lp[c])+1e-8))
				}
			}
		}
		return sums, dz
	}},
	{"exponentials without the maximum", "loss/constants", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		sums, dz := ref.Loss(z, t, y, n, s)
		sum := 0.0
		for _, v := range z.V {
			sum += float64(float32(math.Exp(v)))
		}
		sums.CE += sum - sum // NaN if it overflowed
		return sums, dz
	}},
	{"soft-cap without a slope", "loss/soft-capped", withSpec(func(s *device.LossSpec) { s.Cap = 0 })},
	{"slope of a soft-cap that is not squared", "loss/soft-capped", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		c := s.Cap
		s.Cap = 0
		sums, dz := ref.Loss(z, t, y, n, s)
		for i := range dz.V {
			if c > 0 {
				dz.V[i] *= 1 - math.Abs(z.V[i])/c
			}
		}
		return sums, dz
	}},
	{"another divergence reported than descended", "loss/", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		_, dz := ref.Loss(z, t, y, n, s)
		s.Divergence = device.ForwardKL
		sums, _ := ref.Loss(z, t, y, n, s)
		return sums, dz
	}},
	{"reported divergence times T²", "loss/", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		sums, dz := ref.Loss(z, t, y, n, s)
		sums.D *= s.Temperature * s.Temperature
		return sums, dz
	}},
	{"entropy at temperature 1", "loss/", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		sums, dz := ref.Loss(z, t, y, n, s)
		s.Temperature = 1
		other, _ := ref.Loss(z, t, y, n, s)
		sums.Entropy = other.Entropy
		return sums, dz
	}},
	{"every row agrees", "loss/", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		sums, dz := ref.Loss(z, t, y, n, s)
		sums.Agree = sums.Positions
		return sums, dz
	}},
	{"teacher uncalled but counted", "loss/without", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		if t.V == nil {
			t = ref.New(z.Rows, z.Cols)
		}
		return ref.Loss(z, t, y, n, s)
	}},
	{"gradient not zero where teacher and student agree", "loss/z equals", func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		sums, dz := ref.Loss(z, t, y, n, s)
		for i := range dz.V {
			dz.V[i] += 1e-5
		}
		return sums, dz
	}},
}

// withSpec is the loss with a changed specification.
func withSpec(change func(*device.LossSpec)) func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
	return func(z, t ref.Mat, y []int, n float64, s device.LossSpec) (device.Scalars, ref.Mat) {
		change(&s)
		if t.V == nil {
			s.Alpha = 0
		}
		return ref.Loss(z, t, y, n, s)
	}
}

// withAdamW is the update with changed constants.
func withAdamW(change func(*device.AdamW, *device.Scalars)) func(w, g, m, v ref.Mat, decay bool, a device.AdamW, s device.Scalars) {
	return func(w, g, m, v ref.Mat, decay bool, a device.AdamW, s device.Scalars) {
		change(&a, &s)
		ref.AdamW(w, g, m, v, decay, a, s)
	}
}

func times(m ref.Mat, f float64) ref.Mat {
	m = m.Clone()
	for i := range m.V {
		m.V[i] *= f
	}
	return m
}

// permute reads value i of each head of d from place from(i).
func permute(m ref.Mat, d int, from func(int) int) ref.Mat {
	out := m.Clone()
	for r := range m.Rows {
		for c := range m.Cols {
			out.Row(r)[c] = m.Row(r)[c/d*d+from(c%d)]
		}
	}
	return out
}

// caught tells whether a case of the group fails on the device, and how.
func caught(t *testing.T, d *slow, group string) {
	t.Helper()
	n := 0
	for _, c := range Cases() {
		if !strings.HasPrefix(c.Name, group) {
			continue
		}
		n++
		if err := c.Check(d); err != nil {
			first, _, _ := strings.Cut(err.Error(), "\n")
			t.Logf("%s: %s", c.Name, first)
			if strings.HasPrefix(first, "panic") {
				t.Errorf("caught by a panic of the mutant, not by the suite")
			}
			return
		}
	}
	t.Errorf("passed all %d cases of %s", n, group)
}

func TestSuiteCatchesMutants(t *testing.T) {
	for _, m := range slices.Concat(mutants, blockMutants, expertMutants, linearMutants) {
		t.Run(m.name, func(t *testing.T) {
			d := newSlow(tensor.F32)
			m.plant(&d.ops)
			caught(t, d, m.group)
		})
	}
	t.Run("GLU of a product before it is rounded", func(t *testing.T) {
		d := newSlow(tensor.BF16)
		d.ops.gatesStored = false
		caught(t, d, "matmulglu/")
	})
	for _, m := range lossMutants {
		t.Run(m.name, func(t *testing.T) {
			d := newSlow(tensor.F32)
			d.ops.loss = m.loss
			caught(t, d, m.group)
		})
	}
}

// bestWith changes the largest value that ArgMax tells of a row.
func bestWith(change func(row []float64, told float64) float64) func(*ops) {
	return func(o *ops) {
		o.best = func(x ref.Mat) ref.Mat {
			best := ref.Best(x)
			for r := range x.Rows {
				best.Row(r)[1] = change(x.Row(r), best.Row(r)[1])
			}
			return best
		}
	}
}
