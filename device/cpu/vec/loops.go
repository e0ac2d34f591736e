package vec

import (
	"encoding/binary"
	"math"

	"apr/tensor"
)

// The loops as they are meant. Sums are float64, functions are computed in float64 and rounded once.

func exp64(x float64) float64 { return math.Exp(x) }

func add(dst, x []float32) {
	for i := range dst {
		dst[i] += x[i]
	}
}

func scale(x []float32, s float32) {
	for i := range x {
		x[i] *= s
	}
}

func dot(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

func dot3(a, b, c []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i]) * float64(c[i])
	}
	return sum
}

func sumSquares(x []float32) (sum float64) {
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return sum
}

func addSumSquares(dst, x, delta []float32) (sum float64) {
	for i := range dst {
		v := x[i] + delta[i]
		dst[i] = v
		sum += float64(v) * float64(v)
	}
	return sum
}

func normScale(y, x, w []float32, s float32) {
	for i := range y {
		y[i] = float32(x[i]*s) * w[i]
	}
}

func normGrad(dx, dw, dy, x, w []float32, rstd, c float32) {
	for i := range dx {
		xhat := float32(x[i] * rstd)
		dw[i] += float32(dy[i] * xhat)
		dx[i] += float32(rstd * (float32(dy[i]*w[i]) - float32(xhat*c)))
	}
}

func siluMul(m, g, u []float32) {
	for i := range m {
		x := float64(g[i])
		m[i] = float32(x / (1 + exp64(-x)) * float64(u[i]))
	}
}

func siluMulGrad(dg, du, dm, g, u []float32) {
	for i := range dm {
		x, y, d := float64(g[i]), float64(u[i]), float64(dm[i])
		s := 1 / (1 + exp64(-x))
		dg[i] = float32(d * y * s * (1 + x*(1-s)))
		du[i] = float32(d * x * s)
	}
}

func geluMul(m, g, u []float32) {
	for i := range m {
		x := float64(g[i])
		m[i] = float32(x / (1 + exp64(-geluArg(x))) * float64(u[i]))
	}
}

func geluMulGrad(dg, du, dm, g, u []float32) {
	for i := range dm {
		x, y, d := float64(g[i]), float64(u[i]), float64(dm[i])
		s := 1 / (1 + exp64(-geluArg(x)))
		slope := 2 * geluK * (1 + 3*geluCube*x*x)
		dg[i] = float32(d * y * s * (1 + x*slope*(1-s)))
		du[i] = float32(d * x * s)
	}
}

// geluArg returns 2k(x+0.044715x³), k = √(2/π): the tanh of half of it is 2σ−1, so that ½(1+tanh) is σ.
func geluArg(x float64) float64 { return 2 * geluK * (x + geluCube*x*x*x) }

const (
	geluK    = 0.79788456080286535588 // √(2/π)
	geluCube = 0.044715
)

func softCap(y, x []float32, c float32) {
	for i := range y {
		y[i] = float32(float64(c) * math.Tanh(float64(x[i])/float64(c)))
	}
}

func capGrad(grad, z []float32, c float32) {
	for i := range grad {
		r := float64(z[i]) / float64(c)
		grad[i] = float32(float64(grad[i]) * (1 - r) * (1 + r))
	}
}

func rotate(x, cos, sin []float32, heads int) {
	half := len(cos)
	for h := range heads {
		lo, hi := x[2*h*half:][:half], x[(2*h+1)*half:][:half]
		for i := range half {
			a, b := lo[i], hi[i]
			lo[i] = float32(a*cos[i]) - float32(b*sin[i])
			hi[i] = float32(b*cos[i]) + float32(a*sin[i])
		}
	}
}

