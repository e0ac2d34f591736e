package ref

import (
	"math"

	"apr/arch"
)

// Config gives the sizes and constants of a Qwen2 model, for callers that have no arch.Config.
type Config struct {
	Vocab, Hidden, FFN, Layers int
	Heads, KVHeads, HeadDim    int
	Theta, Eps                 float64
	Tied                       bool // the head is the embedding
}

// Arch returns the model's description.
func (c Config) Arch() arch.Config {
	a := arch.Config{
		Family: "qwen2", Hidden: c.Hidden, Vocab: c.Vocab, Eps: c.Eps, EmbedScale: 1, LogitScale: 1, Tied: c.Tied,
		Ropes: []arch.Rope{{Kind: arch.RopeDefault, Theta: c.Theta, HeadDim: c.HeadDim, Width: c.HeadDim, Attention: 1}},
	}
	for i := range c.Layers {
		a.Layers = append(a.Layers, arch.Layer{
			Attn: arch.Attention{
				HeadDim: c.HeadDim, Heads: c.Heads, KVHeads: c.KVHeads, KVFrom: i, Scale: 1 / math.Sqrt(float64(c.HeadDim)), QKVBias: true,
			},
			FFN: arch.FFN{Act: arch.SiLU, Width: c.FFN}, Pre: true, Residual: 1,
		})
	}
	return a
}

// Names returns the parameters' names in a fixed order.
func (c Config) Names() (names []string) {
	for _, s := range arch.Slots(c.Arch()) {
		names = append(names, s.Name)
	}
	return names
}

// Model is a Qwen2 model: its parameters by their names in a checkpoint ("model.layers.0.mlp.up_proj.weight").
type Model struct {
	Config
	Params map[string]Mat
}

// Trace is a forward of a Model.
type Trace struct {
	Hidden Mat // after the final norm, [batch·seq, Hidden]
	Logits Mat // [batch·seq, Vocab]
	pass   *Pass
}

// Forward runs ids, batch rows of equal length one after the other, through the model.
func (m *Model) Forward(ids []int, batch int) *Trace {
	p := (&Net{Arch: m.Config.Arch(), Params: m.Params}).Forward(ids, batch)
	return &Trace{Hidden: p.States[len(p.States)-1], Logits: p.Logits, pass: p}
}

// Backward returns the gradient of every parameter, given the gradient over the logits of t.
func (m *Model) Backward(t *Trace, dLogits Mat) map[string]Mat { return t.pass.Backward(dLogits) }
