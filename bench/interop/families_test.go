package main

import (
	"math"
	"slices"
	"testing"

	"apr/arch"
	"apr/bench/randmodel"
	"apr/internal/ref"
	"apr/tokenizer"
)

// changed returns descriptions that lack one feature of c, or have it elsewhere, by a name.
func changed(c arch.Config) map[string]arch.Config {
	all := map[string]arch.Config{}
	add := func(name string, change func(c *arch.Config)) {
		o := c
		o.Layers, o.Ropes = slices.Clone(c.Layers), slices.Clone(c.Ropes)
		change(&o)
		if !o.Equal(c) {
			all[name] = o
		}
	}
	each := func(name string, change func(i int, l *arch.Layer)) {
		add(name, func(o *arch.Config) {
			for i := range o.Layers {
				if !o.Layers[i].Linear() {
					change(i, &o.Layers[i])
				}
			}
		})
	}
	window := func(to func(w int) int) func(int, *arch.Layer) {
		return func(_ int, l *arch.Layer) {
			if l.Attn.Window > 0 {
				l.Attn.Window = to(l.Attn.Window)
			}
		}
	}
	each("no window", window(func(int) int { return 0 }))
	each("window one larger", window(func(w int) int { return w + 1 }))
	each("no cap of scores", func(_ int, l *arch.Layer) { l.Attn.Cap = 0 })
	each("no scale of positions", func(_ int, l *arch.Layer) { l.Attn.QBeta = 0 })
	each("no norm of v", func(_ int, l *arch.Layer) { l.Attn.VNorm = false })
	each("no norm of q and k", func(_ int, l *arch.Layer) { l.Attn.QKNorm = arch.NoQKNorm })
	each("no bias", func(_ int, l *arch.Layer) { l.Attn.QKVBias = false })
	each("no bias of o", func(_ int, l *arch.Layer) { l.Attn.OBias = false })
	each("no sinks", func(_ int, l *arch.Layer) { l.Attn.Sinks = false })
	each("other scale", func(_ int, l *arch.Layer) { l.Attn.Scale *= 1.1 })
	each("rotary embedding everywhere", func(_ int, l *arch.Layer) { l.Attn.Rope = max(l.Attn.Rope, 0) })
	each("one rotary embedding", func(_ int, l *arch.Layer) { l.Attn.Rope = min(l.Attn.Rope, 0) })
	each("no factor of branches", func(_ int, l *arch.Layer) { l.Residual = 1 })
	each("no factor of the output", func(_ int, l *arch.Layer) { l.OutScale = false })
	each("other activation", func(_ int, l *arch.Layer) {
		l.FFN.Act = map[arch.Activation]arch.Activation{arch.SiLU: arch.GELUTanh}[l.FFN.Act]
		if l.FFN.Act == "" {
			l.FFN.Act = arch.SiLU
		}
	})
	each("probabilities of experts as they are", func(_ int, l *arch.Layer) { l.FFN.MoE.Renorm, l.FFN.MoE.TopKFirst = false, false })
	each("shared keys and values of the first layer", func(i int, l *arch.Layer) {
		if l.Attn.KVFrom != i {
			l.Attn.KVFrom = slices.IndexFunc(c.Layers, func(o arch.Layer) bool { return (o.Attn.Window > 0) == (l.Attn.Window > 0) })
		}
	})
	add("no final cap", func(o *arch.Config) { o.FinalCap = 0 })
	add("no scale of the embedding", func(o *arch.Config) { o.EmbedScale = 1 })
	add("no scale of logits", func(o *arch.Config) { o.LogitScale = 1 })
	add("another epsilon", func(o *arch.Config) { o.Eps *= 10 })
	for i := range c.Ropes {
		if !slices.ContainsFunc(c.Layers, func(l arch.Layer) bool { return !l.Linear() && l.Attn.Rope == i }) {
			continue
		}
		add("rotary embedding without scaling", func(o *arch.Config) {
			r := o.Ropes[i]
			o.Ropes[i] = arch.Rope{Kind: arch.RopeDefault, Theta: r.Theta, HeadDim: r.HeadDim, Width: r.Width, Attention: 1}
		})
		add("another base", func(o *arch.Config) { o.Ropes[i].Theta /= 100 })
		add("whole heads rotated", func(o *arch.Config) {
			if r := &o.Ropes[i]; r.Kind == arch.RopeDefault {
				r.Width = r.HeadDim
			}
		})
	}
	return all
}

// The random models of the table notice every feature: without it logits change by more than a hundred times what the
// table allows.
func TestFeaturesMatter(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range randoms {
		if m.Deep {
			continue
		}
		_, c, err := m.Config()
		if err != nil {
			t.Fatal(err)
		}
		tok, err := tokenizer.Load("../../testdata/tokenizers/" + m.Tokenizer)
		if err != nil {
			t.Fatal(err)
		}
		for name := range changed(c) {
			seen[name] = true
		}
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			net := &ref.Net{Arch: c, Params: map[string]ref.Mat{}}
			params := randmodel.Weights(c, tok, false)
			for _, s := range arch.Slots(c) {
				net.Params[s.Name] = matrix(s, params[s.Name])
			}
			ids := encode(tok, prompts[1])[:24]
			want := net.Forward(ids, 1).Logits
			for name, other := range changed(c) {
				got := (&ref.Net{Arch: other, Params: net.Params}).Forward(ids, 1).Logits
				if d := apart(got.V, want.V); !(d > 1e-2) {
					t.Errorf("%s: logits change by %.2g of the largest", name, d)
				}
			}
		})
	}
	if len(seen) < 20 {
		t.Errorf("only %d features are covered: %v", len(seen), seen)
	}
}

// apart returns the largest difference, of the largest value.
func apart(got, want []float64) float64 {
	difference, largest := 0.0, 0.0
	for i := range want {
		difference, largest = worse(difference, math.Abs(got[i]-want[i])), max(largest, math.Abs(want[i]))
	}
	return difference / largest
}
