package arch

import (
	"math"
	"slices"

	"apr/tensor"
)

// Sizes are the numbers of a plain model, all of whose layers are alike.
type Sizes struct {
	Hidden, Layers, Heads, KVHeads, HeadDim int
	Width                                   int // of the feed-forward network
	Vocab, MaxPositions                     int
	Theta, Eps, InitRange                   float64
	Tied                                    bool
	BOS, EOS                                int // −1: none
	DType                                   tensor.DType
}

// Qwen2 returns the description of a Qwen2 of these sizes: biases on q, k and v, and nothing else beyond the defaults.
func Qwen2(s Sizes) Config {
	c := Config{
		Family: "qwen2", Hidden: s.Hidden, Vocab: s.Vocab, MaxPositions: s.MaxPositions, Eps: s.Eps, EmbedScale: 1, LogitScale: 1,
		Tied: s.Tied, Ropes: []Rope{{Kind: RopeDefault, Theta: s.Theta, HeadDim: s.HeadDim, Width: s.HeadDim, Attention: 1}},
		BOS: s.BOS, Pad: -1, InitRange: s.InitRange, DType: s.DType,
	}
	if s.EOS >= 0 {
		c.EOS = []int{s.EOS}
	}
	for i := range s.Layers {
		c.Layers = append(c.Layers, Layer{
			Attn: Attention{
				HeadDim: s.HeadDim, Heads: s.Heads, KVHeads: s.KVHeads, KVFrom: i, Scale: 1 / math.Sqrt(float64(s.HeadDim)), QKVBias: true,
			},
			FFN: FFN{Act: SiLU, Width: s.Width}, Pre: true, Residual: 1,
		})
	}
	return c
}

// Sizes returns the numbers of c as those of a plain model, all of whose layers are alike. The width is that of the
// first layer, the heads are those of the first layer with attention, EOS is the first id that ends a text.
func (c Config) Sizes() Sizes {
	s := Sizes{
		Hidden: c.Hidden, Layers: len(c.Layers), Vocab: c.Vocab, MaxPositions: c.MaxPositions, Eps: c.Eps, InitRange: c.InitRange,
		Tied: c.Tied, BOS: c.BOS, EOS: -1, DType: c.DType,
	}
	if len(c.Layers) > 0 {
		s.Width = c.Layers[0].FFN.Width
	}
	if i := slices.IndexFunc(c.Layers, func(l Layer) bool { return !l.Linear() }); i >= 0 {
		a := c.Layers[i].Attn
		s.Heads, s.KVHeads, s.HeadDim = a.Heads, a.KVHeads, a.HeadDim
	}
	if len(c.Ropes) > 0 {
		s.Theta = c.Ropes[0].Theta
	}
	if len(c.EOS) > 0 {
		s.EOS = c.EOS[0]
	}
	return s
}
