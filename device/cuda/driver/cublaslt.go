package driver

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"apr/internal/fault"
)

// Lt is libcublasLt, opened and bound. Its methods are the library's calls with Go types and nothing more; plans,
// choices and caches are made in package blas. They are only valid on a device's thread (see Context.Do), because the
// library works in the CUDA context of the calling thread. Matrices are column-major.
//
// Numbers and layouts are those of cublasLt.h, the same in releases 12 and 13.
type Lt struct {
	path    string
	version int
	f       [ltFunctions]procedure
}

// OpenLt finds, opens and binds libcublasLt for a driver of that version (Driver.Version). Without it the Lt is nil and
// the report says what was tried; a library that lacks a function, or that is of another major version, is an error, too.
func OpenLt(driverVersion int) (*Lt, Report, error) {
	lib, report := open(CublasLt, driverVersion)
	if lib == nil {
		return nil, report, report.Err()
	}
	l := &Lt{path: lib.path}
	for i, name := range ltNames {
		var err error
		if l.f[i], err = lib.bind(name); err != nil {
			return nil, report, err
		}
	}
	l.version = int(invoke(l.f[ltGetVersion].addr))
	report.Version = dotted(l.version)
	if major := l.version / 10000; major < 12 || driverVersion > 0 && major > driverVersion/1000 {
		return nil, report, fault.In(fault.Unavailable, lib.path, "is cublasLt %s, which is not of a version that a driver for CUDA %s serves",
			report.Version, VersionText(driverVersion)).WithID("E-CUDA-056").WithHint("12 or 13 is wanted, and no newer than the driver")
	}
	return l, report, nil
}

// Path returns the file that was opened.
func (l *Lt) Path() string { return l.path }

// Version returns what cublasLtGetVersion says, such as 130002 for 13.0.2.
func (l *Lt) Version() int { return l.version }

// The calls that are bound, in the order of ltNames.
const (
	ltCreate = iota
	ltDestroy
	ltGetVersion
	ltDescCreate
	ltDescDestroy
	ltDescSet
	ltLayoutCreate
	ltLayoutDestroy
	ltLayoutSet
	ltPreferenceCreate
	ltPreferenceDestroy
	ltPreferenceSet
	ltHeuristic
	ltConfigGet
	ltMatmul
	ltFunctions
)

var ltNames = [ltFunctions]string{
	"cublasLtCreate", "cublasLtDestroy", "cublasLtGetVersion",
	"cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", "cublasLtMatmulDescSetAttribute",
	"cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy", "cublasLtMatrixLayoutSetAttribute",
	"cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy", "cublasLtMatmulPreferenceSetAttribute",
	"cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmulAlgoConfigGetAttribute", "cublasLtMatmul",
}

// LtType is an element type (cudaDataType).
type LtType int32

// Element types.
const (
	LtF32  LtType = 0
	LtBF16 LtType = 14
	LtE4M3 LtType = 28 // 8-bit floats of 4 exponent and 3 mantissa bits
)

// LtCompute is how products are computed (cublasComputeType_t); both accumulate in float32.
type LtCompute int32

// Compute types.
const (
	LtCompute32F  LtCompute = 68 // the inputs' own precision
	LtComputeTF32 LtCompute = 77 // float32 inputs are rounded to tf32
)

// LtDescAttribute is an attribute of a matmul descriptor (cublasLtMatmulDescAttributes_t). Values are 4 bytes, the
// bias pointer 8.
type LtDescAttribute int32

// Attributes of a matmul descriptor.
const (
	LtTransA      LtDescAttribute = 3  // LtOpN or LtOpT
	LtTransB      LtDescAttribute = 4  // LtOpN or LtOpT
	LtEpilogue    LtDescAttribute = 7  // LtEpilogueDefault or LtEpilogueBias
	LtBiasPointer LtDescAttribute = 8  // device address of D's rows' bias, 8 bytes
	LtScaleA      LtDescAttribute = 17 // device address of what A is multiplied by, 8 bytes; see LtScaleRows
	LtScaleB      LtDescAttribute = 18
	LtFastSums    LtDescAttribute = 25 // 1 byte: 8-bit products may be added with fewer bits
	LtBiasType    LtDescAttribute = 26 // LtType; by default that of D
	LtScaleModeA  LtDescAttribute = 31 // of LtScaleA: 0 one float32, or LtScaleRows
	LtScaleModeB  LtDescAttribute = 32
)

