//go:build emulate

package blas

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"apr/device/cuda/driver"
	"apr/device/cuda/emulator"
	"apr/internal/near"
	"apr/tensor"
)

// rig is an emulated device with cublasLt.
type rig struct {
	t         testing.TB
	ctx       *driver.Context
	lt        *driver.Lt
	stream    driver.Stream
	workspace uint64
	rng       *rand.Rand
}

const workspaceBytes = 4 << 20

func newRig(t testing.TB) *rig {
	t.Helper()
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(driver.LibDirVariable, dir)
	d, err := driver.Open()
	if err != nil {
		t.Fatal(err)
	}
	lt, report, err := driver.OpenLt(d.Version())
	if err != nil {
		t.Fatal(err)
	}
	if lt.Path() != report.Path || !strings.HasPrefix(lt.Path(), dir) || lt.Version() < 120000 {
		t.Fatalf("opened %s of version %d, reported %+v", lt.Path(), lt.Version(), report)
	}
	ctx, err := d.NewContext(0)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, ctx: ctx, lt: lt, rng: rand.New(rand.NewPCG(3, 4))}
	t.Cleanup(func() {
		if err := ctx.Close(); err != nil {
			t.Error(err)
		}
	})
	r.do(func(th *driver.Thread) (err error) {
		if r.stream, err = th.NewStream(); err != nil {
			return err
		}
		r.workspace, err = th.Alloc(workspaceBytes, false)
		return err
	})
	return r
}

func (r *rig) do(f func(*driver.Thread) error) {
	r.t.Helper()
	if err := r.ctx.Do(f); err != nil {
		r.t.Fatal(err)
	}
}

// open makes a Library that logs to the result.
func (r *rig) open(o Options) (*Library, *strings.Builder) {
	r.t.Helper()
	log := new(strings.Builder)
	o.Workspace, o.Bytes, o.Device = r.workspace, workspaceBytes, "emulator"
	o.Log = func(line string) { fmt.Fprintln(log, line) }
	var l *Library
	r.do(func(th *driver.Thread) (err error) {
		l, err = Open(th, r.lt, o)
		return err
	})
	r.t.Cleanup(func() { r.do(l.Close) })
	return l, log
}

// matrix is a matrix in device memory, and its values.
type matrix struct {
	ptr  uint64
	d    tensor.DType
	v    []float64 // ld values for each row
	base uint64    // of the allocation
}

// upload makes a matrix of random values with NaN between its rows, and off elements into an allocation.
func (r *rig) upload(d tensor.DType, rows, cols, ld, off int) matrix {
	r.t.Helper()
	m := matrix{d: d, v: make([]float64, rows*ld)}
	size := d.BlockBytes()
	raw := make([]byte, (rows*ld+off)*size)
	for i := range m.v {
		x := float32(math.NaN())
		if i%ld < cols {
			x = float32(r.rng.NormFloat64())
		}
		if d == tensor.BF16 {
			b := tensor.F32ToBF16(x)
			binary.LittleEndian.PutUint16(raw[(off+i)*size:], b)
			x = tensor.BF16ToF32(b)
		} else {
			binary.LittleEndian.PutUint32(raw[(off+i)*size:], math.Float32bits(x))
		}
		m.v[i] = float64(x)
	}
	r.do(func(th *driver.Thread) (err error) {
		if m.base, err = th.Alloc(int64(len(raw)), false); err != nil {
			return err
		}
		host, err := th.HostAlloc(len(raw))
		if err != nil {
			return err
		}
		copy(unsafe.Slice((*byte)(host), len(raw)), raw)
		return errors.Join(th.CopyHtoD(m.base, host, int64(len(raw)), r.stream), th.StreamSync(r.stream), th.HostFree(host))
	})
	m.ptr = m.base + uint64(off*size)
	r.t.Cleanup(func() { r.do(func(th *driver.Thread) error { return th.Free(m.base) }) })
	return m
}

// download returns the matrix's values as they are now.
func (r *rig) download(m matrix) (v []float64) {
	r.t.Helper()
	r.do(func(th *driver.Thread) (err error) {
		v, err = r.downloadHere(th, m)
		return err
	})
	return v
}

