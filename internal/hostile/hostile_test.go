package hostile_test

import (
	"testing"

	"apr/internal/hostile"
)

// recorder counts the failures of a test.
type recorder struct {
	testing.TB
	failed int
}

func (r *recorder) Helper()               {}
func (r *recorder) Errorf(string, ...any) { r.failed++ }

var sink []byte

func TestBounded(t *testing.T) {
	for _, c := range []struct {
		name      string
		input     int
		allocate  int
		wantFails int
	}{
		{"little", 0, 1 << 20, 0},
		{"too much", 0, 65 << 20, 1},
		{"in proportion", 1 << 20, 65 << 20, 0},
	} {
		r := &recorder{TB: t}
		hostile.Bounded(r, c.input, func() { sink = make([]byte, c.allocate) })
		if r.failed != c.wantFails {
			t.Errorf("%s: %d failures, want %d", c.name, r.failed, c.wantFails)
		}
	}
	sink = nil
}

func TestEachDamage(t *testing.T) {
	seen := map[string]bool{}
	n := hostile.EachDamage(t, []byte("abc"), func(_ string, b []byte) { seen[string(b)] = true })
	if want := 3 + 3*len(hostile.Flips); n != want || len(seen) != want || seen["abc"] || !seen["ab"] || !seen["ABC"[:0]] || !seen["Abc"] {
		t.Errorf("%d calls, %d different: %v", n, len(seen), seen)
	}
}
