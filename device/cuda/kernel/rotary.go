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
)

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

// Rotate applies the rotary embedding in place to x [n, heads·HeadDim], bfloat16 or float32: with half-split pairs
// i < d/2, j = i+d/2 and φ of position Offset + r mod SeqLen, (xᵢ, xⱼ) becomes (xᵢcosφ − xⱼsinφ, xⱼcosφ + xᵢsinφ), and
// −φ with Inverse. table is the address of RotaryTable(r.Table, …) for at least the positions that occur.
//
// Bytes moved per element in bfloat16: 4; the table stays in caches.
func Rotate(q Queue, x Mat, r device.Rotary, table uint64) {
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
		x: x.Ptr, table: table, stride: int64(x.Stride), rows: uint32(x.Rows), heads: uint32(heads), half: uint32(half),
		offset: uint32(r.Offset), seqLen: uint32(min(r.SeqLen, max(1, x.Rows))), packs: uint32(packs), groups: uint32(groups), items: uint32(items),
	}
	if r.Inverse {
		a.inverse = 1
	}
	launch(q, rotaryModule, name, items, 256, 256, unsafe.Pointer(a))
}
