package model_test

import (
	"fmt"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/internal/near"
	"apr/model"
)

// What is kept and what is computed again changes no bit of a gradient, only the memory that the forward holds.
func TestRecomputeChangesNoBit(t *testing.T) {
	for _, isa := range []string{"generic", "avx2", "avx512"} {
		d, err := cpu.New(cpu.Options{ISA: isa})
		if err != nil {
			continue // not of this processor
		}
		t.Cleanup(func() { d.Close() })
		for name, c := range shapes {
			want := map[string][]float32{}
			held := int64(1) << 62
			for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
				t.Run(fmt.Sprintf("%s, %s, %v", isa, name, r), func(t *testing.T) {
					f := newFunctionalOn(t, d, c)
					f.backward(t, r)
					f.backward(t, r) // on temps that hold what the first left
					for _, p := range f.m.Parts() {
						got := download(t, f.s, p.Of(p.Param.Grad))
						if r == model.RecomputeNone {
							want[p.Name] = got
							continue
						}
						near.Check(t, "gradient of "+p.Name, got, want[p.Name], 0)
					}
					before, _ := d.Memory()
					v := f.m.Forward(f.s, f.tokens, r)
					now, _ := d.Memory()
					if n := now[device.Activations] - before[device.Activations]; n >= held {
						t.Errorf("%d bytes kept, the policy before keeps %d", n, held)
					} else {
						held = n
					}
					v.ReleaseTo(f.s)
				})
			}
		}
	}
}

func TestParseRecompute(t *testing.T) {
	for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
		if got, err := model.ParseRecompute(r.String()); err != nil || got != r {
			t.Errorf("%v: %v, %v", r, got, err)
		}
	}
	if _, err := model.ParseRecompute("auto"); err == nil {
		t.Error("auto is the planner's word")
	}
}
