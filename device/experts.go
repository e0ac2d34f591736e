package device

import (
	"math"

	"apr/tensor"
)

// Routing says which of Experts networks serve each of n tokens, Active of them a token. Route writes its tensors, on the
// device: which experts were chosen never comes to the host.
//
// A slot is a token at one of its experts. Slots are sorted by expert, and those of an expert by token: the rows that an
// expert's matrices multiply are neighbours.
type Routing struct {
	Experts, Active int
	// Renorm: the weights of a token are the softmax of its chosen logits, which are the chosen probabilities divided by their
	// sum; else they are those of the chosen in the softmax of all logits.
	Renorm bool
	Chosen Tensor // I32 [n·Active, 1]: element t·Active+s is the s-th expert of token t
	Slots  Tensor // I32 [n·Active, 1]: and this its slot
	Rows   Tensor // I32 [n·Active, 1]: the token of each slot
	Starts Tensor // I32 [Experts+1, 1]: expert e has the slots [Starts[e], Starts[e+1])
}

// MaxExperts bounds the experts of a layer.
const MaxExperts = 1 << 12

const (
	noRouting = "experts and choices do not fit the logits"
	noExperts = "the weight has not the same number of rows for each expert"
)

// routing demands a routing of n tokens.
func routing(op Op, r Routing, n int) {
	need(r.Active > 0 && r.Active <= r.Experts && r.Experts <= MaxExperts, op, noRouting)
	for _, t := range []Tensor{r.Chosen, r.Slots, r.Rows} {
		ids(op, t, n*r.Active)
	}
	ids(op, r.Starts, r.Experts+1)
}

// slotted is routing for operations on slots, of which there are rows.
func slotted(op Op, r Routing, rows int) {
	need(r.Active > 0 && rows%r.Active == 0, op, wrongShapes)
	routing(op, r, rows/r.Active)
}

// CheckRoute checks a call of Route.
func CheckRoute(w, z, scale Tensor, r Routing) {
	const op = OpRoute
	views(op, w, z)
	optional(op, scale)
	typed(op, tensor.F32, noFloat32, w, z, scale)
	need(z.Cols == r.Experts, op, noRouting)
	routing(op, r, z.Rows)
	shaped(op, z.Rows, r.Active, w)
	vectors(op, r.Experts, scale)
}

// CheckRouteBackward checks a call of RouteBackward.
func CheckRouteBackward(dz, dscale, dw, z, scale Tensor, r Routing) {
	const op = OpRouteBackward
	views(op, dz, dw, z)
	optional(op, dscale, scale)
	need(dscale.IsZero() == scale.IsZero(), op, "dscale and scale come together")
	floats(op, dz)
	typed(op, tensor.F32, noFloat32, dw, z, scale, dscale)
	need(z.Cols == r.Experts, op, noRouting)
	routing(op, r, z.Rows)
	shaped(op, z.Rows, r.Experts, dz)
	shaped(op, z.Rows, r.Active, dw)
	vectors(op, r.Experts, scale, dscale)
}

// experts demands a weight of matrices [out, in] below each other.
func experts(op Op, w Weight, r Routing, out, in int) {
	need(r.Experts > 0 && w.Rows() == r.Experts*out, op, noExperts)
	need(w.Cols() == in, op, wrongShapes)
}

// CheckGroupedMatMul checks a call of GroupedMatMul.
func CheckGroupedMatMul(y, x Tensor, w Weight, bias Tensor, r Routing) {
	const op = OpGroupedMatMul
	need(w != nil, op, noWeight)
	views(op, y, x)
	optional(op, bias)
	floats(op, y, x)
	typed(op, tensor.F32, noFloat32, bias)
	need(x.Rows == y.Rows, op, wrongShapes)
	experts(op, w, r, y.Cols, x.Cols)
	slotted(op, r, x.Rows)
	shaped(op, r.Experts, y.Cols, bias)
}

// CheckGroupedInputGrad checks a call of GroupedInputGrad.
func CheckGroupedInputGrad(dx, dy Tensor, w Weight, r Routing) {
	const op = OpGroupedInputGrad
	need(w != nil, op, noWeight)
	views(op, dx, dy)
	floats(op, dx, dy)
	need(dx.Rows == dy.Rows, op, wrongShapes)
	experts(op, w, r, dy.Cols, dx.Cols)
	slotted(op, r, dx.Rows)
}

// CheckGroupedWeightGrad checks a call of GroupedWeightGrad.
func CheckGroupedWeightGrad(dw, dbias, dy, x Tensor, r Routing) {
	const op = OpGroupedWeightGrad
	views(op, dw, dy, x)
	optional(op, dbias)
	floats(op, dy, x)
	typed(op, tensor.F32, noFloat32, dw, dbias)
	need(dy.Rows == x.Rows && dw.Cols == x.Cols && dw.Rows == r.Experts*dy.Cols, op, wrongShapes)
	slotted(op, r, x.Rows)
	shaped(op, r.Experts, dy.Cols, dbias)
}

// CheckCombine checks a call of Combine.
func CheckCombine(y, x, w Tensor, r Routing) {
	const op = OpCombine
	views(op, y, x)
	optional(op, w)
	combined(op, y, x, w, r)
}

// CheckCombineBackward checks a call of CombineBackward.
func CheckCombineBackward(dx, dw, dy, x, w Tensor, r Routing) {
	const op = OpCombineBackward
	views(op, dx, dw, dy, x, w)
	combined(op, dy, x, w, r)
	typed(op, x.DType, wrongTypes, dx)
	typed(op, tensor.F32, noFloat32, dw)
	shaped(op, x.Rows, x.Cols, dx)
	shaped(op, dy.Rows, r.Active, dw)
}

