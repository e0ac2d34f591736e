package model

import (
	"math"

	"apr/arch"
	"apr/device"
	"apr/tensor"
)

// mixture is the experts of a layer. Matrices of all experts stand below each other.
//
//	z = router·y,  w = the weights of the chosen experts,  y = Σ w·down(glu(gate(y), up(y)))
//
// Beside the dense network (arch.MoE.Beside) both read the residual stream x: y = norm(x; pre), and the router norm(x; scale)/√h.
type mixture struct {
	router                  linear // [E, h]
	scale                   vector // [1, h]: of the router's input
	perExpert               vector // [1, E]: of the weights
	gate, up, down          linear // [E·f, h], [E·f, h], [E·h, f]; biases [E, f], [E, f], [E, h]
	pre, postDense, postSum vector // [1, h]: norms before the experts, behind the dense network, behind the sum of the experts
}

// expertActs are the intermediate tensors of the experts of a layer. A slot is a position at one of its k experts.
type expertActs struct {
	yRouter, y, rstd               device.Tensor // Beside: normed input of the router, of the experts, [n, h]; 1/σ of both
	z, w                           device.Tensor // logits [n, E], weights [n, k]
	chosen, slots, rows, starts    device.Tensor // see device.Routing
	xs                             device.Tensor // [n·k, h]: the input of each slot
	gateUp, glu, ys                device.Tensor // [n·k, 2f], [n·k, f], [n·k, h]: gate and up, their product, what an expert gives
	dense, rstdDense, sum, rstdSum device.Tensor // Beside: outputs of the dense network and of the experts before their norms, 1/σ
}

// routing describes the choice of experts.
func (e *expertActs) routing(m arch.MoE) device.Routing {
	return device.Routing{
		Experts: m.Experts, Active: m.Active, Renorm: m.TopKFirst || m.Renorm, Chosen: e.chosen, Slots: e.slots, Rows: e.rows, Starts: e.starts,
	}
}

// expertNeeds lists the tensors of k's experts, of n positions. The rows of slots are copied again instead of kept.
func (b *layer) expertNeeds(e *expertActs, n, h int, act tensor.DType) []need {
	m := b.FFN.MoE
	if m == (arch.MoE{}) {
		return nil
	}
	slots := n * m.Active
	list := []need{
		{&e.z, RecomputeNorms, "router", tensor.F32, m.Experts, false, 0},
		{&e.w, RecomputeNorms, "routing", tensor.F32, m.Active, false, 0},
		{&e.chosen, RecomputeNorms, "routing.chosen", tensor.I32, 1, false, slots},
		{&e.slots, RecomputeNorms, "routing.slots", tensor.I32, 1, false, slots},
		{&e.rows, RecomputeNorms, "routing.rows", tensor.I32, 1, false, slots},
		{&e.starts, RecomputeNorms, "routing.starts", tensor.I32, 1, false, m.Experts + 1},
		{&e.xs, keptByNone, "experts.x", act, h, false, slots},
		{&e.gateUp, RecomputeNorms, "experts.gate_up", act, 2 * m.Width, false, slots},
		{&e.glu, RecomputeNone, "experts.swiglu", act, m.Width, false, slots},
		{&e.ys, RecomputeNorms, "experts.y", act, h, false, slots},
	}
	if !m.Beside {
		return list
	}
	return append(list,
		need{&e.yRouter, RecomputeNone, "router.y", act, h, false, 0},
		need{&e.y, RecomputeNone, "experts.normed", act, h, false, 0},
		need{&e.rstd, RecomputeNorms, "experts.rstd", tensor.F32, 1, true, 0},
		need{&e.dense, RecomputeNorms, "dense", act, h, false, 0},
		need{&e.rstdDense, RecomputeNorms, "dense.rstd", tensor.F32, 1, true, 0},
		need{&e.sum, RecomputeNorms, "experts.sum", act, h, false, 0},
		need{&e.rstdSum, RecomputeNorms, "experts.sum_rstd", tensor.F32, 1, true, 0},
	)
}

