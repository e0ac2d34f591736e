//go:build emulate || gpu

package cuda_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/fault"
	"apr/quant"
	"apr/tensor"
)

// pattern is a stored matrix whose element (r,c) is a small integer that follows from r and c: exact in every type.
type pattern struct {
	rows, cols int
	d          tensor.DType
	payload    []byte       // of types that are read whole
	reads      atomic.Int64 // bytes of the largest read
	fail       int          // row that cannot be read; 0: none
}

func value(r, c int) float32 { return float32((r*131+c*7)%127 - 63) }

func (p *pattern) Info() tensor.Info {
	i := tensor.Info{Name: "pattern", DType: p.d, Shape: []int{p.rows, p.cols}, Size: int64(p.rows) * p.d.RowBytes(p.cols)}
	if p.payload != nil {
		i.Size = int64(len(p.payload))
	}
	return i
}

var errUnreadable = errors.New("bad sector")

func (p *pattern) ReadRows(dst []byte, lo, hi int) error {
	for old := p.reads.Load(); old < int64(len(dst)) && !p.reads.CompareAndSwap(old, int64(len(dst))); old = p.reads.Load() {
	}
	if p.fail > 0 && lo <= p.fail && p.fail < hi {
		return fmt.Errorf("row %d: %w", p.fail, errUnreadable)
	}
	if p.payload != nil {
		copy(dst, p.payload)
		return nil
	}
	size := int(p.d.RowBytes(p.cols))
	row := make([]float32, p.cols)
	for r := lo; r < hi; r++ {
		for c := range row {
			row[c] = value(r, c)
		}
		tensor.Narrow(dst[(r-lo)*size:(r-lo+1)*size], row, p.d)
	}
	return nil
}

// whole returns an AprQ8 matrix: one float32 scale, then a byte for each element; rows do not begin at blocks.
func whole(rows, cols int) *pattern {
	p := &pattern{rows: rows, cols: cols, d: tensor.AprQ8, payload: binary.LittleEndian.AppendUint32(nil, math.Float32bits(1))}
	for r := range rows {
		for c := range cols {
			p.payload = append(p.payload, byte(int8(value(r, c))))
		}
	}
	if n, _ := quant.PackedLen(rows*cols, tensor.AprQ8); int(n) != len(p.payload) {
		panic("another layout")
	}
	return p
}

// TestLargeWeights: matrices of many pieces arrive whole, whatever their type, and are read in bounded pieces.
func TestLargeWeights(t *testing.T) {
	findDriver(t)
	for _, compute := range []cuda.Compute{cuda.BF16, cuda.F32} {
		d := open(t, cuda.Options{Compute: compute})
		for _, src := range []*pattern{
			{rows: 7001, cols: 1027, d: tensor.BF16}, {rows: 7001, cols: 1027, d: tensor.F32}, {rows: 7001, cols: 1027, d: tensor.F16},
			{rows: 3, cols: 1 << 20, d: tensor.BF16}, {rows: 70001, cols: 5, d: tensor.BF16}, whole(3001, 1027),
		} {
			t.Run(fmt.Sprintf("%v %dx%d to %v", src.d, src.rows, src.cols, compute), func(t *testing.T) {
				w, err := d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{src, src}})
				if err != nil {
					t.Fatal(err)
				}
				if src.payload == nil && src.reads.Load() > 8<<20 {
					t.Errorf("%d bytes were read at once", src.reads.Load())
				}
				checkRows(t, d, w, src)
			})
		}
		d.Close()
	}
}

