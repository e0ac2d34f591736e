//go:build emulate

package kernel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"apr/device/cuda/emulator"
	"apr/internal/ref"
	"apr/tensor"
)

// lab is a Queue that runs launches at once in the emulator, and a place for matrices whose surroundings are watched.
//
//	l := newLab(t)
//	x := l.in(tensor.BF16, l.random(5, 33, 1)) // input, must stay as it is
//	y := l.out(tensor.BF16, 5, 33)             // output, NaN at first
//	Double(l, y, x)
//	near.CheckRel(t, "y", l.get(y).V, want.V, 1e-2)
//
// At the end of the test every watched matrix is inspected: nothing around it may have changed, and no input.
type lab struct {
	t   testing.TB
	m   *emulator.Machine
	rng *rand.Rand

	lead, gap       int // elements before and at least after each row of matrices to come: {0,0}, {8,16}, odd numbers ...
	multiprocessors int

	record  uint64
	scratch int // bytes taken since the last call of op
	watched []watch
	memory  []uint64
}

// watch is one matrix within its surroundings.
type watch struct {
	view   Mat
	whole  []byte // of a row more above and below
	lead   int
	before []byte // content of an input; nil for others
}

// guard fills every byte around a matrix: odd, and no NaN.
const guard = 0x3b

var machine = sync.OnceValues(func() (*emulator.Machine, error) {
	var files []string
	for _, name := range slices.Compact(slices.Sorted(maps.Values(emulated))) {
		files = append(files, "testdata/"+name+".cu")
	}
	return emulator.Open(files...)
})

// emulated are modules that the emulator would leave out, by the files that have their kernels for it. For Hopper's own instructions
// hopper.h of the emulator stands in.
var emulated = map[string]string{
	fp8Module:                          "fp8_emulated",
	attentionSM90Module:                "attention_sm90_emulated",
	attentionLimitedSM90Module:         "attention_sm90_emulated",
	attentionBackwardSM90Module:        "attention_backward_sm90_emulated",
	attentionBackwardLimitedSM90Module: "attention_backward_limited_sm90_emulated",
}

func newLab(t testing.TB) *lab {
	t.Helper()
	m, err := machine()
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, m: m, rng: rand.New(rand.NewPCG(1, 2)), multiprocessors: 6}
	ptr, record := l.alloc(int(unsafe.Sizeof(Record{})))
	clear(record)
	l.record = ptr
	t.Cleanup(l.inspect)
	return l
}

// alloc returns fresh memory, full of NaN, that is freed and whose guards are checked at the end of the test.
func (l *lab) alloc(n int) (uint64, []byte) {
	ptr, memory := l.m.Alloc(n)
	l.memory = append(l.memory, ptr)
	return ptr, memory
}

// Launch implements Queue.
func (l *lab) Launch(k Launch) {
	l.t.Helper()
	if name, ok := emulated[k.Module]; ok {
		k.Module = name
	}
	if err := l.m.Run(k.Module, k.Kernel, k.Grid, k.Block, k.Shared, k.Args); err != nil {
		l.t.Fatal(err)
	}
}

// Scratch implements Queue.
func (l *lab) Scratch(n int) uint64 {
	l.t.Helper()
	if l.scratch += n; l.scratch > MaxScratch {
		l.t.Fatalf("an operation takes %d bytes of scratch, more than %d", l.scratch, MaxScratch)
	}
	ptr, _ := l.alloc(n)
	return ptr
}

// Record implements Queue.
func (l *lab) Record() uint64 { return l.record }

// Multiprocessors implements Queue.
func (l *lab) Multiprocessors() int { return l.multiprocessors }

// op begins a new operation: all scratch is free again.
func (l *lab) op() *lab {
	l.scratch = 0
	return l
}

// rec is the device's Record, for reading and writing.
func (l *lab) rec() *Record { return *(**Record)(unsafe.Pointer(&l.record)) }

// eachLayout runs f with matrices packed, with 16-byte aligned gaps, and with odd offsets.
func eachLayout(t *testing.T, f func(t *testing.T, l *lab)) {
	for _, layout := range []struct {
		name      string
		lead, gap int
	}{{"packed", 0, 0}, {"gaps", 8, 24}, {"odd", 3, 2}} {
		t.Run(layout.name, func(t *testing.T) {
			l := newLab(t)
			l.lead, l.gap = layout.lead, layout.gap
			f(t, l)
		})
	}
}

// place makes a matrix of NaN inside a buffer of guards, with a row of them above and below.
func (l *lab) place(d tensor.DType, rows, cols int) Mat {
	stride, size := l.lead+cols+l.gap, d.BlockBytes()
	ptr, whole := l.alloc((rows + 2) * stride * size)
	paint(whole, guard)
	m := Mat{ptr + uint64((stride+l.lead)*size), rows, cols, stride, d}
	w := watch{view: m, whole: whole, lead: l.lead}
	for r := range rows {
		paint(w.row(r), 0xff)
	}
	l.watched = append(l.watched, w)
	return m
}

