package devicetest

import (
	"fmt"
	"testing"

	"apr/device"
	"apr/tensor"
)

// TestSuiteAcceptsFloat64: a device that is right but for one rounding of what it stores passes, in both types.
func TestSuiteAcceptsFloat64(t *testing.T) {
	for _, act := range []tensor.DType{tensor.F32, tensor.BF16} {
		t.Run(act.String(), func(t *testing.T) {
			Run(t, func() device.Device { return newSlow(act) })
		})
	}
}

func TestNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Cases() {
		if seen[c.Name] {
			t.Errorf("%s: twice", c.Name)
		}
		seen[c.Name] = true
	}
	t.Logf("%d cases", len(seen))
}

// Every operation has refusals: one that has none could accept anything on one device and not on another.
func TestRefusalsCoverEveryOperation(t *testing.T) {
	count, seen := map[device.Op]int{}, map[string]bool{}
	for _, r := range Refusals() {
		count[r.op]++
		if seen[r.Name] {
			t.Errorf("%s: twice", r.Name)
		}
		seen[r.Name] = true
	}
	for o := device.OpNone + 1; o < device.NumOps; o++ {
		if o != device.OpDecode && count[o] == 0 { // Decode is not every device's: device/cuda has its own test
			t.Errorf("%s has no refusal", o)
		}
	}
	t.Logf("%d refusals", len(seen))
}

func ExampleCase_Check() {
	d := newSlow(tensor.F32) // a device under test
	for _, c := range Cases() {
		if c.Name == "argmax/3x31/views" {
			fmt.Println(c.Name, c.Check(d))
		}
	}
	// Output: argmax/3x31/views <nil>
}
