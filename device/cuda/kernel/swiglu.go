package kernel

import (
	"fmt"
	"unsafe"
)

const swigluModule = "swiglu"

// swigluArgs is struct SwiGLUArgs of swiglu.cu.
type swigluArgs struct {
	gu, m, dgu                   uint64
	guStride, mStride, dguStride int64
	cols, packs, items           uint32
}

// SwiGLU: m = silu(g)·u with silu(g) = g·σ(g), gu [n,2f] holding g then u, m [n,f]; bfloat16 or float32.
//
// Bytes moved per element of m in bfloat16: 6.
func SwiGLU(q Queue, m, gu Mat) { swiglu(q, "swiglu", Mat{}, m, gu) }

// SwiGLUBackward writes dgu: dg = dm·u·σ(g)(1+g(1−σ(g))), du = dm·g·σ(g). dgu may be gu itself.
//
// Bytes moved per element of dm in bfloat16: 10.
func SwiGLUBackward(q Queue, dgu, dm, gu Mat) {
	swiglu(q, "swiglu_backward", dgu, dm, gu)
}

func swiglu(q Queue, name string, dgu, m, gu Mat) {
	pack, unroll := packWidth(m.Cols, dgu, m, gu), 2
	if pack == 1 {
		unroll = 4
	}
	packs := m.Cols / pack
	eachRows(m.Rows, packs, func(lo, hi int) {
		items := (hi - lo) * packs
		a := &swigluArgs{
			gu: gu.rows(lo, hi).Ptr, m: m.rows(lo, hi).Ptr, dgu: dgu.rows(lo, hi).Ptr, guStride: int64(gu.Stride),
			mStride: int64(m.Stride), dguStride: int64(dgu.Stride), cols: uint32(m.Cols), packs: uint32(packs), items: uint32(items),
		}
		launch(q, swigluModule, fmt.Sprintf("%s_%s_%d", name, typeName(m.Type), pack), items, 256*unroll, 256, unsafe.Pointer(a))
	})
}
