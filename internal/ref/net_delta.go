package ref

import "math"

// delta: Gated DeltaNet, token by token.
func (p *Pass) delta(i int, x *node) *node {
	d, t := p.net.Arch.Layers[i].Delta, &p.tape
	in := func(name string) *node { return t.linear(x, p.at(i, "linear_attn."+name+".weight"), nil) }
	u := p.conv(in("in_proj_qkv"), p.at(i, "linear_attn.conv1d.weight"))
	u = t.each(u, func(v float64) float64 { return v * sigmoid(v) }, func(v float64) float64 { s := sigmoid(v); return s * (1 + v*(1-s)) })
	kd, vd := d.KeyHeads*d.KeyDim, d.Inner()
	q := t.scale(p.l2(t.cols(u, 0, kd), d.KeyDim), 1/math.Sqrt(float64(d.KeyDim)))
	k := p.l2(t.cols(u, kd, 2*kd), d.KeyDim)
	v := t.cols(u, 2*kd, 2*kd+vd)
	beta := t.sigmoid(in("in_proj_b"))
	g := t.decay(in("in_proj_a"), p.at(i, "linear_attn.A_log"), p.at(i, "linear_attn.dt_bias"))
	o := p.recur(deltaIn{q, k, v, beta, g}, d.KeyHeads, d.KeyDim, d.ValueHeads, d.ValueDim)
	z, weight := in("in_proj_z"), p.at(i, "linear_attn.norm.weight")
	if p.net.planted.gateBeforeNorm {
		o = t.norm(t.gated(z, o, "silu"), weight, d.ValueDim, p.net.Arch.Eps, 0)
	} else {
		o = t.gated(z, t.norm(o, weight, d.ValueDim, p.net.Arch.Eps, 0), "silu")
	}
	return t.linear(o, p.at(i, "linear_attn.out_proj.weight"), nil)
}

// conv: y_t = Σ_j w_j·x_{t−K+1+j} per channel, zeros before the start of a row.
func (p *Pass) conv(x, w *node) *node {
	taps := w.Cols
	each := func(f func(to, from, j, c int)) {
		for n := range x.Rows {
			for j := range taps {
				if back := taps - 1 - j; n%p.seq >= back && !(p.net.planted.oneTap && back == taps-1) {
					for c := range x.Cols {
						f(n, n-back, j, c)
					}
				}
			}
		}
	}
	y := New(x.Rows, x.Cols)
	each(func(to, from, j, c int) { y.Row(to)[c] += w.Row(c)[j] * x.Row(from)[c] })
	return p.tape.of(y, func(dy Mat) {
		each(func(to, from, j, c int) {
			x.grad().Row(from)[c] += w.Row(c)[j] * dy.Row(to)[c]
			w.grad().Row(c)[j] += x.Row(from)[c] * dy.Row(to)[c]
		})
	})
}

// l2: x/√(Σx²+1e-6) over each d values.
func (p *Pass) l2(x *node, d int) *node {
	eps := 1e-6
	if p.net.planted.noL2Eps {
		eps = 0
	}
	// x/√(Σx²+ε) = (x/√(mean x²+ε/d))/√d, the norm without a weight
	return p.tape.scale(p.tape.norm(x, nil, d, eps/float64(d), 0), 1/math.Sqrt(float64(d)))
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

// recur runs, for each row and value head h with key head ⌊h·hk/hv⌋ and a state S [dk, dv] that begins at zero,
//
//	S̃ = e^g·S;  ε = v − S̃ᵀk;  S = S̃ + k(βε)ᵀ;  o = Sᵀq
//
// and backwards from the last position to the first
//
//	dS += q·doᵀ;  dq = S·do;  dδ = dSᵀk;  dβ = dδ·ε;  dε = β·dδ;  dv = dε;  dk = dS(βε) − S̃·dε;
//	dS̃ = dS − k·dεᵀ;  dg = ⟨dS̃, S̃⟩;  dS = e^g·dS̃
func (p *Pass) recur(in deltaIn, hk, dk, hv, dv int) *node {
	o := New(in.v.Rows, hv*dv)
	keyHead := func(h int) int {
		if p.net.planted.tiledHeads {
			return h % hk
		}
		return h * hk / hv
	}
	// what the backward needs of each position and head: S̃, S and ε
	decayed, states, errs := make([]Mat, len(in.beta.V)), make([]Mat, len(in.beta.V)), make([][]float64, len(in.beta.V))
	for n := range o.Rows {
		for h := range hv {
			at := n*hv + h
			s, k, q, v := New(dk, dv), headOf(in.k.Row(n), keyHead(h), dk), headOf(in.q.Row(n), keyHead(h), dk), headOf(in.v.Row(n), h, dv)
			if n%p.seq > 0 {
				s = states[at-hv].Clone()
			}
			for i := range s.V {
				s.V[i] *= math.Exp(in.g.V[at])
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
					o.Row(n)[h*dv+b] += s.Row(a)[b] * q[a]
				}
			}
			states[at], errs[at] = s, err
		}
	}
	return p.tape.of(o, func(do Mat) {
		ds := make([]Mat, hv)
		for n := o.Rows - 1; n >= 0; n-- {
			for h := range hv {
				at := n*hv + h
				if n%p.seq == p.seq-1 {
					ds[h] = New(dk, dv)
				}
				d, err, beta := headOf(do.Row(n), h, dv), errs[at], in.beta.V[at]
				k, q := headOf(in.k.Row(n), keyHead(h), dk), headOf(in.q.Row(n), keyHead(h), dk)
				dkn, dqn := headOf(in.k.grad().Row(n), keyHead(h), dk), headOf(in.q.grad().Row(n), keyHead(h), dk)
				dvn := headOf(in.v.grad().Row(n), h, dv)
				delta := make([]float64, dv) // dδ
				for a := range dk {
					for b := range dv {
						ds[h].Row(a)[b] += q[a] * d[b]
						dqn[a] += states[at].Row(a)[b] * d[b]
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
	})
}
