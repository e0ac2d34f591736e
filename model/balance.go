package model

import (
	"apr/arch"
	"apr/device"
	"apr/internal/fault"
	"apr/tensor"
)

// The load-balance loss of a forward over n positions is that of Switch Transformers (arXiv:2101.03961) as transformers has it, over
// the positions of all L layers with experts together:
//
//	aux = E·Σ_e f_e·P_e,  f_e = slots of e / (L·n),  P_e = Σ p[e] / (L·n)
//
// p the softmax of all logits of a router, whatever the weights of the chosen are. f has no gradient. It is k where experts have equal
// shares, and at most E. Backward adds the gradient of weight·n·aux, so that the forwards of a step are weighed by their positions.

// Balance makes Backward add the gradients of the load-balance loss to those of routers; weight is of one position, 0 for none. It
// refuses a model without experts, or whose layers have different numbers of them.
func (m *Model) Balance(weight float64) error {
	experts := 0
	for i := range m.layers {
		moe := m.layers[i].FFN.MoE
		switch {
		case moe == (arch.MoE{}):
		case experts != 0 && moe.Experts != experts:
			return fault.New(fault.Unavailable, "a load-balance loss of layers with %d and with %d experts", experts, moe.Experts).WithID("E-MODEL-033")
		default:
			experts = moe.Experts
		}
	}
	if experts == 0 && weight != 0 {
		return fault.New(fault.Usage, "a load-balance loss of a model without experts").WithID("E-MODEL-034")
	}
	m.balance = weight
	return nil
}

// countSlots takes the sums over layers of the slots of each expert, if Backward will ask for them.
func (m *Model) countSlots(s device.Stream, take allocator) device.Tensor {
	if _, experts := m.Mixtures(); experts > 0 && m.balance != 0 {
		c := take("routing.counts", tensor.F32, 1, experts)
		s.Zero(c)
		return c
	}
	return device.Tensor{}
}

// balanceGrad adds the gradient of the load-balance loss to dz, that over a router's logits.
func (g *backward) balanceGrad(e *expertActs, dz device.Tensor) {
	if g.v.counts.IsZero() {
		return
	}
	layers, experts := g.m.Mixtures()
	l, n := float64(len(layers)), float64(g.w.n)
	g.s.BalanceBackward(dz, e.z, g.v.counts, g.m.balance*float64(experts)/(l*l*n))
}
