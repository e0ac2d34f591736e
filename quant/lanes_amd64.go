package quant

import "golang.org/x/sys/cpu"

// isa is a level of vector code.
type isa int

const (
	plain isa = iota // the loops in Go
	avx2
	avx512
)

// vectors is the level in use.
var vectors = bestISA()

func bestISA() isa {
	switch {
	case !cpu.X86.HasAVX2 || !cpu.X86.HasFMA:
		return plain
	case cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512BW:
		return avx512
	}
	return avx2
}

func scanLanes(g *affineGroups, b *affineBest, steps, phase, top float64) {
	if vectors == avx512 {
		affineScanAVX512(&g.x[0][0], &b.s[0], steps, phase, top)
	} else {
		affineScanAVX2(&g.x[0][0], &b.s[0], steps, phase, top)
	}
}

func refineLanes(g *affineGroups, b *affineBest, top float64) {
	if vectors == avx512 {
		affineRefineAVX512(&g.x[0][0], &b.s[0], top)
	} else {
		affineRefineAVX2(&g.x[0][0], &b.s[0], top)
	}
}

func roundLanes(g *affineGroups, r *affineRound, d, dmin, invD, invMin, top float64) {
	if vectors == avx512 {
		affineRoundAVX512(&g.x[0][0], &r.s[0], d, dmin, invD, invMin, top)
	} else {
		affineRoundAVX2(&g.x[0][0], &r.s[0], d, dmin, invD, invMin, top)
	}
}

func integerLanes(q *[group]byte, x *[group]float64, s, m, inv, top float64) {
	if vectors == avx512 {
		affineIntegersAVX512(&q[0], &x[0], s, m, inv, top)
	} else {
		affineIntegersAVX2(&q[0], &x[0], s, m, inv, top)
	}
}

func symmetricScanLanes(g *symmetricGroups, b *symmetricBest, steps float64) {
	if vectors == avx512 {
		symmetricScanAVX512(&g.x[0][0], &b.s[0], steps)
	} else {
		symmetricScanAVX2(&g.x[0][0], &b.s[0], steps)
	}
}

func symmetricRefineLanes(g *symmetricGroups, b *symmetricBest) {
	if vectors == avx512 {
		symmetricRefineAVX512(&g.x[0][0], &b.s[0])
	} else {
		symmetricRefineAVX2(&g.x[0][0], &b.s[0])
	}
}

func symmetricRoundLanes(g *symmetricGroups, r *symmetricRound, d, inv float64) {
	if vectors == avx512 {
		symmetricRoundAVX512(&g.x[0][0], &r.s[0], d, inv)
	} else {
		symmetricRoundAVX2(&g.x[0][0], &r.s[0], d, inv)
	}
}
