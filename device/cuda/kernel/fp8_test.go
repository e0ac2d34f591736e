//go:build emulate

package kernel

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"sort"
	"testing"

	"apr/device"
	"apr/tensor"
)

// e4m3Values are the numbers that codes 0 … 126 stand for, by the format's definition.
var e4m3Values = func() (v [127]float64) {
	for c := range v {
		e, man := c>>3, float64(c&7)
		if e == 0 {
			v[c] = math.Ldexp(man/8, -6)
		} else {
			v[c] = math.Ldexp(1+man/8, e-7)
		}
	}
	return v
}()

// toE4M3 finds the nearest number, of two the one with an even code, by search.
func toE4M3(x float32) byte {
	if x != x {
		return 0x7f
	}
	a := math.Abs(float64(x))
	best := min(sort.SearchFloat64s(e4m3Values[:], a), 126)
	if best > 0 {
		if above, below := e4m3Values[best]-a, a-e4m3Values[best-1]; below < above || below == above && best%2 == 1 {
			best--
		}
	}
	return byte(best) | byte(math.Float32bits(x)>>31<<7)
}

// e4m3 makes a matrix of bytes of which those between rows are watched, by the lab's matrices of type U8.
func (l *lab) e4m3(rows, cols, stride int) (Bytes, Mat) {
	l.lead, l.gap = 0, stride-cols
	m := l.out(tensor.U8, rows, cols)
	if m.Ptr%8 != 0 {
		l.t.Fatal("rows of bytes are not aligned")
	}
	return Bytes{m.Ptr, rows, cols, m.Stride}, m
}

func TestQuantizeRows(t *testing.T) {
	for _, c := range []struct{ rows, cols, gap int }{
		{1, 8, 0}, {5, 136, 8}, {3, 3584, 0}, {2, 9472, 24}, {4, 896, 0}, // with rows side by side:
		{19, 768, 0}, {8, 1024, 8}, {9, 1032, 0}, {6, 2048, 16}, {3, 4096, 0},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			l := newLab(t)
			mx := l.random(c.rows, c.cols, 3)
			clear(mx.Row(c.rows - 1)[c.cols/2:])
			if c.rows > 1 {
				clear(mx.Row(1))
				mx.Row(0)[3] = 1e-4
			}
			l.gap = c.gap
			x := l.in(tensor.BF16, mx)
			dst, watched := l.e4m3(c.rows, c.cols, c.cols+c.gap)
			l.gap = 3
			scale := l.out(tensor.F32, c.rows, 1)
			QuantizeRows(l.op(), dst, scale, x)
			got, scales := l.bytes(watched), l.get(scale)
			for r := range c.rows {
				amax := float32(0)
				for _, v := range mx.Row(r) {
					amax = max(amax, float32(math.Abs(v)))
				}
				s, inverse := float32(1), float32(1)
				if amax > 0 {
					s = amax / 448
					inverse = 1 / s
				}
				if float32(scales.V[r]) != s {
					t.Fatalf("scale of row %d is %g, want %g", r, scales.V[r], s)
				}
				for i, v := range mx.Row(r) {
					if g, w := got[r*c.cols+i], toE4M3(float32(v)*inverse); g != w {
						t.Fatalf("row %d, value %d: %g·%g is %#x, want %#x", r, i, v, inverse, g, w)
					}
				}
			}
		})
	}
}

// TestQuantizeGLU: bits and scales are those of GLU, rounded, and then of QuantizeRows.
func TestQuantizeGLU(t *testing.T) {
	for _, act := range []device.Activation{device.SiLU, device.GELUTanh, device.OSS, device.Sigmoid} {
		for _, c := range []struct{ rows, cols, gap int }{
			{1, 8, 0}, {11, 768, 16}, {3, 904, 8}, {5, 1064, 0}, {2, 5000, 24},
		} {
			t.Run(fmt.Sprint(act, c), func(t *testing.T) {
				l := newLab(t)
				mx := l.random(c.rows, 2*c.cols, 4)
				clear(mx.Row(c.rows - 1)[c.cols/2 : c.cols])
				l.gap = c.gap
				gu := l.in(tensor.BF16, mx)
				l.gap = 0
				glu := l.out(tensor.BF16, c.rows, c.cols)
				want, wantBytes := l.e4m3(c.rows, c.cols, c.cols)
				got, gotBytes := l.e4m3(c.rows, c.cols, c.cols+c.gap)
				l.gap = 3
				wantScale, gotScale := l.out(tensor.F32, c.rows, 1), l.out(tensor.F32, c.rows, 1)
				GLU(l.op(), glu, gu, act)
				QuantizeRows(l.op(), want, wantScale, glu)
				QuantizeGLU(l.op(), got, gotScale, gu, act)
				if a, b := l.get(wantScale).V, l.get(gotScale).V; !slices.Equal(a, b) {
					t.Errorf("scales %v, want %v", b, a)
				}
				if !bytes.Equal(l.bytes(gotBytes), l.bytes(wantBytes)) {
					t.Error("other numbers")
				}
			})
		}
	}
}

