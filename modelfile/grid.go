package modelfile

import (
	"fmt"
	"math"

	"apr/quant"
	"apr/tensor"
)

// grid says how values lie in some block types: a group shares a step; values are multiples of it, counted from zero or
// from the least value, up to `steps` of them.
type grid struct {
	group, steps int
	fromZero     bool
	other        func(bounds []quant.Rounding, values []float32, precision float64) bool // finds what has no common step
}

// grids are those of Q4_K and Q5_K; of Q6_K; of Q4_0, Q5_0 and Q8_0; of IQ4_NL and IQ4_XS; of 8-bit floats.
var grids = []grid{{32, 31, false, nil}, {16, 32, true, nil}, {32, 127, true, nil}, {32, 0, true, findTable}, {32, 0, true, findFloats}}

// ungridded is the part of the groups that may lie on no grid: those of one value, or of blocks whose scale is nearly zero.
const ungridded = 1e-3

// gridded finds the steps of values that were blocks once, whoever encoded them. It returns the stretch with the bounds that
// these steps give; false if there are none, as in weights that were trained after they had been expanded.
func (s *stretch) gridded(g grid) (*stretch, bool) {
	if s.cols%g.group != 0 || s.dtype.IsQuantized() {
		return nil, false
	}
	out := &stretch{s.values, make([]quant.Rounding, len(s.values)), s.dtype, s.cols}
	precision := max(1e-6, map[tensor.DType]float64{tensor.BF16: 0x1p-8, tensor.F16: 0x1p-11}[s.dtype])
	missing, most := 0, int(ungridded*float64(len(s.values)/g.group))
	for at := 0; at < len(s.values); at += g.group {
		if g.find(out.bounds[at:at+g.group], s.values[at:at+g.group], precision) {
			continue
		}
		if missing++; missing > most {
			return nil, false
		}
	}
	return out, true
}

// find finds the widest step of a group and sets the bounds of its values, which are off by precision, relative to each.
func (g grid) find(bounds []quant.Rounding, values []float32, precision float64) bool {
	if g.other != nil {
		return g.other(bounds, values, precision)
	}
	lo, hi := float64(values[0]), float64(values[0])
	for _, v := range values {
		lo, hi = min(lo, float64(v)), max(hi, float64(v))
	}
	from, reach := lo, hi-lo
	if g.fromZero {
		from, reach = 0, max(-lo, hi)
	}
	if !(reach > 0) || math.IsInf(reach, 0) {
		return false
	}
	for k := 1; k <= g.steps; k++ {
		step := reach / float64(k)
		if !onSteps(values, from, step, precision) {
			continue
		}
		for i, v := range values {
			half := float32(step/2 + precision*math.Abs(float64(v)))
			bounds[i] = quant.Rounding{Below: half, Above: half, Step: float32(step)}
			// may have been clipped: at either end, which is one step nearer to zero on the positive side of most types
			if q := math.Abs(float64(v)-from) / step; q > float64(k)-0.5 || g.fromZero && q > float64(k)-1.5 || !g.fromZero && q < 0.5 {
				bounds[i].Below, bounds[i].Above = float32(reach), float32(reach)
			}
		}
		return true
	}
	return false
}

// onSteps reports whether all values are multiples of step from a value on. Those that are too far from it for their precision
// say nothing; a quarter must say something.
func onSteps(values []float32, from, step, precision float64) bool {
	said := 0
	for _, v := range values {
		q := (float64(v) - from) / step
		off := precision*(math.Abs(float64(v))+math.Abs(from))/step + 1.5*precision*math.Abs(q) // of both ends, and of the step
		if off >= 0.35 {
			continue
		}
		said++
		if !(math.Abs(q-math.Round(q)) <= off) {
			return false
		}
	}
	return 4*said >= len(values)
}

// extreme returns the value of the largest magnitude; 0 if that is not finite.
func extreme(values []float32) (x float64) {
	for _, v := range values {
		if a := math.Abs(float64(v)); a > math.Abs(x) || a != a {
			x = float64(v)
		}
	}
	if math.IsInf(x, 0) || x != x {
		return 0
	}
	return x
}

