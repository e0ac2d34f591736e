package model

import (
	"cmp"
	"context"
	"hash/fnv"
	"math/rand/v2"
	"slices"

	"apr/arch"
	"apr/device"
	"apr/internal/fault"
	"apr/tensor"
)

// Weights gives the tensors of a model, by the names of its slots, whatever files they come from.
type Weights interface {
	// Arch returns the description.
	Arch() arch.Config
	// Source returns access to the rows of a matrix, in the type that it is stored in.
	Source(name string) (device.Source, error)
	// ReadFloat32 returns all values of a slot, widened to float32.
	ReadFloat32(name string) ([]float32, error)
	// Verify refuses bytes that differ from those written, as far as the file shows it; see tensor.File.
	Verify() error
}

// LoadFrozen puts a model's weights on a device for inference: matrices in the types of the file, as the device keeps
// them, norms and biases in float32. No gradient or optimiser state exists for it. A file that is damaged, as far as its
// format can tell, is refused (see tensor.File.Verify).
func LoadFrozen(dev device.Device, w Weights, c device.Component) (*Model, error) {
	return LoadFrozenAs(dev, w, c, device.Form{})
}

// LoadFrozenAs is LoadFrozen with matrices in a given form.
func LoadFrozenAs(dev device.Device, w Weights, c device.Component, form device.Form) (*Model, error) {
	m, err := loadFrozen(dev, w, c, form)
	if err == nil || fault.KindOf(err) == fault.Format { // of content that was damaged, that is said
		err = cmp.Or(w.Verify(), err)
	}
	return m, err
}

// LoadFrozenThrough is LoadFrozenAs with every matrix read through a source of the caller's, which may change its values and type.
func LoadFrozenThrough(dev device.Device, w Weights, c device.Component, form device.Form, through func(device.Source) device.Source) (*Model, error) {
	return loadFrozen(dev, changed{w, through}, c, form)
}

// changed are weights whose matrices come through another source.
type changed struct {
	Weights
	through func(device.Source) device.Source
}

func (c changed) Source(name string) (device.Source, error) {
	s, err := c.Weights.Source(name)
	if err != nil {
		return nil, err
	}
	return c.through(s), nil
}

func loadFrozen(dev device.Device, f Weights, c device.Component, form device.Form) (*Model, error) {
	config := f.Arch()
	if err := cmp.Or(Computed(config), Served(config, dev.Info())); err != nil {
		return nil, err
	}
	m := newModel(dev, config)
	m.streams = form.HostLayers
	b := builder{m: m, f: f, s: dev.NewStream(), c: c}
	for _, g := range m.groups {
		if x, ok := f.(skipper); ok && x.skips(g.slots[0]) {
			continue
		}
		b.form = form
		switch g.slots[0].Role { // of blocks of 8-bit floats rows cannot be gathered exactly: such a table could only be multiplied
		case arch.Embedding:
			b.form.FP8 = form.FP8 && form.Blocks && config.Tied
		case arch.PLETable, arch.Router: // which experts are chosen stays what it is
			b.form.FP8 = false
		case arch.Head: // multiplied chunk by chunk: expanded once, if that takes no more memory
			b.form = device.Form{Blocks: form.Blocks && !form.FP8, FP8: form.FP8}
		}
		b.layer = max(g.slots[0].Layer, 0)
		if g.slots[0].Layer < 0 { // used for every chunk, or by rows: on the device
			b.form.HostLayers = false
		}
		if g.slots[0].Fixed {
			b.fixed(g)
			continue
		}
		if matrix, vec := m.place(g); matrix != nil {
			matrix.weight = b.weight(g)
		} else {
			vec.value = b.vector(g)
		}
	}
	if config.Tied {
		m.head = m.embed
	}
	if b.err == nil {
		_, b.err = b.s.Wait(context.Background()) // for an error of the uploads
	}
	return m, b.err
}

// builder loads tensors and keeps the first error.
type builder struct {
	m    *Model
	f    Weights
	s    device.Stream
	c    device.Component
	form device.Form
	// layer of the matrix; only layers may be on the host
	layer int
	err   error
}

