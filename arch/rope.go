package arch

import (
	"math"
	"reflect"
	"slices"
)

// RopeKind names how a rotary embedding is scaled.
type RopeKind string

// The kinds. RopeFactors are divisors of the frequencies, as GGUF files store them.
const (
	RopeDefault      RopeKind = "default"
	RopeLinear       RopeKind = "linear"
	RopeLlama3       RopeKind = "llama3"
	RopeYaRN         RopeKind = "yarn"
	RopeLong         RopeKind = "longrope"
	RopeProportional RopeKind = "proportional"
	RopeFactors      RopeKind = "factors"
)

// Rope describes a rotary embedding of heads of HeadDim values, of which the first Width are rotated in pairs
// (i, i+Width/2) by the angle position·f_i; cosine and sine are multiplied by Attention.
type Rope struct {
	Kind      RopeKind  `json:"kind"`
	Theta     float64   `json:"theta"`
	HeadDim   int       `json:"head_dim"`
	Width     int       `json:"width"`
	Attention float64   `json:"attention"`              // a
	Factor    float64   `json:"factor,omitempty"`       // F: linear, llama3, yarn, longrope, proportional
	Original  int       `json:"original,omitempty"`     // L: positions before scaling
	Low       float64   `json:"low,omitempty"`          // llama3's low_freq_factor; yarn's beta_slow
	High      float64   `json:"high,omitempty"`         // llama3's high_freq_factor; yarn's beta_fast
	Exact     bool      `json:"exact,omitempty"`        // yarn: the ramp's ends are not rounded (truncate: false)
	MScale    float64   `json:"mscale,omitempty"`       // yarn
	MScaleAll float64   `json:"mscale_all,omitempty"`   // yarn: mscale_all_dim
	Rotated   int       `json:"rotated,omitempty"`      // proportional: pairs that turn
	Divisors  []float64 `json:"divisors,omitempty"`     // factors; longrope up to Original positions
	LongDivs  []float64 `json:"long_divisors,omitzero"` // longrope beyond
}

// Frequencies returns f_i, i < Width/2. seqLen is the length of the whole sequence so far, with the cache: a longrope
// whose sequence is longer than Original has other frequencies for all its positions. Other kinds ignore it. With
// b_i = Theta^(−2i/Width):
//
//	linear        b/Factor
//	llama3        w = 2π/b: b if w < L/High; b/Factor if w > L/Low; else b((1−m)/Factor+m), m = (L/w−Low)/(High−Low)
//	yarn          b(e+(1−e)/Factor), e falling from 1 to 0 between the pairs that turn High and Low times in L positions
//	longrope      b/Divisors, or b/LongDivs
//	proportional  Theta^(−2i/HeadDim)/Factor for i < Rotated, else 0
//	factors       b/Divisors
func (r Rope) Frequencies(seqLen int) []float64 {
	f := make([]float64, r.Width/2)
	for i := range f {
		f[i] = math.Pow(r.Theta, -2*float64(i)/float64(r.Width))
	}
	switch r.Kind {
	case RopeLinear:
		for i := range f {
			f[i] /= r.Factor
		}
	case RopeLlama3:
		r.llama3(f)
	case RopeYaRN:
		r.yarn(f)
	case RopeLong, RopeFactors:
		divisors := r.Divisors
		if r.Kind == RopeLong && seqLen > r.Original {
			divisors = r.LongDivs
		}
		for i := range f {
			f[i] /= divisors[i]
		}
	case RopeProportional:
		for i := range f {
			f[i] = math.Pow(r.Theta, -2*float64(i)/float64(r.HeadDim)) / r.Factor
			if i >= r.Rotated {
				f[i] = 0
			}
		}
	}
	return f
}

func (r Rope) llama3(f []float64) {
	l := float64(r.Original)
	for i, b := range f {
		switch w := 2 * math.Pi / b; {
		case w < l/r.High:
		case w > l/r.Low:
			f[i] = b / r.Factor
		default:
			m := (l/w - r.Low) / (r.High - r.Low)
			f[i] = b * ((1-m)/r.Factor + m)
		}
	}
}

func (r Rope) yarn(f []float64) {
	width, l := float64(r.Width), float64(r.Original)
	pair := func(turns float64) float64 { return width * math.Log(l/(turns*2*math.Pi)) / (2 * math.Log(r.Theta)) }
	lo, hi := pair(r.High), pair(r.Low)
	if !r.Exact {
		lo, hi = math.Floor(lo), math.Ceil(hi)
	}
	lo, hi = max(lo, 0), min(hi, width-1)
	if lo == hi {
		hi += .001
	}
	for i := range f {
		e := 1 - min(max((float64(i)-lo)/(hi-lo), 0), 1)
		f[i] *= e + (1-e)/r.Factor
	}
}

// yarnAttention is YaRN's factor of cosine and sine.
func (r Rope) yarnAttention() float64 {
	g := func(m float64) float64 {
		if r.Factor <= 1 {
			return 1
		}
		return 1 + .1*m*math.Log(r.Factor)
	}
	if r.MScale != 0 && r.MScaleAll != 0 {
		return g(r.MScale) / g(r.MScaleAll)
	}
	return g(1)
}

// longAttention is longrope's.
func (r Rope) longAttention() float64 {
	if r.Factor <= 1 {
		return 1
	}
	return math.Sqrt(1 + math.Log(r.Factor)/math.Log(float64(r.Original)))
}

// ropeIndex returns the index of r in c.Ropes, where it is added unless it is there.
func (c *Config) ropeIndex(r Rope) int {
	if i := slices.IndexFunc(c.Ropes, func(o Rope) bool { return reflect.DeepEqual(r, o) }); i >= 0 {
		return i
	}
	c.Ropes = append(c.Ropes, r)
	return len(c.Ropes) - 1
}
