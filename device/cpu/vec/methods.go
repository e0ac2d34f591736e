package vec

//go:generate sh -c "cd ../../../tools && go run ./avo/vec -pkg vec -out ../device/cpu/vec/vec_amd64.s -stubs ../device/cpu/vec/stubs_amd64.go -other ../device/cpu/vec/stubs_other.go"
//go:generate sh -c "cd ../../../tools && go run ./neon/vec -out ../device/cpu/vec/vec_arm64.s -stubs ../device/cpu/vec/stubs_arm64.go -other ../device/cpu/vec/stubs_noneon.go"

// Add computes dst[i] += x[i].
func (i ISA) Add(dst, x []float32) {
	x = x[:len(dst)]
	switch i {
	case AVX512:
		addAVX512(dst, x)
	case AVX2:
		addAVX2(dst, x)
	case NEON:
		addNEON(dst, x)
	default:
		add(dst, x)
	}
}

// Scale computes x[i] ·= s.
func (i ISA) Scale(x []float32, s float32) {
	switch i {
	case AVX512:
		scaleAVX512(x, s)
	case AVX2:
		scaleAVX2(x, s)
	case NEON:
		scaleNEON(x, s)
	default:
		scale(x, s)
	}
}

// Dot returns Σ a[i]·b[i], products and sum in float64.
func (i ISA) Dot(a, b []float32) float64 {
	b = b[:len(a)]
	switch i {
	case AVX512:
		return dotAVX512(a, b)
	case AVX2:
		return dotAVX2(a, b)
	case NEON:
		return dotNEON(a, b)
	}
	return dot(a, b)
}

// Dot3 returns Σ a[i]·b[i]·c[i], products and sum in float64.
func (i ISA) Dot3(a, b, c []float32) float64 {
	b, c = b[:len(a)], c[:len(a)]
	switch i {
	case AVX512:
		return dot3AVX512(a, b, c)
	case AVX2:
		return dot3AVX2(a, b, c)
	case NEON:
		return dot3NEON(a, b, c)
	}
	return dot3(a, b, c)
}

// SumSquares returns Σ x[i]², squares and sum in float64.
func (i ISA) SumSquares(x []float32) float64 {
	switch i {
	case AVX512:
		return sumSquaresAVX512(x)
	case AVX2:
		return sumSquaresAVX2(x)
	case NEON:
		return sumSquaresNEON(x)
	}
	return sumSquares(x)
}

// AddSumSquares computes dst[i] = x[i] + delta[i] and returns Σ dst[i]². dst may be x.
func (i ISA) AddSumSquares(dst, x, delta []float32) float64 {
	x, delta = x[:len(dst)], delta[:len(dst)]
	switch i {
	case AVX512:
		return addSumSquaresAVX512(dst, x, delta)
	case AVX2:
		return addSumSquaresAVX2(dst, x, delta)
	case NEON:
		return addSumSquaresNEON(dst, x, delta)
	}
	return addSumSquares(dst, x, delta)
}

// NormScale computes y[i] = (x[i]·s)·w[i]. y may be x.
func (i ISA) NormScale(y, x, w []float32, s float32) {
	x, w = x[:len(y)], w[:len(y)]
	switch i {
	case AVX512:
		normScaleAVX512(y, x, w, s)
	case AVX2:
		normScaleAVX2(y, x, w, s)
	case NEON:
		normScaleNEON(y, x, w, s)
	default:
		normScale(y, x, w, s)
	}
}

// NormGrad adds the backward of one RMSNorm row: with x̂ = x·rstd, dw[i] += dy[i]·x̂[i] and
// dx[i] += rstd·(dy[i]·w[i] − x̂[i]·c); the caller gives c = mean(dy·w·x̂).
func (i ISA) NormGrad(dx, dw, dy, x, w []float32, rstd, c float32) {
	dw, dy, x, w = dw[:len(dx)], dy[:len(dx)], x[:len(dx)], w[:len(dx)]
	switch i {
	case AVX512:
		normGradAVX512(dx, dw, dy, x, w, rstd, c)
	case AVX2:
		normGradAVX2(dx, dw, dy, x, w, rstd, c)
	case NEON:
		normGradNEON(dx, dw, dy, x, w, rstd, c)
	default:
		normGrad(dx, dw, dy, x, w, rstd, c)
	}
}

