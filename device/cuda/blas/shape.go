package blas

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"apr/device/cuda/driver"
	"apr/tensor"
)

// Op is the form of a product of row-major matrices.
type Op uint8

// The three products of a linear layer y = x·Wᵀ with W [out, in].
const (
	NT Op = iota // c[M,N] = a[M,K]·b[N,K]ᵀ: y = x·Wᵀ
	NN           // c[M,N] = a[M,K]·b[K,N]: dx = dy·W
	TN           // c[M,N] = a[K,M]ᵀ·b[K,N]: dw = dyᵀ·x
)

// String returns the form's name in keys.
func (o Op) String() string { return [...]string{"nt", "nn", "tn"}[o] }

// Compute is the arithmetic of the products; sums are always float32.
type Compute uint8

// The arithmetics.
const (
	BF16 Compute = iota // bfloat16 operands
	TF32                // float32 operands, rounded to 10 bits of mantissa
	F32                 // float32 operands
	// FP8 has e4m3 operands with a float32 scale for each row of a and of b: c[i,j] = sa[i]·sb[j]·Σ. Form NT, N and K
	// multiples of 16, aligned addresses, compute capability 9.0; sums keep about 14 bits.
	FP8
)

// alignment is what all addresses of an aligned shape are multiples of, in bytes.
const alignment = 16

// Shape is a product without its addresses: c = op(a)·op(b), plus a bias per column, plus c.
type Shape struct {
	Op            Op
	M, N, K       int
	LDA, LDB, LDC int          // elements between the rows of a, b and c
	In, Out       tensor.DType // of a and b: BF16, F32, or U8 for e4m3; of c and the bias: BF16 or F32
	Compute       Compute
	Bias, Add     bool
	Aligned       bool // all addresses, the bias's too, are multiples of 16
}

// AlignedAt reports whether all addresses are multiples of 16, which Shape.Aligned wants to know.
func AlignedAt(addresses ...uint64) bool {
	all := uint64(0)
	for _, a := range addresses {
		all |= a
	}
	return all%alignment == 0
}

// Key names the shape in logs and in the file of remembered choices: "gemm/nt/8192x4608x3584/bf16", with whatever is
// not usual after it (another type of c, tf32, bias, add, rows further apart than they are long, odd addresses).
func (s Shape) Key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "gemm/%s/%dx%dx%d/%s", s.Op, s.M, s.N, s.K, typeName(s.In))
	if s.Out != s.In {
		fmt.Fprintf(&b, "-%s", typeName(s.Out))
	}
	if s.Compute == TF32 {
		b.WriteString("/tf32")
	}
	if s.Bias {
		b.WriteString("/bias")
	}
	if s.Add {
		b.WriteString("/add")
	}
	a, w := s.operands()
	if s.LDA != a.cols || s.LDB != w.cols || s.LDC != s.N {
		fmt.Fprintf(&b, "/ld%d,%d,%d", s.LDA, s.LDB, s.LDC)
	}
	if !s.Aligned {
		b.WriteString("/odd")
	}
	return b.String()
}

func typeName(d tensor.DType) string {
	switch d {
	case tensor.BF16:
		return "bf16"
	case tensor.U8:
		return "e4m3"
	}
	return "f32"
}

// FLOP returns 2·M·N·K.
func (s Shape) FLOP() float64 { return 2 * float64(s.M) * float64(s.N) * float64(s.K) }

// stored is the extent of an operand in memory.
type stored struct{ rows, cols int }

// operands returns the extents of a and b.
func (s Shape) operands() (a, b stored) {
	switch s.Op {
	case NT:
		return stored{s.M, s.K}, stored{s.N, s.K}
	case NN:
		return stored{s.M, s.K}, stored{s.K, s.N}
	default:
		return stored{s.K, s.M}, stored{s.K, s.N}
	}
}

// check panics over a shape that is a mistake of the program, and returns ErrUnsupported for one that only the library
// does not serve.
func (s Shape) check() error {
	a, b := s.operands()
	in := map[Compute]tensor.DType{BF16: tensor.BF16, TF32: tensor.F32, F32: tensor.F32, FP8: tensor.U8}
	switch {
	case s.Op > TN || s.Compute > FP8 || s.In != in[s.Compute] || s.Out != tensor.BF16 && s.Out != tensor.F32,
		s.LDA < a.cols || s.LDB < b.cols || s.LDC < s.N:
		panic(fmt.Sprintf("blas: impossible product %+v", s))
	case s.Compute == FP8 && (s.Op != NT || !s.Aligned || (s.N|s.K|s.LDA|s.LDB)%16 != 0 || s.LDC*s.Out.BlockBytes()%16 != 0):
		return fmt.Errorf("%s: %w", s.Key(), ErrUnsupported)
	case min(s.M, s.N, s.K) < 1 || max(s.M, s.N, s.K, s.LDA, s.LDB, s.LDC) > math.MaxInt32:
		return fmt.Errorf("%s: %w", s.Key(), ErrUnsupported)
	}
	return nil
}

