package bench

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"apr/device"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/plan"
	"apr/tensor"
)

// Floor is what bounds a step from below: its matrix products alone, one after the other, by the kernels that the step
// itself takes, on a device that they have heated.
type Floor struct {
	Milliseconds float64 // of all products of a step: the median of the rounds that count
	Rounds       int     // rounds that count: those of the second half of the time
}

// MeasureFloor runs the matrix products of a planned step, each as often as the step does, over and over for a time. A card
// whose clock falls with its power and temperature is measured hot: what the first half of the time takes does not count.
// There are two rounds at least. Operands are random numbers; a product's results depend on no other's.
//
// free is the memory that the operands may take.
func MeasureFloor(ctx context.Context, dev device.Device, s device.Stream, p plan.Plan, free int64, d time.Duration) (Floor, error) {
	m, ok := s.(dry.Multiplier)
	if !ok {
		return Floor{}, fault.New(fault.Unavailable, "this device runs no products alone")
	}
	all := sequence(p.Record, (p.BatchSize+p.MicroRows-1)/p.MicroRows)
	a := areas{act: dev.Info().Activations}
	for _, o := range all {
		a.need(o)
	}
	if n := a.bytes(); n > free {
		return Floor{}, fault.New(fault.Memory, "the operands of products alone take %s, the step leaves %s", plan.Amount(n), plan.Amount(free))
	}
	if err := m.PrepareProducts(all); err != nil {
		return Floor{}, err
	}
	a.take(dev, s)
	defer a.release(dev, s)
	return measureRounds(ctx, d, func() error {
		for _, o := range all {
			m.Multiply(o, a.operands(o))
		}
		_, err := s.Wait(ctx)
		return err
	})
}

// measureRounds times rounds for d, two at least; those count that begin in the second half of the time.
func measureRounds(ctx context.Context, d time.Duration, round func() error) (Floor, error) {
	var cold, hot []float64
	for start := time.Now(); len(hot) == 0 || time.Since(start) < d; {
		if err := ctx.Err(); err != nil {
			return Floor{}, err
		}
		begun := time.Now()
		if err := round(); err != nil {
			return Floor{}, err
		}
		if took := ms(time.Since(begun)); len(cold) == 0 || begun.Sub(start) < d/2 {
			cold = append(cold, took)
		} else {
			hot = append(hot, took)
		}
	}
	return Floor{Percentile(hot, 50), len(hot)}, nil
}

// sequence returns the matrix products of a step one by one: phase after phase, and in a phase those of equal shapes at equal
// distances, as layers have them. The first product of a gradient overwrites it: one of all layers' in each of the
// micro-batches, and the first of the head's.
func sequence(r *dry.Record, micros int) (all []dry.Op) {
	type turn struct {
		dry.Op
		at float64
	}
	var turns []turn
	for _, c := range r.Ops {
		c.Op = dense(c.Op)
		if !c.IsProduct() || c.M == 0 || c.N == 0 {
			continue
		}
		for i := range c.Times {
			o := c.Op
			if o.Kind == device.OpMatMulWeightGrad {
				o.Add = i > 0
				if o.Phase == device.PhaseBackward {
					o.Add = i >= max(1, c.Times/int64(micros))
				}
			}
			turns = append(turns, turn{o, (float64(i) + 0.5) / float64(c.Times)})
		}
	}
	slices.SortStableFunc(turns, func(a, b turn) int { return cmp.Or(cmp.Compare(a.Phase, b.Phase), cmp.Compare(a.at, b.at)) })
	for _, t := range turns {
		all = append(all, t.Op)
	}
	return all
}

// dense returns a product of experts as one product of all rows with one matrix: kernels of single experts would leave
// most of a device without work, and no split of the rows is faster than none.
func dense(o dry.Op) dry.Op {
	switch o.Kind {
	case device.OpGroupedMatMul:
		o.Kind = device.OpMatMul
	case device.OpGroupedInputGrad:
		o.Kind = device.OpMatMulInputGrad
	case device.OpGroupedWeightGrad:
		o.Kind = device.OpMatMulWeightGrad
	}
	return o
}

// areas are the memory of operands: products take turns in it.
type areas struct {
	act               tensor.DType
	in, other         area // of the type of activations
	pairs, otherPairs area // of products in 8-bit floats
	vector, vector2   area // float32: biases, scales of rows
	out               area // float32, read as any type
}

// area is a piece of memory of n elements.
type area struct {
	n int
	t device.Tensor
}

func (a *area) atLeast(n int) { a.n = max(a.n, n) }

// view returns the first rows·stride elements of the area as a matrix of type d.
func (a *area) view(d tensor.DType, rows, cols, stride int) device.Tensor {
	t := a.t
	t.Rows, t.Cols, t.Stride, t.DType = rows, cols, stride, d
	return t
}

// shapes returns rows, columns and stride of both operands.
func shapes(o dry.Op, act tensor.DType) (in, other [3]int) {
	in, other = [3]int{o.M, o.K, o.K}, [3]int{o.N, o.K, o.K}
	switch o.Kind {
	case device.OpMatMulInputGrad:
		other = [3]int{o.K, o.N, o.N}
	case device.OpMatMulWeightGrad:
		in, other = [3]int{o.K, o.M, o.M}, [3]int{o.K, o.N, o.N}
	}
	if o.In == act && !o.FP8 {
		in[2] = o.InStride
	}
	if o.FP8 {
		in, other = [3]int{o.M, o.K / 2, o.K / 2}, [3]int{o.N, o.K / 2, o.K / 2}
	}
	return in, other
}

