//go:build emulate && !gpu

package cuda

import (
	"strings"
	"testing"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/tensor"
)

// besideTest is a device and one beside it, which multiplies by a matrix of the first, with a bias.
type besideTest struct {
	first, second *Device
	s, beside     *Stream
	bias          device.Tensor // of the first
	y, x          device.Tensor // of the second
	param         *device.Param
	weight        device.Weight // lent
	lent          device.Tensor // the bias
}

func newBesideTest(t *testing.T, bytes int) *besideTest {
	d := emulated(t, Options{})
	room := d.Alloc("room", device.Besides, tensor.U8, 1, bytes)
	dev, err := d.Beside(room)
	if err != nil {
		t.Fatal(err)
	}
	b := &besideTest{first: d, second: dev.(*Device), s: d.NewStream().(*Stream), beside: dev.NewStream().(*Stream)}
	t.Cleanup(func() {
		if err := b.second.Close(); err != nil {
			t.Error(err)
		}
		d.Free(room)
	})
	b.param = d.Param(device.ParamSpec{Name: "w", Rows: 8, Cols: 8})
	b.bias = d.Alloc("bias", device.StudentWeights, tensor.F32, 1, 8)
	b.weight, b.lent = dev.LendWeight(b.param.Weight), dev.Lend(b.bias)
	b.x = dev.Alloc("x", device.Batch, tensor.BF16, 1, 8)
	b.y = dev.Alloc("y", device.Batch, tensor.BF16, 1, 8)
	b.beside.Upload(b.x, []float32{1, 0, 0, 0, 0, 0, 0, 0})
	return b
}

// set queues new values on the first device: the first column of the matrix, and the bias.
func (b *besideTest) set(column, bias float32) {
	values, all := make([]float32, 64), make([]float32, 8)
	for i := range 8 {
		values[8*i], all[i] = column, bias
	}
	b.s.Upload(b.param.Value, values)
	b.s.RefreshWeight(b.param)
	b.s.Upload(b.bias, all)
}

// product is what the second device makes of them, an element of x·Wᵀ + b.
func (b *besideTest) product(t *testing.T) float32 {
	b.beside.MatMul(b.y, b.x, b.weight, b.lent, false)
	got := make([]float32, 8)
	if err := b.beside.Download(got, b.y); err != nil {
		t.Fatal(err)
	}
	return got[3]
}

// TestBesideFollows: behind Follow a second device sees what the first was given to do before, matrices and biases, of
// which it has copies, and not what the first is given after that and nobody waited for.
func TestBesideFollows(t *testing.T) {
	b := newBesideTest(t, scratchSlab+1<<20)
	b.s.Wait(t.Context())
	for i, v := range [][2]float32{{1, 10}, {2, 20}, {3, 10}} {
		b.set(v[0], v[1])
		b.second.Follow()
		b.s.Zero(b.bias) // on the emulator a stream's work is done when somebody waits for it
		if got := b.product(t); got != v[0]+v[1] {
			t.Errorf("round %d: %g, want %g", i, got, v[0]+v[1])
		}
		contracttest.Cases(t, 1)
	}
}

// TestBesideMemory: a second device takes nothing but the memory that it was given, which it refuses to exceed, and has
// scratch memory, records and counters of its own.
func TestBesideMemory(t *testing.T) {
	b := newBesideTest(t, scratchSlab+3<<20)
	b.set(1, 1)
	b.s.Wait(t.Context())
	before := b.first.Stats()
	b.second.Follow()
	b.product(t)
	now, own := b.first.Stats(), b.second.Stats()
	if now.Allocated != before.Allocated || now.Products != before.Products || own.Products != 1 {
		t.Errorf("the first device took %d bytes and ran %d products; the second one %d", now.Allocated-before.Allocated,
			now.Products-before.Products, own.Products)
	}
	lo, hi := b.second.room.end-uint64(scratchSlab+3<<20), b.second.room.end
	for name, at := range map[string]uint64{
		"scratch": b.second.scratch.base, "workspace": b.second.scratch.products, "record": b.beside.slot.device,
		"y": mat(b.y).Ptr,
	} {
		if at < lo || at >= hi {
			t.Errorf("%s at %x, outside [%x, %x)", name, at, lo, hi)
		}
	}
	x := b.second.Alloc("more", device.Logits, tensor.F32, 1<<20, 1)
	b.beside.Zero(x)
	if _, err := b.beside.Wait(t.Context()); fault.KindOf(err) != fault.Memory || !strings.Contains(err.Error(), "more") {
		t.Errorf("beyond its memory: %v", err)
	}
	if got := b.product(t); got != 2 { // it goes on
		t.Errorf("after the refusal: %g, want 2", got)
	}
	contracttest.Cases(t, 1)
}

// TestBesidePace: while a second device is open, the first one is a bounded number of launches ahead of the GPU at
// most. The emulator does nothing before somebody waits for it, so what is done shows who waited.
func TestBesidePace(t *testing.T) {
	b := newBesideTest(t, scratchSlab+1<<20)
	x := b.first.Alloc("x", device.Activations, tensor.F32, 2, 3)
	seen, column := b.second.Lend(x), x.ColRange(0, 1) // with gaps, so that a kernel writes it
	for _, v := range []struct {
		launches int
		done     float32 // of the first element, which the first launch sets to 0
	}{{paceSteps - 2, 1}, {2*paceSteps + 2, 0}} {
		b.s.Upload(x, []float32{1, 1, 1, 1, 1, 1})
		b.s.Wait(t.Context())
		b.first.pace.steps = 0
		for range v.launches {
			b.s.Zero(column)
		}
		if err := b.first.ctx.Do(func(*driver.Thread) error { return nil }); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, 6)
		if err := b.beside.Download(got, seen); err != nil {
			t.Fatal(err)
		}
		if got[0] != v.done || got[1] != 1 {
			t.Errorf("after %d launches: %v, want %g in the first column", v.launches, got, v.done)
		}
		contracttest.Cases(t, 1)
	}
}

// TestBesideRefuses: what is no dense matrix of the first device is not lent.
func TestBesideRefuses(t *testing.T) {
	b := newBesideTest(t, scratchSlab+1<<20)
	temp := b.s.Temp("temp", device.Batch, tensor.F32, 1, 8)
	own := b.second.Alloc("own", device.Batch, tensor.F32, 1, 8)
	for name, f := range map[string]func(){
		"a temp":                  func() { b.second.Lend(temp) },
		"a tensor of its own":     func() { b.second.Lend(own) },
		"a matrix in blocks":      func() { b.second.LendWeight(&weight{t: b.bias, parts: []kept{{}}}) },
		"memory that is a view":   func() { _, _ = b.first.Beside(b.bias) },
		"one beside a second one": func() { _, _ = b.second.Beside(b.second.Alloc("u", device.Besides, tensor.U8, 1, 64)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: taken", name)
				}
			}()
			f()
		}()
		contracttest.Cases(t, 1)
	}
	b.s.Release(temp)
	small := b.first.Alloc("small", device.Besides, tensor.U8, 1, 1<<20)
	if _, err := b.first.Beside(small); fault.KindOf(err) != fault.Memory {
		t.Errorf("no room for its scratch memory: %v", err)
	}
}
