package arch

import (
	"math"
	"reflect"
	"slices"
	"strings"

	"apr/internal/strictjson"
)

// ropeRules says how a family writes its rotary embeddings.
type ropeRules struct {
	theta      float64 // default base; 0: 10000
	partial    float64 // default part of a head that is rotated; 0: all
	localTheta float64 // windowed layers have a base of their own, rope_local_base_freq, with this default, and no scaling
	fullOnly   bool    // windowed layers are not scaled
	original   int     // default of original_max_position_embeddings for longrope; 0: none
}

// ropeFor returns a function that gives the rotary embedding of a layer of some type with heads of some width. It
// understands rope_theta with rope_scaling (transformers 4) and rope_parameters (5), whole or by type of layer.
func (k *keys) ropeFor(c *Config, rules ropeRules) func(layerType string, headDim int) int {
	theta := k.float("rope_theta", or(rules.theta, 10000))
	local := k.float("rope_local_base_freq", rules.localTheta)
	partial := k.float("partial_rotary_factor", or(rules.partial, 1))
	original := k.sizeOr("original_max_position_embeddings", rules.original)
	scaling, parameters := k.value("rope_scaling"), k.value("rope_parameters")
	return func(layerType string, headDim int) int {
		own := layerType == slidingType && (rules.localTheta != 0 || rules.fullOnly)
		object, base, in := scaling, theta, "rope_scaling"
		if own {
			object = strictjson.Value{}
			if rules.localTheta != 0 {
				base = local
			}
		}
		if parameters.Kind() != strictjson.Absent {
			byType, nested := parameters.Get(layerType)
			_, full := parameters.Get(fullType)
			_, sliding := parameters.Get(slidingType)
			switch {
			case nested:
				object, in = byType, "rope_parameters"
			case full || sliding:
				k.fail("rope_parameters", "has no entry for layers of type %s", layerType)
			case own && rules.fullOnly: // one object for both: it scales full layers only
				object, base = strictjson.Value{}, thetaOf(parameters, base)
			case !own:
				object, in = parameters, "rope_parameters"
			}
		}
		plain := Rope{Kind: RopeDefault, Theta: base, HeadDim: headDim, Attention: 1}
		r := k.rope(in, object, plain, partial, original, c)
		switch {
		case in == "rope_scaling":
		case own:
			k.agree("rope_local_base_freq", object, "rope_theta")
		default:
			for _, key := range []string{"rope_theta", "partial_rotary_factor", "original_max_position_embeddings"} {
				k.agree(key, object, key)
			}
			plain.Theta = r.Theta
			width := strictjson.NewFields(object).FloatOr("partial_rotary_factor", partial)
			k.scalesAlike(object, r, func() Rope { return k.rope("rope_scaling", scaling, plain, width, original, c) })
		}
		return c.ropeIndex(r)
	}
}

// agree refuses a key that says something else than the object of rope_parameters: transformers 4 reads only the former, and
// of 5 the latter counts.
func (k *keys) agree(key string, object strictjson.Value, inside string) {
	v, there := object.Get(inside)
	if !there || v.Kind() == strictjson.Null || !k.has(key) || k.Err() != nil {
		return
	}
	if x, y := k.float(key, 0), strictjson.NewFields(object).FloatOr(inside, 0); x != y {
		k.fail(key, "%v, and %s of rope_parameters is %v: versions of transformers disagree about which counts", x, inside, y)
	}
}

// scalesAlike refuses a rope_scaling, read by scaling, that says something else than the object of rope_parameters, of which r
// was read: transformers 4 reads only the former, and in 5 it replaces the latter.
func (k *keys) scalesAlike(object strictjson.Value, r Rope, scaling func() Rope) {
	v := k.value("rope_scaling")
	if v.Kind() == strictjson.Absent || k.Err() != nil {
		return
	}
	if other := scaling(); k.Err() == nil && !reflect.DeepEqual(r, other) {
		k.fail("rope_scaling", "%s, and rope_parameters says %s: versions of transformers disagree about which counts", whole(v), whole(object))
	}
}

// whole is a value as the file has it, without blanks, for a message.
func whole(v strictjson.Value) string {
	text, err := strictjson.AppendCanonical(nil, v)
	if err != nil {
		return shown(v)
	}
	const most = 300
	if len(text) > most {
		return strings.ToValidUTF8(string(text[:most]), "") + "…"
	}
	return string(text)
}

func thetaOf(v strictjson.Value, def float64) float64 {
	return strictjson.NewFields(v).FloatOr("rope_theta", def)
}