// LtScaleRows is the scale mode of a float32 for each row of op(A), each column of op(B)
// (CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F): both operands must have it, and compute capability 9.0 alone does.
const LtScaleRows = 3

// Values of LtTransA, LtTransB and LtEpilogue.
const (
	LtOpN             = 0
	LtOpT             = 1
	LtEpilogueDefault = 1
	LtEpilogueBias    = 4 // adds one value per row of D
)

// LtLayoutAttribute is an attribute of a matrix layout (cublasLtMatrixLayoutAttribute_t).
type LtLayoutAttribute int32

// Attributes of a matrix layout. The memory order stays column-major and the leading dimension is given at creation.
const (
	LtBatchCount  LtLayoutAttribute = 5 // int32
	LtBatchStride LtLayoutAttribute = 6 // int64, elements
)

// LtPreferenceAttribute is an attribute of a preference (cublasLtMatmulPreferenceAttributes_t).
type LtPreferenceAttribute int32

// Attributes of a preference.
const (
	LtMaxWorkspace  LtPreferenceAttribute = 1 // bytes, uint64
	LtReductionMask LtPreferenceAttribute = 3 // uint32; LtReductionNone excludes split-K
	LtAlignA        LtPreferenceAttribute = 5 // bytes that A's address is a multiple of, uint32
	LtAlignB        LtPreferenceAttribute = 6
	LtAlignC        LtPreferenceAttribute = 7
	LtAlignD        LtPreferenceAttribute = 8
)

// LtReductionNone is the reduction scheme of algorithms that add every dot product in one sequence.
const LtReductionNone = 0

// LtConfigAttribute is a part of an algorithm's configuration (cublasLtMatmulAlgoConfigAttributes_t).
type LtConfigAttribute int32

// Parts of an algorithm's configuration; the last two are 2 bytes, the others 4.
const (
	LtAlgoID LtConfigAttribute = iota
	LtTile
	LtSplitK
	LtReduction
	LtSwizzle
	LtCustom
	LtStages
	LtInnerShape
	LtCluster
	ltConfigs
)

// Descriptors of the library.
type (
	LtHandle     uintptr // a cublasLtHandle_t
	LtDesc       uintptr // a cublasLtMatmulDesc_t
	LtLayout     uintptr // a cublasLtMatrixLayout_t
	LtPreference uintptr // a cublasLtMatmulPreference_t
)

// LtAlgo is an algorithm with its configuration (cublasLtMatmulAlgo_t), opaque.
type LtAlgo [8]uint64

// LtCandidate is an answer of Heuristic (cublasLtMatmulHeuristicResult_t).
type LtCandidate struct {
	Algo      LtAlgo
	Workspace uint64 // bytes that it needs
	Status    int32  // the rest is valid only if 0
	Waves     float32
	_         [4]int32
}

// The layouts must be the library's: it reads and writes them.
var (
	_ [64]byte = [unsafe.Sizeof(LtAlgo{})]byte{}
	_ [96]byte = [unsafe.Sizeof(LtCandidate{})]byte{}
)

// LtError is a call that did not return CUBLAS_STATUS_SUCCESS.
type LtError struct {
	Call   string
	Status int
}

// Statuses that callers tell apart.
const (
	LtInvalidValue = 7
	LtNotSupported = 15
)

var ltStatuses = map[int]string{
	1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 11: "MAPPING_ERROR",
	13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED", 16: "LICENSE_ERROR",
}

// Error names the call and the status.
func (e *LtError) Error() string {
	name, ok := ltStatuses[e.Status]
	if !ok {
		name = "UNKNOWN"
	}
	return fmt.Sprintf("%s: CUBLAS_STATUS_%s (%d)", e.Call, name, e.Status)
}

// call calls function i and makes an error of its status, a C enum in the low 32 bits.
//
//go:uintptrescapes
func (l *Lt) call(i int, args ...uintptr) error { return ltError(i, invoke(l.f[i].addr, args...)) }

func ltError(i int, status uintptr) error {
	if code := int32(status); code != 0 {
		return &LtError{Call: ltNames[i], Status: int(code)}
	}
	return nil
}

