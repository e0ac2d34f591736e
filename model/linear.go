package model

import "apr/device"

// vector is a bias or the weight of a norm, [1, n] float32, and in a trainable model the parameter behind it. The zero
// vector is none.
//
// The weight of a norm is what the norm multiplies by: w+arch.Config.NormOffset, w being what files store.
type vector struct {
	value  device.Tensor
	param  *device.Param
	unread device.Tensor // of a frozen vector: see Model.Adapt
}

// grad returns where the gradient is added; zero for none, and what nobody reads for a frozen vector.
func (v vector) grad() device.Tensor {
	if v.param == nil {
		return v.unread
	}
	return v.param.Grad
}

// linear is a matrix [out, in] and perhaps a bias, and in a trainable model the parameters behind them. Without a parameter it is
// frozen; lora are then the adapters beside it, or nil.
type linear struct {
	weight device.Weight
	param  *device.Param
	bias   vector
	lora   *lora
	u      device.Tensor // see keeping
}

// keeping is l whose adapters write what they make of their input to u [n, rank], for the backward, or read it there. Zero: the backward
// computes it again.
func (l linear) keeping(u device.Tensor) linear {
	l.u = u
	return l
}

// forward writes y = x·Wᵀ + b, and adds what adapters add.
func (l linear) forward(s device.Stream, y, x device.Tensor) { l.multiply(s, y, x, false) }

// add adds y += x·Wᵀ + b, and what adapters add.
func (l linear) add(s device.Stream, y, x device.Tensor) { l.multiply(s, y, x, true) }

func (l linear) multiply(s device.Stream, y, x device.Tensor, add bool) {
	s.MatMul(y, x, l.weight, l.bias.value, add)
	if l.lora != nil {
		l.lora.forward(s, y, device.Tensor{}, x, l.u, 0)
	}
}

// glu writes gu = x·Wᵀ and m = act(g)·u. Without keep the content of gu is undefined afterwards.
func (l linear) glu(s device.Stream, m, gu, x device.Tensor, act device.Activation, keep bool) {
	if l.lora == nil {
		s.MatMulGLU(m, gu, x, l.weight, act, keep)
		return
	}
	if l.lora.glu(s, m, gu, x, l.u, l.weight, act) {
		return
	}
	s.MatMul(gu, x, l.weight, device.Tensor{}, false)
	l.lora.forward(s, gu, m, x, l.u, act)
}

// weightGrad adds dW += dyᵀ·x and db += Σ_rows dy, or the gradients of the adapters. inputGrad follows it with the same dy.
func (l linear) weightGrad(s device.Stream, dy, x device.Tensor) {
	if l.param != nil {
		s.MatMulWeightGrad(l.param.Grad, l.bias.grad(), dy, x)
	}
	if l.lora != nil {
		l.lora.weightGrad(s, dy, x, l.u)
	}
}

// inputGrad writes dx = dy·W, or adds it.
func (l linear) inputGrad(s device.Stream, dx, dy device.Tensor, add bool) {
	s.MatMulInputGrad(dx, dy, l.weight, add)
	if l.lora != nil {
		l.lora.inputGrad(s, dx)
	}
}

// again writes to u what adapters make of x, where the product is not computed again.
func (l linear) again(s device.Stream, x, u device.Tensor) {
	if l.lora != nil {
		l.lora.again(s, x, u)
	}
}
