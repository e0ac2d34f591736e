package model

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"apr/arch"
	"apr/device"
	"apr/tensor"
)

// Adapter names a matrix W [out, in] of a frozen model that gets a low-rank adapter (Hu et al. 2021, arXiv:2106.09685):
//
//	y = x·Wᵀ + b + Scale·(dropout(x)·Aᵀ)·Bᵀ, A [Rank, in], B [out, Rank], both float32
//
// Only A and B train. A begins uniform in ±1/√in and B zero, so that step 0 equals the base bit for bit.
type Adapter struct {
	Slot  string // of the matrix; lm_head.weight also of a model whose head is tied, whose embedding then stays as it is
	Rank  int
	Scale float64 // lora_alpha/r
}

// Name returns the name of the adapter's tensor which, "A" or "B", as PEFT has it without its prefix.
func (a Adapter) Name(which string) string {
	return strings.TrimSuffix(a.Slot, "weight") + "lora_" + which + ".weight"
}

// headSlot is the name of the output matrix, tied or not.
const headSlot = "lm_head.weight"

// lora are the adapters of a linear, some of whose row ranges (q, k and v; gate and up) have one each: device.LowRank says what they
// compute. Their A stand below each other, so that x is read once.
type lora struct {
	device.LowRank
	params []*device.Param // of A, then of the B of each part; none of a copy
	drop   *dropout
	key    uint64        // of the stack's name
	du     device.Tensor // [n, R]: the gradient over u, from weightGrad to inputGrad
}

// dropout is what the adapters of a model drop while it trains. Masks are a function of seed, step, stack, position and column:
// whatever computes an activation again, or resumes a run, drops the same.
type dropout struct {
	rate       float64
	seed, step uint64
	first      int  // position of the first row within the step
	on         bool // within Forward, Backward and the head of training
}

// of is what is dropped of a stack's input in this step.
func (d *dropout) of(stack uint64) device.Drop {
	return device.Drop{Rate: d.rate, Key: mix(mix(d.seed^stack) + d.step), First: d.first}
}

// mix is the finaliser of splitmix64 (Steele et al. 2014).
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// dropped returns x̃: x, or while training a copy in which values are dropped and the others scaled; release gives it back.
func (l *lora) dropped(s device.Stream, x device.Tensor) (_ device.Tensor, release func()) {
	if !l.drop.on || l.drop.rate == 0 {
		return x, func() {}
	}
	y := s.Temp("lora.x", device.Scratch, x.DType, x.Rows, x.Cols)
	s.Dropout(y, x, l.drop.of(l.key))
	return y, func() { s.Release(y) }
}

// still returns the same adapters, that drop nothing while others of the model train; nil of nil.
func (l *lora) still() *lora {
	if l == nil {
		return nil
	}
	c := *l
	c.drop = &dropout{}
	return &c
}

// rank returns the columns of u, 0 for no adapters.
func (l *lora) rank() int {
	if l == nil {
		return 0
	}
	return l.A.Rows()
}

// of is what the adapters compute of the first cols rows of the matrix: a vocabulary may be cut.
func (l *lora) of(cols int) device.LowRank {
	r := l.LowRank
	if last := r.Parts[len(r.Parts)-1]; last.Hi <= cols {
		return r
	}
	r.Parts = slices.Clone(r.Parts)
	for i := range r.Parts {
		p := &r.Parts[i]
		p.Lo, p.Hi = min(p.Lo, cols), min(p.Hi, cols)
		if !p.GradB.IsZero() {
			p.GradB = p.GradB.RowRange(0, p.Hi-p.Lo)
		}
	}
	return r
}

// forward adds to y what the adapters add, and then writes m = act(g)·u of y unless m is zero. It keeps u = x̃·Aᵀ, unless that is zero.
func (l *lora) forward(s device.Stream, y, m, x, u device.Tensor, act device.Activation) {
	x, release := l.dropped(s, x)
	kept := !u.IsZero()
	if !kept {
		u = s.Temp("lora.u", device.Scratch, x.DType, x.Rows, l.rank())
	}
	s.LowRank(y, m, u, x, l.of(y.Cols), act)
	if !kept {
		s.Release(u)
	}
	release()
}

