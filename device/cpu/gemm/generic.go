package gemm

import "unsafe"

// generic is the portable implementation: what the assembly does, in Go.
var generic = &kernels{
	name: "generic", mr: 4, nr: 4, lanes: 4, transpose: transposeGo, copy: copyGo,
	tile: []tileFunc{nil, tileGo1, tileGo2, tileGo3, tileGo4},
}

func tileGo1(k int, a *float32, ars, acs int, b *float32, bs int, c *float32, ldc int, alpha float32, bias *float32, add bool) {
	tileGo(1, k, a, ars, acs, b, bs, c, ldc, alpha, bias, add)
}

func tileGo2(k int, a *float32, ars, acs int, b *float32, bs int, c *float32, ldc int, alpha float32, bias *float32, add bool) {
	tileGo(2, k, a, ars, acs, b, bs, c, ldc, alpha, bias, add)
}

func tileGo3(k int, a *float32, ars, acs int, b *float32, bs int, c *float32, ldc int, alpha float32, bias *float32, add bool) {
	tileGo(3, k, a, ars, acs, b, bs, c, ldc, alpha, bias, add)
}

func tileGo4(k int, a *float32, ars, acs int, b *float32, bs int, c *float32, ldc int, alpha float32, bias *float32, add bool) {
	tileGo(4, k, a, ars, acs, b, bs, c, ldc, alpha, bias, add)
}

// tileGo computes a tile of rows × 4.
func tileGo(rows, k int, a *float32, ars, acs int, b *float32, bs int, c *float32, ldc int, alpha float32, bias *float32, add bool) {
	av := unsafe.Slice(a, (rows-1)*ars+(k-1)*acs+1)
	bv := unsafe.Slice(b, (k-1)*bs+4)
	cv := unsafe.Slice(c, (rows-1)*ldc+4)
	var offset []float32
	if bias != nil {
		offset = unsafe.Slice(bias, 4)
	}
	var v [4][4]float32
	if rows == 4 {
		for j := 0; j < 4; j += 2 {
			fourByTwo(&v, j, k, av, ars, acs, bv[j:], bs)
		}
	} else {
		for i := range rows {
			v[i] = oneByFour(k, av[i*ars:], acs, bv, bs)
		}
	}
	for i := range rows {
		for j := range v[i] {
			v[i][j] = float32(v[i][j] * alpha) // rounded before anything is added
		}
		store(cv[i*ldc:][:4], v[i][:], offset, add)
	}
}

// fourByTwo computes the columns j and j+1 of v: as many sums as stay in the 16 registers of the smallest processors.
func fourByTwo(v *[4][4]float32, j, k int, a []float32, ars, acs int, b []float32, bs int) {
	var v00, v01, v10, v11, v20, v21, v30, v31 float32
	a0, a1, a2, a3 := a, a[ars:], a[2*ars:], a[3*ars:]
	ia, ib := 0, 0
	for range k {
		y := (*[2]float32)(b[ib:])
		y0, y1 := y[0], y[1]
		x := a0[ia]
		v00 += x * y0
		v01 += x * y1
		x = a1[ia]
		v10 += x * y0
		v11 += x * y1
		x = a2[ia]
		v20 += x * y0
		v21 += x * y1
		x = a3[ia]
		v30 += x * y0
		v31 += x * y1
		ia += acs
		ib += bs
	}
	v[0][j], v[0][j+1] = v00, v01
	v[1][j], v[1][j+1] = v10, v11
	v[2][j], v[2][j+1] = v20, v21
	v[3][j], v[3][j+1] = v30, v31
}

func oneByFour(k int, a []float32, acs int, b []float32, bs int) [4]float32 {
	var v0, v1, v2, v3 float32
	ia, ib := 0, 0
	for range k {
		y := (*[4]float32)(b[ib:])
		x := a[ia]
		v0 += x * y[0]
		v1 += x * y[1]
		v2 += x * y[2]
		v3 += x * y[3]
		ia += acs
		ib += bs
	}
	return [4]float32{v0, v1, v2, v3}
}

func transposeGo(blocks int, a *float32, ars int, dst *float32, ldd int) {
	k := 4 * blocks
	src, out := unsafe.Slice(a, 3*ars+k), unsafe.Slice(dst, (k-1)*ldd+4)
	r0, r1, r2, r3 := src[:k], src[ars:][:k], src[2*ars:][:k], src[3*ars:][:k]
	for p := range k {
		*(*[4]float32)(out[p*ldd:]) = [4]float32{r0[p], r1[p], r2[p], r3[p]}
	}
}

func copyGo(k int, a *float32, acs int, dst *float32, ldd int) {
	src, out := unsafe.Slice(a, (k-1)*acs+4), unsafe.Slice(dst, (k-1)*ldd+4)
	for p := range k {
		*(*[4]float32)(out[p*ldd:]) = [4]float32(src[p*acs:])
	}
}
