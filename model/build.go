package model

import (
	"context"
	"hash/fnv"
	"math/rand/v2"

	"apr/device"
	"apr/internal/fault"
	"apr/tensor"
)

// LoadFrozen puts a model's weights on a device for inference: matrices in the types of the file, as the device keeps
// them, norms and biases in float32. No gradient or optimiser state exists for it. A file that is damaged, as far as its
// format can tell, is refused (see tensor.File.Verify).
func LoadFrozen(dev device.Device, f *Files, c device.Component) (*Model, error) {
	return LoadFrozenAs(dev, f, c, device.Form{})
}

// LoadFrozenAs is LoadFrozen with matrices in a given form.
func LoadFrozenAs(dev device.Device, f *Files, c device.Component, form device.Form) (*Model, error) {
	m, err := loadFrozen(dev, f.Config, f, c, form)
	if err == nil {
		err = f.File.Verify()
	}
	return m, err
}

// LoadFrozenThrough is LoadFrozenAs with every matrix read through a source of the caller's, which may change its values and type.
func LoadFrozenThrough(dev device.Device, f *Files, c device.Component, form device.Form, through func(device.Source) device.Source) (*Model, error) {
	return loadFrozen(dev, f.Config, throughFiles{f, through}, c, form)
}

// throughFiles are Files whose matrices come through another source.
type throughFiles struct {
	*Files
	through func(device.Source) device.Source
}

func (f throughFiles) Source(name string) (device.Source, error) {
	s, err := f.Files.Source(name)
	if err != nil {
		return nil, err
	}
	return f.through(s), nil
}

// tensors gives the tensors of a model by name.
type tensors interface {
	Source(name string) (device.Source, error)
	ReadFloat32(name string) ([]float32, error)
}

func loadFrozen(dev device.Device, config Config, f tensors, c device.Component, form device.Form) (*Model, error) {
	m := &Model{Config: config, dev: dev, rope: config.frequencies()}
	b := builder{m: m, f: f, s: dev.NewStream(), c: c, form: form}
	b.form.FP8 = form.FP8 && form.Blocks && m.Tied // rows are gathered exactly: in 8-bit floats a table could only be multiplied
	m.embed = b.weight("model.embed_tokens.weight")
	b.form = device.Form{Blocks: form.Blocks && !form.FP8, FP8: form.FP8} // a head is multiplied chunk by chunk: expanded once, if that takes no more memory
	m.head = m.embed
	if !m.Tied {
		m.head = b.weight("lm_head.weight")
	}
	b.form = form
	m.layers = make([]layer, m.Layers)
	for i := range m.layers {
		at := func(rest string) string { return layerName(i, rest) }
		m.layers[i] = layer{
			inputNorm: b.vector(at("input_layernorm.weight")),
			postNorm:  b.vector(at("post_attention_layernorm.weight")),
			qkv:       b.weight(at("self_attn.q_proj.weight"), at("self_attn.k_proj.weight"), at("self_attn.v_proj.weight")),
			qkvBias:   b.vector(at("self_attn.q_proj.bias"), at("self_attn.k_proj.bias"), at("self_attn.v_proj.bias")),
			o:         b.weight(at("self_attn.o_proj.weight")),
			gateUp:    b.weight(at("mlp.gate_proj.weight"), at("mlp.up_proj.weight")),
			down:      b.weight(at("mlp.down_proj.weight")),
		}
	}
	m.norm = b.vector("model.norm.weight")
	if b.err == nil {
		_, b.err = b.s.Wait(context.Background()) // for an error of the uploads
	}
	return m, b.err
}

// builder loads tensors and keeps the first error.
type builder struct {
	m    *Model
	f    tensors
	s    device.Stream
	c    device.Component
	form device.Form
	err  error
}

