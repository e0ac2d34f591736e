package optim_test

import (
	"fmt"

	"apr/optim"
)

// Two steps of warm-up, then a cosine from the peak down to a tenth of it.
func ExampleSchedule() {
	s := optim.Schedule{Kind: optim.Cosine, Peak: 1e-3, Warmup: 2, Steps: 10, MinRatio: 0.1}
	for _, k := range []int{0, 1, 2, 6, 10} {
		fmt.Printf("step %2d: %.5f\n", k, s.At(k))
	}
	// Output:
	// step  0: 0.00050
	// step  1: 0.00100
	// step  2: 0.00100
	// step  6: 0.00055
	// step 10: 0.00010
}
