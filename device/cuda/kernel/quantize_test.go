//go:build emulate

package kernel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"apr/internal/contracttest"
	"apr/quant"
	"apr/tensor"
)

// made are rows in device memory, as MakeBlocks makes them.
type made struct {
	QuantizedRows
	values                []float32
	stored, rounded, copy []byte // memory of the device
}

// rows puts values into device memory beside places for their blocks, these at an address that is `odd` more than a
// multiple of 16.
func (l *lab) rows(d tensor.DType, values []float32, odd int) *made {
	m := &made{values: values}
	place := func(n, lead int) (uint64, []byte) {
		ptr, all := l.alloc(lead + n + 64)
		paint(all, guard)
		return ptr + uint64(lead), all[lead : lead+n : lead+n]
	}
	m.Type, m.N, m.Name, m.First = d, len(values), 7, 1000
	var in []byte
	m.Value, in = place(4*m.N, 0)
	tensor.Narrow(in, values, tensor.F32)
	m.Stored, m.stored = place(int(d.RowBytes(m.N)), 16+odd)
	m.Rounded, m.rounded = place(4*m.N, 0)
	m.Copy, m.copy = place(2*m.N, 0)
	return m
}

// check compares bytes and values with what package quant makes of them.
func (m *made) check(t *testing.T, what string, want []byte) {
	t.Helper()
	contracttest.Cases(t, 1)
	size := m.Type.BlockBytes()
	for i := 0; i < len(want); i += size {
		if !bytes.Equal(m.stored[i:i+size], want[i:i+size]) {
			t.Fatalf("%s: block %d is %x, want %x", what, i/size, m.stored[i:i+size], want[i:i+size])
		}
	}
	y := make([]float32, m.N)
	if m.Type.IsFloat() {
		tensor.Widen(y, want, m.Type)
	} else {
		quant.Dequantize(y, want, m.Type)
	}
	for i, v := range y {
		if got := binary.LittleEndian.Uint32(m.rounded[4*i:]); got != math.Float32bits(v) {
			t.Fatalf("%s: value %d is %x, want %x, %g", what, i, got, math.Float32bits(v), v)
		}
		if got := binary.LittleEndian.Uint16(m.copy[2*i:]); got != tensor.F32ToBF16(v) {
			t.Fatalf("%s: copy of value %d is %x, want %x", what, i, got, tensor.F32ToBF16(v))
		}
	}
}

// quantised is what package quant makes of values by how.
func quantised(t *testing.T, before []byte, values []float32, d tensor.DType, search bool) []byte {
	t.Helper()
	b := make([]byte, d.RowBytes(len(values)))
	copy(b, before)
	how := quant.Round
	if search {
		how = quant.Quantize
	}
	if d.IsFloat() {
		tensor.Narrow(b, values, d)
	} else if err := how(b, values, d); err != nil {
		t.Fatal(err)
	}
	return b
}

// weights are kinds of rows: those of models, and those in which a search goes its rarer ways.
var weights = []struct {
	name string
	at   func(l *lab, i int) float64
}{
	{"normal", func(l *lab, _ int) float64 { return 0.02 * l.rng.NormFloat64() }},
	{"zeros", func(*lab, int) float64 { return 0 }},
	{"minus zeros", func(*lab, int) float64 { return math.Copysign(0, -1) }},
	{"one value", func(*lab, int) float64 { return -0.37 }},
	{"one value in a group", func(_ *lab, i int) float64 { return math.Ldexp(float64(i/32%7)-3, -4) }},
	{"denormals", func(l *lab, _ int) float64 { return 1e-41 * l.rng.NormFloat64() }},
	{"tiny", func(l *lab, _ int) float64 { return 1e-6 * l.rng.NormFloat64() }},
	{"some zeros", func(l *lab, i int) float64 { return float64(i/64%2) * l.rng.NormFloat64() }},
	{"far from zero", func(l *lab, _ int) float64 { return 5 + l.rng.Float64() }},
	{"negative", func(l *lab, _ int) float64 { return -l.rng.ExpFloat64() }},
	{"two values", func(l *lab, _ int) float64 { return float64(l.rng.IntN(2)) - 0.3 }},
	{"outliers", func(l *lab, _ int) float64 {
		if l.rng.IntN(100) == 0 {
			return 60 * l.rng.NormFloat64()
		}
		return 0.02 * l.rng.NormFloat64()
	}},
	{"one outlier", func(l *lab, i int) float64 {
		if i%256 == 77 {
			return 100 * (1 - 2*float64(l.rng.IntN(2)))
		}
		return 0.02 * l.rng.NormFloat64()
	}},
	{"heavy tail", func(l *lab, _ int) float64 { return l.rng.NormFloat64() / math.Sqrt(l.rng.ExpFloat64()+1e-3) }},
	{"groups of different size", func(l *lab, i int) float64 { return math.Ldexp(l.rng.NormFloat64(), i/32%8*3-14) }},
	{"huge", func(l *lab, _ int) float64 { return max(-65504, min(65504, 40000*l.rng.NormFloat64())) }},
}