// Create makes a handle.
func (l *Lt) Create() (LtHandle, error) {
	h := new(LtHandle)
	err := l.call(ltCreate, uintptr(unsafe.Pointer(h)))
	return *h, err
}

// Destroy gives a handle back.
func (l *Lt) Destroy(h LtHandle) error {
	return l.call(ltDestroy, uintptr(h))
}

// NewDesc makes a matmul descriptor with float32 scale factors.
func (l *Lt) NewDesc(c LtCompute) (LtDesc, error) {
	d := new(LtDesc)
	err := l.call(ltDescCreate, uintptr(unsafe.Pointer(d)), uintptr(c), uintptr(LtF32))
	return *d, err
}

// FreeDesc gives a descriptor back.
func (l *Lt) FreeDesc(d LtDesc) error {
	return l.call(ltDescDestroy, uintptr(d))
}

// SetDesc sets an attribute of 4 bytes.
func (l *Lt) SetDesc(d LtDesc, a LtDescAttribute, v int32) error {
	p := &v
	return l.call(ltDescSet, uintptr(d), uintptr(a), uintptr(unsafe.Pointer(p)), 4)
}

// SetFastSums sets LtFastSums.
func (l *Lt) SetFastSums(d LtDesc, v int8) error {
	p := &v
	return l.call(ltDescSet, uintptr(d), uintptr(LtFastSums), uintptr(unsafe.Pointer(p)), 1)
}

// SetPointer sets LtBiasPointer, LtScaleA or LtScaleB to *p, which is read during the call.
func (l *Lt) SetPointer(d LtDesc, a LtDescAttribute, p *uint64) error {
	return l.call(ltDescSet, uintptr(d), uintptr(a), uintptr(unsafe.Pointer(p)), 8)
}

// NewLayout describes a column-major matrix: element (r,c) stands at r + c·ld.
func (l *Lt) NewLayout(t LtType, rows, cols, ld int) (LtLayout, error) {
	m := new(LtLayout)
	err := l.call(ltLayoutCreate, uintptr(unsafe.Pointer(m)), uintptr(t),
		uintptr(rows), uintptr(cols), uintptr(ld))
	return *m, err
}

// FreeLayout gives a layout back.
func (l *Lt) FreeLayout(m LtLayout) error {
	return l.call(ltLayoutDestroy, uintptr(m))
}

// SetBatch makes a layout one of n matrices, stride elements apart.
func (l *Lt) SetBatch(m LtLayout, n int32, stride int64) error {
	count, offset := &n, &stride
	err := l.call(ltLayoutSet, uintptr(m), uintptr(LtBatchCount), uintptr(unsafe.Pointer(count)), 4)
	if err != nil {
		return err
	}
	return l.call(ltLayoutSet, uintptr(m), uintptr(LtBatchStride), uintptr(unsafe.Pointer(offset)), 8)
}

// NewPreference makes a preference.
func (l *Lt) NewPreference() (LtPreference, error) {
	p := new(LtPreference)
	err := l.call(ltPreferenceCreate, uintptr(unsafe.Pointer(p)))
	return *p, err
}

// FreePreference gives a preference back.
func (l *Lt) FreePreference(p LtPreference) error {
	return l.call(ltPreferenceDestroy, uintptr(p))
}

// SetPreference sets an attribute.
func (l *Lt) SetPreference(p LtPreference, a LtPreferenceAttribute, v uint64) error {
	size := uintptr(4) // little-endian: the low half comes first
	if a == LtMaxWorkspace {
		size = 8
	}
	w := &v
	return l.call(ltPreferenceSet, uintptr(p), uintptr(a), uintptr(unsafe.Pointer(w)), size)
}

// LtProblem is a matrix product D = α·op(A)·op(B) + β·C without its addresses.
type LtProblem struct {
	Desc       LtDesc
	A, B, C, D LtLayout
}