// findTable is find for values that are a scale times the values of IQ4's table.
func findTable(bounds []quant.Rounding, values []float32, precision float64) bool {
	x := extreme(values)
	for code := range 16 {
		scale := x / float64(quant.IQ4Value(code))
		if !(math.Abs(scale) > 0) || !onTable(values, scale, precision) {
			continue
		}
		for i, v := range values {
			off := float32(2 * precision * math.Abs(float64(v)))
			bounds[i] = quant.IQ4Rounding(float64(v), scale)
			bounds[i].Below, bounds[i].Above = bounds[i].Below+off, bounds[i].Above+off
		}
		return true
	}
	return false
}

// onTable reports whether all values are values of the table times a scale, which is that of one of them.
func onTable(values []float32, scale, precision float64) bool {
	for _, v := range values {
		q, near := float64(v)/scale, false
		for code := range 16 {
			want := float64(quant.IQ4Value(code))
			near = near || math.Abs(q-want) <= 2*precision*math.Abs(want)
		}
		if !near {
			return false
		}
	}
	return true
}

// findFloats is find for values that are a scale times floats of 4 significant bits.
func findFloats(bounds []quant.Rounding, values []float32, precision float64) bool {
	reach := math.Abs(extreme(values))
	if !(reach > 0) {
		return false
	}
	for k := 8.0; k < 16; k++ { // significand of the largest
		if !onFloats(values, reach/k, precision) {
			continue
		}
		for i, v := range values {
			a := math.Abs(float64(v))
			significand, _ := onFloat(a * k / reach)
			step := max(a/significand, reach*0x1p-15)                 // the smallest floats have fewer bits
			half := float32(step/2 + float64((2*precision+0x1p-8)*a)) // scales may have been rounded to bf16 later
			bounds[i] = quant.Rounding{Below: half, Above: half, Step: float32(step)}
			if a >= reach*(1-0x1p-8) { // may have been clipped
				bounds[i].Below, bounds[i].Above = float32(reach), float32(reach)
			}
		}
		return true
	}
	return false
}

// onFloat returns the significand of q, a whole number from 8 to 15, and how far q is from it.
func onFloat(q float64) (whole, off float64) {
	frac, _ := math.Frexp(q)
	whole = math.Round(16 * frac)
	off = math.Abs(16*frac - whole)
	if whole == 16 { // the next power of two
		whole = 8
	}
	return whole, off
}

// onFloats reports whether all values are unit times floats of 4 significant bits. A quarter must say something: zeros do not.
func onFloats(values []float32, unit, precision float64) bool {
	said := 0
	for _, v := range values {
		if v == 0 {
			continue
		}
		said++
		if _, off := onFloat(math.Abs(float64(v)) / unit); !(off <= 16*2*precision) {
			return false
		}
	}
	return 4*said >= len(values)
}

// expanded says that one stretch is the other after it had been blocks, or that both had been, of one original; empty: neither.
func expanded(a, b *stretch) string {
	x, y := a.onGrids(), b.onGrids()
	for _, to := range y {
		if compare(a.exact(), to).rounded() {
			return fmt.Sprintf("blocks of %s, then %s", a.dtype, b.dtype)
		}
	}
	for _, to := range x {
		if compare(b.exact(), to).rounded() {
			return fmt.Sprintf("blocks of %s, then %s", b.dtype, a.dtype)
		}
	}
	if a.dtype.IsQuantized() {
		x = append(x, a)
	}
	if b.dtype.IsQuantized() {
		y = append(y, b)
	}
	for _, from := range x {
		for _, to := range y {
			// steps alike say nothing of how errors are spread: blocks trained by little would pass
			if t := compare(from, to); t.rounded() && float64(t.errors) >= fewOf*float64(t.n) {
				return fmt.Sprintf("blocks of one original, then %s and %s", a.dtype, b.dtype)
			}
		}
	}
	return ""
}

// onGrids returns the stretch with the bounds of each grid on which its values lie. A few rows are tried first.
func (s *stretch) onGrids() (all []*stretch) {
	const sample = 8192
	for _, g := range grids {
		if _, ok := s.head(sample).gridded(g); !ok {
			continue
		}
		if to, ok := s.gridded(g); ok {
			all = append(all, to)
		}
	}
	return all
}
