package model

import "apr/device"

// vector is a bias or the weight of a norm, [1, n] float32, and in a trainable model the parameter behind it. The zero
// vector is none.
//
// The weight of a norm is what the norm multiplies by: w+arch.Config.NormOffset, w being what files store.
type vector struct {
	value device.Tensor
	param *device.Param
}

// grad returns where the gradient is added; zero for none.
func (v vector) grad() device.Tensor {
	if v.param == nil {
		return device.Tensor{}
	}
	return v.param.Grad
}

// linear is a matrix [out, in] and perhaps a bias, and in a trainable model the parameters behind them.
type linear struct {
	weight device.Weight
	param  *device.Param
	bias   vector
}

// forward writes y = x·Wᵀ + b.
func (l linear) forward(s device.Stream, y, x device.Tensor) {
	s.MatMul(y, x, l.weight, l.bias.value, false)
}

// add adds y += x·Wᵀ + b.
func (l linear) add(s device.Stream, y, x device.Tensor) {
	s.MatMul(y, x, l.weight, l.bias.value, true)
}

// weightGrad adds dW += dyᵀ·x and db += Σ_rows dy.
func (l linear) weightGrad(s device.Stream, dy, x device.Tensor) {
	s.MatMulWeightGrad(l.param.Grad, l.bias.grad(), dy, x)
}

// inputGrad writes dx = dy·W, or adds it.
func (l linear) inputGrad(s device.Stream, dx, dy device.Tensor, add bool) {
	s.MatMulInputGrad(dx, dy, l.weight, add)
}
