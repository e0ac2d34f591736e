//go:build gpu

package cuda_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// lowRankStacks are the adapters of a layer of Qwen2.5-0.5B and of a model of 7B, by the columns of x and of what each adds to.
var lowRankStacks = []struct {
	name  string
	in    int
	out   []int
	gated bool
}{
	{"q,k,v", 896, []int{896, 128, 128}, false}, {"o", 896, []int{896}, false}, {"gate,up", 896, []int{4864, 4864}, true},
	{"down", 4864, []int{896}, false}, {"gate,up of 7B", 3584, []int{18944, 18944}, true},
}

// lowRankBench are the operands of the adapters of one stack, of 8 rows of 1024 positions and rank 32.
type lowRankBench struct {
	d              *cuda.Device
	s              device.Stream
	x, y, m, u, du device.Tensor
	l              device.LowRank
	all            []device.Tensor
	params         []*device.Param
	seed           uint32
	scale          float64 // of factors
}

func (b *lowRankBench) temp(rows, cols int) device.Tensor {
	t := b.s.Temp("adapters", device.Activations, tensor.BF16, rows, cols)
	b.all = append(b.all, t)
	b.s.Upload(t, b.random(rows*cols, 1))
	return t
}

func (b *lowRankBench) random(n int, scale float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		b.seed = b.seed*1664525 + 1013904223
		v[i] = float32(scale) * float32(int32(b.seed)) / (1 << 31)
	}
	return v
}

func (b *lowRankBench) param(rows, cols int) *device.Param {
	p := b.d.Param(device.ParamSpec{Name: fmt.Sprint("adapter ", len(b.params)), Rows: rows, Cols: cols})
	b.s.Upload(p.Value, b.random(rows*cols, b.scale/math.Sqrt(float64(cols))))
	b.s.RefreshWeight(p)
	b.params = append(b.params, p)
	return p
}

func newLowRankBench(d *cuda.Device, in int, out []int, n, rank int, scale float64) *lowRankBench {
	b := &lowRankBench{d: d, s: d.NewStream(), seed: 1, scale: scale}
	a := b.param(rank*len(out), in)
	b.l = device.LowRank{A: a.Weight, GradA: a.Grad}
	cols := 0
	for i, w := range out {
		p := b.param(w, rank)
		b.l.Parts = append(b.l.Parts, device.LowRankPart{Lo: cols, Hi: cols + w, From: i * rank, To: (i + 1) * rank, Scale: 2, B: p.Weight, GradB: p.Grad})
		cols += w
	}
	b.x, b.y, b.u, b.du = b.temp(n, in), b.temp(n, cols), b.temp(n, rank*len(out)), b.temp(n, rank*len(out))
	if cols%2 == 0 {
		b.m = b.temp(n, cols/2)
	}
	return b
}

func (b *lowRankBench) step(gated bool) {
	m := device.Tensor{}
	if gated {
		m = b.m
	}
	b.s.LowRank(b.y, m, b.u, b.x, b.l, device.SiLU)
	b.s.LowRankWeightGrad(b.du, b.y, b.x, b.u, b.l)
	b.s.LowRankInputGrad(b.x, b.du, b.l, true)
}

// TestLowRankSpeed prints the time of every operation of adapters beside the bytes that it has to move.
func TestLowRankSpeed(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	for _, c := range lowRankStacks {
		const n, rank = 8192, 32
		b := newLowRankBench(d, c.in, c.out, n, rank, .01) // what is added again and again stays small
		for range 5 {
			b.step(c.gated)
		}
		if _, err := b.s.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		d.StartProfile()
		for range 20 {
			b.step(c.gated)
		}
		if _, err := b.s.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		stats, err := d.Profile()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: x has %.1f MB, y %.1f MB", c.name, 2e-6*n*float64(c.in), 2e-6*n*float64(b.y.Cols))
		for _, st := range stats {
			t.Logf("  %-40s %7.1f µs", st.Op, st.Time.Seconds()*1e6/float64(st.Calls))
		}
		b.s.Release(b.all...)
	}
}

// TestLowRankLarge: at the sizes of a model the operations agree with products and scalings as any, and repeat their bits.
func TestLowRankLarge(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	for _, c := range lowRankStacks[:4] {
		t.Run(c.name, func(t *testing.T) {
			const n, rank = 2000, 32
			var first map[string][]float32
			for round := range 2 {
				b := newLowRankBench(d, c.in, c.out, n, rank, 1)
				got := b.results(t, func() { b.step(false) })
				b.s.Release(b.all...)
				if round == 1 {
					for name, v := range got {
						if !slices.Equal(v, first[name]) {
							t.Errorf("%s has other bits", name)
						}
					}
				}
				first = got
			}
			b := newLowRankBench(d, c.in, c.out, n, rank, 1)
			want := b.results(t, b.plainly)
			b.s.Release(b.all...)
			for name, v := range first {
				var diff, norm float64
				for i, w := range want[name] {
					diff += float64(v[i]-w) * float64(v[i]-w)
					norm += float64(w) * float64(w)
				}
				if !(math.Sqrt(diff/norm) <= .01) {
					t.Errorf("%s differs by %g of its norm", name, math.Sqrt(diff/norm))
				}
			}
		})
	}
}

// results are what a step writes.
func (b *lowRankBench) results(t *testing.T, step func()) map[string][]float32 {
	t.Helper()
	for _, p := range b.params {
		b.s.Zero(p.Grad)
	}
	step()
	out := map[string][]float32{}
	get := func(name string, x device.Tensor) {
		out[name] = make([]float32, x.Rows*x.Cols)
		if err := b.s.Download(out[name], x); err != nil {
			t.Fatal(err)
		}
	}
	get("y", b.y)
	get("u", b.u)
	get("du", b.du)
	get("dx", b.x)
	get("gradient of A", b.l.GradA)
	for i, p := range b.l.Parts {
		get(fmt.Sprint("gradient of B ", i), p.GradB)
	}
	return out
}

// plainly is step by products and scalings.
func (b *lowRankBench) plainly() {
	var none device.Tensor
	s := b.s
	s.MatMul(b.u, b.x, b.l.A, none, false)
	scaled := b.temp(b.u.Rows, b.u.Cols)
	s.Scale(scaled, b.u, 2)
	for _, p := range b.l.Parts {
		s.MatMul(b.y.ColRange(p.Lo, p.Hi), scaled.ColRange(p.From, p.To), p.B, none, true)
	}
	for _, p := range b.l.Parts {
		s.MatMulWeightGrad(p.GradB, none, b.y.ColRange(p.Lo, p.Hi), scaled.ColRange(p.From, p.To))
		s.MatMulInputGrad(b.du.ColRange(p.From, p.To), b.y.ColRange(p.Lo, p.Hi), p.B, false)
	}
	s.Scale(b.du, b.du, 2)
	s.MatMulWeightGrad(b.l.GradA, none, b.du, b.x)
	s.MatMulInputGrad(b.x, b.du, b.l.A, true)
}
