//go:build emulate && !gpu

package cuda_test

import (
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/tensor"
)

// card is an emulated device with the attributes of a real one.
type card struct {
	name, cc                     string
	integrated, pageable, tables string // attributes
	class                        cuda.MemoryClass
}

var (
	gb10  = card{"NVIDIA GB10", "12.1", "1", "1", "1", cuda.Integrated}
	cards = []card{
		gb10,
		{"Orin", "8.7", "1", "0", "0", cuda.Integrated},
		{"NVIDIA GeForce RTX 4090", "8.9", "0", "0", "0", cuda.Discrete},
		{"NVIDIA H200", "9.0", "0", "1", "0", cuda.Discrete},
		{"NVIDIA B200", "10.0", "0", "1", "0", cuda.Discrete},
		{"NVIDIA GH200 480GB", "9.0", "0", "1", "1", cuda.Coherent},
	}
)

// insert makes c the device that the driver has, with MANAGED_MEMORY set to managed, which may be empty.
func (c card) insert(t *testing.T, managed string) {
	t.Helper()
	findDriver(t)
	for name, value := range map[string]string{
		"APR_EMULATOR_NAME": c.name, "APR_EMULATOR_CC": c.cc, "APR_EMULATOR_INTEGRATED": c.integrated,
		"APR_EMULATOR_PAGEABLE": c.pageable, "APR_EMULATOR_PAGEABLE_TABLES": c.tables, cuda.ManagedVariable: managed,
	} {
		t.Setenv(name, value)
	}
}

// The calls of the driver that allocate.
const plainCall, managedCall = "cuMemAlloc_v2", "cuMemAllocManaged"

// allocates returns the call by which the device gets its memory: the one without which it cannot be opened.
func allocates(t *testing.T) (call string) {
	t.Helper()
	for _, refused := range []string{plainCall, managedCall} {
		t.Setenv("APR_EMULATOR_FAIL", refused+":*=2")
		d, err := cuda.Open(cuda.Options{})
		if err == nil {
			d.Close()
			continue
		}
		if fault.KindOf(err) != fault.Memory || call != "" {
			t.Fatalf("with %s refused, after %q: %v", refused, call, err)
		}
		call = refused
	}
	t.Setenv("APR_EMULATOR_FAIL", "")
	return call
}

// TestUnifiedOnGB10: with MANAGED_MEMORY unset a GB10 is integrated, and its memory is managed.
func TestUnifiedOnGB10(t *testing.T) { gb10.keepsTo(t, managedCall) }

// TestClassicElsewhere: with MANAGED_MEMORY unset a card with memory of its own is not integrated, and has device memory,
// whatever its compute capability and whether it may read the host's pages.
func TestClassicElsewhere(t *testing.T) {
	for _, c := range cards {
		if c.class != cuda.Integrated {
			t.Run(c.name, func(t *testing.T) { c.keepsTo(t, plainCall) })
		}
	}
}

// keepsTo requires class and kind of memory of a card by itself.
func (c card) keepsTo(t *testing.T, call string) {
	t.Helper()
	c.insert(t, "")
	contracttest.Cases(t, 1)
	if got := allocates(t); got != call {
		t.Errorf("memory comes from %s, want %s", got, call)
	}
	d := open(t, cuda.Options{})
	defer d.Close()
	if d.Class() != c.class {
		t.Errorf("class %q, want %q", d.Class(), c.class)
	}
}

// TestManagedEverywhere: MANAGED_MEMORY=1 is managed memory on every device.
func TestManagedEverywhere(t *testing.T) {
	for _, c := range cards {
		c.insert(t, "1")
		contracttest.Cases(t, 1)
		if got := allocates(t); got != managedCall {
			t.Errorf("%s: memory comes from %s", c.name, got)
		}
	}
}

// TestPlainOnGB10: MANAGED_MEMORY=0 is device memory on an integrated device.
func TestPlainOnGB10(t *testing.T) {
	gb10.insert(t, "0")
	contracttest.Cases(t, 1)
	if got := allocates(t); got != plainCall {
		t.Errorf("memory comes from %s", got)
	}
}

// TestOneFree: memory of both kinds is given back by the same call, all of it.
func TestOneFree(t *testing.T) {
	for _, managed := range []string{"0", "1"} {
		gb10.insert(t, managed)
		for _, refused := range []bool{false, true} {
			contracttest.Cases(t, 1)
			t.Setenv("APR_EMULATOR_FAIL", map[bool]string{true: "cuMemFree_v2:1=1"}[refused])
			d := open(t, cuda.Options{})
			s := d.NewStream()
			x := d.Alloc("x", device.KVCache, tensor.F32, 1<<10, 1<<10)
			s.Zero(x)
			if err := s.Download(make([]float32, 1<<20), x); err != nil {
				t.Fatal(err)
			}
			if err := d.Close(); (err != nil) != refused {
				t.Errorf("%s=%s, cuMemFree refused %v: Close says %v", cuda.ManagedVariable, managed, refused, err)
			}
		}
	}
}
