package model_test

import (
	"testing"

	"apr/device"
	"apr/model"
	"apr/tensor"
)

// TestHiddenByLayers: all sequences through a layer before the next give the bits of one group of sequences
// after the other, for every family, with a last group that is smaller, and with documents kept apart.
func TestHiddenByLayers(t *testing.T) {
	staged := 0
	eachShape(t, func(t *testing.T, name string) {
		f := randomFamily(t, name, 5, 12)
		d := newCPU(t)
		m, err := model.LoadFrozen(d, f, device.TeacherWeights)
		must(t, err)
		if m.Staged() {
			staged++
		}
		s, n, h := d.NewStream(), len(f.ids), f.config.Hidden
		all := f.tokens(d, s)
		want := d.Alloc("want", device.Activations, tensor.F32, n, h)
		got := d.Alloc("got", device.Activations, tensor.F32, n, h)
		a, b := make([]float32, n*h), make([]float32, n*h)
		for _, rows := range []int{1, 2, 5} {
			for lo := 0; lo < all.Rows; lo += rows {
				hi := min(lo+rows, all.Rows)
				m.Hidden(s, want.RowRange(lo*all.SeqLen, hi*all.SeqLen), all.Slice(lo, hi))
			}
			m.HiddenByLayers(s, got, all, rows)
			must(t, s.Download(a, want))
			must(t, s.Download(b, got))
			if !equalBits(a, b) {
				t.Errorf("%d sequences at a time: hidden states differ", rows)
			}
		}
	})
	if staged < 5 {
		t.Errorf("%d shapes are taken layer by layer", staged)
	}
}
