package kernel

import (
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// ProjectModule has the kernels of Project.
const ProjectModule = "project"

// Projection is a sparse matrix [Teacher, n], column by column: see device.Projection.
type Projection struct {
	Teacher              int
	Starts, IDs, Weights Mat
}

// projectArgs is struct ProjectArgs of project.cu.
type projectArgs struct {
	y, t, rows, starts, ids, weights, state, record uint64
	yStride, tStride, rowStride                     int64
	n, yRows                                        uint32
	cols, teacher, entries                          uint32
	vector                                          uint32
	k, temperature, floor                           float32
}

// projectRows are the rows of t that a thread of project_columns serves, projectThreads the columns of a thread block,
// and projectMost the most rows of one launch.
const projectRows, projectThreads, projectMost = 4, 256, projectRows * mostGroups

// Project moves distributions, p = softmax(t/T), to the columns of W:
//
//	y[rows[r], s] = T·max(ln Σ_k W[k,s]·p[r,k], device.ProjectFloor)
//
// with y and t float32, rows and W int32 vectors and float32 weights. A row outside y is noted as FaultRow, an id
// outside t or a column outside the entries as FaultID.
//
// Bytes moved: 8 for each element of t, 4 of y; for each entry of W and row of t a sector of 32 in the second cache,
// and a quarter of its id and weight.
func Project(q Queue, y, t Mat, w Projection, rows Mat, temperature float64) {
	need(t.Cols == w.Teacher && t.Type == tensor.F32 && y.Type == tensor.F32, "Project", "shapes or types differ")
	if t.Rows == 0 || y.Cols == 0 {
		return
	}
	at, stride := vector(rows)
	state := q.Scratch(8 * min(t.Rows, projectMost))
	for lo := 0; lo < t.Rows; lo += projectMost {
		part := t.rows(lo, min(lo+projectMost, t.Rows))
		a := &projectArgs{
			y: y.Ptr, t: part.Ptr, rows: at + uint64(4*stride*lo), starts: vectorOf(w.Starts), ids: vectorOf(w.IDs),
			weights: w.Weights.Ptr, state: state, record: q.Record(), yStride: int64(y.Stride), tStride: int64(t.Stride),
			rowStride: int64(stride), n: uint32(part.Rows), yRows: uint32(y.Rows), cols: uint32(y.Cols),
			teacher: uint32(w.Teacher), entries: uint32(w.IDs.Rows * w.IDs.Cols), vector: uint32(flag(fourAligned(part))),
			k: float32(log2e / temperature), temperature: float32(temperature),
			floor: float32(device.ProjectFloor * temperature),
		}
		launch(q, ProjectModule, "project_rows", part.Rows, 1, 512, unsafe.Pointer(a))
		q.Launch(Launch{
			Module: ProjectModule, Kernel: "project_columns", Block: projectThreads, Args: unsafe.Pointer(a),
			Grid: [3]int{ceil(y.Cols, projectThreads), ceil(part.Rows, projectRows), 1},
		})
	}
}