// glu is a gated layer's product with what adapters add, and m = act(g)·u, where a device makes all that at once; it
// reports whether it did. It keeps u as forward does.
func (l *lora) glu(s device.Stream, m, gu, x, u device.Tensor, w device.Weight, act device.Activation) bool {
	at, ok := s.(device.GatedAdapters)
	if !ok {
		return false
	}
	if u.IsZero() {
		u = s.Temp("lora.u", device.Scratch, x.DType, x.Rows, l.rank())
		defer s.Release(u)
	}
	if !at.ServesLowRankGLU(m, gu, x, u, w, l.of(gu.Cols), act) {
		return false
	}
	l.again(s, x, u)
	at.MatMulLowRankGLU(m, gu, x, u, w, l.of(gu.Cols), act)
	return true
}

// again computes u, as forward does.
func (l *lora) again(s device.Stream, x, u device.Tensor) {
	x, release := l.dropped(s, x)
	s.LowRank(device.Tensor{}, device.Tensor{}, u, x, l.LowRank, 0)
	release()
}

// weightGrad adds the gradients of A and B. u is that of forward, or zero: then it is computed again. It keeps the gradient over u for
// inputGrad, which follows.
func (l *lora) weightGrad(s device.Stream, dy, x, u device.Tensor) {
	l.du = s.Temp("lora.du", device.Scratch, x.DType, x.Rows, l.rank())
	x, release := l.dropped(s, x)
	kept := !u.IsZero()
	if !kept {
		u = s.Temp("lora.u", device.Scratch, x.DType, x.Rows, l.rank())
		s.LowRank(device.Tensor{}, device.Tensor{}, u, x, l.LowRank, 0)
	}
	s.LowRankWeightGrad(l.du, dy, x, u, l.of(dy.Cols))
	if !kept {
		s.Release(u)
	}
	release()
}

// inputGrad adds dx += dropout'(du·A).
func (l *lora) inputGrad(s device.Stream, dx device.Tensor) {
	if l.drop.on && l.drop.rate > 0 {
		d := s.Temp("lora.x", device.Scratch, dx.DType, dx.Rows, dx.Cols)
		s.LowRankInputGrad(d, l.du, l.LowRank, false)
		s.Dropout(d, d, l.drop.of(l.key))
		s.Add(dx, d)
		s.Release(d)
	} else {
		s.LowRankInputGrad(dx, l.du, l.LowRank, true)
	}
	s.Release(l.du)
	l.du = device.Tensor{}
}

// Adapt makes a frozen model trainable by adapters: Params are theirs alone. Values dropped before A follow from the seed and
// from what Dropout says of the step.
func (m *Model) Adapt(adapters []Adapter, rate float64, seed uint64) {
	m.drop = &dropout{rate: rate, seed: mix(seed)}
	by := map[string]Adapter{}
	for _, a := range adapters {
		by[a.Slot] = a
	}
	for _, g := range m.groups {
		matrix, vec := (*linear)(nil), (*vector)(nil)
		if !g.slots[0].Fixed {
			matrix, vec = m.place(g)
		}
		switch {
		case vec != nil && !vec.value.IsZero():
			vec.unread = m.unread(vec.value)
		case matrix != nil && g.experts() == 0:
			matrix.lora = m.adapt(g.slots, by)
		}
	}
	if m.Config.Tied {
		head := arch.Slot{Name: headSlot, Role: arch.Head, Layer: -1, Shape: []int{m.embed.weight.Rows(), m.embed.weight.Cols()}}
		m.head.lora = m.adapt([]arch.Slot{head}, by)
	}
	if len(by) > 0 {
		panic(fmt.Sprintf("model: %d adapters have no matrix", len(by))) // who chose them looked at the slots
	}
}

// SetAdapters uploads the values of all A and B, by their names.
func (m *Model) SetAdapters(s device.Stream, values map[string][]float32) {
	for _, p := range m.parts {
		s.Upload(p.Of(p.Param.Value), values[p.Name])
	}
	m.Refresh(s)
}

// Adapted reports whether the model trains by adapters beside frozen weights.
func (m *Model) Adapted() bool { return m.drop != nil }

// Dropout says which step the next forward and backward belong to.
func (m *Model) Dropout(step int) {
	if m.drop != nil {
		m.drop.step = uint64(step)
	}
}

// dropping begins to drop values, of positions from first on, until the returned function is called.
func (m *Model) dropping(first int) func() {
	if m.drop == nil {
		return func() {}
	}
	m.drop.first, m.drop.on = first, true
	return func() { m.drop.on = false }
}

// Dropping reports whether training drops values.
func (m *Model) Dropping() bool { return m.drop != nil && m.drop.rate > 0 }

