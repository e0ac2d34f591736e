package model

import (
	"apr/arch"
	"apr/device"
)

// layer is one layer as the arithmetic reads it: its description, and its tensors on the device. Those that the
// description does not have are zero.
//
//	x += res·postMixer(o(gated(attention(finish(qkv(preMixer(x)))))))
//	x += res·postFFN(down(glu(gateUp(preFFN(x)))))                   (or a mixture of experts)
//	x += pleNorm(pleOut(glu(pleGate(x), p)))
//	x *= outScale
type layer struct {
	arch.Layer
	index   int
	kind    int  // layers of one kind have intermediate tensors of the same shapes
	mixture int  // its number among layers with experts
	own     bool // of attention: it projects k and v itself
	lends   bool // later layers read its k and v
	ple     int  // width of its slice of per-layer embeddings; 0: it has none

	preMixer, postMixer, preFFN, postFFN vector // [1, h]
	qkv                                  linear // [(heads + 2·kv)·d, h]: q, k, v stacked; those that it projects; d rows of a gate behind those of each head of q
	qNorm, kNorm                         vector // [1, d], or over rows [1, heads·d] and [1, kv·d]
	sinks                                vector // [1, heads]
	o                                    linear // [h, heads·d]
	delta                                deltaTensors
	gateUp                               linear // [2f, h]: gate, up stacked
	down                                 linear // [h, f]
	moe                                  mixture
	pleGate, pleOut                      linear // [p, h], [h, p]
	pleNorm                              vector // [1, h]
	outScale                             []float32
}

// newLayers returns the layers of a description without their tensors.
func newLayers(c arch.Config) []layer {
	layers := make([]layer, len(c.Layers))
	for i, l := range c.Layers {
		layers[i] = layer{Layer: l, index: i, own: c.OwnKV(i), ple: c.PLE.Width, outScale: []float32{1}}
		if !layers[i].own && !l.Linear() {
			layers[l.Attn.KVFrom].lends = true
		}
	}
	kinds, mixtures := map[kind]int{}, 0
	for i := range layers {
		if layers[i].hasExperts() {
			layers[i].mixture = mixtures
			mixtures++
		}
		k := layers[i].shape()
		if _, ok := kinds[k]; !ok {
			kinds[k] = len(kinds)
		}
		layers[i].kind = kinds[k]
	}
	return layers
}

// kind is what the shapes of a layer's intermediate tensors depend on.
type kind struct {
	headDim, heads, kvHeads, width int
	moe                            arch.MoE
	qkNorm                         arch.QKNorm
	vNorm, vIsK, gate, own, lends  bool
	pre, post                      bool
	delta                          arch.DeltaNet
}

func (b *layer) shape() kind {
	a := b.Attn
	return kind{a.HeadDim, a.Heads, a.KVHeads, b.FFN.Width, b.FFN.MoE, a.QKNorm, a.VNorm, a.VIsK, a.Gate, b.own, b.lends, b.Pre, b.Post, b.Delta}
}

// place returns the tensor of a slot, by the slot's name within the layer: a matrix or a vector.
func (b *layer) place(name string) (*linear, *vector) {
	switch name {
	case "input_layernorm.weight":
		return nil, &b.preMixer
	case "post_attention_layernorm.weight":
		if !b.Post {
			return nil, &b.preFFN
		}
		return nil, &b.postMixer
	case "pre_feedforward_layernorm.weight":
		return nil, &b.preFFN
	case "post_feedforward_layernorm.weight":
		return nil, &b.postFFN
	case "self_attn.q_proj.weight":
		return &b.qkv, nil
	case "self_attn.q_proj.bias":
		return nil, &b.qkv.bias
	case "self_attn.q_norm.weight":
		return nil, &b.qNorm
	case "self_attn.k_norm.weight":
		return nil, &b.kNorm
	case "self_attn.sinks":
		return nil, &b.sinks
	case "self_attn.o_proj.weight", "linear_attn.out_proj.weight":
		return &b.o, nil
	case "self_attn.o_proj.bias":
		return nil, &b.o.bias
	case "mlp.gate_proj.weight":
		return &b.gateUp, nil
	case "mlp.down_proj.weight":
		return &b.down, nil
	case "per_layer_input_gate.weight":
		return &b.pleGate, nil
	case "per_layer_projection.weight":
		return &b.pleOut, nil
	case "post_per_layer_input_norm.weight":
		return nil, &b.pleNorm
	}
	if matrix, vec := b.moe.place(name); matrix != nil || vec != nil {
		return matrix, vec
	}
	if matrix, vec := b.delta.place(name); matrix != nil || vec != nil {
		return matrix, vec
	}
	panic("model: no place for " + name) // computed accepted the description
}

// hasExperts reports whether the feed-forward network has experts.
func (b *layer) hasExperts() bool { return b.FFN.MoE != (arch.MoE{}) }

// act returns the activation of the feed-forward network as devices name it.
func (b *layer) act() device.Activation {
	switch b.FFN.Act {
	case arch.GELUTanh:
		return device.GELUTanh
	case arch.OSS:
		return device.OSS
	}
	return device.SiLU
}

// finishes reports whether q, k or v are more than their rotated projections, so that both are tensors of their own: their
// norms need the projections again in the backward, and gates stand between them.
func (b *layer) finishes() bool {
	return b.Attn.QKNorm != arch.NoQKNorm || b.own && (b.Attn.VNorm || b.Attn.VIsK) || b.Attn.Gate
}

// projected returns the columns of the projections of q, k and v, without gates.
func (b *layer) projected() int {
	n := b.Attn.QDim()
	if b.own {
		n += b.Attn.KVDim()
		if !b.Attn.VIsK {
			n += b.Attn.KVDim()
		}
	}
	return n
}

// finished returns the columns of what attention reads beyond the projections: q, k, and v where it is normalised.
func (b *layer) finished() int {
	n := b.Attn.QDim()
	if b.own {
		n += b.Attn.KVDim()
		if b.Attn.VNorm {
			n += b.Attn.KVDim()
		}
	}
	return n
}