// TestMakeBlocks: the bytes of quant.Quantize, then of quant.Round under the scales that were found, and the values
// that they decode to.
func TestMakeBlocks(t *testing.T) {
	for d := range searches {
		for _, w := range weights {
			t.Run(fmt.Sprintf("%v/%s", d, w.name), func(t *testing.T) {
				l := newLab(t)
				for k, n := range []int{6 * 256, 256 + 32, 5 * 256, 20 * 256} {
					if n%d.BlockLen() != 0 {
						continue
					}
					x := make([]float32, n)
					for i := range x {
						x[i] = float32(w.at(l, i))
					}
					m := l.rows(d, x, k)
					MakeBlocks(l.op(), m.QuantizedRows, QuantizeHow{Search: true})
					found := quantised(t, nil, x, d, true)
					m.check(t, "search", found)
					for i := range x {
						x[i] = max(-65504, min(65504, x[i]+float32(0.1*l.rng.NormFloat64()*math.Abs(float64(x[i])))))
					}
					other := l.rows(d, x, 1-k%2)
					copy(other.stored, found)
					MakeBlocks(l.op(), other.QuantizedRows, QuantizeHow{})
					other.check(t, "rounding", quantised(t, found, x, d, false))
				}
			})
		}
	}
}

// TestMakeFloatRows: rows of floats are narrowed, and read as they then are.
func TestMakeFloatRows(t *testing.T) {
	for _, d := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16} {
		l := newLab(t)
		x := make([]float32, 333)
		for i := range x {
			x[i] = float32(math.Ldexp(l.rng.NormFloat64(), i%40-30))
		}
		m := l.rows(d, x, 2)
		MakeBlocks(l.op(), m.QuantizedRows, QuantizeHow{Search: true})
		m.check(t, d.String(), quantised(t, nil, x, d, true))
	}
}

// TestMakeMXFP4Scales: the scale of every magnitude near a power of two, where a logarithm that is rounded to float32
// reaches the next integer.
func TestMakeMXFP4Scales(t *testing.T) {
	l := newLab(t)
	var x []float32
	for e := 1; e < 143; e++ {
		for off := -60; off < 4; off++ {
			b := uint32(e<<23) + uint32(off)
			if v := math.Float32frombits(b); v <= quant.MaxAbs {
				x = append(x, v)
				x = append(x, make([]float32, 31)...)
			}
		}
	}
	m := l.rows(tensor.MXFP4, x, 0)
	MakeBlocks(l.op(), m.QuantizedRows, QuantizeHow{Search: true})
	m.check(t, "powers of two", quantised(t, nil, x, tensor.MXFP4, true))
}

// TestMakeRefuses: nothing changes where the verdict refused the step; a value that no block can hold is noted with its
// number.
func TestMakeRefuses(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q6_K, tensor.Q2_K, tensor.Q8_0, tensor.IQ4_NL, tensor.MXFP4, tensor.BF16} {
		l := newLab(t)
		x := make([]float32, 1024)
		for i := range x {
			x[i] = float32(l.rng.NormFloat64())
		}
		m := l.rows(d, x, 0)
		before := [][]byte{bytes.Clone(m.stored), bytes.Clone(m.rounded), bytes.Clone(m.copy)}
		for _, refuse := range []Record{{Finite: 0}, {Finite: 1, Diverged: 1}} {
			contracttest.Cases(t, 1)
			*l.rec() = refuse
			MakeBlocks(l.op(), m.QuantizedRows, QuantizeHow{Search: true, Verdict: true})
			for i, b := range [][]byte{m.stored, m.rounded, m.copy} {
				if !bytes.Equal(b, before[i]) {
					t.Errorf("%v: a refused step changed something", d)
				}
			}
		}
		*l.rec() = Record{Finite: 1}
		MakeBlocks(l.op(), m.QuantizedRows, QuantizeHow{Search: true, Verdict: true})
		m.check(t, d.String(), quantised(t, nil, x, d, true))
		if d.IsFloat() {
			continue
		}
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1)), 65505} {
			contracttest.Cases(t, 1)
			x[517] = bad
			*l.rec() = Record{}
			m := l.rows(d, x, 0)
			MakeBlocks(l.op(), m.QuantizedRows, QuantizeHow{Search: true})
			if r := l.rec(); r.Fault != FaultWeight || r.FaultValue != 1517 || r.FaultLimit != 7 {
				t.Errorf("%v: %g: fault %d, %d, %d", d, bad, r.Fault, r.FaultValue, r.FaultLimit)
			}
		}
	}
}
