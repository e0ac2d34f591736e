package cpu

import (
	"math"

	"apr/device"
)

// deltaEps is what l2 adds to the sum of squares.
const deltaEps = 1e-6

// deltaOp is the gated delta rule, and its backward. A task of the forward is a value head of a sequence; one of the backward
// is a key head of a sequence with the value heads that read it, since all of them add to the same dq and dk.
type deltaOp struct {
	s               *Stream
	u, ba, o        mat
	from, to        mat
	do, du, dba     mat
	states          mat
	logA, dt        []float32
	dLogA, ddt      []float32
	parts           []float64 // of each sequence: sums of dLogA, then of ddt
	begins          []int     // of each row, where its document begins; nil: with its sequence
	d               device.Delta
	fwd, bwd        func(worker, lo, hi int)
	keyCols, inside int // columns of q, which are those of k; value heads of a key head
}

// set takes what forward and backward have in common.
func (o *deltaOp) set(u, ba, logA, dt device.Tensor, d device.Delta) {
	o.u, o.ba, o.logA, o.dt, o.d = floats(u), floats(ba), vector(logA), vector(dt), d
	o.begins = begins(o.begins, d.Sequences)
	o.keyCols, o.inside = d.KeyHeads*d.KeyDim, d.ValueHeads/d.KeyHeads
}

// DeltaNet: S̃ = e^g·S, ε = v − S̃ᵀk, S = S̃ + k(βε)ᵀ and o = Sᵀq for each value head, by chunks.
func (s *Stream) DeltaNet(o, u, ba, logA, dt, from, to device.Tensor, d device.Delta) {
	device.CheckDeltaNet(o, u, ba, logA, dt, from, to, d)
	if !s.begin() {
		return
	}
	op := &s.ops.delta
	op.set(u, ba, logA, dt, d)
	op.o, op.from, op.to = floats(o), optional(from), optional(to)
	s.split(d.Batch*d.ValueHeads, 1, op.fwd)
	s.end(device.OpDeltaNet, 2*d.MulAdds(false))
}

func (o *deltaOp) forward(worker, task, _ int) {
	c, head := o.chunk(worker), task%o.d.ValueHeads
	if o.from.cols > 0 {
		copy(c.state, o.from.row(task))
	} else {
		clear(c.state)
	}
	for lo := 0; lo < o.d.Len; lo += device.DeltaChunk {
		o.load(c, task/o.d.ValueHeads, head, lo)
		c.solve()
		c.output(o.o.d[c.row*o.o.stride+head*c.dv:], o.o.stride)
		c.advance()
	}
	if o.to.cols > 0 {
		copy(o.to.row(task), c.state)
	}
}

// chunk returns the scratch of a worker.
func (o *deltaOp) chunk(worker int) *deltaChunk {
	l := &o.s.local[worker]
	c := &l.delta
	c.isa, c.gemm, c.dk, c.dv = o.s.isa, &l.gemm, o.d.KeyDim, o.d.ValueDim
	c.grow(min(device.DeltaChunk, max(o.d.Len, 1)))
	return c
}

// load reads positions from lo of a sequence for a value head: q and k normalised, β, and the decays between positions.
func (o *deltaOp) load(c *deltaChunk, seq, head, lo int) {
	c.row, c.n = seq*o.d.Len+lo, min(device.DeltaChunk, o.d.Len-lo)
	key, value := head/o.inside*c.dk, 2*o.keyCols+head*c.dv
	rate, sum := math.Exp(float64(o.logA[head])), 0.0
	for i := range c.n {
		row, ba := o.u.row(c.row+i), o.ba.row(c.row+i)
		c.unit(c.q[i*c.dk:(i+1)*c.dk], &c.rq[i], row[key:], 1/math.Sqrt(float64(c.dk)))
		c.unit(c.k[i*c.dk:(i+1)*c.dk], &c.rk[i], row[o.keyCols+key:], 1)
		copy(c.v[i*c.dv:(i+1)*c.dv], row[value:])
		c.beta[i] = 1 / (1 + math.Exp(-float64(ba[head])))
		c.soft[i] = float64(ba[o.d.ValueHeads+head]) + float64(o.dt[head])
		c.g[i] = -rate * softplus(c.soft[i])
		sum += c.g[i]
		c.total[i] = sum
		c.begin[i] = -1
		if o.begins != nil && o.begins[c.row+i] >= c.row {
			c.begin[i] = o.begins[c.row+i] - c.row
		} else if lo == 0 && o.from.cols == 0 {
			c.begin[i] = 0
		}
	}
	c.decays()
}