// TestQuantizeRowsBoundaries: all numbers of e4m3, those halfway between two, and their neighbours.
func TestQuantizeRowsBoundaries(t *testing.T) {
	l := newLab(t)
	var all []float64
	for c, v := range e4m3Values {
		all = append(all, v, -v)
		if c > 0 {
			mid := (v + e4m3Values[c-1]) / 2
			all = append(all, mid, -mid, mid*(1+0x1p-7), mid*(1-0x1p-7))
		}
	}
	for len(all)%8 != 0 {
		all = append(all, 0)
	}
	mx := l.random(1, len(all), 1)
	copy(mx.V, all) // the largest is 448: both scales are 1
	x := l.in(tensor.BF16, mx)
	dst, watched := l.e4m3(1, len(all), len(all))
	QuantizeRows(l.op(), dst, l.out(tensor.F32, 1, 1), x)
	for i, g := range l.bytes(watched) {
		if w := toE4M3(float32(mx.V[i])); g != w {
			t.Errorf("%g is %#x, want %#x", mx.V[i], g, w)
		}
	}
}

func TestScaleRows(t *testing.T) {
	for _, d := range floatTypes {
		for _, c := range []struct{ rows, cols, gap int }{{1, 8, 0}, {5, 136, 8}, {9, 3584, 0}, {300, 40, 16}} {
			for _, biased := range []bool{false, true} {
				t.Run(fmt.Sprint(d, c, biased), func(t *testing.T) {
					l := newLab(t)
					my, ms, mb := l.random(c.rows, c.cols, 3), l.random(c.rows, 1, 1), l.random(1, c.cols, 1)
					bias := l.in(tensor.F32, mb)
					l.gap = c.gap
					y, s := l.inout(d, my), l.in(tensor.F32, ms)
					if !biased {
						bias = Mat{}
						clear(mb.V)
					}
					ScaleRows(l.op(), y, s, bias)
					got := l.get(y)
					for i, v := range my.V {
						want := float32(v*ms.V[i/c.cols] + mb.V[i%c.cols]) // of the exact product, as a fused one
						if d == tensor.BF16 {
							want = tensor.BF16ToF32(tensor.F32ToBF16(want))
						}
						if diff := math.Abs(got.V[i] - float64(want)); !(diff <= 0x1p-22*math.Abs(v) || d == tensor.BF16 && diff <= 0x1p-7*math.Abs(float64(want))) {
							t.Fatalf("y[%d,%d] = %g, want %g", i/c.cols, i%c.cols, got.V[i], want)
						}
					}
				})
			}
		}
	}
}

func TestDequantizeE4M3(t *testing.T) {
	for _, d := range blockTypes {
		for _, c := range []struct{ rows, cols, gapSrc, gapDst int }{{1, 256, 0, 0}, {33, 1280, 0, 0}, {5, 768, 16, 8}, {9, 96, 16, 16}, {2, 9472, 0, 0}, {150, 256, 0, 0}} {
			if c.cols%d.BlockLen() != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%v/%v", d, c), func(t *testing.T) {
				l := newLab(t)
				src, want := l.blocks(d, c.rows, c.cols, c.gapSrc, l.randomBlocks(d, c.rows*int(d.RowBytes(c.cols)), false))
				other, more := l.blocks(d, 3, c.cols, 0, l.randomBlocks(d, 3*int(d.RowBytes(c.cols)), false))
				amax := float32(0)
				for _, v := range append(want, more...) {
					amax = max(amax, float32(math.Abs(float64(v))))
				}
				one, each := l.out(tensor.F32, 1, 1), l.out(tensor.F32, c.rows, 1)
				ScaleE4M3(l.op(), one, src, other, Blocks{src.Ptr, 0, c.cols, src.RowBytes, d})
				RowScalesE4M3(l.op(), each, src)
				if got := float32(l.get(one).V[0]); got != amax/448 {
					t.Fatalf("scale %g, want %g", got, amax/448)
				}
				for r, got := range l.get(each).V {
					amax := float32(0)
					for _, v := range want[r*c.cols : (r+1)*c.cols] {
						amax = max(amax, float32(math.Abs(float64(v))))
					}
					if float32(got) != amax/448 {
						t.Fatalf("scale of row %d is %g, want %g", r, got, amax/448)
					}
				}
				for _, scale := range []Mat{one, each} {
					dst, watched := l.e4m3(c.rows, c.cols, c.cols+c.gapDst)
					DequantizeE4M3(l.op(), dst, src, scale)
					scales := l.get(scale).V
					for i, g := range l.bytes(watched) {
						inverse := 1 / float32(scales[min(i/c.cols, len(scales)-1)])
						if w := toE4M3(want[i] * inverse); g != w {
							t.Fatalf("value %d of row %d: %g is %#x, want %#x", i%c.cols, i/c.cols, want[i], g, w)
						}
					}
				}
			})
		}
	}
}
