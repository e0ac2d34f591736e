package kernel

import (
	"math"
	"os"
	"strings"
	"testing"

	"apr/device"
	"apr/tensor"
)

// recorder is a Queue that keeps launches.
type recorder struct {
	launches []Launch
	scratch  int
}

func (r *recorder) Launch(k Launch) { r.launches = append(r.launches, k) }
func (r *recorder) Scratch(n int) uint64 {
	r.scratch += n
	return 1 << 40
}
func (r *recorder) Record() uint64       { return 1 << 41 }
func (r *recorder) Multiprocessors() int { return 132 }

// dense returns a matrix without gaps at some address.
func dense(d tensor.DType, rows, cols int) Mat { return Mat{1 << 30, rows, cols, cols, d} }

// TestLaunches: at the sizes of published models and of long batches, every launch is one that a device accepts, of a
// kernel that its source has, and scratch suffices.
func TestLaunches(t *testing.T) {
	for _, d := range []tensor.DType{tensor.BF16, tensor.F32} {
		for _, n := range []int{1, 8192, 1 << 18} {
			for _, h := range []int{1, 896, 3584, 5120, 8192, 16384, 16392, 3585} {
				x, w, column := dense(d, n, h), dense(tensor.F32, 1, h), dense(tensor.F32, n, 1)
				checkLaunches(t, "RMSNorm", func(q Queue) { RMSNorm(q, x, column, x, x, x, w, 1e-6) })
				checkLaunches(t, "RMSNormBackward", func(q Queue) { RMSNormBackward(q, x, w, x, x, column, w) })
				checkLaunches(t, "EmbedBackward", func(q Queue) { EmbedBackward(q, dense(tensor.F32, 152064, h), dense(tensor.I32, n, 1), x) })
				checkLaunches(t, "Gather", func(q Queue) { Gather(q, x, x, dense(tensor.I32, n, 1)) })
				checkLaunches(t, "Scatter", func(q Queue) { Scatter(q, x, x, dense(tensor.I32, n, 1)) })
				checkLaunches(t, "ArgMax", func(q Queue) { ArgMax(q, dense(tensor.I32, n, 1), dense(tensor.F32, n, 2), x) })
			}
			for _, v := range []int{151665, 151936, 1<<24 - 1} {
				rows := min(n, 1<<10)
				checkLaunches(t, "ArgMax", func(q Queue) { ArgMax(q, dense(tensor.I32, rows, 1), Mat{}, dense(d, rows, v)) })
			}
			for _, f := range []int{4864, 18944, 37888, 12345} {
				m, gu := dense(d, n, f), dense(d, n, 2*f)
				for _, act := range []device.Activation{device.SiLU, device.GELUTanh, device.OSS, device.Sigmoid} {
					checkLaunches(t, "GLU", func(q Queue) { GLU(q, m, gu, act) })
					checkLaunches(t, "GLUBackward", func(q Queue) { GLUBackward(q, gu, m, gu, act) })
				}
				checkLaunches(t, "Deinterleave", func(q Queue) { Deinterleave(q, m, m, gu, 1) })
				checkLaunches(t, "Interleave", func(q Queue) { Interleave(q, gu, m, m, f) })
				checkLaunches(t, "Scale", func(q Queue) { Scale(q, m, m, 2) })
				checkLaunches(t, "Add", func(q Queue) { Add(q, m, m) })
				checkLaunches(t, "SoftCap", func(q Queue) { SoftCap(q, m, m, 30) })
				checkLaunches(t, "Dropout", func(q Queue) { Dropout(q, m, m, device.Drop{Rate: .1}) })
				checkLaunches(t, "BiasGrad", func(q Queue) { BiasGrad(q, dense(tensor.F32, 1, f), m) })
				checkLaunches(t, "Copy", func(q Queue) { Copy(q, m, dense(tensor.F32, n, f)) })
				checkLaunches(t, "Zero", func(q Queue) { Zero(q, m) })
			}
			for _, dim := range []int{2, 24, 64, 128, 256} {
				r := device.Rotary{HeadDim: dim, Table: frequencies(1e6, dim), SeqLen: n}
				checkLaunches(t, "Rotate", func(q Queue) { Rotate(q, dense(d, n, 28*dim), r, RotaryTables{Table: 1 << 42}) })
				r.Table = &device.Frequencies{Inv: r.Table.Inv[:(dim+2)/4]}
				checkLaunches(t, "Rotate", func(q Queue) { Rotate(q, dense(d, n, 28*dim), r, RotaryTables{Table: 1 << 42}) })
				x, w := dense(d, n, 28*dim), dense(tensor.F32, 1, dim)
				checkLaunches(t, "HeadNorm", func(q Queue) { HeadNorm(q, x, dense(tensor.F32, n, 28), x, w, dim, 1e-6) })
				checkLaunches(t, "HeadNormBackward", func(q Queue) { HeadNormBackward(q, x, w, x, x, dense(tensor.F32, n, 28), w, dim) })
			}
		}
	}
}