// ffn runs the feed-forward branch and returns the residual stream v behind it. Without keep gate and up are undefined
// afterwards.
func (p *pass) ffn(b *layer, k *acts, v stream, in *operand, keep bool) stream {
	m := b.FFN.MoE
	if m == (arch.MoE{}) {
		p.gateUp(b, k, in, keep)
		if p.adding(b, b.postFFN) {
			b.down.keeping(k.low.down).add(p.s, v.x, k.glu)
			return v
		}
		p.branch(b.down.keeping(k.low.down), b.postFFN, b.Residual, k.z2, k.rstdZ2, k.glu)
		v.delta = p.delta
		return v
	}
	out := p.ahead(b.postFFN, k.z2)
	if m.Beside {
		p.beside(b, k, out, v.x, p.ready(in), keep)
	} else {
		p.logits(b, &k.moe, in)
		if p.adding(b, b.postFFN) {
			p.chosen(b, &k.moe, v.x, in.y, true)
			return v
		}
		p.chosen(b, &k.moe, out, in.y, false)
	}
	p.behind(b.postFFN, b.Residual, k.z2, k.rstdZ2)
	v.delta = p.delta
	return v
}

// gateUp writes k.glu = act(g)·u.
func (p *pass) gateUp(b *layer, k *acts, in *operand, keep bool) {
	s, n := p.reader(in)
	if s != nil && b.gateUp.lora == nil && s.NormMatMulGLU(k.glu, k.gateUp, n, b.gateUp.weight, b.act(), keep) {
		in.w = device.Tensor{}
		return
	}
	b.gateUp.keeping(k.low.gateUp).glu(p.s, k.glu, k.gateUp, p.ready(in), b.act(), keep)
}

// beside writes dst = postDense(dense(y)) + postSum(experts(pre(x))).
func (p *pass) beside(b *layer, k *acts, dst, x, y device.Tensor, keep bool) {
	var none device.Tensor
	e, eps := &k.moe, p.m.Config.Eps
	b.gateUp.keeping(k.low.gateUp).glu(p.s, k.glu, k.gateUp, y, b.act(), keep)
	b.down.keeping(k.low.down).forward(p.s, e.dense, k.glu)
	p.s.RMSNorm(e.yRouter, e.rstd, none, x, none, b.moe.scale.value, eps)
	p.logits(b, e, &operand{y: e.yRouter})
	p.s.RMSNorm(e.y, none, none, x, none, b.moe.pre.value, eps)
	p.chosen(b, e, e.sum, e.y, false)
	p.s.RMSNorm(dst, e.rstdDense, none, e.dense, none, b.moe.postDense.value, eps)
	second := e.xs.RowRange(0, dst.Rows) // which is not needed any more
	p.s.RMSNorm(second, e.rstdSum, none, e.sum, none, b.moe.postSum.value, eps)
	p.s.Add(dst, second)
}

// logits computes the router's logits and chooses. The factor 1/√h of a router beside the dense network is put on its logits.
func (p *pass) logits(b *layer, e *expertActs, in *operand) {
	l, r, scale := b.moe.router, e.routing(b.FFN.MoE), b.moe.perExpert.value
	if s, n := p.reader(in); s != nil && l.lora == nil && s.NormRoute(e.w, e.z, n, l.weight, l.bias.value, scale, r) {
		in.w = device.Tensor{}
	} else {
		l.forward(p.s, e.z, p.ready(in))
		if b.FFN.MoE.Beside {
			p.s.Scale(e.z, e.z, p.m.routerScale())
		}
		p.s.Route(e.w, e.z, scale, r)
	}
	if !p.counts.IsZero() {
		p.s.CountSlots(p.countsOf(b), r)
	}
}

// routerScale is the factor of the input of a router beside a dense network.
func (m *Model) routerScale() float64 { return 1 / math.Sqrt(float64(m.Config.Hidden)) }

