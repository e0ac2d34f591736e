package device

import "apr/tensor"

// Drawer is a Stream that draws ids on the device. A device whose streams are none has Draws in its Lacks; logits are
// then drawn from on the host.
type Drawer interface {
	// Draw draws an id of softmax(x+never) for each row of x [n,V] float32: with the uniform numbers u of DrawUniform,
	//
	//	id = argmax_i x[r,i] + never[i] − ln(−ln u(keys[r], i)),  the lowest of equal ones (Gumbel 1954),
	//
	// and writes it to ids [n,1] I32, and the id as a number and ln softmax(x)[id] to out [n,2] F32: NaN if the row has
	// NaN or +∞. never [1,V] F32, of 0 and −∞, or zero for none, keeps ids from being drawn and changes no
	// probability. keys [2n,1] I32 are the lower and the upper half of a 64-bit key for each row.
	Draw(ids, out, x, never, keys Tensor)
}

// CheckDraw checks a call of Drawer.Draw.
func CheckDraw(drawn, out, x, never, keys Tensor) {
	const op = OpDraw
	views(op, x, out)
	optional(op, never)
	typed(op, tensor.F32, noFloat32, x, out, never)
	ids(op, drawn, x.Rows)
	ids(op, keys, 2*x.Rows)
	shaped(op, x.Rows, 2, out)
	vectors(op, x.Cols, never)
	need(x.Cols > 0 && x.Cols < 1<<24, op, "the columns are none, or cannot be told as a number")
}

// DrawUniform returns y, of which u = 1−y is the uniform number of an id under a key: the upper 32 bits k of the
// mix of SplitMix64 (Steele et al. 2014) of key + (id+1)·0x9e3779b97f4a7c15, as (k + ½)/2³².
func DrawUniform(key uint64, id int) float64 {
	x := key + (uint64(id)+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return (float64((x^x>>31)>>32) + .5) / (1 << 32)
}
