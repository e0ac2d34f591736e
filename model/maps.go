package model

import (
	"apr/device"
	"apr/tensor"
)

// Kept are tensors that a forward without a backward also writes, by layer.
type Kept struct {
	Outputs map[int]device.Tensor  // [n, h]: the residual stream behind the layer
	Maps    map[int]device.AttnMap // q, k and lse of its attention
}

// AttentionMap takes the tensors that the attention map of a layer is computed from: q and k finished as attention reads them, and the
// log-sum-exp, of n positions.
func (m *Model) AttentionMap(layer, n int, take func(name string, d tensor.DType, rows, cols int) device.Tensor) device.AttnMap {
	a, act := m.layers[layer].Attn, m.dev.Info().Activations
	return device.AttnMap{Q: take("map.q", act, n, a.QDim()), K: take("map.k", act, n, a.KVDim()), LSE: take("map.lse", tensor.F32, n, a.Heads)}
}

// MapOf returns the map of a layer over t, given the tensors of AttentionMap of which t's positions are rows [lo, lo+n).
func (m *Model) MapOf(layer int, all device.AttnMap, lo int, t Tokens) device.AttnMap {
	rows := func(x device.Tensor) device.Tensor { return x.RowRange(lo, lo+t.n()) }
	p := pass{m: m, t: t}
	return device.AttnMap{Q: rows(all.Q), K: rows(all.K), LSE: rows(all.LSE), Attn: p.attn(&m.layers[layer])}
}
