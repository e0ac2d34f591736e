//go:build emulate

package kernel

import (
	"fmt"
	"math"
	"testing"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// gemvWant computes y = x·Wᵀ + bias + y in float64, and the sizes Σ|x·w| that rounding errors go by.
func gemvWant(x ref.Mat, w []float32, bias, y *ref.Mat, out int) (want, size ref.Mat) {
	want, size = ref.New(x.Rows, out), ref.New(x.Rows, out)
	for m := range x.Rows {
		for o := range out {
			s, n := 0.0, 0.0
			for i, v := range x.Row(m) {
				p := v * float64(w[o*x.Cols+i])
				s += p
				n += math.Abs(p)
			}
			if bias != nil {
				s += bias.V[o]
			}
			if y != nil {
				s += y.V[m*out+o]
			}
			want.V[m*out+o], size.V[m*out+o] = s, n+math.Abs(s)
		}
	}
	return want, size
}

// checkGemv compares with what float32 sums of n products may differ by, and the rounding of y.
func checkGemv(t *testing.T, l *lab, y Mat, want, size ref.Mat, n int) {
	t.Helper()
	got := l.get(y)
	for i, w := range want.V {
		tol := 3 * math.Sqrt(float64(n)) * 0x1p-24 * size.V[i]
		if y.Type == tensor.BF16 {
			tol += 0x1p-8 * math.Abs(w)
		}
		if diff := math.Abs(got.V[i] - w); !(diff <= tol) {
			t.Fatalf("y[%d,%d] = %g, want %g ± %.2g", i/want.Cols, i%want.Cols, got.V[i], w, tol)
		}
	}
	if y.Type == tensor.F32 {
		near.CheckL2(t, "y", got.V, want.V, 1e-5)
	}
}

// integers rounds rows of x as products with blocks do: groups of 32 to multiples of 2⁻¹⁴ of the largest power of two in
// them, or of the one above it if the largest number is 255/256 of that.
func integers(x ref.Mat) ref.Mat {
	r := ref.New(x.Rows, x.Cols)
	for at := 0; at < len(x.V); at += 32 {
		most := 0.0
		for _, v := range x.V[at : at+32] {
			most = max(most, math.Abs(v))
		}
		unit := math.Ldexp(1, math.Ilogb(max(most*256/255, 0x1p-112))-14)
		for i, v := range x.V[at : at+32] {
			r.V[at+i] = math.RoundToEven(v/unit) * unit
		}
	}
	return r
}

// TestGemv: products with all types of blocks, of 1 … 8 rows, against float64 of the same blocks, and of bfloat16 rounded as they round it; every row of x gives the
// bits that it gives alone.
func TestGemv(t *testing.T) {
	for _, d := range blockTypes {
		for _, c := range []struct{ m, in, out, gap int }{
			{1, 256, 1, 0}, {1, 1024, 9, 0}, {2, 1280, 5, 16}, {3, 768, 20, 0}, {8, 2304, 17, 0}, {1, 3584, 24, 0}, {5, 256, 40, 0},
			{1, 32, 3, 0}, {4, 96, 8, 16}, {1, 896, 10, 0}, {7, 1184, 3, 0},
		} {
			if c.in%d.BlockLen() != 0 {
				continue
			}
			for _, types := range [][2]tensor.DType{{tensor.BF16, tensor.BF16}, {tensor.BF16, tensor.F32}, {tensor.F32, tensor.F32}, {tensor.F32, tensor.BF16}} {
				t.Run(fmt.Sprintf("%v/%dx%dx%d+%d/%v-%v", d, c.m, c.in, c.out, c.gap, types[0], types[1]), func(t *testing.T) {
					l := newLab(t)
					l.gap = c.gap
					w, values := l.blocks(d, c.out, c.in, c.gap, l.randomBlocks(d, c.out*int(d.RowBytes(c.in)), false))
					mx, mb, my := l.random(c.m, c.in, 1), l.random(1, c.out, 1), l.random(c.m, c.out, 1)
					x, bias := l.in(types[0], mx), l.in(tensor.F32, mb)
					y := l.out(types[1], c.m, c.out)
					if types[0] == tensor.BF16 {
						mx = integers(mx)
					}
					Gemv(l.op(), y, x, w, Mat{}, false)
					want, size := gemvWant(mx, values, nil, nil, c.out)
					checkGemv(t, l, y, want, size, c.in)
					checkAlone(t, l, y, x, func(y, x Mat) { Gemv(l.op(), y, x, w, Mat{}, false) })
					sum := l.inout(types[1], my)
					want, size = gemvWant(mx, values, &mb, &my, c.out)
					Gemv(l.op(), sum, x, w, bias, true)
					checkGemv(t, l, sum, want, size, c.in)
				})
			}
		}
	}
}

// TestGemvParts: parts of several types, at all alignments that a type allows, give the bits of a product of each.
func TestGemvParts(t *testing.T) {
	for name, types := range map[string][]tensor.DType{
		"mixed":    {tensor.Q4_K, tensor.Q4_K, tensor.Q6_K},
		"others":   {tensor.Q8_0, tensor.Q6_K, tensor.Q4_0},
		"five":     {tensor.Q6_K, tensor.Q6_K, tensor.Q5_K, tensor.Q4_K, tensor.Q6_K},
		"five q5":  {tensor.Q5_0, tensor.Q5_0, tensor.Q5_0, tensor.Q5_0, tensor.Q5_0},
		"one q8_0": {tensor.Q8_0},
		"mxfp4":    {tensor.MXFP4, tensor.Q4_0, tensor.MXFP4, tensor.MXFP4},
		"iq4":      {tensor.IQ4_NL, tensor.IQ4_XS, tensor.IQ4_XS, tensor.Q6_K},
	} {
		for _, m := range []int{1, 3, 6} {
			t.Run(fmt.Sprintf("%s/%d", name, m), func(t *testing.T) {
				l := newLab(t)
				const in = 2560
				x := l.in(tensor.BF16, l.random(m, in, 1))
				var parts []Blocks
				var all []int
				rows := 0
				for i, d := range types {
					n := []int{17, 3, 40, 1, 16}[i]
					w, _ := l.blocks(d, n+1, in, 0, l.randomBlocks(d, (n+1)*int(d.RowBytes(in)), false))
					parts, rows = append(parts, w.Slice(1, n+1)), rows+n
					all = append(all, n)
				}
				bias, before := l.in(tensor.F32, l.random(1, rows, 1)), l.random(m, rows, 1)
				y := l.inout(tensor.F32, before)
				GemvParts(l.op(), y, x, parts, bias, true)
				want := l.inout(tensor.F32, before)
				first := 0
				for i, n := range all {
					part, b := want, bias
					part.Ptr, part.Cols, b.Ptr, b.Cols = part.Ptr+uint64(4*first), n, b.Ptr+uint64(4*first), n
					Gemv(l.op(), part, x, parts[i], b, true)
					first += n
				}
				if string(l.bytes(y)) != string(l.bytes(want)) {
					t.Error("other bits than part by part")
				}
			})
		}
	}
}

// TestGemvSwiGLU: the product of gate and up in one kernel has the bits of Gemv, then SwiGLU.
func TestGemvSwiGLU(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.Q8_0, tensor.Q4_0, tensor.Q5_0, tensor.IQ4_NL, tensor.IQ4_XS, tensor.MXFP4} {
		for _, c := range [][3]int{{1, 1280, 24}, {1, 256, 5}, {3, 512, 9}, {8, 2304, 8}} {
			for _, keep := range []bool{true, false} {
				t.Run(fmt.Sprintf("%v/%v/%v", d, c, keep), func(t *testing.T) {
					l := newLab(t)
					l.gap = 8
					m, in, f := c[0], c[1], c[2]
					w, _ := l.blocks(d, 2*f, in, 0, l.randomBlocks(d, 2*f*int(d.RowBytes(in)), false))
					x := l.in(tensor.BF16, l.random(m, in, 1))
					gu, prod := l.out(tensor.BF16, m, 2*f), l.out(tensor.BF16, m, f)
					GemvSwiGLU(l.op(), prod, gu, x, w.Slice(0, f), w.Slice(f, 2*f), keep)
					wantGU, want := l.out(tensor.BF16, m, 2*f), l.out(tensor.BF16, m, f)
					Gemv(l.op(), wantGU, x, w, Mat{}, false)
					GLU(l.op(), want, wantGU, device.SiLU)
					if string(l.bytes(prod)) != string(l.bytes(want)) {
						t.Error("the product has other bits")
					}
					if keep && string(l.bytes(gu)) != string(l.bytes(wantGU)) {
						t.Error("gate and up have other bits")
					}
				})
			}
		}
	}
}

