package gguf

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"apr/format/internal/checked"
	"apr/format/internal/stored"
	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/tensor"
)

// KV is a key of the metadata to be written, with its value: a bool, string, uint32, uint64, int32, int64, float32,
// float64, []string, []int32, []float32 or []bool.
type KV struct {
	Key   string
	Value any
}

// Options of a writer.
type Options struct {
	Force    bool // replace an existing file
	Metadata []KV // in this order
}

// codes are the types that can be written.
var codes = func() map[tensor.DType]uint32 {
	m := map[tensor.DType]uint32{}
	for code, t := range types {
		if t.dtype != tensor.Invalid {
			m[t.dtype] = uint32(code)
		}
	}
	return m
}()

// Write writes a file of version 3, atomically, with the alignment 32. Tensors have the names of GGUF, and stand in the
// order embedding, layers, the rest; the bytes depend on tensors and metadata only. Payloads are streamed. Faults:
// Invalid (the file exists, or a name is none that a file can hold), Format (what the format cannot hold), IO.
func Write(path string, tensors []tensor.Source, opt Options) error {
	w, err := prepare(tensors, opt.Metadata)
	if err != nil {
		return inFile(path, err)
	}
	f, err := atomicfile.Create(path, opt.Force)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Expect(w.size); err != nil {
		return err
	}
	if err := w.emit(f); err != nil {
		return err
	}
	return f.Commit()
}

// Encode writes the bytes of a file to w and returns their number.
func Encode(w io.Writer, tensors []tensor.Source, metadata []KV) (int64, error) {
	f, err := prepare(tensors, metadata)
	if err != nil {
		return 0, err
	}
	return f.size, f.emit(w)
}

// inFile names the file in a fault.
func inFile(path string, err error) error {
	if f, ok := err.(*fault.Error); ok {
		f.Path = path
	}
	return err
}

// writing is a file about to be written.
type writing struct {
	head    []byte // up to the first payload
	tensors []named
	size    int64
}

// named is a tensor with its name in the file.
type named struct {
	tensor.Source
	name string
	code uint32
}

// prepare checks everything and encodes the header.
func prepare(tensors []tensor.Source, metadata []KV) (*writing, error) {
	w := &writing{}
	if len(tensors) > stored.MaxTensors {
		return nil, bad("", 30, "%d tensors are over the limit of %d", len(tensors), stored.MaxTensors)
	}
	for _, t := range tensors {
		n, err := name(t)
		if err != nil {
			return nil, err
		}
		w.tensors = append(w.tensors, n)
	}
	slices.SortFunc(w.tensors, func(a, b named) int {
		return cmp.Or(cmp.Compare(place(a.name), place(b.name)), cmp.Compare(a.name, b.name))
	})
	e := encoder{}
	e.raw(magic)
	e.u32(version)
	e.u64(uint64(len(w.tensors)))
	e.u64(uint64(len(metadata)))
	if err := e.metadata(metadata); err != nil {
		return nil, err
	}
	var next checked.Size
	for i, t := range w.tensors {
		if i > 0 && t.name == w.tensors[i-1].name {
			return nil, bad("", 32, "occurs twice").At("tensor %q", t.name)
		}
		e.tensor(t, next)
		end, err := next.Add(checked.Size(t.Size))
		if err == nil {
			next, err = end.Align(defaultAlignment)
		}
		if err != nil || next > math.MaxInt64/2 {
			return nil, bad("", 35, "the end of %d bytes at offset %d overflows", t.Size, next).At("tensor %q", t.name)
		}
	}
	e.pad()
	if len(e.b) > maxHeader || len(metadata) > maxKeys {
		return nil, bad("", 6, "%d bytes and %d keys of a header are over the limits of %d and %d", len(e.b), len(metadata), maxHeader, maxKeys)
	}
	w.head, w.size = e.b, int64(len(e.b))+int64(next)
	return w, nil
}

// name finds the name and code of a tensor, and refuses what the format cannot hold.
func name(t tensor.Source) (named, error) {
	refuse := func(k fault.Kind, id int, format string, args ...any) (named, error) {
		f := bad("", id, format, args...).At("tensor %q", clip(t.Name))
		f.Kind = k
		return named{}, f
	}
	if err := stored.CheckName(t.Name, maxName); err != nil {
		return refuse(fault.Invalid, 60, "%s", err)
	}
	code, ok := codes[t.DType]
	if !ok {
		return refuse(fault.Format, 61, "type %s cannot be held by GGUF", t.DType)
	}
	elements, ok := tensor.Elements(t.Shape)
	switch block := int64(t.DType.BlockLen()); {
	case len(t.Shape) > maxRank:
		return refuse(fault.Format, 33, "%d dimensions are over the limit of %d", len(t.Shape), maxRank)
	case !ok:
		return refuse(fault.Format, 34, "the product of shape %v overflows", t.Shape)
	case int64(t.Cols())%block != 0:
		return refuse(fault.Format, 36, "rows of %d elements are not whole blocks of %d, which %s has", t.Cols(), block, t.DType)
	case elements/block > math.MaxInt64/int64(t.DType.BlockBytes()) || t.Size != elements/block*int64(t.DType.BlockBytes()):
		return refuse(fault.Format, 62, "%d bytes are not those of %s %v", t.Size, t.DType, t.Shape)
	}
	return named{t, t.Name, code}, nil
}

