package bad

import (
	"fmt"
	"testing"
)

func TestDouble(t *testing.T) {
	fmt.Fprintln(t.Output(), "APR-CASES TestDouble 1")
	if got := Double(3); got != 6 {
		t.Errorf("got %d", got)
	}
}

func TestZero(t *testing.T) {
	fmt.Fprintln(t.Output(), "APR-CASES TestZero 1")
	if got := Double(0); got != 0 {
		t.Errorf("got %d", got)
	}
}
