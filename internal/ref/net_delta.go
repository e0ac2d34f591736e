package ref

import "math"

// sequences are rows of seq positions, with documents that begin at starts[n] in their row, or nil.
type sequences struct {
	seq    int
	starts []int
}

// position returns that of row n in its document.
func (s sequences) position(n int) int {
	if s.starts != nil {
		return n%s.seq - s.starts[n]
	}
	return n % s.seq
}

// last reports whether row n of all is the last of its document.
func (s sequences) last(n, all int) bool { return n == all-1 || s.position(n+1) == 0 }

// deltaRule says how the delta rule is computed: heads, documents, the states before the first positions (V nil: zero), and
// planted errors.
type deltaRule struct {
	sequences
	hk, dk, hv, dv int
	from           Mat // [rows·hv, dk·dv]
	planted        planted
}

// keyHead returns the key head of value head h.
func (d deltaRule) keyHead(h int) int {
	if d.planted.tiledHeads {
		return h % d.hk
	}
	return h * d.hk / d.hv
}

// delta: Gated DeltaNet, token by token.
func (p *Pass) delta(i int, x *node) *node {
	d, t := p.net.Arch.Layers[i].Delta, &p.tape
	rows := sequences{p.seq, p.starts}
	in := func(name string) *node { return t.linear(x, p.at(i, "linear_attn."+name+".weight"), nil) }
	u := t.silu(t.conv(in("in_proj_qkv"), p.at(i, "linear_attn.conv1d.weight"), rows, Mat{}, p.net.planted.oneTap))
	rule := deltaRule{sequences: rows, hk: d.KeyHeads, dk: d.KeyDim, hv: d.ValueHeads, dv: d.ValueDim, planted: p.net.planted}
	o, _ := t.deltaRule(u, in("in_proj_b"), in("in_proj_a"), p.at(i, "linear_attn.A_log"), p.at(i, "linear_attn.dt_bias"), rule)
	z, weight := in("in_proj_z"), p.at(i, "linear_attn.norm.weight")
	if p.net.planted.gateBeforeNorm {
		o = t.norm(t.gated(z, o, "silu"), weight, d.ValueDim, p.net.Arch.Eps, 0)
	} else {
		o = t.gated(z, t.norm(o, weight, d.ValueDim, p.net.Arch.Eps, 0), "silu")
	}
	return t.linear(o, p.at(i, "linear_attn.out_proj.weight"), nil)
}

// silu: x·σ(x), slope σ(1+x(1−σ)).
func (t *tape) silu(x *node) *node {
	return t.each(x, func(v float64) float64 { return v * sigmoid(v) }, func(v float64) float64 { s := sigmoid(v); return s * (1 + v*(1-s)) })
}

// conv: y_t = Σ_j w_j·x_{t−K+1+j} per channel; before the start of a document zeros, before that of a row the K−1 rows of
// from, if it has any. oneTap leaves the oldest tap out.
func (t *tape) conv(x, w *node, s sequences, from Mat, oneTap bool) *node {
	taps := w.Cols
	each := func(f func(to, from, j, c int), before func(to, from, j, c int)) {
		for n := range x.Rows {
			for j := range taps {
				back, at := taps-1-j, s.position(n)
				for c := range x.Cols {
					switch {
					case oneTap && back == taps-1:
					case at >= back:
						f(n, n-back, j, c)
					case from.V != nil:
						before(n, n/s.seq*(taps-1)+taps-1+at-back, j, c)
					}
				}
			}
		}
	}
	y := New(x.Rows, x.Cols)
	each(func(to, from, j, c int) { y.Row(to)[c] += w.Row(c)[j] * x.Row(from)[c] },
		func(to, at, j, c int) { y.Row(to)[c] += w.Row(c)[j] * from.Row(at)[c] })
	return t.of(y, func(dy Mat) {
		each(func(to, from, j, c int) {
			x.grad().Row(from)[c] += w.Row(c)[j] * dy.Row(to)[c]
			w.grad().Row(c)[j] += x.Row(from)[c] * dy.Row(to)[c]
		}, func(int, int, int, int) {})
	})
}

// deltaRule: u holds q, k and v behind the convolution, b and a are projections; it returns o and the states behind the last
// positions.
func (t *tape) deltaRule(u, b, a, log, dt *node, d deltaRule) (o *node, to Mat) {
	kd := d.hk * d.dk
	eps := 1e-6
	if d.planted.noL2Eps {
		eps = 0
	}
	q := t.scale(t.l2(t.cols(u, 0, kd), d.dk, eps), 1/math.Sqrt(float64(d.dk)))
	k := t.l2(t.cols(u, kd, 2*kd), d.dk, eps)
	v := t.cols(u, 2*kd, u.Cols)
	return t.recur(deltaIn{q, k, v, t.sigmoid(b), t.decay(a, log, dt)}, d)
}

// l2: x/√(Σx²+ε) over each d values.
func (t *tape) l2(x *node, d int, eps float64) *node {
	// x/√(Σx²+ε) = (x/√(mean x²+ε/d))/√d, the norm without a weight
	return t.scale(t.norm(x, nil, d, eps/float64(d), 0), 1/math.Sqrt(float64(d)))
}

