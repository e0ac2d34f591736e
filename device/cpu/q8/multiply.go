package q8

import (
	"fmt"
	"iter"
	"unsafe"

	"apr/device/cpu/par"
)

const (
	slab      = 512     // rows of activations that are multiplied at a time
	abreast   = 4       // panels that share a chunk of many rows of activations while it is in the first-level cache
	taskBytes = 1 << 16 // weights of a task for few rows: some microseconds
)

// Engine multiplies on all workers of a pool and keeps its buffers between calls. One call at a time.
type Engine struct {
	pool  *par.Pool
	kn    *kernels
	local []scratch       // one for each worker
	x     [2][][2]rounded // activations rounded for 32-blocks and for K types, chunk by chunk, row by row

	// The call at work, and its tasks as values made once, so that handing them to the pool allocates nothing.
	call                 product
	roundTask, panelTask func(worker, task int)
}

// scratch is what one worker needs.
type scratch struct {
	u    []unpacked // abreast
	tile []float32  // [abreast][rows][16]
	rest [chunk]float32
}

// product is one call for a slab of rows.
type product struct {
	ms         []*Matrix
	n          int // rows of activations
	outs       int // outputs wanted
	k          int
	x, y, bias []float32
	ldx, ldy   int
	add        bool
	group      int // panels of a task
	kind       int // for rounding: of 32-blocks, of K types
}

// New makes an engine that works on pool with the best kernels.
func New(pool *par.Pool) *Engine {
	e := &Engine{pool: pool, kn: available()[0], local: make([]scratch, pool.Workers())}
	e.roundTask, e.panelTask = e.round, e.panels
	return e
}

// Select makes the engine use the kernels of an instruction set: avx512, avx2, neon or generic. An error says which this
// machine has.
func (e *Engine) Select(isa string) error {
	kn, err := lookUp(isa)
	if err == nil {
		e.kn = kn
	}
	return err
}

// Multiply computes, for i < n and j < outs,
//
//	y[i,j] (=|+=) Σ_p x̃[i,p]·W[j,p] (+ bias[j])
//
// W being the matrices ms one below the other, x̃ the rounded activations, y [n, outs] and x [n, k] with row strides ldy
// and ldx. outs may be smaller than the rows of W. A nil bias is none; add keeps what y holds. The terms of an output are
// added to the bias in order of their chunks.
func (e *Engine) Multiply(ms []*Matrix, n, outs int, x []float32, ldx int, bias, y []float32, ldy int, add bool) {
	k, rows := ms[0].cols, 0
	for _, m := range ms {
		rows += m.rows
		if m.cols != k {
			panic("q8: matrices of different width")
		}
	}
	if n < 0 || outs < 0 || outs > rows || bias != nil && len(bias) < outs {
		panic(fmt.Sprintf("q8: %d×%d outputs of %d rows, bias of %d", n, outs, rows, len(bias)))
	}
	if n == 0 || outs == 0 {
		return
	}
	if len(x) < (n-1)*ldx+k || len(y) < (n-1)*ldy+outs || ldx < k || ldy < outs {
		panic("q8: activations or outputs are too short")
	}
	for lo := 0; lo < n; lo += slab {
		e.call = product{
			ms: ms, n: min(slab, n-lo), outs: outs, k: k, x: x[lo*ldx:], ldx: ldx, bias: bias, y: y[lo*ldy:], ldy: ldy, add: add,
		}
		e.run()
	}
	e.call = product{}
}

// run multiplies a slab.
func (e *Engine) run() {
	g := &e.call
	all, out, needed := 0, 0, [2]bool{}
	for _, m := range g.ms {
		if n := g.panels(m, out); n > 0 {
			all += n
			needed[index(m.f.super)] = true
		}
		out += m.rows
	}
	for kind, need := range needed {
		if need {
			e.roundAll(kind)
		}
	}
	for i := range e.local {
		e.local[i].fit(g.n)
	}
	g.group = max(1, taskBytes/(g.ms[0].panelBytes*g.n))
	if g.n > abreast {
		g.group = abreast
	}
	e.pool.Run((all+g.group-1)/g.group, e.panelTask)
}

// panels returns how many panels of m are wanted, whose first output is out.
func (g *product) panels(m *Matrix, out int) int { return panels(max(0, min(m.rows, g.outs-out))) }

func index(super bool) int {
	if super {
		return 1
	}
	return 0
}

// fit makes room for n rows.
func (s *scratch) fit(n int) {
	if s.u == nil {
		b := alignedTo(abreast*int(unsafe.Sizeof(unpacked{})), 64)
		s.u = unsafe.Slice((*unpacked)(unsafe.Pointer(&b[0])), abreast)
	}
	if want := abreast * n * lanes; len(s.tile) < want {
		b := alignedTo(4*want, 64)
		s.tile = unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), want)
	}
}

// roundChunks is how many chunks of activations a task rounds.
const roundChunks = 64

// roundAll rounds the slab's activations for one kind of types.
func (e *Engine) roundAll(kind int) {
	g := &e.call
	want := g.n * chunks(g.k)
	if len(e.x[kind]) < want {
		e.x[kind] = make([][2]rounded, want)
	}
	g.kind = kind
	e.pool.Run((want+roundChunks-1)/roundChunks, e.roundTask)
}

