package arch

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"apr/internal/strictjson"
)

// Assumed is a key that a family's published configurations have and this one has not, with the value that is used for
// it.
type Assumed struct {
	Key   string
	Value string
}

// String says it as a warning does.
func (a Assumed) String() string {
	return fmt.Sprintf("has no %s, as every published model of its family has: %s is used; was it removed?", a.Key,
		a.Value)
}

// assumed is a number that is used for a key.
func assumed(key string, x float64) Assumed { return Assumed{key, strconv.FormatFloat(x, 'g', -1, 64)} }

// stating are the families all of whose published config.json state the base of the rotary embedding and the ε of
// norms. Gemma 3's leave both to the library where the model is multimodal, and so may those of Gemma 4.
var stating = []string{"gemma2", "gpt_oss", "granite", "ministral3", "mistral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_5_text", "qwen3_moe", "smollm3"}

// statingGGUF are the families of which llama.cpp's converter writes the base of the rotary embedding. Early files of
// Phi-3 have none, and the converter of Gemma 2 writes none.
var statingGGUF = []string{"gemma3_text", "gpt_oss", "granite", "ministral3", "olmo2", "olmo3", "qwen2", "qwen3",
	"qwen3_5_text", "qwen3_moe", "smollm3"}

// llama2Positions is how many positions a Llama 2 has at most. Configurations of Llama 1 and 2 leave rope_theta out;
// those of later ones do not.
const llama2Positions = 4096

// AssumedKeys returns what the text of a config.json, of which c was parsed, leaves out.
func AssumedKeys(text string, c Config) (all []Assumed) {
	v, err := strictjson.Parse(text, strictjson.Options{})
	if err != nil {
		return nil // Parse says so
	}
	if inner, ok := v.Get("text_config"); ok {
		v = inner
	}
	if slices.Contains(stating, c.Family) || c.beyondLlama2() {
		if len(c.Ropes) > 0 && !hasTheta(v) {
			all = append(all, assumed("rope_theta", c.Ropes[0].Theta))
		}
		if !strictjson.NewFields(v).Has("rms_norm_eps") {
			all = append(all, assumed("rms_norm_eps", c.Eps))
		}
	}
	return append(all, c.lostKeys(v)...)
}

// beyondLlama2 reports whether c is a Llama with more positions than Llama 2 has, before any scaling by a factor.
func (c Config) beyondLlama2() bool {
	most := c.MaxPositions
	if len(c.Ropes) > 0 && c.Ropes[0].Kind == RopeLinear && c.Ropes[0].Factor > 1 {
		most = int(float64(most) / c.Ropes[0].Factor)
	}
	return c.Family == "llama" && most > llama2Positions
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

// AssumedGGUF returns what a GGUF file, of which c was read, leaves out; has reports whether a key of its metadata or a
// tensor is there.
func AssumedGGUF(has func(name string) bool, c Config) (all []Assumed) {
	key := c.family().gguf + ".rope.freq_base"
	if (slices.Contains(statingGGUF, c.Family) || c.beyondLlama2()) && len(c.Ropes) > 0 && !has(key) {
		all = append(all, assumed(key, c.Ropes[0].Theta))
	}
	return append(all, c.lostGGUF(has)...)
}

// TrainsBiases reports whether published models of the family have biases of q, k and v that are not zero.
func (c Config) TrainsBiases() bool { return c.Family == "qwen2" || c.Family == "gpt_oss" }

// Numbers that no published model has: outside of these a bit of the file may have flipped.
const (
	leastEps, mostEps     = 1e-12, 0.05
	leastTheta, mostTheta = 100, 1e9
)

// thetaDigits bounds the digits of a base that people chose: published models have up to three (130000), and a bit that
// flipped in the middle of a number leaves seven. ε is a power of ten.
const thetaDigits = 4

// Implausible names the numbers of c that no published model has, with their values and what is usual.
func (c Config) Implausible() (all []string) {
	if power := math.Pow(10, math.Round(math.Log10(c.Eps))); !(c.Eps >= leastEps && c.Eps <= mostEps &&
		float32(c.Eps) == float32(power)) {
		all = append(all, fmt.Sprintf("rms_norm_eps is %v: published models have 1e-6 or 1e-5; is it damaged, or edited?",
			c.Eps))
	}
	for _, r := range c.Ropes {
		line := fmt.Sprintf("rope_theta is %v: published models have round numbers, 1e4 to 1e8; is it damaged, or edited?",
			r.Theta)
		if !(r.Theta >= leastTheta && r.Theta <= mostTheta && isRound(r.Theta, thetaDigits)) && !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	return all
}
