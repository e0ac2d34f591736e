package main

import (
	. "github.com/mmcloughlin/avo/build" //nolint:revive,staticcheck // the assembler's own idiom
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// sumKernels add up in float64: half a vector of float32 is widened at a time.
func (s *isa) sumKernels() {
	s.sum("dot", "a, b []float32", "a", []string{"a", "b"}, func(k *kernel, sum reg.VecVirtual) {
		VFMADD231PD(k.widened("a"), k.widened("b"), sum)
	})
	s.sum("dot3", "a, b, c []float32", "a", []string{"a", "b", "c"}, func(k *kernel, sum reg.VecVirtual) {
		ab := k.widened("a")
		VMULPD(k.widened("b"), ab, ab)
		VFMADD231PD(k.widened("c"), ab, sum)
	})
	s.sum("sumSquares", "x []float32", "x", []string{"x"}, func(k *kernel, sum reg.VecVirtual) {
		x := k.widened("x")
		VFMADD231PD(x, x, sum)
	})
	s.sum("addSumSquares", "dst, x, delta []float32", "dst", []string{"dst", "x", "delta"},
		func(k *kernel, sum reg.VecVirtual) {
			v := k.loadHalf("x")
			VADDPS(k.loadHalf("delta"), v, v)
			k.store(v, "dst")
			w := k.vec()
			VCVTPS2PD(v, w)
			VFMADD231PD(w, w, sum)
		})
}

// widened reads half a vector as float64.
func (k *kernel) widened(name string) reg.VecVirtual {
	v := k.vec()
	if k.tail {
		VCVTPS2PD(k.loadHalf(name), v)
	} else {
		VCVTPS2PD(k.mem(name), v)
	}
	return v
}

func (s *isa) sum(name, params, count string, arrays []string, term func(k *kernel, sum reg.VecVirtual)) {
	k := s.kernel(name, params, "(sum float64)")
	k.slices(arrays...)
	k.count(count)
	var sums [4]reg.VecVirtual
	for i := range sums {
		sums[i] = k.zero()
	}
	k.loop(s.lanes()/2, 4, func() { term(k, sums[k.unroll]) })
	VADDPD(sums[1], sums[0], sums[0])
	VADDPD(sums[3], sums[2], sums[2])
	VADDPD(sums[2], sums[0], sums[0])
	Store(k.sum64(sums[0]).AsX(), Return("sum"))
	k.end()
}

// totals are sums of float32 terms: a few terms are added in float32 lanes, the small register, and then moved to
// float64 in memory, so that a large term does not swallow the small ones that follow.
type totals struct {
	k      *kernel
	small  []reg.VecVirtual
	memory []operand.Mem
}

// totals returns n sums, all zero. The kernel moves them after each unrolled step of its loop.
func (k *kernel) totals(n int) *totals {
	t := &totals{k: k}
	for range n {
		t.small = append(t.small, k.zero())
		t.memory = append(t.memory, AllocLocal(k.bytes))
		VMOVUPS(t.small[0], t.memory[len(t.memory)-1])
	}
	k.after = t.move
	return t
}

// move adds the float32 lanes to the float64 sums and clears them.
func (t *totals) move() {
	k := t.k
	for i, small := range t.small {
		low, high := k.vec(), k.vec()
		if k.wide() {
			VCVTPS2PD(small.AsY(), low)
			VEXTRACTF64X4(operand.U8(1), small, high.AsY())
		} else {
			VCVTPS2PD(small.AsX(), low)
			VEXTRACTF128(operand.U8(1), small, high.AsX())
		}
		if k.wide() {
			VCVTPS2PD(high.AsY(), high)
			VPXORD(small, small, small)
		} else {
			VCVTPS2PD(high.AsX(), high)
			VXORPS(small, small, small)
		}
		VADDPD(high, low, low)
		VADDPD(t.memory[i], low, low)
		VMOVUPD(low, t.memory[i])
	}
}

// result stores sum i as a float64 result.
func (t *totals) result(i int, name string) {
	v := t.k.vec()
	VMOVUPD(t.memory[i], v)
	Store(t.k.sum64(v).AsX(), Return(name))
}
