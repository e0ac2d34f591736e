//go:build emulate

package emulator_test

import (
	"errors"
	"math"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"apr/device/cuda/driver"
	"apr/device/cuda/emulator"
	"apr/internal/fault"
)

// open opens the emulated driver with an environment.
func open(t *testing.T, env ...string) *driver.Driver {
	t.Helper()
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(driver.LibDirVariable, dir)
	for i := 0; i < len(env); i += 2 {
		t.Setenv("APR_EMULATOR_"+env[i], env[i+1])
	}
	d, err := driver.Open()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// with runs f on device 0 and closes the context.
func with(t *testing.T, d *driver.Driver, f func(th *driver.Thread)) {
	t.Helper()
	c, err := d.NewContext(0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := c.Do(func(th *driver.Thread) error { f(th); return nil }); err != nil {
		t.Error(err)
	}
}

// must returns v and panics on an error: closures run on the device's goroutine, which t.Fatal cannot end.
func must[T any](v T, err error) T {
	ok(err)
	return v
}

func ok(errs ...error) {
	for _, err := range errs {
		if err != nil {
			panic(err)
		}
	}
}

// code returns the CUresult of an error.
func code(err error) int {
	var e *driver.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// floats is pinned memory.
func floats(th *driver.Thread, n int) []float32 {
	return unsafe.Slice((*float32)(must(th.HostAlloc(4*n))), n)
}

func TestDescribe(t *testing.T) {
	d := open(t, "DEVICES", "2", "MEMORY", "123456789", "CC", "8.6", "DRIVER", "12040", "INTEGRATED", "1", "MANAGED", "0",
		"CONCURRENT_MANAGED", "0", "PAGEABLE", "1", "PAGEABLE_TABLES", "1", "MULTIPROCESSORS", "17", "NAME", "Test GPU")
	if d.Version() != 12040 {
		t.Errorf("version %d", d.Version())
	}
	if n := must(d.DeviceCount()); n != 2 {
		t.Errorf("%d devices", n)
	}
	got := must(d.Describe(1))
	want := driver.DeviceInfo{Index: 1, Name: "Test GPU", UUID: "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f", PCI: "0000:02:00.0", Major: 8, Minor: 6,
		Multiprocessors: 17, TotalMemory: 123456789, SharedPerBlockOptin: 227 << 10, L2Bytes: 4 << 20, ClockKHz: 1000000, MemoryClockKHz: 1000000,
		BusWidth: 1024, Integrated: 1, UnifiedAddressing: 1, PageableAccess: 1, PageableUsesHostTables: 1}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestNoDevice(t *testing.T) {
	dir, err := emulator.Build()
	ok(err)
	t.Setenv(driver.LibDirVariable, dir)
	t.Setenv("APR_EMULATOR_DEVICES", "0")
	if _, err := driver.Open(); fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "no device") {
		t.Errorf("got %v", err)
	}
}

func TestMemory(t *testing.T) {
	with(t, open(t, "MEMORY", "1000000"), func(th *driver.Thread) {
		p := must(th.Alloc(600000, false))
		if _, err := th.Alloc(600000, false); code(err) != 2 || !strings.Contains(err.Error(), "400000 of 1000000 are free") {
			t.Errorf("too much memory: %v", err)
		}
		free, total, err := th.MemInfo()
		ok(err)
		if free != 400000 || total != 1000000 {
			t.Errorf("%d of %d are free", free, total)
		}
		ok(th.Free(p))
		p = must(th.Alloc(600000, true))
		ok(th.Free(p))
		if err := th.Free(p); code(err) != 1 {
			t.Errorf("freed twice: %v", err)
		}
	})
}

// TestLateCopies: copies happen when they are waited for.
func TestLateCopies(t *testing.T) {
	with(t, open(t), func(th *driver.Thread) {
		s, other := must(th.NewStream()), must(th.NewStream())
		p := must(th.Alloc(64, false))
		h := floats(th, 16)
		back := floats(th, 16)
		h[0] = 1
		ok(th.CopyHtoD(p, unsafe.Pointer(&h[0]), 64, s))
		ok(th.CopyDtoH(unsafe.Pointer(&back[0]), p, 64, other), th.StreamSync(other))
		if back[0] == back[0] {
			t.Errorf("another stream sees %g, it should see nothing yet", back[0])
		}
		h[0] = 2 // too early: the copy has not been waited for
		ok(th.StreamSync(s))
		ok(th.CopyDtoH(unsafe.Pointer(&back[0]), p, 64, s), th.StreamSync(s))
		if back[0] != 2 {
			t.Errorf("the copy took %g", back[0])
		}
	})
}

func TestRows(t *testing.T) {
	with(t, open(t), func(th *driver.Thread) {
		s := must(th.NewStream())
		const n = 60
		p, q := must(th.Alloc(n, false)), must(th.Alloc(n, false))
		h := must(th.HostAlloc(n))
		bytes := unsafe.Slice((*byte)(h), n)
		for i := range bytes {
			bytes[i] = byte(i)
		}
		ok(th.CopyHtoD(p, h, n, s), th.Memset8(q, 200, n, s), th.CopyDtoD(q+2, p+5, 4, s), th.Memset8(q+30, 7, 1, s))
		ok(th.StreamSync(s), th.CopyDtoH(h, q, n, s), th.StreamSync(s))
		for i, b := range bytes {
			want := byte(200)
			if i >= 2 && i < 6 {
				want = byte(5 + i - 2)
			}
			if i == 30 {
				want = 7
			}
			if b != want {
				t.Errorf("byte %d is %d, want %d", i, b, want)
			}
		}
		for name, err := range map[string]error{
			"behind the end":  th.Memset8(p, 0, n+1, s),
			"before":          th.Memset8(p-1, 0, 1, s),
			"no host memory":  th.CopyHtoD(p, unsafe.Pointer(&make([]byte, n)[0]), n, s),
			"a wrong stream":  th.Memset8(p, 0, n, 12345),
			"the other event": th.EventSync(54321),
		} {
			if c := code(err); c != 1 && c != 400 {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestEvents(t *testing.T) {
	with(t, open(t), func(th *driver.Thread) {
		s := must(th.NewStream())
		a, b := must(th.NewEvent(true)), must(th.NewEvent(true))
		p := must(th.Alloc(1<<20, false))
		ok(th.EventSync(a)) // never recorded: it has happened
		ok(th.Record(a, s), th.Memset8(p, 1, 1<<20, s), th.Record(b, s))
		if _, err := th.Elapsed(a, b); err == nil {
			t.Error("done at once")
		}
		ok(th.EventSync(b))
		if d, err := th.Elapsed(a, b); err != nil || d <= 0 {
			t.Errorf("elapsed: %v, %v", d, err)
		}
	})
}

const ptx = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry zero_16(\n.param .align 8 .b8 zero_param[64]\n)\n{ ret; }\n.visible .entry nothing(\n)\n"

func TestModules(t *testing.T) {
	tests := []struct {
		name, ptx string
		env       []string
		want      string
	}{
		{"fits", ptx, nil, ""},
		{"an old driver", strings.Replace(ptx, "8.0", "8.4", 1), []string{"DRIVER", "12000"}, "too old"},
		{"an old device", ptx, []string{"CC", "7.5"}, "compute capability 7.5"},
		{"no PTX", "hello", nil, "INVALID_PTX"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			with(t, open(t, tt.env...), func(th *driver.Thread) {
				m, err := th.LoadModule([]byte(tt.ptx))
				if tt.want != "" {
					if err == nil || !strings.Contains(err.Error(), tt.want) {
						t.Errorf("got %v, want %q", err, tt.want)
					}
					return
				}
				ok(err)
				for _, name := range []string{"nothing", "absent"} {
					if _, err := th.Function(m, name); err == nil {
						t.Errorf("there is a function %s", name)
					}
				}
			})
		})
	}
}

// TestCalls: calls are counted from cuInit on.
func TestCalls(t *testing.T) {
	m, err := emulator.Open()
	ok(err)
	for range 2 {
		with(t, open(t), func(th *driver.Thread) {
			for i := range 3 {
				if n := m.Calls("cuMemAlloc_v2"); n != i {
					t.Errorf("%d allocations counted after %d", n, i)
				}
				must(th.Alloc(100, false))
			}
		})
	}
}

func TestInjectedFailures(t *testing.T) {
	with(t, open(t, "FAIL", "cuMemAlloc_v2:2=2,cuStreamCreate:*=304"), func(th *driver.Thread) {
		for i := range 3 {
			_, err := th.Alloc(100, false)
			if want := []int{0, 2, 0}[i]; code(err) != want {
				t.Errorf("allocation %d: %v", i, err)
			}
			if _, err := th.NewStream(); code(err) != 304 {
				t.Errorf("stream %d: %v", i, err)
			}
		}
	})
}

func TestSettingsAreUnderstood(t *testing.T) {
	dir, err := emulator.Build()
	ok(err)
	t.Setenv(driver.LibDirVariable, dir)
	for name, value := range map[string]string{"FAIL": "cuMemAlloc_v2=2", "MEMORY": "much", "CC": "new"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("APR_EMULATOR_"+name, value)
			if _, err := driver.Open(); err == nil || !strings.Contains(err.Error(), "not understood") {
				t.Errorf("%s=%s: %v", name, value, err)
			}
		})
	}
}

// TestSignals: a driver that takes over SIGINT and SIGTERM does not keep them.
func TestSignals(t *testing.T) {
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGTERM)
	defer signal.Stop(got)
	open(t, "SIGNALS", "1")
	ok(syscall.Kill(syscall.Getpid(), syscall.SIGTERM))
	select {
	case <-got:
	case <-time.After(10 * time.Second):
		t.Error("SIGTERM did not arrive")
	}
}

// TestManyGoroutines: whoever submits work, the driver sees one thread with a context.
func TestManyGoroutines(t *testing.T) {
	c, err := open(t).NewContext(0)
	ok(err)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 20 {
				err := c.Do(func(th *driver.Thread) error {
					p, err := th.Alloc(100, false)
					return errors.Join(err, th.Free(p))
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	ok(c.Close())
}

// TestSticky: after a lost device every call fails.
func TestSticky(t *testing.T) {
	with(t, open(t, "FAIL", "cuStreamSynchronize:2=719"), func(th *driver.Thread) {
		s := must(th.NewStream())
		ok(th.StreamSync(s))
		err := th.StreamSync(s)
		var e *driver.Error
		if !errors.As(err, &e) || !e.DeviceLost() {
			t.Errorf("got %v", err)
		}
		if _, err := th.Alloc(100, false); code(err) != 719 {
			t.Errorf("allocation afterwards: %v", err)
		}
	})
	with(t, open(t), func(th *driver.Thread) { must(th.Alloc(100, false)) })
}

// TestGemm: cublasLt against float64, over types, transposes, strides, batches, bias and scale.
func TestGemm(t *testing.T) {
	d := open(t)
	lt, _, err := driver.OpenLt(d.Version())
	ok(err)
	tests := []struct {
		name             string
		m, n, k, batch   int
		transA, transB   int32
		in               driver.LtType
		compute          driver.LtCompute
		beta             float32
		bias             bool
		padA, padB, padD int
	}{
		{"plain", 5, 7, 9, 1, 0, 0, driver.LtF32, driver.LtCompute32F, 0, false, 0, 0, 0},
		{"A transposed", 32, 8, 40, 1, 1, 0, driver.LtF32, driver.LtCompute32F, 1, false, 3, 1, 2},
		{"B transposed", 33, 9, 17, 3, 0, 1, driver.LtF32, driver.LtCompute32F, 0, true, 1, 2, 3},
		{"both", 70, 13, 64, 2, 1, 1, driver.LtF32, driver.LtComputeTF32, 1, true, 0, 0, 0},
		{"bf16", 64, 12, 31, 2, 1, 0, driver.LtBF16, driver.LtCompute32F, 1, false, 2, 4, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			with(t, d, func(th *driver.Thread) {
				s := must(th.NewStream())
				g := gemm{th: th, s: s}
				rowsA, colsA, rowsB, colsB := tt.m, tt.k, tt.k, tt.n
				if tt.transA == 1 {
					rowsA, colsA = colsA, rowsA
				}
				if tt.transB == 1 {
					rowsB, colsB = colsB, rowsB
				}
				a := g.matrix(lt, tt.in, rowsA, colsA, tt.padA, tt.batch, 1)
				b := g.matrix(lt, tt.in, rowsB, colsB, tt.padB, tt.batch, 2)
				c := g.matrix(lt, driver.LtF32, tt.m, tt.n, tt.padD, tt.batch, 3)
				bias := g.matrix(lt, driver.LtF32, tt.m, 1, 0, 1, 4)
				desc := must(lt.NewDesc(tt.compute))
				ok(lt.SetDesc(desc, driver.LtTransA, tt.transA), lt.SetDesc(desc, driver.LtTransB, tt.transB))
				if tt.bias {
					ok(lt.SetDesc(desc, driver.LtEpilogue, driver.LtEpilogueBias), lt.SetPointer(desc, driver.LtBiasPointer, &bias.ptr))
				}
				problem := driver.LtProblem{Desc: desc, A: a.layout, B: b.layout, C: c.layout, D: c.layout}
				h := must(lt.Create())
				pref := must(lt.NewPreference())
				ok(lt.SetPreference(pref, driver.LtMaxWorkspace, 32<<20), lt.SetPreference(pref, driver.LtReductionMask, driver.LtReductionNone))
				list := must(lt.Heuristic(h, problem, pref, 8))
				if len(list) != 3 {
					t.Fatalf("%d candidates, want 3", len(list))
				}
				work := must(th.Alloc(32<<20, false))
				for i, l := range list {
					if name := must(lt.Describe(&l.Algo)); name != []string{"66/tile=128x128/stages=18", "66/tile=128x256/swizzle=1/stages=35/cluster=3", "67/tile=64x64/stages=13"}[i] {
						t.Errorf("candidate %d is %s", i, name)
					}
					g.upload(c)
					ok(lt.NewCall(h, problem, l.Algo, tt.beta, work, 32<<20).Start(a.ptr, b.ptr, c.ptr, s))
					got := g.download(c)
					for z := range tt.batch {
						for col := range c.ld * tt.n {
							r, cc := col%c.ld, col/c.ld
							at := z*c.ld*tt.n + col
							want := float64(c.host[at])
							if r < tt.m {
								want *= float64(tt.beta)
								for k := range tt.k {
									ra, ca, rb, cb := r, k, k, cc
									if tt.transA == 1 {
										ra, ca = ca, ra
									}
									if tt.transB == 1 {
										rb, cb = cb, rb
									}
									want += float64(a.at(z, ra, ca)) * float64(b.at(z, rb, cb))
								}
								if tt.bias {
									want += float64(bias.host[r])
								}
							}
							if !(math.Abs(float64(got[at])-want) <= 2e-5) {
								t.Fatalf("candidate %d, matrix %d, element (%d,%d) is %g, want %g", i, z, r, cc, got[at], want)
							}
						}
					}
				}
				ok(lt.Destroy(h))
			})
		})
	}
}

// gemm makes operands of small multiples of 1/8, which every type holds.
type gemm struct {
	th *driver.Thread
	s  driver.Stream
}

type operand struct {
	layout driver.LtLayout
	ptr    uint64
	host   []float32 // column-major with ld
	ld     int
	cols   int
	typ    driver.LtType
}

func (o operand) at(z, r, c int) float32 { return o.host[z*o.ld*o.cols+c*o.ld+r] }

func (g gemm) matrix(lt *driver.Lt, typ driver.LtType, rows, cols, pad, batch, seed int) operand {
	o := operand{ld: rows + pad, cols: cols, typ: typ, host: make([]float32, batch*cols*(rows+pad))}
	for i := range o.host {
		o.host[i] = float32((i*i*7+i*seed*13+seed)%31-15) / 8
	}
	o.layout = must(lt.NewLayout(typ, rows, cols, o.ld))
	ok(lt.SetBatch(o.layout, int32(batch), int64(cols*o.ld)))
	o.ptr = must(g.th.Alloc(int64(4*len(o.host)), false))
	g.upload(o)
	return o
}

func (g gemm) upload(o operand) {
	h := floats(g.th, len(o.host))
	n := 4 * len(o.host)
	if o.typ == driver.LtBF16 {
		n /= 2
		for i, v := range o.host {
			unsafe.Slice((*uint16)(unsafe.Pointer(&h[0])), len(h))[i] = uint16(math.Float32bits(v) >> 16)
		}
	} else {
		copy(h, o.host)
	}
	ok(g.th.CopyHtoD(o.ptr, unsafe.Pointer(&h[0]), int64(n), g.s), g.th.StreamSync(g.s))
}

func (g gemm) download(o operand) []float32 {
	h := floats(g.th, len(o.host))
	ok(g.th.CopyDtoH(unsafe.Pointer(&h[0]), o.ptr, int64(4*len(h)), g.s), g.th.StreamSync(g.s))
	return h
}
