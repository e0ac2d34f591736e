package arch

import (
	"slices"
	"strconv"

	"apr/internal/strictjson"
)

// lostRule is a number or a setting that every published model of some families has, and a configuration that lost its
// key has not.
type lostRule struct {
	families []string
	key      string // of config.json
	gguf     string // of GGUF, behind the architecture; with ".weight" a tensor
	lost     func(c Config) bool
	used     string // what is computed without it
}

// lostRules are what published models state and whose absence changes the arithmetic. A key whose default is what the
// published models say, as Gemma 2's soft-caps in config.json, loses nothing where it is absent, only where it is null.
var lostRules = []lostRule{
	{granites, "embedding_multiplier", "embedding_scale", func(c Config) bool { return c.EmbedScale == 1 }, "1"},
	{granites, "logits_scaling", "logit_scale", func(c Config) bool { return c.LogitScale == 1 }, "1"},
	{granites, "residual_multiplier", "residual_scale", func(c Config) bool { return c.Layers[0].Residual == 1 }, "1"},
	{granites, "attention_multiplier", "attention.scale", func(c Config) bool { return c.attention().Scale == 1 }, "1"},
	{[]string{"gemma2"}, "attn_logit_softcapping", "attn_logit_softcapping",
		func(c Config) bool { return c.attention().Cap == 0 }, "none"},
	{[]string{"gemma2", "gemma4_text"}, "final_logit_softcapping", "final_logit_softcapping",
		func(c Config) bool { return c.FinalCap == 0 }, "none"},
	{[]string{"ministral3", "gpt_oss"}, "rope_scaling", "rope.scaling.type", unscaled, "none"},
	{[]string{"llama"}, "rope_scaling", freqsTable, unscaledLlama3, "none"},
	{[]string{"gemma3_text"}, "rope_scaling", "rope.scaling.type", func(c Config) bool {
		return unscaled(c) && (c.MaxPositions > 32768 || slices.Contains([]int{2560, 3840, 5376}, c.Hidden))
	}, "none"},
	{[]string{"olmo3"}, "rope_scaling", "rope.scaling.type", func(c Config) bool {
		return unscaled(c) &&
			c.MaxPositions >= 65536
	}, "none"},
	{[]string{"phi3"}, "rope_scaling", longTable, func(c Config) bool { return unscaled(c) && c.MaxPositions > 32768 },
		"none"},
}

var granites = []string{"granite", "granitemoehybrid"}

// unscaled reports whether layers that see everything have a rotary embedding without scaling.
func unscaled(c Config) bool {
	for i, l := range c.Layers {
		if r, ok := c.Rope(i); ok && l.Attn.Window == 0 {
			return r.Kind == RopeDefault
		}
	}
	return false
}

// unscaledLlama3 reports whether c is a Llama 3.1, 3.2 or 3.3 without scaling: by Llama 3's base with more positions
// than the 8192 of Llama 3, or by the sizes of the two models that there are of Llama 3.2 alone.
func unscaledLlama3(c Config) bool {
	small := c.Hidden == 2048 && len(c.Layers) == 16 || c.Hidden == 3072 && len(c.Layers) == 28
	return len(c.Ropes) > 0 && c.Ropes[0].Theta == 5e5 && unscaled(c) && (c.MaxPositions > 8192 || small &&
		c.Vocab >= 128000)
}

// Lost returns what every published model of the family has and c has not, whether a file states it so or leaves it
// out.
func (c Config) Lost() (all []Assumed) {
	for _, r := range c.lostRules() {
		all = append(all, Assumed{r.key, r.used})
	}
	return all
}

func (c Config) lostRules() (all []lostRule) {
	for _, r := range lostRules {
		if slices.Contains(r.families, c.Family) && len(c.Layers) > 0 && r.lost(c) {
			all = append(all, r)
		}
	}
	return all
}

// lostKeys returns those of Lost that a configuration leaves out. A scaling of null is none, as one that was removed is
// written.
func (c Config) lostKeys(v strictjson.Value) (all []Assumed) {
	for _, r := range c.lostRules() {
		f := strictjson.NewFields(v)
		if r.key == "rope_scaling" || !f.Has(r.key) && !isNull(v, r.key) {
			all = append(all, Assumed{r.key, r.used})
		}
	}
	return all
}

func isNull(v strictjson.Value, key string) bool {
	x, ok := v.Get(key)
	return ok && x.Kind() == strictjson.Null
}

// lostGGUF returns those of Lost that a GGUF file leaves out; has reports whether a key or a tensor is there.
func (c Config) lostGGUF(has func(name string) bool) (all []Assumed) {
	for _, r := range c.lostRules() {
		name := r.gguf
		if name != freqsTable && name != longTable {
			name = c.family().gguf + "." + name
		}
		if !has(name) {
			all = append(all, Assumed{name, r.used})
		}
	}
	return all
}

// isRound reports whether x, as a float32 has it, is written with that many digits: numbers that people chose are.
func isRound(x float64, digits int) bool {
	y, err := strconv.ParseFloat(strconv.FormatFloat(x, 'e', digits-1, 64), 64)
	return err == nil && x != 0 && float32(y) == float32(x)
}
