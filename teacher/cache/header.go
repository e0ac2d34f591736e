package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"reflect"

	"apr/internal/fault"
	"apr/internal/strictjson"
)

// Format is what header.json and manifest.json say of their form.
const Format = "apr.teacher-cache/1"

// The kinds of caches.
const (
	Draws  = "draws"  // ids drawn from the teacher's distribution, and how often each
	Hidden = "hidden" // the teacher's last hidden states
)

// What a cache can hold. Larger ones are refused, never cut.
const (
	MaxVocab = 1 << 22 // ids
	MaxDraws = 63      // of a position: a count has 6 bits
	maxLen   = 1 << 22 // positions of a row
	maxWidth = 1 << 17 // values of a hidden state
)

// Header says what was asked for. Two caches with equal headers hold the same rows of the same teacher.
type Header struct {
	Kind          string
	Teacher       string // SHA-256 of the teacher's weights
	TeacherConfig string // SHA-256 of its description
	Tokenizer     string // SHA-256 of the tokenizer; empty: token shards without one
	Template      string // SHA-256 of the chat template's text; none: no conversation was read
	Packing       string // how documents become rows
	SeqLen        int    // positions of a row
	Vocab         int    // V: ids of the distribution
	Rows          int
	RowsSHA256    string // of the keys of all rows, in order
	ShardRows     int    // rows of a shard; the last has the rest

	Device     string // kind and instruction set
	Algorithms string // what else decides the bits of matrix products and draws
	PassRows   int    // rows that the teacher reads at a time: always as many
	ChunkRows  int    // positions whose logits are computed at a time

	Temperature float64 // of draws, like the next three
	Draws       int     // of a position
	Seed        uint64
	Entropy     bool // each position has the teacher's entropy

	Width int    // values of a hidden state
	DType string // of a hidden state: f32 or bf16
}

// field is a member of header.json.
type field struct {
	name string
	at   any // *string, *int, *uint64, *float64 or *bool
}

// fields are all members, in the order in which they are written and compared.
func (h *Header) fields() []field {
	return []field{
		{"kind", &h.Kind}, {"teacher", &h.Teacher}, {"teacher_config", &h.TeacherConfig}, {"tokenizer", &h.Tokenizer}, {"template", &h.Template},
		{"packing", &h.Packing}, {"seq_len", &h.SeqLen}, {"vocab", &h.Vocab}, {"temperature", &h.Temperature}, {"draws", &h.Draws}, {"seed", &h.Seed},
		{"entropy", &h.Entropy}, {"width", &h.Width}, {"dtype", &h.DType}, {"device", &h.Device}, {"algorithms", &h.Algorithms},
		{"pass_rows", &h.PassRows}, {"chunk_rows", &h.ChunkRows}, {"rows", &h.Rows}, {"rows_sha256", &h.RowsSHA256}, {"shard_rows", &h.ShardRows},
	}
}

// Text returns the value of a field as header.json has it; empty: there is no such field.
func (h Header) Text(name string) string {
	for _, f := range h.fields() {
		if f.name == name {
			b, err := json.Marshal(f.at)
			if err != nil {
				panic(err) // Check refuses what JSON has no number for
			}
			return string(b)
		}
	}
	return ""
}

// Same refuses a cache that differs from what is asked for in one of the named fields, all if there are none, and
// names the field and both values.
func (h Header) Same(path string, asked Header, names ...string) error {
	if len(names) == 0 {
		for _, f := range h.fields() {
			names = append(names, f.name)
		}
	}
	for _, name := range names {
		if have, want := h.Text(name), asked.Text(name); have != want {
			return fault.In(fault.Invalid, path, "its rows were made with another %s: it has %s, asked for is %s", name, have,
				want).
				At("field %q", name).WithHint("use what they were made with, or make others: apr distill TEACHER -d DATA " +
				"--stage precompute -o OTHER").WithID("E-CACHE-001")
		}
	}
	return nil
}

// Map returns all fields by name.
func (h Header) Map() map[string]any {
	all := map[string]any{}
	for _, f := range h.fields() {
		all[f.name] = reflect.ValueOf(f.at).Elem().Interface()
	}
	return all
}

// JSON returns header.json.
func (h Header) JSON() []byte {
	b := fmt.Appendf(nil, "{\n  \"format\": %q", Format)
	for _, f := range h.fields() {
		b = fmt.Appendf(b, ",\n  %q: %s", f.name, h.Text(f.name))
	}
	return append(b, "\n}\n"...)
}

// Digest identifies what was asked for.
func (h Header) Digest() [sha256.Size]byte { return sha256.Sum256(h.JSON()) }

// maxHeader bounds header.json.
const maxHeader = 1 << 20

