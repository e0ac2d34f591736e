package ref

import (
	"math"
	"slices"
)

// router is what a layer's router has said.
type router struct {
	layer  int
	z      *node // [batch·seq, experts]
	chosen []int
}

// Routers calls f for each layer with experts, with its logits [batch·seq, experts] and the choices, as in Routed.
func (p *Pass) Routers(f func(layer int, z Mat, chosen []int)) {
	for _, r := range p.routers {
		f(r.layer, r.z.Mat, r.chosen)
	}
}

// shares returns how many slots each expert has over all layers, and the positions of all layers.
func (p *Pass) shares() (c Mat, n float64) {
	c = New(1, p.routers[0].z.Cols)
	for _, r := range p.routers {
		for _, e := range r.chosen {
			c.V[e]++
		}
		n += float64(r.z.Rows)
	}
	return c, n
}

// Aux returns the load-balance loss of the forward, over the positions of all layers with experts together: E·Σ_e f_e·P_e, f_e the mean
// over positions of whether e was chosen, P_e that of its probability in the softmax of all logits. f has no gradient.
func (p *Pass) Aux() float64 {
	c, n := p.shares()
	sum := 0.0
	for _, r := range p.routers {
		sum += Balance(r.z.Mat, c, 1)
	}
	return float64(c.Cols) * sum / (n * n)
}

// balanced lets the backward add the gradient of Net.Balance·Aux to that over the logits of a router.
func (p *Pass) balanced(z *node) {
	p.tape.steps = append(p.tape.steps, func() {
		if w := p.net.Balance; w != 0 {
			c, n := p.shares()
			z.grad().Add(BalanceBackward(z.Mat, c, w*float64(c.Cols)/(n*n)))
		}
	})
}

// Ties says how choices of experts differ from those of the largest logits.
type Ties struct {
	Others, All int     // choices that are not among the largest logits; all choices
	Farthest    float64 // how far below the least of those such a logit is, of the largest |logit| of its position
}

// AsChosen computes a forward pass of batch rows of ids in float64 with given experts: chosen has, by layer, the active
// experts of each position, as Chosen does. A device that rounds may break a tie between two router logits the other
// way, and outputs then differ as much as the experts do. Ties say how many choices are others than those of the
// largest logits, and how far from a tie they were.
func (m *Net) AsChosen(ids []int, batch int, chosen map[int][]int) (p *Pass, t Ties) {
	net := *m
	net.Chosen = chosen
	p = net.Forward(ids, batch)
	p.Routers(func(layer int, z Mat, got []int) {
		k := m.Arch.Layers[layer].FFN.MoE.Active
		own := Choose(z, k)
		for i := range z.Rows {
			row, largest := z.Row(i), 0.0
			for _, v := range row {
				largest = math.Max(largest, math.Abs(v))
			}
			mine := own[i*k : (i+1)*k]
			for _, e := range got[i*k : (i+1)*k] {
				t.All++
				if !slices.Contains(mine, e) {
					t.Others++
					t.Farthest = math.Max(t.Farthest, (row[mine[k-1]]-row[e])/largest)
				}
			}
		}
	})
	return p, t
}
