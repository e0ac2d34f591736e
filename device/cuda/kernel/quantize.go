package kernel

import (
	"fmt"
	"slices"
	"unsafe"

	"apr/tensor"
)

// The modules of a student in blocks.
const (
	quantizeRound     = "quantize_round"
	quantizeAffine    = "quantize_affine"
	quantizeSymmetric = "quantize_symmetric"
	quantizeScaled    = "quantize_scaled"
)

// QuantizeModules names the modules that make rows of types, these by their names.
func QuantizeModules(types []string) []string {
	modules := []string{quantizeRound}
	for d, s := range searches {
		if slices.Contains(types, d.String()) && !slices.Contains(modules, s.module) {
			modules = append(modules, s.module)
		}
	}
	return modules
}

// QuantizeServes reports whether MakeBlocks makes rows of a type.
func QuantizeServes(d tensor.DType) bool { return searches[d].module != "" || d.IsFloat() }

// search says how the scales of a type are found.
type search struct {
	module, kernel string
	lanes          int   // threads of a block of values
	least, most    int32 // of the integers of an element, where the kernel has several types
}

var searches = map[tensor.DType]search{
	tensor.Q4_K:   {quantizeAffine, "affine", 8, 0, 15},
	tensor.Q5_K:   {quantizeAffine, "affine", 8, 0, 31},
	tensor.Q6_K:   {quantizeSymmetric, "q6_k", 16, -32, 31},
	tensor.Q2_K:   {quantizeScaled, "q2_k", 16, 0, 3},
	tensor.Q3_K:   {quantizeScaled, "q3_k", 16, -4, 3},
	tensor.Q8_0:   {quantizeSymmetric, "q8_0", 1, -127, 127},
	tensor.Q4_0:   {quantizeSymmetric, "plain", 1, -8, 7},
	tensor.Q5_0:   {quantizeSymmetric, "plain", 1, -16, 15},
	tensor.IQ4_NL: {quantizeSymmetric, "iq4_nl", 1, 0, 15},
	tensor.MXFP4:  {quantizeRound, "mxfp4", 1, 0, 15},
}

// Threads of thread blocks of quantize_*.cu.
const (
	searchThreads = 128
	roundThreads  = 256
)

// searchArgs is struct SearchArgs of quantize.cuh.
type searchArgs struct {
	x, stored, record uint64
	blocks            uint32
	least, most       int32
}

// roundArgs is struct RoundArgs of quantize_round.cu.
type roundArgs struct {
	x, stored, rounded, copy, record, n uint64
	first, name                         int64
	asked                               uint32
}

var (
	_ [40]byte = [unsafe.Sizeof(searchArgs{})]byte{}
	_ [72]byte = [unsafe.Sizeof(roundArgs{})]byte{}
)

// QuantizedRows are N values that stand side by side in a parameter and that a file holds in one type: whole blocks, or
// floats.
type QuantizedRows struct {
	Type    tensor.DType
	Value   uint64 // device address of the first float32, a multiple of 16 for blocks
	Stored  uint64 // of the bytes, anywhere
	Rounded uint64 // of the float32 that the bytes decode to, as Value
	Copy    uint64 // of the same as bfloat16, or 0
	N       int
	First   int // number of the first value in its parameter, and what tells the parameter: for a fault
	Name    int64
}

// QuantizeHow says how MakeBlocks makes blocks.
type QuantizeHow struct {
	Search  bool // for scales, as quant.Quantize does; else values are rounded under those that are there, as quant.Round does
	Verdict bool // nothing is done if the record's verdict refused the step
}

// MakeBlocks makes the bytes of rows, and what these decode to, with the bits of package quant. A value that no block
// can hold is a FaultWeight of the record, and its block stays undefined.
//
// A search reads 4 bytes per value and is bound by instructions, half of them in float64: some 2,300 per value of Q4_K,
// 490 of Q6_K (docs/journal.md has how they are counted). What follows it reads 4 bytes and the blocks' scales, and
// writes the blocks, 4 bytes and, with a copy, 2.
func MakeBlocks(q Queue, r QuantizedRows, how QuantizeHow) {
	if r.N == 0 {
		return
	}
	d := r.Type
	need(QuantizeServes(d) && r.N%d.BlockLen() == 0, "Quantize", "no whole blocks of a type that is made")
	need(d.IsFloat() || r.Value%16 == 0 && r.Rounded%16 == 0 && r.Copy%16 == 0, "Quantize", "alignment")
	if s := searches[d]; how.Search && s.module != "" {
		blocks := r.N / d.BlockLen()
		need(blocks*s.lanes < 1<<31, "Quantize", "matrix too large")
		a := &searchArgs{x: r.Value, stored: r.Stored, blocks: uint32(blocks), least: s.least, most: s.most}
		if how.Verdict {
			a.record = q.Record()
		}
		launch(q, s.module, "quantize_search_"+s.kernel, ceil(blocks*s.lanes, searchThreads), 1, searchThreads, unsafe.Pointer(a))
	}
	a := &roundArgs{
		x: r.Value, stored: r.Stored, rounded: r.Rounded, copy: r.Copy, record: q.Record(), n: uint64(r.N),
		first: int64(r.First), name: r.Name, asked: uint32(flag(how.Verdict)),
	}
	values := roundThreads // of a thread block
	if !d.IsFloat() {
		values *= 8
	}
	need(ceil(r.N, values) < 1<<31, "Quantize", "matrix too large")
	launch(q, quantizeRound, fmt.Sprintf("quantize_round_%v", d), ceil(r.N, values), 1, roundThreads, unsafe.Pointer(a))
}
