package modelfile

import (
	"fmt"
	"slices"

	"apr/tensor"
)

// hidden are the types that values may have gone through before they were expanded or encoded again.
var hidden = []tensor.DType{tensor.BF16, tensor.F16, tensor.Q8_0, tensor.Q4_K, tensor.Q6_K, tensor.Q5_K, tensor.Q5_0, tensor.Q4_0, tensor.MXFP4}

// twice are the types of two steps: those in which files are written. More would be sought in vain in every different pair.
var twice = []tensor.DType{tensor.Q8_0, tensor.Q4_K, tensor.Q6_K}

// recodings says through which types one stretch became the other; empty: none are known. A few rows are tried first.
func recodings(a, b *stretch) string {
	const sample = 8192
	for _, p := range [][2]*stretch{{a, b}, {b, a}} {
		from, to := p[0], p[1]
		few, want := from.head(sample), to.head(sample)
		for _, d := range hidden {
			coded, ok := few.recoded(d)
			if !ok {
				continue
			}
			if becomes(few, coded, want) && throughOne(from, to, d) {
				return fmt.Sprintf("%s of %s, then %s", d, from.dtype, to.dtype)
			}
			for _, e := range twice {
				if !slices.Contains(twice, d) || e == d {
					continue
				}
				if again, ok := coded.head(sample / 4).recoded(e); ok && encodesAs(again, want.head(sample/4)) && throughTwo(from, to, d, e) {
					return fmt.Sprintf("%s of %s, then %s, then %s", d, from.dtype, e, to.dtype)
				}
			}
		}
	}
	return ""
}

// throughOne reports whether to is from, encoded as d, and then in its own type.
func throughOne(from, to *stretch, d tensor.DType) bool {
	coded, ok := from.recoded(d)
	return ok && becomes(from, coded, to)
}

// throughTwo reports whether to is from, encoded as d, then as e, and then in its own type.
func throughTwo(from, to *stretch, d, e tensor.DType) bool {
	coded, ok := from.recoded(d)
	if ok {
		coded, ok = coded.recoded(e)
	}
	return ok && encodesAs(coded, to)
}

// becomes reports whether to is coded, which is from in another type, after rounding to its own type by any program.
func becomes(from, coded, to *stretch) bool {
	if coded.dtype.IsQuantized() && encodesAs(coded, to) { // a plain type gives back what was trained by less than half its step
		return true
	}
	if t := compare(from.exact(), coded); !t.same() && !t.rounded() {
		return false
	}
	t := compare(coded.exact(), to)
	return t.same() || t.rounded()
}

// encodesAs reports whether our own encoder makes to of s. Values on the steps of one type leave errors of their own in the
// next, not spread ones; that all values are met to 1e-5 is the surer sign.
func encodesAs(s, to *stretch) bool {
	coded, ok := s.recoded(to.dtype)
	return ok && compare(coded, to).same()
}

// narrowed reports whether one stretch is the other in bf16 or f16, bit for bit, whatever type holds it now, and how many errors
// lie in the outer eighths of a step. Rows that training never moved have none, so that the errors of such a copy are not
// spread; training that stays below half a step has none near it.
func narrowed(a, b *stretch) (how string, reach int, ok bool) {
	for _, p := range [][2]*stretch{{a, b}, {b, a}} {
		from, to := p[0], p[1]
		if from.dtype.IsQuantized() {
			continue
		}
		for _, d := range []tensor.DType{tensor.BF16, tensor.F16} {
			coded, _ := from.recoded(d)
			if equal(coded.values, to.values) {
				t := compare(from.exact(), coded)
				return fmt.Sprintf("%s of %s, bit for bit", d, from.dtype), t.eighths[0] + t.eighths[len(t.eighths)-1], true
			}
		}
	}
	return "", 0, false
}

// equal reports whether all values are equal; a NaN equals a NaN.
func equal(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return x == y || x != x && y != y })
}