// TestArgMaxLaunch: a vocabulary is cut for the whole GPU, many rows are not, and scratch is that of the slices.
func TestArgMaxLaunch(t *testing.T) {
	for _, c := range []struct{ rows, cols, slices, block int }{
		{1, 151936, 38, 512}, {1, 151665, 38, 512}, {5, 151936, 38, 512}, {16, 151936, 16, 512}, {264, 151936, 1, 512}, {4096, 151936, 1, 512},
		{1, 4096, 1, 512}, {1, 4097, 2, 288}, {1, 31, 1, 32}, {1, 1, 1, 32},
	} {
		var r recorder
		ArgMax(&r, dense(tensor.I32, c.rows, 1), Mat{}, dense(tensor.F32, c.rows, max(c.cols, 1)))
		scratch := 0
		if c.slices > 1 {
			scratch = 16 * c.rows * c.slices
		}
		if k := r.launches[0]; len(r.launches) != 1 || k.Grid != [3]int{c.rows, c.slices, 1} || k.Block != c.block && c.rows == 1 || r.scratch != scratch {
			t.Errorf("%d×%d: grid %v, blocks of %d, %d bytes of scratch", c.rows, c.cols, k.Grid, k.Block, r.scratch)
		}
	}
}

// frequencies is θ^(−2i/headDim).
func frequencies(theta float64, headDim int) *device.Frequencies {
	f := &device.Frequencies{Inv: make([]float64, headDim/2)}
	for i := range f.Inv {
		f.Inv[i] = math.Pow(theta, -2*float64(i)/float64(headDim))
	}
	return f
}

func checkLaunches(t *testing.T, op string, run func(Queue)) {
	t.Helper()
	var r recorder
	run(&r)
	if len(r.launches) == 0 || r.scratch > MaxScratch {
		t.Errorf("%s: %d launches, %d bytes of scratch", op, len(r.launches), r.scratch)
	}
	for _, k := range r.launches {
		g := k.Grid
		if g[0] < 1 || g[0] > 1<<31-1 || g[1] < 1 || g[1] > 65535 || g[2] != 1 || k.Block < 32 || k.Block > 1024 || k.Block%32 != 0 {
			t.Errorf("%s: %s has grid %v, block %d", op, k.Kernel, g, k.Block)
		}
		if !hasKernel(t, k.Module, k.Kernel) {
			t.Errorf("%s: %s.cu has no kernel %s", op, k.Module, k.Kernel)
		}
	}
}

// sources are the .cu files read so far.
var sources = map[string]string{}

func hasKernel(t *testing.T, module, name string) bool {
	t.Helper()
	if _, ok := sources[module]; !ok {
		text, err := os.ReadFile(module + ".cu")
		if err != nil {
			t.Fatal(err)
		}
		sources[module] = string(text)
	}
	return strings.Contains(sources[module], "KERNEL("+name+",")
}

// TestManyElements: what one launch cannot count is divided by rows, each once.
func TestManyElements(t *testing.T) {
	const rows, cols = 3_000_000, 1001 // 3·10⁹ elements that come one by one
	src, dst := dense(tensor.F32, rows, cols), dense(tensor.BF16, rows, cols)
	src.Stride, dst.Stride = cols+4, cols+2
	var r recorder
	Copy(&r, dst, src)
	done := 0
	for _, k := range r.launches {
		a := (*copyArgs)(k.Args)
		if a.src != src.Ptr+uint64(4*done*src.Stride) || a.dst != dst.Ptr+uint64(2*done*dst.Stride) || a.packs != cols || a.items%cols != 0 {
			t.Errorf("after %d rows: %+v", done, *a)
		}
		done += int(a.items / cols)
	}
	if done != rows || len(r.launches) != 3 {
		t.Errorf("%d rows in %d launches, want %d in 3", done, len(r.launches), rows)
	}
}
