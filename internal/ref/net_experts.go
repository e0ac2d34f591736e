package ref

import (
	"fmt"
	"math"
	"slices"

	"apr/arch"
)

// experts: y = Σ w_e·expert_e(x) over the experts that the router, which reads routed, chooses for each row.
func (p *Pass) experts(i int, x, routed *node) *node {
	m, t := p.net.Arch.Layers[i].FFN.MoE, &p.tape
	names := "mlp.gate"
	switch {
	case m.Beside:
		names = "router.proj"
	case p.net.Params[fmt.Sprintf("model.layers.%d.mlp.router.weight", i)].V != nil:
		names = "mlp.router"
	}
	var bias *node
	if m.Bias {
		bias = p.at(i, names+".bias")
	}
	z := t.linear(routed, p.at(i, names+".weight"), bias)
	p.balanced(z)
	chosen, fixed := p.net.Chosen[i]
	if !fixed {
		chosen = Choose(z.Mat, m.Active)
	}
	w := t.route(z, chosen, m)
	p.routers = append(p.routers, router{i, z, chosen})
	if m.Beside {
		w = t.mul(w, t.pick(p.at(i, "router.per_expert_scale"), chosen, m.Active))
	}
	y := t.of(New(x.Rows, x.Cols), func(Mat) {}) // the sum; each expert's backward reads its gradient
	for e := range m.Experts {
		var rows, at []int // rows that chose e, and where w has its weight
		for n := range x.Rows {
			if s := slices.Index(chosen[n*m.Active:(n+1)*m.Active], e); s >= 0 {
				rows, at = append(rows, n), append(at, n*m.Active+s)
			}
		}
		if len(rows) > 0 {
			t.weigh(y, p.expert(i, e, t.gather(x, rows)), w, rows, at)
		}
	}
	if m.Shared > 0 {
		return t.add(y, p.shared(i, x), 1)
	}
	return y
}

// shared is the expert that every row uses: σ(x·w_s)·mlp(x).
func (p *Pass) shared(i int, x *node) *node {
	t := &p.tape
	in := func(name string) *node { return t.linear(x, p.at(i, "mlp.shared_expert"+name+".weight"), nil) }
	mlp := t.linear(t.gated(in(".gate_proj"), in(".up_proj"), p.net.Arch.Layers[i].FFN.Act), p.at(i, "mlp.shared_expert.down_proj.weight"), nil)
	return t.mul(mlp, t.sigmoid(in("_gate")))
}

// expert is the dense network of expert e.
func (p *Pass) expert(i, e int, x *node) *node {
	f, t := p.net.Arch.Layers[i].FFN, &p.tape
	h, width := p.net.Arch.Hidden, f.MoE.Width
	part := func(name string, out int, x *node) *node {
		var bias *node
		if f.MoE.Bias {
			bias = p.at(i, "mlp.experts."+name+".bias").rows(e, e+1)
		}
		return t.linear(x, p.at(i, "mlp.experts."+name+".weight").rows(e*out, (e+1)*out), bias)
	}
	return part("down_proj", h, t.gated(part("gate_proj", width, x), part("up_proj", width, x), f.Act))
}

// beside: norm_1(dense) + norm_2(experts(pre_2(x))); the router reads x·r·scale/√H. y is pre(x).
func (p *Pass) beside(i int, dense, y, x *node) *node {
	t, c := &p.tape, p.net.Arch
	routed := x
	if p.net.planted.routerOnNorm {
		routed = y
	}
	routed = t.norm(routed, nil, c.Hidden, c.Eps, 0)
	routed = t.scale(t.mul(routed, p.at(i, "router.scale")), 1/math.Sqrt(float64(c.Hidden)))
	in := p.layerNorm(i, "pre_feedforward_layernorm_2", x)
	if p.net.planted.expertsOnNorm {
		in = y
	}
	out := p.layerNorm(i, "post_feedforward_layernorm_2", p.experts(i, in, routed))
	return t.add(p.layerNorm(i, "post_feedforward_layernorm_1", dense), out, 1)
}

// route returns the weights [rows, Active] of the experts that each row of z has chosen.
func (t *tape) route(z *node, chosen []int, m arch.MoE) (w *node) {
	weights, probs := New(z.Rows, m.Active), New(z.Rows, z.Cols)
	for n := range z.Rows {
		row, order := z.Row(n), chosen[n*m.Active:(n+1)*m.Active]
		lse := logSumExp(row)
		if m.TopKFirst || m.Renorm { // dividing probabilities by their sum is the softmax of the chosen logits
			picked := make([]float64, m.Active)
			for s, e := range order {
				picked[s] = row[e]
			}
			lse = logSumExp(picked)
		}
		for e, v := range row {
			probs.Row(n)[e] = math.Exp(v - lse)
		}
		for s, e := range order {
			weights.Row(n)[s] = probs.Row(n)[e]
		}
	}
	return t.of(weights, func(dw Mat) {
		for n := range z.Rows {
			mean := 0.0
			for s := range m.Active {
				mean += weights.Row(n)[s] * dw.Row(n)[s]
			}
			dz := z.grad().Row(n)
			for s, e := range chosen[n*m.Active : (n+1)*m.Active] {
				dz[e] += weights.Row(n)[s] * dw.Row(n)[s]
				if m.TopKFirst || m.Renorm {
					dz[e] -= weights.Row(n)[s] * mean
				}
			}
			if !m.TopKFirst && !m.Renorm { // softmax over all
				for e, prob := range probs.Row(n) {
					dz[e] -= prob * mean
				}
			}
		}
	})
}

// pick: y[n][s] = x[chosen[n·k+s]], of a row x.
func (t *tape) pick(x *node, chosen []int, k int) *node {
	y := New(len(chosen)/k, k)
	for i, e := range chosen {
		y.V[i] = x.V[e]
	}
	return t.of(y, func(dy Mat) {
		for i, e := range chosen {
			x.grad().V[e] += dy.V[i]
		}
	})
}

// gather: y[i] = x[rows[i]].
func (t *tape) gather(x *node, rows []int) *node { return t.embed(x, rows) }

// weigh: y[rows[i]] += w[at[i]]·x[i].
func (t *tape) weigh(y, x, w *node, rows, at []int) {
	for i, n := range rows {
		for c, v := range x.Row(i) {
			y.Row(n)[c] += w.V[at[i]] * v
		}
	}
	t.steps = append(t.steps, func() {
		for i, n := range rows {
			dy := y.grad().Row(n)
			w.grad().V[at[i]] += dot(dy, x.Row(i))
			for c, d := range dy {
				x.grad().Row(i)[c] += w.V[at[i]] * d
			}
		}
	})
}
