package cpu

import (
	"math"

	"apr/device"
)

// routeOp chooses experts, and goes back through the choice. Probabilities are computed in float64 and rounded once.
type routeOp struct {
	r                   device.Routing
	chosen              []int32
	z, w, dz, dw, scale mat
	plain               []float32 // of the backward: weights before their scale, by choice
	next                []int32   // of each expert: its next slot
	choose, back        func(worker, lo, hi int)
}

// Route chooses experts by the logits z, and writes the tensors of r and the weights w.
func (s *Stream) Route(w, z, scale device.Tensor, r device.Routing) {
	device.CheckRoute(w, z, scale, r)
	if !s.begin() {
		return
	}
	o := &s.ops.route
	o.r, o.chosen, o.z, o.w, o.scale = r, ints(r.Chosen), floats(z), floats(w), optional(scale)
	s.split(o.z.rows, rowGrain(o.z.cols), o.choose)
	o.sort()
	s.end(device.OpRoute, 0)
}

// rows chooses the experts of tokens [lo,hi) and weighs them.
func (o *routeOp) rows(_, lo, hi int) {
	for t := lo; t < hi; t++ {
		z, w := o.z.row(t), o.w.row(t)
		chosen := o.chosen[t*o.r.Active:][:o.r.Active]
		bad := largestOf(chosen, z)
		lse := o.logSumExp(z, chosen)
		for s, e := range chosen {
			p := math.Exp(float64(z[e]) - lse)
			if o.scale.cols > 0 {
				p *= float64(o.scale.row(0)[e])
			}
			if bad {
				p = math.NaN()
			}
			w[s] = float32(p)
		}
	}
}

// largestOf fills chosen with the indices of the largest values of z in falling order, of equal ones the lowest first. It
// reports whether z has a NaN, which counts as −∞.
func largestOf(chosen []int32, z []float32) (bad bool) {
	value := func(v float32) float32 {
		if v != v {
			return float32(math.Inf(-1))
		}
		return v
	}
	n := 0
	for e, v := range z {
		bad = bad || v != v
		v = value(v)
		at := n
		for at > 0 && v > value(z[chosen[at-1]]) {
			at--
		}
		if at == len(chosen) {
			continue
		}
		n = min(n+1, len(chosen))
		copy(chosen[at+1:n], chosen[at:])
		chosen[at] = int32(e)
	}
	return bad
}

// logSumExp returns the logarithm of the sum that the probabilities of a token are divided by: over the chosen logits with Renorm,
// else over all.
func (o *routeOp) logSumExp(z []float32, chosen []int32) float64 {
	top, sum := float64(z[chosen[0]]), 0.0
	if o.r.Renorm {
		for _, e := range chosen {
			sum += math.Exp(float64(z[e]) - top)
		}
	} else {
		for _, v := range z {
			sum += math.Exp(float64(v) - top)
		}
	}
	return top + math.Log(sum)
}

// sort gives each choice its slot: by expert, and within one by token.
func (o *routeOp) sort() {
	starts, slots, rows := ints(o.r.Starts), ints(o.r.Slots), ints(o.r.Rows)
	clear(starts)
	for _, e := range o.chosen {
		starts[e+1]++
	}
	for e := range o.r.Experts {
		starts[e+1] += starts[e]
	}
	o.next = append(o.next[:0], starts[:o.r.Experts]...)
	for i, e := range o.chosen {
		slots[i] = o.next[e]
		rows[o.next[e]] = int32(i / o.r.Active)
		o.next[e]++
	}
}

// RouteBackward writes dz = p·(d − Σ p·d) with d = dw·scale, and adds dscale[e] += Σ p·dw.
func (s *Stream) RouteBackward(dz, dscale, dw, z, scale device.Tensor, r device.Routing) {
	device.CheckRouteBackward(dz, dscale, dw, z, scale, r)
	if !s.begin() {
		return
	}
	o := &s.ops.route
	o.r, o.chosen, o.z, o.dz, o.dw, o.scale = r, ints(r.Chosen), floats(z), floats(dz), floats(dw), optional(scale)
	o.plain = grow(o.plain, len(o.chosen))
	s.split(o.z.rows, rowGrain(o.z.cols), o.back)
	if !dscale.IsZero() {
		sum := floats(dscale)
		for i, e := range o.chosen {
			sum.row(0)[e] += o.plain[i] * o.dw.row(i / r.Active)[i%r.Active]
		}
	}
	s.end(device.OpRouteBackward, 0)
}

