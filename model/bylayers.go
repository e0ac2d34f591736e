package model

import (
	"slices"

	"apr/device"
)

// Streams reports whether the layers' matrices come from the host: device.Form.HostLayers.
func (m *Model) Streams() bool { return m.streams }

// Staged reports whether HiddenByLayers computes a layer for all sequences before the next: not where layers
// read keys and values of earlier ones, or embeddings of their own.
func (m *Model) Staged() bool {
	return m.perLayerWidth() == 0 && !slices.ContainsFunc(m.layers, func(b layer) bool { return b.lends })
}

// HiddenByLayers is Hidden for `rows` sequences at a time, whose bits it gives. A Staged model takes all
// sequences through a layer before the next, so that matrices that come from the host come once, and not for
// every group of sequences:
//
//	for each layer: for each group: x[group] = layer(x[group])
//
// Between layers the residual stream of all sequences is in dst; intermediate tensors are those of a group.
func (m *Model) HiddenByLayers(s device.Stream, dst device.Tensor, t Tokens, rows int) {
	each := func(f func(g int, x device.Tensor, t Tokens)) {
		for g, lo := 0, 0; lo < t.Rows; g, lo = g+1, lo+rows {
			hi := min(lo+rows, t.Rows)
			f(g, dst.RowRange(lo*t.SeqLen, hi*t.SeqLen), t.Slice(lo, hi))
		}
	}
	if rows >= t.Rows || !m.Staged() {
		each(func(_ int, x device.Tensor, t Tokens) { m.Hidden(s, x, t) })
		return
	}
	h := m.Config.Hidden
	var delta device.Tensor // [n, h]: pending additions
	if m.pending() {
		delta = s.Temp("deltas", device.Scratch, dst.DType, t.n(), h)
		defer s.Release(delta)
	}
	streams := make([]stream, (t.Rows+rows-1)/rows)
	for l := -1; l <= len(m.layers); l++ {
		each(func(g int, x device.Tensor, part Tokens) {
			w := newWorkspace(s, part.n())
			w.lend("x", x)
			if !delta.IsZero() {
				w.lend("delta", delta.RowRange(g*rows*t.SeqLen, g*rows*t.SeqLen+part.n()))
			}
			p := &pass{m: m, s: s, t: part, act: dst.DType, adds: m.dev.Info().Adds}
			p.inference(w)
			switch {
			case l < 0:
				streams[g] = p.embed(x)
			case l < len(m.layers):
				streams[g] = p.layer(&m.layers[l], p.reused(&m.layers[l]), streams[g], false)
			default:
				y := w.take("y", p.act, h)
				p.last(y, device.Tensor{}, x, streams[g])
				s.Copy(x, y)
			}
			w.release()
		})
	}
}

// pending reports whether what the last branch of a layer adds waits for the next norm.
func (m *Model) pending() bool {
	return !m.dev.Info().Adds || slices.ContainsFunc(m.layers, func(b layer) bool {
		return !b.postFFN.value.IsZero() || b.Residual != 1 || b.OutScale || b.FFN.MoE.Beside
	})
}
