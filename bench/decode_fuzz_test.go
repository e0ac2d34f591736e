//go:build emulate || gpu

package bench_test

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"apr/arch"
	"apr/bench"
	"apr/device/cpu"
	"apr/quant"
	"apr/tensor"
)

// TestDecodeFuzz: models of random shapes, types of blocks and prompts, on a random number of multiprocessors. All layers as one
// launch are as close to a CPU with float32 as operation by operation, and give the same bits twice: sums have an order, and
// nobody may read what is not there yet. Launches of another number of multiprocessors have other sums, and one value that is
// rounded otherwise changes all that follow it; so they are not compared.
//
// APR_FUZZ_DECODE=N takes N models instead of a few, APR_FUZZ_DECODE_SEED=S seeds from S on instead of from 1 on.
func TestDecodeFuzz(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	models, first := number(t, "APR_FUZZ_DECODE", 4), number(t, "APR_FUZZ_DECODE_SEED", 1)
	for seed := first; seed < first+models; seed++ {
		c := randomDecode(uint64(seed))
		ended := make(chan bool)
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Log(c)
			go func() {
				defer close(ended)
				c.check(t)
			}()
			select {
			case <-ended:
			case <-time.After(3 * time.Minute):
				t.Fatal("blocks still wait for each other")
			}
		})
		select {
		case <-ended:
		default:
			return // the device is lost to other models
		}
	}
}

// emulated is the most multiprocessors whose blocks the emulator runs together.
const emulated = 16

// decodeCase is a model and how it is run.
type decodeCase struct {
	arch.Sizes
	seed            uint64
	types           map[string]tensor.DType // of matrices of layers, by name
	prompt          int
	multiprocessors int
}

func (c decodeCase) String() string {
	return fmt.Sprintf("%d layers, hidden %d, inter %d, heads %d/%d×%d, weights of %.3f, after %d, on %d multiprocessors: %v", c.Layers,
		c.Hidden, c.Width, c.Heads, c.KVHeads, c.HeadDim, c.InitRange, c.prompt, c.multiprocessors, c.types)
}

// randomDecode returns the case of a seed, of a shape that the launch takes.
func randomDecode(seed uint64) decodeCase {
	rng := rand.New(rand.NewPCG(seed, 7))
	one := func(of ...int) int { return of[rng.IntN(len(of))] }
	upTo := func(n int) int { return 1 + rng.IntN(n) }
	c := decodeCase{seed: seed, types: map[string]tensor.DType{}}
	shape, _ := bench.Shape("0.5b")
	c.Sizes = shape.Sizes()
	c.Layers, c.Vocab, c.prompt = upTo(5), 512, one(1, upTo(20), upTo(100))
	hidden, inter, q := 640, 2560, 1024 // at most
	split, lopsided, narrow := seed%5 == 1, seed%5 == 3, seed%5 == 4
	if split { // keys in several shares, of a model that takes little time
		c.Layers, c.prompt = upTo(2), 768+upTo(1232)
		hidden, inter, q = 256, 512, 512
	}
	whole := upTo(3) == 1 // all rows have blocks of 256 columns, so that the launch may know no others
	columns := func(most int) int {
		if whole || upTo(3) == 1 {
			return 256 * upTo(most/256)
		}
		return 32 * upTo(most/32)
	}
	c.Hidden, c.Width = columns(hidden), columns(inter)
	switch {
	case lopsided: // most blocks have rows of gate and up alone: nobody waits for them but in down
		c.Hidden, c.Width, c.Layers, c.prompt, q, whole = 32*upTo(3), 1024, 5, 1, 64, false
	case narrow: // most blocks have none of these: who needs silu(g)·u does not wait for them
		c.Hidden, c.Width, c.Layers, c.prompt, whole = 256, 32, 5, 1, false
	}
	for n := 0; n == 0 || n%32 != 0 || n > q || whole && n%256 != 0; n = c.Heads * c.HeadDim {
		c.HeadDim, c.KVHeads = one(16, 32, 48, 64, 80, 96, 112, 128, 256), upTo(4)
		c.Heads = c.KVHeads * upTo(8)
	}
	c.InitRange = 0.02 * math.Pow(4, rng.Float64())
	for c.multiprocessors == 0 || !c.fits() {
		c.multiprocessors = upTo(emulated)
		if lopsided || narrow {
			c.multiprocessors = emulated
		}
	}
	small := []tensor.DType{tensor.Q8_0, tensor.Q4_0, tensor.Q5_0}
	wide := []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K}
	if !whole {
		wide = append(wide, small...)
	}
	shapes := arch.Shapes(arch.Qwen2(c.Sizes))
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		if shape := shapes[name]; len(shape) == 2 && strings.Contains(name, "layers.") {
			all := small
			if shape[1]%256 == 0 {
				all = wide
			}
			c.types[name] = all[rng.IntN(len(all))]
		}
	}
	return c
}

