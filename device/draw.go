package device

import "apr/tensor"

// Two operations draw ids from a softmax where the logits are. They share neither arithmetic nor random numbers:
//
//	          DrawNext                                DrawMany
//	for       the next token of each text             a cache's draws from a teacher's distribution
//	draws     one id of a row, some excluded          n ids of a row, with replacement
//	returns   the id, and ln of its probability       the ids, and sums that give the entropy
//	logits    float32, read once: a text waits        read twice, weights in float64
//	numbers   one of SplitMix64 for each logit        one of Philox4x32-10 for each draw
//	ids       of two devices: alike but for rounding  of all devices: equal, given equal logits
//
// DrawNext cannot do what DrawMany does: a Gumbel number for each logit gives one id, and n ids would need n passes.
// DrawMany is slower for one id: its sums are exact, so that a cache does not depend on the device, by float64.

// NextDrawer is a Stream that draws the next token of each text on the device. A device whose streams are none has
// DrawsNext in its Lacks; logits are then drawn from on the host.
type NextDrawer interface {
	// DrawNext draws an id of softmax((x+never)/T) for each row of x [n,V] float32, from those that the row's limits
	// leave: with the uniform numbers u of NextUniform,
	//
	//	id = argmax_i (x[r,i] + never[i])/T − ln(−ln u(keys[r], i)),  the lowest of equal ones (Gumbel 1954),
	//
	// and writes it to ids [n,1] I32, and the id as a number and ln softmax(x)[id] to out [n,2] F32: NaN if the row has
	// NaN or +∞. never [1,V] F32, of 0 and −∞, or zero for none, keeps ids from being drawn and changes no
	// probability. keys [2n,1] I32 are the lower and the upper half of a 64-bit key for each row.
	//
	// limits [n,3] F32 has for each row its T > 0, p and k. Ids are in the order of x+never, from the largest on, the
	// lowest of equal ones first. k leaves the first k of them; 0, or V or more, leaves all. Then p leaves as many of
	// these, from the first on, as it takes for their weights exp((x+never)/T) to sum to the part p of the weights of all
	// of these, one at least; 0, or 1 or more, leaves them all. A sum of weights is within 1e-5 of the exact one: so near
	// to p, one id more or less may be left. limits may be zero: T = 1, and nothing is left out.
	DrawNext(ids, out, x, never, keys, limits Tensor)
}

// ManyDrawer is a Stream that draws many ids of each row on the device. A device whose streams are none has DrawsMany
// in its Lacks; logits are then drawn from on the host, by DrawManyRow, with the same ids.
type ManyDrawer interface {
	// DrawMany draws n = out.Cols−ManySums ids from softmax(z[r]/temperature) for each row, with replacement, and writes
	// to out[r] what DrawManyRow does. z [c,V] F32, out [c, n+ManySums] F32. keys [3c,1] I32 without gaps has for each
	// row the halves of its key, the lower first, and its position.
	DrawMany(out, z, keys Tensor, temperature float64)
}

// DrawsLoss is a Stream that computes the loss of a teacher of draws from the ids alone. A device whose streams are
// none has DrawsTeach in its Lacks; the teacher's logits are then written out for Loss.
type DrawsLoss interface {
	// LossOfDraws is Loss with forward KL from a teacher whose distribution, whatever spec.Temperature is, is the mean of
	// n draws: p(id) = how often it was drawn / n. drawn [c·n,1] I32 without gaps has those of row r from element r·n
	// on, the ids ascending. For the record's Agree the teacher's first id is the one drawn most often, the lowest of
	// equal ones.
	LossOfDraws(grad, z, drawn, targets Tensor, n int, spec LossSpec)
}

// NextLimits are the columns of DrawNext's limits: T, p and k.
const NextLimits = 3

// CheckDrawNext checks a call of NextDrawer.DrawNext.
func CheckDrawNext(drawn, out, x, never, keys, limits Tensor) {
	const op = OpDrawNext
	views(op, x, out)
	optional(op, never, limits)
	typed(op, tensor.F32, noFloat32, x, out, never, limits)
	ids(op, drawn, x.Rows)
	ids(op, keys, 2*x.Rows)
	shaped(op, x.Rows, 2, out)
	vectors(op, x.Cols, never)
	shaped(op, x.Rows, NextLimits, limits)
	need(x.Cols > 0 && x.Cols < 1<<24, op, "the columns are none, or cannot be told as a number")
}

// CheckDrawMany checks a call of ManyDrawer.DrawMany.
func CheckDrawMany(out, z, keys Tensor, temperature float64) {
	const op = OpDrawMany
	views(op, out, z)
	typed(op, tensor.F32, noFloat32, out, z)
	need(out.Rows == z.Rows && out.Cols > ManySums && out.Cols <= ManySums+MaxMany, op, wrongShapes)
	need(z.Cols > 0 && z.Cols <= 1<<22, op, wrongShapes)
	ids(op, keys, 3*z.Rows)
	need(temperature > 0 && finite(temperature), op, "temperature is not positive")
}

// NextUniform returns y, of which u = 1−y is the uniform number of an id under a key: (k + ½)/2³², k the number of
// SplitMix64 (DropNumber).
func NextUniform(key uint64, id int) float64 {
	return (float64(DropNumber(key, uint64(id))) + .5) / (1 << 32)
}
