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

// tileGo4 computes four rows as two pairs: 2×4 sums and their factors just fit in the registers.
func tileGo4(k int, a *float32, ars, acs int, b *float32, bs int, c *float32, ldc int, alpha float32, bias *float32, add bool) {
	tileGo(4, k, a, ars, acs, b, bs, c, ldc, alpha, bias, add)
}

// tileGo computes rows rows, two at a time.
func tileGo(rows, k int, a *float32, ars, acs int, b *float32, bs int, c *float32, ldc int, alpha float32, bias *float32, add bool) {
	av := unsafe.Slice(a, (rows-1)*ars+(k-1)*acs+1)
	bv := unsafe.Slice(b, (k-1)*bs+4)
	cv := unsafe.Slice(c, (rows-1)*ldc+4)
	var offset []float32
	if bias != nil {
		offset = unsafe.Slice(bias, 4)
	}
	var v [2][4]float32
	for i := 0; i < rows; i += 2 {
		second := min(i+1, rows-1) // an odd last row is computed twice
		pairGo(&v, k, av[i*ars:], av[second*ars:], acs, bv, bs)
		for r := i; r <= second; r++ {
			row := v[r-i]
			for j := range row {
				row[j] *= alpha
			}
			store(cv[r*ldc:][:4], row[:], offset, add)
		}
	}
}

// pairGo computes v[r][j] = Σ_p a_r[p·acs]·b[p·bs+j] for two rows and four columns.
func pairGo(v *[2][4]float32, k int, a0, a1 []float32, acs int, b []float32, bs int) {
	var v00, v01, v02, v03, v10, v11, v12, v13 float32
	ia, ib := 0, 0
	for range k {
		x0, x1 := a0[ia], a1[ia]
		y := (*[4]float32)(b[ib:])
		v00 += x0 * y[0]
		v10 += x1 * y[0]
		v01 += x0 * y[1]
		v11 += x1 * y[1]
		v02 += x0 * y[2]
		v12 += x1 * y[2]
		v03 += x0 * y[3]
		v13 += x1 * y[3]
		ia += acs
		ib += bs
	}
	v[0] = [4]float32{v00, v01, v02, v03}
	v[1] = [4]float32{v10, v11, v12, v13}
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
