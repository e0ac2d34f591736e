package modelfile

import (
	"fmt"
	"maps"
	"slices"

	"apr/arch"
)

// commonBiases returns both configurations without the biases that only one of them has.
func commonBiases(a, b arch.Config) (arch.Config, arch.Config) {
	if len(a.Layers) != len(b.Layers) {
		return a, b
	}
	a.Layers, b.Layers = slices.Clone(a.Layers), slices.Clone(b.Layers)
	for i := range a.Layers {
		x, y := &a.Layers[i], &b.Layers[i]
		for _, bias := range [][2]*bool{
			{&x.Attn.QKVBias, &y.Attn.QKVBias}, {&x.Attn.OBias, &y.Attn.OBias}, {&x.FFN.MoE.Bias, &y.FFN.MoE.Bias},
		} {
			both := *bias[0] && *bias[1]
			*bias[0], *bias[1] = both, both
		}
	}
	return a, b
}

// lonelyBias names the first bias that only one of the models has and that adds anything; empty: there is none.
func lonelyBias(a, b *Files) (string, error) {
	inA, inB := arch.Shapes(a.Config), arch.Shapes(b.Config)
	for _, one := range []struct {
		f           *Files
		has, hasNot map[string][]int
	}{{a, inA, inB}, {b, inB, inA}} {
		for _, name := range slices.Sorted(maps.Keys(one.has)) {
			if _, both := one.hasNot[name]; both || name == "lm_head.weight" {
				continue
			}
			values, err := one.f.ReadFloat32(name)
			if err != nil {
				return "", err
			}
			if slices.ContainsFunc(values, func(v float32) bool { return v != 0 }) {
				return fmt.Sprintf("%s is in %s only", name, one.f.Path), nil
			}
		}
	}
	return "", nil
}
