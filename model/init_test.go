package model_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/internal/near"
	"apr/model"
)

// weightsOf initialises a model of configuration c and returns its tensors by name.
func weightsOf(t *testing.T, c arch.Config, seed uint64) map[string][]float32 {
	t.Helper()
	d := newCPU(t)
	s := d.NewStream()
	m := model.NewTrainable(d, c)
	m.Init(s, seed)
	out := map[string][]float32{}
	for _, p := range m.Parts() {
		out[p.Name] = download(t, s, p.Of(p.Param.Value))
	}
	return out
}

// Matrices are normal with mean 0 and the configured deviation, norms 1, biases 0. With n values the mean varies by
// σ/√n, the deviation by σ/√(2n), the share within one σ (0.6827) by 0.4654/√n; five times that is allowed.
func TestInitStatistics(t *testing.T) {
	sizes := shapes["untied, own head size"].Sizes()
	sizes.Hidden, sizes.InitRange = 96, 0.05
	c := arch.Qwen2(sizes)
	for name, v := range weightsOf(t, c, 1) {
		switch {
		case strings.HasSuffix(name, "norm.weight"):
			near.Check(t, name, v, slices.Repeat([]float64{1}, len(v)), 0)
		case strings.HasSuffix(name, ".bias"):
			near.Check(t, name, v, make([]float64, len(v)), 0)
		default:
			var sum, squares, within float64
			for _, x := range v {
				sum += float64(x)
				squares += float64(x) * float64(x)
				if math.Abs(float64(x)) <= c.InitRange {
					within++
				}
			}
			n := float64(len(v))
			sigma := c.InitRange
			near.Check(t, name+": mean", []float64{sum / n}, []float64{0}, 5*sigma/math.Sqrt(n))
			near.Check(t, name+": deviation", []float64{math.Sqrt(squares / n)}, []float64{sigma}, 5*sigma/math.Sqrt(2*n))
			near.Check(t, name+": within σ", []float64{within / n}, []float64{0.6827}, 5*0.4654/math.Sqrt(n))
		}
	}
}

// A tensor's values depend on the seed, its name and its own size, not on the tensors beside it.
func TestInitIsByName(t *testing.T) {
	c := shapes["tied"]
	base := weightsOf(t, c, 1)
	sizes := c.Sizes()
	sizes.Layers, sizes.Tied, sizes.Width = 3, false, 48
	more := arch.Qwen2(sizes)
	other, again, seeded := weightsOf(t, more, 1), weightsOf(t, c, 1), weightsOf(t, c, 2)
	seen := map[float32]string{}
	for name, v := range base {
		if !slices.Equal(v, again[name]) {
			t.Errorf("%s: the same seed gives other values", name)
		}
		if !strings.HasSuffix(name, "proj.weight") && name != "model.embed_tokens.weight" {
			continue
		}
		if slices.Equal(v, seeded[name]) {
			t.Errorf("%s: another seed gives the same values", name)
		}
		if !strings.Contains(name, ".mlp.") && !slices.Equal(v, other[name]) {
			t.Errorf("%s: its values depend on other tensors", name)
		}
		if twin, ok := seen[v[0]]; ok {
			t.Errorf("%s begins as %s does", name, twin)
		}
		seen[v[0]] = name
	}
}
