// Package vec holds the loops over rows of numbers that are not matrix products: sums, exponentials, norms, gated units, soft-caps,
// the distillation loss, AdamW.
//
// Every loop exists four times: as plain Go (lower-case name, file loops.go), which says what is computed, serves
// processors without assembly and judges the others in tests; and as generated AVX2, AVX-512 and NEON assembly. A
// method of ISA picks one.
//
// Caveats. Slices shorter than the first one panic; assembly trusts the checked lengths. The instruction sets differ in
// the last bits, since they sum in another order and compute exp by polynomial (within 2 units in the last place);
// one instruction set always gives the same bits. NaN comes out wherever it goes in, except from Max and Index.
package vec

import (
	"slices"

	"apr/internal/fault"
)

// ISA is an instruction set that the loops can run on.
type ISA uint8

// The instruction sets, slowest first.
const (
	Generic ISA = iota // plain Go
	AVX2               // with FMA3 and F16C, 8 floats at a time
	AVX512             // F, VL, DQ, BW: 16 floats at a time
	NEON               // of arm64: 4 floats at a time
)

var isaNames = []string{"generic", "avx2", "avx512", "neon"}

// String returns "generic", "avx2", "avx512" or "neon".
func (i ISA) String() string { return isaNames[i] }

// Available lists the instruction sets of this processor, slowest first.
func Available() []ISA {
	sets := []ISA{Generic}
	for _, i := range []ISA{AVX2, AVX512, NEON} {
		if supported(i) {
			sets = append(sets, i)
		}
	}
	return sets
}

// Best returns the fastest instruction set of this processor.
func Best() ISA {
	sets := Available()
	return sets[len(sets)-1]
}

// Parse returns the instruction set of that name, "" meaning the fastest. An unknown name is a fault of kind Usage, one
// that this processor lacks of kind Unavailable.
func Parse(name string) (ISA, error) {
	if name == "" {
		return Best(), nil
	}
	n := slices.Index(isaNames, name)
	if n < 0 {
		return 0, fault.New(fault.Usage, "unknown instruction set %q", name).WithHint("one of %v", isaNames).WithID("E-CPU-001")
	}
	if !slices.Contains(Available(), ISA(n)) {
		return 0, fault.New(fault.Unavailable, "this processor has no %s", name).WithHint("one of %v", Available()).WithID("E-CPU-002")
	}
	return ISA(n), nil
}

// LossSums are the sums of one row, or of part of it, for the distillation loss; see LossSums of ISA.
type LossSums struct {
	T  float64 // Σ e^{(t−mt)/T}
	ZT float64 // Σ e^{(z−mz)/T}
	Z1 float64 // Σ e^{z−mz}
	A  float64 // Σ e^{(t−mt)/T}·[(t−mt)−(z−mz)]
	E  float64 // Σ e^{(t−mt)/T}·(t−mt)
}

// Centre says how to make probabilities of logits: p = e^{(t−MT)·InvT}·InvSumT and Q = e^{(z−MZ)·InvT}·InvSumZ;
// then ln p − ln Q = ((t−MT) − (z−MZ))·InvT + LogRatio, LogRatio = ln Σ_Q − ln Σ_p.
type Centre struct {
	MZ, MT, InvT, InvSumZ, InvSumT, LogRatio float32
}

// Mix holds the coefficients of the divergences that compare with a mixture M = βp + (1−β)Q:
//
//	D = Σ DP·p·ln(p/M) + DQ·Q·ln(Q/M)
//	h = HLog·Q·ln(Q/M) + HP·p·Q/M + HQ·Q·Q/M
type Mix struct {
	Beta, DP, DQ, HLog, HP, HQ float32
}

// AdamW holds the constants of one update in float32; see AdamW of ISA.
type AdamW struct {
	Decay   float32 // 1 − lr·weight decay; 1 for parameters that do not decay
	Beta1   float32
	Rest1   float32 // 1 − β₁, rounded from float64
	Beta2   float32
	Rest2   float32 // 1 − β₂
	Scale   float32 // clip scale s
	Step    float32 // lr/(1−β₁ⁿ)
	InvBias float32 // 1/√(1−β₂ⁿ)
	Eps     float32
}
