package bench

import (
	"encoding/binary"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"apr/arch"
	"apr/convert"
	"apr/device"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/quant"
	"apr/tensor"
	"apr/tokenizer"
)

// Shape returns a published configuration: see arch.Published.
func Shape(name string) (arch.Config, error) { return arch.Published(name) }

// RandomModel returns a model of configuration c without a file behind it: matrices are bfloat16 N(0, c.InitializerRange²)
// by seed, what norms multiply by N(1, 0.2²), biases N(0, 0.2²). Its bytes are made as they are read, at the speed of a copy: every tensor repeats
// a table, of 1,048,573 values for matrices, from a place of its own, so a byte depends on its tensor and offset alone.
func RandomModel(c arch.Config, seed uint64) *modelfile.Files {
	rng := rand.New(rand.NewPCG(seed, 3))
	table := make([]byte, 2*1048573) // a prime: rows of a matrix do not repeat
	for i := 0; i < len(table); i += 2 {
		binary.LittleEndian.PutUint16(table[i:], tensor.F32ToBF16(float32(rng.NormFloat64()*c.InitRange)))
	}
	norms, biases := make([]byte, 2*8191), make([]byte, 2*8191)
	for i := 0; i < len(norms); i += 2 {
		binary.LittleEndian.PutUint16(norms[i:], tensor.F32ToBF16(float32(1+0.2*rng.NormFloat64())))
		binary.LittleEndian.PutUint16(biases[i:], tensor.F32ToBF16(float32(0.2*rng.NormFloat64())))
	}
	f := &randomFile{tensors: map[string]tensor.Stored{}}
	slots := arch.Slots(c)
	slices.SortFunc(slots, func(a, b arch.Slot) int { return strings.Compare(a.Name, b.Name) })
	for _, s := range slots {
		r := &randomTensor{table: biases, size: 2 * s.Elements()}
		switch {
		case s.Init == arch.Normal:
			r.table = table
		case s.Init == arch.Ones, s.Init == arch.Identity && c.NormOffset == 0: // a norm of w+1 has w about zero
			r.table = norms
		}
		r.start = 2 * rng.Int64N(int64(len(r.table)/2))
		f.tensors[s.Name] = tensor.Stored{Info: tensor.Info{Name: s.Name, DType: tensor.BF16, Shape: s.Shape, Size: r.size}, ReaderAt: r}
	}
	noTokenizer := func() (*tokenizer.Tokenizer, error) {
		return nil, fault.New(fault.Load, "a model of random weights has no tokenizer")
	}
	return &modelfile.Files{Config: c, Container: &modelfile.Container{
		Path: f.Path(), File: f, ReadTokenizer: noTokenizer, ReadConfig: func() (arch.Config, error) { return c, nil },
	}}
}

// RandomQuantised is RandomModel with matrices in the types that a scheme gives them: each block is chosen from a table
// of blocks of such values, so that no two matrices are equal, nor rows of several blocks.
func RandomQuantised(c arch.Config, seed uint64, scheme convert.Scheme) (*modelfile.Files, error) {
	m := RandomModel(c, seed)
	f := m.File.(*randomFile)
	types, err := convert.GGUFTypes(scheme, c, f.Tensors())
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(seed, 4))
	tables := map[tensor.DType][]byte{}
	for _, name := range slices.Sorted(maps.Keys(f.tensors)) {
		t, d := f.tensors[name], types[name]
		if !d.IsQuantized() {
			continue
		}
		if tables[d] == nil {
			if tables[d], err = randomBlocks(rng, d, c.InitRange); err != nil {
				return nil, err
			}
		}
		size := int64(t.Rows()) * d.RowBytes(t.Cols())
		r := &chosenBlocks{table: tables[d], block: int64(d.BlockBytes()), size: size, seed: rng.Uint64()}
		t.DType, t.Size, t.ReaderAt = d, size, r
		f.tensors[name] = t
	}
	return m, nil
}

// randomBlocks returns 4,093 blocks of values N(0, sigma²).
func randomBlocks(rng *rand.Rand, d tensor.DType, sigma float64) ([]byte, error) {
	values := make([]float32, 4093*d.BlockLen())
	for i := range values {
		values[i] = float32(rng.NormFloat64() * sigma)
	}
	table := make([]byte, 4093*d.BlockBytes())
	return table, quant.Quantize(table, values, d)
}

// randomFile is a tensor.File of random tensors.
type randomFile struct{ tensors map[string]tensor.Stored }

func (f *randomFile) Path() string  { return "random weights" }
func (f *randomFile) Verify() error { return nil }
func (f *randomFile) Close() error  { return nil }

func (f *randomFile) Tensors() []tensor.Stored {
	var all []tensor.Stored
	for _, name := range slices.Sorted(maps.Keys(f.tensors)) {
		all = append(all, f.tensors[name])
	}
	return all
}

func (f *randomFile) Tensor(name string) (tensor.Stored, bool) {
	t, ok := f.tensors[name]
	return t, ok
}

// randomTensor is size bytes that repeat a table from start on. It is safe for concurrent use.
type randomTensor struct {
	table       []byte
	start, size int64
}

// ReadAt implements io.ReaderAt.
func (r *randomTensor) ReadAt(p []byte, off int64) (int, error) {
	want := len(p)
	if off >= r.size {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), r.size-off)]
	n := 0
	for n < len(p) {
		at := (r.start + off + int64(n)) % int64(len(r.table))
		n += copy(p[n:], r.table[at:])
	}
	if n < want {
		return n, io.EOF
	}
	return n, nil
}

// chosenBlocks is size bytes: block k is one of a table, chosen by number k of SplitMix64 from state seed. It is safe
// for concurrent use.
type chosenBlocks struct {
	table       []byte
	block, size int64 // bytes
	seed        uint64
}

// ReadAt implements io.ReaderAt.
func (r *chosenBlocks) ReadAt(p []byte, off int64) (int, error) {
	want := len(p)
	if off >= r.size {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), r.size-off)]
	blocks := uint64(int64(len(r.table)) / r.block)
	n := 0
	for n < len(p) {
		k, skip := (off+int64(n))/r.block, (off+int64(n))%r.block
		at := int64(uint64(device.DropNumber(r.seed, uint64(k)))*blocks>>32) * r.block
		n += copy(p[n:], r.table[at+skip:at+r.block])
	}
	if n < want {
		return n, io.EOF
	}
	return n, nil
}
