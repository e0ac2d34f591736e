package arch

import (
	"math"

	"apr/internal/fault"
)

const (
	maxLayers  = 1024
	maxHidden  = 1 << 17
	maxVocab   = 1 << 22
	maxExperts = 1 << 12
)

// count is a size with what it may be.
type count struct {
	name     string
	val, max int
}

// check refuses sizes that contradict each other or are absurd. Names are those of config.json.
func (c Config) check(path string) error {
	bad := func(format string, args ...any) error {
		return fault.In(fault.Invalid, path, format, args...).WithID("E-CONFIG-010")
	}
	counts := []count{
		{"hidden_size", c.Hidden, maxHidden}, {"num_hidden_layers", len(c.Layers), maxLayers},
		{"vocab_size", c.Vocab, maxVocab}, {"max_position_embeddings", c.MaxPositions, 1 << 30},
	}
	if c.PLE != (PLE{}) {
		counts = append(counts, count{"hidden_size_per_layer_input", c.PLE.Width, maxHidden}, count{"vocab_size_per_layer_input", c.PLE.Vocab, maxVocab})
	}
	for _, n := range counts {
		if n.name == "vocab_size" && n.val > n.max { // ids are no wider
			return fault.In(fault.Format, path, "%s is %d, not between 1 and %d", n.name, n.val, n.max).WithID("E-CONFIG-010")
		}
		if n.val < 1 || n.val > n.max {
			return bad("%s is %d, not between 1 and %d", n.name, n.val, n.max)
		}
	}
	for _, x := range []struct {
		name string
		val  float64
	}{{"rms_norm_eps", c.Eps}, {"the factor of the embedding", c.EmbedScale}, {"the factor of the logits", c.LogitScale}} {
		if !finitePositive(x.val) {
			return bad("%s %v is not finite and positive", x.name, x.val)
		}
	}
	switch {
	case c.NormOffset != 0 && c.NormOffset != 1:
		return bad("norms multiply by w+%v, not by w or w+1", c.NormOffset)
	case !(c.InitRange >= 0) || math.IsInf(c.InitRange, 0):
		return bad("initializer_range %v is not finite and non-negative", c.InitRange)
	case !(c.FinalCap >= 0) || math.IsInf(c.FinalCap, 0):
		return bad("final_logit_softcapping %v is not finite and positive", c.FinalCap)
	}
	for _, id := range append([]int{c.BOS}, c.EOS...) {
		if id >= c.Vocab {
			return bad("bos_token_id or eos_token_id %d is outside the vocabulary of %d", id, c.Vocab)
		}
	}
	for i, r := range c.Ropes {
		if why := r.check(); why != "" {
			return bad("rotary embedding %d: %s", i, why)
		}
	}
	for i, l := range c.Layers {
		if err := c.checkLayer(l, i, path); err != nil {
			return err
		}
	}
	return nil
}

// check returns what is wrong with r, or "".
func (r Rope) check() string {
	switch {
	case !finitePositive(r.Theta):
		return "rope_theta is not finite and positive"
	case r.Width < 2 || r.Width%2 != 0:
		return "rotates a number of values that is not even and at least 2; it pairs halves"
	case r.Width > r.HeadDim:
		return "rotates more values than a head has"
	case !finitePositive(r.Attention):
		return "attention_factor is not finite and positive"
	case r.Kind == RopeLlama3 && !(r.Low > 0 && r.High > r.Low && r.Original > 0):
		return "llama3 wants 0 < low_freq_factor < high_freq_factor, and original_max_position_embeddings"
	case r.Kind == RopeYaRN && !(r.Original > 0 && r.High > 0 && r.Low > 0 && r.Theta > 1):
		return "yarn wants original_max_position_embeddings, beta_fast, beta_slow, and rope_theta above 1"
	case (r.Kind == RopeLinear || r.Kind == RopeLlama3 || r.Kind == RopeYaRN || r.Kind == RopeProportional) && !finitePositive(r.Factor):
		return "factor is missing or not finite and positive"
	case r.Kind == RopeLong && r.Original < 2:
		return "longrope wants original_max_position_embeddings"
	}
	if r.Kind == RopeLong || r.Kind == RopeFactors {
		for _, list := range [][]float64{r.Divisors, r.LongDivs} {
			if len(list) != r.Width/2 && !(r.Kind == RopeFactors && list == nil) {
				return "has not one divisor for each pair"
			}
			for _, d := range list {
				if !finitePositive(d) {
					return "has a divisor that is not finite and positive"
				}
			}
		}
	}
	return ""
}

