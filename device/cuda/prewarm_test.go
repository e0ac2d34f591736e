//go:build emulate || gpu

package cuda_test

import (
	"math"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/device/dry"
	"apr/internal/contracttest"
	"apr/tensor"
)

// TestPrewarmWithCublas: with cublasLt bound fewer modules are loaded than with the program's own products besides, the
// record of what was loaded names those that were left out and what that saved, and steps have the same bits.
// (F-BLACKWELL-CUBLAS-PREWARM-001)
func TestPrewarmWithCublas(t *testing.T) {
	findDriver(t)
	for _, c := range []struct {
		name string
		o    cuda.Options
	}{{"bf16", cuda.Options{}}, {"tf32", cuda.Options{Compute: cuda.TF32}}, {"f32", cuda.Options{Compute: cuda.F32}}} {
		t.Run(c.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			lean, leanBits := prewarmed(t, c.o, false)
			full, fullBits := prewarmed(t, c.o, true)
			if lean.Plans == 0 {
				t.Fatal("no product was planned: cublasLt does not serve")
			}
			if lean.Modules >= full.Modules || lean.Kernels >= full.Kernels || lean.Bytes >= full.Bytes {
				t.Errorf("%+v with cublasLt alone, %+v with the program's own products", lean, full)
			}
			saved := cuda.Skipped{}
			for _, s := range lean.Skipped {
				if s.Kernels == 0 || s.Bytes == 0 || s.Because == "" {
					t.Errorf("left out without a word on what it saves: %+v", s)
				}
				saved.Kernels += s.Kernels
			}
			if saved.Kernels == 0 || saved.Kernels > full.Kernels-lean.Kernels {
				t.Errorf("%d kernels are said to be left out, %d are", saved.Kernels, full.Kernels-lean.Kernels)
			}
			if len(leanBits) != len(fullBits) || len(leanBits) == 0 {
				t.Fatalf("%d and %d values", len(leanBits), len(fullBits))
			}
			for i := range leanBits {
				if math.Float32bits(leanBits[i]) != math.Float32bits(fullBits[i]) {
					t.Fatalf("value %d is %g, and %g with more modules loaded", i, leanBits[i], fullBits[i])
				}
			}
		})
	}
}

// TestPrepareInUse: products are measured, but not in memory that holds something.
func TestPrepareInUse(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{TuningDir: t.TempDir()})
	defer d.Close()
	const n = 1 << 16
	s, want, got := d.NewStream(), make([]float32, n), make([]float32, n)
	for i := range want {
		want[i] = float32(i % 99)
	}
	x := s.Temp("x", device.Activations, tensor.F32, 1, n)
	s.Upload(x, want)
	planned := dry.New(d.Target())
	newTiny(planned).step(t, 0)
	if err := d.Prepare(planned.Record()); err != nil {
		t.Fatal(err)
	}
	if err := s.Download(got, x); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Error("values were overwritten")
	}
	s.Release(x)
}

// prewarmed prepares a device for a tiny step, takes two, and returns what is loaded and the parameters. Nothing may be
// loaded in the steps.
func prewarmed(t *testing.T, o cuda.Options, fallback bool) (cuda.Loaded, []float32) {
	t.Helper()
	o.StrictSeal = true
	d := open(t, o)
	defer d.Close()
	planned := dry.New(d.Target())
	newTiny(planned).step(t, 0)
	if err := d.Prepare(planned.Record()); err != nil {
		t.Fatal(err)
	}
	if fallback {
		if n, err := d.LoadFallback(); err != nil || n == 0 {
			t.Fatalf("%d modules of products loaded: %v", n, err)
		}
	}
	d.Seal()
	loaded := d.Loaded()
	if loads := d.Stats().Loads; loads != int64(loaded.Modules+loaded.Plans) {
		t.Errorf("%d loads are counted of %+v", loads, loaded)
	}
	m := newTiny(d)
	var bits []float32
	for n := range 2 {
		sc := m.step(t, n)
		bits = append(bits, float32(sc.CE), float32(sc.D), float32(sc.GradNorm))
	}
	for _, p := range m.params {
		v := make([]float32, p.Rows*p.Cols)
		if err := m.s.Download(v, p.Value); err != nil {
			t.Fatal(err)
		}
		bits = append(bits, v...)
	}
	return loaded, bits
}