// chosen writes the weighted sum of the chosen experts of each row of y to dst, or adds it.
func (p *pass) chosen(b *layer, e *expertActs, dst, y device.Tensor, add bool) {
	s, r, f := p.s, e.routing(b.FFN.MoE), b.FFN.MoE.Width
	if mix, ok := s.(device.Mixer); ok && p.cache != nil && mix.MixExperts(dst, e.glu, y, e.w, b.nets(), r, add) {
		return
	}
	if runner, ok := s.(device.ExpertRunner); !ok || !runner.RunExperts(e.ys, e.glu, e.gateUp, y, b.nets(), r) {
		s.Gather(e.xs, y, r.Rows)
		b.moe.gate.grouped(s, e.gateUp.ColRange(0, f), e.xs, r)
		b.moe.up.grouped(s, e.gateUp.ColRange(f, 2*f), e.xs, r)
		s.GLU(e.glu, e.gateUp, b.act())
		b.moe.down.grouped(s, e.ys, e.glu, r)
	}
	s.Combine(dst, e.ys, e.w, r, add)
}

// nets returns the matrices of the layer's experts.
func (b *layer) nets() device.ExpertNets {
	m := &b.moe
	return device.ExpertNets{
		Gate: m.gate.weight, Up: m.up.weight, Down: m.down.weight,
		GateBias: m.gate.bias.value, UpBias: m.up.bias.value, DownBias: m.down.bias.value, Act: b.act(),
	}
}

// renormed computes again what RecomputeNorms does not keep of experts.
func (p *pass) renormed(b *layer, k *acts) {
	e := &k.moe
	if b.FFN.MoE.Beside {
		var none device.Tensor
		p.s.RMSNorm(e.yRouter, none, none, k.x2, none, b.moe.scale.value, p.m.Config.Eps)
		p.s.RMSNorm(e.y, none, none, k.x2, none, b.moe.pre.value, p.m.Config.Eps)
	}
	p.s.GLU(e.glu, e.gateUp, b.act())
}

// besideGrad goes back through the dense network and the experts beside it, d being the gradient over their sum.
func (g *backward) besideGrad(b *layer, k *acts, d device.Tensor) {
	e := &k.moe
	dense := g.normGrad("ddense", d, e.dense, e.rstdDense, b.moe.postDense)
	sum := g.normGrad("dexperts", d, e.sum, e.rstdSum, b.moe.postSum)
	g.denseGrad(b, k, dense)
	g.choiceGrad(b, k, sum, e.y)
	g.s.Combine(g.dy, e.xs, device.Tensor{}, e.routing(b.FFN.MoE), false)
	g.s.RMSNormBackward(g.dx, b.moe.pre.grad(), g.dy, k.x2, e.rstd, b.moe.pre.value)
	g.routerGrad(b, e, g.dy, e.yRouter, false)
	g.s.RMSNormBackward(g.dx, b.moe.scale.grad(), g.dy, k.x2, e.rstd, b.moe.scale.value)
}

// expertsGrad goes back through the experts of a layer that has nothing else, d being the gradient over their sum.
func (g *backward) expertsGrad(b *layer, k *acts, d device.Tensor) {
	e, y := &k.moe, input(k.y2, k.x2)
	g.choiceGrad(b, k, d, y)
	normed := !b.preFFN.value.IsZero()
	dy := g.dx // d was the same, and is not needed any more
	if normed {
		dy = g.dy
	}
	g.s.Combine(dy, e.xs, device.Tensor{}, e.routing(b.FFN.MoE), !normed)
	g.routerGrad(b, e, dy, y, true)
	if normed {
		g.s.RMSNormBackward(g.dx, b.preFFN.grad(), dy, k.x2, k.rstd2, b.preFFN.value)
	}
}

