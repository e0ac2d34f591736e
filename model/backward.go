package model

import (
	"apr/arch"
	"apr/device"
)

// Backward adds the gradients of all body parameters, given dHidden [n, h], the gradient of the loss over Hidden.
// The head's gradient is the loss's business; a tied head and the embedding share one gradient buffer. What was kept
// is used up: gradients are written over gate, up and their product.
func (m *Model) Backward(s device.Stream, v *Saved, dHidden device.Tensor) {
	defer m.dropping(v.tokens.At)()
	act, h := m.dev.Info().Activations, m.Config.Hidden
	g := backward{v: v, w: newWorkspace(s, v.tokens.n())}
	g.pass = pass{m: m, s: s, t: v.tokens, act: act}
	g.dx, g.dy = g.w.take("dx", act, h), g.w.take("dy", act, h)
	g.delta = g.dy // of what is computed again
	for i := range m.layers {
		g.takeMixer(&m.layers[i])
	}
	g.perLayerBegin()
	if f := m.Config.LogitScale; f != 1 {
		s.Scale(g.dy, dHidden, f)
		dHidden = g.dy
	}
	s.Zero(g.dx)
	s.RMSNormBackward(g.dx, m.norm.grad(), dHidden, v.x, v.rstd, m.norm.value)
	complete := v.completing(m)
	complete()
	x := v.x
	for i := len(m.layers) - 1; i >= 0; i-- {
		b := &m.layers[i]
		if v.AtOutput != nil {
			v.AtOutput(i, x, g.dx)
		}
		x = v.layers[i].x
		k := g.restore(b)
		if b.OutScale {
			s.Scale(g.dx, g.dx, float64(b.outScale[0]))
		}
		if b.ple > 0 {
			g.perLayerGrad(b, &k)
		}
		g.ffnGrad(b, &k)
		g.mixerGrad(b, &k)
		complete()
	}
	g.perLayerEnd()
	if f := m.Config.EmbedScale; f != 1 {
		s.Scale(g.dx, g.dx, f)
	}
	if m.embed.param != nil {
		s.EmbedBackward(m.embed.param.Grad, v.tokens.IDs, g.dx)
	}
	complete()
	g.w.release()
}

// Completion returns all parameters in the order in which a step's last backward pass completes their gradients: what
// the head and the final norm have, what each layer has from the last to the first, and then the rest, with a tied
// embedding.
func (m *Model) Completion() [][]*device.Param {
	n := len(m.layers)
	all, seen := make([][]*device.Param, n+2), map[*device.Param]bool{}
	for _, p := range m.parts {
		if seen[p.Param] {
			continue
		}
		seen[p.Param] = true
		at := n + 1
		switch {
		case p.Layer >= 0:
			at = n - p.Layer
		case p.Role == arch.Head || p.Name == finalNorm:
			at = 0
		}
		all[at] = append(all[at], p.Param)
	}
	return all
}

// completing returns a function that calls Complete for the next element of Completion.
func (v *Saved) completing(m *Model) func() {
	if v.Complete == nil {
		return func() {}
	}
	rest := m.Completion()
	return func() {
		v.Complete(rest[0])
		rest = rest[1:]
	}
}

// backward carries the gradient of the residual stream, dx, downwards.
type backward struct {
	pass   // for what is computed again
	v      *Saved
	w      *workspace
	dx, dy device.Tensor
	shared perLayerActs
	dp     device.Tensor         // [n, layers·p]: of the per-layer embeddings
	lent   map[int]device.Tensor // [n, 2·kv·d] by layer: of its k and v, by the layers that read them
}

// restore returns all tensors of a layer: those kept, and the others computed again.
func (g *backward) restore(b *layer) acts {
	k := g.v.layers[b.index]
	b.fill(&k, g.w.n, keptByNone, g.m.Config.Hidden, g.act, true, g.w.takeRows)
	var none device.Tensor
	switch g.v.recompute {
	case RecomputeNorms:
		g.normed(k.y1, none, none, &stream{x: k.x}, b.preMixer)
		if b.Linear() {
			g.linearAgain(b, &k)
		}
		if b.finishes() {
			g.finish(b, &k)
		}
		g.gated(b, &k)
		g.normed(k.y2, none, none, &stream{x: k.x2}, b.preFFN)
		if b.FFN.Width > 0 {
			g.s.GLU(k.glu, k.gateUp, b.act())
		}
		if b.hasExperts() {
			g.renormed(b, &k)
		}
		if b.ple > 0 {
			g.s.GLU(k.pleGLU, k.pleGU, device.GELUTanh)
		}
	case RecomputeBlocks:
		g.again(b, &k)
	}
	return k
}