// readHeader reads header.json.
func readHeader(s Store) (h Header, err error) {
	src, err := text(s, headerFile, maxHeader)
	if err != nil {
		return h, err
	}
	return ParseHeader(s.Path(headerFile), src)
}

// ParseHeader reads the text of a header.json; path is for errors.
func ParseHeader(path, src string) (h Header, err error) {
	v, err := strictjson.Parse(src, strictjson.Options{})
	if err != nil {
		return h, strictjson.Fault(path, src, err)
	}
	in := strictjson.NewFields(v)
	known := []string{"format"}
	if is := in.Str("format"); in.Err() == nil && is != Format {
		return h, fault.In(fault.Format, path, "is of form %q, not %q", is, Format).WithID("E-CACHE-002")
	}
	for _, f := range h.fields() {
		known = append(known, f.name)
		switch at := f.at.(type) {
		case *string:
			*at = in.Str(f.name)
		case *int:
			n := in.Uint(f.name)
			*at = int(min(n, math.MaxInt32)) // Check refuses it
		case *uint64:
			*at = in.Uint(f.name)
		case *float64:
			*at = in.Float(f.name)
		case *bool:
			*at = in.Bool(f.name)
		}
	}
	in.Only(known...)
	if err := in.Err(); err != nil {
		return h, strictjson.Fault(path, v.Source(), err)
	}
	return h, h.Check(path)
}

// parse reads a file of JSON.
func parse(s Store, name string, limit int64) (v strictjson.Value, err error) {
	src, err := text(s, name, limit)
	if err != nil {
		return v, err
	}
	if v, err = strictjson.Parse(src, strictjson.Options{}); err != nil {
		err = strictjson.Fault(s.Path(name), src, err)
	}
	return v, err
}

// Check refuses what a cache cannot hold.
func (h Header) Check(path string) error {
	bad := func(name, want string) error {
		return fault.In(fault.Invalid, path, "%s is %s, not %s", name, h.Text(name), want).At("field %q", name).WithID("E-CACHE-003")
	}
	for _, k := range []struct {
		name      string
		value, to int
	}{{"vocab", h.Vocab, MaxVocab}, {"seq_len", h.SeqLen, maxLen}, {"rows", h.Rows, math.MaxInt32 - 1}, {"shard_rows", h.ShardRows, 1 << 20},
		{"pass_rows", h.PassRows, 1 << 20}, {"chunk_rows", h.ChunkRows, 1 << 20}} {
		if k.value < 1 || k.value > k.to {
			return bad(k.name, fmt.Sprintf("1 to %d", k.to))
		}
	}
	switch {
	case h.Kind != Draws && h.Kind != Hidden:
		return bad("kind", Draws+" or "+Hidden)
	case h.Kind == Draws && (h.Draws < 1 || h.Draws > MaxDraws):
		return bad("draws", fmt.Sprintf("1 to %d", MaxDraws))
	case h.Kind == Draws && !(h.Temperature > 0 && h.Temperature <= math.MaxFloat32):
		return bad("temperature", "positive and finite")
	case h.Kind == Hidden && (h.Width < 1 || h.Width > maxWidth):
		return bad("width", fmt.Sprintf("1 to %d", maxWidth))
	case h.Kind == Hidden && h.DType != "f32" && h.DType != "bf16":
		return bad("dtype", "f32 or bf16")
	}
	return nil
}

// IDBits is how many bits an id of a draw has.
func (h Header) IDBits() int { return bits.Len(uint(h.Vocab - 1)) }

// elementBytes are those of a value of a hidden state.
func (h Header) elementBytes() int {
	if h.DType == "f32" {
		return 4
	}
	return 2
}

// RowLimit bounds the bytes of a row.
func (h Header) RowLimit() int64 {
	if h.Kind == Hidden {
		return int64(h.SeqLen) * int64(h.Width) * int64(h.elementBytes())
	}
	return int64(h.SeqLen)*3 + (int64(h.SeqLen)*int64(h.Draws)*int64(h.IDBits()+countBits)+7)/8
}

// Shards is how many shards hold all rows.
func (h Header) Shards() int { return (h.Rows + h.ShardRows - 1) / h.ShardRows }

// Key names a row by what the teacher reads.
type Key [sha256.Size]byte

// KeyOf returns the key of a row: SHA-256 of its ids and, where documents are read apart, of where the document of
// each position begins, all as 32-bit little-endian integers.
func KeyOf(ids, starts []int32) Key {
	b := make([]byte, 0, 4*(len(ids)+len(starts)))
	for _, part := range [][]int32{ids, starts} {
		for _, v := range part {
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		}
	}
	return sha256.Sum256(b)
}

// HashKeys returns, in hexadecimal, SHA-256 of keys in their order.
func HashKeys(keys []Key) string {
	h := sha256.New()
	for _, k := range keys {
		h.Write(k[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}
