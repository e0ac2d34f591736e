//go:build emulate

package emulator

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"apr/tensor"
)

var machine = sync.OnceValues(func() (*Machine, error) {
	return Open("testdata/words.cu", "testdata/tensors.cu", "testdata/mistakes.cu")
})

func open(t testing.TB) *Machine {
	t.Helper()
	m, err := machine()
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range []string{"words", "tensors", "mistakes"} {
		if err := m.broken[module]; err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// words allocates memory for n values until the end of the test.
func words[T uint8 | uint16 | int32 | uint32 | float32](t testing.TB, m *Machine, n int) (uint64, []T) {
	t.Helper()
	var zero T
	ptr, bytes := m.Alloc(n * int(unsafe.Sizeof(zero)))
	t.Cleanup(func() {
		if err := m.Free(ptr); err != nil {
			t.Error(err)
		}
	})
	return ptr, unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(bytes))), n)
}

func run(t testing.TB, m *Machine, module, kernel string, blocks, block, shared int, args unsafe.Pointer) {
	t.Helper()
	if err := m.Run(module, kernel, [3]int{blocks, 1, 1}, block, shared, args); err != nil {
		t.Fatal(err)
	}
}

type wordsArgs struct {
	out, in uint64
	n       int64
}

func TestPlace(t *testing.T) {
	m := open(t)
	grid, block := [3]int{5, 3, 2}, 96
	n := 5 * 3 * 2 * 96
	ptr, out := words[uint32](t, m, 6*n)
	if err := m.Run("words", "test_place", grid, block, 0, unsafe.Pointer(&wordsArgs{out: ptr})); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		b := i / block
		want := []uint32{uint32(i % block), 96, uint32(b % 5), uint32(b / 5 % 3), uint32(b / 15), 5}
		if !slices.Equal(out[6*i:6*i+6], want) {
			t.Fatalf("thread %d of the grid stands at %v, want %v", i, out[6*i:6*i+6], want)
		}
	}
}

func TestExchange(t *testing.T) {
	m := open(t)
	out, got := words[uint32](t, m, 8*32)
	in, v := words[uint32](t, m, 32)
	rng := rand.New(rand.NewPCG(1, 1))
	odd := uint32(0)
	for i := range v {
		v[i] = rng.Uint32() & 0xbfffffff // no NaN
		odd |= v[i] & 1 << i
	}
	run(t, m, "words", "test_exchange", 1, 32, 0, unsafe.Pointer(&wordsArgs{out: out, in: in}))
	for l := range 32 {
		up, down := l-3, l+7
		if up < 0 {
			up = l
		}
		if down > 31 {
			down = l
		}
		want := []uint32{v[l^5], v[31-l], v[up], v[down], odd, v[9], v[l^16], v[l^1] ^ uint32(l^1)}
		if !slices.Equal(got[8*l:8*l+8], want) {
			t.Errorf("lane %d: %x, want %x", l, got[8*l:8*l+8], want)
		}
	}
}

func TestBlockSum(t *testing.T) {
	m := open(t)
	for _, block := range []int{32, 64, 480, 1024} {
		t.Run(fmt.Sprint(block), func(t *testing.T) {
			const blocks = 7
			out, got := words[float32](t, m, blocks*block)
			in, v := words[uint32](t, m, block)
			sum := float32(0)
			for i := range v {
				v[i] = uint32(i*i%91 + 1)
				sum += float32(v[i])
			}
			run(t, m, "words", "test_block_sum", blocks, block, 0, unsafe.Pointer(&wordsArgs{out, in, 3}))
			for i, s := range got {
				if s != sum {
					t.Fatalf("thread %d got the sum %g, want %g", i, s, sum)
				}
			}
		})
	}
}

func TestArithmetic(t *testing.T) {
	m := open(t)
	values := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 0.5, 3.1415927, -2.75, 1e-40, -1e-40, 1e-39, 127.5, -127, -126, -130, 3e38, 1e-38,
		1.00390625, 1.01171875, -1.00390625, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 65536, 1 + 0x1p-11, 1 + 0x1p-12, 3.4e38}
	n := len(values) * len(values)
	out, got := words[uint32](t, m, 16*n)
	in, v := words[float32](t, m, 2*n)
	for i := range n {
		v[2*i], v[2*i+1] = values[i/len(values)], values[i%len(values)]
	}
	run(t, m, "words", "test_arithmetic", (n+255)/256, 256, 0, unsafe.Pointer(&wordsArgs{out, in, int64(n)}))
	for i := range n {
		x, y := v[2*i], v[2*i+1]
		for j, want := range arithmetic(x, y) {
			if g := got[16*i+j]; !sameFloat(g, want, j) {
				t.Errorf("column %d of (%g, %g): %x (%g), want %x (%g)", j, x, y, g, math.Float32frombits(g), want, math.Float32frombits(want))
			}
		}
	}
}

