package arch

import (
	"fmt"
	"slices"

	"apr/internal/strictjson"
)

// Assumed is a key that a family's published configurations have and this one has not, with the value that is used for
// it.
type Assumed struct {
	Key   string
	Value float64
}

// String says it as a warning does.
func (a Assumed) String() string {
	return fmt.Sprintf("has no %s, as every published model of its family has: %g is used; was it removed?", a.Key, a.Value)
}

// stating are the families all of whose published config.json state the base of the rotary embedding and the ε of
// norms. Gemma 3's leave both to the library where the model is multimodal, and so may those of Gemma 4.
var stating = []string{"gemma2", "gpt_oss", "granite", "ministral3", "mistral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_5_text", "qwen3_moe", "smollm3"}

// statingGGUF are the families of which llama.cpp's converter writes the base of the rotary embedding.
var statingGGUF = []string{"gpt_oss", "granite", "olmo2", "olmo3", "qwen2", "qwen3", "qwen3_moe", "smollm3"}

// llama2Positions is how many positions a Llama 2 has at most. Configurations of Llama 1 and 2 leave rope_theta out;
// those of later ones do not.
const llama2Positions = 4096

// AssumedKeys returns what the text of a config.json, of which c was parsed, leaves out.
func AssumedKeys(text string, c Config) (all []Assumed) {
	states := slices.Contains(stating, c.Family)
	if !states && !(c.Family == "llama" && c.MaxPositions > llama2Positions) {
		return nil
	}
	v, err := strictjson.Parse(text, strictjson.Options{})
	if err != nil {
		return nil // Parse says so
	}
	if inner, ok := v.Get("text_config"); ok {
		v = inner
	}
	if len(c.Ropes) > 0 && !hasTheta(v) {
		all = append(all, Assumed{"rope_theta", c.Ropes[0].Theta})
	}
	if !strictjson.NewFields(v).Has("rms_norm_eps") {
		all = append(all, Assumed{"rms_norm_eps", c.Eps})
	}
	return all
}

// hasTheta reports whether a configuration states rope_theta, at the top or in rope_parameters, whole or by type of
// layer.
func hasTheta(v strictjson.Value) bool {
	if strictjson.NewFields(v).Has("rope_theta") {
		return true
	}
	p, ok := v.Get("rope_parameters")
	if !ok || p.Kind() != strictjson.Object {
		return false
	}
	if strictjson.NewFields(p).Has("rope_theta") {
		return true
	}
	for _, kind := range []string{fullType, slidingType} {
		if inner, ok := p.Get(kind); ok && inner.Kind() == strictjson.Object && strictjson.NewFields(inner).Has("rope_theta") {
			return true
		}
	}
	return false
}

// AssumedGGUF returns what the metadata of a GGUF file, of which c was read, leave out; has reports whether a key is
// there.
func AssumedGGUF(has func(key string) bool, c Config) []Assumed {
	key := c.family().gguf + ".rope.freq_base"
	if !slices.Contains(statingGGUF, c.Family) || len(c.Ropes) == 0 || has(key) {
		return nil
	}
	return []Assumed{{key, c.Ropes[0].Theta}}
}

// TrainsBiases reports whether published models of the family have biases of q, k and v that are not zero.
func (c Config) TrainsBiases() bool { return c.Family == "qwen2" || c.Family == "gpt_oss" }

// Numbers that no published model has: outside of these a bit of the file may have flipped.
const (
	leastEps, mostEps     = 1e-12, 0.05
	leastTheta, mostTheta = 100, 1e9
)

// Implausible names the numbers of c that no published model has, with their values and what is usual.
func (c Config) Implausible() (all []string) {
	if !(c.Eps >= leastEps && c.Eps <= mostEps) {
		all = append(all, fmt.Sprintf("rms_norm_eps is %g: published models have 1e-6 or 1e-5; is it damaged, or edited?", c.Eps))
	}
	for _, r := range c.Ropes {
		line := fmt.Sprintf("rope_theta is %g: published models have 1e4 to 1e8; is it damaged, or edited?", r.Theta)
		if !(r.Theta >= leastTheta && r.Theta <= mostTheta) && !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	return all
}
