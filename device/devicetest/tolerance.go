package devicetest

import (
	"math"

	"apr/tensor"
)

// unit is half the distance between 1 and the next number of the type: the largest relative error of one rounding.
const (
	unitF32  = 0x1p-24
	unitBF16 = 0x1p-8
	unitTF32 = 0x1p-11 // of an operand that is rounded to nearest; one that is cut off errs by up to two
)

// Every comparison is |got−want| ≤ tol·max(|want|, rms(want)), with tol the sum of two parts:
//
//	own       what the operation's own functions and roundings may cost, whatever the length of its sums, in units of
//	          the activation type (float32 results: of float32)
//	3·√n      units of float32 for a sum of n products: rounding errors of a sum of n terms of random sign are a walk
//	          of n steps, about 0.4·√n units of the result's size in the middle, and five times that at the worst of
//	          10⁵ results, for the worst order (one after the other); sums are float32 on every device
//
// Sixteen units for own leave room for an exponential of a few units' error and a handful of operations around it. The
// CPU device needs half of what is allowed for products, norms and gated units, and an eighth for the loss, whose room is for
// processors with coarse exponentials.
//
// In bfloat16 one rounding of the output is one unit. Operands that are kept in bfloat16 (expanded weights, probabilities
// of attention) each err by 0.4 of a unit on average, which over a sum stays 0.4 units of the result's size: two at worst.
var own = map[string]map[tensor.DType]float64{
	"move":      {tensor.F32: 0, tensor.BF16: 0}, // copies: exact
	"embed":     {tensor.F32: 0, tensor.BF16: 1},
	"add":       {tensor.F32: 2, tensor.BF16: 2}, // sums of a few addends
	"rmsnorm":   {tensor.F32: 16, tensor.BF16: 2},
	"softcap":   {tensor.F32: 16, tensor.BF16: 2},
	"rotary":    {tensor.F32: 16, tensor.BF16: 2},
	"glu":       {tensor.F32: 16, tensor.BF16: 2},
	"gelu":      {tensor.F32: 32, tensor.BF16: 2}, // a unit of the cubic in its exponential, where that is 7, is seven of the result
	"route":     {tensor.F32: 16, tensor.BF16: 2},
	"combine":   {tensor.F32: 2, tensor.BF16: 2}, // sums of a few products
	"matmul":    {tensor.F32: 16, tensor.BF16: 3},
	"attention": {tensor.F32: 16, tensor.BF16: 4}, // scores, exponentials and two products
	"conv":      {tensor.F32: 16, tensor.BF16: 2},
	"delta":     {tensor.F32: 32, tensor.BF16: 4},  // norms, exponentials, and differences from what the state says
	"lossgrad":  {tensor.F32: 32, tensor.BF16: 2},  // of its terms; exponentials of differences of tens
	"adamw":     {tensor.F32: 16, tensor.BF16: 16}, // master weights are float32 on every device
}

// tol returns the tolerance of op for a result of type d with sums of n products.
func tol(op string, d tensor.DType, n int) float64 {
	table, ok := own[op]
	if !ok {
		panic("devicetest: no tolerance for " + op)
	}
	unit := float64(unitF32)
	if d == tensor.BF16 {
		unit = unitBF16
	}
	return table[d]*unit + 3*math.Sqrt(float64(n))*unitF32
}

// rounded is what products of operands that are rounded to tf32 (device.Info.TF32) may err by, in units of tf32, in
// results of float32.
//
// The roundings of two operands to nearest are 0.6 of a unit of a product, at random, and so of a sum's size: 2.6 at
// the worst of 10⁵ results, 2 of a single product. Libraries may cut operands off instead: 1.4 units to one side and
// 0.8 at random are 5.1 at the worst, and more of what is added to something of the other sign. Attention rounds to
// nearest, and probabilities and ds too. An operand of scores errs as those of products do, and what a score errs by,
// relative to scores of size 1, is the relative error of a probability.
var rounded = map[string]float64{"matmul": 8, "attention": 4, "scores": 3}

// rounding returns what is added to a tolerance of op for results of type d.
func (l *lab) rounding(op string, d tensor.DType) float64 {
	if !l.tf32 || d != tensor.F32 {
		return 0
	}
	return rounded[op] * unitTF32
}

// tol returns the tolerance of op on the lab's device.
func (l *lab) tol(op string, d tensor.DType, n int) float64 { return tol(op, d, n) + l.rounding(op, d) }

// lossTol is the absolute error allowed to the mean of CE, D or the entropy over rows: each is a difference of numbers
// like ln V or the spread of the logits, float32 within a row and added in float64, so it grows with its value.
func lossTol(want float64) float64 { return 24 * unitF32 * (1 + math.Abs(want)) }
