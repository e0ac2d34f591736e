package ref

import (
	"fmt"
	"math"

	"apr/arch"
)

// Net is a decoder of any description, with its parameters by the names of arch.Slots: a matrix as [out, in], a vector
// as one row, matrices of experts below each other [E·out, in], biases of experts [E, out].
type Net struct {
	Arch   arch.Config
	Params map[string]Mat

	Balance float64       // times Pass.Aux is part of what Backward goes back from
	Chosen  map[int][]int // by layer: experts of each position, as in Routed, instead of those of the largest logits

	planted planted
}

// planted are errors that tests put into the arithmetic to see whether goldens notice them. The zero value has none.
type planted struct {
	ropeBeforeNorm, smoothQScale, noCapSlope, sinkScaled, vOfNormedK bool // attention
	routerOnNorm, expertsOnNorm                                      bool // Gemma 4's experts
	noL2Eps, gateBeforeNorm, tiledHeads, oneTap, lateDecay           bool // DeltaNet
	stale                                                            int  // length of a prompt; keys keep the rotation that they had when they were computed
}

// Pass is a forward, kept for its backward.
type Pass struct {
	States []Mat // [batch·seq, Hidden]: the scaled embedding, the output of each layer but the last, and the last norm's
	Logits Mat   // [batch·seq, Vocab], capped
	Blocks []Mat // [batch·seq, Hidden]: the residual stream behind each layer

	net        *Net
	tape       tape
	params     map[string]*node
	batch, seq int
	logits     *node
	blocks     []*node
	ids        []int
	starts     []int      // of each position, where in its row its document begins; nil: at 0
	ple        []*node    // of each layer, [batch·seq, PLE.Width]
	kv         [][2]*node // of each layer: finished k and v
	maps       []mapNodes // of each layer with attention
	routers    []router   // of layers with experts
}

// Forward runs ids, batch rows of equal length one after the other, from position 0.
func (m *Net) Forward(ids []int, batch int) *Pass { return m.ForwardDocuments(ids, batch, nil) }

// ForwardDocuments is Forward of rows that hold several documents, which see nothing of each other: attention and
// positions restart at starts[n], where in its row the document of position n begins; nil: rows are one document each.
func (m *Net) ForwardDocuments(ids []int, batch int, starts []int) *Pass {
	p := &Pass{net: m, params: map[string]*node{}, batch: batch, seq: len(ids) / batch, ids: ids, starts: starts, kv: make([][2]*node, len(m.Arch.Layers)), maps: make([]mapNodes, len(m.Arch.Layers))}
	c, t := m.Arch, &p.tape
	x := t.embed(p.param("model.embed_tokens.weight"), ids)
	if c.EmbedScale != 1 {
		x = t.scale(x, c.EmbedScale)
	}
	p.perLayer(x)
	for i := range c.Layers {
		p.States = append(p.States, x.Mat)
		x = p.layer(i, x)
		p.blocks, p.Blocks = append(p.blocks, x), append(p.Blocks, x.Mat)
	}
	x = p.norm("model.norm.weight", x)
	p.States = append(p.States, x.Mat)
	head := "lm_head.weight"
	if c.Tied {
		head = "model.embed_tokens.weight"
	}
	p.logits = t.linear(x, p.param(head), nil)
	if c.LogitScale != 1 {
		p.logits = t.scale(p.logits, c.LogitScale)
	}
	if c.FinalCap > 0 {
		p.logits = t.cap(p.logits, c.FinalCap)
	}
	p.Logits = p.logits.Mat
	return p
}

// Backward returns the gradient of every parameter that is trained, given the gradient over the logits.
func (p *Pass) Backward(dLogits Mat) map[string]Mat { return p.BackwardFrom(dLogits, nil, nil) }

// BackwardFrom is Backward of a loss that also has gradients over Blocks and over the operands of Map, by layer.
func (p *Pass) BackwardFrom(dLogits Mat, dBlocks map[int]Mat, dMaps map[int]MapGrads) map[string]Mat {
	p.tape.begin(p.logits, dLogits)
	for i, d := range dBlocks {
		p.blocks[i].grad().Add(d)
	}
	for i, d := range dMaps {
		p.maps[i].q.grad().Add(d.Q)
		p.maps[i].k.grad().Add(d.K)
		if sinks := p.maps[i].sinks; sinks != nil {
			sinks.grad().Add(d.Sinks)
		}
	}
	p.tape.run()
	g := make(map[string]Mat)
	for _, s := range arch.Slots(p.net.Arch) {
		if !s.Fixed {
			g[s.Name] = p.param(s.Name).grad()
		}
	}
	return g
}