func (c Config) checkLayer(l Layer, i int, path string) error {
	bad := func(format string, args ...any) error {
		return fault.In(fault.Invalid, path, format, args...).At("layer %d", i).WithID("E-CONFIG-010")
	}
	a, m := l.Attn, l.FFN.MoE
	counts := []count{
		{"num_attention_heads", a.Heads, maxHidden}, {"num_key_value_heads", a.KVHeads, maxHidden}, {"head_dim", a.HeadDim, maxHidden},
	}
	if l.Linear() {
		d := l.Delta
		counts = []count{
			{"linear_num_key_heads", d.KeyHeads, maxHidden}, {"linear_num_value_heads", d.ValueHeads, maxHidden},
			{"linear_key_head_dim", d.KeyDim, maxHidden}, {"linear_value_head_dim", d.ValueDim, maxHidden}, {"linear_conv_kernel_dim", d.Conv, 64},
		}
		a = Attention{Heads: d.ValueHeads, KVHeads: d.KeyHeads, HeadDim: max(d.KeyDim, d.ValueDim), Scale: 1, KVFrom: i, Rope: -1}
	}
	if l.FFN.Width != 0 || m == (MoE{}) {
		counts = append(counts, count{"intermediate_size", l.FFN.Width, 8 * maxHidden})
	}
	if m.Shared != 0 {
		counts = append(counts, count{"shared_expert_intermediate_size", m.Shared, 8 * maxHidden})
	}
	if m != (MoE{}) {
		counts = append(counts, count{"num_experts", m.Experts, maxExperts}, count{"num_experts_per_tok", m.Active, m.Experts},
			count{"moe_intermediate_size", m.Width, 8 * maxHidden})
	}
	for _, n := range counts {
		if n.val < 1 || n.val > n.max {
			return bad("%s is %d, not between 1 and %d", n.name, n.val, n.max)
		}
	}
	switch {
	case a.Heads*a.HeadDim > maxHidden:
		return bad("%d heads of %d values are wider than %d", a.Heads, a.HeadDim, maxHidden)
	case l.Linear() && a.Heads%a.KVHeads != 0:
		return bad("linear_num_key_heads %d does not divide linear_num_value_heads %d", a.KVHeads, a.Heads)
	case a.Heads%a.KVHeads != 0:
		return bad("%d key-value heads do not divide %d heads", a.KVHeads, a.Heads)
	case a.Rope < -1 || a.Rope >= len(c.Ropes) || a.Rope >= 0 && c.Ropes[a.Rope].HeadDim != a.HeadDim:
		return bad("head_dim %d is not the rotary embedding's", a.HeadDim)
	case !finitePositive(a.Scale) || !finitePositive(l.Residual):
		return bad("the factors of scores and residual, %v and %v, are not both finite and positive", a.Scale, l.Residual)
	case !(a.Cap >= 0) || math.IsInf(a.Cap, 0) || !(a.QBeta >= 0) || math.IsInf(a.QBeta, 0) || a.QBeta > 0 && a.QLength < 1:
		return bad("attn_logit_softcapping %v or llama_4_scaling_beta %v is not finite and non-negative", a.Cap, a.QBeta)
	case a.Window < 0 || a.Window > 1<<30:
		return bad("sliding_window is %d", a.Window)
	case m.Beside != (m != MoE{} && l.FFN.Width > 0):
		return bad("experts of one layer do not say how they stand to its dense network")
	case !l.Pre && !l.Post:
		return bad("has no norms")
	case l.FFN.Act != SiLU && l.FFN.Act != GELUTanh && l.FFN.Act != OSS:
		return bad("activation %q is not known", l.FFN.Act)
	case a.QKNorm != NoQKNorm && a.QKNorm != HeadNorm && a.QKNorm != RowNorm:
		return bad("norm of q and k %q is not known", a.QKNorm)
	}
	return c.checkShared(a, i, bad)
}

// checkShared looks at the layer whose k and v layer i uses.
func (c Config) checkShared(a Attention, i int, bad func(string, ...any) error) error {
	if a.KVFrom == i {
		return nil
	}
	if a.KVFrom < 0 || a.KVFrom > i || !c.OwnKV(a.KVFrom) {
		return bad("uses the keys and values of layer %d, which has none of its own before it", a.KVFrom)
	}
	if o := c.Layers[a.KVFrom].Attn; o.HeadDim != a.HeadDim || o.KVHeads != a.KVHeads || o.Window != a.Window {
		return bad("uses the keys and values of layer %d, whose heads or window differ", a.KVFrom)
	}
	return nil
}

func finitePositive(x float64) bool { return x > 0 && !math.IsInf(x, 0) }
