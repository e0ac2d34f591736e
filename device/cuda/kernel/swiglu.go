package kernel

import (
	"fmt"
	"unsafe"

	"apr/device"
)

// gluModules are the modules of the activations, and what their kernels' names begin with.
var gluModules = [...]string{device.SiLU: "swiglu", device.GELUTanh: "geglu", device.OSS: "clampglu", device.Sigmoid: "sigmoidglu"}

// GLUModule returns the module of GLU and GLUBackward with an activation.
func GLUModule(act device.Activation) string { return gluModules[act] }

// gluArgs is struct GLUArgs of glu.cuh.
type gluArgs struct {
	gu, m, dgu                   uint64
	guStride, mStride, dguStride int64
	cols, packs, items           uint32
}

// GLU: m = act(g)·u, gu [n,2f] holding g then u, m [n,f]; bfloat16 or float32.
//
// Bytes moved per element of m in bfloat16: 6.
func GLU(q Queue, m, gu Mat, act device.Activation) { glu(q, GLUModule(act), "", Mat{}, m, gu) }

// GLUBackward writes dgu: dg = dm·u·act'(g), du = dm·act(g). dgu may be gu itself.
//
// Bytes moved per element of dm in bfloat16: 10.
func GLUBackward(q Queue, dgu, dm, gu Mat, act device.Activation) {
	glu(q, GLUModule(act), "_backward", dgu, dm, gu)
}

func glu(q Queue, module, suffix string, dgu, m, gu Mat) {
	pack, unroll := packWidth(m.Cols, dgu, m, gu), 2
	if pack == 1 {
		unroll = 4
	}
	packs := m.Cols / pack
	eachRows(m.Rows, packs, func(lo, hi int) {
		items := (hi - lo) * packs
		a := &gluArgs{
			gu: gu.rows(lo, hi).Ptr, m: m.rows(lo, hi).Ptr, dgu: dgu.rows(lo, hi).Ptr, guStride: int64(gu.Stride),
			mStride: int64(m.Stride), dguStride: int64(dgu.Stride), cols: uint32(m.Cols), packs: uint32(packs), items: uint32(items),
		}
		launch(q, module, fmt.Sprintf("%s%s_%s_%d", module, suffix, typeName(m.Type), pack), items, 256*unroll, 256, unsafe.Pointer(a))
	})
}
