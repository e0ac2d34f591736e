package quant

import (
	"encoding/binary"
	"fmt"
	"math"

	"apr/tensor"
)

// Rounding bounds the value that an element x was encoded from: x−Below ≤ original ≤ x+Above.
//
// An encoder gives each value the nearest multiple of the block's final scale. Inside the range of the integers the bounds
// are therefore half a step. At either end of the range values may have been clipped, and the bound on that side is the
// width of the whole range.
type Rounding struct {
	Below, Above float32
	Step         float32 // distance of neighbouring values, the mean of both where it varies; 0 if the block has only one
}

// grid is what the elements of a group share: they are step·q − min with q in low…high. slack is how far the scale that q
// was rounded with may be from the scale that was stored.
type grid struct {
	step, min, slack float64
	low, high        float64
	unit             float64 // smallest step above 0 that the block could have had
	values           []int   // if not nil, elements are step·values[q], step of either sign; ascending
}

// gridLen is the number of elements that share a grid in every block type.
const gridLen = 16

// Roundings sets dst[i] to the bounds of element i of src, as [Dequantize] counts them; values are the decoded elements.
// It panics if the lengths do not fit or d is not a block type.
func Roundings(dst []Rounding, values []float32, src []byte, d tensor.DType) {
	want, ok := PackedLen(len(dst), d)
	if !ok || len(values) != len(dst) || int64(len(src)) != want {
		panic(fmt.Sprintf("quant: %d bytes of %v for bounds of %d elements and %d values", len(src), d, len(dst), len(values)))
	}
	for lo := 0; lo < len(dst); lo += gridLen {
		hi := min(lo+gridLen, len(dst))
		g := gridOf(src, lo/gridLen, d)
		for i := lo; i < hi; i++ {
			if g.values != nil {
				dst[i] = g.nearest(float64(values[i]))
			} else {
				dst[i] = g.rounding(float64(values[i]))
			}
		}
	}
}

// rounding returns the bounds of an element with value x.
func (g *grid) rounding(x float64) Rounding {
	noise := 4e-7 * (math.Abs(x) + math.Abs(g.min) + g.step) // of float32 arithmetic, in encoder and decoder
	reach := float64((g.high-g.low)*(g.step+g.unit)) + noise
	if !(g.step > 0) {
		return Rounding{Below: float32(reach), Above: float32(reach)}
	}
	q := math.Round((x + g.min) / g.step)
	half := 0.5*g.step + float64(g.slack*math.Abs(q)) + noise
	r := Rounding{Below: float32(half), Above: float32(half), Step: float32(g.step)}
	if q <= g.low {
		r.Below = float32(reach)
	}
	if q >= g.high {
		r.Above = float32(reach)
	}
	return r
}

// nearest is rounding where the values of codes are a table: the bounds are the middles between neighbours.
func (g *grid) nearest(x float64) Rounding {
	const first = 0
	values, last := g.values, len(g.values)-1
	scale := math.Abs(g.step)
	noise := 4e-7 * (math.Abs(x) + scale)
	reach := float32(float64(float64(values[last]-values[first])*(scale+g.unit)) + noise)
	if !(scale > 0) {
		return Rounding{Below: reach, Above: reach}
	}
	q, i := x/g.step, first
	for i < last && q > float64(values[i]+values[i+1])/2 {
		i++
	}
	off := float64(g.slack*math.Abs(q)) + noise
	below, above := reach, reach
	var step float64
	if i > first {
		half := scale * float64(values[i]-values[i-1]) / 2
		below, step = float32(half+off), step+half
	}
	if i < last {
		half := scale * float64(values[i+1]-values[i]) / 2
		above, step = float32(half+off), step+half
	}
	if i == first || i == last {
		step *= 2
	}
	if g.step < 0 {
		below, above = above, below
	}
	return Rounding{Below: below, Above: above, Step: float32(step)}
}