// downloadHere is download on the device's thread.
func (r *rig) downloadHere(th *driver.Thread, m matrix) ([]float64, error) {
	raw := make([]byte, len(m.v)*m.d.BlockBytes())
	host, err := th.HostAlloc(len(raw))
	if err != nil {
		return nil, err
	}
	err = errors.Join(th.CopyDtoH(host, m.ptr, int64(len(raw)), r.stream), th.StreamSync(r.stream))
	copy(raw, unsafe.Slice((*byte)(host), len(raw)))
	if err = errors.Join(err, th.HostFree(host)); err != nil {
		return nil, err
	}
	out := make([]float64, len(m.v))
	for i := range out {
		if m.d == tensor.BF16 {
			out[i] = float64(tensor.BF16ToF32(binary.LittleEndian.Uint16(raw[2*i:])))
		} else {
			out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:])))
		}
	}
	return out, nil
}

// operandsOf makes the matrices of a shape.
func (r *rig) operandsOf(s Shape) (a, b, c, bias matrix) {
	off := 0
	if !s.Aligned {
		off = 1
	}
	ma, mb := s.operands()
	a = r.upload(s.In, ma.rows, ma.cols, s.LDA, off)
	b = r.upload(s.In, mb.rows, mb.cols, s.LDB, off)
	c = r.upload(s.Out, s.M, s.N, s.LDC, off)
	if s.Bias {
		bias = r.upload(s.Out, 1, s.N, s.N, off)
	}
	return a, b, c, bias
}

// expected is c after the product.
func expected(s Shape, a, b, c, bias matrix) []float64 {
	out := make([]float64, s.M*s.N)
	for i := range s.M {
		for j := range s.N {
			sum := 0.0
			for k := range s.K {
				switch s.Op {
				case NT:
					sum += a.v[i*s.LDA+k] * b.v[j*s.LDB+k]
				case NN:
					sum += a.v[i*s.LDA+k] * b.v[k*s.LDB+j]
				default:
					sum += a.v[k*s.LDA+i] * b.v[k*s.LDB+j]
				}
			}
			if s.Bias {
				sum += bias.v[j]
			}
			if s.Add {
				sum += c.v[i*s.LDC+j]
			}
			out[i*s.N+j] = sum
		}
	}
	return out
}

// rows takes the matrix out of its padding, which must still be NaN.
func (r *rig) rows(s Shape, v []float64) []float64 {
	r.t.Helper()
	var out []float64
	for i := range s.M {
		out = append(out, v[i*s.LDC:i*s.LDC+s.N]...)
		for _, x := range v[i*s.LDC+s.N : (i+1)*s.LDC] {
			if !math.IsNaN(x) {
				r.t.Fatalf("%s: wrote beyond row %d", s.Key(), i)
			}
		}
	}
	return out
}

// run runs a plan once and waits.
func (r *rig) run(p *Plan, a, b, c, bias matrix) {
	r.t.Helper()
	r.do(func(th *driver.Thread) error {
		return errors.Join(p.Run(th, r.stream, c.ptr, a.ptr, b.ptr, bias.ptr), th.StreamSync(r.stream))
	})
}

// shapes are products of all forms, types and options, some with padded rows or odd addresses.
func shapes() (list []Shape) {
	for _, op := range []Op{NT, NN, TN} {
		for i, types := range []struct {
			in, out tensor.DType
			c       Compute
		}{{tensor.BF16, tensor.BF16, BF16}, {tensor.BF16, tensor.F32, BF16}, {tensor.F32, tensor.F32, F32}, {tensor.F32, tensor.F32, TF32}} {
			s := dense(op, 5, 19+i, 37, types.in, types.out, types.c)
			s.Bias, s.Add = i%2 == 0, op == TN
			list = append(list, s)
			s = dense(op, 33, 16, 24, types.in, types.out, types.c)
			s.LDA, s.LDB, s.LDC, s.Aligned, s.Add = s.LDA+8, s.LDB+3, s.LDC+1, false, i%2 == 0
			s.Bias = !s.Add
			list = append(list, s)
		}
	}
	return list
}

