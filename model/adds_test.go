package model_test

import (
	"testing"

	"apr/device"
	"apr/device/dry"
	"apr/model"
	"apr/tensor"
)

// On a device whose products add cheaply a forward that keeps nothing adds what o and down project to the residual
// stream at once, where neither a norm nor a factor stands between, and the sum over experts does; the norms then add
// the rest. Elsewhere, and in training, norms add all.
func TestBranchesAdd(t *testing.T) {
	eachShape(t, func(t *testing.T, name string) {
		f := randomFamily(t, name, 4, 16)
		direct, branches := int64(0), int64(0)
		for _, l := range f.config.Layers {
			branches += 2
			if l.Post || l.Residual != 1 || l.OutScale {
				continue
			}
			direct += 2
			if l.FFN.MoE.Beside {
				direct--
			}
		}
		if f.config.PLE.Width > 0 {
			branches += int64(len(f.config.Layers))
		}
		for _, adds := range []bool{true, false} {
			d := dry.New(dry.Target{Info: device.Info{Kind: "cuda", Activations: tensor.BF16, Adds: adds}, Matrices: tensor.BF16})
			s := d.NewStream()
			m, tokens := f.trainable(t, d, s), f.tokens(d, s)
			added := func() (products, norms int64) {
				for _, c := range d.Record().Ops {
					if c.Add && (c.Kind == device.OpMatMul || c.Kind == device.OpCombine) {
						products += c.Times
					}
					if c.Add && c.Kind == device.OpRMSNorm {
						norms += c.Times
					}
				}
				d.ResetOps()
				return products, norms
			}
			d.ResetOps()
			v := m.Forward(s, tokens, model.RecomputeNone)
			if products, norms := added(); products != 0 || norms != branches {
				t.Errorf("training, adds %v: %d products or sums and %d norms add, want none and %d", adds, products, norms,
					branches)
			}
			m.Hidden(s, v.Hidden, tokens)
			want := direct
			if !adds {
				want = 0
			}
			if products, norms := added(); products != want || norms != branches-want {
				t.Errorf("inference, adds %v: %d products or sums and %d norms add, want %d and %d", adds, products, norms,
					want, branches-want)
			}
			v.ReleaseTo(s)
		}
	})
}
