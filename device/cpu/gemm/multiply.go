package gemm

const (
	blockM     = 4096    // rows of A packed at once: at most 8 MiB
	blockPanel = 1 << 20 // elements of B packed at once: 4 MiB, a part of the third-level cache
	lowTiles   = 3       // up to this many tiles of height a copy of B costs more than it saves
	thinTiles  = 10      // up to this many tiles of height A stays in the second-level cache
	taskWork   = 1 << 15 // fused multiply-adds worth handing to another core: some microseconds
)

func panelCount(n, nr int) int { return (n + nr - 1) / nr }

// multiply runs a product on all workers.
func (e *Engine) multiply(call product) {
	e.call = call
	defer e.forget()
	g := &e.call
	if g.trivial() {
		return
	}
	kn := chosen(e.kn)
	for i := range e.local {
		e.local[i].fit(kn)
	}
	busy := panelCount(g.n, kn.nr) >= 4*e.pool.Workers()
	if g.m <= lowTiles*kn.mr || g.m <= thinTiles*kn.mr && busy {
		e.thin(kn, g)
		return
	}
	e.wide(kn, g)
}

// thin gives each worker some panels of B, to pack and to multiply with all rows: B is read once, nothing is shared.
func (e *Engine) thin(kn *kernels, g *product) {
	group := 1 + taskWork/(g.m*kn.nr*g.k+kn.nr*g.k*4) // packing an element costs about four multiply-adds
	e.step.kn = kn
	e.split(panelCount(g.n, kn.nr), group, e.thinTask)
}

func (e *Engine) runThin(worker, task int) {
	lo, hi := e.pieces.of(task)
	e.call.columns(e.step.kn, &e.local[worker], lo, hi)
}

// split runs task over [0, n) in groups.
func (e *Engine) split(n, group int, task func(worker, task int)) {
	e.pieces.n, e.pieces.group = n, group
	e.pool.Run((n+group-1)/group, task)
}

// of returns the range of a task of split.
func (p *pieces) of(task int) (lo, hi int) { return task * p.group, min(p.n, (task+1)*p.group) }

// forget drops what the last call pointed to.
func (e *Engine) forget() { e.call, e.step = product{}, block{} }

// columns computes the panels [lo, hi) of C: columns lo·nr to hi·nr.
func (g *product) columns(kn *kernels, s *scratch, lo, hi int) {
	single := g.m == 1 && g.a.ps == 1 && g.b.ls != 1 && kn.dot != nil && g.k%kn.lanes == 0
	for panel := lo; panel < hi; panel++ {
		j := panel * kn.nr
		if single && g.n-j >= kn.nr {
			g.dots(kn, s, j)
			continue
		}
		for p := 0; p < g.k; p += blockK {
			end := min(g.k, p+blockK)
			b, bs := &s.panel[0], kn.nr
			if g.b.ls == 1 && g.n-j >= kn.nr && (g.m <= lowTiles*kn.mr || g.b.ps%1024 != 0) {
				b, bs = &g.b.data[j+p*g.b.ps], g.b.ps // in place
			} else {
				g.b.pack(kn, s, s.panel, kn.nr, j, p, end)
			}
			t := tiling{g.m, kn.mr}
			for tile := range t.count() {
				i, h := t.rows(tile)
				a := &g.a.data[i*g.a.ls+p*g.a.ps]
				g.tile(kn, s, i, h, j, p, end, a, g.a.ls, g.a.ps, b, bs)
			}
		}
	}
}

// dots computes a panel of the only row of C: B is read once, so packing it would cost more than the product.
func (g *product) dots(kn *kernels, s *scratch, j int) {
	for end := j + kn.nr; j < end; j += kn.lanes {
		for p := 0; p < g.k; p += blockK {
			k := min(g.k-p, blockK)
			var b *float32
			bs := g.b.ls
			if g.b.rows != nil {
				g.b.decode(s, j, kn.lanes, p, p+k)
				b, bs = &s.decoded[0], k
			} else {
				b = &g.b.data[j*bs+p]
			}
			var bias *float32
			if g.bias != nil && p == 0 {
				bias = &g.bias[j]
			}
			kn.dot(k/kn.lanes, &g.a.data[p], b, bs, &g.c[j], g.alpha, bias, g.add || p > 0)
		}
	}
}

// tile adds the terms [p, end) to h rows of C from row i, and to nr columns from column j.
func (g *product) tile(kn *kernels, s *scratch, i, h, j, p, end int, a *float32, ars, acs int, b *float32, bs int) {
	add := g.add || p > 0
	var bias []float32
	if g.bias != nil && p == 0 {
		bias = g.bias[j:g.n]
	}
	if wide := g.n - j; wide < kn.nr {
		kn.tile[h](end-p, a, ars, acs, b, bs, &s.tile[0], kn.nr, g.alpha, nil, false)
		for r := range h {
			store(g.c[(i+r)*g.ldc+j:][:wide], s.tile[r*kn.nr:], bias, add)
		}
		return
	}
	var first *float32
	if bias != nil {
		first = &bias[0]
	}
	kn.tile[h](end-p, a, ars, acs, b, bs, &g.c[i*g.ldc+j], g.ldc, g.alpha, first, add)
}