// WithoutDropout drops nothing in training passes until the returned function is called.
func (m *Model) WithoutDropout() (restore func()) {
	if m.drop == nil {
		return func() {}
	}
	rate := m.drop.rate
	m.drop.rate = 0
	return func() { m.drop.rate = rate }
}

// TrainingLogits is Logits of a training step: at is the place of the first row among the step's targets, on which dropout depends.
func (m *Model) TrainingLogits(s device.Stream, dst, x device.Tensor, at int) {
	defer m.dropping(at)()
	m.Logits(s, dst, x)
}

// adapt makes the adapters of the slots of one stack, and takes them out of by; nil if there are none.
func (m *Model) adapt(slots []arch.Slot, by map[string]Adapter) *lora {
	l, row := &lora{drop: m.drop, key: nameHash(slots[0].Name)}, 0
	rank, in := 0, slots[0].Shape[len(slots[0].Shape)-1]
	for _, s := range slots {
		if a, ok := by[s.Name]; ok {
			l.Parts = append(l.Parts, device.LowRankPart{Lo: row, Hi: row + s.Shape[0], From: rank, To: rank + a.Rank, Scale: a.Scale})
			rank += a.Rank
		}
		row += s.Shape[0]
	}
	if rank == 0 {
		return nil
	}
	param := func(name string, rows, cols int) *device.Param {
		p := m.dev.Param(device.ParamSpec{Name: name, Rows: rows, Cols: cols, Decay: true})
		m.params, l.params = append(m.params, p), append(l.params, p)
		return p
	}
	first := param(Adapter{Slot: slots[0].Name}.Name("A"), rank, in)
	l.A, l.GradA = first.Weight, first.Grad
	next := 0
	for _, s := range slots {
		a, ok := by[s.Name]
		if !ok {
			continue
		}
		delete(by, s.Name)
		p := &l.Parts[next]
		next++
		b := param(a.Name("B"), p.Hi-p.Lo, a.Rank)
		p.B, p.GradB = b.Weight, b.Grad
		part := arch.Slot{Name: a.Name("A"), Role: s.Role, Layer: s.Layer, Shape: []int{a.Rank, in}, Decay: true, Init: arch.Uniform}
		m.parts = append(m.parts, Part{Slot: part, Param: first, lo: p.From, hi: p.To})
		part.Name, part.Shape, part.Init = a.Name("B"), []int{b.Rows, a.Rank}, arch.Zeros
		m.parts = append(m.parts, Part{Slot: part, Param: b, lo: 0, hi: b.Rows})
	}
	return l
}

// unread returns where operations add the gradient of a frozen vector, which they compute beside that of their input: one piece of
// memory for all vectors of a shape. Nobody reads it.
func (m *Model) unread(v device.Tensor) device.Tensor {
	if m.sinks == nil {
		m.sinks = map[[2]int]device.Tensor{}
	}
	shape := [2]int{v.Rows, v.Cols}
	t, ok := m.sinks[shape]
	if !ok {
		t = m.dev.Alloc("unread", device.Gradients, tensor.F32, v.Rows, v.Cols)
		m.sinks[shape] = t
	}
	return t
}

// copied returns adapters with the present values, in memory of their own.
func (l *lora) copied(s device.Stream, dev device.Device) *lora {
	if l == nil {
		return nil
	}
	value := func(p *device.Param) device.Weight {
		t := dev.Alloc("snapshot."+p.Name, device.StudentWeights, tensor.F32, p.Rows, p.Cols)
		s.Copy(t, p.Value)
		return dev.Frozen(t)
	}
	c := &lora{LowRank: device.LowRank{A: value(l.params[0]), Parts: slices.Clone(l.Parts)}, drop: &dropout{}}
	for i := range c.Parts {
		c.Parts[i].B, c.Parts[i].GradB = value(l.params[1+i]), device.Tensor{}
	}
	return c
}

// snapshotAdapters is Snapshot of a model that trains by adapters: they are copied, and what is frozen is shared.
func (m *Model) snapshotAdapters(s device.Stream) *Model {
	f := m.Frozen()
	for _, g := range f.groups {
		if g.slots[0].Fixed {
			continue
		}
		if matrix, _ := f.place(g); matrix != nil {
			matrix.lora = matrix.lora.copied(s, m.dev)
		}
	}
	if f.Config.Tied {
		f.head.lora = m.head.lora.copied(s, m.dev)
	}
	f.drop = nil
	return f
}

// uniformBound is the bound of an A of so many columns: what torch's kaiming_uniform_ with a = √5 comes to.
func uniformBound(in int) float64 { return 1 / math.Sqrt(float64(in)) }
