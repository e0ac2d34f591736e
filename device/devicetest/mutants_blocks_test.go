package devicetest

import (
	"math"
	"slices"

	"apr/device"
	"apr/internal/ref"
)

// blockMutants are mistakes in what decoders have beyond Qwen2.
var blockMutants = []mutant{
	{"window of one key more", "attention/masked", withAttn(func(a *device.Attn) {
		if a.Window > 0 {
			a.Window++
		}
	})},
	{"window without the own key", "attention/masked", withAttn(func(a *device.Attn) {
		if a.Window > 1 {
			a.Window--
		}
	})},
	{"no window", "attention/masked", withAttn(func(a *device.Attn) { a.Window = 0 })},
	{"window as if queries began at key 0", "attention/masked", func(o *ops) {
		o.attention = func(q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (x, lse ref.Mat) {
			if a.Window > 0 {
				a.Window += a.QOffset
			}
			return ref.Attention(q, k, v, a, first, sinks)
		}
	}},
	{"scale of scores ignored", "attention/masked", withAttn(func(a *device.Attn) { a.Scale = 0 })},
	{"soft-cap of scores ignored", "attention/masked", withAttn(func(a *device.Attn) { a.Cap = 0 })},
	{"gradient of scores without the soft-cap's slope", "attention/masked", func(o *ops) { o.attentionBack = withoutSlope }},
	{"soft-cap after the mask", "attention/masked", func(o *ops) { o.attention = capAfterMask }},
	{"documents ignored", "attention/masked", withFirst(func([]int, device.Attn) []int { return nil })},
	{"documents begin a key late", "attention/masked", withFirst(func(first []int, _ device.Attn) []int {
		first = slices.Clone(first)
		for i := range first {
			first[i]++
		}
		return first
	})},
	{"documents of the first batch row", "attention/masked", withFirst(func(first []int, a device.Attn) []int {
		first = slices.Clone(first)
		for i := range first {
			first[i] = first[i%a.QLen]
		}
		return first
	})},
	{"documents instead of the window", "attention/masked", func(o *ops) {
		o.attention = func(q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (x, lse ref.Mat) {
			if first != nil {
				a.Window = 0
			}
			return ref.Attention(q, k, v, a, first, sinks)
		}
	}},
	{"dropout without its scale", "dropout/", withDropout(func(y ref.Mat, d device.Drop) ref.Mat { return ref.Scale(y, 1-d.Rate) })},
	{"dropout that keeps what it should drop", "dropout/", func(o *ops) {
		o.dropout = func(x ref.Mat, d device.Drop) ref.Mat {
			y := x.Clone()
			for i := range y.V {
				if y.V[i] /= 1 - d.Rate; !d.Drops(uint64(d.First*x.Cols + i)) {
					y.V[i] = 0
				}
			}
			return y
		}
	}},
	{"dropout by the row of the tensor", "dropout/", func(o *ops) {
		o.dropout = func(x ref.Mat, d device.Drop) ref.Mat { d.First = 0; return ref.Dropout(x, d) }
	}},
	{"dropout of one key", "dropout/", func(o *ops) {
		o.dropout = func(x ref.Mat, d device.Drop) ref.Mat { d.Key = 0; return ref.Dropout(x, d) }
	}},
	{"norm of heads over the row", "headnorm/", func(o *ops) {
		o.headNorm = func(x, w ref.Mat, headDim int, eps float64) (y, rstd ref.Mat) {
			y, one := ref.HeadNorm(x, ref.Mat{}, x.Cols, eps)
			rstd = ref.New(x.Rows, x.Cols/headDim)
			for i := range rstd.V {
				rstd.V[i] = one.V[i/rstd.Cols]
			}
			for i := range y.V {
				if w.V != nil {
					y.V[i] *= w.V[i%headDim]
				}
			}
			return y, rstd
		}
	}},
	{"norm of heads without eps", "headnorm/tiny", func(o *ops) {
		o.headNorm = func(x, w ref.Mat, headDim int, _ float64) (y, rstd ref.Mat) {
			return ref.HeadNorm(x, w, headDim, 1e-12)
		}
	}},
	{"weight of heads without gradient", "headnorm/", func(o *ops) {
		o.headNormBack = func(dy, x, rstd, w ref.Mat, headDim int) (dx, dw ref.Mat) {
			dx, dw = ref.HeadNormBackward(dy, x, rstd, w, headDim)
			return dx, times(dw, 0)
		}
	}},
	{"weight of heads with the last head's gradient", "headnorm/", func(o *ops) {
		o.headNormBack = func(dy, x, rstd, w ref.Mat, headDim int) (dx, dw ref.Mat) {
			dx, _ = ref.HeadNormBackward(dy, x, rstd, w, headDim)
			lo, h := x.Cols-headDim, x.Cols/headDim
			_, dw = ref.HeadNormBackward(dy.ColRange(lo, x.Cols), x.ColRange(lo, x.Cols), rstd.ColRange(h-1, h), w, headDim)
			return dx, dw
		}
	}},
	{"gradient of heads without the weight", "headnorm/", func(o *ops) {
		o.headNormBack = func(dy, x, rstd, w ref.Mat, headDim int) (dx, dw ref.Mat) {
			dx, _ = ref.HeadNormBackward(dy, x, rstd, ref.Mat{}, headDim)
			_, dw = ref.HeadNormBackward(dy, x, rstd, w, headDim)
			return dx, dw
		}
	}},
	{"gradient of heads added", "headnorm/", func(o *ops) { o.headNormAdds = true }},
	{"rotation beyond the table", "rotary/", func(o *ops) {
		o.rotate = func(x ref.Mat, r device.Rotary, at []int) ref.Mat {
			r.Table = frequencies(1e4, r.HeadDim)
			return ref.Rotate(x, r, at)
		}
	}},
	{"rotation of halves of the head", "rotary/", func(o *ops) {
		o.rotate = func(x ref.Mat, r device.Rotary, at []int) ref.Mat {
			inv := make([]float64, r.HeadDim/2)
			copy(inv, r.Table.Inv)
			r.Table = &device.Frequencies{Inv: inv, Factor: r.Table.Factor}
			return ref.Rotate(x, r, at)
		}
	}},
	{"rotation without its factor", "rotary/", withRotary(func(r *device.Rotary) { r.Table = &device.Frequencies{Inv: r.Table.Inv} })},
	{"inverse rotation by the inverse factor", "rotary/", withRotary(func(r *device.Rotary) {
		if r.Inverse {
			r.Table = &device.Frequencies{Inv: r.Table.Inv, Factor: 1 / r.Table.Gain()}
		}
	})},
	{"queries not scaled", "rotary/", withRotary(func(r *device.Rotary) { r.QBeta = 0 })},
	{"queries scaled forward only", "rotary/", withRotary(func(r *device.Rotary) {
		if r.Inverse {
			r.QBeta = 0
		}
	})},
	{"queries scaled without a floor", "rotary/", func(o *ops) {
		o.rotate = func(x ref.Mat, r device.Rotary, at []int) ref.Mat {
			plain := r
			plain.QBeta = 0
			y := ref.Rotate(x, plain, at)
			for n := range y.Rows {
				p := r.Offset + n%r.SeqLen
				if at != nil {
					p = at[n]
				}
				for c := range y.Cols {
					if r.QBeta > 0 {
						y.Row(n)[c] *= 1 + r.QBeta*math.Log(1+float64(p)/float64(r.QLength))
					}
				}
			}
			return y
		}
	}},
	{"positions ignored", "rotary/", func(o *ops) {
		o.rotate = func(x ref.Mat, r device.Rotary, _ []int) ref.Mat { return ref.Rotate(x, r, nil) }
	}},
	{"GELU by erf", "glu/gelu_tanh", func(o *ops) {
		o.glu = func(gu ref.Mat, act device.Activation) ref.Mat {
			if act != device.GELUTanh {
				return ref.GLU(gu, act)
			}
			f := gu.Cols / 2
			m := ref.New(gu.Rows, f)
			for r := range m.Rows {
				for c := range f {
					g := gu.Row(r)[c]
					m.Row(r)[c] = g / 2 * (1 + math.Erf(g/math.Sqrt2)) * gu.Row(r)[f+c]
				}
			}
			return m
		}
	}},
	{"SiLU for GELU", "matmulglu/", func(o *ops) {
		o.gated = func(gu ref.Mat, _ device.Activation) ref.Mat { return ref.GLU(gu, device.SiLU) }
	}},
	{"gradient of SiLU for GELU's", "glu/gelu_tanh", func(o *ops) {
		o.gluBack = func(dm, gu ref.Mat, _ device.Activation) ref.Mat { return ref.GLUBackward(dm, gu, device.SiLU) }
	}},
	{"sum as a copy", "elements/", func(o *ops) { o.plus = func(dst, src ref.Mat) { copy(dst.V, src.V) } }},
	{"factor forgotten", "elements/", func(o *ops) { o.scale = func(x ref.Mat, _ float64) ref.Mat { return x } }},
	{"soft-cap as a limit", "elements/", func(o *ops) {
		o.softCap = func(x ref.Mat, c float64) ref.Mat {
			y := x.Clone()
			for i, v := range y.V {
				y.V[i] = max(-c, min(c, v))
			}
			return y
		}
	}},
}

// base returns f for θ times by.
func base(f *device.Frequencies, by float64) *device.Frequencies {
	f = &device.Frequencies{Inv: slices.Clone(f.Inv), Factor: f.Factor}
	for i := range f.Inv {
		f.Inv[i] *= math.Pow(by, -float64(i)/float64(len(f.Inv)))
	}
	return f
}

// withAttn is attention and its backward of a changed description.
func withAttn(change func(*device.Attn)) func(*ops) {
	return func(o *ops) {
		o.attention = func(q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (x, lse ref.Mat) {
			change(&a)
			return ref.Attention(q, k, v, a, first, sinks)
		}
		o.attentionBack = func(do, o, q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (dq, dk, dv ref.Mat) {
			change(&a)
			return ref.AttentionBackward(do, o, q, k, v, a, first, sinks)
		}
	}
}

// withFirst is attention to other documents.
func withFirst(change func([]int, device.Attn) []int) func(*ops) {
	return func(o *ops) {
		o.attention = func(q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (x, lse ref.Mat) {
			return ref.Attention(q, k, v, a, change(first, a), sinks)
		}
	}
}

// withRotary is the rotary embedding of a changed description.
func withRotary(change func(*device.Rotary)) func(*ops) {
	return func(o *ops) {
		o.rotate = func(x ref.Mat, r device.Rotary, at []int) ref.Mat {
			change(&r)
			return ref.Rotate(x, r, at)
		}
	}
}

// scoresOf returns the scaled and capped scores of row n and head h with every key of its batch row, the first row of those
// keys, and which of them the query sees.
func scoresOf(q, k ref.Mat, a device.Attn, first []int, n, h int) (t []float64, row int, sees func(j int) bool) {
	row = n / a.QLen * a.KStride
	own, kv := a.QOffset+n%a.QLen, h*a.KVHeads/a.Heads
	for j := range a.KLen {
		s := 0.0
		for c := range a.HeadDim {
			s += q.Row(n)[h*a.HeadDim+c] * k.Row(row + j)[kv*a.HeadDim+c]
		}
		if s *= a.ScoreScale(); a.Cap > 0 {
			s = a.Cap * math.Tanh(s/a.Cap)
		}
		t = append(t, s)
	}
	return t, row, func(j int) bool {
		return j <= own && (a.Window == 0 || j > own-a.Window) && (first == nil || j >= min(first[n], own))
	}
}

// capAfterMask gives keys that a query does not see the score −Cap, where there is a cap.
func capAfterMask(q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (o, lse ref.Mat) {
	if a.Cap == 0 {
		return ref.Attention(q, k, v, a, first, sinks)
	}
	o, lse = ref.New(q.Rows, q.Cols), ref.New(q.Rows, a.Heads)
	for n := range a.Batch * a.QLen {
		for h := range a.Heads {
			t, row, sees := scoresOf(q, k, a, first, n, h)
			sum, kv := 0.0, h*a.KVHeads/a.Heads
			for j := range t {
				if !sees(j) {
					t[j] = -a.Cap
				}
				t[j] = math.Exp(t[j])
				sum += t[j]
			}
			for j, p := range t {
				for c := range a.HeadDim {
					o.Row(n)[h*a.HeadDim+c] += p / sum * v.Row(row + j)[kv*a.HeadDim+c]
				}
			}
			lse.Row(n)[h] = math.Log(sum)
		}
	}
	return o, lse
}

// withoutSlope is the backward of attention with the slope of the soft-cap taken for 1.
func withoutSlope(do, o, q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (dq, dk, dv ref.Mat) {
	_, lse := ref.Attention(q, k, v, a, first, sinks)
	_, _, dv = ref.AttentionBackward(do, o, q, k, v, a, first, sinks)
	dq, dk = ref.New(q.Rows, q.Cols), ref.New(k.Rows, k.Cols)
	for n := range a.Batch * a.QLen {
		for h := range a.Heads {
			t, row, sees := scoresOf(q, k, a, first, n, h)
			qs, ks := h*a.HeadDim, h*a.KVHeads/a.Heads*a.HeadDim
			for j := range t {
				if !sees(j) {
					continue
				}
				dp := 0.0
				for c := range a.HeadDim {
					dp += do.Row(n)[qs+c] * (v.Row(row + j)[ks+c] - o.Row(n)[qs+c])
				}
				ds := math.Exp(t[j]-lse.Row(n)[h]) * dp * a.ScoreScale()
				for c := range a.HeadDim {
					dq.Row(n)[qs+c] += ds * k.Row(row + j)[ks+c]
					dk.Row(row + j)[ks+c] += ds * q.Row(n)[qs+c]
				}
			}
		}
	}
	return dq, dk, dv
}

// withDropout changes what Dropout writes.
func withDropout(change func(y ref.Mat, d device.Drop) ref.Mat) func(*ops) {
	return func(o *ops) {
		o.dropout = func(x ref.Mat, d device.Drop) ref.Mat { return change(ref.Dropout(x, d), d) }
	}
}
