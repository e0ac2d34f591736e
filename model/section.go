package model

import (
	"fmt"
	"strings"

	"apr/arch"
	"apr/device"
	"apr/internal/fault"
)

// Section is layers [lo,hi) of a model for inference. The first part looks the ids up, the last one ends with the final
// norm; the head is in no part: see LoadHead.
type Section struct {
	*Model // its layers are those of the part, counted from 0
	first  bool
	last   bool
}

// Splits refuses a model whose layers depend on each other by more than the residual stream.
func Splits(c arch.Config) error {
	what := ""
	for i, l := range c.Layers {
		switch {
		case l.OutScale:
			what = "layers whose output is scaled"
		case !l.Linear() && l.Attn.KVFrom != i:
			what = "layers that read keys and values of others"
		}
	}
	if c.PLE != (arch.PLE{}) {
		what = "embeddings of each layer"
	}
	if what == "" {
		return nil
	}
	return fault.New(fault.Unavailable, "not built: layers on several devices for a model with %s", what).
		WithID("E-MODEL-049")
}

// LoadSection puts layers [lo,hi) of a model on a device, in the form that LoadFrozenAs gives them.
func LoadSection(dev device.Device, w Weights, c device.Component, form device.Form, lo, hi int) (*Section, error) {
	if err := Splits(w.Arch()); err != nil {
		return nil, err
	}
	p := sectionOf{w, lo, hi}
	m, err := loadFrozen(dev, p, c, form)
	return &Section{m, p.first(), p.last()}, err
}

// skipper are weights of which some are not put on the device.
type skipper interface{ skips(s arch.Slot) bool }

// sectionOf are the weights of layers [lo,hi).
type sectionOf struct {
	Weights
	lo, hi int
}

func (w sectionOf) first() bool { return w.lo == 0 }
func (w sectionOf) last() bool  { return w.hi == len(w.Weights.Arch().Layers) }

// skips leaves out what is not needed between the ends of the part.
func (w sectionOf) skips(s arch.Slot) bool {
	switch {
	case s.Layer >= 0:
		return false
	case s.Role == arch.Embedding:
		return !w.first()
	case s.Name == finalNorm:
		return !w.last()
	}
	return true
}

// Arch returns the description of the part, whose layers count from 0.
func (w sectionOf) Arch() arch.Config {
	c := w.Weights.Arch()
	c.Layers = append([]arch.Layer(nil), c.Layers[w.lo:w.hi]...)
	for i := range c.Layers {
		if !c.Layers[i].Linear() {
			c.Layers[i].Attn.KVFrom = i
		}
	}
	return c
}

const ofLayer = "model.layers."

// whole returns the name of a slot of the part in the whole model.
func (w sectionOf) whole(name string) string {
	rest, ok := strings.CutPrefix(name, ofLayer)
	if !ok {
		return name
	}
	number, rest, _ := strings.Cut(rest, ".")
	var layer int
	if _, err := fmt.Sscan(number, &layer); err != nil {
		panic("model: the slot " + name + " has no number of its layer")
	}
	return fmt.Sprintf("%s%d.%s", ofLayer, layer+w.lo, rest)
}

// Source is that of the whole model's slot.
func (w sectionOf) Source(name string) (device.Source, error) { return w.Weights.Source(w.whole(name)) }

// ReadFloat32 is that of the whole model's slot.
func (w sectionOf) ReadFloat32(name string) ([]float32, error) {
	return w.Weights.ReadFloat32(w.whole(name))
}

// Through takes the residual stream of t's positions through the part's layers:
//
//	x + delta ← layers(x + delta)
//
// x and delta [n, h] are the device's activations. delta is what is still to be added to x; pending says whether there
// is any, and the result whether there is any afterwards. The first part reads neither. After the last one x
// are the final hidden states. All parts after one another have the bits of Hidden.
func (m *Section) Through(s device.Stream, x, delta device.Tensor, pending bool, t Tokens) bool {
	w := newWorkspace(s, t.n())
	w.lend("x", x)
	w.lend("delta", delta)
	p := &pass{m: m.Model, s: s, t: t, act: x.DType, adds: m.dev.Info().Adds}
	p.inference(w)
	v := stream{x: x}
	switch {
	case m.first:
		v = p.embed(x)
	case pending:
		v.delta = delta
	}
	for i := range m.layers {
		v = p.layer(&m.layers[i], p.reused(&m.layers[i]), v, false)
	}
	if m.last {
		y := w.take("y", p.act, m.Config.Hidden)
		p.last(y, device.Tensor{}, x, v)
		s.Copy(x, y)
		v = stream{x: x}
	}
	w.release()
	return !v.delta.IsZero()
}
