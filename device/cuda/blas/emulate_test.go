//go:build emulate && !gpu

package blas

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"apr/device/cuda/driver"
	"apr/device/cuda/emulator"
	"apr/internal/near"
	"apr/tensor"
)

const workspaceBytes = 4 << 20

// findDriver makes the emulator the only driver that is found, and returns its folder.
func findDriver(t testing.TB) string {
	t.Helper()
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(driver.LibDirVariable, dir)
	return dir
}

// sustainedSweep is small products.
var sustainedSweep = sweep{
	shapes: func() []Shape {
		bias := trained(NT, 33, 16, 24)
		bias.Bias = true
		padded := trained(NN, 5, 19, 37)
		padded.LDA = 40
		return []Shape{bias, padded, trained(TN, 17, 16, 8)}
	}(),
	ask: 24, proposed: 600 * time.Millisecond, changed: 600 * time.Millisecond, lead: time.Millisecond, timed: 4 * time.Millisecond,
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
func (r *rig) download(m matrix) []float64 {
	r.t.Helper()
	raw := make([]byte, len(m.v)*m.d.BlockBytes())
	r.do(func(th *driver.Thread) error {
		host, err := th.HostAlloc(len(raw))
		if err != nil {
			return err
		}
		err = errors.Join(th.CopyDtoH(host, m.ptr, int64(len(raw)), r.stream), th.StreamSync(r.stream))
		copy(raw, unsafe.Slice((*byte)(host), len(raw)))
		return errors.Join(err, th.HostFree(host))
	})
	out := make([]float64, len(m.v))
	for i := range out {
		if m.d == tensor.BF16 {
			out[i] = float64(tensor.BF16ToF32(binary.LittleEndian.Uint16(raw[2*i:])))
		} else {
			out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:])))
		}
	}
	return out
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
	l, _ := r.open(Options{Tune: Short})
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
	o := Options{Tune: Short, Dir: dir, Budget: time.Minute}
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

// Large products are measured under load once: by a process that wants it, even if another one has measured them shortly
// before, and never again.
func TestSustainedTuning(t *testing.T) {
	r := newRig(t)
	list, dir := shapes(), t.TempDir()
	large := 0
	const flop = 20_000
	for _, s := range list {
		if s.FLOP() >= flop {
			large++
		}
	}
	if large == 0 || large == len(list) {
		t.Fatalf("%d large shapes", large)
	}
	var told []string
	short := Options{Tune: Short, Dir: dir, Budget: time.Minute}
	long := Options{Tune: Sustained, Dir: dir, Budget: time.Minute, Load: 300 * time.Millisecond, Large: flop}
	long.Tell = func(line string) { told = append(told, line) }
	for i, step := range []struct {
		name            string
		o               Options
		told            int
		sustained, file int
	}{
		{"short", short, 0, 0, 0}, {"after short", long, 1, large, len(list) - large}, {"again", long, 1, 0, len(list)},
		{"short again", short, 1, 0, len(list)},
	} {
		log, _ := r.prewarm(step.o, list)
		sustained, file := strings.Count(log, "from=sustained\n"), strings.Count(log, "from=file\n")
		if len(told) != step.told || sustained != step.sustained || i > 0 && file != step.file {
			t.Errorf("%s: told %v, %d sustained, %d from the file:\n%s", step.name, told, sustained, file, log)
		}
	}
}