func TestProducts(t *testing.T) {
	r := newRig(t)
	l, _ := r.open(Options{})
	for _, s := range shapes() {
		a, b, c, bias := r.operandsOf(s)
		var p *Plan
		r.do(func(th *driver.Thread) (err error) {
			p, err = l.Plan(th, s)
			return err
		})
		r.run(p, a, b, c, bias)
		tol := map[Compute]float64{BF16: 1e-6, F32: 1e-6, TF32: 2e-3}[s.Compute]
		if s.Out == tensor.BF16 {
			tol = 4e-3
		}
		near.CheckRel(t, s.Key(), r.rows(s, r.download(c)), expected(s, a, b, c, bias), tol)
	}
	if l.Plans() != len(shapes()) {
		t.Errorf("%d plans for %d shapes", l.Plans(), len(shapes()))
	}
}

// A plan is made once, serves any address, and allocates nothing.
func TestRunAgain(t *testing.T) {
	r := newRig(t)
	l, log := r.open(Options{})
	s := dense(NT, 4, 8, 16, tensor.F32, tensor.F32, F32)
	s.Bias = true
	for range 2 {
		a, b, c, bias := r.operandsOf(s)
		r.do(func(th *driver.Thread) error {
			p, err := l.Plan(th, s)
			if err != nil {
				return err
			}
			if n := testing.AllocsPerRun(20, func() { err = errors.Join(err, p.Run(th, r.stream, c.ptr, a.ptr, b.ptr, bias.ptr)) }); n > 1 {
				t.Errorf("%v allocations a run", n)
			}
			return errors.Join(err, th.StreamSync(r.stream))
		})
		near.CheckRel(t, s.Key(), r.download(c), expected(s, a, b, c, bias), 1e-6)
	}
	if n := strings.Count(log.String(), "event=plan"); n != 1 {
		t.Errorf("%d plans:\n%s", n, log)
	}
}

func TestUnsupported(t *testing.T) {
	r := newRig(t)
	l, _ := r.open(Options{Tune: true})
	no := dense(NT, 4, 8, 16, tensor.F32, tensor.BF16, F32) // the emulator's library does not narrow
	yes := dense(NT, 4, 8, 16, tensor.F32, tensor.F32, F32)
	empty := dense(NT, 4, 8, 0, tensor.F32, tensor.F32, F32)
	r.do(func(th *driver.Thread) error {
		for _, s := range []Shape{no, empty} {
			if _, err := l.Plan(th, s); !errors.Is(err, ErrUnsupported) {
				t.Errorf("%s: %v", s.Key(), err)
			}
		}
		none, err := l.Prewarm(th, r.stream, []Shape{no, yes, empty, yes}, Region{})
		if len(none) != 2 || l.Plans() != 1 {
			t.Errorf("unsupported %v, %d plans", none, l.Plans())
		}
		return err
	})
}

// prewarm opens a Library on dir, prewarms it and returns the log and the results of all shapes.
func (r *rig) prewarm(o Options, list []Shape) (log string, results [][]float64) {
	r.t.Helper()
	l, lines := r.open(o)
	r.do(func(th *driver.Thread) error {
		none, err := l.Prewarm(th, r.stream, list, Region{})
		if len(none) > 0 {
			r.t.Errorf("unsupported: %v", none)
		}
		return err
	})
	made := l.Plans()
	r.rng = rand.New(rand.NewPCG(5, 6))
	for _, s := range list {
		a, b, c, bias := r.operandsOf(s)
		var p *Plan
		r.do(func(th *driver.Thread) (err error) {
			p, err = l.Plan(th, s)
			return err
		})
		r.run(p, a, b, c, bias)
		results = append(results, r.download(c))
	}
	if l.Plans() != made {
		r.t.Errorf("%d plans were made after Prewarm", l.Plans()-made)
	}
	return lines.String(), results
}

