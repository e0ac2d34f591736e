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
	y, t, rows, starts, ids, weights, u, parts, state, record uint64
	yStride, tStride, rowStride                               int64
	n, yRows                                                  uint32
	cols, teacher, entries                                    uint32
	slices, vector                                            uint32
	k, temperature, floor                                     float32
}

// projectRows are the rows of t that are interleaved, projectThreads the columns of a thread block, projectSlice the
// columns of t of one.
const projectRows, projectThreads, projectSlice = 8, 256, 2048

// ProjectMost is the most ids of t: scratch has room for projectRows interleaved rows of them.
const ProjectMost = 1 << 20

// projectScratch is how much scratch Project takes; tests take less.
var projectScratch = MaxScratch

// projectGroup returns the bytes of scratch for the interleaved rows of one group, and for what is known of them.
func projectGroup(teacher int) (u, parts int) {
	return 4 * projectRows * teacher, 8 * projectRows * ceil(teacher, projectSlice)
}

// projectGroups returns how many groups of rows one round of launches takes: as many as scratch has room for.
func projectGroups(teacher int) int {
	u, parts := projectGroup(teacher)
	return max(1, min(mostGroups, (projectScratch-4096)/(u+parts+8*projectRows)))
}

// Project moves distributions, p = softmax(t/T), to the columns of W:
//
//	y[rows[r], s] = T·max(ln Σ_k W[k,s]·p[r,k], device.ProjectFloor)
//
// with y and t float32, rows and W int32 vectors and float32 weights. A row outside y is noted as FaultRow, an id
// outside t or a column outside the entries as FaultID.
//
// Bytes moved: 12 for each element of t, of which 8 may stay in the second cache; 4 of y; for each entry of W and row
// of t 4, and an eighth of its id and weight.
func Project(q Queue, y, t Mat, w Projection, rows Mat, temperature float64) {
	need(t.Cols == w.Teacher && t.Type == tensor.F32 && y.Type == tensor.F32, "Project", "shapes or types differ")
	need(w.Teacher <= ProjectMost, "Project", "too many ids")
	if t.Rows == 0 || y.Cols == 0 {
		return
	}
	at, stride := vector(rows)
	groups := min(projectGroups(w.Teacher), ceil(t.Rows, projectRows))
	turned, parts := projectGroup(w.Teacher)
	a := projectArgs{
		y: y.Ptr, starts: vectorOf(w.Starts), ids: vectorOf(w.IDs), weights: w.Weights.Ptr, record: q.Record(),
		u: q.Scratch(groups * turned), parts: q.Scratch(groups * parts), state: q.Scratch(groups * 8 * projectRows),
		yStride: int64(y.Stride), tStride: int64(t.Stride), rowStride: int64(stride), yRows: uint32(y.Rows),
		cols: uint32(y.Cols), teacher: uint32(w.Teacher), entries: uint32(w.IDs.Rows * w.IDs.Cols),
		slices: uint32(ceil(w.Teacher, projectSlice)), vector: uint32(flag(fourAligned(t))),
		k: float32(log2e / temperature), temperature: float32(temperature),
		floor: float32(device.ProjectFloor * temperature),
	}
	for lo := 0; lo < t.Rows; lo += groups * projectRows {
		part, b := t.rows(lo, min(lo+groups*projectRows, t.Rows)), a
		b.t, b.rows, b.n = part.Ptr, at+uint64(4*stride*lo), uint32(part.Rows)
		of := ceil(part.Rows, projectRows)
		run := func(name string, grid ...int) {
			q.Launch(Launch{
				Module: ProjectModule, Kernel: name, Grid: [3]int{grid[0], grid[1], 1}, Block: projectThreads,
				Args: unsafe.Pointer(&b),
			})
		}
		run("project_turn", int(b.slices), of)
		run("project_states", of, 1)
		run("project_columns", ceil(y.Cols, projectThreads), of)
	}
}
