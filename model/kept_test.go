package model_test

import (
	"testing"

	"apr/arch"
	"apr/device"
	"apr/device/dry"
	"apr/model"
	"apr/tensor"
)

// Bytes that a forward keeps are those of the table at Recompute.
func TestKeptBytesAreAsDocumented(t *testing.T) {
	eachShape(t, func(t *testing.T, name string) {
		f := randomFamily(t, name, 4, 16) // 64 positions: a column is 256 bytes, which are not rounded
		d := dry.New(dry.Target{Info: device.Info{Kind: "cpu", Activations: tensor.F32}})
		s := d.NewStream()
		m := f.trainable(t, d, s)
		tokens := f.tokens(d, s)
		for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
			before, _ := d.Memory()
			v := m.Forward(s, tokens, r)
			now, _ := d.Memory()
			v.ReleaseTo(s)
			want := f.documented(r) * int64(len(f.ids)) * 4
			if got := now[device.Activations] - before[device.Activations]; got != want {
				t.Errorf("%v: %d bytes are kept, documented are %d", r, got, want)
			}
		}
	})
}

// documented returns the numbers that the table at Recompute says are kept for a position.
func (f *fixture) documented(r model.Recompute) (n int64) {
	c := f.config
	h, p := c.Hidden, c.PLE.Width
	n = int64(2*h + 1) // around the last norm
	if p > 0 && r < model.RecomputeBlocks {
		n += int64(len(c.Layers))
	}
	lends := map[int]bool{}
	for i, l := range c.Layers {
		lends[l.Attn.KVFrom] = lends[l.Attn.KVFrom] || l.Attn.KVFrom != i && !l.Linear()
	}
	for i, l := range c.Layers {
		a, width, m := l.Attn, l.FFN.Width, l.FFN.MoE
		q, kv := a.QDim(), a.KVDim()
		own := a.KVFrom == i
		if !own {
			kv = 0
		}
		if lends[i] {
			n += int64(2 * kv)
		}
		if r == model.RecomputeBlocks {
			n += int64(h)
			continue
		}
		none := r == model.RecomputeNone
		if d := l.Delta; l.Linear() {
			kept := 2*h + d.QKV() + 3*d.Inner() + 3*d.ValueHeads + 2*width + 2
			if none {
				kept += 2*h + d.QKV() + d.Inner() + width
			}
			n += int64(kept)
			continue
		}
		kept := 2*h + 2*q + 2*kv + 2*width + a.Heads // and the log-sum-exp
		if none && l.Pre {
			kept += 2 * h
		}
		if none {
			kept += width
		}
		kept += m.Experts + 4*m.Active + m.Active*(h+2*m.Width)
		if none {
			kept += m.Active * m.Width
		}
		if m.Beside {
			kept += 2*h + 3
			if none {
				kept += 2 * h
			}
		}
		if m != (arch.MoE{}) {
			kept++ // where experts begin: 256 bytes, of 64 positions
		}
		if l.Post {
			kept += 2*h + 2
		}
		if l.Pre {
			kept += 2
		}
		kvHeads := a.KVHeads
		if !own {
			kvHeads = 0
		}
		switch a.QKNorm {
		case arch.HeadNorm:
			kept += a.Heads + kvHeads
		case arch.RowNorm:
			kept += 2
		}
		if none && a.QKNorm != arch.NoQKNorm {
			kept += q + kv
		}
		if a.VNorm && own {
			kept += kvHeads
			if none {
				kept += kv
			}
		}
		if a.VIsK && own {
			kept -= kv
		}
		if p > 0 {
			kept += 2*h + 3*p + 1
			if none {
				kept += p
			}
		}
		n += int64(kept)
	}
	return n
}
