// Package gemm multiplies float32 matrices on the CPU.
//
// Every product is C (=|+=) alpha·op(A)·op(B) (+ bias), row-major with strides, in the three forms that a linear layer
// needs: NT for its forward pass, NN for the gradient of its input, TN for the gradient of its weight. The right-hand
// side of NT may also be a Rows source (bfloat16, half, 4-bit blocks): its rows are decoded a panel at a time, inside
// the packing, never as a whole matrix.
//
// The work is cut into register tiles (14×32 with AVX-512, 6×16 with AVX2 and NEON, 4×4 in portable Go; see Goto and van de
// Geijn 2008, doi:10.1145/1356052.1356053). B is packed so that a tile reads it in order; A is read in place, or packed
// where its stride would make cache lines collide. The kernels are chosen at run time from the features of the
// processor.
//
// Caveats. An element of C is summed over p = 0 … k-1 in order, in blocks of 512 that are then added up; this order
// depends on k alone. Hence a row of C has the same bits whatever the number of rows, columns, tiles or workers around
// it, down to a single row. AVX2, AVX-512 and NEON agree bit for bit, and so does the portable kernel on arm64; on
// machines where Go does not fuse a multiply-add it rounds products separately. NEON is tested under qemu; its speed
// has not been measured on a machine. C must not overlap A or B. Slices too short for their shape are broken
// preconditions and panic.
package gemm

import (
	"fmt"

	"apr/device/cpu/par"
)

// Rows is a matrix of n rows and k columns whose elements must be decoded.
type Rows interface {
	// DecodeRow writes the columns [lo, hi) of a row to dst[0:hi-lo]. lo is a multiple of 256, hi too or the number of
	// columns. It is called by several goroutines at once.
	DecodeRow(dst []float32, row, lo, hi int)
}

// Engine multiplies on all workers of a pool and keeps the packing buffers between calls. One call at a time.
type Engine struct {
	pool   *par.Pool
	kn     *kernels  // nil: the selected ones
	local  []scratch // one for each worker
	panels []float32 // packed B, shared
	tiles  []float32 // packed A, shared

	// The call at work, and its tasks as values made once, so that handing them to the pool allocates nothing.
	call                            product
	step                            block
	pieces                          pieces
	thinTask, packTask, computeTask func(worker, task int)
}

// pieces says how the current step is cut into tasks.
type pieces struct {
	n, group   int // thin and pack: [0, n) in groups
	tiles      int // pack: the first are tiles of A
	high, wide int // compute: tiles and panels of a task
	across     int // compute: tasks side by side
}

// New makes an engine that works on pool.
func New(pool *par.Pool) *Engine {
	e := &Engine{pool: pool, local: make([]scratch, pool.Workers())}
	e.thinTask, e.packTask, e.computeTask = e.runThin, e.runPack, e.runCompute
	return e
}

// Select makes this engine use the named kernels, whatever others use. An error says which names this machine has.
func (e *Engine) Select(name string) error {
	kn, err := lookUp(name)
	if err == nil {
		e.kn = kn
	}
	return err
}

// NT computes, for i < m and j < n,
//
//	C[i,j] (=|+=) Σ_p A[i,p]·B[j,p] (+ bias[j])
//
// with A [m×k], B [n×k], C [m×n] and their row strides lda, ldb ≥ k and ldc ≥ n. A nil bias is none; add keeps what C holds.
func (e *Engine) NT(m, n, k int, a []float32, lda int, b []float32, ldb int, bias, c []float32, ldc int, add bool) {
	e.multiply(product{
		m: m, n: n, k: k, alpha: 1, bias: bias, c: c, ldc: ldc, add: add,
		a: byRow("A", a, lda, m, k), b: byRow("B", b, ldb, n, k),
	})
}

// NTRows is NT with a decoded B [n×k].
func (e *Engine) NTRows(m, n, k int, a []float32, lda int, b Rows, bias, c []float32, ldc int, add bool) {
	e.multiply(product{
		m: m, n: n, k: k, alpha: 1, bias: bias, c: c, ldc: ldc, add: add,
		a: byRow("A", a, lda, m, k), b: operand{rows: b, lines: n},
	})
}