// rope returns r changed by the RoPE settings in object, the value of the configuration's key named by in. r comes with the settings
// that stand elsewhere in the configuration; an absent or null object leaves them as they are.
func (k *keys) rope(in string, object strictjson.Value, r Rope, partial float64, original int, c *Config) Rope {
	if object.Kind() == strictjson.Absent || object.Kind() == strictjson.Null {
		r.Width = rotary(r.HeadDim, partial)
		return r
	}
	s := newKeys(object, k.allow)
	r.Theta = s.float("rope_theta", r.Theta)
	partial = s.float("partial_rotary_factor", partial)
	older := s.str("type", "default")
	kind := s.str("rope_type", older)
	// mrope and su are no contradiction: transformers writes them beside the default and longrope.
	if scaled := []string{"linear", "yarn", "llama3"}; s.has("type") && older != kind && slices.Contains(scaled, older) {
		s.fail("type", "is %q, and rope_type is %q: versions of transformers disagree about which counts", older, kind)
	}
	if kind == "su" { // the first name of longrope
		kind = string(RopeLong)
	}
	r.Kind, r.Width = RopeKind(kind), rotary(r.HeadDim, partial)
	r.Original = s.sizeOr("original_max_position_embeddings", original)
	r.Factor = s.float("factor", 0)
	s.has("max_position_embeddings") // repeats the configuration's
	s.has("mrope_section")           // for text all three positions are equal
	s.has("mrope_interleaved")
	if beta := s.float("llama_4_scaling_beta", 0); beta != 0 && !k.qScale {
		s.fail("llama_4_scaling_beta", "%v is not supported for this family", beta)
	}
	switch r.Kind {
	case RopeDefault:
		if r.Factor != 0 && r.Factor != 1 {
			s.fail("factor", "is %g, and the type of scaling is not said, or default: set rope_type, for example to linear or yarn",
				r.Factor)
		}
		r.Original, r.Factor = 0, 0
	case RopeLinear:
		r.Original = 0
	case RopeLlama3:
		r.Low, r.High = s.float("low_freq_factor", 0), s.float("high_freq_factor", 0)
	case RopeYaRN:
		s.yarn(&r, c.MaxPositions)
	case RopeLong:
		s.long(&r, c.MaxPositions)
	case RopeProportional:
		r.Width, r.Rotated = r.HeadDim, int(partial*float64(r.HeadDim)/2)
		r.Factor, r.Original = or(r.Factor, 1), 0
	default:
		s.fail("rope_type", "rotary embedding of type %q is not supported; supported: default, linear, llama3, yarn, longrope, proportional", kind)
	}
	k.inside(in, s)
	return r
}

// rotary returns the rotated values of a head, int(headDim·partial).
func rotary(headDim int, partial float64) int { return int(float64(headDim) * partial) }

func (k *keys) yarn(r *Rope, positions int) {
	r.High, r.Low = k.float("beta_fast", 32), k.float("beta_slow", 1)
	r.High, r.Low = or(r.High, 32), or(r.Low, 1)
	r.Exact = !k.flag("truncate", true)
	r.MScale, r.MScaleAll = k.float("mscale", 0), k.float("mscale_all_dim", 0)
	if r.Original == 0 {
		r.Original = positions
	}
	if r.Attention = k.float("attention_factor", 0); r.Attention == 0 {
		r.Attention = r.yarnAttention()
	}
}

func (k *keys) long(r *Rope, positions int) {
	r.Divisors, r.LongDivs = k.floats("short_factor"), k.floats("long_factor")
	if r.Original == 0 {
		k.fail("original_max_position_embeddings", "longrope needs it")
		return
	}
	r.Factor = or(r.Factor, float64(positions)/float64(r.Original))
	if r.Attention = k.float("attention_factor", 0); r.Attention == 0 {
		r.Attention = r.longAttention()
	}
	for key, list := range map[string][]float64{"short_factor": r.Divisors, "long_factor": r.LongDivs} {
		if len(list) != r.Width/2 {
			k.fail(key, "has %d entries; %d of %d values of a head are rotated, in %d pairs", len(list), r.Width, r.HeadDim, r.Width/2)
		}
	}
}

// positionScale reads llama_4_scaling_beta, which configurations keep among the rotary parameters.
func (k *keys) positionScale(c *Config) {
	k.qScale = true
	var found []float64
	for _, key := range []string{"rope_parameters", "rope_scaling"} {
		v := k.value(key)
		if v.Kind() != strictjson.Object {
			continue
		}
		s := strictjson.NewFields(v)
		beta, length := s.FloatOr("llama_4_scaling_beta", 0), s.UintOr("original_max_position_embeddings", 0)
		k.keep(s.Err())
		if found = append(found, beta); len(found) == 2 && found[0] != beta {
			k.fail(key, "llama_4_scaling_beta is %v, and %v in rope_parameters", beta, found[0])
		}
		if beta == 0 {
			continue
		}
		if length == 0 {
			k.fail(key, "llama_4_scaling_beta needs original_max_position_embeddings")
		}
		c.each(func(_ int, l *Layer) { l.Attn.QBeta, l.Attn.QLength = beta, int(min(length, math.MaxInt32)) })
	}
}
