package torture

import (
	"fmt"
	"strings"
	"testing"
)

// told is a test that keeps what it is told.
type told struct {
	testing.TB
	log    strings.Builder
	failed bool
}

func (t *told) Helper()                   {}
func (t *told) Logf(f string, a ...any)   { fmt.Fprintf(&t.log, f, a...) }
func (t *told) Errorf(f string, a ...any) { t.failed = true }

func TestRow(t *testing.T) {
	for _, tt := range []struct {
		trials, bad int
		fails       bool
	}{{3, 0, false}, {3, 1, true}, {0, 0, true}} {
		r := &told{}
		if Row(r, "x", tt.trials, tt.bad, "y"); r.failed != tt.fails {
			t.Errorf("%+v: failed %v", tt, r.failed)
		}
		if want := fmt.Sprintf("TORTURE | x | %d | %d | y |", tt.trials, tt.bad); r.log.String() != want {
			t.Errorf("%q, want %q", r.log.String(), want)
		}
	}
	r := &told{}
	if got := Caught(r, map[string]bool{"a": true, "b": false}); got != "1 of 2 caught" || !r.failed {
		t.Errorf("%q, failed %v", got, r.failed)
	}
}
