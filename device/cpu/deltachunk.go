package cpu

import (
	"math"

	"apr/device/cpu/gemm"
	"apr/device/cpu/vec"
)

// solveBlock is how many rows of a triangular system are solved one after the other; between blocks there are products.
const solveBlock = 8

// deltaChunk is some positions of one value head, and the state S before them. Names are those of device.LinearAttention;
// matrices have a row for each position.
type deltaChunk struct {
	isa    vec.ISA
	gemm   *gemm.Workspace
	dk, dv int
	n, row int // positions; the tensor's row of the first
	size   int // positions for which there is room

	state    []float32 // S [dk, dv]
	q, k, ek []float32 // [n, dk]; ek is k times its decay to the end of the chunk
	v, r, x  []float32 // [n, dv]: v, v − S̃ᵀk as the state before the chunk has it, βε
	ks, qs   []float32 // [n, dv]: products with S, not decayed
	m        []float32 // [n, n]: e^(G_i−G_j), 0 where j is no position before i of its document
	kk, a, p []float32 // [n, n]: kkᵀ∘m below the diagonal, β times that, qkᵀ∘m

	rq, rk            []float64 // 1/√(Σx²+ε)
	beta, g, total    []float64 // total is G
	soft              []float64 // a + dt
	decay, end        []float64 // of the state before the chunk at each position, and of each position at the end; 0 across documents
	begin             []int     // of its document; −1: before the chunk
	through           float64   // decay of the state over the whole chunk
	dstate            []float32 // of S behind the chunk, then before it
	y, dx, t          []float32 // [n, dv]
	dq, dkey, xs      []float32 // [n, dk]
	dp, da            []float32 // [n, n]
	dbeta, dtotal, dg []float64
}

// grow makes room for n positions.
func (c *deltaChunk) grow(n int) {
	dk, dv := c.dk, c.dv
	for _, t := range []struct {
		s *[]float32
		n int
	}{
		{&c.state, dk * dv}, {&c.q, n * dk}, {&c.k, n * dk}, {&c.ek, n * dk}, {&c.v, n * dv}, {&c.r, n * dv}, {&c.x, n * dv}, {&c.ks, n * dv}, {&c.qs, n * dv},
		{&c.m, n * n}, {&c.kk, n * n}, {&c.a, n * n}, {&c.p, n * n},
	} {
		*t.s = grow(*t.s, t.n)
	}
	for _, s := range []*[]float64{&c.rq, &c.rk, &c.beta, &c.g, &c.total, &c.soft, &c.decay, &c.end, &c.dbeta, &c.dtotal, &c.dg} {
		*s = growWide(*s, n)
	}
	if cap(c.begin) < n {
		c.begin = make([]int, n)
	}
	c.begin, c.size = c.begin[:n], n
}

// growBack makes room for what the backward needs besides.
func (c *deltaChunk) growBack() {
	n, dk, dv := c.size, c.dk, c.dv
	c.dstate, c.y, c.dx, c.t = grow(c.dstate, dk*dv), grow(c.y, n*dv), grow(c.dx, n*dv), grow(c.t, n*dv)
	c.dq, c.dkey, c.xs = grow(c.dq, n*dk), grow(c.dkey, n*dk), grow(c.xs, n*dk)
	c.dp, c.da = grow(c.dp, n*n), grow(c.da, n*n)
}

// unit writes y = f·x·r with r = 1/√(Σx²+ε).
func (c *deltaChunk) unit(y []float32, r *float64, x []float32, f float64) {
	copy(y, x)
	*r = 1 / math.Sqrt(c.isa.SumSquares(y)+deltaEps)
	c.isa.Scale(y, float32(f**r))
}

// unitGrad adds the gradient of unit to dx, given dy: f·r·(dy − ŷ⟨ŷ,dy⟩) with ŷ = y/f.
func (c *deltaChunk) unitGrad(dx, dy, y []float32, r, f float64) {
	along := float32(c.isa.Dot(y, dy) / (f * f))
	for i, d := range dy {
		dx[i] += float32(f*r) * (d - along*y[i])
	}
}

// decays computes m, decay, end and through from G and the begins of documents.
func (c *deltaChunk) decays() {
	n, last := c.n, c.n-1
	for i := range n {
		m := c.m[i*n : (i+1)*n]
		clear(m)
		for j := max(c.begin[i], 0); j <= i; j++ {
			m[j] = float32(math.Exp(c.total[i] - c.total[j]))
		}
		c.decay[i] = 0
		if c.begin[i] < 0 {
			c.decay[i] = math.Exp(c.total[i])
		}
		c.end[i] = 0
	}
	for j := max(c.begin[last], 0); j < n; j++ {
		c.end[j] = math.Exp(c.total[last] - c.total[j])
	}
	c.through = c.decay[last]
}