// sameFloat compares bits, all NaN alike in the columns that are floats; libraries may differ by a unit in exp2 and log2.
func sameFloat(got, want uint32, column int) bool {
	g, w := math.Float32frombits(got), math.Float32frombits(want)
	switch {
	case got == want:
		return true
	case column <= 1 && g-w != 0 && max(got, want)-min(got, want) <= 1:
		return true
	case column <= 7 || column == 13:
		return g != g && w != w
	}
	return false
}

// arithmetic is what test_arithmetic computes, by definition.
func arithmetic(x, y float32) []uint32 {
	b := math.Float32bits
	flush := func(x float32) float32 {
		if b(x)&0x7f800000 == 0 {
			return math.Float32frombits(b(x) & 0x80000000)
		}
		return x
	}
	fx := float64(flush(x))
	larger, smaller := float32(math.Max(float64(x), float64(y))), float32(math.Min(float64(x), float64(y)))
	if x != x {
		larger, smaller = y, y
	} else if y != y {
		larger, smaller = x, x
	}
	half := func(x float32) uint32 {
		if x != x {
			return 0x7fff
		}
		return uint32(tensor.F32ToBF16(x))
	}
	tf := b(x)
	if x != x {
		tf = 0x7fffffff
	} else if tf&0x7f800000 != 0x7f800000 {
		tf = (tf + 0x1000) &^ 0x1fff
	}
	return []uint32{
		b(flush(float32(math.Exp2(fx)))), b(flush(float32(math.Log2(fx)))), b(float32(1 / math.Sqrt(fx))), b(flush(float32(1 / fx))),
		b(float32(math.Sqrt(float64(x)))), b(float32(math.FMA(float64(x), float64(y), 1))), b(larger), b(smaller),
		half(x), half(x) | half(y)<<16, tf, uint32(bits.OnesCount32(b(x))), b(x) << 16, b(float32(math.Sqrt(float64(x)))),
	}
}

func TestUndefined(t *testing.T) {
	m := open(t)
	p, got := words[uint32](t, m, 8)
	run(t, m, "mistakes", "test_undefined", 1, 32, 64, unsafe.Pointer(&wordsArgs{out: p}))
	for i, g := range got[:3] {
		if g != 0x7fff7fff {
			t.Errorf("undefined value %d is %x", i, g)
		}
	}
}