// SiluMul computes m[i] = g[i]·σ(g[i])·u[i].
func (i ISA) SiluMul(m, g, u []float32) {
	g, u = g[:len(m)], u[:len(m)]
	switch i {
	case AVX512:
		siluMulAVX512(m, g, u)
	case AVX2:
		siluMulAVX2(m, g, u)
	case NEON:
		siluMulNEON(m, g, u)
	default:
		siluMul(m, g, u)
	}
}

// SiluMulGrad computes dg = dm·u·σ(g)(1+g(1−σ(g))) and du = dm·g·σ(g). dg may be g and du may be u.
func (i ISA) SiluMulGrad(dg, du, dm, g, u []float32) {
	dg, du, g, u = dg[:len(dm)], du[:len(dm)], g[:len(dm)], u[:len(dm)]
	switch i {
	case AVX512:
		siluMulGradAVX512(dg, du, dm, g, u)
	case AVX2:
		siluMulGradAVX2(dg, du, dm, g, u)
	case NEON:
		siluMulGradNEON(dg, du, dm, g, u)
	default:
		siluMulGrad(dg, du, dm, g, u)
	}
}

// GeluMul computes m[i] = ½g[i](1+tanh(√(2/π)(g[i]+0.044715g[i]³)))·u[i].
func (i ISA) GeluMul(m, g, u []float32) {
	g, u = g[:len(m)], u[:len(m)]
	switch i {
	case AVX512:
		geluMulAVX512(m, g, u)
	case AVX2:
		geluMulAVX2(m, g, u)
	case NEON:
		geluMulNEON(m, g, u)
	default:
		geluMul(m, g, u)
	}
}

// GeluMulGrad computes the backward of GeluMul: dg = dm·u·gelu'(g) and du = dm·gelu(g). dg may be g and du may be u.
func (i ISA) GeluMulGrad(dg, du, dm, g, u []float32) {
	dg, du, g, u = dg[:len(dm)], du[:len(dm)], g[:len(dm)], u[:len(dm)]
	switch i {
	case AVX512:
		geluMulGradAVX512(dg, du, dm, g, u)
	case AVX2:
		geluMulGradAVX2(dg, du, dm, g, u)
	case NEON:
		geluMulGradNEON(dg, du, dm, g, u)
	default:
		geluMulGrad(dg, du, dm, g, u)
	}
}

// SoftCap computes y[i] = c·tanh(x[i]/c), c > 0. y may be x.
func (i ISA) SoftCap(y, x []float32, c float32) {
	x = x[:len(y)]
	switch i {
	case AVX512:
		softCapAVX512(y, x, c)
	case AVX2:
		softCapAVX2(y, x, c)
	case NEON:
		softCapNEON(y, x, c)
	default:
		softCap(y, x, c)
	}
}

// CapGrad computes grad[i] ·= 1−(z[i]/c)², the slope of SoftCap where its result is z[i].
func (i ISA) CapGrad(grad, z []float32, c float32) {
	z = z[:len(grad)]
	switch i {
	case AVX512:
		capGradAVX512(grad, z, c)
	case AVX2:
		capGradAVX2(grad, z, c)
	case NEON:
		capGradNEON(grad, z, c)
	default:
		capGrad(grad, z, c)
	}
}

// Rotate rotates heads vectors of 2·len(cos) values, one after the other in x: with j = i+len(cos),
// (x[i], x[j]) becomes (x[i]·cos[i] − x[j]·sin[i], x[j]·cos[i] + x[i]·sin[i]).
func (i ISA) Rotate(x, cos, sin []float32, heads int) {
	x, sin = x[:2*heads*len(cos)], sin[:len(cos)]
	switch i {
	case AVX512:
		rotateAVX512(x, cos, sin, heads)
	case AVX2:
		rotateAVX2(x, cos, sin, heads)
	case NEON:
		rotateNEON(x, cos, sin, heads)
	default:
		rotate(x, cos, sin, heads)
	}
}

// Max returns the largest element, −∞ for none. NaN may be skipped.
func (i ISA) Max(x []float32) float32 {
	switch i {
	case AVX512:
		return maximumAVX512(x)
	case AVX2:
		return maximumAVX2(x)
	case NEON:
		return maximumNEON(x)
	}
	return maximum(x)
}

