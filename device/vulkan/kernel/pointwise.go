package kernel

import "apr/device"

// The kinds of pointwise.wgsl.
const (
	kindAdd = iota
	kindScale
	kindCap
)

// Add: y += x.
func Add(q Queue, y, x Mat) { pointwise(q, y, x, kindAdd, 0) }

// Scale: y = f·x.
func Scale(q Queue, y, x Mat, f float64) { pointwise(q, y, x, kindScale, f) }

// SoftCap: y = c·tanh(x/c).
func SoftCap(q Queue, y, x Mat, c float64) { pointwise(q, y, x, kindCap, c) }

func pointwise(q Queue, y, x Mat, kind uint32, factor float64) {
	byRows(q, y.Rows, func(lo, hi int) {
		q.Launch(Launch{"pointwise", []Mat{y.Range(lo, hi), x.Range(lo, hi)}, []uint32{uint32(y.Cols), kind, f(factor)},
			chunks(hi-lo, y.Cols)})
	}, y, x)
}

// Dropout: y = x/(1−rate), or 0 where d drops the element.
func Dropout(q Queue, y, x Mat, d device.Drop) {
	below, scale := d.Threshold()
	byRows(q, y.Rows, func(lo, hi int) {
		first := uint64(d.First+lo) * uint64(x.Cols)
		q.Launch(Launch{"dropout", []Mat{y.Range(lo, hi), x.Range(lo, hi)},
			[]uint32{uint32(y.Cols), uint32(first), uint32(first >> 32), uint32(d.Key), uint32(d.Key >> 32), below,
				f(float64(scale))}, chunks(hi-lo, y.Cols)})
	}, y, x)
}

// GLU: m = act(g)·u.
func GLU(q Queue, m, gu Mat, act device.Activation) {
	byRows(q, m.Rows, func(lo, hi int) {
		q.Launch(Launch{"glu", []Mat{m.Range(lo, hi), gu.Range(lo, hi)}, []uint32{uint32(m.Cols), uint32(act)},
			chunks(hi-lo, m.Cols)})
	}, m, gu)
}

// GLUBackward writes dgu.
func GLUBackward(q Queue, dgu, dm, gu Mat, act device.Activation) {
	byRows(q, dm.Rows, func(lo, hi int) {
		q.Launch(Launch{"glu_backward", []Mat{dgu.Range(lo, hi), dm.Range(lo, hi), gu.Range(lo, hi)},
			[]uint32{uint32(dm.Cols), uint32(act)}, chunks(hi-lo, dm.Cols)})
	}, dgu, dm, gu)
}

// Turns says how Rotate turns rows.
type Turns struct {
	Cosine, Sine Mat // [positions, half]
	Factors      Mat // [1, positions], or none
	Positions    Mat // a position for each row, or none
	Dim          int
	Length       int // of a sequence, of whose first row the position is Offset
	Offset       int
	Inverse      bool
}

// Rotate applies the rotary embedding in place.
func Rotate(q Queue, x Mat, t Turns) {
	sign := 1.0
	if t.Inverse {
		sign = -1
	}
	run := func(x Mat, offset, lo int) {
		positions := t.Positions
		if !positions.IsZero() {
			positions = part(positions, lo, lo+x.Rows)
		}
		q.Launch(Launch{"rotary", []Mat{x, t.Cosine, t.Sine, t.Factors, positions, q.Faults()},
			[]uint32{uint32(t.Cosine.Cols), uint32(t.Dim), uint32(x.Cols / t.Dim), uint32(t.Length), uint32(offset), f(sign),
				b(!positions.IsZero()), b(!t.Factors.IsZero()), uint32(t.Cosine.Rows)}, x.Rows})
	}
	if x.Span() <= q.Limit() || !t.Positions.IsZero() {
		byRows(q, x.Rows, func(lo, hi int) { run(x.Range(lo, hi), t.Offset, lo) }, x)
		return
	}
	for s := 0; s < x.Rows; s += t.Length { // so that a piece begins with its sequence, or says where in it
		rows := x.Range(s, min(x.Rows, s+t.Length))
		byRows(q, rows.Rows, func(lo, hi int) { run(rows.Range(lo, hi), t.Offset+lo, s+lo) }, rows)
	}
}