// again computes all of a layer from its input, up to what the backward does not read.
func (g *backward) again(b *layer, k *acts) {
	v := stream{x: k.x}
	in := g.operand(k.y1, k.rstd1, k.x, &v, b.preMixer)
	v = g.mixer(b, k, v, in)
	in = g.operand(k.y2, k.rstd2, k.x2, &v, b.preFFN)
	if b.Post || b.ple > 0 || b.hasExperts() {
		v = g.ffn(b, k, v, in, true)
	} else { // without the last product
		b.gateUp.keeping(k.low.gateUp).glu(g.s, k.glu, k.gateUp, g.ready(in), b.act(), true)
		b.down.again(g.s, k.glu, k.low.down)
	}
	if b.ple > 0 {
		g.perLayerBranch(b, k, v)
	}
}

// through returns the gradient over what a branch's last product wrote, dx being that over the residual stream behind the
// branch.
func (g *backward) through(b *layer, z, rstd device.Tensor, post vector) device.Tensor {
	d := g.dx
	if b.Residual != 1 {
		d = g.w.take("dbranch", g.act, d.Cols)
		g.s.Scale(d, g.dx, b.Residual)
	}
	if post.value.IsZero() {
		return d
	}
	return g.postGrad(d, z, rstd, post)
}

// postGrad goes back through a norm behind a branch, of z, given d.
func (g *backward) postGrad(d, z, rstd device.Tensor, post vector) device.Tensor {
	return g.normGrad("dz", d, z, rstd, post)
}

// normGrad goes back through a norm of z, given d, to a tensor of that name.
func (g *backward) normGrad(name string, d, z, rstd device.Tensor, post vector) device.Tensor {
	dz := g.w.take(name, g.act, d.Cols)
	g.s.Zero(dz)
	g.s.RMSNormBackward(dz, post.grad(), d, z, rstd, post.value)
	return dz
}

// preGrad goes back through the first product of a branch, given dy over its output, and through the norm before it, to
// the residual stream x.
func (g *backward) preGrad(w linear, dy, x, rstd device.Tensor, pre vector) {
	if pre.value.IsZero() {
		w.inputGrad(g.s, g.dx, dy, true)
		return
	}
	w.inputGrad(g.s, g.dy, dy, false)
	g.s.RMSNormBackward(g.dx, pre.grad(), g.dy, x, rstd, pre.value)
}

// input returns what a branch reads: the norm y of x, or x.
func input(y, x device.Tensor) device.Tensor {
	if y.IsZero() {
		return x
	}
	return y
}

// ffnGrad goes back through x3 = x2 + res·post(ffn(norm(x2))).
func (g *backward) ffnGrad(b *layer, k *acts) {
	d := g.through(b, k.z2, k.rstdZ2, b.postFFN)
	switch {
	case b.FFN.MoE.Beside:
		g.besideGrad(b, k, d)
	case b.hasExperts():
		g.expertsGrad(b, k, d)
	default:
		g.denseGrad(b, k, d)
	}
}

// denseGrad goes back through down(glu(gateUp(norm(x2)))), given d.
func (g *backward) denseGrad(b *layer, k *acts, d device.Tensor) {
	s := g.s
	b.down.keeping(k.low.down).weightGrad(s, d, k.glu)
	dprod, dgu := k.glu, k.gateUp // written over what is not needed again
	b.down.inputGrad(s, dprod, d, false)
	s.GLUBackward(dgu, dprod, k.gateUp, b.act())
	b.gateUp.keeping(k.low.gateUp).weightGrad(s, dgu, input(k.y2, k.x2))
	g.preGrad(b.gateUp, dgu, k.x2, k.rstd2, b.preFFN)
}

// takeMixer takes what going back through a layer's mixer needs, before what is needed in passing.
func (g *backward) takeMixer(b *layer) {
	if b.Linear() {
		g.deltaGrads(b)
		return
	}
	g.dqkv(b)
	g.w.take("dattention", g.act, b.Attn.QDim())
	if b.Attn.Gate {
		g.dgate(b)
	}
}

// mixerGrad goes back through x2 = x + res·post(o(gated(attention(finish(qkv(norm(x))))))), or through a DeltaNet for attention.
func (g *backward) mixerGrad(b *layer, k *acts) {
	s := g.s
	d := g.through(b, k.z1, k.rstdZ1, b.postMixer)
	b.o.keeping(k.low.o).weightGrad(s, d, k.att)
	datt := g.w.take("dattention", g.act, k.att.Cols)
	b.o.inputGrad(s, datt, d, false)
	if b.Linear() {
		g.linearGrad(b, k, datt)
		return
	}
	if b.Attn.Gate {
		dgated := g.dgate(b)
		s.GLUBackward(dgated, datt, k.gate, device.Sigmoid)
		datt = dgated.ColRange(b.Attn.QDim(), dgated.Cols)
	}
	dqkv := g.dqkv(b)
	g.attendGrad(b, k, dqkv, datt)
	g.rotate(b, dqkv, true)
	dproj := g.mix(b, k, g.unfinish(b, k, dqkv))
	b.qkv.keeping(k.low.qkv).weightGrad(s, dproj, input(k.y1, k.x))
	g.preGrad(b.qkv, dproj, k.x, k.rstd1, b.preMixer)
}

