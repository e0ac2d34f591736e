package gemm

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

//go:generate sh -c "cd ../../../tools && go run ./avo/gemm -pkg gemm -out ../device/cpu/gemm/kernels_amd64.s -stubs ../device/cpu/gemm/stubs_amd64.go"
//go:generate sh -c "cd ../../../tools && go run ./neon/gemm -out ../device/cpu/gemm/kernels_arm64.s -stubs ../device/cpu/gemm/stubs_arm64.go"

// tileFunc computes a tile of h rows (one function for each h) and nr columns:
//
//	v = alpha · Σ_{p<k} a[i·ars+p·acs] · b[p·bs+j]
//	C[i·ldc+j] = v (+ bias[j] if bias is not nil) (+ C[i·ldc+j] if add)
type tileFunc func(k int, a *float32, ars, acs int, b *float32, bs int, c *float32, ldc int,
	alpha float32, bias *float32, add bool)

// kernels is one implementation of the inner loops.
type kernels struct {
	name  string
	mr    int        // rows of the largest tile
	nr    int        // columns of a tile
	lanes int        // lines packed at once; mr ≤ lanes, nr is a multiple of it
	tile  []tileFunc // by height; tile[0] is nil

	// transpose packs lanes contiguous lines: dst[p·ldd+i] = a[i·ars+p] for i < lanes, p < 4·blocks.
	transpose func(blocks int, a *float32, ars int, dst *float32, ldd int)
	// copy packs lanes strided lines: dst[p·ldd+i] = a[p·acs+i] for i < lanes, p < k.
	copy func(k int, a *float32, acs int, dst *float32, ldd int)
	// dot, if not nil, computes a tile of one row and lanes columns from contiguous lines of B that are not packed:
	// c[j] (=|+=) alpha·Σ_p a[p]·b[j·brs+p] (+ bias[j]) for j < lanes, p < lanes·blocks, with blocks > 0.
	dot func(blocks int, a, b *float32, brs int, c *float32, alpha float32, bias *float32, add bool)
}

// active is what new calls use.
var active atomic.Pointer[kernels]

func init() { active.Store(available()[0]) }

// ISA names the kernels in use: avx512, avx2, neon or generic.
func ISA() string { return active.Load().name }

// Names lists the kernels that run on this machine, best first.
func Names() []string {
	var names []string
	for _, kn := range available() {
		names = append(names, kn.name)
	}
	return names
}

// Select makes later calls use the named kernels, of every engine and workspace that has none of its own. An error says
// which names this machine has.
func Select(name string) error {
	kn, err := lookUp(name)
	if err == nil {
		active.Store(kn)
	}
	return err
}

// lookUp returns the kernels of that name.
func lookUp(name string) (*kernels, error) {
	for _, kn := range available() {
		if kn.name == name {
			return kn, nil
		}
	}
	return nil, fmt.Errorf("gemm: no kernels %q on this machine, which has %v", name, Names())
}

// chosen returns own, or the selected kernels if there are none.
func chosen(own *kernels) *kernels {
	if own != nil {
		return own
	}
	return active.Load()
}

// misaligned returns how many elements after p the next multiple of n elements begins.
func misaligned(p *float32, n int) int {
	const size = unsafe.Sizeof(*p)
	return int(-uintptr(unsafe.Pointer(p)) / size % uintptr(n))
}