// Index returns the first i with x[i] = v, or −1.
func (i ISA) Index(x []float32, v float32) int {
	switch i {
	case AVX512:
		return indexAVX512(x, v)
	case AVX2:
		return indexAVX2(x, v)
	case NEON:
		return indexNEON(x, v)
	}
	return index(x, v)
}

// ExpSum computes dst[i] = e^{x[i] − shift} and returns Σ dst[i]. dst may be x. e^{−∞} is 0. Sums of a few float32
// terms are added in float64.
func (i ISA) ExpSum(dst, x []float32, shift float32) float64 {
	x = x[:len(dst)]
	switch i {
	case AVX512:
		return expSumAVX512(dst, x, shift)
	case AVX2:
		return expSumAVX2(dst, x, shift)
	case NEON:
		return expSumNEON(dst, x, shift)
	}
	return expSum(dst, x, shift)
}

// SoftmaxGrad turns a row of scaled attention scores s and of dp = ∂L/∂p into p and the gradient of q·k: s[i] ← p = e^{s[i] − lse},
// dp[i] ← p·(dp[i] − delta)·scale.
func (i ISA) SoftmaxGrad(s, dp []float32, scale, lse, delta float32) {
	dp = dp[:len(s)]
	switch i {
	case AVX512:
		softmaxGradAVX512(s, dp, scale, lse, delta)
	case AVX2:
		softmaxGradAVX2(s, dp, scale, lse, delta)
	case NEON:
		softmaxGradNEON(s, dp, scale, lse, delta)
	default:
		softmaxGrad(s, dp, scale, lse, delta)
	}
}

// DivGrad computes grad[i] = a·e^{z[i]−mz} + k·(h[i] − Q[i]·sumH). grad may be z or h.
func (i ISA) DivGrad(grad, z, h []float32, c *Centre, a, k, sumH float32) {
	z, h = z[:len(grad)], h[:len(grad)]
	switch i {
	case AVX512:
		divGradAVX512(grad, z, h, &c.MZ, a, k, sumH)
	case AVX2:
		divGradAVX2(grad, z, h, &c.MZ, a, k, sumH)
	case NEON:
		divGradNEON(grad, z, h, &c.MZ, a, k, sumH)
	default:
		divGrad(grad, z, h, c, a, k, sumH)
	}
}

// AdamW updates w and its moments m and v by the gradient g:
//
//	m ← β₁m + (1−β₁)sg;  v ← β₂v + (1−β₂)(sg)²;  w ← w·Decay − Step·m/(√v·InvBias + ε)
func (i ISA) AdamW(w, g, m, v []float32, c *AdamW) {
	g, m, v = g[:len(w)], m[:len(w)], v[:len(w)]
	switch i {
	case AVX512:
		adamWAVX512(w, g, m, v, &c.Decay)
	case AVX2:
		adamWAVX2(w, g, m, v, &c.Decay)
	case NEON:
		adamWNEON(w, g, m, v, &c.Decay)
	default:
		adamW(w, g, m, v, c)
	}
}

// WidenBF16 decodes len(dst) little-endian bfloat16 values of src.
func (i ISA) WidenBF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	n := 0 // what assembly decodes: whole vectors
	switch {
	case i == AVX512 && len(dst) >= 16:
		n = len(dst) &^ 15
		widenBF16AVX512(dst[:n], &src[0])
	case i == AVX2 && len(dst) >= 8:
		n = len(dst) &^ 7
		widenBF16AVX2(dst[:n], &src[0])
	case i == NEON && len(dst) >= 8:
		n = len(dst) &^ 7
		widenBF16NEON(dst[:n], &src[0])
	}
	widenBF16(dst[n:], src[2*n:])
}

// WidenF16 decodes len(dst) little-endian IEEE halves of src.
func (i ISA) WidenF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	n := 0 // what assembly decodes: whole vectors
	switch {
	case i == AVX512 && len(dst) >= 16:
		n = len(dst) &^ 15
		widenF16AVX512(dst[:n], &src[0])
	case i == AVX2 && len(dst) >= 8:
		n = len(dst) &^ 7
		widenF16AVX2(dst[:n], &src[0])
	case i == NEON && len(dst) >= 8:
		n = len(dst) &^ 7
		widenF16NEON(dst[:n], &src[0])
	}
	widenF16(dst[n:], src[2*n:])
}
