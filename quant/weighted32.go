package quant

import (
	"encoding/binary"
	"math"

	"apr/tensor"
)

// encodeWeighted is encodeBlock with weights of errors. What encodeBlock finds is one more trial: outliers that hardly count
// mislead the search with weights.
func encodeWeighted(dst []byte, src, weights []float32, d tensor.DType) {
	encodeBlock(dst, src, d)
	var trial [bytesQ6K]byte
	b := trial[:len(dst)]
	searchWeighted(b, src, weights, d)
	if weightedError(b, src, weights, d) < weightedError(dst, src, weights, d) {
		copy(dst, b)
	}
}

// weightedError is Σ w(x̂−x)² of a block.
func weightedError(b []byte, src, weights []float32, d tensor.DType) (sum float64) {
	var y [superblock]float32
	Dequantize(y[:len(src)], b, d)
	for i, x := range src {
		e := float64(y[i]) - float64(x)
		sum += float64(float64(weights[i]) * float64(e*e))
	}
	return sum
}

// searchWeighted finds a block by the searches with weights.
func searchWeighted(dst []byte, src, weights []float32, d tensor.DType) {
	switch d {
	case tensor.Q4_0:
		encode32Weighted(dst, src, weights, -8, 7, func(q *[group]int8) { packQ4_0((*[bytesQ4_0]byte)(dst), q) })
	case tensor.Q5_0:
		encode32Weighted(dst, src, weights, -16, 15, func(q *[group]int8) { packQ5_0((*[bytesQ5_0]byte)(dst), q) })
	case tensor.Q8_0:
		encode32Weighted(dst, src, weights, -127, 127, func(q *[group]int8) { packQ8_0((*[bytesQ8_0]byte)(dst), q) })
	case tensor.IQ4_NL:
		encodeIQ4NL((*[bytesIQ4NL]byte)(dst), src, weights)
	case tensor.MXFP4:
		encodeMXFP4Weighted((*[bytesMXFP4]byte)(dst), (*[group]float32)(src), weights)
	default:
		encodeScaled(dst, src, weights, d)
	}
}

// weightedValues are a block of 32 in float64; weights nil: all are 1.
func weightedValues(x, w *[group]float64, src, weights []float32) values {
	widen(x[:], src)
	for i := range w {
		w[i] = 1
	}
	if weights != nil {
		widen(w[:], weights)
	}
	return values{x[:], w[:]}
}

// encode32Weighted chooses the half d and integers lo…hi of least Σ w(d·q − x)², writes d and hands q to pack.
func encode32Weighted(dst []byte, src, weights []float32, lo, hi int, pack func(*[group]int8)) {
	var x, w [group]float64
	var q, best [group]int8
	v := weightedValues(&x, &w, src, weights)
	sh := shape{lo: lo, hi: hi, from: -9, to: 9}
	f := sh.fitSymmetric(v, sh.from)
	extreme := extremeOf(x[:])
	trials := []float64{f.s, extreme / float64(lo), extreme / float64(lo+1), extreme / float64(lo+2)}
	var d uint16
	least := math.Inf(1)
	for _, s := range trials {
		h := signedHalf(s)
		for _, bits := range [...]uint16{h, h + 1} {
			if bits&0x7fff > 0x7bff {
				continue
			}
			if err, _ := sh.round(q[:], v, halfValue(bits), 0); err < least {
				best, d, least = q, bits, err
			}
		}
	}
	binary.LittleEndian.PutUint16(dst, d)
	pack(&best)
}

// encodeIQ4NL chooses the half d, of either sign, and codes of least Σ w(d·v[q] − x)²: trials make the extreme element any of the values
// near an end of the table, and the codes of each trial give the best d.
func encodeIQ4NL(b *[bytesIQ4NL]byte, src, weights []float32) {
	var x, w [group]float64
	v := weightedValues(&x, &w, src, weights)
	extreme := extremeOf(x[:])
	var q, best [group]byte
	var d uint16
	least := math.Inf(1)
	try := func(s float64) (better float64) {
		bits := signedHalf(s)
		err, better := v.table(&q, halfValue(bits))
		if err < least {
			best, d, least = q, bits, err
		}
		return better
	}
	for k := -9; k <= 9; k++ {
		for _, end := range [...]float64{-127, 113} {
			s := extreme / (end + float64(2*k))
			for range 2 {
				s = try(s)
			}
		}
	}
	for range 2 {
		try(try(halfValue(d)))
	}
	binary.LittleEndian.PutUint16(b[:], d)
	packIQ4NL(b, &best)
}

func packIQ4NL(b *[bytesIQ4NL]byte, q *[group]byte) {
	for i := range 16 {
		b[2+i] = q[i] | q[16+i]<<4
	}
}

// table sets q to the codes of the values of IQ4 nearest to x/s, and returns the error and the s that is best for them.
func (v values) table(q *[group]byte, s float64) (err, better float64) {
	inv := inverse(s)
	var xv, vv float64
	for i, x := range v.x {
		c := nearestIQ4(float64(inv * x))
		q[i] = c
		y, w := float64(iq4Values[c]), v.w[i]
		e := float64(s*y) - x
		err += float64(w * float64(e*e))
		xv, vv = xv+float64(float64(w*x)*y), vv+float64(float64(w*y)*y)
	}
	return err, float64(xv * inverse(vv))
}

// nearestIQ4 returns the code of the value nearest to x, the lower of two.
func nearestIQ4(x float64) byte {
	lo, hi := 0, len(iq4Values)-1 // of the first value whose middle to the next is not below x
	for lo < hi {
		mid := (lo + hi) / 2
		if float64(iq4Values[mid]+iq4Values[mid+1])/2 < x {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return byte(lo)
}

// encodeMXFP4Weighted tries the power of two that GGML chooses and those beside it.
func encodeMXFP4Weighted(b *[bytesMXFP4]byte, src *[group]float32, weights []float32) {
	encodeMXFP4(b, src)
	first, best, least := int(b[0]), *b, math.Inf(1)
	for e := max(first-1, 0); e <= min(first+1, nanScale-3); e++ {
		b[0] = byte(e)
		roundMXFP4(b, src)
		var y [group]float32
		decodeMXFP4(y[:], b[:], 0)
		err := 0.0
		for i, x := range src {
			diff := float64(y[i]) - float64(x)
			err += float64(float64(weights[i]) * float64(diff*diff))
		}
		if err < least {
			best, least = *b, err
		}
	}
	*b = best
}
