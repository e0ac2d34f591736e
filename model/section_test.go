package model_test

import (
	"testing"

	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/model"
	"apr/tensor"
)

// TestSections: layers in sections on devices of their own, between which x and delta travel, give the bits of the
// whole model, for every family whose layers depend on each other by the residual stream alone; others are refused.
func TestSections(t *testing.T) {
	split := 0
	eachShape(t, func(t *testing.T, name string) {
		f := randomFamily(t, name, 5, 12)
		layers := len(f.Arch().Layers)
		if err := model.Splits(f.Arch()); err != nil {
			if _, got := model.LoadSection(newCPU(t), f, device.TeacherWeights, device.Form{}, 0, 1); got == nil ||
				fault.KindOf(got) != fault.Unavailable {
				t.Errorf("%v, want %v", got, err)
			}
			return
		}
		contracttest.Cases(t, 1)
		split++
		d := newCPU(t)
		m, err := model.LoadFrozen(d, f, device.TeacherWeights)
		must(t, err)
		s, n, h := d.NewStream(), len(f.ids), f.config.Hidden
		whole := d.Alloc("want", device.Activations, tensor.F32, n, h)
		m.Hidden(s, whole, f.tokens(d, s))
		want, x, delta := make([]float32, n*h), make([]float32, n*h), make([]float32, n*h)
		must(t, s.Download(want, whole))
		pending := false
		for lo := range layers { // sections of one layer
			d := newCPU(t)
			part, err := model.LoadSection(d, f, device.TeacherWeights, device.Form{}, lo, lo+1)
			must(t, err)
			s := d.NewStream()
			a := d.Alloc("x", device.Activations, tensor.F32, n, h)
			b := d.Alloc("delta", device.Activations, tensor.F32, n, h)
			s.Upload(a, x)
			s.Upload(b, delta)
			pending = part.Through(s, a, b, pending, f.tokens(d, s))
			must(t, s.Download(x, a))
			must(t, s.Download(delta, b))
		}
		if pending || !equalBits(x, want) {
			t.Errorf("%d sections: the hidden states are not those of the whole model", layers)
		}
	})
	if split < 5 {
		t.Errorf("%d shapes are computed in sections", split)
	}
}