// CheckCountSlots checks a call of CountSlots.
func CheckCountSlots(c Tensor, r Routing) {
	const op = OpCountSlots
	views(op, c)
	typed(op, tensor.F32, noFloat32, c)
	need(r.Experts > 0 && r.Experts <= MaxExperts, op, noRouting)
	ids(op, r.Starts, r.Experts+1)
	vectors(op, r.Experts, c)
}

// CheckBalanceBackward checks a call of BalanceBackward.
func CheckBalanceBackward(dz, z, c Tensor, f float64) {
	const op = OpBalanceBackward
	views(op, dz, z, c)
	floats(op, dz)
	typed(op, tensor.F32, noFloat32, z, c)
	need(!math.IsNaN(f) && !math.IsInf(f, 0), op, "the factor is not finite")
	need(z.Cols > 0 && z.Cols <= MaxExperts, op, noRouting)
	shaped(op, z.Rows, z.Cols, dz)
	vectors(op, z.Cols, c)
}

// combined is what Combine and its backward have in common: y of tokens, x of slots.
func combined(op Op, y, x, w Tensor, r Routing) {
	floats(op, x)
	typed(op, x.DType, wrongTypes, y)
	typed(op, tensor.F32, noFloat32, w)
	need(x.Rows == y.Rows*r.Active && x.Cols == y.Cols, op, wrongShapes)
	routing(op, r, y.Rows)
	shaped(op, y.Rows, r.Active, w)
}

// ExpertNets are the matrices of a layer's experts, as GroupedMatMul takes them, with biases or the zero Tensor.
type ExpertNets struct {
	Gate, Up, Down             Weight
	GateBias, UpBias, DownBias Tensor
	Act                        Activation
}

// ExpertRunner is a Stream that may compute experts without a copied row of input for each slot.
type ExpertRunner interface {
	// RunExperts writes ys[j] = Down_e·glu[j] with glu[j] = act(g)·u, gateUp[j] = [g|u], g = Gate_e·y[Rows[j]] and
	// u = Up_e·y[Rows[j]], e the expert of slot j, each with its bias: what Gather, GroupedMatMul twice, GLU and
	// GroupedMatMul write. glu need not be written where no gradient comes through the matrices. RunExperts reports
	// false, and has done nothing, if the device has no such operation for these.
	RunExperts(ys, glu, gateUp, y Tensor, e ExpertNets, r Routing) bool
}

// CheckRunExperts checks a call of ExpertRunner.RunExperts.
func CheckRunExperts(ys, glu, gateUp, y Tensor, e ExpertNets, r Routing) {
	const op = OpGroupedMatMul
	need(e.Gate != nil && e.Up != nil && e.Down != nil, op, noWeight)
	views(op, ys, glu, gateUp, y)
	optional(op, e.GateBias, e.UpBias, e.DownBias)
	floats(op, ys, glu, gateUp, y)
	typed(op, tensor.F32, noFloat32, e.GateBias, e.UpBias, e.DownBias)
	routing(op, r, y.Rows)
	shaped(op, y.Rows*r.Active, ys.Cols, ys)
	shaped(op, y.Rows*r.Active, glu.Cols, glu)
	shaped(op, y.Rows*r.Active, 2*glu.Cols, gateUp)
	experts(op, e.Gate, r, glu.Cols, y.Cols)
	experts(op, e.Up, r, glu.Cols, y.Cols)
	experts(op, e.Down, r, ys.Cols, glu.Cols)
	shaped(op, r.Experts, glu.Cols, e.GateBias, e.UpBias)
	shaped(op, r.Experts, ys.Cols, e.DownBias)
	activation(op, e.Act)
}

// Mixer is a Stream that may compute the experts of a few tokens without a row of input for each of their slots.
type Mixer interface {
	// MixExperts writes dst[t] = Σ_s w[t,s]·Down_e·glu[j], glu[j] = act(Gate_e·y[t])·(Up_e·y[t]), j = Slots[t·Active+s], e the
	// expert of slot j, each with its bias, or with add dst[t] += it, in the bits of Gather, GroupedMatMul, GLU and
	// Combine. It reports false, and has done nothing, if the device has no such operation for these.
	MixExperts(dst, glu, y, w Tensor, e ExpertNets, r Routing, add bool) bool
}

// CheckMixExperts checks a call of Mixer.MixExperts.
func CheckMixExperts(dst, glu, y, w Tensor, e ExpertNets, r Routing) {
	const op = OpGroupedMatMul
	need(e.Gate != nil && e.Up != nil && e.Down != nil, op, noWeight)
	views(op, dst, glu, y, w)
	optional(op, e.GateBias, e.UpBias, e.DownBias)
	floats(op, dst, glu, y)
	typed(op, tensor.F32, noFloat32, w, e.GateBias, e.UpBias, e.DownBias)
	routing(op, r, y.Rows)
	shaped(op, y.Rows, dst.Cols, dst)
	shaped(op, y.Rows, r.Active, w)
	shaped(op, y.Rows*r.Active, glu.Cols, glu)
	experts(op, e.Gate, r, glu.Cols, y.Cols)
	experts(op, e.Up, r, glu.Cols, y.Cols)
	experts(op, e.Down, r, dst.Cols, glu.Cols)
	shaped(op, r.Experts, glu.Cols, e.GateBias, e.UpBias)
	shaped(op, r.Experts, dst.Cols, e.DownBias)
	activation(op, e.Act)
}
