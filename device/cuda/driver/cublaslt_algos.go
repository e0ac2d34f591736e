package driver

import "unsafe"

// LtCapability is what an algorithm can do (cublasLtMatmulAlgoCapAttributes_t).
type LtCapability int32

// Capabilities; the lists are of uint32.
const (
	LtSwizzling LtCapability = 2  // 1: LtSwizzle may be 1
	LtTiles     LtCapability = 6  // values that LtTile may have
	LtCustomMax LtCapability = 7  // the largest LtCustom
	LtStageIDs  LtCapability = 13 // values that LtStages may have
)

// maxCapability is how many values of a list there may be.
const maxCapability = 1 << 16

// Capability returns the values of a capability: one, or a list.
func (l *Lt) Capability(a *LtAlgo, c LtCapability) ([]uint32, error) {
	size := new(uint64)
	*size = 4
	if c == LtTiles || c == LtStageIDs { // a list wants exactly its size
		err := l.call(ltCapGet, uintptr(unsafe.Pointer(a)), uintptr(c), 0, 0, uintptr(unsafe.Pointer(size)))
		if err != nil || *size < 4 {
			return nil, err
		}
	}
	values := make([]uint32, min(*size/4, maxCapability))
	err := l.call(ltCapGet, uintptr(unsafe.Pointer(a)), uintptr(c), uintptr(unsafe.Pointer(unsafe.SliceData(values))),
		uintptr(4*len(values)), uintptr(unsafe.Pointer(size)))
	return values, err
}

// Check returns what Heuristic would say about an algorithm whose configuration was changed; a configuration that the
// library does not have, or not for this problem, is an LtError.
func (l *Lt) Check(h LtHandle, p LtProblem, a LtAlgo) (LtCandidate, error) {
	algo, out := &a, new(LtCandidate)
	err := l.call(ltCheck, uintptr(h), uintptr(p.Desc), uintptr(p.A), uintptr(p.B), uintptr(p.C), uintptr(p.D),
		uintptr(unsafe.Pointer(algo)), uintptr(unsafe.Pointer(out)))
	if err == nil && out.Status != 0 {
		err = ltError(ltCheck, uintptr(out.Status))
	}
	out.Algo = a // the library leaves that to the caller
	return *out, err
}
