package ref

import (
	"math"

	"apr/arch"
	"apr/device"
)

// attention: project, norm, rotate, scale, attend, gate, project.
func (p *Pass) attention(i int, x *node) *node {
	a, t := p.net.Arch.Layers[i].Attn, &p.tape
	project := func(which string) *node {
		var bias *node
		if a.QKVBias {
			bias = p.at(i, "self_attn."+which+"_proj.bias")
		}
		return t.linear(x, p.at(i, "self_attn."+which+"_proj.weight"), bias)
	}
	if p.net.Arch.OwnKV(i) { // v, k, q: their gradients over x are added in the order q, k, v
		var k, v *node
		if !a.VIsK {
			v = project("v")
		}
		k = project("k")
		finished := p.turn(i, k, "k")
		if a.VIsK {
			v = k
		}
		if a.VIsK && p.net.planted.vOfNormedK {
			v = finished
		}
		if a.VNorm {
			v = t.norm(v, nil, a.HeadDim, p.net.Arch.Eps, 0)
		}
		p.kv[i] = [2]*node{finished, v}
	}
	q := project("q")
	var gate *node
	if a.Gate {
		q, gate = t.halves(q, a.HeadDim)
	}
	q = p.turn(i, q, "q")
	if a.QBeta > 0 {
		q = t.mul(q, &node{Mat: p.qScale(a)})
	}
	var sinks *node
	if a.Sinks {
		sinks = p.at(i, "self_attn.sinks")
	}
	from := p.kv[a.KVFrom]
	p.maps[i] = mapNodes{q, from[0], sinks}
	o := p.attend(q, from[0], from[1], sinks, a)
	if gate != nil {
		o = t.mul(o, t.sigmoid(gate))
	}
	var bias *node
	if a.OBias {
		bias = p.at(i, "self_attn.o_proj.bias")
	}
	return t.linear(o, p.at(i, "self_attn.o_proj.weight"), bias)
}

// mapNodes are the operands of a layer's attention that decide its map: finished q and k, and sinks or nil.
type mapNodes struct{ q, k, sinks *node }

// MapGrads are gradients over the operands of a Map.
type MapGrads struct{ Q, K, Sinks Mat }

// Map returns the operands of the attention map of a layer, which has attention.
func (p *Pass) Map(layer int) Map {
	a, of := p.net.Arch.Layers[layer].Attn, p.maps[layer]
	m := Map{Q: of.q.Mat, K: of.k.Mat, First: p.starts, Attn: device.Attn{
		Batch: p.batch, QLen: p.seq, KLen: p.seq, KStride: p.seq, Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim, Window: a.Window, Cap: a.Cap, Scale: a.Scale,
	}}
	if of.sinks != nil {
		m.Sinks = of.sinks.V
	}
	return m
}

// turn normalises and rotates q or k of layer i.
func (p *Pass) turn(i int, x *node, which string) *node {
	a := p.net.Arch.Layers[i].Attn
	norm := func(x *node) *node {
		if a.QKNorm == arch.NoQKNorm {
			return x
		}
		width := a.HeadDim
		if a.QKNorm == arch.RowNorm {
			width = x.Cols
		}
		return p.tape.norm(x, p.at(i, "self_attn."+which+"_norm.weight"), width, p.net.Arch.Eps, p.net.Arch.NormOffset)
	}
	rotate := func(x *node) *node {
		if r, ok := p.net.Arch.Rope(i); ok {
			return p.rotate(x, r)
		}
		return x
	}
	if p.net.planted.ropeBeforeNorm {
		return norm(rotate(x))
	}
	return rotate(norm(x))
}

// rotate turns the pairs (j, j+Width/2) of each head by the position times their frequency.
func (p *Pass) rotate(x *node, r arch.Rope) *node {
	f := r.Frequencies(p.seq)
	turn := func(x Mat, sign float64) Mat {
		y := x.Clone()
		for n := range x.Rows {
			if stale := p.net.planted.stale; stale > 0 {
				f = r.Frequencies(max(stale, n%p.seq+1))
			}
			for head := 0; head < x.Cols; head += r.HeadDim {
				for j := range r.Width / 2 {
					sin, cos := math.Sincos(sign * float64(p.position(n)) * f[j])
					sin, cos = r.Attention*sin, r.Attention*cos
					a, b := x.Row(n)[head+j], x.Row(n)[head+j+r.Width/2]
					y.Row(n)[head+j], y.Row(n)[head+j+r.Width/2] = a*cos-b*sin, b*cos+a*sin
				}
			}
		}
		return y
	}
	return p.tape.of(turn(x.Mat, 1), func(dy Mat) { x.grad().Add(turn(dy, -1)) })
}

