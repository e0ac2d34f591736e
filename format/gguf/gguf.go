// Package gguf reads and writes the container of llama.cpp's models: a header, metadata of typed values, a list of
// tensors, then the payloads.
//
//	"GGUF" · u32 version · u64 tensors · u64 keys
//	keys × { string key · u32 type · value }
//	tensors × { string name · u32 rank · rank × u64 dimension · u32 type · u64 offset }
//	padding to the alignment, then each payload, padded to it
//
// Integers are little-endian, a string is a u64 length and its bytes, an array is the u32 type of its elements, their
// u64 number and the elements. Offsets count from the first payload. The alignment is general.alignment, or 32.
//
// Dimensions stand innermost first: they are turned round, so that a matrix is [out, in] here as everywhere, and no byte
// moves. Names are those of the file.
//
// Versions 2 and 3 are read, which differ in nothing but the word for byte order; version 3 is written. As in ggml,
// payloads stand in the order of the list, each where the one before it ends, but for the padding. Only the header is
// read at opening, so that a large file opens at once. Stricter than ggml: a key or name has to be valid text, and
// nested arrays, files of several parts and types that the program cannot compute with are refused.
package gguf

import (
	"fmt"

	"apr/format/internal/checked"
	"apr/format/internal/stored"
	"apr/internal/fault"
	"apr/tensor"
)

// Limits of a file, and what it begins with.
const (
	magic            = "GGUF"
	version          = 3
	defaultAlignment = 32

	maxHeader = 1 << 30 // bytes before the payloads
	maxKeys   = 100_000
	maxKey    = 65_535   // bytes
	maxString = 16 << 20 // bytes
	maxArray  = 64 << 20 // elements
	maxName   = 63       // bytes
	maxRank   = 4
	minKey    = 8 + 4 + 1     // bytes of a key: its length, a type, a value
	minTensor = 8 + 4 + 4 + 8 // bytes of a tensor: its name's length, rank, type, offset
)

// ggmlType is a type code of ggml.
type ggmlType struct {
	name    string
	dtype   tensor.DType // Invalid: not supported here
	removed bool         // no longer part of the format
}

// types are ggml's by code.
var types = [...]ggmlType{
	0: {name: "F32", dtype: tensor.F32}, 1: {name: "F16", dtype: tensor.F16},
	2: {name: "Q4_0", dtype: tensor.Q4_0}, 3: {name: "Q4_1"},
	4: {name: "Q4_2", removed: true}, 5: {name: "Q4_3", removed: true},
	6: {name: "Q5_0", dtype: tensor.Q5_0}, 7: {name: "Q5_1"},
	8: {name: "Q8_0", dtype: tensor.Q8_0}, 9: {name: "Q8_1"}, 10: {name: "Q2_K", dtype: tensor.Q2_K}, 11: {name: "Q3_K", dtype: tensor.Q3_K},
	12: {name: "Q4_K", dtype: tensor.Q4_K}, 13: {name: "Q5_K", dtype: tensor.Q5_K}, 14: {name: "Q6_K", dtype: tensor.Q6_K},
	15: {name: "Q8_K"}, 16: {name: "IQ2_XXS"}, 17: {name: "IQ2_XS"}, 18: {name: "IQ3_XXS"}, 19: {name: "IQ1_S"},
	20: {name: "IQ4_NL", dtype: tensor.IQ4_NL}, 21: {name: "IQ3_S"}, 22: {name: "IQ2_S"}, 23: {name: "IQ4_XS", dtype: tensor.IQ4_XS},
	24: {name: "I8", dtype: tensor.I8}, 25: {name: "I16", dtype: tensor.I16}, 26: {name: "I32", dtype: tensor.I32},
	27: {name: "I64", dtype: tensor.I64}, 28: {name: "F64", dtype: tensor.F64}, 29: {name: "IQ1_M"},
	30: {name: "BF16", dtype: tensor.BF16},
	31: {name: "Q4_0_4_4", removed: true}, 32: {name: "Q4_0_4_8", removed: true}, 33: {name: "Q4_0_8_8", removed: true},
	34: {name: "TQ1_0"}, 35: {name: "TQ2_0"},
	36: {name: "IQ4_NL_4_4", removed: true}, 37: {name: "IQ4_NL_4_8", removed: true}, 38: {name: "IQ4_NL_8_8", removed: true},
	39: {name: "MXFP4", dtype: tensor.MXFP4},
}

// Type is the type of a metadata value.
type Type uint32

// The types of metadata values, with their codes.
const (
	Uint8 Type = iota
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Float32
	Bool
	String
	Array
	Uint64
	Int64
	Float64
)

var valueTypes = [...]struct {
	name  string
	bytes checked.Size // 0: not of fixed size
}{
	{"u8", 1}, {"i8", 1}, {"u16", 2}, {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 0}, {"array", 0},
	{"u64", 8}, {"i64", 8}, {"f64", 8},
}

// String returns a name such as "u32".
func (t Type) String() string {
	if int(t) < len(valueTypes) {
		return valueTypes[t].name
	}
	return fmt.Sprintf("type(%d)", uint32(t))
}

// bad returns a fault of kind Format with identifier E-GGUF-id.
func bad(path string, id int, format string, args ...any) *fault.Error {
	return fault.In(fault.Format, path, format, args...).WithID(fmt.Sprintf("E-GGUF-%03d", id))
}

// clip shortens a name in a message.
func clip(name string) string {
	if len(name) > stored.MaxName {
		return name[:stored.MaxName] + "…"
	}
	return name
}