// Heuristic returns up to n algorithms, the one that the library believes fastest first.
func (l *Lt) Heuristic(h LtHandle, p LtProblem, pref LtPreference, n int) ([]LtCandidate, error) {
	out, got := make([]LtCandidate, n), new(int32)
	err := l.call(ltHeuristic, uintptr(h), uintptr(p.Desc), uintptr(p.A), uintptr(p.B), uintptr(p.C),
		uintptr(p.D), uintptr(pref), uintptr(n), uintptr(unsafe.Pointer(unsafe.SliceData(out))), uintptr(unsafe.Pointer(got)))
	if err != nil {
		return nil, err
	}
	valid := out[:0]
	for _, c := range out[:min(max(int(*got), 0), n)] {
		if c.Status == 0 {
			valid = append(valid, c)
		}
	}
	return valid, nil
}

// Config reads a part of an algorithm's configuration.
func (l *Lt) Config(a *LtAlgo, part LtConfigAttribute) (uint32, error) {
	v, written := new(uint32), new(uint64)
	err := l.call(ltConfigGet, uintptr(unsafe.Pointer(a)), uintptr(part), uintptr(unsafe.Pointer(v)),
		ltConfigSize(part), uintptr(unsafe.Pointer(written)))
	return *v, err
}

func ltConfigSize(part LtConfigAttribute) uintptr {
	if part == LtInnerShape || part == LtCluster {
		return 2
	}
	return 4
}

// Describe names an algorithm by its whole configuration, in one word: "66/tile=128x256/stages=35/cluster=3"; parts that
// are 0 are left out, a split of 1 too. Algorithms of one heuristic with the same name are the same.
func (l *Lt) Describe(a *LtAlgo) (string, error) {
	names := [ltConfigs]string{"", "tile", "splitk", "reduction", "swizzle", "custom", "stages", "inner", "cluster"}
	var b strings.Builder
	for part := range ltConfigs {
		v, err := l.Config(a, part)
		switch {
		case err != nil:
			return "", err
		case part == LtAlgoID:
			fmt.Fprintf(&b, "%d", v)
		case v == 0 || part == LtSplitK && v == 1:
		case part == LtTile && v < uint32(len(ltTiles)) && ltTiles[v] != "":
			fmt.Fprintf(&b, "/tile=%s", ltTiles[v])
		default:
			fmt.Fprintf(&b, "/%s=%d", names[part], v)
		}
	}
	return b.String(), nil
}

// ltTiles names the usual tiles (cublasLtMatmulTile_t), rows × columns of D; others are logged by number.
var ltTiles = [...]string{
	11: "32x32", 12: "32x64", 13: "64x32", 14: "32x128", 15: "64x64", 16: "128x32", 17: "64x128", 18: "128x64", 19: "64x256",
	20: "128x128", 21: "256x64", 22: "64x512", 23: "128x256", 24: "256x128", 25: "512x64", 26: "64x96", 27: "96x64",
	28: "96x128", 29: "128x160", 30: "160x128", 31: "192x128", 32: "128x192", 33: "128x96",
}

// LtCall is a product with its addresses, ready to be started again and again: it lives on the heap, for the library
// reads the scale factors and the algorithm from it. A, B, C, D and the workspace are device addresses; C = D.
type LtCall struct {
	args        [16]uintptr
	alpha, beta float32
	algo        LtAlgo
	addr        uintptr
}

// NewCall prepares D = op(A)·op(B) + β·D (plus the descriptor's epilogue).
func (l *Lt) NewCall(h LtHandle, p LtProblem, algo LtAlgo, beta float32, workspace uint64, bytes int64) *LtCall {
	c := &LtCall{alpha: 1, beta: beta, algo: algo, addr: l.f[ltMatmul].addr}
	c.args = [16]uintptr{
		uintptr(h), uintptr(p.Desc), uintptr(unsafe.Pointer(&c.alpha)), 0, uintptr(p.A), 0, uintptr(p.B),
		uintptr(unsafe.Pointer(&c.beta)), 0, uintptr(p.C), 0, uintptr(p.D), uintptr(unsafe.Pointer(&c.algo)),
		uintptr(workspace), uintptr(bytes), 0,
	}
	return c
}

// Start queues the product on s.
func (c *LtCall) Start(a, b, d uint64, s Stream) error {
	c.args[3], c.args[5], c.args[8], c.args[10], c.args[15] = uintptr(a), uintptr(b), uintptr(d), uintptr(d), uintptr(s)
	status := invoke(c.addr, c.args[:]...)
	runtime.KeepAlive(c)
	return ltError(ltMatmul, status)
}