// outBytes returns the bytes of the output and of what is made of it.
func outBytes(o dry.Op) (out, gated int) {
	size := o.Out.BlockBytes()
	out = (o.M*o.OutStride*size + 255) &^ 255
	if o.Kind == device.OpMatMulGLU {
		gated = o.M * (o.N / 2) * size
	}
	return out, gated
}

// need makes the areas large enough for a product.
func (a *areas) need(o dry.Op) {
	in, other := shapes(o, a.act)
	x, w := &a.in, &a.other
	if o.FP8 {
		x, w = &a.pairs, &a.otherPairs
	}
	x.atLeast(in[0] * in[2])
	w.atLeast(other[0] * other[2])
	out, gated := outBytes(o)
	a.out.atLeast((out + gated + 3) / 4)
	a.vector.atLeast(max(o.M, o.N))
	a.vector2.atLeast(max(o.M, o.N))
}

func (a *areas) bytes() int64 {
	size, half := int64(a.act.BlockBytes()), int64(tensor.BF16.BlockBytes())
	return size*int64(a.in.n+a.other.n) + half*int64(a.pairs.n+a.otherPairs.n) + 4*int64(a.vector.n+a.vector2.n+a.out.n)
}

// take takes the memory and fills what is read with random numbers: a processor takes less power for zeros.
func (a *areas) take(dev device.Device, s device.Stream) {
	rng := rand.New(rand.NewPCG(7, 8))
	normal := func() float32 { return float32(rng.NormFloat64()) }
	a.in.take(s, a.act, normal)
	a.other.take(s, a.act, normal)
	pair := func() float32 { return e4m3Pair(rng.NormFloat64(), rng.NormFloat64()) }
	a.pairs.take(s, tensor.BF16, pair)
	a.otherPairs.take(s, tensor.BF16, pair)
	small := func() float32 { return 0.01 * normal() }
	for _, v := range []*area{&a.vector, &a.vector2} {
		v.t = dev.Alloc("products", device.Scratch, tensor.F32, 1, v.n) // not a temp: a GPU keeps its copy of a bias that lasts
		values := make([]float32, v.n)
		for i := range values {
			values[i] = small()
		}
		s.Upload(v.t, values)
	}
	a.out.take(s, tensor.F32, nil)
}

func (a *areas) release(dev device.Device, s device.Stream) {
	s.Release(a.in.t, a.other.t, a.pairs.t, a.otherPairs.t, a.out.t)
	dev.Free(a.vector.t, a.vector2.t)
}

// operands are those of a product, in the areas.
func (a *areas) operands(o dry.Op) (m dry.Operands) {
	in, other := shapes(o, a.act)
	if o.FP8 {
		m.In, m.Other = a.pairs.view(tensor.BF16, in[0], in[1], in[2]), a.otherPairs.view(tensor.BF16, other[0], other[1], other[2])
		m.InScale, m.OtherScale = a.vector.view(tensor.F32, o.M, 1, 1), a.vector2.view(tensor.F32, o.N, 1, 1)
	} else {
		m.In, m.Other = a.in.view(a.act, in[0], in[1], in[2]), a.other.view(a.act, other[0], other[1], other[2])
	}
	m.Out = a.out.view(o.Out, o.M, o.N, o.OutStride)
	if o.Bias && o.Kind == device.OpMatMul {
		m.Bias = a.vector.view(tensor.F32, 1, o.N, o.N)
	}
	if out, gated := outBytes(o); gated > 0 {
		m.Gated = a.out.view(o.Out, o.M, o.N/2, o.N/2)
		m.Gated.Off = out / o.Out.BlockBytes()
	}
	return m
}

// Rows and columns of random numbers made for an area; the rest are copies of them.
const (
	fillCols = 4096
	fillRows = 64
)

// take takes the area's memory, if there is any, and fills it unless value is nil.
func (a *area) take(s device.Stream, d tensor.DType, value func() float32) {
	if a.n == 0 {
		return
	}
	rows := (a.n + fillCols - 1) / fillCols
	a.t = s.Temp("products", device.Scratch, d, rows, fillCols)
	if value == nil {
		s.Zero(a.t) // products add to it
		return
	}
	made := make([]float32, min(rows, fillRows)*fillCols)
	for i := range made {
		made[i] = value()
	}
	s.Upload(a.t.RowRange(0, min(rows, fillRows)), made)
	for done := fillRows; done < rows; done *= 2 {
		n := min(done, rows-done)
		s.Copy(a.t.RowRange(done, done+n), a.t.RowRange(0, n))
	}
}

// e4m3Pair returns the bfloat16 number whose bytes are two numbers in e4m3, the nearest to x and y times 100.
func e4m3Pair(x, y float64) float32 {
	return math.Float32frombits(uint32(e4m3(100*x))<<24 | uint32(e4m3(100*y))<<16)
}

// e4m3 returns the number next to x in magnitude, at most 448.
func e4m3(x float64) byte {
	const largest = 0x7e
	at := byte(sort.Search(largest, func(i int) bool { return float64(tensor.F8E4M3ToF32(byte(i))) >= math.Abs(x) }))
	if math.Signbit(x) {
		at |= 0x80
	}
	return at
}
