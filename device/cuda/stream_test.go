//go:build emulate && !gpu

package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"testing"
	"time"

	"apr/device"
	"apr/device/cuda/blas"
	"apr/device/cuda/driver"
	"apr/device/cuda/emulator"
	"apr/tensor"
)

// emulated opens the emulated device until the end of the test.
func emulated(t *testing.T, o Options) *Device {
	t.Helper()
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(driver.LibDirVariable, dir)
	d, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// TestBiasAfterFailure: the copy of a bias that was due in a stream that has failed is not missing afterwards.
func TestBiasAfterFailure(t *testing.T) {
	d := emulated(t, Options{})
	const n = 24
	alloc := func(dt tensor.DType, rows, cols int) device.Tensor {
		return d.Alloc("t", device.TeacherWeights, dt, rows, cols)
	}
	w, x, y, bias := d.Frozen(alloc(tensor.F32, n, 8)), alloc(tensor.BF16, 1, 8), alloc(tensor.BF16, 1, n), alloc(tensor.F32, 1, n)
	want := make([]float32, n)
	for i := range want {
		want[i] = float32(1 + i)
	}
	s := d.NewStream().(*Stream)
	s.Upload(bias, want)

	broken, gate := errors.New("broken"), make(chan struct{})
	o := s.begin("broken")
	o.call(func(*driver.Thread) error {
		<-gate // until the product is queued
		return broken
	})
	o.end()
	s.MatMul(y, x, w, bias, false)
	close(gate)
	if _, err := s.Wait(context.Background()); !errors.Is(err, broken) {
		t.Fatalf("got %v, want %v", err, broken)
	}
	s.MatMul(y, x, w, bias, false)
	got := make([]float32, n)
	if err := s.Download(got, y); err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("element %d is %g, want the bias %g", i, got[i], want[i])
		}
	}
}

// TestPhases: work counts for the phase that it was given in, before and after a Wait, until the next step begins.
func TestPhases(t *testing.T) {
	d := emulated(t, Options{})
	s := d.NewStream()
	load := d.Alloc("load", device.Activations, tensor.F32, 1<<12, 1<<12)
	work := func() {
		for range 8 {
			s.Zero(load)
		}
	}
	wait := func() device.Scalars {
		t.Helper()
		sc, err := s.Wait(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return sc
	}
	check := func(what string, p [device.NumPhases]time.Duration, busy device.Phase, rest ...device.Phase) {
		t.Helper()
		for _, r := range rest {
			if !(p[busy] > 4*p[r]) {
				t.Errorf("%s: %v in phase %d, %v in phase %d", what, p[busy], busy, p[r], r)
			}
		}
	}
	wait() // whatever comes before
	s.SetScalars(device.Scalars{})
	s.Phase(device.PhaseForward)
	work()
	s.Phase(device.PhaseLoss)
	s.Zero(load.RowRange(0, 1))
	first := wait().Phases
	check("a step", first, device.PhaseForward, device.PhaseData, device.PhaseLoss, device.PhaseBackward)
	work()
	work()
	work()
	second := wait().Phases
	if second[device.PhaseForward] != first[device.PhaseForward] {
		t.Errorf("forward went from %v to %v after it", first[device.PhaseForward], second[device.PhaseForward])
	}
	if !(second[device.PhaseLoss] > first[device.PhaseForward]) {
		t.Errorf("%v of loss after a Wait, as much again as %v thrice", second[device.PhaseLoss], first[device.PhaseForward])
	}
	s.SetScalars(device.Scalars{})
	s.Phase(device.PhaseBackward)
	work()
	check("the next step", wait().Phases, device.PhaseBackward, device.PhaseData, device.PhaseForward, device.PhaseLoss)
}

// TestInternalFailure: when an operation of the device's own fails nothing can be relied on.
func TestInternalFailure(t *testing.T) {
	d := emulated(t, Options{})
	broken := errors.New("broken")
	d.queue("broken", func(*driver.Thread) error { return broken })
	if _, err := d.NewStream().Wait(context.Background()); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}

// TestDeclinedProducts: when cublasLt declines a planned product the modules that stand in for it are loaded at once.
func TestDeclinedProducts(t *testing.T) {
	served := blas.Shape{Op: blas.NT, M: 4, N: 8, K: 16, LDA: 16, LDB: 16, LDC: 8, In: tensor.F32, Out: tensor.F32, Compute: blas.F32, Aligned: true}
	declined := served
	declined.Out = tensor.BF16 // the emulated library does not narrow
	for _, c := range []struct {
		name   string
		shapes []blas.Shape
		want   bool
	}{{"none declined", []blas.Shape{served}, false}, {"one declined", []blas.Shape{served, declined}, true}} {
		d := emulated(t, Options{Compute: F32})
		if err := d.prewarm(d.modules(nil), c.shapes); err != nil {
			t.Fatal(err)
		}
		if got := d.kernels.modules["gemm_f32"]; got != c.want || d.unplanned[declined] != c.want || d.unplanned[served] {
			t.Errorf("%s: the module is loaded: %v; cublasLt's part is known to be less than all: %v", c.name, got, d.unplanned)
		}
	}
}

// TestParameterLists: more lists of parameters than are remembered, of one length and in a slice that changes, are each
// their own.
func TestParameterLists(t *testing.T) {
	d := emulated(t, Options{})
	s := d.NewStream()
	const n = mostTables + 2
	var params [n]*device.Param
	for i := range params {
		params[i] = d.Param(device.ParamSpec{Name: "p", Rows: 1, Cols: 1})
		s.Upload(params[i].Grad, []float32{float32(1 + i)})
	}
	before := scratchOf(d)
	list := make([]*device.Param, 1)
	for round := range 3 {
		for i, p := range params {
			list[0] = p
			s.SetScalars(device.Scalars{InvN: 1, BiasCorr1: 1, BiasCorr2: 1})
			s.Verdict(list)
			if sc, err := s.Wait(context.Background()); err != nil || sc.GradNorm != float64(1+i) {
				t.Errorf("round %d: norm %g of gradient %d, %v", round, sc.GradNorm, 1+i, err)
			}
		}
	}
	if held := scratchOf(d) - before; held != mostTables*alignment {
		t.Errorf("%d bytes of tables are held", held)
	}
	last := params[n-1]
	d.Free(last.Value, last.Grad, last.M, last.V)
	defer func() {
		if v := recover(); v == nil {
			t.Error("freed parameters were used")
		}
	}()
	s.Verdict(list)
}

// TestUploadBytes: what is longer than the pinned memory arrives whole.
func TestUploadBytes(t *testing.T) {
	d := emulated(t, Options{})
	s := d.NewStream().(*Stream)
	const n = ringBytes/4*2 + 5
	x, raw, got := d.Alloc("x", device.Batch, tensor.F32, 1, n), make([]byte, 4*n), make([]float32, n)
	for i := range n {
		binary.NativeEndian.PutUint32(raw[4*i:], math.Float32bits(float32(i)))
	}
	s.uploadBytes("x", x.Buf.(*buffer), raw)
	if err := s.Download(got, x); err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if v != float32(i) {
			t.Fatalf("element %d is %g", i, v)
		}
	}
}

