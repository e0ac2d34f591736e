package model

import (
	"apr/arch"
	"apr/device"
	"apr/internal/fault"
	"apr/tensor"
)

// Outline is a model without its weights: configuration, and type and shape of each tensor. It is enough for a device
// that reads nothing, as a dry one.
type Outline struct {
	Config arch.Config
	shapes map[string][]int
	source func(name string) (device.Source, error)
}

// Describe returns the outline of a model, whose files must stay open.
func Describe(w Weights) *Outline { return &Outline{w.Arch(), arch.Shapes(w.Arch()), w.Source} }

// OutlineOf returns a model of description c whose matrices are stored in type d, row by row.
func OutlineOf(c arch.Config, d tensor.DType) *Outline {
	o := &Outline{Config: c, shapes: arch.Shapes(c)}
	o.source = func(name string) (device.Source, error) {
		shape, ok := o.shapes[name]
		if !ok {
			return nil, fault.New(fault.Load, "is not part of a %s model of this configuration", c.Family).At("tensor %q", name).WithID("E-MODEL-012")
		}
		info := tensor.Info{Name: name, DType: d, Shape: shape}
		info.Size = int64(info.Rows()) * d.RowBytes(info.Cols())
		return described{info}, nil
	}
	return o
}

// LoadFrozen makes the model on dev, which must read no source; norms and biases are zeros.
func (o *Outline) LoadFrozen(dev device.Device, c device.Component, form device.Form) (*Model, error) {
	return loadFrozen(dev, o, c, form)
}

// Arch returns the description.
func (o *Outline) Arch() arch.Config { return o.Config }

// Verify finds nothing: there are no bytes.
func (o *Outline) Verify() error { return nil }

// Source describes a matrix.
func (o *Outline) Source(name string) (device.Source, error) { return o.source(name) }

// ReadFloat32 returns as many zeros as the tensor has values.
func (o *Outline) ReadFloat32(name string) ([]float32, error) {
	n, _ := tensor.Elements(o.shapes[name])
	return make([]float32, n), nil
}

// described is a source without content.
type described struct{ info tensor.Info }

func (d described) Info() tensor.Info { return d.info }

// ReadRows is an error: there is nothing to read.
func (d described) ReadRows([]byte, int, int) error {
	return fault.New(fault.Load, "has a description only").At("tensor %q", d.info.Name).WithID("E-MODEL-013")
}
