package model_test

import (
	"testing"

	"apr/device/cpu"
	"apr/model"
)

// Gradients of experts are the same bits on any number of workers.
func TestExpertsSameBitsForAnyWorkers(t *testing.T) {
	for _, name := range []string{"qwen 3 with experts", "gemma 4 with experts"} {
		f := randomFamily(t, name, 2, 40)
		first := map[string][]float32{}
		for _, workers := range []int{1, 2, 5} {
			d, err := cpu.New(cpu.Options{Workers: workers})
			must(t, err)
			t.Cleanup(func() { d.Close() })
			s := d.NewStream()
			m := f.trainable(t, d, s)
			v := m.Forward(s, f.tokens(d, s), model.RecomputeNone)
			raw := make([]float32, len(f.ids)*f.config.Vocab)
			for i := range raw {
				raw[i] = float32(i%7) - 3
			}
			f.backwardFrom(m, s, v, raw)
			for _, p := range m.Parts() {
				got := download(t, s, p.Of(p.Param.Grad))
				if workers == 1 {
					first[p.Name] = got
				} else if !equalBits(got, first[p.Name]) {
					t.Errorf("%s: %d workers change the gradient of %s", name, workers, p.Name)
				}
			}
		}
	}
}
