package eval

import (
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"sync"

	"apr/arch"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
)

// CanaryErrors is by how many standard errors a model must be better than its canaries for its score to say anything.
const CanaryErrors = 5

// Canary is a broken variant of a model that any honest evaluation must tell from it. It is opened like a model, so that
// it goes through the very code that the model goes through; its matrices have no more bytes than two an element.
type Canary struct {
	Name  string
	What  string // what was done to the model, for reports
	Files *modelfile.Files
}

// Canaries returns the six canaries of f. They share f's file, hold no weights of their own, and are loaded one after the
// other. vocab is the number of ids that exist, constant an id that occurs often in the data.
//
//	zeroed    every weight is 0: uniform predictions
//	shuffled  the values of each tensor in another order (blocks of a quantised one)
//	fresh     weights as before training: matrices N(0, initializer_range²), norms that multiply by 1, biases 0
//	swapped tokenizer  rows of embedding and head permuted alike: a good model of other ids
//	layer dropped      the last layer adds nothing
//	constant answer    always predicts the same id, with certainty
func Canaries(f *modelfile.Files, vocab int, constant int32, seed uint64) []Canary {
	c, last := f.Config, len(f.Config.Layers)-1
	of := func(name, what string, change func(arch.Slot, tensor.Stored) tensor.Stored) Canary {
		return Canary{name, what, altered(f, change)}
	}
	return []Canary{
		of("zeroed", "every weight is 0", func(_ arch.Slot, t tensor.Stored) tensor.Stored { return zeroed(t) }),
		of("shuffled", "the values of each tensor in another order", func(s arch.Slot, t tensor.Stored) tensor.Stored {
			return tensor.Stored{Info: t.Info, ReaderAt: &shuffled{t: t, seed: mix(seed, s.Name)}}
		}),
		of("fresh", "weights as before training", func(s arch.Slot, t tensor.Stored) tensor.Stored { return fresh(c, s, t, mix(seed, s.Name)) }),
		of("swapped tokenizer", "ids permuted", func(s arch.Slot, t tensor.Stored) tensor.Stored { return permuteIDs(s, t, vocab, seed) }),
		of("layer dropped", fmt.Sprintf("without layer %d, the last", last), func(s arch.Slot, t tensor.Stored) tensor.Stored {
			if s.Layer == last {
				return idle(s, t)
			}
			return t
		}),
		of("constant answer", fmt.Sprintf("always predicts id %d", constant), func(s arch.Slot, t tensor.Stored) tensor.Stored {
			return always(c, s, t, int(constant))
		}),
	}
}

// zeroed is a tensor of zeros.
func zeroed(t tensor.Stored) tensor.Stored {
	return tensor.Stored{Info: t.Info, ReaderAt: zeros(t.Size)}
}

// idle is a tensor of a layer that adds nothing to what it gets: what attention, feed-forward network, experts and per-layer
// embedding put out is 0, and its factor is 1.
func idle(s arch.Slot, t tensor.Stored) tensor.Stored {
	switch s.Role {
	case arch.O, arch.Down, arch.ExpertDown, arch.PLEOut:
		return zeroed(t)
	}
	if s.Fixed {
		return elements(t, func(dst []float32, _ int64) { fill(dst, 1) })
	}
	return t
}

// mix makes a tensor's seed from the run's.
func mix(seed uint64, name string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", seed, name)
	return h.Sum64()
}

// altered returns f with other tensors. Closing it closes nothing.
func altered(f *modelfile.Files, change func(arch.Slot, tensor.Stored) tensor.Stored) *modelfile.Files {
	container, slots := *f.Container, map[string]arch.Slot{}
	for _, s := range arch.Slots(f.Config) {
		slots[s.Name] = s
	}
	container.File = alteredFile{f.File, slots, change}
	return &modelfile.Files{Container: &container, Config: f.Config}
}

type alteredFile struct {
	tensor.File
	slots  map[string]arch.Slot
	change func(arch.Slot, tensor.Stored) tensor.Stored
}

// Close leaves the file open: it is the model's.
func (a alteredFile) Close() error { return nil }

func (a alteredFile) Tensors() (all []tensor.Stored) {
	for _, t := range a.File.Tensors() {
		if changed, ok := a.Tensor(t.Name); ok {
			all = append(all, changed)
		}
	}
	return all
}

func (a alteredFile) Tensor(name string) (tensor.Stored, bool) {
	t, ok := a.File.Tensor(name)
	s, is := a.slots[name]
	if !ok || !is {
		return t, false
	}
	return a.change(s, t), true
}

// filled is a payload made on demand: fill writes the bytes from off on.
type filled struct {
	size int64
	fill func(dst []byte, off int64) error
}