// The first process measures and remembers, the second reads and does not measure, a spoilt file is measured anew.
func TestTuning(t *testing.T) {
	r := newRig(t)
	list, dir := shapes(), t.TempDir()
	o := Options{Tune: true, Dir: dir, Budget: time.Minute}
	count := func(log, from string) int { return strings.Count(log, "from="+from+"\n") }

	untuned, plain := r.prewarm(Options{}, list)
	if count(untuned, "heuristic") != len(list) {
		t.Errorf("without tuning:\n%s", untuned)
	}
	first, tuned := r.prewarm(o, list)
	if count(first, "tuned") != len(list) || strings.Contains(first, "ms=0.0000 ") {
		t.Errorf("first process:\n%s", first)
	}
	second, again := r.prewarm(o, list)
	if count(second, "file") != len(list) {
		t.Errorf("second process:\n%s", second)
	}
	if strings.ReplaceAll(first, "from=tuned", "from=file") != second {
		t.Errorf("the choices differ:\n%s\n%s", first, second)
	}
	if fmt.Sprint(tuned) != fmt.Sprint(again) {
		t.Error("the second process computes other bits")
	}
	for i := range plain {
		near.CheckRel(t, list[i].Key(), r.rows(list[i], tuned[i]), r.rows(list[i], plain[i]), 1e-2)
	}

	path := choicesPath(dir, "emulator", r.lt.Version())
	if err := os.WriteFile(path, []byte(`{"device":`), 0o600); err != nil {
		t.Fatal(err)
	}
	third, _ := r.prewarm(o, list)
	if count(third, "tuned") != len(list) || !strings.Contains(third, "event=ignored file=") {
		t.Errorf("with a spoilt file:\n%s", third)
	}
	fourth, _ := r.prewarm(o, list)
	if count(fourth, "file") != len(list) || strings.Contains(fourth, "ignored") {
		t.Errorf("after a spoilt file:\n%s", fourth)
	}
}

// Every product is measured on the same values, whatever the one before left there; memory beyond is not touched.
func TestFreshOperands(t *testing.T) {
	r := newRig(t)
	l, _ := r.open(Options{})
	const room = 3 << 20
	pattern := make([]uint16, patternBytes/2)
	normalBF16(pattern)
	scratch := r.upload(tensor.BF16, 1, room/2, room/2, 0)
	r.do(func(th *driver.Thread) (err error) {
		u := &tuner{lib: l, t: th, s: r.stream, scratch: Region{scratch.ptr, room}}
		defer func() { err = errors.Join(err, u.close()) }()
		if err := u.open(8); err != nil {
			return err
		}
		for _, s := range []Shape{
			dense(NT, 64, 8, 16, tensor.BF16, tensor.F32, BF16), dense(NT, 1100, 2, 520, tensor.BF16, tensor.BF16, BF16),
		} {
			c, err := l.candidates(s)
			if err != nil {
				return err
			}
			if _, err := u.warm(c); err != nil {
				return err
			}
			got, err := r.downloadHere(th, scratch)
			if err = errors.Join(err, c.problem.free(l.lt)); err != nil {
				return err
			}
			_, _, out, end := s.place(0)
			for i, x := range got {
				if want := float64(tensor.BF16ToF32(pattern[i%len(pattern)])); i < int(out/2) && x != want {
					return fmt.Errorf("%s: operand %d is %v, want %v", s.Key(), i, x, want)
				}
				if i >= int(end/2) && x != scratch.v[i] {
					return fmt.Errorf("%s: %d bytes, and byte %d was written", s.Key(), end, 2*i)
				}
			}
		}
		return nil
	})
}

// Memory that is too small for a product's operands is not used for them.
func TestSmallScratch(t *testing.T) {
	r := newRig(t)
	l, log := r.open(Options{Tune: true, Budget: time.Minute})
	const room = 512
	scratch := r.upload(tensor.F32, 1, 1<<14, 1<<14, 0)
	r.do(func(th *driver.Thread) error {
		_, err := l.Prewarm(th, r.stream, shapes(), Region{scratch.ptr, room})
		return err
	})
	if got := r.download(scratch); !slices.Equal(got[room/4:], scratch.v[room/4:]) || !strings.Contains(log.String(), "from=tuned") {
		t.Errorf("memory beyond the scratch was overwritten, or nothing was measured:\n%s", log)
	}
}

