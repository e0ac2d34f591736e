package cuda

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/internal/contracttest"
	"apr/internal/fault"
)

// fakeLoader counts what a cache asks the driver for.
type fakeLoader struct {
	modules   int
	functions []string
	shared    []int
	preferred int // functions that PreferShared got
}

func (l *fakeLoader) LoadModule([]byte) (driver.Module, error) { l.modules++; return 1, nil }

func (l *fakeLoader) Function(_ driver.Module, name string) (driver.Function, error) {
	l.functions = append(l.functions, name)
	return driver.Function(len(l.functions)), nil
}

func (l *fakeLoader) FunctionInfo(driver.Function) (registers, shared, local int, err error) {
	return 32, 0, 0, nil
}

func (l *fakeLoader) SetMaxDynamicShared(_ driver.Function, n int) error {
	l.shared = append(l.shared, n)
	return nil
}

func (l *fakeLoader) PreferShared(driver.Function) error { l.preferred++; return nil }

// TestPreferShared: kernels that others begin beside leave them shared memory, and no kernels else.
func TestPreferShared(t *testing.T) {
	c, l := newCache(io.Discard, false), new(fakeLoader)
	early := 0
	for _, m := range kernel.Modules() {
		if m.Name != kernel.EarlyModule && m.Name != kernel.FinishModule {
			continue
		}
		if err := c.load(l, m); err != nil {
			t.Fatal(err)
		}
		if m.Name == kernel.EarlyModule {
			early = len(m.Kernels)
		}
	}
	if early == 0 || l.preferred != early {
		t.Errorf("%d of %d functions, want %d", l.preferred, len(l.functions), early)
	}
}

// anyModule returns a compiled module with at least two kernels.
func anyModule(t *testing.T) kernel.Module {
	t.Helper()
	for _, m := range kernel.Modules() {
		if len(m.Kernels) > 1 {
			return m
		}
	}
	t.Fatal("no compiled module has two kernels")
	return kernel.Module{}
}

func TestTwoKernelsUnderOneKey(t *testing.T) {
	c := newCache(nil, false)
	c.register(kernelKey{"move", "copy"}, 1)
	c.register(kernelKey{"move", "zero"}, 2)
	c.register(kernelKey{"more", "copy"}, 3)
	defer func() {
		contracttest.Cases(t, 1)
		if v := recover(); v == nil || !strings.Contains(v.(string), "move.copy") {
			t.Errorf("recovered %v, want a panic that names move.copy", v)
		}
	}()
	c.register(kernelKey{"move", "copy"}, 4)
}

// TestModuleIsLoadedOnce: with the module come all its kernels, each under its own key; using them loads nothing more.
func TestModuleIsLoadedOnce(t *testing.T) {
	m, l := anyModule(t), &fakeLoader{}
	var log bytes.Buffer
	c := newCache(&log, true)
	if err := c.load(l, m); err != nil {
		t.Fatal(err)
	}
	c.seal()
	seen := map[driver.Function]string{}
	for range 2 {
		for _, name := range m.Kernels {
			f, err := c.get(l, &kernel.Launch{Module: m.Name, Kernel: name})
			if err != nil {
				t.Fatal(err)
			}
			if other, ok := seen[f]; ok && other != name {
				t.Errorf("%s and %s are the same function", name, other)
			}
			seen[f] = name
		}
	}
	if err := c.load(l, m); err != nil {
		t.Fatal(err)
	}
	if l.modules != 1 || len(l.functions) != len(m.Kernels) {
		t.Errorf("%d modules and %d functions loaded, want 1 and %d", l.modules, len(l.functions), len(m.Kernels))
	}
	if loads, late := c.counted(); loads != 1 || late != 0 {
		t.Errorf("%d loads, %d late; want 1 and 0", loads, late)
	}
	for event, want := range map[string]int{"event=jit": 1, "event=load": len(m.Kernels), "event=hit": 1, "event=total": 1} {
		if got := strings.Count(log.String(), event+" "); got != want {
			t.Errorf("%d lines of %s, want %d:\n%s", got, event, want, log.String())
		}
	}
	contracttest.Cases(t, len(m.Kernels))
}

// TestLoadAfterSeal: a key that was not warmed up is seen.
func TestLoadAfterSeal(t *testing.T) {
	m := anyModule(t)
	launch := &kernel.Launch{Module: m.Name, Kernel: m.Kernels[0]}
	t.Run("counted and logged", func(t *testing.T) {
		contracttest.Cases(t, 1)
		var log bytes.Buffer
		c := newCache(&log, false)
		c.seal()
		if _, err := c.get(&fakeLoader{}, launch); err != nil {
			t.Fatal(err)
		}
		if loads, late := c.counted(); loads != 1 || late != 1 || !strings.Contains(log.String(), "late=true") {
			t.Errorf("%d loads, %d late; want 1 and 1 and a line that says so:\n%s", loads, late, log.String())
		}
	})
	t.Run("an error when strict", func(t *testing.T) {
		contracttest.Cases(t, 1)
		c := newCache(nil, true)
		c.seal()
		if _, err := c.get(&fakeLoader{}, launch); err == nil || !strings.Contains(err.Error(), m.Name) {
			t.Errorf("got %v, want an error that names %s", err, m.Name)
		}
	})
}

func TestUnknownKernel(t *testing.T) {
	c := newCache(nil, false)
	m := anyModule(t)
	for _, k := range []kernelKey{{"nothing", "copy"}, {m.Name, "no_such_kernel"}} {
		contracttest.Cases(t, 1)
		if _, err := c.get(&fakeLoader{}, &kernel.Launch{Module: k.module, Kernel: k.entry}); fault.KindOf(err) != fault.Other ||
			!strings.Contains(err.Error(), k.String()) {
			t.Errorf("got %v, want a fault that names %s", err, k)
		}
	}
}

// TestDynamicShared: the driver is asked to allow more than 48 KiB once, and again only for more.
func TestDynamicShared(t *testing.T) {
	m, l := anyModule(t), &fakeLoader{}
	c := newCache(nil, false)
	for _, n := range []int{0, 48 << 10, 64 << 10, 64 << 10, 50 << 10, 100 << 10} {
		if _, err := c.get(l, &kernel.Launch{Module: m.Name, Kernel: m.Kernels[0], Shared: n}); err != nil {
			t.Fatal(err)
		}
	}
	if want := []int{64 << 10, 100 << 10}; len(l.shared) != 2 || l.shared[0] != want[0] || l.shared[1] != want[1] {
		t.Errorf("asked for %v bytes, want %v", l.shared, want)
	}
}

// TestSkip: a module that is not needed leaves a line that says what was saved.
func TestSkip(t *testing.T) {
	var log bytes.Buffer
	c := newCache(&log, false)
	m := anyModule(t)
	c.skip(m, "cublasLt is bound")
	if line := log.String(); !strings.Contains(line, "event=skip key="+m.Name+" ") || strings.Contains(line, "bytes=0 ") || !strings.Contains(line, "cublasLt is bound") {
		t.Errorf("got %q", line)
	}
}
