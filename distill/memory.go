package distill

import (
	"fmt"
	"math/bits"
	"os"
	"strings"

	"apr/internal/fault"
	"apr/model"
)

// CheckMemory refuses a step whose batch and activations alone exceed the memory that the machine has available: rows
// sequences a step, micro sequences at a time, of seqLen positions. It is a lower bound that costs nothing, not a plan.
// The fault is of kind Memory and names the largest micro-batch that could fit. Where the system does not tell what is
// available, nothing is refused.
func CheckMemory(c model.Config, rows, micro, seqLen int) error {
	available := availableMemory()
	if available == 0 {
		return nil
	}
	const perPosition = 4*4 + 9 // ids on the device and on the host
	batch, ok1 := product(uint64(rows), uint64(seqLen), perPosition)
	kept, ok2 := product(uint64(micro), uint64(seqLen), uint64(c.ActivationBytes()))
	if ok1 && ok2 && batch < available && kept < available-batch {
		return nil
	}
	largest := uint64(0)
	if one, ok := product(uint64(seqLen), uint64(c.ActivationBytes())+perPosition); ok {
		largest = available / one
	}
	return fault.New(fault.Memory, "a step of %d rows of %d positions, %d at a time, does not fit into the %d MB of memory available", rows, seqLen, micro, available>>20).
		WithHint("at most %d rows fit, even before weights: lower --batch-size, --grad-accum or --seq-len", largest).WithID("E-DISTILL-005")
}

// product multiplies, and reports whether the result fits.
func product(factors ...uint64) (uint64, bool) {
	p := uint64(1)
	for _, f := range factors {
		hi, lo := bits.Mul64(p, f)
		if hi != 0 {
			return 0, false
		}
		p = lo
	}
	return p, true
}

// availableMemory returns MemAvailable of /proc/meminfo in bytes, 0 where there is none.
func availableMemory() uint64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		var kb uint64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	return 0
}
