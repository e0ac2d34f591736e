package model

import "apr/device"

// Mixtures returns the layers that have experts, and the most experts that one has.
func (m *Model) Mixtures() (layers []int, most int) {
	for i := range m.layers {
		if b := &m.layers[i]; b.hasExperts() {
			layers, most = append(layers, i), max(most, b.FFN.MoE.Experts)
		}
	}
	return layers, most
}

// HiddenCounting is Hidden, which adds to row i of counts, float32, the slots of each expert of the i-th layer with experts: how many
// positions it served. counts may be zero.
func (m *Model) HiddenCounting(s device.Stream, dst device.Tensor, t Tokens, counts device.Tensor) {
	w := newWorkspace(s, t.n())
	p := &pass{m: m, s: s, t: t, act: dst.DType, counts: counts}
	x := p.inference(w)
	v := p.embed(x)
	p.perLayer(w, &perLayerActs{}, v.x)
	for i := range m.layers {
		v = p.layer(&m.layers[i], p.reused(&m.layers[i]), v, false)
	}
	p.last(dst, device.Tensor{}, x, v)
	w.release()
}

// countsOf returns the row of counts of a layer: its own, or the one that all layers share.
func (p *pass) countsOf(b *layer) device.Tensor {
	row := 0
	if p.counts.Rows > 1 {
		row = b.mixture
	}
	return p.counts.RowRange(row, row+1).ColRange(0, b.FFN.MoE.Experts)
}