// TestMistakes: what fails on a GPU, or should, fails here, and the message says where.
func TestMistakes(t *testing.T) {
	m := open(t)
	tests := []struct {
		kernel                string
		blocks, block, shared int
		n                     int64
		want                  string
	}{
		{"test_diverged_operations", 3, 64, 0, 0, "different operations: thread 4 at shfl_xor, 4 before it at ballot"},
		{"test_lane_left", 1, 64, 0, 0, "deadlock; threads 0-31: left, 32-39: sync_warp, 40-40: left, 41-63: sync_warp"},
		{"test_thread_left", 1, 128, 0, 0, "deadlock; threads 0-95: sync_block, 96-127: left"},
		{"test_barrier_against_warp", 1, 64, 0, 0, "deadlock; threads 0-6: sync_warp, 7-7: sync_block, 8-31: sync_warp, 32-63: have not begun"},
		{"test_misaligned_load", 1, 32, 0, 8, "thread 0: load16 at"},
		{"test_misaligned_copy", 1, 32, 0, 0, "copy_async16 to shared memory at"},
		{"test_copy_outside_shared", 1, 32, 0, 0, "outside the arrays in shared memory"},
		{"test_ldmatrix_misaligned", 1, 32, 0, 0, "thread 3: ldmatrix at"},
		{"test_bulk_unbegun", 1, 32, 0, 0, "deadlock; threads 0-31: bulk_wait"},
		{"test_bulk_twice", 1, 32, 0, 0, "copy_bulk while those before were not waited for"},
		{"test_bulk_misaligned", 1, 32, 0, 8, "thread 0: copy_bulk at"},
		{"test_bulk_outside_shared", 1, 32, 0, 0, "copy_bulk of 64 bytes to"},
		{"test_blocks_apart", 2, 32, 0, 0, "a barrier of all blocks in a launch that is not cooperative"},
		{"test_polls_apart", 1, 32, 0, 0, "a thread waits for other blocks in a launch that is not cooperative"},
		{"test_shared_behind", 1, 32, 0, 0, "written 0 bytes behind the end of an array of 128 bytes"},
		{"test_shared_before", 1, 32, 0, -2, "written 6 bytes before an array of 128 bytes"},
		{"test_shared_too_much", 1, 32, 0, 0, "49156 bytes of SHARED"},
		{"test_null", 40, 32, 0, 64, "block (5,0,0): thread 9: access to 0x40"},
		{"test_stack", 1, 32, 0, 0, "stack of 65536 bytes is too small"},
		{"test_undefined", 1, 33, 0, 0, "33 threads, not a multiple of 32"},
		{"test_undefined", 1, 64, 0, 0, "64 threads, its launch bound is 32"},
		{"test_undefined", 1, 0, 0, 0, "blocks of 0 threads"},
		{"test_undefined", 0, 32, 0, 0, "a grid of 0×1×1 blocks"},
		{"test_undefined", 1, 32, 227<<10 + 1, 0, "232449 bytes of dynamic shared memory, 232448 are allowed"},
		{"test_nothing", 1, 32, 0, 0, "no .cu file has a kernel test_nothing"},
		{"test_place", 1, 32, 0, 0, "is in module words, not in mistakes"},
	}
	p, _ := words[uint32](t, m, 1024)
	ascending := *m
	ascending.Ascending = true // messages name the first thread
	for _, tt := range tests {
		t.Run(tt.kernel, func(t *testing.T) {
			err := ascending.Run("mistakes", tt.kernel, [3]int{tt.blocks, 1, 1}, tt.block, tt.shared, unsafe.Pointer(&wordsArgs{out: p, in: uint64(tt.n)}))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	// The machine still works.
	TestBlockSum(t)
}

// TestBrokenKernel: a file that does not compile is an error of its own kernels, and of Build's strictness.
func TestBrokenKernel(t *testing.T) {
	m, err := Open("testdata/words.cu", "testdata/broken.cu")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Run("broken", "test_broken", [3]int{1, 1, 1}, 32, 0, nil); err == nil || !strings.Contains(err.Error(), "broken.cu:8") {
		t.Errorf("got %v, want the compiler's words", err)
	}
	p, _ := words[uint32](t, m, 6*32)
	run(t, m, "words", "test_place", 1, 32, 0, unsafe.Pointer(&wordsArgs{out: p}))
}

// TestMissingBarrier: neighbours read what the other has not written yet, whichever way they look.
func TestMissingBarrier(t *testing.T) {
	m := open(t)
	for _, step := range []int64{1, -1, 40, -40} {
		out, got := words[uint32](t, m, 2*128)
		run(t, m, "mistakes", "test_missing_barrier", 2, 128, 0, unsafe.Pointer(&wordsArgs{out: out, in: uint64(step)}))
		wrong := 0
		for i, g := range got {
			if want := (int64(i%128) + step + 128) % 128; int64(g) != want {
				wrong++
			}
		}
		if wrong == 0 {
			t.Errorf("reading %d threads on works without a barrier", step)
		}
	}
}

// TestGuards: what kernels write around an allocation is found.
func TestGuards(t *testing.T) {
	m := open(t)
	const bytes = 8191
	for _, at := range []int64{-1, -4096, bytes, bytes + 1, bytes + 4000} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			p, b := m.Alloc(bytes)
			for i := range b[:8190] {
				if b[i] != []byte{0xff, 0x7f}[i%2] {
					t.Fatalf("byte %d of fresh memory is %x", i, b[i])
				}
			}
			run(t, m, "mistakes", "test_write", 1, 32, 0, unsafe.Pointer(&wordsArgs{out: p, in: uint64(at)}))
			want := fmt.Sprintf("outside an allocation of 8191 bytes: at byte %d", at)
			if err := m.Check(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Check: %v, want %q", err, want)
			}
			if err := m.Free(p); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Free: %v, want %q", err, want)
			}
			if err := m.Check(); err != nil {
				t.Errorf("Check after Free: %v", err)
			}
		})
	}
	if err := m.Free(12345); err == nil || !strings.Contains(err.Error(), "is no allocation") {
		t.Errorf("Free of nothing: %v", err)
	}
}

// TestManyLaunches: launches from several goroutines wait for each other.
func TestManyLaunches(t *testing.T) {
	m := open(t)
	in, v := words[uint32](t, m, 256)
	for i := range v {
		v[i] = 1
	}
	var wg sync.WaitGroup
	for range 8 {
		out, got := words[float32](t, m, 100*256)
		wg.Go(func() {
			for range 5 {
				if err := m.Run("words", "test_block_sum", [3]int{100, 1, 1}, 256, 0, unsafe.Pointer(&wordsArgs{out, in, 2})); err != nil {
					t.Error(err)
				}
				for i, g := range got {
					if g != 256 {
						t.Errorf("thread %d got %g", i, g)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkBarriers runs one block of 1024 threads with 20 barriers and 50 exchanges.
func BenchmarkBarriers(b *testing.B) {
	m := open(b)
	out, _ := words[uint32](b, m, 1024)
	in, v := words[uint32](b, m, 1024)
	for i := range v {
		v[i] = 1
	}
	for b.Loop() {
		run(b, m, "words", "test_block_sum", 1, 1024, 0, unsafe.Pointer(&wordsArgs{out, in, 5}))
	}
}

// BenchmarkEmpty is a launch of one warp that does next to nothing.
func BenchmarkEmpty(b *testing.B) {
	m := open(b)
	out, _ := words[uint32](b, m, 6*32)
	for b.Loop() {
		run(b, m, "words", "test_place", 1, 32, 0, unsafe.Pointer(&wordsArgs{out: out}))
	}
}