// checkRows gathers rows from all over a weight of src twice.
func checkRows(t *testing.T, d *cuda.Device, w device.Weight, src *pattern) {
	t.Helper()
	s := d.NewStream()
	const n = 97
	count := min(n, w.Rows())
	ids := make([]int32, count)
	for i := range ids {
		ids[i] = int32(i * (w.Rows() - 1) / max(1, count-1))
	}
	at := s.Temp("ids", device.Batch, tensor.I32, count, 1)
	s.UploadInts(at, ids)
	rows := s.Temp("rows", device.Activations, d.Info().Activations, count, src.cols)
	s.Embed(rows, w, at)
	got := make([]float32, count*src.cols)
	if err := s.Download(got, rows); err != nil {
		t.Fatal(err)
	}
	s.Release(rows, at)
	for i, id := range ids {
		for c := range src.cols {
			if want := value(int(id)%src.rows, c); got[i*src.cols+c] != want {
				t.Fatalf("element (%d,%d) is %g, want %g", id, c, got[i*src.cols+c], want)
			}
		}
	}
}

// blocks is a stored matrix of random blocks.
type blocks struct {
	rows, cols int
	d          tensor.DType
	data       []byte
}

func (b *blocks) Info() tensor.Info {
	return tensor.Info{Name: "blocks", DType: b.d, Shape: []int{b.rows, b.cols}, Size: int64(len(b.data))}
}

func (b *blocks) ReadRows(dst []byte, lo, hi int) error {
	if row := len(b.data) / b.rows; len(dst) != len(b.data) {
		copy(dst, b.data[lo*row:hi*row])
		return nil
	}
	copy(dst, b.data)
	return nil
}

// TestBrokenBlocks: rows that end within a block arrive as they were stored, each padded or one after the other.
func TestBrokenBlocks(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{Compute: cuda.F32})
	defer d.Close()
	for _, c := range []struct {
		layout     quant.Layout
		d          tensor.DType
		rows, cols int
	}{{quant.RowPadded, tensor.Q4_K, 5, 300}, {quant.RowPadded, tensor.Q6_K, 300, 257}, {quant.Flat, tensor.Q8_0, 7, 33}, {quant.Flat, tensor.Q4_K, 3, 300}} {
		n, _ := quant.MatrixLen(c.rows, c.cols, c.layout, c.d)
		src := &blocks{c.rows, c.cols, c.d, make([]byte, n)}
		rng := rand.New(rand.NewPCG(7, 8))
		for i := range src.data {
			src.data[i] = byte(rng.IntN(64)) // never an infinite or NaN scale
		}
		want, got := make([]float32, c.rows*c.cols), make([]float32, c.rows*c.cols)
		quant.DequantizeMatrix(want, src.data, c.rows, c.cols, c.layout, c.d)
		w, err := d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{src}})
		if err != nil {
			t.Fatal(err)
		}
		s, ids := d.NewStream(), make([]int32, c.rows)
		for i := range ids {
			ids[i] = int32(i)
		}
		at, rows := d.Alloc("ids", device.Batch, tensor.I32, c.rows, 1), d.Alloc("rows", device.Activations, tensor.F32, c.rows, c.cols)
		s.UploadInts(at, ids)
		s.Embed(rows, w, at)
		if err := s.Download(got, rows); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v %d×%d: other values", c.d, c.rows, c.cols)
		}
	}
}

// TestUnreadableWeight: the source's own error comes back, nothing is kept, and the next weight loads.
func TestUnreadableWeight(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	bad := &pattern{rows: 9001, cols: 1024, d: tensor.BF16, fail: 5000}
	_, err := d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{bad}})
	if !errors.Is(err, errUnreadable) {
		t.Errorf("got %v, want the source's error", err)
	}
	if now, _ := d.Memory(); now[device.TeacherWeights] != 0 {
		t.Errorf("%d bytes are kept", now[device.TeacherWeights])
	}
	good := &pattern{rows: 9001, cols: 1024, d: tensor.BF16}
	w, err := d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{good}})
	if err != nil {
		t.Fatal(err)
	}
	checkRows(t, d, w, good)
}