func (b *builder) weight(names ...string) device.Weight {
	spec := device.WeightSpec{Name: names[0], Component: b.c, Form: b.form}
	for _, name := range names {
		src, err := b.f.Source(name)
		if err != nil {
			b.fail(err)
			return nil
		}
		spec.Parts = append(spec.Parts, src)
	}
	if b.err != nil {
		return nil
	}
	w, err := b.m.dev.Weight(spec)
	b.fail(err)
	return w
}

func (b *builder) vector(names ...string) device.Tensor {
	var host []float32
	for _, name := range names {
		v, err := b.f.ReadFloat32(name)
		if err != nil {
			b.fail(err)
			return device.Tensor{}
		}
		host = append(host, v...)
	}
	if b.err != nil {
		return device.Tensor{}
	}
	t := b.m.dev.Alloc(names[0], b.c, tensor.F32, 1, len(host))
	b.s.Upload(t, host)
	return t
}

func (b *builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// NewTrainable makes a trainable model of configuration c on dev, all weights zero: call Init or LoadWeights next.
func NewTrainable(dev device.Device, c Config) *Model {
	m := &Model{Config: c, dev: dev, rope: c.frequencies()}
	h, f := c.HiddenSize, c.IntermediateSize
	m.embedParam = m.matrix(h, "model.embed_tokens.weight", c.VocabSize)
	m.embed = m.embedParam.Weight
	for i := range c.Layers {
		at := func(rest string) string { return layerName(i, rest) }
		p := layerParams{
			inputNorm: m.vectorParam(at("input_layernorm.weight"), h),
			qkv: m.matrix(h, at("self_attn.q_proj.weight"), c.qDim(), at("self_attn.k_proj.weight"), c.kvDim(),
				at("self_attn.v_proj.weight"), c.kvDim()),
			qkvBias: m.vectorParam(at("self_attn.q_proj.bias"), c.qDim(), at("self_attn.k_proj.bias"), c.kvDim(),
				at("self_attn.v_proj.bias"), c.kvDim()),
			o:        m.matrix(c.qDim(), at("self_attn.o_proj.weight"), h),
			postNorm: m.vectorParam(at("post_attention_layernorm.weight"), h),
			gateUp:   m.matrix(h, at("mlp.gate_proj.weight"), f, at("mlp.up_proj.weight"), f),
			down:     m.matrix(f, at("mlp.down_proj.weight"), h),
		}
		m.trainableLayers = append(m.trainableLayers, p)
		m.layers = append(m.layers, layer{
			inputNorm: p.inputNorm.Value, postNorm: p.postNorm.Value,
			qkv: p.qkv.Weight, qkvBias: p.qkvBias.Value, o: p.o.Weight, gateUp: p.gateUp.Weight, down: p.down.Weight,
		})
	}
	m.normParam = m.vectorParam("model.norm.weight", h)
	m.norm = m.normParam.Value
	m.headParam = m.embedParam
	if !c.Tied {
		m.headParam = m.matrix(h, "lm_head.weight", c.VocabSize)
	}
	m.head = m.headParam.Weight
	return m
}

// matrix registers a trainable matrix [Σ rows, cols] of stacked parts, given as name, rows, name, rows ...
func (m *Model) matrix(cols int, namesAndRows ...any) *device.Param {
	return m.param(true, cols, namesAndRows)
}

// vectorParam registers a trainable vector of stacked parts, given as name, length, name, length ...
func (m *Model) vectorParam(namesAndLengths ...any) *device.Param {
	return m.param(false, 0, namesAndLengths)
}

func (m *Model) param(isMatrix bool, cols int, namesAndSizes []any) *device.Param {
	total := 0
	var parts []Part
	for i := 0; i < len(namesAndSizes); i += 2 {
		n := namesAndSizes[i+1].(int)
		p := Part{Name: namesAndSizes[i].(string), Shape: []int{n}, lo: total, hi: total + n}
		if isMatrix {
			p.Shape = []int{n, cols}
		}
		parts = append(parts, p)
		total += n
	}
	spec := device.ParamSpec{Name: parts[0].Name, Rows: 1, Cols: total}
	if isMatrix {
		spec = device.ParamSpec{Name: parts[0].Name, Rows: total, Cols: cols, Decay: true}
	}
	p := m.dev.Param(spec)
	for i := range parts {
		parts[i].Param = p
	}
	m.params = append(m.params, p)
	m.parts = append(m.parts, parts...)
	return p
}

// Init fills a trainable model by seed: matrices N(0, InitializerRange²), norms 1, biases 0. Every tensor draws from
// its own generator, PCG(seed, FNV-1a of its name), so its values do not depend on the other tensors.
func (m *Model) Init(s device.Stream, seed uint64) {
	for _, p := range m.parts {
		host := make([]float32, p.Elements())
		switch {
		case len(p.Shape) == 2:
			rng := rand.New(rand.NewPCG(seed, nameHash(p.Name)))
			for i := range host {
				host[i] = float32(rng.NormFloat64() * m.InitializerRange)
			}
		case isNorm(p.Name):
			for i := range host {
				host[i] = 1
			}
		}
		s.Upload(p.Of(p.Param.Value), host)
	}
	m.Refresh(s)
}

// LoadWeights fills a trainable model from a file of the same configuration. A damaged file is refused as by LoadFrozen.
func (m *Model) LoadWeights(s device.Stream, f *Files) error {
	for _, p := range m.parts {
		host, err := f.ReadFloat32(p.Name)
		if err != nil {
			return err
		}
		if len(host) != p.Elements() {
			return fault.In(fault.Load, f.Path, "has %d values, the configuration wants %v", len(host), p.Shape).At("tensor %q", p.Name)
		}
		s.Upload(p.Of(p.Param.Value), host)
	}
	m.Refresh(s)
	return f.File.Verify()
}

// Refresh makes the weights that matrix products read agree with the master weights after uploads.
func (m *Model) Refresh(s device.Stream) {
	for _, p := range m.params {
		s.RefreshWeight(p)
	}
}

// Frozen returns a model that shares the present weights of a trainable one and keeps no training state of its own;
// it is how a student is evaluated between steps.
func (m *Model) Frozen() *Model {
	f := *m
	f.params, f.parts, f.trainableLayers = nil, nil, nil
	f.embedParam, f.headParam, f.normParam = nil, nil, nil
	return &f
}

// Snapshot returns a frozen copy of a trainable model's present weights, in memory of its own.
func (m *Model) Snapshot(s device.Stream) *Model {
	f := m.Frozen()
	copied := map[*device.Param]device.Tensor{}
	for _, p := range m.params {
		t := m.dev.Alloc("snapshot."+p.Name, device.StudentWeights, tensor.F32, p.Rows, p.Cols)
		s.Copy(t, p.Value)
		copied[p] = t
	}
	weight := func(p *device.Param) device.Weight { return m.dev.Frozen(copied[p]) }
	f.embed, f.norm = weight(m.embedParam), copied[m.normParam]
	f.head = f.embed
	if m.headParam != m.embedParam {
		f.head = weight(m.headParam)
	}
	f.layers = make([]layer, len(m.layers))
	for i, p := range m.trainableLayers {
		f.layers[i] = layer{
			inputNorm: copied[p.inputNorm], postNorm: copied[p.postNorm],
			qkv: weight(p.qkv), qkvBias: copied[p.qkvBias], o: weight(p.o), gateUp: weight(p.gateUp), down: weight(p.down),
		}
	}
	return f
}

// ResetTraining zeroes gradients and moments.
func (m *Model) ResetTraining(s device.Stream) {
	for _, p := range m.params {
		for _, t := range []device.Tensor{p.Grad, p.M, p.V} {
			s.Zero(t)
		}
	}
}

func nameHash(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

func isNorm(name string) bool {
	const suffix = "norm.weight"
	return len(name) >= len(suffix) && name[len(name)-len(suffix):] == suffix
}
