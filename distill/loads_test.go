package distill

import (
	"errors"
	"testing"

	"apr/device"
)

// counting is a device that loads code.
type counting struct {
	device.Device
	loaded int64
	seals  int
}

func (c *counting) Loads() int64 { return c.loaded }
func (c *counting) Seal()        { c.seals++ }

// TestLoads: what the first finished step loads belongs there, and so does what is loaded between steps; the rest is
// late.
func TestLoads(t *testing.T) {
	failed := errors.New("lost")
	for _, c := range []struct {
		name  string
		steps []int64 // loaded inside each
		errs  []error
		late  int64
		seals int
	}{
		{"none after the first", []int64{7, 0, 0}, nil, 0, 1},
		{"some after the first", []int64{7, 0, 2, 1}, nil, 3, 1},
		{"the first was not finite", []int64{7, 1}, []error{ErrNonFinite}, 1, 1},
		{"the first failed", []int64{7}, []error{failed}, 0, 0},
		{"a later one failed", []int64{7, 2}, []error{nil, failed}, 2, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			dev := &counting{}
			l := newLoads(dev)
			for i, n := range c.steps {
				var want error
				if i < len(c.errs) {
					want = c.errs[i]
				}
				if err := l.step(func() error { dev.loaded += n; return want }); !errors.Is(err, want) {
					t.Errorf("step %d: %v, want %v", i, err, want)
				}
				dev.loaded += 5 // an evaluation
			}
			if l.late != c.late || dev.seals != c.seals {
				t.Errorf("%d late, sealed %d times; want %d and %d", l.late, dev.seals, c.late, c.seals)
			}
		})
	}
	none := newLoads(nil)
	if err := none.step(func() error { return failed }); !errors.Is(err, failed) || none.sealed {
		t.Errorf("a device that loads nothing: %v, sealed %v", err, none.sealed)
	}
}