// A file whose algorithms the library does not propose for the shape is not obeyed.
func TestForeignChoice(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	s := dense(NT, 4, 8, 16, tensor.BF16, tensor.F32, BF16)
	path := choicesPath(dir, "emulator", r.lt.Version())
	if err := (choices{s.Key(): {"999/tile=666", 1}}).write(path, "emulator", r.lt.Version()); err != nil {
		t.Fatal(err)
	}
	log, _ := r.prewarm(Options{Tune: true, Dir: dir}, []Shape{s})
	if !strings.Contains(log, "from=tuned") || strings.Contains(log, "999") {
		t.Errorf("a strange algorithm:\n%s", log)
	}
}

// When the time for measuring is over, the library's first candidate is taken and remembered, too.
func TestBudget(t *testing.T) {
	r := newRig(t)
	list, o := shapes(), Options{Tune: true, Dir: t.TempDir(), Budget: 1}
	first, _ := r.prewarm(o, list)
	if n := strings.Count(first, "from=heuristic"); n != len(list) {
		t.Errorf("%d of %d shapes were not measured:\n%s", n, len(list), first)
	}
	second, _ := r.prewarm(o, list)
	if strings.ReplaceAll(first, "from=heuristic", "from=file") != second {
		t.Errorf("the choices differ:\n%s\n%s", first, second)
	}
}

// No algorithm adds the inner dimension in parts, and the workspace's size is kept to.
func TestCandidates(t *testing.T) {
	r := newRig(t)
	s := dense(NT, 4, 8, 16, tensor.BF16, tensor.F32, BF16)
	for _, tc := range []struct {
		bytes int64
		want  string
	}{
		{workspaceBytes, "[66/tile=128x128/stages=18 66/tile=128x256/swizzle=1/stages=35/cluster=3 67/tile=64x64/stages=13]"},
		{1 << 17, "[66/tile=128x128/stages=18 67/tile=64x64/stages=13]"},
	} {
		l, _ := r.open(Options{})
		l.o.Bytes = tc.bytes
		r.do(func(*driver.Thread) error {
			c, err := l.candidates(s)
			if err != nil {
				return err
			}
			if got := fmt.Sprint(c.names); got != tc.want {
				t.Errorf("with %d bytes of workspace %s, want %s", tc.bytes, got, tc.want)
			}
			return c.problem.free(l.lt)
		})
	}
}

// A batch of products: what the library offers beyond plans.
func TestBatch(t *testing.T) {
	r := newRig(t)
	const batch, m, n, k = 3, 4, 8, 16
	l, _ := r.open(Options{})
	s := dense(NT, m, n, k, tensor.F32, tensor.F32, F32)
	a, b, c := r.upload(tensor.F32, batch*m, k, k, 0), r.upload(tensor.F32, batch*n, k, k, 0), r.upload(tensor.F32, batch*m, n, n, 0)
	r.do(func(th *driver.Thread) error {
		p, err := newProblem(r.lt, s)
		if err != nil {
			return err
		}
		for layout, stride := range map[driver.LtLayout]int64{p.lt.A: n * k, p.lt.B: m * k, p.lt.C: m * n} {
			err = errors.Join(err, r.lt.SetBatch(layout, batch, stride))
		}
		pref, prefErr := l.preference(s)
		list, listErr := r.lt.Heuristic(l.handle, p.lt, pref, 8)
		if err = errors.Join(err, prefErr, listErr); err != nil {
			return err
		}
		call := r.lt.NewCall(l.handle, p.lt, list[0].Algo, 0, r.workspace, workspaceBytes)
		return errors.Join(call.Start(b.ptr, a.ptr, c.ptr, r.stream), th.StreamSync(r.stream),
			r.lt.FreePreference(pref), p.free(r.lt))
	})
	got := r.download(c)
	for i := range batch {
		part := func(x matrix, size int) matrix { return matrix{v: x.v[i*size : (i+1)*size]} }
		want := expected(s, part(a, m*k), part(b, n*k), matrix{}, matrix{})
		near.CheckRel(t, fmt.Sprintf("product %d", i), got[i*m*n:(i+1)*m*n], want, 1e-6)
	}
}