// TestDownloadStored: values come as they are, those of rows with gaps and more than the pinned memory holds.
func TestDownloadStored(t *testing.T) {
	d := emulated(t, Options{})
	s := d.NewStream()
	for _, c := range []struct {
		t               tensor.DType
		rows, cols, gap int
	}{{tensor.BF16, 3, 5, 2}, {tensor.F32, 2, 7, 0}, {tensor.BF16, 2, ringBytes/2 + 3, 0}} {
		whole := s.Temp("x", device.Activations, c.t, c.rows, c.cols+c.gap)
		values := make([]float32, c.rows*(c.cols+c.gap))
		for i := range values {
			values[i] = float32(i%251) - 100
		}
		s.Upload(whole, values)
		x, size := whole.ColRange(0, c.cols), c.t.BlockBytes()
		got, back := make([]byte, c.rows*c.cols*size), make([]float32, c.rows*c.cols)
		if err := device.DownloadStored(s, got, x); err != nil {
			t.Fatal(err)
		}
		tensor.Widen(back, got, c.t)
		for i, v := range back {
			if at := i/c.cols*(c.cols+c.gap) + i%c.cols; v != values[at] {
				t.Fatalf("%v, element %d: %g, want %g", c, i, v, values[at])
			}
		}
		s.Release(whole)
	}
}

// TestReplacedIDs: ids that the host uploaded are not taken for those that the device has written over them.
func TestReplacedIDs(t *testing.T) {
	d := emulated(t, Options{})
	s := d.NewStream()
	table, y := d.Frozen(d.Alloc("table", device.TeacherWeights, tensor.F32, 4, 8)), d.Alloc("y", device.Activations, tensor.BF16, 1, 8)
	ids, other := d.Alloc("ids", device.Batch, tensor.I32, 1, 1), d.Alloc("other", device.Batch, tensor.I32, 1, 1)
	x := d.Alloc("x", device.Logits, tensor.F32, 1, 3) // whose largest element is its first
	for name, write := range map[string]func(){
		"ArgMax": func() { s.ArgMax(ids, device.Tensor{}, x) }, "Zero": func() { s.Zero(ids) }, "Copy": func() { s.Copy(ids, other) },
	} {
		s.UploadInts(ids, []int32{7}) // no row of the table
		write()
		s.Embed(y, table, ids)
		if _, err := s.Wait(context.Background()); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}
}

