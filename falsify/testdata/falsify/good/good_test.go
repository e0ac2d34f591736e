package good

import (
	"fmt"
	"os"
	"testing"
)

// cases is what contracttest.Cases does.
func cases(t *testing.T, n int) { fmt.Fprintf(t.Output(), "APR-CASES %s %d\n", t.Name(), n) }

func TestDouble(t *testing.T) {
	for _, n := range []int{0, 1, 21} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if got := Double(n); got != n+n {
				t.Errorf("got %d", got)
			}
			cases(t, 1)
		})
	}
}

func TestTotal(t *testing.T) {
	n := 0
	for i := range 100 {
		if Double(i) != i+i {
			t.Errorf("%d", i)
		}
		n++
	}
	cases(t, n)
}

func TestSkips(t *testing.T) {
	cases(t, 1)
	t.Run("here", func(t *testing.T) {})
	t.Run("there", func(t *testing.T) { t.Skip("not today") })
}

func TestCountsNothing(t *testing.T) {}

func TestCountsForAnother(t *testing.T) { fmt.Fprintln(t.Output(), "APR-CASES TestDouble 5") }

func TestPanics(t *testing.T) {
	cases(t, 1)
	if Double(1) != 2 {
		panic("not two")
	}
}

func TestExits(t *testing.T) {
	cases(t, 1)
	if Double(1) != 2 {
		os.Exit(1)
	}
}

var _ = unused
