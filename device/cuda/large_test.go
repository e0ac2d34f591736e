//go:build emulate || gpu

package cuda_test

import (
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/tensor"
)

// largeCols is the width of a large tensor: a row is a mebibyte.
const largeCols = 1 << 18

// takes allocates mib mebibytes in one piece and requires that its first and last rows can be written and read.
func takes(t *testing.T, d *cuda.Device, mib int) {
	t.Helper()
	s := d.NewStream()
	before := d.Stats().Allocations
	x := d.Alloc("large", device.KVCache, tensor.F32, mib, largeCols)
	row, got := make([]float32, largeCols), make([]float32, largeCols)
	for i := range row {
		row[i] = float32(i % 1000)
	}
	for _, at := range []int{0, mib - 1} {
		s.Upload(x.RowRange(at, at+1), row)
		if err := s.Download(got, x.RowRange(at, at+1)); err != nil {
			t.Fatal(err)
		}
		for i := range row {
			if got[i] != row[i] {
				t.Fatalf("row %d, element %d is %g, want %g", at, i, got[i], row[i])
			}
		}
	}
	if n := d.Stats().Allocations - before; n != 1 {
		t.Errorf("%d allocations for one tensor", n)
	}
	contracttest.Cases(t, 1)
}

// TestWholeBudget: what a device says that a run may allocate can be allocated, in one piece.
func TestWholeBudget(t *testing.T) {
	t.Setenv("APR_EMULATOR_MEMORY", "0xc0000000") // 3 GiB
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	b, err := d.Budget()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d MiB that are free", b.Bytes>>20, b.Free>>20)
	takes(t, d, int(b.Bytes>>20))
}