// softplus returns ln(1+e^x).
func softplus(x float64) float64 { return math.Max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

// DeltaNetBackward writes du and dba, and adds to dLogA and ddt: the sums run over the positions of a sequence from the last
// to the first, then over the sequences in ascending order.
func (s *Stream) DeltaNetBackward(du, dba, dLogA, ddt, do, u, ba, logA, dt, states device.Tensor, d device.Delta) {
	device.CheckDeltaNetBackward(du, dba, dLogA, ddt, do, u, ba, logA, dt, states, d)
	if !s.begin() {
		return
	}
	op := &s.ops.delta
	op.set(u, ba, logA, dt, d)
	op.from = mat{}
	op.do, op.du, op.dba, op.states = floats(do), floats(du), floats(dba), floats(states)
	op.dLogA, op.ddt = vector(dLogA), vector(ddt)
	op.parts = growWide(op.parts, d.Batch*2*d.ValueHeads)
	s.split(d.Batch*d.KeyHeads, 1, op.bwd)
	for b := range d.Batch {
		part := op.parts[b*2*d.ValueHeads:]
		for h := range d.ValueHeads {
			op.dLogA[h] += float32(part[h])
			op.ddt[h] += float32(part[d.ValueHeads+h])
		}
	}
	s.end(device.OpDeltaNetBackward, 2*d.MulAdds(true))
}

func (o *deltaOp) backward(worker, task, _ int) {
	c, seq, key := o.chunk(worker), task/o.d.KeyHeads, task%o.d.KeyHeads
	c.growBack()
	for n := seq * o.d.Len; n < (seq+1)*o.d.Len; n++ {
		clear(o.du.row(n)[key*c.dk : (key+1)*c.dk])
		clear(o.du.row(n)[o.keyCols+key*c.dk:][:c.dk])
	}
	for head := key * o.inside; head < (key+1)*o.inside; head++ {
		o.backwardHead(c, seq, head)
	}
}

// backwardHead goes forward over the chunks of a value head, keeping the states at their begin, and then back.
func (o *deltaOp) backwardHead(c *deltaChunk, seq, head int) {
	first, chunks := (seq*o.d.ValueHeads+head)*o.d.Chunks(), o.d.Chunks()
	clear(c.state)
	for i := range chunks {
		copy(o.states.row(first+i), c.state)
		if i < chunks-1 {
			o.load(c, seq, head, i*device.DeltaChunk)
			c.solve()
			c.advance()
		}
	}
	clear(c.dstate)
	var dLogA, ddt float64
	for i := chunks - 1; i >= 0; i-- {
		o.load(c, seq, head, i*device.DeltaChunk)
		copy(c.state, o.states.row(first+i))
		c.solve()
		c.back(o.do.d[c.row*o.do.stride+head*c.dv:], o.do.stride)
		a, t := o.store(c, head)
		dLogA, ddt = dLogA+a, ddt+t
	}
	part := o.parts[seq*2*o.d.ValueHeads:]
	part[head], part[o.d.ValueHeads+head] = dLogA, ddt
}

// store writes the gradients of a chunk: through β, g and l2. It returns what logA and dt get.
func (o *deltaOp) store(c *deltaChunk, head int) (dLogA, ddt float64) {
	key, value, rate := head/o.inside*c.dk, 2*o.keyCols+head*c.dv, math.Exp(float64(o.logA[head]))
	for i := c.n - 1; i >= 0; i-- {
		row, dba := o.du.row(c.row+i), o.dba.row(c.row+i)
		c.unitGrad(row[key:], c.dq[i*c.dk:(i+1)*c.dk], c.q[i*c.dk:(i+1)*c.dk], c.rq[i], 1/math.Sqrt(float64(c.dk)))
		c.unitGrad(row[o.keyCols+key:], c.dkey[i*c.dk:(i+1)*c.dk], c.k[i*c.dk:(i+1)*c.dk], c.rk[i], 1)
		copy(row[value:value+c.dv], c.y[i*c.dv:(i+1)*c.dv])
		dba[head] = float32(c.dbeta[i] * c.beta[i] * (1 - c.beta[i]))
		da := -c.dg[i] * rate / (1 + math.Exp(-c.soft[i]))
		dba[o.d.ValueHeads+head] = float32(da)
		dLogA += c.dg[i] * c.g[i]
		ddt += da
	}
	return dLogA, ddt
}
