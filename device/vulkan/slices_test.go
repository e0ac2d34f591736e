//go:build vulkan

package vulkan

import (
	"context"
	"strings"
	"testing"
	"time"

	"apr/device"
	"apr/device/devicetest"
	"apr/internal/fault"
	"apr/tensor"
)

// TestSlices: where a submission may be short only, launches are cut by groups, and the suite still passes.
func TestSlices(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	d.most = 1 << 18
	tried := map[string]int{}
	for _, c := range devicetest.Cases() {
		group, _, _ := strings.Cut(c.Name, "/")
		wide := strings.Contains(c.Name, "5000") || strings.Contains(c.Name, "32768")
		if !strings.Contains("matmul attention loss rmsnorm optimizer", group) || wide || tried[group] == 2 {
			continue
		}
		tried[group]++
		if err := c.Check(d); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	if tried["matmul"] == 0 || tried["attention"] == 0 || tried["loss"] == 0 {
		t.Errorf("%v", tried)
	}
	s := newStream(d)
	const n = 256
	x, y := s.Temp("x", device.Scratch, tensor.F32, n, n), s.Temp("y", device.Scratch, tensor.F32, n, n)
	d.wide = false
	before := d.dispatches
	s.MatMul(y, x, d.Frozen(x), device.Tensor{}, false)
	// 16 tiles of 64×64 results in 4 parts of 64 products, and 1,024 groups that add 4 parts of 64 results.
	if got, want := d.dispatches-before, 16*4+1024/(1<<18/(8*64*4)); got != want {
		t.Errorf("%d dispatches, want %d", got, want)
	}
	s.Release(x, y)
}

// TestProgramSubmissions: one launch of an adapter that a program imitates is submitted in parts of about a second,
// which a watchdog sees end.
func TestProgramSubmissions(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	s := newStream(d)
	const rows, n = 1024, 2048
	x, y := s.Temp("x", device.Scratch, tensor.F32, rows, n), s.Temp("y", device.Scratch, tensor.F32, rows, rows)
	defer s.Release(x, y)
	s.Zero(x)
	if _, err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	before := d.Ended()
	s.MatMul(y, x, d.Frozen(x), device.Tensor{}, false)
	if _, err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got, want := d.Ended()-before, int64(rows*rows*n/mostOfProgram); d.adapter.ByName && got < want {
		t.Errorf("%d pieces of work ended, want %d at least", got, want)
	}
}

// TestHung: work that does not end in time makes the device unusable, of kind Hung, and Close does not wait.
func TestHung(t *testing.T) {
	d := open(t, Options{})
	s := newStream(d)
	const n = 1024
	x, y := s.Temp("x", device.Scratch, tensor.F32, n, n), s.Temp("y", device.Scratch, tensor.F32, n, n)
	s.Zero(x)
	d.patience = time.Microsecond
	for range 4 {
		s.MatMul(y, x, d.Frozen(x), device.Tensor{}, false)
	}
	err := s.Download(make([]float32, n*n), y)
	if fault.KindOf(err) != fault.Hung || !strings.Contains(err.Error(), "E-VULKAN-035") {
		t.Fatalf("%v, want that it has not ended", err)
	}
	start := time.Now()
	if err := d.Close(); fault.KindOf(err) != fault.Hung || time.Since(start) > time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

// TestFull: memory that is not there is a fault of kind Memory.
func TestFull(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	s := newStream(d)
	x := s.Temp("too much", device.Scratch, tensor.F32, 1<<20, 1<<20)
	s.Zero(x)
	if err := s.Download(make([]float32, 1), x.RowRange(0, 1).ColRange(0, 1)); fault.KindOf(err) != fault.Memory {
		t.Errorf("%v, want one of memory", err)
	}
}