// position returns that of row n in its document.
func (p *Pass) position(n int) int { return sequences{p.seq, p.starts}.position(n) }

// qScale returns 1+β·ln(1+⌊position/L⌋) of each row.
func (p *Pass) qScale(a arch.Attention) Mat {
	s := New(p.batch*p.seq, 1)
	for n := range s.V {
		periods := float64(p.position(n)) / float64(a.QLength)
		if !p.net.planted.smoothQScale {
			periods = math.Floor(periods)
		}
		s.V[n] = 1 + a.QBeta*math.Log(1+periods)
	}
	return s
}

// halves splits rows of [q | gate] per head of d values.
func (t *tape) halves(x *node, d int) (q, gate *node) {
	take := func(from int) *node {
		y := New(x.Rows, x.Cols/2)
		at := func(i int) int { return i/d*2*d + from*d + i%d } // of x, for value i of y: rows are whole numbers of heads
		for i := range y.V {
			y.V[i] = x.V[at(i)]
		}
		return t.of(y, func(dy Mat) {
			for i, v := range dy.V {
				x.grad().V[at(i)] += v
			}
		})
	}
	return take(0), take(1)
}

// attend: o = softmax(cap(Scale·q·k) + mask, sink)·v. A query at i sees i−Window < j ≤ i. With P the probabilities and
// D = dO·O, ds = P(dO·v − D)·(1−(s/cap)²), and for the sink's own probability db = −P·D.
func (p *Pass) attend(q, k, v, sinks *node, a arch.Attention) *node {
	o := New(q.Rows, q.Cols)
	p.queries(q.Mat, k.Mat, sinks, a, func(n, h int, s seen) {
		for j, prob := range s.probs {
			for c, x := range headOf(v.Row(s.first+j), s.kv, a.HeadDim) {
				o.Row(n)[h*a.HeadDim+c] += prob * x
			}
		}
	})
	return p.tape.of(o, func(do Mat) {
		p.queries(q.Mat, k.Mat, sinks, a, func(n, h int, s seen) {
			d := headOf(do.Row(n), h, a.HeadDim)
			qn, dqn := headOf(q.Row(n), h, a.HeadDim), headOf(q.grad().Row(n), h, a.HeadDim)
			mean := dot(d, headOf(o.Row(n), h, a.HeadDim))
			for j, prob := range s.probs {
				row := s.first + j
				ds := prob * (dot(d, headOf(v.Row(row), s.kv, a.HeadDim)) - mean) * s.slope[j] * a.Scale
				kj, dkj := headOf(k.Row(row), s.kv, a.HeadDim), headOf(k.grad().Row(row), s.kv, a.HeadDim)
				dvj := headOf(v.grad().Row(row), s.kv, a.HeadDim)
				for c := range a.HeadDim {
					dvj[c] += prob * d[c]
					dqn[c] += ds * kj[c]
					dkj[c] += ds * qn[c]
				}
			}
			if sinks != nil {
				sinks.grad().V[h] -= s.sink * mean
			}
		})
	})
}

// seen is what one query head sees: probabilities of the rows from first on, the slope of the cap at each score, the
// probability of the sink, and the key-value head.
type seen struct {
	first        int
	probs, slope []float64
	sink         float64
	kv           int
}

// queries calls f for every row n of q and head h.
func (p *Pass) queries(q, k Mat, sinks *node, a arch.Attention, f func(n, h int, s seen)) {
	for n := range q.Rows {
		begin, i := n-n%p.seq, n%p.seq
		first := 0
		if a.Window > 0 {
			first = max(0, i-a.Window+1)
		}
		if p.starts != nil {
			first = max(first, p.starts[n])
		}
		for h := range a.Heads {
			s := seen{first: begin + first, kv: h * a.KVHeads / a.Heads, probs: make([]float64, i-first+1), slope: make([]float64, i-first+1)}
			for j := range s.probs {
				x := dot(headOf(q.Row(n), h, a.HeadDim), headOf(k.Row(s.first+j), s.kv, a.HeadDim)) * a.Scale
				s.slope[j] = 1
				if a.Cap > 0 {
					t := math.Tanh(x / a.Cap)
					x = a.Cap * t
					if !p.net.planted.noCapSlope {
						s.slope[j] = 1 - t*t
					}
				}
				s.probs[j] = x
			}
			lse := logSumExp(s.probs)
			if sinks != nil {
				b := sinks.V[h]
				if p.net.planted.sinkScaled {
					b *= a.Scale
				}
				lse = logSumExp(append(s.probs[:len(s.probs):len(s.probs)], b))
				s.sink = math.Exp(b - lse)
			}
			for j, x := range s.probs {
				s.probs[j] = math.Exp(x - lse)
			}
			f(n, h, s)
		}
	}
}