// problem is a shape as the library wants it, column-major: a row-major matrix [r,c] is a column-major one [c,r], so
// c = op(a)·op(b) becomes cᵀ = op(b)ᵀ·op(a)ᵀ and the operands change places.
type problem struct {
	lt     driver.LtProblem
	bias   *uint64    // the address that the descriptor has
	scales *[2]uint64 // of FP8: those of op(A) and op(B), the library's: of our b and a
}

// newProblem makes the descriptors; on an error those made so far are in the result.
func newProblem(lt *driver.Lt, s Shape) (p problem, err error) {
	p.bias = new(uint64)
	*p.bias = alignment // the heuristic looks at the address's alignment
	if !s.Aligned {
		*p.bias = uint64(s.Out.BlockBytes())
	}
	p.scales = &[2]uint64{alignment, alignment}
	compute := map[Compute]driver.LtCompute{BF16: driver.LtCompute32F, F32: driver.LtCompute32F, TF32: driver.LtComputeTF32, FP8: driver.LtCompute32F}
	if p.lt.Desc, err = lt.NewDesc(compute[s.Compute]); err != nil {
		return p, err
	}
	if err = describe(lt, p, s); err != nil {
		return p, err
	}
	layout := func(d tensor.DType, m stored, ld int) (x driver.LtLayout) {
		if err == nil {
			x, err = lt.NewLayout(ltType(d), m.cols, m.rows, ld)
		}
		return x
	}
	a, b := s.operands()
	p.lt.A = layout(s.In, b, s.LDB)
	p.lt.B = layout(s.In, a, s.LDA)
	p.lt.C = layout(s.Out, stored{s.M, s.N}, s.LDC)
	p.lt.D = p.lt.C
	return p, err
}

// describe sets the transpositions and the epilogue.
func describe(lt *driver.Lt, p problem, s Shape) error {
	transA, transB := int32(driver.LtOpN), int32(driver.LtOpN)
	if s.Op == NT {
		transA = driver.LtOpT
	}
	if s.Op == TN {
		transB = driver.LtOpT
	}
	if err := lt.SetDesc(p.lt.Desc, driver.LtTransA, transA); err != nil {
		return err
	}
	err := lt.SetDesc(p.lt.Desc, driver.LtTransB, transB)
	if err == nil && s.Compute == FP8 {
		err = describeScales(lt, p)
	}
	if err != nil || !s.Bias {
		return err
	}
	if err := lt.SetDesc(p.lt.Desc, driver.LtEpilogue, driver.LtEpilogueBias); err != nil {
		return err
	}
	if err := lt.SetDesc(p.lt.Desc, driver.LtBiasType, int32(ltType(s.Out))); err != nil {
		return err
	}
	return lt.SetPointer(p.lt.Desc, driver.LtBiasPointer, p.bias)
}

// describeScales gives both operands a scale for each row. A library that does not know of them refuses.
func describeScales(lt *driver.Lt, p problem) error {
	for _, a := range []driver.LtDescAttribute{driver.LtScaleModeA, driver.LtScaleModeB} {
		if err := lt.SetDesc(p.lt.Desc, a, driver.LtScaleRows); err != nil {
			return err
		}
	}
	if err := lt.SetFastSums(p.lt.Desc, 1); err != nil {
		return err
	}
	return p.point(lt)
}

// point hands the addresses of the scales to the library.
func (p problem) point(lt *driver.Lt) error {
	if err := lt.SetPointer(p.lt.Desc, driver.LtScaleA, &p.scales[0]); err != nil {
		return err
	}
	return lt.SetPointer(p.lt.Desc, driver.LtScaleB, &p.scales[1])
}

func ltType(d tensor.DType) driver.LtType {
	switch d {
	case tensor.BF16:
		return driver.LtBF16
	case tensor.U8:
		return driver.LtE4M3
	}
	return driver.LtF32
}

// free gives the descriptors back.
func (p problem) free(lt *driver.Lt) error {
	var errs []error
	if p.lt.Desc != 0 {
		errs = append(errs, lt.FreeDesc(p.lt.Desc))
	}
	for _, m := range []driver.LtLayout{p.lt.A, p.lt.B, p.lt.C} {
		if m != 0 {
			errs = append(errs, lt.FreeLayout(m))
		}
	}
	return errors.Join(errs...)
}
