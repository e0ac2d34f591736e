package device

import "apr/tensor"

// Projection is a sparse matrix W [Teacher, n] that moves probabilities of Teacher ids to n other ids, kept column by
// column: entries [Starts[s], Starts[s+1]) of IDs and Weights are those of column s, the teacher's ids and what share
// of their probability arrives. Each row of W sums to one, or is empty.
type Projection struct {
	Teacher int    // ids of the teacher
	Starts  Tensor // I32 [1, n+1], ascending from 0
	IDs     Tensor // I32 [1, m], below Teacher
	Weights Tensor // F32 [1, m], positive
}

// ProjectFloor is the smallest logarithm of a probability that Project writes: an id that nothing goes to has it.
// e^−80 of all ids together is far below the rounding of float32.
const ProjectFloor = -80

// Projector is a Stream that moves a distribution to the ids of another vocabulary. A device whose streams are none has
// [Projects] among its Lacks.
type Projector interface {
	// Project writes, for each row r of t, the distribution p = softmax(t/T) as one over the columns of W:
	//
	//	y[rows[r], s] = T·max(ln Σ_k W[k,s]·p[r,k], −80)
	//
	// so that softmax(y/T) is Wᵀ·p, over what has a counterpart. t [n, Teacher] and y [c, columns of W] F32; rows [n,1]
	// I32 are distinct rows of y. Other rows of y stay as they are. A row or an id outside its range is an error of the
	// stream.
	Project(y, t Tensor, w Projection, rows Tensor, temperature float64)
}

// CheckProject checks a call of Projector.Project, but for the values of ids and rows.
func CheckProject(y, t Tensor, w Projection, rows Tensor, temperature float64) {
	const op = OpProject
	views(op, y, t, w.Weights)
	typed(op, tensor.F32, noFloat32, y, t, w.Weights)
	need(t.Cols == w.Teacher, op, wrongShapes)
	ids(op, w.Starts, y.Cols+1)
	ids(op, w.IDs, w.IDs.Rows*w.IDs.Cols)
	vectors(op, w.IDs.Rows*w.IDs.Cols, w.Weights)
	ids(op, rows, t.Rows)
	need(t.Rows <= y.Rows, op, wrongShapes)
	need(temperature > 0 && finite(temperature), op, "temperature is not positive")
}
