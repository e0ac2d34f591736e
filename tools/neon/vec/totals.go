package main

import (
	. "apr/tools/neon/asm" //nolint:revive,staticcheck // an assembler's idiom
)

// total stores the sum of the float64 lanes of v as a result.
func (k *kernel) total(v V, name string) {
	f.V3(FADDPD, v, v, v)
	f.Op("FMOVD", "F%d, %s+%d(FP)", v, name, k.offsets[name])
}

// totals are sums of float32 terms: a few terms are added in float32 lanes, the small register, and then moved to float64, so
// that a large term does not swallow the small ones that follow.
type totals struct {
	k            *kernel
	small, large []V
}

// totals returns n sums, all zero. The kernel moves them after each unrolled step of its loop.
func (k *kernel) totals(n int) *totals {
	t := &totals{k: k}
	for range n {
		t.small, t.large = append(t.small, k.zeroKept()), append(t.large, k.zeroKept())
	}
	k.after = t.move
	return t
}

func (t *totals) move() {
	low, high := t.k.vec(), t.k.vec()
	for i, small := range t.small {
		f.V2(FCVTLD, low, small)
		f.V2(FCVTL2D, high, small)
		f.V3(FADDD, low, low, high)
		f.V3(FADDD, t.large[i], t.large[i], low)
		f.Zero(small)
	}
	t.k.free(low, high)
}

func (t *totals) result(i int, name string) {
	v := t.k.copyOf(t.large[i]) // one sum may be two results
	t.k.total(v, name)
	t.k.free(v)
}
