//go:build emulate

package kernel

import (
	"bytes"
	"fmt"
	"testing"

	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// product is the reference of Gemm.
func product(form GemmForm, a, b ref.Mat, m, n int) ref.Mat {
	c := ref.New(m, n)
	inner := a.Cols
	if form == GemmTN {
		inner = a.Rows
	}
	for i := range m {
		for j := range n {
			sum := 0.0
			for k := range inner {
				switch form {
				case GemmNT:
					sum += a.V[i*a.Cols+k] * b.V[j*b.Cols+k]
				case GemmNN:
					sum += a.V[i*a.Cols+k] * b.V[k*b.Cols+j]
				default:
					sum += a.V[k*a.Cols+i] * b.V[k*b.Cols+j]
				}
			}
			c.V[i*n+j] = sum
		}
	}
	return c
}

// stored returns the extents of a and b as stored; b has extra rows where that is allowed.
func gemmExtents(form GemmForm, m, n, k int) (ar, ac, br, bc int) {
	switch form {
	case GemmNT:
		return m, k, n + 2, k
	case GemmNN:
		return m, k, k + 2, n
	default:
		return k, m, k, n
	}
}

// gemmMode is an arithmetic and its tolerance.
type gemmMode struct {
	name string
	in   tensor.DType
	tf32 bool
	tol  float64
}

var gemmModes = []gemmMode{
	{"bf16", tensor.BF16, false, 1e-6}, {"f32", tensor.F32, false, 1e-6}, {"tf32", tensor.F32, true, 2e-3},
}

func TestGemm(t *testing.T) {
	shapes := [][3]int{
		{1, 1, 1}, {1, 64, 33}, {64, 64, 32}, {65, 63, 31}, {7, 130, 65}, {129, 3, 40}, {150, 140, 70}, {136, 200, 160}, {16, 24, 0}, {0, 8, 8}, {8, 0, 8},
	}
	for _, mode := range gemmModes {
		for form, name := range []string{"nt", "nn", "tn"} {
			t.Run(mode.name+"/"+name, func(t *testing.T) {
				eachLayout(t, func(t *testing.T, l *lab) {
					for i, s := range shapes {
						for _, big := range []bool{false, true} {
							if big && mode.in == tensor.BF16 {
								l.multiprocessors = 1 // tiles of 128×128
							} else if big {
								continue
							}
							checkGemm(t, l, GemmForm(form), mode, s, i%2 == 1, i%3 == 1, i%4 < 2)
							l.multiprocessors = 1000
						}
					}
				})
			})
		}
	}
}

// checkGemm compares one product with float64.
func checkGemm(t *testing.T, l *lab, form GemmForm, mode gemmMode, s [3]int, add, withBias, float bool) {
	t.Helper()
	m, n, k := s[0], s[1], s[2]
	ar, ac, br, bc := gemmExtents(form, m, n, k)
	av, bv, cv, biasV := l.random(ar, ac, 1), l.random(br, bc, 1), l.random(m, n, 3), l.random(1, n, 2)
	a, b := l.in(mode.in, av), l.in(mode.in, bv)
	out, tol := tensor.F32, mode.tol
	if !float {
		out, tol = tensor.BF16, mode.tol+4e-3
	}
	var c, bias Mat
	if add {
		c = l.inout(out, cv)
	} else {
		c = l.out(out, m, n)
	}
	if withBias {
		bias = l.in(tensor.F32, biasV)
	}
	Gemm(l.op(), form, c, a, b, bias, add, mode.tf32)
	want := product(form, av, bv, m, n)
	for i := range want.V {
		if withBias {
			want.V[i] += biasV.V[i%n]
		}
		if add {
			want.V[i] += cv.V[i]
		}
	}
	if m*n == 0 {
		return
	}
	name := fmt.Sprintf("%dx%dx%d add=%v bias=%v to %v", m, n, k, add, withBias, out)
	if k == 0 && !add && !withBias {
		tol = 0
	}
	near.CheckRel(t, name, l.get(c).V, want.V, tol)
}

// A row's bits depend on nothing but the row: not on the tile, the alignment, or the rows around it.
func TestGemmBits(t *testing.T) {
	for _, mode := range gemmModes {
		for form, name := range []string{"nt", "nn", "tn"} {
			t.Run(mode.name+"/"+name, func(t *testing.T) {
				const m, n, k = 140, 72, 104
				ar, ac, br, bc := gemmExtents(GemmForm(form), m, n, k)
				var first []byte
				for _, layout := range [][3]int{{0, 0, 1000}, {0, 0, 1}, {8, 8, 1000}, {3, 2, 1}} {
					l := newLab(t)
					l.lead, l.gap, l.multiprocessors = layout[0], layout[1], layout[2]
					a, b := l.in(mode.in, l.random(ar, ac, 1)), l.in(mode.in, l.random(br, bc, 1))
					c := l.out(tensor.F32, m, n)
					Gemm(l.op(), GemmForm(form), c, a, b, Mat{}, false, mode.tf32)
					if first == nil {
						first = l.bytes(c)
					} else if !bytes.Equal(first, l.bytes(c)) {
						t.Errorf("other bits with layout %v", layout)
					}
				}
			})
		}
	}
}