// dqkv returns the gradients of a layer's q, k and v, side by side; of q alone where k and v are another layer's.
func (g *backward) dqkv(b *layer) device.Tensor {
	n := b.Attn.QDim()
	if b.own {
		n += 2 * b.Attn.KVDim()
	}
	return g.w.take("dqkv", g.act, n)
}

// dgate returns the gradients of a layer's gates and attention, side by side.
func (g *backward) dgate(b *layer) device.Tensor {
	return g.w.take("dgate", g.act, 2*b.Attn.QDim())
}

// mix puts the gradients of the heads of q and of the gates where they take turns, before those of k and v.
func (g *backward) mix(b *layer, k *acts, dproj device.Tensor) device.Tensor {
	if !b.Attn.Gate {
		return dproj
	}
	n, mixed := b.Attn.QDim(), k.mixed // written over what is not needed again
	g.s.Interleave(mixed.ColRange(0, 2*n), dproj.ColRange(0, n), g.dgate(b).ColRange(0, n), b.Attn.HeadDim)
	if b.own {
		g.s.Copy(mixed.ColRange(2*n, mixed.Cols), dproj.ColRange(n, dproj.Cols))
	}
	return mixed
}

// attendGrad goes back through attention: it writes the gradients of q, and of k and v, or adds the latter to those of the
// layer that they belong to.
func (g *backward) attendGrad(b *layer, k *acts, dqkv, datt device.Tensor) {
	s, n, kv := g.s, b.Attn.QDim(), b.Attn.KVDim()
	q, kk, v := b.read(k)
	a, o := g.attn(b), b.attended(k)
	a.DSinks = b.sinks.grad()
	if b.own {
		dq, dk := dqkv.ColRange(0, n), dqkv.ColRange(n, n+kv)
		s.AttentionBackward(dq, dk, dqkv.ColRange(n+kv, n+2*kv), datt, o, k.lse, q, kk, v, a)
		g.atAttention(b, device.AttnMap{Q: q, K: kk, LSE: k.lse, Attn: a}, dq, dk)
		if more, ok := g.lent[b.index]; ok {
			s.Add(dqkv.ColRange(n, n+2*kv), more)
		}
		return
	}
	sum, ok := g.lent[b.Attn.KVFrom]
	dkv := sum
	if ok {
		dkv = g.w.take("dkv", g.act, 2*kv)
	} else {
		dkv = s.Temp("dkv.lent", device.Scratch, g.act, g.w.n, 2*kv)
		g.w.all = append(g.w.all, dkv)
		if g.lent == nil {
			g.lent = map[int]device.Tensor{}
		}
		g.lent[b.Attn.KVFrom] = dkv
	}
	s.AttentionBackward(dqkv, dkv.ColRange(0, kv), dkv.ColRange(kv, 2*kv), datt, o, k.lse, q, kk, v, a)
	g.atAttention(b, device.AttnMap{Q: q, K: kk, LSE: k.lse, Attn: a}, dqkv, dkv.ColRange(0, kv))
	if ok {
		s.Add(sum, dkv)
	}
}

// atAttention calls Saved.AtAttention.
func (g *backward) atAttention(b *layer, own device.AttnMap, dq, dk device.Tensor) {
	if g.v.AtAttention != nil {
		g.v.AtAttention(b.index, own, dq, dk)
	}
}

// unfinish goes back through the norms of q, k and v, in place, and returns the gradient over their projections.
func (g *backward) unfinish(b *layer, k *acts, dqkv device.Tensor) device.Tensor {
	if !b.finishes() {
		return dqkv
	}
	a, n, kv := b.Attn, b.Attn.QDim(), b.Attn.KVDim()
	rawQ, rawK, rawV := b.raw(k.proj)
	g.headGrad(dqkv.ColRange(0, n), rawQ, k.rstdQ, b.qNorm, b)
	if !b.own {
		return dqkv
	}
	dk, dv := dqkv.ColRange(n, n+kv), dqkv.ColRange(n+kv, n+2*kv)
	g.headGrad(dk, rawK, k.rstdK, b.kNorm, b)
	if a.VNorm {
		var none device.Tensor
		g.s.HeadNormBackward(dv, none, dv, rawV, k.rstdV, none, a.HeadDim)
	}
	if a.VIsK {
		g.s.Add(dk, dv)
		return dqkv.ColRange(0, n+kv)
	}
	return dqkv
}

// headGrad goes back through the norm of q or k.
func (g *backward) headGrad(d, x, rstd device.Tensor, w vector, b *layer) {
	switch b.Attn.QKNorm {
	case arch.RowNorm:
		g.s.HeadNormBackward(d, w.grad(), d, x, rstd, w.value, x.Cols)
	case arch.HeadNorm:
		g.s.HeadNormBackward(d, w.grad(), d, x, rstd, w.value, b.Attn.HeadDim)
	}
}
