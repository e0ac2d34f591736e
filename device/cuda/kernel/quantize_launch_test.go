package kernel

import (
	"slices"
	"testing"

	"apr/internal/contracttest"
	"apr/tensor"
)

// TestMakeBlocksLaunches: every launch is a kernel of a module that a plan loads, with a thread for every group or lane
// of values; rounding alone does not search.
func TestMakeBlocksLaunches(t *testing.T) {
	types := []tensor.DType{tensor.F32, tensor.BF16, tensor.F16}
	for d := range searches {
		types = append(types, d)
	}
	for _, d := range types {
		for _, n := range []int{256, 152064 * 8192} {
			contracttest.Cases(t, 1)
			rows := QuantizedRows{Type: d, Value: 1 << 20, Stored: 1<<21 + 2, Rounded: 1 << 22, Copy: 1 << 23, N: n}
			var searching, rounding recorder
			MakeBlocks(&searching, rows, QuantizeHow{Search: true, Verdict: true})
			MakeBlocks(&rounding, rows, QuantizeHow{})
			want := 2
			if d.IsFloat() {
				want = 1
			}
			if len(searching.launches) != want || len(rounding.launches) != 1 {
				t.Fatalf("%v: %d launches to search, %d to round", d, len(searching.launches), len(rounding.launches))
			}
			for _, l := range slices.Concat(searching.launches, rounding.launches) {
				compiled := slices.ContainsFunc(Modules(), func(m Module) bool { return m.Name == l.Module && slices.Contains(m.Kernels, l.Kernel) })
				if !compiled || !slices.Contains(QuantizeModules([]string{d.String()}), l.Module) {
					t.Errorf("%v: %s.cu has no kernel %s, or no plan loads it", d, l.Module, l.Kernel)
				}
				units := n / 8 // a lane has 8 values
				switch {
				case d.IsFloat():
					units = n
				case l.Block == searchThreads:
					units = n / d.BlockLen() * searches[d].lanes
				}
				if got := l.Grid[0] * l.Block; got < units || got >= units+l.Block || l.Grid[1] != 1 || l.Grid[2] != 1 {
					t.Errorf("%v, %d values: %s has %d threads, wants %d", d, n, l.Kernel, got, units)
				}
			}
		}
	}
	var none recorder
	MakeBlocks(&none, QuantizedRows{Type: tensor.Q4_K}, QuantizeHow{Search: true})
	if len(none.launches) != 0 {
		t.Error("no values are launched for")
	}
}
