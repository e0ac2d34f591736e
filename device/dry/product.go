package dry

import (
	"apr/device"
	"apr/internal/fault"
)

// Multiplier is a Stream that runs a recorded product and nothing beside it: matrices are expanded already and activations
// are rounded already, and of the result is made what the device's product makes of it in its own epilogue.
type Multiplier interface {
	device.Stream
	// PrepareProducts loads what Multiply needs for these products.
	PrepareProducts(all []Op) error
	// Multiply runs o, a product, over operands of its shape.
	Multiply(o Op, m Operands)
}

// Operands are what a product reads and writes: views of memory of any content.
type Operands struct {
	Out device.Tensor // y[M,N]
	// In is x[M,K] or dy[M,K], of MatMulWeightGrad dy[K,M]; Other is W[N,K], of MatMulInputGrad W[K,N], of MatMulWeightGrad
	// x[K,N]. Both are of the type of activations. With Op.FP8 an element is two numbers in e4m3: [M,K/2] and [N,K/2].
	In, Other           device.Tensor
	InScale, OtherScale device.Tensor // with Op.FP8, of their rows: [M,1] and [N,1], float32
	Bias                device.Tensor // with Op.Bias: [1,N], float32
	Gated               device.Tensor // of MatMulGLU: m[M,N/2] of the type of Out
}

// NotAlone is the error of a stream that was asked to Multiply an operation for which it has no product.
func NotAlone(o Op) error {
	return fault.New(fault.Unavailable, "%v is no product that this device runs alone", o.Kind).WithID("E-DRY-004")
}