// TestImpossibleWeights: what a weight cannot be made of is told with the tensor's name, before anything is read.
func TestImpossibleWeights(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	good := &pattern{rows: 4, cols: 8, d: tensor.BF16}
	for _, c := range []struct {
		name  string
		parts []device.Source
		rows  []int
		kind  fault.Kind
		id    string
	}{
		{"another width", []device.Source{good, &pattern{rows: 4, cols: 9, d: tensor.BF16}}, nil, fault.Load, "E-CUDA-030"},
		{"too many rows", []device.Source{good}, []int{5}, fault.Load, "E-CUDA-031"},
		{"rows below zero", []device.Source{good, good}, []int{4, -1}, fault.Load, "E-CUDA-031"},
		{"too few bytes", []device.Source{&pattern{rows: 4, cols: 8, d: tensor.BF16, payload: make([]byte, 63)}}, nil, fault.Format, "E-CUDA-031"},
		{"too many bytes", []device.Source{&pattern{rows: 4, cols: 8, d: tensor.F32, payload: make([]byte, 132)}}, nil, fault.Format, "E-CUDA-031"},
		{"blocks cut short", []device.Source{&pattern{rows: 4, cols: 32, d: tensor.Q8_0, payload: make([]byte, 135)}}, nil, fault.Format, "E-CUDA-032"},
		{"integers", []device.Source{&pattern{rows: 4, cols: 8, d: tensor.I32}}, nil, fault.Load, "E-CUDA-031"},
	} {
		_, err := d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: c.parts, Rows: c.rows})
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != c.kind || f.ID != c.id || f.Place != `tensor "pattern"` {
			t.Errorf("%s: got %+v, want a fault %s of kind %v about the tensor", c.name, err, c.id, c.kind)
		}
	}
	if now, _ := d.Memory(); now[device.TeacherWeights] != 0 || good.reads.Load() != 0 {
		t.Errorf("%d bytes are kept, %d were read", now[device.TeacherWeights], good.reads.Load())
	}
}

// TestWideGradient: a gradient that is rounded in pieces overwrites what is to be zero once, and then adds.
func TestWideGradient(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	const rows, cols = 1<<18 + 100, 64 // 2¹⁸ rows are a piece
	s := d.NewStream()
	p := d.Param(device.ParamSpec{Name: "w", Rows: cols, Cols: 1})
	dy := d.Alloc("dy", device.Activations, tensor.F32, rows, cols)
	x := d.Alloc("x", device.Activations, tensor.BF16, rows, 1)
	fill := func(t device.Tensor, v float32) {
		row := make([]float32, t.Rows*t.Cols)
		for i := range row {
			row[i] = v
		}
		s.Upload(t, row)
	}
	fill(x, 1)
	fill(dy.RowRange(0, 1), 3)
	fill(dy.RowRange(rows-1, rows), 4)
	fill(p.Grad, 100)
	s.Zero(p.Grad)
	s.MatMulWeightGrad(p.Grad, device.Tensor{}, dy, x)
	got := make([]float32, cols)
	if err := s.Download(got, p.Grad); err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if v != 7 {
			t.Fatalf("element %d is %g, want 3 + 4", i, v)
		}
	}
}

// TestManyStreams: goroutines with a stream each share the device, its scratch and its pinned memory.
func TestManyStreams(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	var wait sync.WaitGroup
	for g := range 6 {
		wait.Go(func() {
			s := d.NewStream()
			const rows, cols = 300, 1001
			host, got := make([]float32, rows*cols), make([]float32, rows*cols)
			for round := range 8 {
				for i := range host {
					host[i] = float32((i*(g+3) + round) % 251)
				}
				a := s.Temp("a", device.Activations, tensor.F32, rows, cols+7).ColRange(3, 3+cols)
				b := s.Temp("b", device.Activations, tensor.BF16, rows, cols+2).ColRange(1, 1+cols)
				s.Upload(a, host)
				s.Upload(b, host)
				s.Zero(a)
				s.Upload(a, host)
				for _, x := range []device.Tensor{a, b} {
					if err := s.Download(got, x); err != nil {
						t.Error(err)
						return
					}
					for i, v := range got {
						if v != host[i] {
							t.Errorf("goroutine %d, round %d, element %d: %g, want %g", g, round, i, v, host[i])
							return
						}
					}
				}
				s.Release(a, b)
			}
			if _, err := s.Wait(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
}