// ReadAt implements io.ReaderAt.
func (f filled) ReadAt(dst []byte, off int64) (int, error) {
	if off < 0 || off >= f.size {
		return 0, io.EOF
	}
	n := min(int64(len(dst)), f.size-off)
	if err := f.fill(dst[:n], off); err != nil {
		return 0, err
	}
	if n < int64(len(dst)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// zeros is a payload of zero bytes, which every type decodes to zeros.
func zeros(size int64) io.ReaderAt {
	return filled{size, func(dst []byte, _ int64) error { clear(dst); return nil }}
}

// shuffled is a payload whose elements, or blocks, stand in another order. It is held in memory from its first read on,
// which is for as long as its weight is being loaded.
type shuffled struct {
	t    tensor.Stored
	seed uint64
	once sync.Once
	data []byte
	err  error
}

// ReadAt implements io.ReaderAt.
func (s *shuffled) ReadAt(dst []byte, off int64) (int, error) {
	s.once.Do(s.load)
	if s.err != nil {
		return 0, s.err
	}
	return filled{s.t.Size, func(dst []byte, off int64) error { copy(dst, s.data[off:]); return nil }}.ReadAt(dst, off)
}

func (s *shuffled) load() {
	s.data = make([]byte, s.t.Size)
	if n, err := s.t.ReadAt(s.data, 0); n < len(s.data) {
		s.err = fault.New(fault.IO, "cannot be read").At("tensor %q", s.t.Name).Because(err)
		return
	}
	unit := s.t.DType.BlockBytes()
	spare := make([]byte, unit)
	at := func(i int) []byte { return s.data[i*unit : (i+1)*unit] }
	rand.New(rand.NewPCG(s.seed, 1)).Shuffle(len(s.data)/unit, func(i, j int) {
		copy(spare, at(i))
		copy(at(i), at(j))
		copy(at(j), spare)
	})
}

// narrow describes t with elements of bfloat16.
func narrow(t tensor.Stored) tensor.Info {
	return tensor.Info{Name: t.Name, DType: tensor.BF16, Shape: t.Shape, Size: 2 * t.Elements()}
}

// elements is a bfloat16 payload whose element i is value(i), values being made block by block of 256.
func elements(t tensor.Stored, block func(dst []float32, first int64)) tensor.Stored {
	info := narrow(t)
	const length = 256
	return tensor.Stored{Info: info, ReaderAt: filled{info.Size, func(dst []byte, off int64) error {
		var values [length]float32
		var raw [2 * length]byte
		for done := int64(0); done < int64(len(dst)); {
			at := off + done
			first := at / (2 * length) * length
			block(values[:], first)
			tensor.Narrow(raw[:], values[:], tensor.BF16)
			done += int64(copy(dst[done:], raw[at-2*first:]))
		}
		return nil
	}}}
}

// fresh is a tensor before training. Each block of 256 values has a generator of its own.
func fresh(c arch.Config, s arch.Slot, t tensor.Stored, seed uint64) tensor.Stored {
	return elements(t, func(dst []float32, first int64) {
		switch s.Init {
		case arch.Normal:
			rng := rand.New(rand.NewPCG(seed, uint64(first)))
			for i := range dst {
				dst[i] = float32(rng.NormFloat64() * c.InitRange)
			}
		case arch.Ones:
			fill(dst, 1)
		case arch.Identity:
			fill(dst, float32(1-c.NormOffset))
		default:
			fill(dst, 0)
		}
	})
}

// ofIDs reports whether the rows of a slot belong to ids.
func ofIDs(s arch.Slot) bool {
	return s.Role == arch.Embedding || s.Role == arch.Head || s.Role == arch.PLETable
}

// permuteIDs exchanges the rows of embeddings and head, all in the same way. No id below vocab keeps its row, unless
// there is only one: the permutation is one cycle (Sattolo 1986).
func permuteIDs(s arch.Slot, t tensor.Stored, vocab int, seed uint64) tensor.Stored {
	if !ofIDs(s) {
		return t
	}
	from := make([]int, t.Rows())
	for i := range from {
		from[i] = i
	}
	rng := rand.New(rand.NewPCG(seed, 2))
	for i := min(vocab, len(from)) - 1; i > 0; i-- {
		j := rng.IntN(i)
		from[i], from[j] = from[j], from[i]
	}
	rowBytes := t.DType.RowBytes(t.Cols())
	return tensor.Stored{Info: t.Info, ReaderAt: filled{t.Size, func(dst []byte, off int64) error {
		for done := int64(0); done < int64(len(dst)); {
			row, within := (off+done)/rowBytes, (off+done)%rowBytes
			n := min(rowBytes-within, int64(len(dst))-done)
			if got, err := t.ReadAt(dst[done:done+n], int64(from[row])*rowBytes+within); int64(got) < n {
				return fault.New(fault.IO, "cannot be read").At("tensor %q", t.Name).Because(err)
			}
			done += n
		}
		return nil
	}}}
}

// always makes the model predict one id: every hidden state is the same vector after the final norm, of ones, and of the
// head's rows, one is 64 times the others. Layers add nothing; what else there is is 0.
func always(c arch.Config, s arch.Slot, t tensor.Stored, id int) tensor.Stored {
	switch {
	case s.Role == arch.Norm && s.Layer < 0:
		return elements(t, func(dst []float32, _ int64) { fill(dst, float32(1-c.NormOffset)) })
	case s.Role == arch.Embedding || s.Role == arch.Head:
		lo, hi := int64(id*t.Cols()), int64((id+1)*t.Cols())
		return elements(t, func(dst []float32, first int64) {
			fill(dst, 1./64)
			for i := range dst {
				if at := first + int64(i); lo <= at && at < hi {
					dst[i] = 1
				}
			}
		})
	case s.Fixed:
		return idle(s, t)
	}
	return zeroed(t)
}

func fill(dst []float32, v float32) {
	for i := range dst {
		dst[i] = v
	}
}

// MostFrequent returns the id that occurs most often, the lowest of equals; 0 without ids.
func MostFrequent(ids []int32) int32 {
	count := map[int32]int{}
	var best int32
	for _, id := range ids {
		count[id]++
	}
	for id, n := range count {
		if n > count[best] || n == count[best] && id < best {
			best = id
		}
	}
	return best
}