// IQ4Value returns the number that a code of IQ4_NL and IQ4_XS stands for, 0 ≤ code < 16.
func IQ4Value(code int) int { return iq4Values[code] }

// IQ4Rounding returns the bounds of a value x of IQ4_NL or IQ4_XS whose group has this scale.
func IQ4Rounding(x, scale float64) Rounding {
	g := grid{step: scale, values: iq4Values[:], slack: halfError(scale)}
	return g.nearest(x)
}

// leastHalf is the smallest positive half.
const leastHalf = 0x1p-24

// halfError is how far a scale may be from the half nearest to it. Writers of the types with one half-precision scale round
// it after they have chosen the integers.
func halfError(scale float64) float64 { return max(0x1p-11*math.Abs(scale), leastHalf/2) }

// gridOf returns the grid of group k, of gridLen elements, of the blocks src.
func gridOf(src []byte, k int, d tensor.DType) grid {
	block := src[k*gridLen/d.BlockLen()*d.BlockBytes():]
	switch d {
	case tensor.Q4_K, tensor.Q5_K:
		j := k % (superblock / gridLen) / 2
		s, m := float64(half(block)), float64(half(block[2:]))
		sc, ms := scalesMins((*[12]byte)(block[4:]))
		top := 15.0
		if d == tensor.Q5_K {
			top = 31
		}
		return grid{step: s * float64(byte(sc>>(8*j))), min: m * float64(byte(ms>>(8*j))), high: top, unit: max(s, leastHalf)}
	case tensor.Q6_K:
		s := float64(half(block[208:]))
		return symmetricGrid(s*float64(int8(block[192+k%(superblock/gridLen)])), 32, max(math.Abs(s), leastHalf), 0)
	case tensor.Q3_K:
		s := float64(half(block[bytesQ3K-2:]))
		return symmetricGrid(s*float64(scaleQ3K((*[12]byte)(block[96:]), k%(superblock/gridLen))), 4, max(math.Abs(s), leastHalf), 0)
	case tensor.Q2_K:
		s, m, sc := float64(half(block[80:])), float64(half(block[82:])), block[k%(superblock/gridLen)]
		return grid{step: s * float64(sc&15), min: m * float64(sc>>4), high: 3, unit: max(s, leastHalf)}
	case tensor.Q8_0:
		s := float64(half(block))
		return grid{step: math.Abs(s), low: -127, high: 127, unit: leastHalf, slack: halfError(s)}
	case tensor.Q4_0, tensor.AprQ4:
		s := float64(half(block))
		return symmetricGrid(s, 8, leastHalf, halfError(s))
	case tensor.Q5_0:
		s := float64(half(block))
		return symmetricGrid(s, 16, leastHalf, halfError(s))
	case tensor.IQ4_NL:
		s := float64(half(block))
		return grid{step: s, values: iq4Values[:], unit: leastHalf, slack: halfError(s)}
	case tensor.IQ4_XS:
		s, sc := float64(half(block)), float64(scaleIQ4XS(block, k%(superblock/gridLen)/2))
		return grid{step: s * sc, values: iq4Values[:], unit: max(math.Abs(s), leastHalf), slack: halfError(s) * math.Abs(sc)}
	case tensor.MXFP4:
		return grid{step: float64(mxfp4Scale[block[0]]), values: mxfp4Sorted[:]}
	case tensor.AprQ8:
		s := float64(math.Float32frombits(binary.LittleEndian.Uint32(src)))
		return grid{step: math.Abs(s), low: -127, high: 127}
	}
	panic("quant: " + d.String() + " is not a block type")
}

// symmetricGrid has the integers −n…n−1 of a scale of either sign.
func symmetricGrid(scale float64, n int, unit, slack float64) grid {
	g := grid{step: math.Abs(scale), low: float64(-n), high: float64(n - 1), unit: unit, slack: slack}
	if scale < 0 {
		g.low, g.high = float64(1-n), float64(n)
	}
	return g
}
