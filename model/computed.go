package model

import (
	"math"

	"apr/arch"
	"apr/internal/fault"
)

// Computed refuses a description with a feature that the arithmetic here does not have, by the feature's name. Such a model
// can be inspected and converted.
func Computed(c arch.Config) error {
	what := c.NotComputed()
	if what == "" {
		what = beyond(c)
	}
	if what == "" {
		return nil
	}
	return fault.New(fault.Unavailable, "%s cannot be computed yet: %s", c.Family, what).WithID("E-MODEL-014")
}

// beyond names the first feature of c that the forward and backward passes lack; "": none.
func beyond(c arch.Config) string {
	switch {
	case c.EmbedScale != 1 || c.LogitScale != 1:
		return "a factor of embedding or logits"
	case c.FinalCap != 0:
		return "a soft-cap of the logits"
	case c.PLE != (arch.PLE{}):
		return "per-layer embeddings"
	case len(c.Ropes) != 1:
		return "several rotary embeddings"
	case c.Ropes[0].Kind != arch.RopeDefault || c.Ropes[0].Width != c.Ropes[0].HeadDim || c.Ropes[0].Attention != 1:
		return "a scaled or partial rotary embedding"
	}
	for i, l := range c.Layers {
		if what := beyondLayer(l, c.Layers[0], i); what != "" {
			return what
		}
	}
	return ""
}

func beyondLayer(l, first arch.Layer, i int) string {
	a := l.Attn
	switch {
	case !l.Pre || l.Post:
		return "norms behind attention and feed-forward network"
	case l.Residual != 1 || l.OutScale:
		return "a factor of a layer's output"
	case a.Window != 0:
		return "windowed attention"
	case a.QKNorm != arch.NoQKNorm || a.VNorm:
		return "norms of q, k or v"
	case a.KVFrom != i || a.VIsK:
		return "shared keys and values"
	case a.Rope != 0:
		return "layers without a rotary embedding"
	case a.Scale != 1/math.Sqrt(float64(a.HeadDim)) || a.Cap != 0 || a.QBeta != 0:
		return "scores of another scale, capped or by position"
	case !a.QKVBias || a.OBias:
		return "attention whose biases are not those of q, k and v"
	case l.FFN.Act != arch.SiLU:
		return "activation " + string(l.FFN.Act)
	case a.Heads != first.Attn.Heads || a.KVHeads != first.Attn.KVHeads || a.HeadDim != first.Attn.HeadDim || l.FFN.Width != first.FFN.Width:
		return "layers of several shapes"
	}
	return ""
}