// scaled writes y_i = f_i·x_i for rows of d values.
func (c *deltaChunk) scaled(y, x []float32, f []float64, d int) {
	for i := range c.n {
		row := y[i*d : (i+1)*d]
		copy(row, x[i*d:])
		c.isa.Scale(row, float32(f[i]))
	}
}

// solve computes X = βε of the chunk: (I + a)·X = β(V − e^G·KS).
func (c *deltaChunk) solve() {
	n, dk, dv := c.n, c.dk, c.dv
	c.gemm.Multiply(false, true, n, n, dk, 1, c.k, dk, c.k, dk, c.kk, n, false)
	for i := range n {
		for j := range n {
			if j < i {
				c.kk[i*n+j] *= c.m[i*n+j]
			} else {
				c.kk[i*n+j] = 0
			}
			c.a[i*n+j] = float32(c.beta[i]) * c.kk[i*n+j]
		}
	}
	c.gemm.Multiply(false, false, n, dv, dk, 1, c.k, dk, c.state, dv, c.ks, dv, false)
	for i := range n {
		decay := float32(c.decay[i])
		for b := i * dv; b < (i+1)*dv; b++ {
			c.r[b] = c.v[b] - decay*c.ks[b]
		}
	}
	c.scaled(c.x, c.r, c.beta, dv)
	c.forwards(c.x)
	c.scaled(c.ek, c.k, c.end, dk)
}

// forwards solves (I + a)·x = x.
func (c *deltaChunk) forwards(x []float32) {
	n, dv := c.n, c.dv
	for lo := 0; lo < n; lo += solveBlock {
		hi := min(lo+solveBlock, n)
		if lo > 0 {
			c.gemm.Multiply(false, false, hi-lo, dv, lo, -1, c.a[lo*n:], n, x[:lo*dv], dv, x[lo*dv:hi*dv], dv, true)
		}
		for i := lo + 1; i < hi; i++ {
			for j := lo; j < i; j++ {
				subtract(x[i*dv:(i+1)*dv], x[j*dv:(j+1)*dv], c.a[i*n+j])
			}
		}
	}
}

// backwards solves (I + a)ᵀ·y = y.
func (c *deltaChunk) backwards(y []float32) {
	n, dv := c.n, c.dv
	for lo := (n - 1) / solveBlock * solveBlock; lo >= 0; lo -= solveBlock {
		hi := min(lo+solveBlock, n)
		if hi < n {
			c.gemm.Multiply(true, false, hi-lo, dv, n-hi, -1, c.a[hi*n+lo:], n, y[hi*dv:n*dv], dv, y[lo*dv:hi*dv], dv, true)
		}
		for i := hi - 2; i >= lo; i-- {
			for j := i + 1; j < hi; j++ {
				subtract(y[i*dv:(i+1)*dv], y[j*dv:(j+1)*dv], c.a[j*n+i])
			}
		}
	}
}

// subtract computes y −= f·x.
func subtract(y, x []float32, f float32) {
	x = x[:len(y)]
	for i := range y {
		y[i] -= f * x[i]
	}
}

// scores computes qs and p.
func (c *deltaChunk) scores() {
	n, dk, dv := c.n, c.dk, c.dv
	c.gemm.Multiply(false, false, n, dv, dk, 1, c.q, dk, c.state, dv, c.qs, dv, false)
	c.gemm.Multiply(false, true, n, n, dk, 1, c.q, dk, c.k, dk, c.p, n, false)
	for i := range n {
		for j := range n { // m is 0 above the diagonal
			c.p[i*n+j] *= c.m[i*n+j]
		}
	}
}

// output writes o = e^G·QS + p·X in rows of stride values.
func (c *deltaChunk) output(o []float32, stride int) {
	c.scores()
	for i := range c.n {
		row := o[i*stride : i*stride+c.dv]
		copy(row, c.qs[i*c.dv:])
		c.isa.Scale(row, float32(c.decay[i]))
	}
	c.gemm.Multiply(false, false, c.n, c.dv, c.n, 1, c.p, c.n, c.x, c.dv, o, stride, true)
}

// advance brings the state behind the chunk: S = through·S + ekᵀ·X.
func (c *deltaChunk) advance() {
	c.isa.Scale(c.state, float32(c.through))
	c.gemm.Multiply(true, false, c.dk, c.dv, c.n, 1, c.ek, c.dk, c.x, c.dv, c.state, c.dv, true)
}

