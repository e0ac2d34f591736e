// Package tensor holds what every floor above shares about arrays of numbers: element types, shapes, and how to read
// a tensor that is stored in a file.
//
// A tensor here is a description and a way to its bytes, never arithmetic: arithmetic belongs to device. Shapes are
// row-major, outermost first; a weight matrix is [out, in] with rows contiguous.
package tensor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"slices"
)

// DType is an element type, or a block type that packs several elements.
type DType uint8

// The element and block types.
const (
	Invalid DType = iota
	F32
	F64
	F16
	BF16
	I8
	U8
	I16
	U16
	I32
	U32
	I64
	U64
	Bool
	Q4_0
	Q5_0
	Q8_0
	Q4_K
	Q5_K
	Q6_K
	AprQ4 // aprender's 32-element 4-bit block; see quant
	AprQ8 // one float32 scale, then int8 for the whole tensor; see quant
	IQ4_NL
	IQ4_XS
	Q3_K
	Q2_K
	MXFP4   // 32 floats of 4 bits and their power of two, in GGML's order; see quant
	F8_E4M3 // 8 bits: 4 of exponent, 3 of mantissa, no infinity; a weight of it has scales beside it, see quant.FP8
)

type dtypeInfo struct {
	name         string
	block, bytes int // elements and bytes of a block; 1 element for plain types
}

var dtypes = [...]dtypeInfo{
	Invalid: {"invalid", 0, 0},
	F32:     {"f32", 1, 4}, F64: {"f64", 1, 8}, F16: {"f16", 1, 2}, BF16: {"bf16", 1, 2},
	I8: {"i8", 1, 1}, U8: {"u8", 1, 1}, I16: {"i16", 1, 2}, U16: {"u16", 1, 2},
	I32: {"i32", 1, 4}, U32: {"u32", 1, 4}, I64: {"i64", 1, 8}, U64: {"u64", 1, 8}, Bool: {"bool", 1, 1},
	Q4_0: {"q4_0", 32, 18}, Q5_0: {"q5_0", 32, 22}, Q8_0: {"q8_0", 32, 34},
	Q4_K: {"q4_k", 256, 144}, Q5_K: {"q5_k", 256, 176}, Q6_K: {"q6_k", 256, 210},
	AprQ4: {"aprq4", 32, 18}, AprQ8: {"aprq8", 1, 1},
	IQ4_NL: {"iq4_nl", 32, 18}, IQ4_XS: {"iq4_xs", 256, 136}, Q3_K: {"q3_k", 256, 110}, Q2_K: {"q2_k", 256, 84}, MXFP4: {"mxfp4", 32, 17},
	F8_E4M3: {"f8_e4m3", 1, 1},
}