// place is the place of a tensor in the file: the embedding, then the layers by number, then the rest.
func place(name string) int {
	if rest, ok := strings.CutPrefix(name, "blk."); ok {
		layer, _, _ := strings.Cut(rest, ".")
		n, err := strconv.Atoi(layer)
		if err != nil {
			return math.MaxInt
		}
		return n
	}
	if name == "token_embd.weight" {
		return -1
	}
	return math.MaxInt
}

// emit writes the file.
func (w *writing) emit(to io.Writer) error {
	b := bufio.NewWriterSize(to, 1<<20)
	if _, err := b.Write(w.head); err != nil {
		return err
	}
	var zero [defaultAlignment]byte
	for _, t := range w.tensors {
		if err := stored.Emit(b, t.Source); err != nil {
			return err
		}
		if rest := t.Size % defaultAlignment; rest != 0 {
			if _, err := b.Write(zero[rest:]); err != nil {
				return err
			}
		}
	}
	return b.Flush()
}

// encoder appends to the header.
type encoder struct{ b []byte }

func (e *encoder) raw(s string) { e.b = append(e.b, s...) }
func (e *encoder) u32(x uint32) { e.b = binary.LittleEndian.AppendUint32(e.b, x) }
func (e *encoder) u64(x uint64) { e.b = binary.LittleEndian.AppendUint64(e.b, x) }
func (e *encoder) text(s string) {
	e.u64(uint64(len(s)))
	e.raw(s)
}

func (e *encoder) pad() {
	for len(e.b)%defaultAlignment != 0 {
		e.b = append(e.b, 0)
	}
}

func (e *encoder) tensor(t named, offset checked.Size) {
	e.text(t.name)
	e.u32(uint32(len(t.Shape)))
	for _, d := range slices.Backward(t.Shape) { // innermost first
		e.u64(uint64(d))
	}
	e.u32(t.code)
	e.u64(uint64(offset))
}

// metadata appends keys and values.
func (e *encoder) metadata(list []KV) error {
	seen := map[string]bool{}
	for _, kv := range list {
		switch {
		case len(kv.Key) == 0 || len(kv.Key) > maxKey || strings.ContainsFunc(kv.Key, func(r rune) bool { return r < 0x20 || r > 0x7e }):
			return bad("", 11, "key %q is not 1 to %d bytes of printable ASCII", clip(kv.Key), maxKey)
		case seen[kv.Key]:
			return bad("", 12, "occurs twice").At("key %q", clip(kv.Key))
		case kv.Key == "general.alignment":
			return bad("", 18, "the alignment is not for the caller to choose").At("key %q", kv.Key)
		}
		seen[kv.Key] = true
		e.text(kv.Key)
		if !e.value(kv.Value) {
			return bad("", 63, "a value of type %T, or of this length, cannot be written", kv.Value).At("key %q", clip(kv.Key))
		}
	}
	return nil
}

// value appends a value with its type, and returns false for one that cannot be written.
func (e *encoder) value(v any) bool {
	switch v := v.(type) {
	case bool:
		e.u32(uint32(Bool))
		e.b = append(e.b, map[bool]byte{true: 1}[v])
	case string:
		e.u32(uint32(String))
		e.text(v)
		return len(v) <= maxString
	case uint32:
		e.u32(uint32(Uint32))
		e.u32(v)
	case int32:
		e.u32(uint32(Int32))
		e.u32(uint32(v))
	case float32:
		e.u32(uint32(Float32))
		e.u32(math.Float32bits(v))
	case uint64:
		e.u32(uint32(Uint64))
		e.u64(v)
	case int64:
		e.u32(uint32(Int64))
		e.u64(uint64(v))
	case float64:
		e.u32(uint32(Float64))
		e.u64(math.Float64bits(v))
	case []string:
		e.array(String, len(v))
		for _, s := range v {
			if len(s) > maxString {
				return false
			}
			e.text(s)
		}
		return len(v) <= maxArray
	case []int32:
		e.array(Int32, len(v))
		for _, x := range v {
			e.u32(uint32(x))
		}
		return len(v) <= maxArray
	case []float32:
		e.array(Float32, len(v))
		for _, x := range v {
			e.u32(math.Float32bits(x))
		}
		return len(v) <= maxArray
	case []bool:
		e.array(Bool, len(v))
		for _, x := range v {
			if x {
				e.b = append(e.b, 1)
			} else {
				e.b = append(e.b, 0)
			}
		}
		return len(v) <= maxArray
	default:
		return false
	}
	return true
}

func (e *encoder) array(elem Type, n int) {
	e.u32(uint32(Array))
	e.u32(uint32(elem))
	e.u64(uint64(n))
}