// checkAlone fails unless each row of y has the bits of a product of that row alone.
func checkAlone(t *testing.T, l *lab, y, x Mat, product func(y, x Mat)) {
	t.Helper()
	all := l.bytes(y)
	for r := range y.Rows {
		one := l.out(y.Type, 1, y.Cols)
		product(one, x.rows(r, r+1))
		n := len(all) / y.Rows
		if got := l.bytes(one); string(got) != string(all[r*n:(r+1)*n]) {
			t.Errorf("row %d alone gives other bits", r)
		}
	}
}

func TestGemvPlain(t *testing.T) {
	for _, types := range [][3]tensor.DType{{tensor.BF16, tensor.BF16, tensor.BF16}, {tensor.BF16, tensor.F32, tensor.F32}, {tensor.F32, tensor.F32, tensor.F32}, {tensor.F32, tensor.BF16, tensor.F32}} {
		for _, layout := range [][2]int{{0, 0}, {8, 24}, {3, 2}} {
			for _, c := range [][3]int{{1, 8, 1}, {1, 1032, 9}, {8, 1400, 7}, {3, 77, 12}, {2, 3584, 4}} {
				t.Run(fmt.Sprintf("%v/%v/%v", types, layout, c), func(t *testing.T) {
					l := newLab(t)
					l.lead, l.gap = layout[0], layout[1]
					mx, mw := l.random(c[0], c[1], 1), l.random(c[2], c[1], 1)
					x, w, y := l.in(types[1], mx), l.in(types[0], mw), l.out(types[2], c[0], c[2])
					GemvPlain(l.op(), y, x, w, Mat{}, false)
					values := make([]float32, len(mw.V))
					for i, v := range mw.V {
						values[i] = float32(v)
					}
					want, size := gemvWant(mx, values, nil, nil, c[2])
					checkGemv(t, l, y, want, size, c[1])
					checkAlone(t, l, y, x, func(y, x Mat) { GemvPlain(l.op(), y, x, w, Mat{}, false) })
				})
			}
		}
	}
}