// String returns the lower-case name, such as "bf16" or "q4_k".
func (d DType) String() string {
	if int(d) < len(dtypes) {
		return dtypes[d].name
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// ParseDType returns the type named s (lower case), or Invalid.
func ParseDType(s string) DType {
	for d := range dtypes {
		if d != int(Invalid) && dtypes[d].name == s {
			return DType(d)
		}
	}
	return Invalid
}

// BlockLen returns the number of elements that share one block: 1 for plain types, 32 or 256 for quantised ones.
func (d DType) BlockLen() int { return dtypes[d].block }

// BlockBytes returns the bytes of one block (of one element for plain types).
func (d DType) BlockBytes() int { return dtypes[d].bytes }

// IsQuantized reports whether d packs several elements into a block.
func (d DType) IsQuantized() bool { return d >= Q4_0 && d <= MXFP4 }

// IsFloat reports whether d is a plain floating-point type whose elements are the values: F8_E4M3 is not one.
func (d DType) IsFloat() bool { return d >= F32 && d <= BF16 }

// RowBytes returns the bytes of a row of n elements, whole blocks rounded up.
func (d DType) RowBytes(n int) int64 {
	b := int64(d.BlockLen())
	return (int64(n) + b - 1) / b * int64(d.BlockBytes())
}

// Elements returns the product of the dimensions of shape, and false when a dimension is negative or the product
// does not fit an int64. The empty shape has one element.
func Elements(shape []int) (int64, bool) {
	n := uint64(1)
	zero := false
	for _, d := range shape {
		if d < 0 {
			return 0, false
		}
		if d == 0 {
			zero = true
			continue
		}
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo > 1<<63-1 {
			return 0, false
		}
		n = lo
	}
	if zero {
		return 0, true
	}
	return int64(n), true
}

// Info describes a stored tensor.
type Info struct {
	Name  string
	DType DType
	Shape []int // outermost first; a matrix is [out, in]
	Size  int64 // payload bytes
}

// Elements returns the number of elements; the shape was checked when the file was opened.
func (i Info) Elements() int64 { n, _ := Elements(i.Shape); return n }

// Rows and Cols view the tensor as a matrix: Cols is the last dimension (1 for a scalar), Rows everything before it.
func (i Info) Rows() int {
	if i.Cols() == 0 {
		return 0
	}
	return int(i.Elements() / int64(i.Cols()))
}

// Cols returns the last dimension, 1 for a scalar.
func (i Info) Cols() int {
	if len(i.Shape) == 0 {
		return 1
	}
	return i.Shape[len(i.Shape)-1]
}

// Equal reports whether two descriptions agree in name, type and shape.
func (i Info) Equal(o Info) bool {
	return i.Name == o.Name && i.DType == o.DType && slices.Equal(i.Shape, o.Shape)
}

// Stored is a tensor in a file: its description and random access to its payload bytes.
// ReadAt is safe for concurrent use; offsets count from the tensor's first byte, reads past Size give io.EOF.
// An error names the file and the tensor.
type Stored struct {
	Info
	io.ReaderAt
}

// Held describes the tensor as its file holds it: other than Info where ReaderAt decodes on the way, and Info elsewhere.
func (s Stored) Held() Info {
	if d, ok := s.ReaderAt.(interface{ Held() Info }); ok {
		return d.Held()
	}
	return s.Info
}

// Hole is a run of bytes that repeat every 8 bytes, zeros or any other value of up to 8 bytes: 4 KiB or more, or the
// whole payload; of a payload of up to 64 KiB, 128 bytes or more. A payload of fewer is one only if it is zero.
type Hole struct {
	Path   string // of the file
	Offset int64  // in the file
	From   int64  // in the payload as the file holds it
	Size   int64
	Fill   uint64 // the first 8 bytes, little-endian; fewer where Size is less
}

// String says what the bytes are and where: "4096 bytes are zero, from offset 64 on: a hole of an unfinished
// download?".
func (h Hole) String() string {
	b := binary.LittleEndian.AppendUint64(nil, h.Fill)[:min(h.Size, 8)]
	n := len(b)
	for n > 1 && n%2 == 0 && bytes.Equal(b[:n/2], b[n/2:n]) {
		n /= 2
	}
	what, why := fmt.Sprintf("repeat 0x%x", b[:n]), "overwritten?"
	switch {
	case h.Fill == 0:
		what, why = "are zero", "a hole of an unfinished download?"
	case n == 1:
		what = fmt.Sprintf("are 0x%02x", b[0])
	}
	return fmt.Sprintf("%d bytes %s, from offset %d on: %s", h.Size, what, h.Offset, why)
}

// Holes returns the runs of one value among what was read of the payload, in order; none where ReaderAt cannot tell.
func (s Stored) Holes() ([]Hole, error) {
	if d, ok := s.ReaderAt.(interface{ Holes() ([]Hole, error) }); ok {
		return d.Holes()
	}
	return nil, nil
}

// File is an opened model file of any format.
type File interface {
	// Path returns the path the file was opened by.
	Path() string
	// Tensors returns the tensors in ascending order of name.
	Tensors() []Stored
	// Tensor returns the tensor of that exact name, and false if there is none.
	Tensor(name string) (Stored, bool)
	// Verify refuses a file whose bytes are not those that were written, as far as it can be told: by the checksum of a
	// format that has one, for which it reads what has not been read yet, and by a change since the file was opened. Call
	// it after reading, and before anything is made of what was read.
	Verify() error
	// Close releases the file.
	Close() error
}