// choiceGrad goes back from d, the gradient over the sum of the experts, to the inputs of slots, whose gradients it leaves in xs,
// and to the weights of the choice. y is the input.
func (g *backward) choiceGrad(b *layer, k *acts, d, y device.Tensor) {
	s, e := g.s, &k.moe
	r, f := e.routing(b.FFN.MoE), b.FFN.MoE.Width
	s.Gather(e.xs, y, r.Rows)
	s.CombineBackward(e.ys, g.w.take("drouting", tensor.F32, r.Active), d, e.ys, e.w, r)
	b.moe.down.groupedWeightGrad(s, e.ys, e.glu, r)
	dprod, dgu := e.glu, e.gateUp // written over what is not needed again
	b.moe.down.groupedInputGrad(s, dprod, e.ys, r, false)
	s.GLUBackward(dgu, dprod, e.gateUp, b.act())
	dgate, dup := dgu.ColRange(0, f), dgu.ColRange(f, 2*f)
	b.moe.gate.groupedWeightGrad(s, dgate, e.xs, r)
	b.moe.up.groupedWeightGrad(s, dup, e.xs, r)
	b.moe.gate.groupedInputGrad(s, e.xs, dgate, r, false)
	b.moe.up.groupedInputGrad(s, e.xs, dup, r, true)
}

// routerGrad goes back from the weights of the choice, whose gradients choiceGrad has left, to the router's input, y: it
// writes dy, or adds to it.
func (g *backward) routerGrad(b *layer, e *expertActs, dy, y device.Tensor, add bool) {
	m := b.FFN.MoE
	dw, dz := g.w.take("drouting", tensor.F32, m.Active), g.w.take("drouter", g.act, m.Experts)
	g.s.RouteBackward(dz, b.moe.perExpert.grad(), dw, e.z, b.moe.perExpert.value, e.routing(m))
	g.balanceGrad(e, dz)
	if m.Beside {
		g.s.Scale(dz, dz, g.m.routerScale())
	}
	b.moe.router.weightGrad(g.s, dz, y)
	b.moe.router.inputGrad(g.s, dy, dz, add)
}

// grouped writes y[j] = W_e·x[j] + b_e of the slots j of each expert e.
func (l linear) grouped(s device.Stream, y, x device.Tensor, r device.Routing) {
	s.GroupedMatMul(y, x, l.weight, l.bias.value, r)
}

// groupedWeightGrad adds to the gradients of the experts' matrices and biases, unless they are frozen.
func (l linear) groupedWeightGrad(s device.Stream, dy, x device.Tensor, r device.Routing) {
	if l.param != nil {
		s.GroupedWeightGrad(l.param.Grad, l.bias.grad(), dy, x, r)
	}
}

// groupedInputGrad writes the gradients of the inputs of slots, or adds them.
func (l linear) groupedInputGrad(s device.Stream, dx, dy device.Tensor, r device.Routing, add bool) {
	s.GroupedInputGrad(dx, dy, l.weight, r, add)
}

// place returns a tensor of the experts, by the slot's name within the layer.
func (m *mixture) place(name string) (*linear, *vector) {
	switch name {
	case "mlp.gate.weight", "mlp.router.weight", "router.proj.weight":
		return &m.router, nil
	case "mlp.gate.bias", "mlp.router.bias":
		return nil, &m.router.bias
	case "router.scale":
		return nil, &m.scale
	case "router.per_expert_scale":
		return nil, &m.perExpert
	case "mlp.experts.gate_proj.weight":
		return &m.gate, nil
	case "mlp.experts.gate_proj.bias":
		return nil, &m.gate.bias
	case "mlp.experts.up_proj.weight":
		return &m.up, nil
	case "mlp.experts.up_proj.bias":
		return nil, &m.up.bias
	case "mlp.experts.down_proj.weight":
		return &m.down, nil
	case "mlp.experts.down_proj.bias":
		return nil, &m.down.bias
	case "pre_feedforward_layernorm_2.weight":
		return nil, &m.pre
	case "post_feedforward_layernorm_1.weight":
		return nil, &m.postDense
	case "post_feedforward_layernorm_2.weight":
		return nil, &m.postSum
	}
	return nil, nil
}