func (b *builder) weight(g group) device.Weight {
	spec := device.WeightSpec{Name: g.slots[0].Name, Component: b.c, Form: b.form, Experts: g.experts(), Layer: b.layer}
	for _, name := range g.names() {
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

func (b *builder) vector(g group) device.Tensor {
	var host []float32
	for _, slot := range g.slots {
		v, err := b.f.ReadFloat32(slot.Name)
		if err != nil {
			b.fail(err)
			return device.Tensor{}
		}
		host = append(host, shifted(v, offset(b.m.Config, slot))...)
	}
	if b.err != nil {
		return device.Tensor{}
	}
	rows := max(g.experts(), 1)
	if g.matrix() { // of small numbers that are no product's: the taps of a convolution
		rows = g.slots[0].Shape[0]
	}
	t := b.m.dev.Alloc(g.slots[0].Name, b.c, tensor.F32, rows, len(host)/rows)
	b.s.Upload(t, host)
	return t
}

// fixed reads a tensor that stays on the host.
func (b *builder) fixed(g group) {
	v, err := b.f.ReadFloat32(g.slots[0].Name)
	b.fail(err)
	copy(b.m.fixed[g.slots[0].Name], v)
}

// offset is what a device's tensor has more than the slot's: a norm is kept as what it multiplies by, w+NormOffset, so
// that no device knows of the offset.
func offset(c arch.Config, s arch.Slot) float32 {
	if s.Role == arch.Norm && s.Init == arch.Identity {
		return float32(c.NormOffset)
	}
	return 0
}

// shifted adds d to all values.
func shifted(values []float32, d float32) []float32 {
	if d != 0 {
		for i := range values {
			values[i] += d
		}
	}
	return values
}

func (b *builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// NewTrainable makes a trainable model of a description that Computed and Served accept on dev, all weights zero: call Init or
// LoadWeights next.
func NewTrainable(dev device.Device, c arch.Config) *Model { return NewTrainableAs(dev, c, nil) }

// NewTrainableAs is NewTrainable for a model whose matrices are computed with as files of these types hold them, by slot; a slot
// that is not among them is float32. QuantizedBy accepted the types.
func NewTrainableAs(dev device.Device, c arch.Config, types map[string]tensor.DType) *Model {
	if err := cmp.Or(Computed(c), Served(c, dev.Info())); err != nil {
		panic(err)
	}
	m := newModel(dev, c)
	for _, g := range m.groups {
		if g.slots[0].Fixed {
			continue
		}
		p := m.param(g, types)
		if matrix, vec := m.place(g); matrix != nil {
			matrix.weight, matrix.param = p.Weight, p
		} else {
			vec.value, vec.param = p.Value, p
		}
	}
	if c.Tied {
		m.head = m.embed
	}
	return m
}

// param registers the trainable parameter of a group: its matrices below each other, its vectors behind each other, the biases of
// experts a row each.
func (m *Model) param(g group, types map[string]tensor.DType) *device.Param {
	total, spec := 0, device.ParamSpec{Name: g.slots[0].Name}
	var parts []Part
	for _, s := range g.slots {
		n := s.Shape[0]
		if len(s.Shape) > 1 {
			n = int(s.Elements()) / s.Shape[len(s.Shape)-1]
		}
		parts = append(parts, Part{Slot: s, lo: total, hi: total + n})
		total += n
	}
	spec.Rows, spec.Cols = 1, total
	if shape := g.slots[0].Shape; len(shape) > 1 {
		spec.Rows, spec.Cols, spec.Decay = total, shape[len(shape)-1], g.slots[0].Decay
		spec.Blocks = blocksOf(g, parts, types)
	}
	if d, ok := m.dev.(device.Sharer); ok && len(spec.Blocks) == 0 {
		spec.Share = d.Share()
	}
	p := m.dev.Param(spec)
	for i := range parts {
		parts[i].Param = p
	}
	m.params = append(m.params, p)
	m.parts = append(m.parts, parts...)
	return p
}

// Init fills a trainable model by seed, as the slots say: matrices N(0, InitRange²), norms that multiply by 1, biases 0.
// Every tensor draws from its own generator, PCG(seed, FNV-1a of its name), so its values do not depend on the other
// tensors.
func (m *Model) Init(s device.Stream, seed uint64) {
	for _, p := range m.parts {
		host := make([]float32, p.Elements())
		switch p.Slot.Init {
		case arch.Normal:
			rng := rand.New(rand.NewPCG(seed, nameHash(p.Name)))
			for i := range host {
				host[i] = float32(rng.NormFloat64() * m.Config.InitRange)
			}
		case arch.Uniform:
			rng, bound := rand.New(rand.NewPCG(seed, nameHash(p.Name))), uniformBound(p.Shape[1])
			for i := range host {
				host[i] = float32((2*rng.Float64() - 1) * bound)
			}
		case arch.Ones, arch.Identity: // a device has w+NormOffset
			for i := range host {
				host[i] = 1
			}
		}
		s.Upload(p.Of(p.Param.Staging(device.OfValue)), host)
	}
	m.Refresh(s)
}

// LoadWeights fills a trainable model with weights of the same description. A damaged file is refused as by LoadFrozen.
func (m *Model) LoadWeights(s device.Stream, w Weights) error {
	return m.load(s, w, false)
}

// LoadRead is LoadWeights for a model that will be computed with and not trained: where matrices are computed with as blocks hold them,
// these values are taken as they are, and neither weights nor blocks change.
func (m *Model) LoadRead(s device.Stream, w Weights) error {
	return m.load(s, w, true)
}

// load is LoadRead, or with asRead false LoadWeights.
func (m *Model) load(s device.Stream, w Weights, asRead bool) error {
	read := func(slot arch.Slot) ([]float32, error) {
		host, err := w.ReadFloat32(slot.Name)
		if err == nil && int64(len(host)) != slot.Elements() {
			err = fault.New(fault.Load, "has %d values, the configuration wants %v", len(host), slot.Shape).At("tensor %q", slot.Name)
		}
		return host, err
	}
	for _, p := range m.parts {
		host, err := read(p.Slot)
		if err != nil {
			return err
		}
		to := p.Param.Staging(device.OfValue)
		if asRead && !p.Param.Shared(device.OfValue) {
			to = p.Param.Read()
		}
		s.Upload(p.Of(to), shifted(host, offset(m.Config, p.Slot)))
	}
	for _, g := range m.groups {
		if slot := g.slots[0]; slot.Fixed {
			host, err := read(slot)
			if err != nil {
				return err
			}
			copy(m.fixed[slot.Name], host)
		}
	}
	for _, p := range m.params {
		if len(p.Blocks) > 0 && asRead {
			s.(device.Quantizer).RefreshRead(p)
		} else {
			s.RefreshWeight(p)
		}
	}
	return w.Verify()
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
	f.params, f.parts, f.layers = nil, nil, slices.Clone(m.layers)
	for _, g := range m.groups {
		if g.slots[0].Fixed {
			continue
		}
		if matrix, vec := f.place(g); matrix != nil {
			matrix.param, matrix.lora = nil, matrix.lora.still()
		} else {
			vec.param = nil
		}
	}
	if f.Config.Tied {
		f.head = linear{weight: f.embed.weight, lora: m.head.lora.still()}
	}
	return &f
}

// Snapshot returns a frozen copy of a trainable model's present weights, in memory of its own.
func (m *Model) Snapshot(s device.Stream) *Model {
	if m.Adapted() {
		return m.snapshotAdapters(s)
	}
	f, params := m.Frozen(), m.params
	f.fixed = map[string][]float32{}
	for _, g := range m.groups {
		if slot := g.slots[0]; slot.Fixed {
			f.fixed[slot.Name] = slices.Clone(m.fixed[slot.Name])
			f.layers[slot.Layer].outScale = f.fixed[slot.Name]
			continue
		}
		p := params[0]
		params = params[1:]
		t := m.dev.Alloc("snapshot."+p.Name, device.StudentWeights, tensor.F32, p.Rows, p.Cols)
		whole := p.Read()
		if p.Shared(device.OfValue) {
			whole = m.whole(p, device.OfValue)
		}
		s.Copy(t, whole)
		if matrix, vec := f.place(g); matrix != nil {
			matrix.weight = m.dev.Frozen(t)
		} else {
			vec.value = t
		}
	}
	if f.Config.Tied {
		f.head = f.embed
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

// whole returns all values of a companion, gathered from the ranks that share it.
func (m *Model) whole(p *device.Param, c device.Companion) device.Tensor {
	if m.Whole != nil && p.Shared(c) {
		m.Whole(p, c)
	}
	return p.Staging(c)
}
