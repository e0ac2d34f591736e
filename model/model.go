package model

import (
	"fmt"

	"apr/device"
	"apr/tensor"
)

// Model is a Qwen2 on a device: frozen (a teacher, generation, evaluation) or trainable (a student).
//
// The shapes below use B rows of S positions, n = B·S, hidden width h, d = head dimension, f = intermediate width.
type Model struct {
	Config
	dev device.Device

	embed  device.Weight // [vocab, h]
	head   device.Weight // [vocab, h]; the same as embed when tied
	layers []layer
	norm   device.Tensor // [1, h]
	rope   *device.Frequencies

	// A trainable model has these; a frozen one never does.
	params          []*device.Param
	parts           []Part
	embedParam      *device.Param
	headParam       *device.Param // embedParam when tied
	normParam       *device.Param
	trainableLayers []layerParams
}

// layer holds what the forward pass of one decoder layer reads.
type layer struct {
	inputNorm, postNorm device.Tensor // [1, h]
	qkv                 device.Weight // [(heads + 2·kv)·d, h]: q, k, v stacked
	qkvBias             device.Tensor // [1, (heads + 2·kv)·d]
	o                   device.Weight // [h, heads·d]
	gateUp              device.Weight // [2f, h]: gate, up stacked
	down                device.Weight // [h, f]
}

// layerParams are the trainable tensors behind a layer.
type layerParams struct {
	inputNorm, postNorm, qkv, qkvBias, o, gateUp, down *device.Param
}

// Part is one named tensor of the model within a trainable parameter, which may hold several (q, k and v).
type Part struct {
	Name   string
	Shape  []int
	Param  *device.Param
	lo, hi int // rows of a matrix, columns of a vector
}

// Of returns the part's view of t, which is the parameter's value, gradient or a moment.
func (p Part) Of(t device.Tensor) device.Tensor {
	if p.Param.Rows == 1 && len(p.Shape) == 1 {
		return t.ColRange(p.lo, p.hi)
	}
	return t.RowRange(p.lo, p.hi)
}

// Elements returns the number of values of the part.
func (p Part) Elements() int { n, _ := tensor.Elements(p.Shape); return int(n) }

// Device returns the device the model lives on.
func (m *Model) Device() device.Device { return m.dev }

// Params returns the trainable parameters; none for a frozen model.
func (m *Model) Params() []*device.Param { return m.params }

// Parts returns the named tensors of a trainable model in a fixed order.
func (m *Model) Parts() []Part { return m.parts }

// Head returns the output matrix and, for a trainable model, the parameter behind it.
func (m *Model) Head() (device.Weight, *device.Param) { return m.head, m.headParam }

// qDim and kvDim are the widths of the query and of the key (and value) projections.
func (c Config) qDim() int   { return c.Heads * c.HeadDim }
func (c Config) kvDim() int  { return c.KVHeads * c.HeadDim }
func (c Config) qkvDim() int { return c.qDim() + 2*c.kvDim() }

// layerName returns the file name of a tensor of layer i.
func layerName(i int, rest string) string { return fmt.Sprintf("model.layers.%d.%s", i, rest) }

// ParamCount returns the number of parameters of a model of this configuration; a tied head counts once.
func (c Config) ParamCount() int64 {
	h, f := int64(c.HiddenSize), int64(c.IntermediateSize)
	q, kv := int64(c.qDim()), int64(c.kvDim())
	perLayer := 2*h + (q+2*kv)*(h+1) + h*q + 3*h*f
	n := int64(c.VocabSize)*h + int64(c.Layers)*perLayer + h
	if !c.Tied {
		n += int64(c.VocabSize) * h
	}
	return n
}

// TensorShapes returns the name and shape of every tensor that a model of this configuration has in a file. A tied
// head is listed by its embedding only.
func (c Config) TensorShapes() map[string][]int {
	h, f, q, kv := c.HiddenSize, c.IntermediateSize, c.qDim(), c.kvDim()
	m := map[string][]int{"model.embed_tokens.weight": {c.VocabSize, h}, "model.norm.weight": {h}}
	if !c.Tied {
		m["lm_head.weight"] = []int{c.VocabSize, h}
	}
	for i := range c.Layers {
		for name, shape := range map[string][]int{
			"input_layernorm.weight":          {h},
			"self_attn.q_proj.weight":         {q, h},
			"self_attn.q_proj.bias":           {q},
			"self_attn.k_proj.weight":         {kv, h},
			"self_attn.k_proj.bias":           {kv},
			"self_attn.v_proj.weight":         {kv, h},
			"self_attn.v_proj.bias":           {kv},
			"self_attn.o_proj.weight":         {h, q},
			"post_attention_layernorm.weight": {h},
			"mlp.gate_proj.weight":            {f, h},
			"mlp.up_proj.weight":              {f, h},
			"mlp.down_proj.weight":            {h, f},
		} {
			m[layerName(i, name)] = shape
		}
	}
	return m
}