// NN computes C[i,j] (=|+=) Σ_p A[i,p]·B[p,j] with A [m×k], B [k×n], C [m×n].
func (e *Engine) NN(m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int, add bool) {
	e.multiply(product{
		m: m, n: n, k: k, alpha: 1, c: c, ldc: ldc, add: add,
		a: byRow("A", a, lda, m, k), b: byColumn("B", b, ldb, n, k),
	})
}

// TN computes C[i,j] (=|+=) Σ_p A[p,i]·B[p,j] with A [k×m], B [k×n], C [m×n].
func (e *Engine) TN(m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int, add bool) {
	e.multiply(product{
		m: m, n: n, k: k, alpha: 1, c: c, ldc: ldc, add: add,
		a: byColumn("A", a, lda, m, k), b: byColumn("B", b, ldb, n, k),
	})
}

// Workspace multiplies small matrices on the calling goroutine; it allocates on its first call only. Each goroutine
// needs its own.
type Workspace struct {
	kn    *kernels // nil: the selected ones
	local scratch
}

// Select makes this workspace use the named kernels, whatever others use.
func (w *Workspace) Select(name string) error {
	kn, err := lookUp(name)
	if err == nil {
		w.kn = kn
	}
	return err
}

// Multiply computes C (=|+=) alpha·op(A)·op(B) with op(A) [m×k], op(B) [k×n], C [m×n]; with transA, A is stored [k×m],
// with transB, B is stored [n×k]. It has the same summation order as the methods of Engine.
func (w *Workspace) Multiply(transA, transB bool, m, n, k int, alpha float32, a []float32, lda int,
	b []float32, ldb int, c []float32, ldc int, add bool,
) {
	g := product{m: m, n: n, k: k, alpha: alpha, c: c, ldc: ldc, add: add}
	if transA {
		g.a = byColumn("A", a, lda, m, k)
	} else {
		g.a = byRow("A", a, lda, m, k)
	}
	if transB {
		g.b = byRow("B", b, ldb, n, k)
	} else {
		g.b = byColumn("B", b, ldb, n, k)
	}
	if g.trivial() {
		return
	}
	kn := chosen(w.kn)
	w.local.fit(kn)
	g.columns(kn, &w.local, 0, panelCount(n, kn.nr))
}

// product is one call: C (=|+=) alpha·A·Bᵀ + bias over lines of A and of B.
type product struct {
	m, n, k int
	alpha   float32
	a, b    operand
	bias, c []float32
	ldc     int
	add     bool
}

// trivial checks the shape and deals with the products that have no sum.
func (g *product) trivial() bool {
	if g.m < 0 || g.n < 0 || g.k < 0 {
		panic(fmt.Sprintf("gemm: negative shape %d×%d×%d", g.m, g.n, g.k))
	}
	if g.m == 0 || g.n == 0 {
		return true
	}
	need("C", len(g.c), g.ldc, g.m, g.n)
	if g.bias != nil && len(g.bias) < g.n {
		panic(fmt.Sprintf("gemm: bias holds %d of %d elements", len(g.bias), g.n))
	}
	if g.k > 0 {
		return false
	}
	for i := range g.m {
		for j := range g.n {
			var v float32
			if g.bias != nil {
				v = g.bias[j]
			}
			if g.add {
				v += g.c[i*g.ldc+j]
			}
			g.c[i*g.ldc+j] = v
		}
	}
	return true
}

// need panics unless a slice of that length holds rows of width elements at stride ld.
func need(name string, length, ld, rows, width int) {
	if rows > 0 && width > 0 && (ld < width || length < (rows-1)*ld+width) {
		panic(fmt.Sprintf("gemm: %s holds %d elements, too few for %d rows of %d with stride %d", name, length, rows, width, ld))
	}
}