// decay: g = −e^A·softplus(a+dt), a column for each head.
func (t *tape) decay(a, log, dt *node) *node {
	softplus := func(x float64) float64 { return math.Max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }
	g := New(a.Rows, a.Cols)
	for n := range a.Rows {
		for h, x := range a.Row(n) {
			g.Row(n)[h] = -math.Exp(log.V[h]) * softplus(x+dt.V[h])
		}
	}
	return t.of(g, func(dg Mat) {
		for n := range a.Rows {
			for h, x := range a.Row(n) {
				log.grad().V[h] += dg.Row(n)[h] * g.Row(n)[h]
				dx := -dg.Row(n)[h] * math.Exp(log.V[h]) * sigmoid(x+dt.V[h])
				a.grad().Row(n)[h] += dx
				dt.grad().V[h] += dx
			}
		}
	})
}

// deltaIn are the inputs of the recurrence: q and k [n, hk·dk], v [n, hv·dv], β and g [n, hv].
type deltaIn struct{ q, k, v, beta, g *node }

// recur runs, for each document and value head h with key head ⌊h·hk/hv⌋ and a state S [dk, dv] that begins at zero or at from,
//
//	S̃ = e^g·S;  ε = v − S̃ᵀk;  S = S̃ + k(βε)ᵀ;  o = Sᵀq
//
// and backwards from the last position to the first
//
//	dS += q·doᵀ;  dq = S·do;  dδ = dSᵀk;  dβ = dδ·ε;  dε = β·dδ;  dv = dε;  dk = dS(βε) − S̃·dε;
//	dS̃ = dS − k·dεᵀ;  dg = ⟨dS̃, S̃⟩;  dS = e^g·dS̃
func (t *tape) recur(in deltaIn, d deltaRule) (_ *node, to Mat) {
	dk, dv, hv := d.dk, d.dv, d.hv
	o := New(in.v.Rows, hv*dv)
	to = New(in.v.Rows/max(d.seq, 1)*hv, dk*dv)
	// what the backward needs of each position and head: S̃, S and ε
	decayed, states, errs := make([]Mat, len(in.beta.V)), make([]Mat, len(in.beta.V)), make([][]float64, len(in.beta.V))
	for n := range o.Rows {
		for h := range hv {
			at, row := n*hv+h, n/d.seq*hv+h
			s, k, q, v := New(dk, dv), headOf(in.k.Row(n), d.keyHead(h), dk), headOf(in.q.Row(n), d.keyHead(h), dk), headOf(in.v.Row(n), h, dv)
			switch {
			case d.position(n) > 0:
				s = states[at-hv].Clone()
			case d.from.V != nil:
				copy(s.V, d.from.Row(row))
			}
			decay := math.Exp(in.g.V[at])
			if !d.planted.lateDecay {
				scaleBy(s, decay)
			}
			decayed[at] = s.Clone()
			err := append([]float64(nil), v...)
			for a := range dk {
				for b := range dv {
					err[b] -= s.Row(a)[b] * k[a]
				}
			}
			for a := range dk {
				for b := range dv {
					s.Row(a)[b] += k[a] * in.beta.V[at] * err[b]
				}
			}
			if d.planted.lateDecay {
				scaleBy(s, decay)
			}
			for a := range dk {
				for b := range dv {
					o.Row(n)[h*dv+b] += s.Row(a)[b] * q[a]
				}
			}
			states[at], errs[at] = s, err
			copy(to.Row(row), s.V)
		}
	}
	return t.of(o, func(do Mat) { d.back(in, do, decayed, states, errs) }), to
}

func scaleBy(m Mat, f float64) {
	for i := range m.V {
		m.V[i] *= f
	}
}

// back is the backward of recur.
func (d deltaRule) back(in deltaIn, do Mat, decayed, states []Mat, errs [][]float64) {
	dk, dv, hv := d.dk, d.dv, d.hv
	ds := make([]Mat, hv)
	for n := do.Rows - 1; n >= 0; n-- {
		for h := range hv {
			at := n*hv + h
			if d.last(n, do.Rows) {
				ds[h] = New(dk, dv)
			}
			dout, err, beta := headOf(do.Row(n), h, dv), errs[at], in.beta.V[at]
			k, q := headOf(in.k.Row(n), d.keyHead(h), dk), headOf(in.q.Row(n), d.keyHead(h), dk)
			dkn, dqn := headOf(in.k.grad().Row(n), d.keyHead(h), dk), headOf(in.q.grad().Row(n), d.keyHead(h), dk)
			dvn := headOf(in.v.grad().Row(n), h, dv)
			delta := make([]float64, dv) // dδ
			for a := range dk {
				for b := range dv {
					ds[h].Row(a)[b] += q[a] * dout[b]
					dqn[a] += states[at].Row(a)[b] * dout[b]
					delta[b] += ds[h].Row(a)[b] * k[a]
				}
			}
			in.beta.grad().V[at] += dot(delta, err)
			for b := range dv {
				dvn[b] += beta * delta[b]
			}
			for a := range dk {
				for b := range dv {
					dkn[a] += ds[h].Row(a)[b]*beta*err[b] - decayed[at].Row(a)[b]*beta*delta[b]
					ds[h].Row(a)[b] -= k[a] * beta * delta[b]
					in.g.grad().V[at] += ds[h].Row(a)[b] * decayed[at].Row(a)[b]
					ds[h].Row(a)[b] *= math.Exp(in.g.V[at])
				}
			}
		}
	}
}
