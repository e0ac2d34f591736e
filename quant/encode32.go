package quant

import (
	"encoding/binary"
	"math"

	"apr/tensor"
)

// encode32 quantises x to d·q with q in lo…hi and returns the half d. It takes the best of the given scale, the next
// half above it (they are far apart where halves are subnormal), and the scales that make the extreme element
// lo, lo+1 or lo+2 steps: where that element dominates the error, what counts is how well its d happens to round.
func encode32(q *[group]int8, x *[group]float64, s, extreme float64, lo, hi int) (d uint16) {
	first := tensor.F32ToF16(float32(s))
	trials := [5]uint16{first, first + 1}
	for k := range 3 {
		trials[2+k] = tensor.F32ToF16(float32(extreme / float64(lo+k)))
	}
	least := math.Inf(1)
	for _, bits := range trials {
		var trial [group]int8
		if err := roundTo(trial[:], x[:], halfValue(bits), lo, hi); err < least {
			*q, d, least = trial, bits, err
		}
	}
	return d
}

// roundTo sets q to the nearest integers of x/s in lo…hi and returns Σ(s·q − x)².
func roundTo(q []int8, x []float64, s float64, lo, hi int) (err float64) {
	inv := inverse(s)
	q = q[:len(x)]
	for i, v := range x {
		l := roundSymmetric(float64(inv*v), lo, hi)
		q[i] = int8(l)
		e := float64(s*float64(l)) - v
		err += float64(e * e)
	}
	return err
}

func widen(x []float64, src []float32) {
	for i, v := range src {
		x[i] = float64(v)
	}
}

func encodeQ8_0(b *[bytesQ8_0]byte, src *[group]float32) {
	var x [group]float64
	var q [group]int8
	widen(x[:], src[:])
	largest := math.Abs(extremeOf(x[:]))
	// −128 is left out, as other writers do: integer kernels negate q.
	binary.LittleEndian.PutUint16(b[:], encode32(&q, &x, largest/127, -largest, -127, 127))
	packQ8_0(b, &q)
}

func packQ8_0(b *[bytesQ8_0]byte, q *[group]int8) {
	for i, v := range q {
		b[2+i] = byte(v)
	}
}

func encodeQ4_0(b *[bytesQ4_0]byte, src *[group]float32) {
	var x [group]float64
	var q [group]int8
	widen(x[:], src[:])
	binary.LittleEndian.PutUint16(b[:], encode32(&q, &x, fitSymmetric(x[:], 8), extremeOf(x[:]), -8, 7))
	packQ4_0(b, &q)
}

func packQ4_0(b *[bytesQ4_0]byte, q *[group]int8) {
	for i := range 16 {
		b[2+i] = byte(q[i]+8) | byte(q[16+i]+8)<<4
	}
}

func encodeQ5_0(b *[bytesQ5_0]byte, src *[group]float32) {
	var x [group]float64
	var q [group]int8
	widen(x[:], src[:])
	binary.LittleEndian.PutUint16(b[:], encode32(&q, &x, fitSymmetric(x[:], 16), extremeOf(x[:]), -16, 15))
	packQ5_0(b, &q)
}

func packQ5_0(b *[bytesQ5_0]byte, q *[group]int8) {
	var fifth uint32
	for i, v := range q {
		fifth |= uint32(v+16) >> 4 << i
	}
	binary.LittleEndian.PutUint32(b[2:], fifth)
	for i := range 16 {
		b[6+i] = byte(q[i]+16)&15 | byte(q[16+i]+16)<<4
	}
}
