//go:build emulate && !static && linux && (amd64 || arm64)

package driver

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"apr/internal/fault"
)

// The tests of this file call a fake libcuda (testdata/fake.c) and need a C compiler.

// childVariable makes the test binary a child of TestSignals.
const childVariable = "APR_DRIVER_TEST_CHILD"

func TestMain(m *testing.M) {
	if mode := os.Getenv(childVariable); mode != "" {
		os.Exit(child(mode))
	}
	dir, err := os.MkdirTemp("", "fake-cuda-")
	if err == nil {
		err = buildFake(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Setenv(LibDirVariable, dir)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// buildFake compiles the fake and puts it under the names of all libraries.
func buildFake(dir string) error {
	first := filepath.Join(dir, "libcuda.so.1")
	out, err := exec.Command("cc", "-Wall", "-Werror", "-shared", "-fPIC", "-O1", "-o", first, "testdata/fake.c").CombinedOutput()
	if err != nil {
		return fmt.Errorf("cc: %w\n%s", err, out)
	}
	data, err := os.ReadFile(first)
	if err != nil {
		return err
	}
	for _, name := range []string{"libnvidia-ml.so.1", "libcublasLt.so.13", "libcublasLt.so.12", "libnccl.so.2"} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// openFake opens the fake and device i of it.
func openFake(t *testing.T, i int) (*Driver, *Context) {
	t.Helper()
	d, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.NewContext(i)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return d, c
}

func TestDescribe(t *testing.T) {
	d, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	if d.Version() != 13000 || d.Path() != filepath.Join(os.Getenv(LibDirVariable), "libcuda.so.1") || d.Report().Place != PlaceOverride {
		t.Errorf("version %d, path %s, report %+v", d.Version(), d.Path(), d.Report())
	}
	if n, err := d.DeviceCount(); n != 2 || err != nil {
		t.Errorf("%d devices, %v", n, err)
	}
	t.Setenv("FAKE_DENY", "18")
	got, err := d.Describe(1)
	want := DeviceInfo{
		Index: 1, Name: "Fake 1", UUID: "GPU-00112233-4455-6677-8899-aabbccddee01", PCI: "0000:29:00.0", Major: 9, Minor: 0,
		Multiprocessors: 1016, TotalMemory: 150 << 30, SharedPerBlockOptin: 1097, L2Bytes: 1038, ClockKHz: 1013, MemoryClockKHz: 1036,
		BusWidth: 1037, Integrated: -1, UnifiedAddressing: 1041, ManagedMemory: 1083, ConcurrentManaged: 1089, PageableAccess: 1088,
		PageableUsesHostTables: 1100,
	}
	if err != nil || got != want {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	t.Setenv("FAKE_DENY", "13")
	if got, err := d.Describe(1); err != nil || got.ClockKHz != -1 {
		t.Errorf("clock %d, %v although it cannot be asked", got.ClockKHz, err)
	}
	t.Setenv("FAKE_DENY", "16")
	if _, err := d.Describe(1); err == nil {
		t.Error("no error although the multiprocessors cannot be asked")
	}
	for _, i := range []int{-1, 2} {
		if _, err := d.Describe(i); fault.ExitCode(err) != 9 || !strings.Contains(err.Error(), "2 device(s)") {
			t.Errorf("device %d: %v", i, err)
		}
		if _, err := d.NewContext(i); fault.ExitCode(err) != 9 {
			t.Errorf("context of device %d: %v", i, err)
		}
	}
}

// TestEveryCallIsBound: no function that the program may call is left without an address.
func TestEveryCallIsBound(t *testing.T) {
	d, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	v := reflect.ValueOf(d.calls)
	for i := range v.NumField() {
		if v.Field(i).FieldByName("addr").Uint() == 0 || v.Field(i).FieldByName("name").Len() == 0 {
			t.Errorf("%s is not bound", v.Type().Field(i).Name)
		}
	}
	if v.NumField() < 40 {
		t.Errorf("%d functions only", v.NumField())
	}
}

func TestOpenRefuses(t *testing.T) {
	empty := t.TempDir()
	if out, err := exec.Command("cc", "-shared", "-o", filepath.Join(empty, "libcuda.so.1"), "-x", "c", os.DevNull).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := t.TempDir()
	if err := os.WriteFile(filepath.Join(text, "libcuda.so.1"), []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, variable, value, want string }{
		{"too old", "FAKE_VERSION", "11080", "CUDA 11.8, the kernels need 12.0"},
		{"no device", "FAKE_INIT", "100", "sees no device: cuInit: CUDA_ERROR_NO_DEVICE (100)"},
		{"other failure", "FAKE_INIT", "999", "cannot be used: cuInit: CUDA_ERROR_UNKNOWN (999)"},
		{"mismatch", "FAKE_INIT", "803", "cuInit: error (803)"},
		{"lacks functions", LibDirVariable, empty, "has no function cuInit"},
		{"not a library", LibDirVariable, text, "libcuda.so.1 (APR_CUDA_LIB_DIR: "},
		{"no folder", LibDirVariable, "/not/there", "/not/there/libcuda.so.1 (APR_CUDA_LIB_DIR: no such file)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(tt.variable, tt.value)
			_, err := Open()
			if fault.ExitCode(err) != 9 || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestManyGoroutines: 64 goroutines speak to one device; every call comes from its thread.
func TestManyGoroutines(t *testing.T) {
	_, c := openFake(t, 0)
	var ran atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range 50 {
				err := c.Do(func(th *Thread) error {
					p, err := th.Alloc(64, false)
					if err != nil {
						return err
					}
					ran.Add(1)
					runtime.Gosched()
					return th.Free(p)
				})
				if err != nil {
					t.Error(err)
				}
				c.Go(func(th *Thread) {
					if _, _, err := th.MemInfo(); err != nil {
						t.Error(err)
					}
					ran.Add(1)
				})
			}
		})
	}
	all.Wait()
	if err := c.Do(func(*Thread) error { return nil }); err != nil || ran.Load() != 64*100 {
		t.Errorf("%d closures ran, want %d; %v", ran.Load(), 64*100, err)
	}
}

// TestWithoutLockedThread: the fake does refuse calls from other threads, or the test above would prove nothing.
func TestWithoutLockedThread(t *testing.T) {
	_, c := openFake(t, 0)
	_, _, err := c.loop.thread.MemInfo()
	var e *Error
	if !errors.As(err, &e) || e.Name != "CUDA_ERROR_INVALID_CONTEXT" {
		t.Errorf("got %v, want CUDA_ERROR_INVALID_CONTEXT", err)
	}
}

func TestOrder(t *testing.T) {
	_, c := openFake(t, 0)
	var got []int // only the device's goroutine touches it
	for i := range 3 * queueLength {
		c.Go(func(*Thread) { got = append(got, i) })
	}
	if err := c.Do(func(*Thread) error {
		for i, v := range got {
			if i != v {
				return fmt.Errorf("closure %d ran at place %d", v, i)
			}
		}
		return nil
	}); err != nil || len(got) != 3*queueLength {
		t.Errorf("%d closures, %v", len(got), err)
	}
}

// panics returns what f panics with.
func panics(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}

func TestPanics(t *testing.T) {
	_, c := openFake(t, 0)
	here := func(want string, f func()) {
		t.Helper()
		p, ok := panics(f).(*Panic)
		if !ok || fmt.Sprint(p.Value) != want || p.Stack == "" || !strings.Contains(p.Error(), want) {
			t.Errorf("got %v, want a panic with %q", p, want)
		}
	}
	nothing := func(*Thread) error { return nil }
	here("in do", func() { c.Do(func(*Thread) error { panic("in do") }) })
	if err := c.Do(nothing); err != nil {
		t.Error(err)
	}
	ran := false
	c.Go(func(*Thread) { panic("in go") })
	c.Go(func(*Thread) { ran = true })
	here("in go", func() { c.Do(nothing) })
	if err := c.Do(nothing); err != nil || ran {
		t.Errorf("after the panic was seen: %v; closures after it ran: %v", err, ran)
	}
	here("the closure ended its goroutine", func() { c.Do(func(*Thread) error { runtime.Goexit(); return nil }) })
	if err := c.Do(func(th *Thread) error { _, _, err := th.MemInfo(); return err }); err != nil {
		t.Errorf("after Goexit the device's thread has no context: %v", err)
	}
	cause := errors.New("cause")
	if p := panics(func() { c.Do(func(*Thread) error { panic(cause) }) }); !errors.Is(p.(*Panic), cause) {
		t.Errorf("got %v, want one that wraps the cause", p)
	}
	if err := c.Do(func(*Thread) error { return cause }); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

func TestClose(t *testing.T) {
	d, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	retained, err := d.lib.bind("fakeRetained")
	if err != nil {
		t.Fatal(err)
	}
	before := invoke(retained.addr)
	c, err := d.NewContext(0)
	if err != nil {
		t.Fatal(err)
	}
	if invoke(retained.addr) != before+1 {
		t.Error("the primary context was not retained once")
	}
	ran := 0
	for range 100 {
		c.Go(func(*Thread) { ran++ })
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if ran != 100 || invoke(retained.addr) != before {
		t.Errorf("%d closures ran, context retained %d times", ran, invoke(retained.addr)-before)
	}
	if err := c.Do(func(*Thread) error { return nil }); err == nil {
		t.Error("Do after Close succeeds")
	}
	c.Go(func(*Thread) { t.Error("runs after Close") })
	t.Setenv("FAKE_RETAIN", "2")
	if _, err := d.NewContext(0); fault.ExitCode(err) != 9 || !strings.Contains(err.Error(), "OUT_OF_MEMORY") {
		t.Errorf("got %v", err)
	}
}

func TestMemory(t *testing.T) {
	_, c := openFake(t, 0)
	err := c.Do(func(th *Thread) error {
		for _, managed := range []bool{false, true} {
			p, err := th.Alloc(5, managed)
			if err != nil {
				return err
			}
			kind := C8(p)
			if want := map[bool]string{false: "device ", true: "managed"}[managed]; kind != want {
				t.Errorf("managed %v: memory is %q", managed, kind)
			}
			if err := th.Free(p); err != nil {
				return err
			}
			if p, err := th.Alloc(0, managed); p != 0 || err != nil || th.Free(p) != nil {
				t.Errorf("no bytes: %d, %v", p, err)
			}
			var e *Error
			if _, err := th.Alloc(1<<50, managed); !errors.As(err, &e) || !e.OutOfMemory() || e.Name != "CUDA_ERROR_OUT_OF_MEMORY" || e.Text != "out of memory" {
				t.Errorf("got %v", err)
			}
		}
		free, total, err := th.MemInfo()
		if free != 140<<30 || total != 150<<30 {
			t.Errorf("memory %d of %d", free, total)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// C8 reads what the fake wrote before an allocation.
func C8(p uint64) string {
	c := *(*unsafe.Pointer)(unsafe.Pointer(&p)) // an address of C's heap
	return cString(unsafe.Add(c, -8))
}

func TestCopies(t *testing.T) {
	_, c := openFake(t, 0)
	if err := c.Do(func(th *Thread) error {
		s, err := th.NewStream()
		if err != nil {
			return err
		}
		host, err := th.HostAlloc(64)
		if err != nil {
			return err
		}
		a, err := th.Alloc(64, false)
		if err != nil {
			return err
		}
		b, err := th.Alloc(64, false)
		if err != nil {
			return err
		}
		bytes := unsafe.Slice((*byte)(host), 64)
		for i := range bytes {
			bytes[i] = byte(i)
		}
		got := func() string {
			clear(bytes)
			if err := errors.Join(th.CopyDtoH(host, b, 12, s), th.StreamSync(s)); err != nil {
				t.Error(err)
			}
			return fmt.Sprintf("%d", bytes[:13])
		}
		if err := errors.Join(th.CopyHtoD(a, host, 64, s), th.CopyDtoD(b, a+2, 12, s)); err != nil {
			return err
		}
		if g := got(); g != "[2 3 4 5 6 7 8 9 10 11 12 13 0]" {
			t.Errorf("copy within the device: %s", g)
		}
		if err := th.Memset8(b+1, 0xff, 2, s); err != nil {
			return err
		}
		if g := got(); g != "[2 255 255 5 6 7 8 9 10 11 12 13 0]" {
			t.Errorf("set: %s", g)
		}
		return errors.Join(th.HostFree(host), th.HostFree(nil), th.Free(a), th.Free(b), th.DestroyStream(s))
	}); err != nil {
		t.Error(err)
	}
}

func TestEvents(t *testing.T) {
	_, c := openFake(t, 0)
	if err := c.Do(func(th *Thread) error {
		a, err := th.NewEvent(true)
		if err != nil {
			return err
		}
		b, err := th.NewEvent(true)
		if err != nil {
			return err
		}
		untimed, err := th.NewEvent(false)
		if err != nil {
			return err
		}
		if err := errors.Join(th.Record(a, 0), th.Record(b, 0), th.EventSync(b)); err != nil {
			return err
		}
		if e, err := th.Elapsed(a, b); e != 1500*time.Microsecond || err != nil {
			t.Errorf("elapsed %v, %v", e, err)
		}
		if _, err := th.Elapsed(a, untimed); err == nil {
			t.Error("an event without timing was timed")
		}
		t.Setenv("FAKE_SYNC", "700")
		var e *Error
		if err := th.StreamSync(0); !errors.As(err, &e) || !e.DeviceLost() || e.Name != "CUDA_ERROR_ILLEGAL_ADDRESS" {
			t.Errorf("got %v", err)
		}
		return errors.Join(th.DestroyEvent(a), th.DestroyEvent(b), th.DestroyEvent(untimed))
	}); err != nil {
		t.Error(err)
	}
}

const fakePTX = ".version 8.0\n.target sm_80\n.entry scale\n"

// fakeArgs are the arguments of the fake's kernel.
type fakeArgs struct {
	to     uint64
	factor float64
	a      int32
}

func TestLaunch(t *testing.T) {
	_, c := openFake(t, 0)
	if err := c.Do(func(th *Thread) error {
		m, err := th.LoadModule([]byte(fakePTX))
		if err != nil {
			return err
		}
		f, err := th.Function(m, "scale")
		if err != nil {
			return err
		}
		if _, err := th.Function(m, "other"); fault.ExitCode(err) != 9 || !strings.Contains(err.Error(), `"other"`) {
			t.Errorf("got %v", err)
		}
		if registers, shared, local, err := th.FunctionInfo(f); registers != 44 || shared != 11 || local != 33 || err != nil {
			t.Errorf("function uses %d, %d, %d; %v", registers, shared, local, err)
		}
		if err := th.SetMaxDynamicShared(f, 100<<10); err != nil {
			return err
		}
		out := new([8]float64)
		args := &fakeArgs{to: uint64(uintptr(unsafe.Pointer(out))), factor: 0.25, a: 6}
		if err := th.Launch(f, [3]int{3, 4, 5}, 96, 70000, 77, unsafe.Pointer(args)); err != nil {
			return err
		}
		if *out != [8]float64{3, 4, 5, 96, 70000, 77, 1.5} {
			t.Errorf("the kernel saw %v", *out)
		}
		if err := th.LaunchCluster(f, [3]int{6, 5, 4}, 2, 128, 60000, 78, unsafe.Pointer(args)); err != nil {
			return err
		}
		if *out != [8]float64{6, 5, 4, 128, 60000, 78, 1.5, 2} {
			t.Errorf("the kernel saw %v of a launch in clusters", *out)
		}
		if err := th.Launch(f, [3]int{1, 1, 1}, 32, 200<<10, 0, unsafe.Pointer(args)); err == nil {
			t.Error("more shared memory than allowed")
		}
		if n := testing.AllocsPerRun(100, func() {
			if err := th.Launch(f, [3]int{1, 1, 1}, 32, 0, 0, unsafe.Pointer(args)); err != nil {
				t.Error(err)
			}
			if err := th.LaunchCluster(f, [3]int{2, 1, 1}, 2, 32, 0, 0, unsafe.Pointer(args)); err != nil {
				t.Error(err)
			}
		}); n > 0 {
			t.Errorf("%v allocations a launch", n)
		}
		runtime.KeepAlive(out)
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestTensorMap(t *testing.T) {
	_, c := openFake(t, 0)
	if err := c.Do(func(th *Thread) error {
		if !th.Driver().TensorMaps() {
			t.Error("the fake can make tensor maps")
		}
		m, got := Matrix{Ptr: 1 << 40, Rows: 300, Cols: 200, Stride: 416, BoxRows: 128}, new(TensorMap)
		if err := th.EncodeTensorMap(got, m); err != nil {
			return err
		}
		want := [16]uint64{9, 2, 1 << 40, 200, 300, 416, 64, 128, 1, 1, 0, 3, 3, 0}
		if v := *(*[16]uint64)(unsafe.Pointer(got)); v != want {
			t.Errorf("got %v, want %v", v, want)
		}
		if n := testing.AllocsPerRun(100, func() {
			if err := th.EncodeTensorMap(got, m); err != nil {
				t.Error(err)
			}
		}); n > 0 {
			t.Errorf("%v allocations a tensor map", n)
		}
		m.Bytes = true
		if err := th.EncodeTensorMap(got, m); err != nil {
			return err
		}
		want[0], want[6] = 0, 128
		if v := *(*[16]uint64)(unsafe.Pointer(got)); v != want {
			t.Errorf("of bytes: got %v, want %v", v, want)
		}
		m.Stride = 408
		if err := th.EncodeTensorMap(got, m); err == nil {
			t.Error("a stride of 408 bytes is taken")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestLoadModuleRefuses(t *testing.T) {
	_, c := openFake(t, 0)
	tests := []struct {
		name, cc, code, ptx string
		exit                int
		want                []string
	}{
		{"driver too old", "90", "222", ".version 8.8\n.target sm_80\n", 9, []string{"serves CUDA 13.0", "PTX 8.8 needs CUDA 12.9"}},
		{"compiler", "90", "218", fakePTX, 9, []string{"does not accept PTX 8.0 for sm_80", "line 7: what is this"}},
		{"memory", "90", "2", fakePTX, 23, []string{"OUT_OF_MEMORY"}},
		{"old device", "75", "", fakePTX, 9, []string{"compute capability 7.5", "sm_80"}},
		{"variant for another", "100", "", ".version 8.0\n.target sm_90a\n", 9, []string{"compute capability 10.0", "sm_90a"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("FAKE_CC", tt.cc)
			t.Setenv("FAKE_LOAD", tt.code)
			err := c.Do(func(th *Thread) error { _, err := th.LoadModule([]byte(tt.ptx)); return err })
			if fault.ExitCode(err) != tt.exit {
				t.Fatalf("exit code %d of %v", fault.ExitCode(err), err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error lacks %q: %v", w, err)
				}
			}
		})
	}
}

func TestManagement(t *testing.T) {
	d, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	m, err := OpenManagement()
	if err != nil {
		t.Fatal(err)
	}
	if v, err := m.DriverVersion(); v != "580.82.07" || err != nil {
		t.Errorf("driver %q, %v", v, err)
	}
	first, err := d.Describe(0)
	if err != nil {
		t.Fatal(err)
	}
	second, err := d.Describe(1)
	if err != nil {
		t.Fatal(err)
	}
	byPCI, err := m.Find(first) // the fake does not know its UUID
	if err != nil || byPCI.device != 0x500 {
		t.Fatalf("device %+v, %v", byPCI, err)
	}
	byUUID, err := m.Find(second)
	if err != nil || byUUID.device != 0x501 {
		t.Fatalf("device %+v, %v", byUUID, err)
	}
	if _, err := m.Find(DeviceInfo{UUID: "GPU-0", PCI: "x"}); err == nil || !strings.Contains(err.Error(), "NVML_ERROR_NOT_FOUND") {
		t.Errorf("got %v", err)
	}
	if byIndex, err := m.Index(1); err != nil || byIndex.device != 0x501 {
		t.Errorf("device %+v, %v", byIndex, err)
	}
	if _, err := m.Index(2); err == nil {
		t.Error("there is no third device")
	}
	compute, memory, err1 := byUUID.Utilisation()
	used, total, err2 := byUUID.Memory()
	watts, err3 := byUUID.Power()
	clock, err4 := byUUID.Clock()
	celsius, err5 := byUUID.Temperature()
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(compute, memory, used, total, watts, clock, celsius); got != "97 41 200 300 612.5 1980 64" {
		t.Errorf("got %s", got)
	}
	if _, _, err := byPCI.Memory(); err == nil || !strings.Contains(err.Error(), "nvmlDeviceGetMemoryInfo: NVML_ERROR_NOT_SUPPORTED (3)") {
		t.Errorf("got %v", err)
	}
	t.Setenv("FAKE_NVML", "18")
	if _, err := OpenManagement(); fault.ExitCode(err) != 9 || !strings.Contains(err.Error(), "LIB_RM_VERSION_MISMATCH") {
		t.Errorf("got %v", err)
	}
}

func TestFindLibraries(t *testing.T) {
	dir := os.Getenv(LibDirVariable)
	tests := []struct{ name, version, cublasLt string }{{"13", "13000", "libcublasLt.so.13"}, {"12", "12080", "libcublasLt.so.12"}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("FAKE_VERSION", tt.version)
			var got []string
			for _, r := range FindLibraries() {
				got = append(got, strings.TrimPrefix(r.Path, dir+"/"), r.Version, r.Place)
			}
			want := []string{"libcuda.so.1", "", PlaceOverride, tt.cublasLt, "13.0.2", PlaceOverride, "libnccl.so.2", "2.27.3", PlaceOverride, "libnvidia-ml.so.1", "", PlaceOverride}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// TestBareName: a library found by the dynamic linker is reported with its file.
func TestBareName(t *testing.T) {
	lib, err := openHost("libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	if !filepath.IsAbs(lib.path) || !strings.Contains(filepath.Base(lib.path), "libc") {
		t.Errorf("file %q", lib.path)
	}
}

// child is the process that TestSignals interrupts. It returns 0 if Go saw the signal.
func child(mode string) int {
	seen := make(chan os.Signal, 1)
	if mode != "default" {
		signal.Notify(seen, syscall.SIGINT, syscall.SIGTERM)
	}
	if mode == "unprotected" {
		lib, err := openHost(filepath.Join(os.Getenv(LibDirVariable), "libcuda.so.1"))
		if err != nil {
			return 4
		}
		p, err := lib.bind("cuInit")
		if err != nil || invoke(p.addr, 0) != 0 {
			return 4
		}
	} else if _, err := Open(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 4
	}
	fmt.Println("ready")
	select {
	case s := <-seen:
		fmt.Println("Go saw", s)
		return 0
	case <-time.After(10 * time.Second):
		return 3
	}
}

// TestSignals: after cuInit, which replaces signal handlers, an interrupt still reaches Go.
func TestSignals(t *testing.T) {
	tests := []struct {
		mode string
		s    syscall.Signal
		ok   func(code int, by syscall.Signal, out string) bool
	}{
		{"notify", syscall.SIGINT, func(code int, _ syscall.Signal, out string) bool {
			return code == 0 && strings.Contains(out, "Go saw interrupt")
		}},
		{"notify", syscall.SIGTERM, func(code int, _ syscall.Signal, out string) bool {
			return code == 0 && strings.Contains(out, "Go saw terminated")
		}},
		{"default", syscall.SIGINT, func(_ int, by syscall.Signal, _ string) bool { return by == syscall.SIGINT }},
		// Without the protection the library's handler runs, or Go ends the process because of it: the fake does harm.
		{"unprotected", syscall.SIGINT, func(code int, _ syscall.Signal, out string) bool {
			return code != 0 && !strings.Contains(out, "Go saw") && (strings.Contains(out, "the library's handler ran") || strings.Contains(out, "non-Go code"))
		}},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.mode, " ", tt.s), func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childVariable+"="+tt.mode, "FAKE_SIGNALS=1")
			out, in, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stdout, cmd.Stderr = in, in
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			in.Close()
			var text strings.Builder
			for lines := bufio.NewScanner(out); lines.Scan(); {
				fmt.Fprintln(&text, lines.Text())
				switch lines.Text() {
				case "ready":
					cmd.Process.Signal(tt.s)
				case "the library's handler ran": // nothing more to wait for
					cmd.Process.Kill()
				}
			}
			cmd.Wait()
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if !tt.ok(status.ExitStatus(), status.Signal(), text.String()) {
				t.Errorf("exit %d, signal %v:\n%s", status.ExitStatus(), status.Signal(), text.String())
			}
		})
	}
}

func BenchmarkLaunch(b *testing.B) {
	d, err := Open()
	if err != nil {
		b.Fatal(err)
	}
	c, err := d.NewContext(0)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	c.Do(func(th *Thread) error {
		m, err := th.LoadModule([]byte(fakePTX))
		if err != nil {
			b.Fatal(err)
		}
		f, _ := th.Function(m, "scale")
		out := new([7]float64)
		args := &fakeArgs{to: uint64(uintptr(unsafe.Pointer(out)))}
		b.ReportAllocs()
		for b.Loop() {
			th.Launch(f, [3]int{1, 1, 1}, 32, 0, 0, unsafe.Pointer(args))
		}
		runtime.KeepAlive(out)
		return nil
	})
}

func BenchmarkDo(b *testing.B) {
	d, err := Open()
	if err != nil {
		b.Fatal(err)
	}
	c, err := d.NewContext(0)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		c.Do(func(*Thread) error { return nil })
	}
}