// Whatever is not close to the best stays out of the measurement under load, and the best comes first.
func TestFinalists(t *testing.T) {
	for _, tc := range []struct {
		name string
		ms   []float64
		want string
	}{
		{"one", []float64{0, 2, 0}, "[1]"}, {"none", []float64{0}, "[]"}, {"a slow one", []float64{1, 1.2, 1.05}, "[0 2]"},
		{"ordered", []float64{1.05, 0, 1.01, 1}, "[3 2 0]"}, {"many", []float64{1.01, 1.02, 1.03, 1.04, 1.05, 1}, "[5 0 1 2]"},
		{"equal", []float64{1, 1}, "[0 1]"},
	} {
		if got := fmt.Sprint((&candidates{ms: tc.ms}).finalists()); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

// A file whose algorithms the library does not propose for the shape is not obeyed.
func TestForeignChoice(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	s := dense(NT, 4, 8, 16, tensor.BF16, tensor.F32, BF16)
	path := choicesPath(dir, "emulator", r.lt.Version())
	if err := (choices{s.Key(): {"999/tile=666", 1, false}}).write(path, "emulator", r.lt.Version()); err != nil {
		t.Fatal(err)
	}
	log, _ := r.prewarm(Options{Tune: Short, Dir: dir}, []Shape{s})
	if !strings.Contains(log, "from=tuned") || strings.Contains(log, "999") {
		t.Errorf("a strange algorithm:\n%s", log)
	}
}

// When the time for measuring is over, the library's first candidate is taken and remembered, too.
func TestBudget(t *testing.T) {
	r := newRig(t)
	list, o := shapes(), Options{Tune: Short, Dir: t.TempDir(), Budget: 1}
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

// What an algorithm can do, and which changes of it the library accepts.
func TestConfigurations(t *testing.T) {
	r := newRig(t)
	l, _ := r.open(Options{})
	r.do(func(*driver.Thread) error {
		c, err := l.candidates(dense(NT, 4, 8, 16, tensor.BF16, tensor.F32, BF16))
		if err != nil {
			return err
		}
		algo := c.list[0].Algo
		for capability, want := range map[driver.LtCapability]string{
			driver.LtTiles: "[15 20 23]", driver.LtStageIDs: "[13 18 35]", driver.LtCustomMax: "[1]", driver.LtSwizzling: "[1]",
		} {
			if got, err := r.lt.Capability(&algo, capability); err != nil || fmt.Sprint(got) != want {
				t.Errorf("capability %d: %v, %v, want %s", capability, got, err, want)
			}
		}
		if _, err := r.lt.Capability(&algo, 999); !refused(err) {
			t.Errorf("an unknown capability: %v", err)
		}
		err = r.lt.SetConfig(&algo, driver.LtCluster, 5)
		if got, checkErr := r.lt.Check(l.handle, c.problem.lt, algo); checkErr != nil || got.Algo != algo {
			t.Errorf("a cluster: %v", checkErr)
		}
		err = errors.Join(err, r.lt.SetConfig(&algo, driver.LtTile, 1))
		if _, err := r.lt.Check(l.handle, c.problem.lt, algo); !refused(err) {
			t.Errorf("a strange tile: %v", err)
		}
		return errors.Join(err, c.problem.free(r.lt))
	})
}

// A batch of products, and an algorithm whose configuration is changed: what the library offers beyond plans.
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
		algo := list[0].Algo
		err = errors.Join(err, r.lt.SetConfig(&algo, driver.LtSwizzle, 1), r.lt.SetConfig(&algo, driver.LtCluster, 3))
		name, nameErr := r.lt.Describe(&algo)
		if name != "66/tile=128x128/swizzle=1/stages=18/cluster=3" {
			t.Errorf("the changed algorithm is %s", name)
		}
		call := r.lt.NewCall(l.handle, p.lt, algo, 0, r.workspace, workspaceBytes)
		return errors.Join(err, nameErr, call.Start(b.ptr, a.ptr, c.ptr, r.stream), th.StreamSync(r.stream),
			r.lt.FreePreference(pref), p.free(r.lt))
	})
	got := r.download(c)
	for i := range batch {
		part := func(x matrix, size int) matrix { return matrix{v: x.v[i*size : (i+1)*size]} }
		want := expected(s, part(a, m*k), part(b, n*k), matrix{}, matrix{})
		near.CheckRel(t, fmt.Sprintf("product %d", i), got[i*m*n:(i+1)*m*n], want, 1e-6)
	}
}