// fits reports whether a block has room for its share of a matrix: kernel.DecodeServes.
func (c decodeCase) fits() bool {
	tiles := func(rows int) int { return (rows/16 + c.multiprocessors - 1) / c.multiprocessors }
	return tiles((c.Heads+2*c.KVHeads)*c.HeadDim) <= 32 && 2*tiles(c.Width) < 240
}

// check runs the model on a CPU, operation by operation, and twice as one launch.
func (c decodeCase) check(t *testing.T) {
	f := bench.RandomModel(arch.Qwen2(c.Sizes), c.seed)
	f.File = newMixed(t, f.File, c)
	exact, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := decoded(t, exact, f, c.prompt, false)
	t.Setenv("APR_EMULATOR_MULTIPROCESSORS", strconv.Itoa(c.multiprocessors))
	d := openCUDA(t)
	defer d.Close()
	apart := distance(decoded(t, d, f, c.prompt, false), want)
	z := decoded(t, d, f, c.prompt, true)
	together := distance(z, want)
	t.Logf("relative error %.5f as one launch, %.5f operation by operation", together, apart)
	if !(together <= 1.15*apart) || !(apart < 0.1) || apart == 0 { // of hundreds of models: 1.05 and 0.04 at most
		t.Errorf("relative error %.5f, operation by operation %.5f", together, apart)
	}
	if again := decoded(t, d, f, c.prompt, true); !slices.Equal(z, again) {
		t.Errorf("the same launches give other bits, %.5f apart", distance(again, z))
	}
}

// mixed is a model's file whose matrices have the types of a case.
type mixed struct {
	tensor.File
	tensors map[string]tensor.Stored
}

func newMixed(t *testing.T, f tensor.File, c decodeCase) mixed {
	t.Helper()
	m := mixed{f, map[string]tensor.Stored{}}
	for name, d := range c.types {
		s, ok := f.Tensor(name)
		if !ok {
			t.Fatalf("no tensor is called %s", name)
		}
		raw, values := make([]byte, s.Size), make([]float32, s.Rows()*s.Cols())
		if _, err := s.ReadAt(raw, 0); err != nil {
			t.Fatal(err)
		}
		for i := range values {
			values[i] = tensor.BF16ToF32(uint16(raw[2*i]) | uint16(raw[2*i+1])<<8)
		}
		blocks := make([]byte, int64(s.Rows())*d.RowBytes(s.Cols()))
		if err := quant.Quantize(blocks, values, d); err != nil {
			t.Fatal(err)
		}
		s.DType, s.Size, s.ReaderAt = d, int64(len(blocks)), bytes.NewReader(blocks)
		m.tensors[name] = s
	}
	return m
}

func (m mixed) Tensor(name string) (tensor.Stored, bool) {
	if s, ok := m.tensors[name]; ok {
		return s, true
	}
	return m.File.Tensor(name)
}

func (m mixed) Tensors() []tensor.Stored {
	all := m.File.Tensors()
	for i, s := range all {
		all[i], _ = m.Tensor(s.Name)
	}
	return all
}

// number returns that of an environment variable, or another if it is not set.
func number(t *testing.T, name string, other int) int {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return other
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s: a number from 1 on is wanted", name, v)
	}
	return n
}