func (e *Engine) round(worker, task int) {
	g := &e.call
	for i := task * roundChunks; i < min(g.n*chunks(g.k), (task+1)*roundChunks); i++ {
		c, row := i/g.n, i%g.n
		e.kn.round(&e.x[g.kind][i], g.x[row*g.ldx:][c*chunk:min(g.k, (c+1)*chunk)], &e.local[worker].rest, g.kind == 1)
	}
}

// panels computes the outputs of some panels.
func (e *Engine) panels(worker, task int) {
	g := &e.call
	lo, hi := task*g.group, (task+1)*g.group
	first, out := 0, 0 // panel and output with which m begins
	for _, m := range g.ms {
		n := g.panels(m, out)
		for p := max(lo, first); p < min(hi, first+n); {
			step := 1
			if g.n > abreast {
				step = min(abreast, min(hi, first+n)-p)
			}
			e.multiply(&e.local[worker], m, p-first, step, out)
			p += step
		}
		first, out = first+n, out+m.rows
	}
}

// multiply computes the outputs of n panels of m from panel p on; out is the first output of m.
func (e *Engine) multiply(s *scratch, m *Matrix, p, n, out int) {
	g, kn, x := &e.call, e.kn, e.x[index(m.f.super)]
	for i := range n {
		g.start(s.tile[i*g.n*lanes:][:g.n*lanes], out+(p+i)*lanes)
	}
	if row := kn.row(m.f); g.n == 1 && row != nil {
		row(&m.data[p*m.panelBytes], &x[0][0].q[0], &s.tile[0], chunks(g.k))
	} else {
		e.chunks(s, m, p, n)
	}
	g.finish(s.tile, n, out+p*lanes, min(n*lanes, m.rows-p*lanes))
}

// chunks adds the products of n panels of m from panel p on to the tiles.
func (e *Engine) chunks(s *scratch, m *Matrix, p, n int) {
	g, kn := &e.call, e.kn
	both, tiles := kn.both(m.f), kn.tiles(m.f)
	pairs := 0 // panels that go two by two
	if len(both) > 0 {
		pairs = n &^ 1
	}
	var codes [abreast]*byte
	for c := range chunks(g.k) {
		width := 0
		for i := range n {
			var data []byte
			data, width = m.chunkAt(p+i, c)
			codes[i] = kn.unpack(&s.u[i], m.f, data, width)
		}
		x := e.x[index(m.f.super)][c*g.n:][:g.n]
		for r, t := range cut(g.n, len(both)-1) { // no tile if there is none
			for i := 0; i < pairs; i += 2 {
				both[t.height](&s.u[i].codes[0], &x[r][0].q[0], &s.tile[(i*g.n+r)*lanes], g.n*lanes, m.ahead(p+i, c+1, t.number))
			}
		}
		if pairs == n {
			continue
		}
		for r, t := range cut(g.n, len(tiles)-1) {
			for i := pairs; i < n; i++ {
				tiles[t.height](codes[i], &s.u[i].codes[0], &x[r][0].q[0], &s.tile[(i*g.n+r)*lanes], width/32, int(m.f.zero))
			}
		}
	}
}

// ahead returns what the tiles of panels p and p+1 are to fetch meanwhile of their chunk c: tiles take turns, some lines
// each, until all is fetched.
func (m *Matrix) ahead(p, c, tile int) *byte {
	at := (p+tile%2)*m.panelBytes + c*m.f.chunkBytes(chunk) + tile/2*(chunk/m.f.group)*64
	return &m.data[min(at, len(m.data)-1)]
}

// cut cuts n rows into tiles of nearly equal height, none higher than tall: first rows with heights and numbers.
func cut(n, tall int) iter.Seq2[int, piece] {
	return func(yield func(int, piece) bool) {
		if tall < 1 {
			return
		}
		count := (n + tall - 1) / tall
		height, more := n/count, n%count // the first more tiles are higher by one
		r := 0
		for number := range count {
			h := height
			if number < more {
				h++
			}
			if !yield(r, piece{h, number}) {
				return
			}
			r += h
		}
	}
}

// piece is a tile's height and number.
type piece struct{ height, number int }

// start fills a tile with the bias of 16 outputs from j on.
func (g *product) start(tile []float32, j int) {
	clear(tile)
	if g.bias == nil || j >= g.outs {
		return
	}
	b := g.bias[j:min(j+lanes, g.outs)]
	for r := range g.n {
		copy(tile[r*lanes:], b)
	}
}

// finish writes the tiles of n panels, wide outputs in all, to y from j on, as far as they are wanted.
func (g *product) finish(tile []float32, n, j, wide int) {
	wide = min(wide, g.outs-j)
	for r := range g.n {
		y := g.y[r*g.ldy+j:][:wide] // what panels beside each other have is beside each other here
		for i := range n {
			from, to := i*lanes, min(wide, (i+1)*lanes)
			t := tile[(i*g.n+r)*lanes:][:to-from]
			if g.add {
				for l, v := range t {
					y[from+l] += v
				}
			} else {
				copy(y[from:to], t)
			}
		}
	}
}
