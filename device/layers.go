package device

import (
	"encoding/binary"
	"math"
)

// MaxHeadDim bounds the values of a head of attention.
const MaxHeadDim = 512

// Attn describes attention. Queries of row b occupy rows [b·QLen, (b+1)·QLen) of q; keys and values of row b occupy rows
// [b·KStride, b·KStride+KLen) of k and v. Positions are relative to the first key given: key j has position j and query i
// position QOffset+i, so that of a cache that dropped its oldest keys, or that is a ring, only the keys it holds count.
// Query i sees the keys j of its row with
//
//	j ≤ QOffset+i,  j > QOffset+i−Window unless Window is 0,  j ≥ First[b·QLen+i] unless First is zero.
//
// Training has QOffset 0, QLen = KLen = KStride. Devices skip blocks of keys that no query of a block sees.
type Attn struct {
	Batch, QLen, KLen, QOffset int
	KStride                    int // rows between the first keys of two batch rows: KLen, or a cache's capacity
	Heads, KVHeads, HeadDim    int // HeadDim is at most MaxHeadDim
	Window                     int // keys that a query sees, with its own; 0: all up to its own
	// Scale multiplies the scores; 0 means 1/√HeadDim.
	Scale float64
	// Cap bounds the scaled scores s, before the mask: t = Cap·tanh(s/Cap); 0: not. Its slope in the backward is 1−(t/Cap)².
	Cap float64
	// First, I32 [Batch·QLen, 1] without gaps or zero for none, keeps documents of one row apart: the lowest key that a query
	// sees. Values do not fall from one query of a batch row to the next; a device may fail the stream where they do. Below 0
	// is 0, and a query sees its own key whatever First says.
	First Tensor
	// Sinks, [1, Heads] float32 or zero for none, is a logit for each query head that joins the softmax of every query, neither
	// scaled nor capped nor masked, and has no value: with b the sink and t the scores, p_j = e^t_j/(Σ e^t + e^b).
	Sinks Tensor
	// DSinks, of the shape of Sinks, is where AttentionBackward adds the gradient of Sinks; zero: it is not wanted. Attention has none.
	DSinks Tensor
}

// ScoreScale returns the factor of the scores.
func (a Attn) ScoreScale() float64 {
	if a.Scale == 0 {
		return 1 / math.Sqrt(float64(a.HeadDim))
	}
	return a.Scale
}

// Pairs returns the pairs of a query and a key it sees, of one head and batch row, as if there were no First.
func (a Attn) Pairs() int64 {
	q, offset := int64(a.QLen), int64(a.QOffset)
	n := q*offset + q*(q+1)/2
	if a.Window > 0 { // query i does not see offset+i+1−Window of them, if that is above 0
		first, last := max(1, offset+1-int64(a.Window)), offset+q-int64(a.Window)
		if last >= first {
			n -= (last - first + 1) * (first + last) / 2
		}
	}
	return n
}

// Frequencies is the table of a rotary embedding: pair i of a head turns by Inv[i] radians a position, and cosine and sine
// are multiplied by Factor. The content does not change once a device has seen it: devices keep what they compute of it by
// its address, and share it between equal tables.
type Frequencies struct {
	Inv    []float64 // of R/2 pairs; R values of a head turn
	Factor float64   // 0: 1
}

// Key returns a string that is equal for tables of equal content, for the caches of devices.
func (f *Frequencies) Key() string {
	b := make([]byte, 0, 8*len(f.Inv)+8)
	for _, v := range append([]float64{f.Gain()}, f.Inv...) {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
	}
	return string(b)
}

// Gain returns the factor of cosine and sine.
func (f *Frequencies) Gain() float64 {
	if f.Factor == 0 {
		return 1
	}
	return f.Factor
}

// Rotary describes the rotary position embedding of heads of HeadDim values, of which the first R = 2·len(Table.Inv) turn:
// with the pairs i < R/2, j = i+R/2, φ = p·Inv[i], c = Factor·cos φ and s = Factor·sin φ, both computed in float64 and
// rounded once, (xᵢ, xⱼ) becomes (xᵢc − xⱼs, xⱼc + xᵢs); the values from R on stay as they are. Then all values of the
// head are multiplied by 1 + QBeta·ln(1+⌊p/QLength⌋), unless QBeta is 0.
//
// Row r of the tensor has position p = Offset + r mod SeqLen, or p = Positions[r]. Inverse turns by −φ, with the same
// factors: the backward.
type Rotary struct {
	HeadDim int
	Table   *Frequencies
	SeqLen  int
	Offset  int
	// Positions, I32 [n,1] without gaps or zero for none, has a position for each row, of [0, Offset+SeqLen). Another is an
	// error of the stream.
	Positions Tensor
	Inverse   bool
	QBeta     float64
	QLength   int
}

// QScale returns the factor of a position: 1 + QBeta·ln(1+⌊p/QLength⌋).
func (r Rotary) QScale(p int) float64 {
	if r.QBeta == 0 {
		return 1
	}
	return 1 + r.QBeta*math.Log(1+float64(p/r.QLength))
}

// Activation is the function of the gate of a GLU.
type Activation int

// The activations.
const (
	SiLU     Activation = iota // g·σ(g)
	GELUTanh                   // ½g(1+tanh(√(2/π)(g+0.044715g³)))
	OSS                        // clamped SwiGLU of gpt-oss, of both: (U+1)·G·σ(1.702·G), G = min(g,7), U = max(−7, min(u,7))
	Sigmoid                    // σ(g)
	numActivations
)

// The constants of OSS: where gate and up are clamped, and the factor of the gate in σ.
const (
	OSSLimit = 7
	OSSAlpha = 1.702
)

// String returns the name of the activation.
func (a Activation) String() string {
	switch a {
	case SiLU:
		return "silu"
	case GELUTanh:
		return "gelu_tanh"
	case OSS:
		return "oss"
	case Sigmoid:
		return "sigmoid"
	}
	return "unknown"
}