// store is the last part of a tile for a row that is not a whole panel wide: c = v + bias + c, each if given.
func store(c, v, bias []float32, add bool) {
	for j := range c {
		x := v[j]
		if bias != nil {
			x += bias[j]
		}
		if add {
			x += c[j]
		}
		c[j] = x
	}
}

// tiling cuts rows into tiles of nearly equal height, at most max.
type tiling struct{ rowCount, max int }

func (t tiling) count() int { return (t.rowCount + t.max - 1) / t.max }

// rows returns the first row and the height of a tile.
func (t tiling) rows(tile int) (first, height int) {
	n := t.count()
	first = tile * t.rowCount / n
	return first, (tile+1)*t.rowCount/n - first
}

// wide packs B, block by block, and A if needed, then computes tiles, each step on all workers.
func (e *Engine) wide(kn *kernels, g *product) {
	kc := min(g.k, blockK)
	blockN := max(1, blockPanel/(kc*kn.nr)) // in panels
	panels := panelCount(g.n, kn.nr)
	packed := g.collides(kn)
	e.panels = grow(e.panels, min(blockN, panels)*kn.nr*kc)
	if packed {
		e.tiles = grow(e.tiles, tiling{min(g.m, blockM), kn.mr}.count()*kn.lanes*kc)
	}
	for j := 0; j < panels; j += blockN {
		width := min(blockN, panels-j)
		for p := 0; p < g.k; p += blockK {
			for i := 0; i < g.m; i += blockM {
				e.step = block{
					product: g, kn: kn, i: i, tiles: tiling{min(blockM, g.m-i), kn.mr},
					panel: j, panels: width, p: p, end: min(g.k, p+blockK), packedA: packed,
				}
				e.pack(&e.step, i == 0)
				e.compute(&e.step)
			}
		}
	}
}

// block is one step of wide: rows from i, panels [panel, panel+panels), terms [p, end).
type block struct {
	*product
	kn            *kernels
	i             int
	tiles         tiling
	panel, panels int
	p, end        int
	packedA       bool
}

// pack packs the block's panels of B, unless another block of rows has left them, and its tiles of A if they are to be.
func (e *Engine) pack(b *block, withB bool) {
	kc := b.end - b.p
	tiles, panels := 0, 0
	if b.packedA {
		tiles = b.tiles.count()
	}
	if withB {
		panels = b.panels
	}
	e.pieces.tiles = tiles
	e.split(tiles+panels, 1+taskWork/8/(kc*b.kn.nr), e.packTask)
}

func (e *Engine) runPack(worker, task int) {
	s, b := &e.local[worker], &e.step
	kc, tiles := b.end-b.p, e.pieces.tiles
	lo, hi := e.pieces.of(task)
	for t := lo; t < hi; t++ {
		if t < tiles {
			row, _ := b.tiles.rows(t)
			b.a.pack(b.kn, s, e.tiles[t*b.kn.lanes*kc:][:b.kn.lanes*kc], b.kn.lanes, b.i+row, b.p, b.end)
		} else {
			x := t - tiles
			b.b.pack(b.kn, s, e.panels[x*b.kn.nr*kc:][:b.kn.nr*kc], b.kn.nr, (b.panel+x)*b.kn.nr, b.p, b.end)
		}
	}
}

// compute multiplies a packed block. A task is some tiles high, so that its part of A stays in the second-level cache,
// and some panels wide.
func (e *Engine) compute(b *block) {
	tiles := b.tiles.count()
	high, wide := 10, 8
	tasks := func() int { return ((tiles + high - 1) / high) * ((b.panels + wide - 1) / wide) }
	for tasks() < 4*e.pool.Workers() && wide > 1 {
		wide /= 2
	}
	for tasks() < 4*e.pool.Workers() && high > 1 {
		high = (high + 1) / 2
	}
	e.pieces.high, e.pieces.wide, e.pieces.across = high, wide, (b.panels+wide-1)/wide
	e.pool.Run(tasks(), e.computeTask)
}

func (e *Engine) runCompute(worker, task int) {
	s, b, cut := &e.local[worker], &e.step, &e.pieces
	kc, tiles := b.end-b.p, b.tiles.count()
	t0, x0 := task/cut.across*cut.high, task%cut.across*cut.wide
	for x := x0; x < min(x0+cut.wide, b.panels); x++ {
		panel := &e.panels[x*b.kn.nr*kc]
		for t := t0; t < min(t0+cut.high, tiles); t++ {
			row, h := b.tiles.rows(t)
			a, ars, acs := (*float32)(nil), 1, b.kn.lanes
			if b.packedA {
				a = &e.tiles[t*b.kn.lanes*kc]
			} else {
				ars, acs = b.a.ls, b.a.ps
				a = &b.a.data[(b.i+row)*ars+b.p*acs]
			}
			b.tile(b.kn, s, b.i+row, h, (b.panel+x)*b.kn.nr, b.p, b.end, a, ars, acs, panel, b.kn.nr)
		}
	}
}

// collides reports whether tiles of A are better packed: at a stride of a multiple of 4 KiB the lines of a tile share
// too few sets of a cache, and enough panels read the tile again to pay for the copy.
func (g *product) collides(kn *kernels) bool {
	return g.a.ls*g.a.ps%1024 == 0 && g.n >= 16*kn.nr
}