// backward goes back through the weights of tokens [lo,hi).
func (o *routeOp) backward(_, lo, hi int) {
	k := o.r.Active
	for t := lo; t < hi; t++ {
		z, dz, dw, chosen := o.z.row(t), o.dz.row(t), o.dw.row(t), o.chosen[t*k:][:k]
		plain := o.plain[t*k:][:k]
		lse, mean := o.logSumExp(z, chosen), 0.0
		for s, e := range chosen {
			p := math.Exp(float64(z[e]) - lse)
			plain[s] = float32(p)
			mean += p * o.slope(dw[s], e)
		}
		clear(dz)
		if !o.r.Renorm {
			for e, v := range z {
				dz[e] = float32(-math.Exp(float64(v)-lse) * mean)
			}
		}
		for s, e := range chosen {
			dz[e] = float32(math.Exp(float64(z[e])-lse) * (o.slope(dw[s], e) - mean))
		}
	}
}

// slope is the gradient over a weight before its scale.
func (o *routeOp) slope(dw float32, e int32) float64 {
	if o.scale.cols > 0 {
		return float64(dw) * float64(o.scale.row(0)[e])
	}
	return float64(dw)
}

// combineOp sums the slots of tokens, and goes back.
type combineOp struct {
	s         *Stream
	y, x, w   mat
	dx, dw    mat
	slots     []int32
	active    int
	add       bool
	sum, back func(worker, lo, hi int)
}

// Combine: y[t] (=|+=) Σ_s w[t,s]·x[Slots[t·Active+s]], in the order of s.
func (s *Stream) Combine(y, x, w device.Tensor, r device.Routing, add bool) {
	device.CheckCombine(y, x, w, r)
	if !s.begin() {
		return
	}
	o := &s.ops.combine
	o.y, o.x, o.w, o.slots, o.active, o.add = floats(y), floats(x), optional(w), ints(r.Slots), r.Active, add
	s.split(o.y.rows, rowGrain(o.y.cols*r.Active), o.sum)
	s.end(device.OpCombine, 0)
}

// tokens sums the slots of tokens [lo,hi).
func (o *combineOp) tokens(worker, lo, hi int) {
	term := grow(o.s.local[worker].row, o.y.cols)
	o.s.local[worker].row = term
	for t := lo; t < hi; t++ {
		y := o.y.row(t)
		for s, j := range o.slots[t*o.active:][:o.active] {
			copy(term, o.x.row(int(j)))
			if o.w.cols > 0 {
				o.s.isa.Scale(term, o.w.row(t)[s])
			}
			if s == 0 && !o.add {
				copy(y, term)
			} else {
				o.s.isa.Add(y, term)
			}
		}
	}
}

// CombineBackward writes dx[j] = w[t,s]·dy[t] and dw[t,s] = dy[t]·x[j], j = Slots[t·Active+s]; dx may be x.
func (s *Stream) CombineBackward(dx, dw, dy, x, w device.Tensor, r device.Routing) {
	device.CheckCombineBackward(dx, dw, dy, x, w, r)
	if !s.begin() {
		return
	}
	o := &s.ops.combine
	o.dx, o.dw, o.y, o.x, o.w, o.slots, o.active = floats(dx), floats(dw), floats(dy), floats(x), floats(w), ints(r.Slots), r.Active
	s.split(o.y.rows, rowGrain(o.y.cols*r.Active), o.back)
	s.end(device.OpCombineBackward, 0)
}

func (o *combineOp) backward(_, lo, hi int) {
	for t := lo; t < hi; t++ {
		dy := o.y.row(t)
		for s, j := range o.slots[t*o.active:][:o.active] {
			o.dw.row(t)[s] = float32(o.s.isa.Dot(dy, o.x.row(int(j))))
			dx := o.dx.row(int(j))
			copy(dx, dy)
			o.s.isa.Scale(dx, o.w.row(t)[s])
		}
	}
}