// TestLatePositions: the table of rotations at least doubles when it grows, is right at every position, and replaces its smaller self.
func TestLatePositions(t *testing.T) {
	d := emulated(t, Options{Compute: F32})
	s := d.NewStream()
	x := d.Alloc("x", device.Activations, tensor.F32, 2, 2)
	before := scratchOf(d)
	for _, c := range []struct{ first, rows int }{
		{0, leastPositions}, {leastPositions - 2, leastPositions}, {leastPositions - 1, 2 * leastPositions}, {5, 2 * leastPositions},
		{leastPositions, 2 * leastPositions}, {9000, 9002},
	} {
		s.Upload(x, []float32{1, 0, 1, 0})
		s.Rotate(x, device.Rotary{HeadDim: 2, Table: &device.Frequencies{Inv: []float64{1}}, SeqLen: 2, Offset: c.first})
		got := make([]float32, 4)
		if err := s.Download(got, x); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			sin, cos := math.Sincos(float64(c.first + i))
			if dc, ds := float64(got[2*i])-cos, float64(got[2*i+1])-sin; !(max(dc, -dc, ds, -ds) < 1e-6) {
				t.Errorf("position %d: (%g, %g), want (%g, %g)", c.first+i, got[2*i], got[2*i+1], cos, sin)
			}
		}
		if held := scratchOf(d) - before; held != (int64(c.rows)*8+alignment-1)/alignment*alignment {
			t.Errorf("from position %d: %d bytes of tables, want %d rows", c.first, held, c.rows)
		}
	}
}

// TestMistakes: tensors that were released, or that another device has, are mistakes of the program.
func TestMistakes(t *testing.T) {
	d, other := emulated(t, Options{}), emulated(t, Options{})
	s := d.NewStream()
	released := s.Temp("x", device.Activations, tensor.F32, 1, 1)
	s.Release(released)
	freed := d.Alloc("y", device.Activations, tensor.F32, 1, 1)
	d.Free(freed)
	for _, c := range []struct {
		name string
		f    func()
	}{
		{"a released temp", func() { s.Zero(released) }}, {"released twice", func() { s.Release(released) }},
		{"a freed tensor", func() { s.Zero(freed) }}, {"freed twice", func() { d.Free(freed) }},
		{"of another device", func() { s.Zero(other.Alloc("z", device.Activations, tensor.F32, 1, 1)) }},
		{"a temp that is freed", func() { d.Free(s.Temp("t", device.Activations, tensor.F32, 1, 1)) }},
		{"a tensor that is released", func() { s.Release(d.Alloc("u", device.Activations, tensor.F32, 1, 1)) }},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", c.name)
				}
			}()
			c.f()
		}()
	}
}

// TestTargetBudget: what the device has taken already is part of a plan's budget.
func TestTargetBudget(t *testing.T) {
	d := emulated(t, Options{})
	before := d.Target().Budget
	d.Alloc("x", device.Activations, tensor.F32, 1<<13, 1<<13)
	if after := d.Target().Budget; before == 0 || after != before {
		t.Errorf("the budget went from %d to %d bytes", before, after)
	}
}

// TestFree: with a tensor go the copies that were made of it.
func TestFree(t *testing.T) {
	d := emulated(t, Options{})
	s := d.NewStream()
	now := func() int64 {
		all, _ := d.Memory()
		n := int64(0)
		for _, bytes := range all {
			n += bytes
		}
		return n
	}
	before := now()
	bias, w := d.Alloc("bias", device.TeacherWeights, tensor.F32, 1, 64), d.Alloc("w", device.TeacherWeights, tensor.F32, 64, 64)
	x := d.Alloc("x", device.Activations, tensor.BF16, 64, 64)
	s.MatMul(x, x, d.Frozen(w), bias, false)
	if _, err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	if want := before + 64*4 + 64*64*4 + 64*64*2 + 64*64*2 + 256; now() != want {
		t.Errorf("%d bytes are held, want %d", now(), want)
	}
	d.Free(bias, w, x)
	if now() != before {
		t.Errorf("%d bytes are held, %d before", now(), before)
	}
}

// scratchOf returns the bytes of scratch that are held.
func scratchOf(d *Device) int64 {
	now, _ := d.Memory()
	return now[device.Scratch]
}