func paint(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// row returns the bytes of row r of the matrix.
func (w watch) row(r int) []byte {
	size := w.view.Type.BlockBytes()
	at := ((r+1)*w.view.Stride + w.lead) * size
	return w.whole[at : at+w.view.Cols*size]
}

// content returns the bytes of the matrix without gaps.
func (w watch) content() []byte {
	var out []byte
	for r := range w.view.Rows {
		out = append(out, w.row(r)...)
	}
	return out
}

func (l *lab) find(m Mat) watch {
	for _, w := range l.watched {
		if w.view == m {
			return w
		}
	}
	l.t.Helper()
	l.t.Fatal("not a matrix of this lab")
	panic("unreachable")
}

// out makes an output that holds NaN. Types: F32, BF16, I32.
func (l *lab) out(d tensor.DType, rows, cols int) Mat { return l.place(d, rows, cols) }

// inout makes a matrix that the operation changes. m is rounded to d in place.
func (l *lab) inout(d tensor.DType, m ref.Mat) Mat {
	v := l.place(d, m.Rows, m.Cols)
	w := l.find(v)
	for i, x := range m.V {
		p := w.row(i / m.Cols)[i%m.Cols*d.BlockBytes():]
		switch d {
		case tensor.F32:
			binary.LittleEndian.PutUint32(p, math.Float32bits(float32(x)))
			m.V[i] = float64(float32(x))
		case tensor.BF16:
			b := tensor.F32ToBF16(float32(x))
			binary.LittleEndian.PutUint16(p, b)
			m.V[i] = float64(tensor.BF16ToF32(b))
		case tensor.I32:
			binary.LittleEndian.PutUint32(p, uint32(int32(x)))
		default:
			l.t.Fatalf("no matrices of %v", d)
		}
	}
	return v
}

// in makes an input, which must stay as it is. m is rounded to d in place, so that the reference reads what the kernel reads.
func (l *lab) in(d tensor.DType, m ref.Mat) Mat {
	v := l.inout(d, m)
	w := &l.watched[len(l.watched)-1]
	w.before = w.content()
	return v
}

// ids makes an int32 column, an input.
func (l *lab) ids(ids []int) Mat {
	m := ref.New(len(ids), 1)
	for i, id := range ids {
		m.V[i] = float64(id)
	}
	return l.in(tensor.I32, m)
}

// get returns the values of a matrix.
func (l *lab) get(v Mat) ref.Mat {
	l.t.Helper()
	w := l.find(v)
	m := ref.New(v.Rows, v.Cols)
	for i := range m.V {
		p := w.row(i / m.Cols)[i%m.Cols*v.Type.BlockBytes():]
		switch v.Type {
		case tensor.F32:
			m.V[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(p)))
		case tensor.BF16:
			m.V[i] = float64(tensor.BF16ToF32(binary.LittleEndian.Uint16(p)))
		default:
			m.V[i] = float64(int32(binary.LittleEndian.Uint32(p)))
		}
	}
	return m
}

// put writes a value, which its type holds exactly, to an element of the first row of a matrix.
func (l *lab) put(v Mat, c int, x float64) {
	l.t.Helper()
	p := l.find(v).row(0)[c*v.Type.BlockBytes():]
	if v.Type == tensor.BF16 {
		binary.LittleEndian.PutUint16(p, tensor.F32ToBF16(float32(x)))
		return
	}
	binary.LittleEndian.PutUint32(p, math.Float32bits(float32(x)))
}

// bytes returns the bytes of a matrix, row after row without gaps, to compare bits.
func (l *lab) bytes(v Mat) []byte {
	l.t.Helper()
	return l.find(v).content()
}

// random returns normal values times scale.
func (l *lab) random(rows, cols int, scale float64) ref.Mat {
	m := ref.New(rows, cols)
	for i := range m.V {
		m.V[i] = scale * l.rng.NormFloat64()
	}
	return m
}

// inspect looks at the surroundings of all matrices and at the inputs, and frees all memory.
func (l *lab) inspect() {
	for _, w := range l.watched {
		if err := w.inspect(); err != nil {
			l.t.Error(err)
		}
	}
	for _, ptr := range l.memory {
		if err := l.m.Free(ptr); err != nil {
			l.t.Error(err)
		}
	}
}

func (w watch) inspect() error {
	name := fmt.Sprintf("a matrix of %d×%d %v", w.view.Rows, w.view.Cols, w.view.Type)
	if w.before != nil && string(w.content()) != string(w.before) {
		return fmt.Errorf("%s, an input, was changed", name)
	}
	size := w.view.Type.BlockBytes()
	line := w.view.Stride * size
	for at := 0; at < len(w.whole); at += line {
		r, row := at/line-1, w.whole[at:at+line]
		outside := [][]byte{row}
		if r >= 0 && r < w.view.Rows {
			outside = [][]byte{row[:w.lead*size], row[(w.lead+w.view.Cols)*size:]}
		}
		for _, b := range outside {
			if bytes.Count(b, []byte{guard}) != len(b) {
				return fmt.Errorf("row %d, outside %s, was overwritten", r, name)
			}
		}
	}
	return nil
}
