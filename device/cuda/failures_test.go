//go:build emulate && !gpu

package cuda_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/fault"
	"apr/tensor"
)

// TestOpenErrors: what the machine lacks is said, with the exit code for it.
func TestOpenErrors(t *testing.T) {
	findDriver(t)
	for _, c := range []struct {
		name, variable, value string
		o                     cuda.Options
		kind                  fault.Kind
		says                  string
	}{
		{"no device", "APR_EMULATOR_DEVICES", "0", cuda.Options{}, fault.Unavailable, "no device"},
		{"no such device", "APR_EMULATOR_DEVICES", "2", cuda.Options{Index: 2}, fault.Unavailable, "no CUDA device 2: the driver has 2"},
		{"negative index", "APR_EMULATOR_DEVICES", "2", cuda.Options{Index: -1}, fault.Unavailable, "no CUDA device -1"},
		{"too old", "APR_EMULATOR_CC", "7.5", cuda.Options{}, fault.Unavailable, "compute capability 7.5"},
		{"driver too old", "APR_EMULATOR_DRIVER", "11040", cuda.Options{}, fault.Unavailable, "11.4"},
		{"no room for scratch", "APR_EMULATOR_MEMORY", "0x1000000", cuda.Options{}, fault.Memory, "component scratch"},
		{"bad override", "MANAGED_MEMORY", "yes", cuda.Options{}, fault.Usage, `"yes"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(c.variable, c.value)
			d, err := cuda.Open(c.o)
			if err == nil {
				d.Close()
			}
			if fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v (%v), want %v that says %q", err, fault.KindOf(err), c.kind, c.says)
			}
		})
	}
}

// TestOutOfMemory: the fault names the component, what was wanted and what is free; the device goes on working.
func TestOutOfMemory(t *testing.T) {
	findDriver(t)
	t.Setenv("APR_EMULATOR_MEMORY", "0x20000000") // 512 MiB
	d := open(t, cuda.Options{})
	defer d.Close()
	s := d.NewStream()
	check := func(what string, err error, says ...string) {
		t.Helper()
		if fault.KindOf(err) != fault.Memory {
			t.Fatalf("%s: got %v, want a fault of kind memory", what, err)
		}
		for _, w := range says {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v does not say %q", what, err, w)
			}
		}
	}
	const rows, cols = 1 << 14, 1 << 14 // 1 GiB of float32
	cache := d.Alloc("cache", device.KVCache, tensor.F32, rows, cols)
	s.Zero(cache)
	_, err := s.Wait(context.Background())
	check("Alloc", err, "cache", "component kv-cache", "1024.0 MiB wanted", "MiB free")

	temp := s.Temp("logits", device.Logits, tensor.F32, rows, cols)
	s.Zero(temp.RowRange(0, 1))
	check("Temp", s.Download(make([]float32, 1), temp.RowRange(0, 1).ColRange(0, 1)), "logits", "component logits")
	if _, err := s.Wait(context.Background()); err == nil {
		t.Error("the error was gone at Wait")
	}
	s.Release(temp)
	d.Free(cache)

	_, err = d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{zeros{rows, cols}}})
	check("Weight", err, "component teacher", "512.0 MiB wanted")
	p := d.Param(device.ParamSpec{Name: "p", Rows: rows, Cols: cols})
	s.Verdict([]*device.Param{p})
	_, err = s.Wait(context.Background())
	check("Param", err, "component student")

	// Less than a slab is left, but enough for the tensor, and not for a larger one.
	free, _, err := d.MemInfo()
	if err != nil {
		t.Fatal(err)
	}
	most := d.Alloc("most", device.Moments, tensor.I8, 1, int(free)-(1<<20))
	small := s.Temp("small", device.Activations, tensor.F32, 3, 5)
	s.Upload(small, make([]float32, 15))
	if err := s.Download(make([]float32, 15), small); err != nil {
		t.Errorf("after it: %v", err)
	}
	s.Zero(s.Temp("larger", device.Activations, tensor.F32, 1<<10, 1<<10))
	_, err = s.Wait(context.Background())
	check("larger", err, "larger", "4.0 MiB wanted")
	d.Free(most)
	if now, _ := d.Memory(); now[device.KVCache] != 0 || now[device.Logits] != 0 || now[device.TeacherWeights] != 0 {
		t.Errorf("memory that was never given is counted: %v", now)
	}
}

// zeros is a stored bfloat16 matrix.
type zeros struct{ rows, cols int }

func (z zeros) Info() tensor.Info {
	return tensor.Info{Name: "zeros", DType: tensor.BF16, Shape: []int{z.rows, z.cols}, Size: 2 * int64(z.rows) * int64(z.cols)}
}

func (z zeros) ReadRows(dst []byte, _, _ int) error { clear(dst); return nil }

// TestDeviceLost: the step says which operation met it; from then on everything fails with that, and Close returns.
func TestDeviceLost(t *testing.T) {
	findDriver(t)
	for _, c := range []struct{ name, fail, says string }{
		{"at a launch", "cuLaunchKernel:40=700", "CUDA_ERROR_ILLEGAL_ADDRESS"},
		{"at a copy", "cuMemcpyHtoDAsync_v2:20=719", "CUDA_ERROR_LAUNCH_FAILED"},
		{"at the wait", "cuStreamSynchronize:1=214", "CUDA_ERROR_ECC_UNCORRECTABLE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("APR_EMULATOR_FAIL", c.fail)
			d := open(t, cuda.Options{})
			m := newTiny(d)
			var err error
			for n := 0; n < 3 && err == nil; n++ {
				_, err = m.try(n)
			}
			if fault.KindOf(err) != fault.Inference || !strings.Contains(err.Error(), "was lost during ") || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("got %v (%v), want a device lost to %s", err, fault.KindOf(err), c.says)
			}
			t.Log(err)
			if _, again := m.try(1); again == nil || again.Error() != err.Error() {
				t.Errorf("the next step: %v, want the same error", again)
			}
			other := d.NewStream()
			if e := other.Download(make([]float32, 1), m.norm.Value.ColRange(0, 1)); e == nil || e.Error() != err.Error() {
				t.Errorf("another stream: %v, want the same error", e)
			}
			if _, e := d.Weight(device.WeightSpec{Name: "w", Component: device.KVCache, Parts: []device.Source{zeros{1 << 13, 1 << 13}}}); e == nil {
				t.Error("a weight was loaded on a lost device")
			}
			d.Close() // may fail, must return
		})
	}
}

// TestLateLoad: where it is strict, a kernel that was not loaded before Seal fails the stream, by its name.
func TestLateLoad(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{StrictSeal: true})
	defer d.Close()
	d.Seal()
	_, err := newTiny(d).try(0)
	if err == nil || !strings.Contains(err.Error(), "after the kernels were sealed") || d.Stats().LateLoads == 0 {
		t.Errorf("got %v and %d late loads", err, d.Stats().LateLoads)
	}
}

// TestLatePlan: so it is with a product that was not planned.
func TestLatePlan(t *testing.T) {
	findDriver(t)
	for _, strict := range []bool{false, true} {
		d := open(t, cuda.Options{StrictSeal: strict})
		defer d.Close()
		if err := d.Prewarm(); err != nil {
			t.Fatal(err)
		}
		d.Seal()
		s := d.NewStream()
		w := d.Frozen(d.Alloc("w", device.TeacherWeights, tensor.F32, 16, 8))
		for range 2 {
			x, y := s.Temp("x", device.Activations, d.Info().Activations, 128, 8), s.Temp("y", device.Logits, tensor.F32, 128, 16)
			s.Zero(x)
			s.MatMul(y, x, w, device.Tensor{}, false)
			s.Release(x, y)
		}
		_, err := s.Wait(context.Background())
		if late := d.Stats().LateLoads; late != 1 || (err != nil) != strict {
			t.Errorf("strict %v: %d late loads, %v", strict, late, err)
		}
	}
}

// TestOldDriver: a driver that cannot read the kernels is a device that is not available.
func TestOldDriver(t *testing.T) {
	findDriver(t)
	t.Setenv("APR_EMULATOR_FAIL", "cuModuleLoadDataEx:*=222") // unsupported PTX version
	d := open(t, cuda.Options{})
	defer d.Close()
	if err := d.Prewarm(); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Prewarm: got %v (%v), want kind unavailable", err, fault.KindOf(err))
	}
	if _, err := newTiny(d).try(0); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a step: got %v (%v), want kind unavailable", err, fault.KindOf(err))
	}
}

// TestErrorInWeight: an error of the driver while a weight is loaded is that weight's alone.
func TestErrorInWeight(t *testing.T) {
	findDriver(t)
	for _, c := range []struct{ name, fail, says string }{
		{"at pinned memory", "cuMemHostAlloc:5=2", "CUDA_ERROR_OUT_OF_MEMORY"}, // the first four are the device's own
		{"at the only copy", "cuMemcpyHtoDAsync_v2:1=1", "CUDA_ERROR_INVALID_VALUE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("APR_EMULATOR_FAIL", c.fail)
			d := open(t, cuda.Options{})
			spec := device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{zeros{3, 5}}}
			if _, err := d.Weight(spec); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %s", err, c.says)
			}
			if now, _ := d.Memory(); now[device.TeacherWeights] != 0 {
				t.Errorf("%d bytes are kept", now[device.TeacherWeights])
			}
			if _, err := d.Weight(spec); err != nil {
				t.Errorf("the next weight: %v", err)
			}
			if err := d.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// TestErrorInStep: an error of the driver that leaves the device intact ends the stream's step only.
func TestErrorInStep(t *testing.T) {
	findDriver(t)
	t.Setenv("APR_EMULATOR_FAIL", "cuLaunchKernel:30=701") // out of resources
	d := open(t, cuda.Options{})
	defer d.Close()
	m := newTiny(d)
	if _, err := m.try(0); fault.KindOf(err) != fault.Inference || !strings.Contains(err.Error(), "701") {
		t.Fatalf("got %v, want an inference fault with the driver's code", err)
	}
	if _, err := m.s.Wait(context.Background()); err != nil {
		t.Errorf("the wait after it: %v", err)
	}
	if sc, err := m.try(0); err != nil || !sc.Finite {
		t.Errorf("the step after it: %+v, %v", sc, err)
	}
}

// TestComputedIDs: ids that no host has seen are checked on the device: the step fails, and parameters stay.
func TestComputedIDs(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	s := d.NewStream()
	x := s.Temp("x", device.Logits, tensor.F32, 1, 9)
	s.Upload(x, []float32{0, 1, 2, 3, 4, 5, 9, 7, 8})
	ids := s.Temp("ids", device.Batch, tensor.I32, 1, 1)
	s.ArgMax(ids, device.Tensor{}, x)
	table := d.Param(device.ParamSpec{Name: "table", Rows: 4, Cols: 8, Decay: true})
	ones := make([]float32, 32)
	for i := range ones {
		ones[i] = 1
	}
	s.Upload(table.Value, ones)
	s.RefreshWeight(table)
	s.Upload(table.Grad, ones)
	s.SetScalars(device.Scalars{LR: 1, InvN: 1, BiasCorr1: .1, BiasCorr2: .05})
	y := s.Temp("y", device.Activations, d.Info().Activations, 1, 8)
	s.Embed(y, table.Weight, ids)
	s.Verdict([]*device.Param{table})
	s.AdamW([]*device.Param{table}, device.AdamW{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1})
	if _, err := s.Wait(context.Background()); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "id 6 outside [0, 4)") {
		t.Fatalf("got %v, want id 6 outside [0, 4)", err)
	}
	got := make([]float32, 32)
	if err := s.Download(got, table.Value); err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if v != 1 {
			t.Fatalf("value %d became %g in a step that failed", i, v)
		}
	}
	sc, err := s.Wait(context.Background())
	if err != nil || math.IsNaN(sc.CE) {
		t.Errorf("after it: %+v, %v", sc, err)
	}
}
