package model

import (
	"math"

	"apr/device"
	"apr/tensor"
)

// perLayerActs is what the backward of the per-layer embeddings reads.
type perLayerActs struct {
	proj, rstd device.Tensor // [n, layers·p], [n, layers]: the projection of the embedding, 1/σ of its slices
}

// perLayerWidth returns the columns of the per-layer embeddings of all layers; 0: there are none.
func (m *Model) perLayerWidth() int { return m.Config.PLE.Width * len(m.layers) }

// takePerLayer takes the per-layer embeddings.
func (p *pass) takePerLayer(w *workspace) {
	if n := p.m.perLayerWidth(); n > 0 {
		p.p = w.take("ple", p.act, n)
	}
}

// perLayer computes the per-layer embeddings from the scaled embedding x:
//
//	p = (norm(Wm·x/√h) + E[id]·√P)/√2
//
// a slice of P columns for each layer, normalised by itself. As norm(c·x) with ε is norm(x) with ε/c², no product is scaled.
func (p *pass) perLayer(w *workspace, k *perLayerActs, x device.Tensor) {
	n := p.m.perLayerWidth()
	if n == 0 {
		return
	}
	if k.proj.IsZero() {
		k.proj = w.take("ple.projection", p.act, n)
	}
	m, s, width := p.m, p.s, p.m.Config.PLE.Width
	m.pleModel.forward(s, k.proj, x)
	s.HeadNorm(p.p, k.rstd, k.proj, m.pleNorm.value, width, m.Config.Eps*float64(m.Config.Hidden))
	rows := w.take("ple.table", p.act, n)
	s.Embed(rows, m.pleTable.weight, p.t.IDs)
	s.Scale(rows, rows, math.Sqrt(float64(width)))
	s.Add(p.p, rows)
	s.Scale(p.p, p.p, 1/math.Sqrt2)
}

// perLayerBranch adds a layer's per-layer embedding: x3 += norm(pleOut(gelu(pleGate·x3)·p)).
func (p *pass) perLayerBranch(b *layer, k *acts, v stream) stream {
	p.normed(device.Tensor{}, device.Tensor{}, k.x3, &v, vector{})
	p.perLayerGate(b, k)
	p.s.GLU(k.pleGLU, k.pleGU, device.GELUTanh)
	p.branch(b.pleOut, b.pleNorm, 1, k.z3, k.rstdZ3, k.pleGLU)
	v.delta = p.delta
	return v
}

// perLayerGate writes pleGU = [pleGate·x3 | p].
func (p *pass) perLayerGate(b *layer, k *acts) {
	b.pleGate.forward(p.s, k.pleGU.ColRange(0, b.ple), k.x3)
	p.s.Copy(k.pleGU.ColRange(b.ple, 2*b.ple), p.p.ColRange(b.index*b.ple, (b.index+1)*b.ple))
}

// perLayerGrad goes back through the branch of a layer's per-layer embedding, and writes the layer's slice of the gradient of p.
func (g *backward) perLayerGrad(b *layer, k *acts) {
	s := g.s
	dz := g.postGrad(g.dx, k.z3, k.rstdZ3, b.pleNorm)
	b.pleOut.weightGrad(s, dz, k.pleGLU)
	dprod, dgu := k.pleGLU, k.pleGU // written over what is not needed again
	b.pleOut.inputGrad(s, dprod, dz, false)
	s.GLUBackward(dgu, dprod, k.pleGU, device.GELUTanh)
	s.Copy(g.dp.ColRange(b.index*b.ple, (b.index+1)*b.ple), dgu.ColRange(b.ple, 2*b.ple))
	dgate := dgu.ColRange(0, b.ple)
	b.pleGate.weightGrad(s, dgate, k.x3)
	b.pleGate.inputGrad(s, g.dx, dgate, true)
}

// perLayerBegin takes the gradient of all slices, and computes the slices again if nothing of them was kept.
func (g *backward) perLayerBegin() {
	n := g.m.perLayerWidth()
	if n == 0 {
		return
	}
	g.dp, g.shared = g.w.take("dple", g.act, n), g.v.perLayer
	if g.shared.proj.IsZero() {
		g.takePerLayer(g.w)
		g.shared.rstd = g.w.take("ple.rstd", tensor.F32, len(g.m.layers))
		g.perLayer(g.w, &g.shared, g.v.layers[0].x)
	}
}

// perLayerEnd goes back from dp, the gradient of all slices, to the table, the projection and the embedding.
func (g *backward) perLayerEnd() {
	if g.dp.IsZero() {
		return
	}
	m, s, k, width := g.m, g.s, g.shared, g.m.Config.PLE.Width
	s.Scale(g.dp, g.dp, 1/math.Sqrt2)
	rows := g.w.take("ple.table", g.act, g.dp.Cols)
	s.Scale(rows, g.dp, math.Sqrt(float64(width)))
	if m.pleTable.param != nil {
		s.EmbedBackward(m.pleTable.param.Grad, g.t.IDs, rows)
	}
	s.HeadNormBackward(g.dp, m.pleNorm.grad(), g.dp, k.proj, k.rstd, m.pleNorm.value, width)
	m.pleModel.weightGrad(s, g.dp, g.v.layers[0].x)
	m.pleModel.inputGrad(s, g.dx, g.dp, true)
}

// keepPerLayer takes what r keeps of the per-layer embeddings.
func (m *Model) keepPerLayer(k *perLayerActs, n int, r Recompute, take allocator) {
	if cols := m.perLayerWidth(); cols > 0 && r <= RecomputeNorms {
		k.proj, k.rstd = take("ple.projection", m.dev.Info().Activations, n, cols), take("ple.rstd", tensor.F32, n, len(m.layers))
	}
}