// back goes back through output and advance: given the gradient of o in rows of stride values, and dstate that of the state
// behind the chunk, it writes dq, dkey, y = dv, dbeta and dg, and makes dstate that of the state before.
func (c *deltaChunk) back(do []float32, stride int) {
	n, dk, dv := c.n, c.dk, c.dv
	c.scores()
	// X feeds o and the state; through the system its gradient becomes that of its right-hand side.
	c.gemm.Multiply(true, false, n, dv, n, 1, c.p, n, do, stride, c.y, dv, false)
	c.gemm.Multiply(false, false, n, dv, dk, 1, c.ek, dk, c.dstate, dv, c.y, dv, true)
	c.backwards(c.y)
	c.gemm.Multiply(false, true, n, n, dv, 1, do, stride, c.x, dv, c.dp, n, false)
	c.gemm.Multiply(false, true, n, n, dv, -1, c.y, dv, c.x, dv, c.da, n, false)
	c.pairs()
	c.rows(do, stride)
	// With Dr = e^G·dv in dx and Do = e^G·do in t:
	c.gemm.Multiply(false, true, n, dk, dv, 1, c.t, dv, c.state, dv, c.dq, dk, false)
	c.gemm.Multiply(false, false, n, dk, n, 1, c.dp, n, c.k, dk, c.dq, dk, true)
	c.gemm.Multiply(false, true, n, dk, dv, -1, c.dx, dv, c.state, dv, c.dkey, dk, false)
	c.gemm.Multiply(true, false, n, dk, n, 1, c.dp, n, c.q, dk, c.dkey, dk, true)
	c.gemm.Multiply(false, false, n, dk, n, 1, c.da, n, c.k, dk, c.dkey, dk, true)
	c.gemm.Multiply(true, false, n, dk, n, 1, c.da, n, c.k, dk, c.dkey, dk, true)
	c.carried()
	c.isa.Scale(c.dstate, float32(c.through))
	c.gemm.Multiply(true, false, dk, dv, n, 1, c.q, dk, c.t, dv, c.dstate, dv, true)
	c.gemm.Multiply(true, false, dk, dv, n, -1, c.k, dk, c.dx, dv, c.dstate, dv, true)
	c.sumDecays()
}

// pairs goes back through a and p: dp becomes the gradient of qkᵀ and da that of kkᵀ.
func (c *deltaChunk) pairs() {
	n := c.n
	for i := range n {
		c.dbeta[i], c.dtotal[i] = 0, 0
	}
	for i := range n {
		for j := range n {
			at := i*n + j
			if j < i { // on the diagonal the decay is 1
				t := float64(c.da[at]) * float64(c.kk[at])
				c.dbeta[i] += t
				t = t*c.beta[i] + float64(c.dp[at])*float64(c.p[at])
				c.dtotal[i] += t
				c.dtotal[j] -= t
				c.da[at] *= float32(c.beta[i]) * c.m[at]
			} else {
				c.da[at] = 0
			}
			c.dp[at] *= c.m[at]
		}
	}
}

// rows goes back through what is a row's own: y becomes the gradient of v, dx e^G times that, t e^G times that of o.
func (c *deltaChunk) rows(do []float32, stride int) {
	dv, isa := c.dv, c.isa
	for i := range c.n {
		lo, hi := i*dv, (i+1)*dv
		y, dx, t, dout := c.y[lo:hi], c.dx[lo:hi], c.t[lo:hi], do[i*stride:i*stride+dv]
		c.dbeta[i] += isa.Dot(y, c.r[lo:hi])
		isa.Scale(y, float32(c.beta[i]))
		c.dtotal[i] += c.decay[i] * (isa.Dot(dout, c.qs[lo:hi]) - isa.Dot(y, c.ks[lo:hi]))
		copy(dx, y)
		isa.Scale(dx, float32(c.decay[i]))
		copy(t, dout)
		isa.Scale(t, float32(c.decay[i]))
	}
}

// carried goes back from the state behind the chunk to the keys, and to the decays up to there.
func (c *deltaChunk) carried() {
	n, dk, dv, last := c.n, c.dk, c.dv, c.n-1
	c.gemm.Multiply(false, true, n, dk, dv, 1, c.x, dv, c.dstate, dv, c.xs, dk, false)
	for j := range n {
		xs := c.xs[j*dk : (j+1)*dk]
		c.isa.Scale(xs, float32(c.end[j]))
		c.isa.Add(c.dkey[j*dk:(j+1)*dk], xs)
		if j < last {
			e := c.isa.Dot(c.k[j*dk:(j+1)*dk], xs)
			c.dtotal[last] += e
			c.dtotal[j] -= e
		}
	}
	c.dtotal[last] += c.through * c.isa.Dot(c.state, c.dstate)
}

// sumDecays makes gradients of g of those of G: sums over the later positions of the document within the chunk.
func (c *deltaChunk) sumDecays() {
	sum := 0.0
	for i := c.n - 1; i >= 0; i-- {
		sum += c.dtotal[i]
		c.dg[i] = sum
		if c.begin[i] == i {
			sum = 0
		}
	}
}
