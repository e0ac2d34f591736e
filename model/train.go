package model

import (
	"fmt"

	"apr/device"
	"apr/tensor"
)

// Recompute says what a training forward does not keep for its backward, which then computes it again. The gradients
// are the same bits: the same operations on the same values. Per position and layer Forward keeps, in values of the
// activation type with d = head dimension, h hidden, f intermediate width and p that of per-layer embeddings:
//
//	                                    RecomputeNone                 RecomputeNorms                RecomputeBlocks
//	a layer                             4h + (2·heads + 2·kv)·d + 3f  2h + (2·heads + 2·kv)·d + 2f  h
//	no norms before the branches        −2h
//	norms behind the branches           +2h                           +2h
//	norms of q and k, or gates          +(heads + kv)·d
//	norms of v                          +kv·d
//	gates                               +2·heads·d                    +heads·d
//	v is k                              −kv·d                         −kv·d
//	k and v of an earlier layer         no terms with kv              no terms with kv
//	k and v that later layers read      +2·kv·d                       +2·kv·d                       +2·kv·d
//	per-layer embeddings                +2h + 4p                      +2h + 3p
//	k experts of width e                +k·(h + 3e)                   +k·(h + 2e)
//	experts beside the dense network    +4h                           +2h
//	a DeltaNet for attention, with c    4h + 2c + 4i + 2·heads + 3f   2h + c + 3i + 2·heads + 2f    h
//	columns of q, k, v and i of v
//	adapters, for each row of an A      +1                            +1
//
// and, but for RecomputeBlocks, in 4 bytes a number for each norm of a row or a head, and for each head of the attention; for
// each logit of a router, and four for each chosen expert; for the experts of a layer, and one more, once. f is 0 where there are
// experts alone. What experts read is copied for each of them again, and never kept.
type Recompute int

// The policies, from the fastest to the smallest.
const (
	RecomputeNone   Recompute = iota // keep all
	RecomputeNorms                   // all but what norms and GLU write: no product is computed twice
	RecomputeBlocks                  // a block's input only: its forward runs again before its backward
)

var recomputes = []string{"none", "norms", "blocks"}

// String returns the name as in options.
func (r Recompute) String() string { return recomputes[r] }

// ParseRecompute returns the policy of that name.
func ParseRecompute(s string) (Recompute, error) {
	for r, name := range recomputes {
		if s == name {
			return Recompute(r), nil
		}
	}
	return 0, fmt.Errorf("no recomputation is called %q; there are none, norms and blocks", s)
}

// Saved holds what a training forward keeps for its backward. Release gives the memory back to the stream.
type Saved struct {
	tokens    Tokens
	recompute Recompute
	layers    []acts
	perLayer  perLayerActs
	x, rstd   device.Tensor // input of the final norm
	Hidden    device.Tensor // its output [n, h], times the factor of the logits: the input of the head
	counts    device.Tensor // [1, E]: slots of experts over all layers, for Balance
	allocated []device.Tensor

	// AtOutput, if it is not nil, is called by Backward for each layer from the last to the first, with the residual stream x [n, h]
	// behind the layer and the gradient dx over it so far, to which it may add that of a loss of its own. Behind the last layer x is
	// what the final norm reads.
	AtOutput func(layer int, x, dx device.Tensor)

	// AtAttention, if it is not nil, is called by Backward for each layer of attention, from the last to the first, with its map and
	// the gradients of q and k that attention gave, to which it may add those of a loss of its own.
	AtAttention func(layer int, own device.AttnMap, dq, dk device.Tensor)

	// Complete, if it is not nil, is called by Backward with parameters whose gradients nothing will change any more: with
	// those of Model.Completion, one element after the other.
	Complete func(params []*device.Param)
}

// ReleaseTo gives the kept activations back.
func (v *Saved) ReleaseTo(s device.Stream) { s.Release(v.allocated...) }

// keep takes everything that a forward of t keeps, before anything that it uses in passing: what is left when that is
// released has no holes.
func (m *Model) keep(s device.Stream, t Tokens, r Recompute) *Saved {
	act, h := m.dev.Info().Activations, m.Config.Hidden
	v := &Saved{tokens: t, recompute: r, layers: make([]acts, len(m.layers))}
	take := func(name string, d tensor.DType, rows, cols int) device.Tensor {
		x := s.Temp(name, device.Activations, d, rows, cols)
		v.allocated = append(v.allocated, x)
		return x
	}
	for i := range v.layers {
		b, k := &m.layers[i], &v.layers[i]
		k.x = take("x", act, t.n(), h)
		if !b.own && !b.Linear() {
			k.kv = v.layers[b.Attn.KVFrom].kv
		}
		b.fill(k, t.n(), r, h, act, true, take)
	}
	m.keepPerLayer(&v.perLayer, t.n(), r, take)
	v.counts = m.countSlots(s, take)
	v.x, v.rstd, v.Hidden = take("x", act, t.n(), h), take("rstd", tensor.F32, t.n(), 1), take("hidden", act, t.n(), h)
	return v
}

// Forward computes the final hidden states of a trainable model and keeps what Backward needs beyond what r says will be
// computed again.
func (m *Model) Forward(s device.Stream, t Tokens, r Recompute) *Saved {
	defer m.dropping(t.At)()
	v, w := m.keep(s, t, r), newWorkspace(s, t.n())
	act, h := m.dev.Info().Activations, m.Config.Hidden
	p := &pass{m: m, s: s, t: t, act: act, delta: w.take("delta", act, h), counts: v.counts}
	p.takePerLayer(w)
	var at stream
	for i := range m.layers {
		b, k := &m.layers[i], v.layers[i]
		b.fill(&k, t.n(), keptByNone, h, act, true, w.takeRows)
		if i == 0 {
			at = p.embed(k.x)
			perLayer := v.perLayer
			p.perLayer(w, &perLayer, k.x)
		}
		at = p.layer(b, &k, at, r < RecomputeBlocks)
	}
	p.last(v.Hidden, v.rstd, v.x, at)
	w.release()
	return v
}
