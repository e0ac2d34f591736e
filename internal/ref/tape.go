package ref

import "math"

// node is a matrix with its gradient, which is allocated when the backward first adds to it.
type node struct {
	Mat
	d      Mat
	parent *node // whose rows it is
	first  int   // the first of them
}

// grad returns the gradient, to be added to.
func (n *node) grad() Mat {
	if n.parent != nil {
		return n.parent.grad().RowRange(n.first, n.first+n.Rows)
	}
	if n.d.V == nil {
		n.d = New(n.Rows, n.Cols)
	}
	return n.d
}

// rows returns rows [lo,hi) of n; their gradient is that part of n's.
func (n *node) rows(lo, hi int) *node { return &node{Mat: n.RowRange(lo, hi), parent: n, first: lo} }

// as returns n seen as rows of width values, values and gradient shared.
func (n *node) as(width int) (x Mat, d func() Mat) {
	view := func(m Mat) Mat { return Mat{len(m.V) / width, width, m.V} }
	return view(n.Mat), func() Mat { return view(n.grad()) }
}

// tape records the operations of a forward; the backward runs their backwards from last to first.
type tape struct {
	steps []func()
	nodes []*node
}

// of returns the result of an operation and remembers its backward.
func (t *tape) of(y Mat, backward func(dy Mat)) *node {
	n := &node{Mat: y}
	t.nodes = append(t.nodes, n)
	t.steps = append(t.steps, func() { backward(n.grad()) })
	return n
}

// param returns a parameter, whose gradient is zero when a backward begins.
func (t *tape) param(m Mat) *node {
	n := &node{Mat: m}
	t.nodes = append(t.nodes, n)
	return n
}

// backward begins with the gradient dy of y, and all others zero.
func (t *tape) backward(y *node, dy Mat) {
	t.begin(y, dy)
	t.run()
}

// begin sets the gradient of y, and all others to zero.
func (t *tape) begin(y *node, dy Mat) {
	for _, n := range t.nodes {
		n.d = Mat{}
	}
	y.grad().Add(dy)
}

// run goes back from the last operation to the first.
func (t *tape) run() {
	for i := len(t.steps) - 1; i >= 0; i-- {
		t.steps[i]()
	}
}

// embed: y[i] = w[ids[i]].
func (t *tape) embed(w *node, ids []int) *node {
	return t.of(Embed(w.Mat, ids), func(dy Mat) { EmbedBackward(w.grad(), ids, dy) })
}

// linear: y = x·Wᵀ + b; b may be nil.
func (t *tape) linear(x, w, b *node) *node {
	bias := Mat{}
	if b != nil {
		bias = b.Mat
	}
	return t.of(Linear(x.Mat, w.Mat, bias), func(dy Mat) {
		dx, dw, db := LinearBackward(dy, x.Mat, w.Mat)
		x.grad().Add(dx)
		w.grad().Add(dw)
		if b != nil {
			b.grad().Add(Mat{b.Rows, b.Cols, db.V})
		}
	})
}

// norm: y = x·r·(w+offset) over each width values of a row; w nil is all ones, without offset.
func (t *tape) norm(x, w *node, width int, eps, offset float64) *node {
	v, dv := x.as(width)
	weight := New(1, width)
	for i := range weight.V {
		weight.V[i] = 1
		if w != nil {
			weight.V[i] = w.V[i] + offset
		}
	}
	y, rstd := RMSNorm(v, weight, eps)
	return t.of(Mat{x.Rows, x.Cols, y.V}, func(dy Mat) {
		dx, dw := RMSNormBackward(Mat{v.Rows, width, dy.V}, v, rstd, weight)
		dv().Add(dx)
		if w != nil {
			w.grad().Add(dw)
		}
	})
}

// add: z = x + s·y.
func (t *tape) add(x, y *node, s float64) *node {
	z := x.Clone()
	for i, v := range y.V {
		z.V[i] += s * v
	}
	return t.of(z, func(dz Mat) {
		x.grad().Add(dz)
		dy := y.grad()
		for i, d := range dz.V {
			dy.V[i] += s * d
		}
	})
}

// scale: y = s·x.
func (t *tape) scale(x *node, s float64) *node {
	return t.each(x, func(v float64) float64 { return s * v }, func(float64) float64 { return s })
}

// each: y = f(x), element by element, with f' of x.
func (t *tape) each(x *node, f, slope func(float64) float64) *node {
	y := New(x.Rows, x.Cols)
	for i, v := range x.V {
		y.V[i] = f(v)
	}
	return t.of(y, func(dy Mat) {
		dx := x.grad()
		for i, v := range x.V {
			dx.V[i] += dy.V[i] * slope(v)
		}
	})
}

// cap: c·tanh(x/c), slope 1−tanh².
func (t *tape) cap(x *node, c float64) *node {
	return t.each(x, func(v float64) float64 { return c * math.Tanh(v/c) }, func(v float64) float64 { h := math.Tanh(v / c); return 1 - h*h })
}

// sigmoid: σ(x), slope σ(1−σ).
func (t *tape) sigmoid(x *node) *node {
	return t.each(x, sigmoid, func(v float64) float64 { s := sigmoid(v); return s * (1 - s) })
}

// mul: z = x·y, element by element. A y of one row multiplies every row, one of one column every column.
func (t *tape) mul(x, y *node) *node {
	at := func(i int) int { // of y, for element i of x
		r, c := i/x.Cols, i%x.Cols
		if y.Rows == 1 {
			r = 0
		}
		if y.Cols == 1 {
			c = 0
		}
		return r*y.Cols + c
	}
	z := New(x.Rows, x.Cols)
	for i, v := range x.V {
		z.V[i] = v * y.V[at(i)]
	}
	return t.of(z, func(dz Mat) {
		dx, dy := x.grad(), y.grad()
		for i, d := range dz.V {
			dx.V[i] += d * y.V[at(i)]
			dy.V[at(i)] += d * x.V[i]
		}
	})
}

// cols: columns [lo,hi) of x.
func (t *tape) cols(x *node, lo, hi int) *node {
	return t.of(x.ColRange(lo, hi), func(dy Mat) {
		for r := range dy.Rows {
			for c, d := range dy.Row(r) {
				x.grad().Row(r)[lo+c] += d
			}
		}
	})
}
