package aprfile

import (
	"errors"
	"fmt"

	"apr/format/internal/checked"
	"apr/tensor"
)

// Layout says how the blocks of a quantised tensor lie.
type Layout uint8

// The layouts. Plain is every type without blocks, and every tensor where the other two are the same bytes.
const (
	Plain     Layout = iota
	RowPadded        // every row starts a block; the last block of a row is padded
	Flat             // one stream of blocks across the rows
)

// String returns "plain", "row-padded" or "flat".
func (l Layout) String() string { return [...]string{"plain", "row-padded", "flat"}[l] }

// meaning is one reading of a type code.
type meaning struct {
	name   string // of a type that is not supported
	dtype  tensor.DType
	rule   rule
	blocks checked.Size // elements of a block
	bytes  checked.Size // of an element or block
}

// rule says how a size follows from a shape.
type rule uint8

const (
	plain      rule = iota // bytes·n
	anyRows                // bytes·⌈n/blocks⌉, one stream
	wholeRows              // the same, but rows must be whole blocks
	paddedRows             // K-quants: rows padded, or one stream
	scaled                 // one float32, then n bytes
)

// codes lists the meanings of every type code. Codes 3, 6, 7 and 8 have two, told apart by the size; the condition on
// rows makes the choice unique.
var codes = map[uint8][]meaning{
	0:   {{dtype: tensor.F32, bytes: 4}},
	1:   {{dtype: tensor.F16, bytes: 2}},
	2:   {{dtype: tensor.Q4_0, rule: anyRows, blocks: 32, bytes: 18}},
	3:   {{dtype: tensor.F64, bytes: 8}, {name: "Q4_1", rule: wholeRows, blocks: 32, bytes: 20}},
	4:   {{dtype: tensor.I32, bytes: 4}},
	5:   {{dtype: tensor.I64, bytes: 8}},
	6:   {{dtype: tensor.I8, bytes: 1}, {dtype: tensor.Q5_0, rule: wholeRows, blocks: 32, bytes: 22}},
	7:   {{dtype: tensor.U8, bytes: 1}, {name: "Q5_1", rule: wholeRows, blocks: 32, bytes: 24}},
	8:   {{dtype: tensor.AprQ4, rule: anyRows, blocks: 32, bytes: 18}, {dtype: tensor.Q8_0, rule: wholeRows, blocks: 32, bytes: 34}},
	9:   {{dtype: tensor.AprQ8, rule: scaled}},
	12:  {{dtype: tensor.Q4_K, rule: paddedRows, blocks: 256, bytes: 144}},
	13:  {{dtype: tensor.Q5_K, rule: paddedRows, blocks: 256, bytes: 176}},
	14:  {{dtype: tensor.Q6_K, rule: paddedRows, blocks: 256, bytes: 210}},
	30:  {{dtype: tensor.BF16, bytes: 2}},
	128: {{dtype: tensor.AprQ4, rule: anyRows, blocks: 32, bytes: 18}},
	129: {{dtype: tensor.AprQ8, rule: scaled}},
	// ours: 160 + a type of GGML, whose bytes are unchanged
	162: {{dtype: tensor.Q4_0, rule: wholeRows, blocks: 32, bytes: 18}},
	166: {{dtype: tensor.Q5_0, rule: wholeRows, blocks: 32, bytes: 22}},
	168: {{dtype: tensor.Q8_0, rule: wholeRows, blocks: 32, bytes: 34}},
	170: {{dtype: tensor.Q2_K, rule: wholeRows, blocks: 256, bytes: 84}},
	171: {{dtype: tensor.Q3_K, rule: wholeRows, blocks: 256, bytes: 110}},
	180: {{dtype: tensor.IQ4_NL, rule: wholeRows, blocks: 32, bytes: 18}},
	183: {{dtype: tensor.IQ4_XS, rule: wholeRows, blocks: 256, bytes: 136}},
	199: {{dtype: tensor.MXFP4, rule: wholeRows, blocks: 32, bytes: 17}},
}

// dtypeCodes are the types our writer writes. Q4_0, Q5_0 and Q8_0 get codes of ours: readers disagree about 2, 6 and 8.
var dtypeCodes = map[tensor.DType]uint8{
	tensor.F32: 0, tensor.F16: 1, tensor.BF16: 30, tensor.Q4_K: 12, tensor.Q5_K: 13, tensor.Q6_K: 14,
	tensor.Q4_0: 162, tensor.Q5_0: 166, tensor.Q8_0: 168, tensor.IQ4_NL: 180, tensor.IQ4_XS: 183, tensor.MXFP4: 199,
	tensor.Q2_K: 170, tensor.Q3_K: 171,
}

// The reasons why a size and a shape do not make a type; each has its identifier.
var (
	errUnknown     = errors.New("type code is unknown")
	errUnsupported = errors.New("is not supported")
	errSize        = errors.New("fits no meaning")
	errAmbiguous   = errors.New("is ambiguous")
)

// resolve finds the type of a tensor from its code, shape and payload size. n is the product of shape.
func resolve(code uint8, shape []int, n, size checked.Size) (tensor.DType, Layout, error) {
	meanings, ok := codes[code]
	if !ok {
		return 0, 0, fmt.Errorf("%w: %d", errUnknown, code)
	}
	if n == 0 {
		if size != 0 {
			return 0, 0, fmt.Errorf("size %d of a tensor without elements %w, expected 0", size, errSize)
		}
		if meanings[0].dtype == tensor.Invalid {
			panic("aprfile: first meaning of a code is not supported")
		}
		return meanings[0].dtype, Plain, nil
	}
	cols := checked.Size(1)
	if len(shape) > 0 {
		cols = checked.Size(shape[len(shape)-1])
	}
	rows := n / cols
	for _, m := range meanings {
		layout, fits, err := m.fits(rows, cols, n, size)
		switch {
		case err != nil:
			return 0, 0, err
		case fits && m.dtype == tensor.Invalid:
			return 0, 0, fmt.Errorf("type %s %w", m.name, errUnsupported)
		case fits:
			return m.dtype, layout, nil
		}
	}
	return 0, 0, fmt.Errorf("size %d %w of code %d with shape %v", size, errSize, code, shape)
}

// fits reports whether size is that of rows×cols = n > 0 elements.
func (m meaning) fits(rows, cols, n, size checked.Size) (Layout, bool, error) {
	switch m.rule {
	case plain:
		want, err := n.Mul(m.bytes)
		return Plain, err == nil && want == size, nil
	case scaled:
		want, err := n.Add(4)
		return Plain, err == nil && want == size, nil
	}
	flat, err := n.DivUp(m.blocks).Mul(m.bytes)
	fits := err == nil && flat == size
	same := cols%m.blocks == 0 || rows == 1 // rows are whole blocks, or there is one row
	switch {
	case m.rule == wholeRows:
		return Plain, fits && cols%m.blocks == 0, nil
	case same:
		return Plain, fits, nil
	case m.rule == anyRows:
		return Flat, fits, nil
	}
	perRow, err := cols.DivUp(m.blocks).Mul(m.bytes)
	if err != nil {
		return Plain, false, nil
	}
	padded, err := rows.Mul(perRow)
	switch fitsPadded := err == nil && padded == size; {
	case fits && fitsPadded:
		return Plain, false, fmt.Errorf("size %d %w: rows of %d elements may be padded to blocks or not", size, errAmbiguous, cols)
	case fits:
		return Flat, true, nil
	default:
		return RowPadded, fitsPadded, nil
	}
}
