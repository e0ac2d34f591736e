package gguf

import (
	"encoding/binary"
	"math"
)

// bytes of a file under construction. Every method appends.
type builder struct{ b []byte }

func (w *builder) raw(s string) *builder { w.b = append(w.b, s...); return w }
func (w *builder) u32(v ...uint32) *builder {
	for _, x := range v {
		w.b = binary.LittleEndian.AppendUint32(w.b, x)
	}
	return w
}
func (w *builder) u64(v ...uint64) *builder {
	for _, x := range v {
		w.b = binary.LittleEndian.AppendUint64(w.b, x)
	}
	return w
}
func (w *builder) str(s string) *builder  { return w.u64(uint64(len(s))).raw(s) }
func (w *builder) f32(x float32) *builder { return w.u32(math.Float32bits(x)) }
func (w *builder) pad(to, n int) *builder { // up to a multiple of to, then n bytes
	for len(w.b)%to != 0 {
		w.b = append(w.b, 0)
	}
	for i := range n {
		w.b = append(w.b, byte(i))
	}
	return w
}

// head begins a file of that many tensors and keys.
func head(tensors, keys uint64) *builder {
	return new(builder).raw("GGUF").u32(3).u64(tensors, keys)
}

// key begins a key with a value of type t.
func (w *builder) key(k string, t Type) *builder { return w.str(k).u32(uint32(t)) }

// tensor lists a tensor; dims stand innermost first.
func (w *builder) tensor(name string, code uint32, offset uint64, dims ...uint64) *builder {
	return w.str(name).u32(uint32(len(dims))).u64(dims...).u32(code).u64(offset)
}

// one is a file with one tensor named w and n bytes of data.
func one(code uint32, offset uint64, n int, dims ...uint64) []byte {
	return head(1, 0).tensor("w", code, offset, dims...).pad(32, n).b
}

// small is a file with every part: scalars and arrays of all kinds, alignment 8, five tensors, an empty one and a scalar
// among them.
var small = head(5, 8).
	key("general.alignment", Uint32).u32(8).
	key("general.architecture", String).str("qwen2").
	key("a.bool", Bool).raw("\x01").
	key("a.float", Float32).f32(1e-6).
	key("a.ints", Array).u32(uint32(Int32)).u64(3).u32(1, 0xffffffff, 3).
	key("a.strings", Array).u32(uint32(String)).u64(3).str("x").str("").str("yz").
	key("a.empty", Array).u32(uint32(Uint8)).u64(0).
	key("a.i64", Int64).u64(1<<64-5).
	tensor("token_embd.weight", 0, 0, 2, 3).
	tensor("blk.0.attn_q.bias", 30, 24, 3).
	tensor("empty", 0, 32, 0, 5).
	tensor("scalar", 1, 32).
	tensor("q", 8, 40, 32, 2).
	pad(8, 40+72).b
