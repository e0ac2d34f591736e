package teacher

import (
	"fmt"

	"apr/device"
	"apr/internal/fault"
)

// Backend is a way of computing a teacher.
type Backend string

// The backends.
const (
	Auto   Backend = "auto"   // the fastest that fits
	Cublas Backend = "cublas" // on a GPU, matrices expanded once, at load
	Q4K    Backend = "q4k"    // on a GPU, quantised blocks kept as they are in the file and expanded for each product
	Stream Backend = "stream" // on a GPU, layers in page-locked host memory, as q4k keeps them, fetched in turn
	CPU    Backend = "cpu"    // on the CPU, blocks decoded inside the products
)

// Form returns how a backend keeps the teacher's matrices.
func (b Backend) Form(fp8 bool) device.Form {
	return device.Form{Blocks: b == Q4K || b == Stream, FP8: fp8, HostLayers: b == Stream}
}

// Situation is all that the rule looks at.
type Situation struct {
	Asked     Backend
	CUDA      bool // there is a CUDA device, of whatever class
	Quantised bool // a tensor of the teacher is in quantised blocks
	Fits      bool // a step with the teacher expanded fits the device
}

// Rule says which backend computes the teacher when nothing is measured; the first line that holds decides:
//
//	q4k and no quantised tensor        fault.Invalid
//	cublas, q4k or stream without CUDA fault.Unavailable
//	cpu on a CUDA device               fault.Unavailable: teacher and student share a device
//	an explicit name                   that backend
//	auto without a CUDA device         cpu
//	auto, the expanded teacher fits    cublas
//	auto, the teacher is quantised     q4k
//	auto otherwise                     fault.Memory
func (s Situation) Rule() (Backend, error) {
	switch {
	case s.Asked == Q4K && !s.Quantised:
		return "", fault.New(fault.Invalid, "--teacher-backend q4k: no tensor of the teacher is in quantised blocks").
			WithHint("use auto or cublas, or quantise the teacher: apr quantize TEACHER -s q4_k_m -o teacher-q4.apr").WithID("E-TEACHER-001")
	case (s.Asked == Cublas || s.Asked == Q4K || s.Asked == Stream) && !s.CUDA:
		return "", fault.New(fault.Unavailable, "--teacher-backend %s needs a CUDA device", s.Asked).
			WithHint("the CPU reads teachers of any type as they are: use auto or cpu").WithID("E-TEACHER-002")
	case s.Asked == CPU && s.CUDA:
		return "", fault.New(fault.Unavailable, "--teacher-backend cpu beside a student on the GPU is not built").
			WithHint("use auto, cublas or q4k, or --backend cpu for both").WithID("E-TEACHER-003")
	case s.Asked != Auto:
		return s.Asked, nil
	case !s.CUDA:
		return CPU, nil
	case s.Fits:
		return Cublas, nil
	case s.Quantised:
		return Q4K, nil
	}
	return "", fault.New(fault.Memory, "the teacher does not fit the device, and it is not quantised").
		WithHint("quantise it: apr quantize TEACHER -s q4_k_m -o teacher-q4.apr").WithID("E-TEACHER-004")
}

// Timed is a backend that was measured.
type Timed struct {
	Backend Backend
	Seconds float64 // of a step
	Bytes   int64   // of device memory that the step needs
}

// closeEnough is the share by which a smaller backend may be slower.
const closeEnough = 0.05

// Fastest returns the index of the best of all, at least one: the fastest, or of those within 5 % of its time the one
// that needs the fewest bytes; and why.
func Fastest(all []Timed) (best int, reason string) {
	fastest := 0
	for i, t := range all {
		if t.Seconds < all[fastest].Seconds {
			fastest = i
		}
	}
	best = fastest
	for i, t := range all {
		if t.Seconds <= (1+closeEnough)*all[fastest].Seconds && t.Bytes < all[best].Bytes {
			best = i
		}
	}
	if len(all) == 1 {
		return best, "it alone fits"
	}
	if best == fastest {
		return best, fmt.Sprintf("the fastest that fits, %.1f ms a step", 1e3*all[best].Seconds)
	}
	return best, fmt.Sprintf("within 5 %% of the fastest, %s (%.1f against %.1f ms a step), with %.2f GiB less",
		all[fastest].Backend, 1e3*all[best].Seconds, 1e3*all[fastest].Seconds, float64(all[fastest].Bytes-all[best].Bytes)/(1<<30))
}