// param returns a parameter by name.
func (p *Pass) param(name string) *node {
	n, ok := p.params[name]
	if !ok {
		m, ok := p.net.Params[name]
		if !ok {
			panic("ref: no parameter " + name)
		}
		n = p.tape.param(m)
		p.params[name] = n
	}
	return n
}

// at returns a parameter of layer i, such as "mlp.up_proj.weight".
func (p *Pass) at(i int, name string) *node {
	return p.param(fmt.Sprintf("model.layers.%d.%s", i, name))
}

// norm applies a norm of the model, by the name of its weight.
func (p *Pass) norm(name string, x *node) *node {
	return p.tape.norm(x, p.param(name), x.Cols, p.net.Arch.Eps, p.net.Arch.NormOffset)
}

func (p *Pass) layerNorm(i int, name string, x *node) *node {
	return p.norm(fmt.Sprintf("model.layers.%d.%s.weight", i, name), x)
}

// layer: two residual branches, the per-layer embedding, the factor of the output.
func (p *Pass) layer(i int, x *node) *node {
	l, t := p.net.Arch.Layers[i], &p.tape
	preFFN := "post_attention_layernorm"
	if l.Pre && l.Post {
		preFFN = "pre_feedforward_layernorm"
	}
	y := x
	if l.Pre {
		y = p.layerNorm(i, "input_layernorm", x)
	}
	if l.Linear() {
		y = p.delta(i, y)
	} else {
		y = p.attention(i, y)
	}
	if l.Post {
		y = p.layerNorm(i, "post_attention_layernorm", y)
	}
	x = t.add(x, y, l.Residual)
	y = x
	if l.Pre {
		y = p.layerNorm(i, preFFN, x)
	}
	y = p.ffn(i, y, x)
	if l.Post {
		y = p.layerNorm(i, "post_feedforward_layernorm", y)
	}
	x = t.add(x, y, l.Residual)
	if p.ple != nil {
		gate := p.tape.linear(x, p.at(i, "per_layer_input_gate.weight"), nil)
		y = t.linear(t.gated(gate, p.ple[i], arch.GELUTanh), p.at(i, "per_layer_projection.weight"), nil)
		x = t.add(x, p.layerNorm(i, "post_per_layer_input_norm", y), 1)
	}
	if l.OutScale {
		x = t.mul(x, p.at(i, "layer_scalar"))
	}
	return x
}

// perLayer computes (norm(Wm·x/√H) + E[id]·√P)/√2, cut into a slice of P values for each layer.
func (p *Pass) perLayer(x *node) {
	c, t := p.net.Arch, &p.tape
	if c.PLE.Width == 0 {
		return
	}
	proj := t.scale(t.linear(x, p.param("model.per_layer_model_projection.weight"), nil), 1/math.Sqrt(float64(c.Hidden)))
	proj = t.norm(proj, p.param("model.per_layer_projection_norm.weight"), c.PLE.Width, c.Eps, c.NormOffset)
	table := t.embed(p.param("model.embed_tokens_per_layer.weight"), p.ids)
	all := t.scale(t.add(proj, table, math.Sqrt(float64(c.PLE.Width))), 1/math.Sqrt2)
	for i := range c.Layers {
		p.ple = append(p.ple, t.cols(all, i*c.PLE.Width, (i+1)*c.PLE.Width))
	}
}

// ffn: the dense network, the experts, or both; y is the normed x.
func (p *Pass) ffn(i int, y, x *node) *node {
	f, t := p.net.Arch.Layers[i].FFN, &p.tape
	if f.Width == 0 {
		return p.experts(i, y, y)
	}
	gate := t.linear(y, p.at(i, "mlp.gate_proj.weight"), nil)
	up := t.linear(y, p.at(i, "mlp.up_proj.weight"), nil)
	dense := t.linear(t.gated(gate, up, f.Act), p.at(i, "mlp.down_proj.weight"), nil)
	if !f.MoE.Beside {
		return dense
	}
	return p.beside(i, dense, y, x)
}
