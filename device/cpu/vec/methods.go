package vec

// Add computes dst[i] += x[i].
func (i ISA) Add(dst, x []float32) {
	x = x[:len(dst)]
	add(dst, x)
}

// Scale computes x[i] ·= s.
func (i ISA) Scale(x []float32, s float32) {
	scale(x, s)
}

// Dot returns Σ a[i]·b[i], products and sum in float64.
func (i ISA) Dot(a, b []float32) float64 {
	b = b[:len(a)]
	return dot(a, b)
}

// Dot3 returns Σ a[i]·b[i]·c[i], products and sum in float64.
func (i ISA) Dot3(a, b, c []float32) float64 {
	b, c = b[:len(a)], c[:len(a)]
	return dot3(a, b, c)
}

// SumSquares returns Σ x[i]², squares and sum in float64.
func (i ISA) SumSquares(x []float32) float64 {
	return sumSquares(x)
}

// AddSumSquares computes dst[i] = x[i] + delta[i] and returns Σ dst[i]². dst may be x.
func (i ISA) AddSumSquares(dst, x, delta []float32) float64 {
	x, delta = x[:len(dst)], delta[:len(dst)]
	return addSumSquares(dst, x, delta)
}

// NormScale computes y[i] = (x[i]·s)·w[i]. y may be x.
func (i ISA) NormScale(y, x, w []float32, s float32) {
	x, w = x[:len(y)], w[:len(y)]
	normScale(y, x, w, s)
}

// NormGrad adds the backward of one RMSNorm row: with x̂ = x·rstd, dw[i] += dy[i]·x̂[i] and
// dx[i] += rstd·(dy[i]·w[i] − x̂[i]·c); the caller gives c = mean(dy·w·x̂).
func (i ISA) NormGrad(dx, dw, dy, x, w []float32, rstd, c float32) {
	dw, dy, x, w = dw[:len(dx)], dy[:len(dx)], x[:len(dx)], w[:len(dx)]
	normGrad(dx, dw, dy, x, w, rstd, c)
}

// SiluMul computes m[i] = g[i]·σ(g[i])·u[i].
func (i ISA) SiluMul(m, g, u []float32) {
	g, u = g[:len(m)], u[:len(m)]
	siluMul(m, g, u)
}

// SiluMulGrad computes dg = dm·u·σ(g)(1+g(1−σ(g))) and du = dm·g·σ(g). dg may be g and du may be u.
func (i ISA) SiluMulGrad(dg, du, dm, g, u []float32) {
	dg, du, g, u = dg[:len(dm)], du[:len(dm)], g[:len(dm)], u[:len(dm)]
	siluMulGrad(dg, du, dm, g, u)
}

// Rotate rotates heads vectors of 2·len(cos) values, one after the other in x: with j = i+len(cos),
// (x[i], x[j]) becomes (x[i]·cos[i] − x[j]·sin[i], x[j]·cos[i] + x[i]·sin[i]).
func (i ISA) Rotate(x, cos, sin []float32, heads int) {
	x, sin = x[:2*heads*len(cos)], sin[:len(cos)]
	rotate(x, cos, sin, heads)
}

// Max returns the largest element, −∞ for none. NaN may be skipped.
func (i ISA) Max(x []float32) float32 {
	return maximum(x)
}

// Index returns the first i with x[i] = v, or −1.
func (i ISA) Index(x []float32, v float32) int {
	return index(x, v)
}

// ExpSum computes dst[i] = e^{x[i] − shift} and returns Σ dst[i]. dst may be x. e^{−∞} is 0. Assembly sums in float32
// lanes: give it a few thousand elements at most.
func (i ISA) ExpSum(dst, x []float32, shift float32) float64 {
	x = x[:len(dst)]
	return expSum(dst, x, shift)
}

// SoftmaxGrad turns a row of scaled attention scores s and of dp = ∂L/∂p into p and the gradient of q·k: s[i] ← p = e^{s[i] − lse},
// dp[i] ← p·(dp[i] − delta)·scale.
func (i ISA) SoftmaxGrad(s, dp []float32, scale, lse, delta float32) {
	dp = dp[:len(s)]
	softmaxGrad(s, dp, scale, lse, delta)
}

// LossGrad computes grad[i] = a·e^{z[i]−mz} + (b·e^{(z[i]−mz)·invT} − c·e^{(t[i]−mt)·invT}). grad may be z or t.
func (i ISA) LossGrad(grad, z, t []float32, mz, mt, invT, a, b, c float32) {
	z, t = z[:len(grad)], t[:len(grad)]
	lossGrad(grad, z, t, mz, mt, invT, a, b, c)
}

// DivGrad computes grad[i] = a·e^{z[i]−mz} + k·(h[i] − Q[i]·sumH). grad may be z or h.
func (i ISA) DivGrad(grad, z, h []float32, c *Centre, a, k, sumH float32) {
	z, h = z[:len(grad)], h[:len(grad)]
	divGrad(grad, z, h, c, a, k, sumH)
}

// AdamW updates w and its moments m and v by the gradient g:
//
//	m ← β₁m + (1−β₁)sg;  v ← β₂v + (1−β₂)(sg)²;  w ← w·Decay − Step·m/(√v·InvBias + ε)
func (i ISA) AdamW(w, g, m, v []float32, c *AdamW) {
	g, m, v = g[:len(w)], m[:len(w)], v[:len(w)]
	adamW(w, g, m, v, c)
}

// WidenBF16 decodes len(dst) little-endian bfloat16 values of src.
func (i ISA) WidenBF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	widenBF16(dst, src)
}

// WidenF16 decodes len(dst) little-endian IEEE halves of src.
func (i ISA) WidenF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	widenF16(dst, src)
}
