package kernel

import (
	"fmt"
	"math"
	"unsafe"

	"apr/device"
)

const (
	rotaryModule = "rotary"
	rotaryHeads  = 4 // heads that a thread rotates

	// RotaryPartModule has the kernels that Rotate launches where RotatesPart.
	RotaryPartModule = "rotary_part"
)

// RotatesPart reports whether r asks for more than whole heads that turn by the position of their row.
func RotatesPart(r device.Rotary) bool {
	return 2*len(r.Table.Inv) != r.HeadDim || !r.Positions.IsZero() || r.QBeta != 0
}

// rotaryPartArgs is struct RotaryPartArgs of rotary.cuh.
type rotaryPartArgs struct {
	x, table, scale, positions, record                                    uint64
	stride                                                                int64
	heads, half, d, offset, seqLen, packs, turning, items, limit, inverse uint32
}

// rotaryArgs is struct RotaryArgs of rotary.cu.
type rotaryArgs struct {
	x, table                                                         uint64
	stride                                                           int64
	rows, heads, half, offset, seqLen, packs, groups, items, inverse uint32
}

// RotaryTable returns what Rotate reads: for each position below positions and each pair i the cosine and the sine of
// φ = position·f.Inv[i], times the factor, computed in float64 and rounded once; [positions, pairs, 2].
func RotaryTable(f *device.Frequencies, positions int) []float32 {
	half, gain := len(f.Inv), f.Gain()
	table := make([]float32, 2*half*positions)
	for i, frequency := range f.Inv {
		for position := range positions {
			sin, cos := math.Sincos(float64(position) * frequency)
			at := 2 * (position*half + i)
			table[at], table[at+1] = float32(gain*cos), float32(gain*sin)
		}
	}
	return table
}

// RotaryScale returns r.QScale of each position below positions, rounded once.
func RotaryScale(r device.Rotary, positions int) []float32 {
	scale := make([]float32, positions)
	for p := range scale {
		scale[p] = float32(r.QScale(p))
	}
	return scale
}

// RotaryTables is where the host has put what Rotate reads.
type RotaryTables struct {
	Table     uint64 // of RotaryTable
	Scale     uint64 // of RotaryScale; 0 if r.QBeta is
	Positions Mat    // int32 [n,1] or [1,n]; zero: none
	Rows      int    // positions that the tables have
}

// Rotate applies the rotary embedding in place to x [n, heads·HeadDim], bfloat16 or float32: with half-split pairs
// i < R/2, j = i+R/2, R = 2·len(Table.Inv), and φ of position Offset + r mod SeqLen, (xᵢ, xⱼ) becomes
// (xᵢcosφ − xⱼsinφ, xⱼcosφ + xᵢsinφ), and −φ with Inverse. Where RotatesPart, the values from R on stay, the position is the row's
// own, and all values are multiplied by r.QScale; a position that the tables do not have is noted as FaultPosition, and its row stays.
// The tables are those of at least the positions that occur.
//
// Bytes moved per element in bfloat16: 4; the table stays in caches.
func Rotate(q Queue, x Mat, r device.Rotary, t RotaryTables) {
	if RotatesPart(r) {
		rotatePart(q, x, r, t)
		return
	}
	half, heads := r.HeadDim/2, x.Cols/r.HeadDim
	pack := packWidth(half, x)
	packs, groups := half/pack, ceil(heads, rotaryHeads)
	name := fmt.Sprintf("rotary_%s_%d", typeName(x.Type), pack)
	items := x.Rows * groups * packs
	need(items < 1<<31, "Rotate", "too many elements")
	if items == 0 {
		return
	}
	a := &rotaryArgs{
		x: x.Ptr, table: t.Table, stride: int64(x.Stride), rows: uint32(x.Rows), heads: uint32(heads), half: uint32(half),
		offset: uint32(r.Offset), seqLen: uint32(min(r.SeqLen, max(1, x.Rows))), packs: uint32(packs), groups: uint32(groups), items: uint32(items),
	}
	if r.Inverse {
		a.inverse = 1
	}
	launch(q, rotaryModule, name, items, 256, 256, unsafe.Pointer(a))
}

func rotatePart(q Queue, x Mat, r device.Rotary, t RotaryTables) {
	half, heads := len(r.Table.Inv), x.Cols/r.HeadDim
	pack := packWidth(r.HeadDim, x)
	if half%8 != 0 {
		pack = 1
	}
	turning := half / pack
	packs := turning + (r.HeadDim-2*half)/pack
	if r.QBeta == 0 {
		packs = turning // the others stay
	}
	items := x.Rows * heads * packs
	need(items < 1<<31, "Rotate", "too many elements")
	if items == 0 {
		return
	}
	a := &rotaryPartArgs{
		x: x.Ptr, table: t.Table, scale: t.Scale, record: q.Record(), stride: int64(x.Stride), heads: uint32(heads), half: uint32(half), d: uint32(r.HeadDim),
		offset: uint32(r.Offset), seqLen: uint32(min(r.SeqLen, max(1, x.Rows))), packs: uint32(packs), turning: uint32(turning),
		items: uint32(items), limit: uint32(t.Rows),
	}
	if !t.Positions.IsZero() {
		ptr, stride := vector(t.Positions)
		need(stride == 1, "Rotate", "positions with gaps")
		a.positions = ptr
	}
	if r.Inverse {
		a.inverse = 1
	}
	launch(q, RotaryPartModule, fmt.Sprintf("rotary_part_%s_%d", typeName(x.Type), pack), items, 256, 256, unsafe.Pointer(a))
}