func maximum(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

func index(x []float32, v float32) int {
	for i := range x {
		if x[i] == v {
			return i
		}
	}
	return -1
}

func expSum(dst, x []float32, shift float32) (sum float64) {
	for i := range dst {
		dst[i] = float32(exp64(float64(x[i]) - float64(shift)))
		sum += float64(dst[i])
	}
	return sum
}

func softmaxGrad(s, dp []float32, scale, lse, delta float32) {
	for i := range s {
		p := float32(exp64(float64(s[i]) - float64(lse)))
		s[i] = p
		dp[i] = float32(float32(p*(dp[i]-delta)) * scale)
	}
}

func lossSums(z, t []float32, mz, mt, invT float32) (s LossSums) {
	for i := range z {
		dz, dt := float64(z[i])-float64(mz), float64(t[i])-float64(mt)
		s.Z1 += exp64(dz)
		s.ZT += exp64(dz * float64(invT))
		e := exp64(dt * float64(invT))
		s.T += e
		if e != 0 { // 0·(−∞) is 0 here
			s.A += e * (dt - dz)
			s.E += e * dt
		}
	}
	return s
}

func lossGrad(grad, z, t []float32, mz, mt, invT, a, b, c float32) {
	for i := range grad {
		dz, dt := float64(z[i])-float64(mz), float64(t[i])-float64(mt)
		// Both products are rounded before they are subtracted (the conversions forbid a fused multiply-add), so that equal
		// logits give a gradient of exactly 0 on every processor.
		student, teacher := float64(float64(b)*exp64(dz*float64(invT))), float64(float64(c)*exp64(dt*float64(invT)))
		grad[i] = float32(float64(a)*exp64(dz) + (student - teacher))
	}
}

// at returns p, Q and ln(p/Q) of one logit pair.
func (c *Centre) at(z, t float32) (p, q, d float64) {
	dz, dt := float64(z)-float64(c.MZ), float64(t)-float64(c.MT)
	p = exp64(dt*float64(c.InvT)) * float64(c.InvSumT)
	q = exp64(dz*float64(c.InvT)) * float64(c.InvSumZ)
	return p, q, (dt-dz)*float64(c.InvT) + float64(c.LogRatio)
}

// times returns a·b with 0·(±∞ or NaN) = 0: a vanished probability takes its logarithm with it.
func times(a, b float64) float64 {
	if a == 0 {
		return 0
	}
	return a * b
}

func reverseTerms(h, z, t []float32, c *Centre) (d, sumH float64) {
	for i := range h {
		_, q, r := c.at(z[i], t[i])
		v := times(q, -r)
		h[i] = float32(v)
		sumH += v
	}
	return sumH, sumH
}

func tvdTerms(h, z, t []float32, c *Centre) (d, sumH float64) {
	for i := range h {
		p, q, _ := c.at(z[i], t[i])
		v := 0.0
		switch {
		case q > p:
			v = 0.5 * q
		case q < p:
			v = -0.5 * q
		case q != q || p != p:
			v = math.NaN()
		}
		d += 0.5 * math.Abs(p-q)
		h[i] = float32(v)
		sumH += v
	}
	return d, sumH
}

func mixTerms(h, z, t []float32, c *Centre, m *Mix) (d, sumH float64) {
	beta := float64(m.Beta)
	for i := range h {
		p, q, r := c.at(z[i], t[i])
		// With e = e^{−|r|}, M/Q = (1−β)+βe for r ≤ 0, and (β+(1−β)e)/e for r > 0.
		e := exp64(-math.Abs(r))
		big, q2m := beta+(1-beta)*e, e
		if !(r > 0) {
			big, q2m = (1-beta)+beta*e, 1
		}
		l := math.Log(big)
		q2m /= big
		lnPM, lnQM := math.Min(r, 0)-l, math.Min(-r, 0)-l
		v := times(float64(m.HLog)*q, lnQM) + times(float64(m.HP)*p, q2m) + times(float64(m.HQ)*q, q2m)
		d += times(float64(m.DP)*p, lnPM) + times(float64(m.DQ)*q, lnQM)
		h[i] = float32(v)
		sumH += v
	}
	return d, sumH
}

func divGrad(grad, z, h []float32, c *Centre, a, k, sumH float32) {
	for i := range grad {
		dz := float64(z[i]) - float64(c.MZ)
		q := exp64(dz*float64(c.InvT)) * float64(c.InvSumZ)
		grad[i] = float32(float64(a)*exp64(dz) + float64(k)*(float64(h[i])-q*float64(sumH)))
	}
}

func adamW(w, g, m, v []float32, c *AdamW) {
	for i := range w {
		gs := float32(g[i] * c.Scale)
		mi := float32(c.Beta1*m[i]) + float32(c.Rest1*gs)
		vi := float32(c.Beta2*v[i]) + float32(float32(c.Rest2*gs)*gs)
		m[i], v[i] = mi, vi
		den := float32(float32(math.Sqrt(float64(vi)))*c.InvBias) + c.Eps
		w[i] = float32(w[i]*c.Decay) - float32(float32(c.Step*mi)/den)
	}
}

func widenBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = tensor.BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func widenF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = tensor.F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func expTotal(x []float32, shift, invT float32) (sum float64) {
	for _, v := range x {
		sum += exp64((float64(v) - float64(shift)) * float64(invT))
	}
	return sum
}

func shift(y, x []float32, m, c float32) {
	for i := range y {
		y[i] = x[i] - m + c
	}
}

func logAddExp(y, x []float32, m, c, invT, t float32) {
	for i := range y {
		a, b := float64(y[i]), float64(x[i]-m+c)
		larger := math.Max(a, b) // NaN if either is
		gap := (math.Min(a, b) - math.Max(larger, -math.MaxFloat32)) * float64(invT)
		y[i] = float32(larger + float64(t)*math.Log1p(exp64(gap)))
	}
}
