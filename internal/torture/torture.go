// Package torture is what the proofs of reliability share: whether they run whole or as a sample, and the rows of the
// table in docs/reliability.md, which `make torture` collects from the log of the tests.
package torture

import (
	"fmt"
	"os"
	"testing"
)

// Whole reports whether the proofs run whole, as `make torture` asks for by APR_TORTURE=1.
func Whole() bool { return os.Getenv("APR_TORTURE") == "1" }

// Trials returns sample, or all when the proofs run whole.
func Trials(sample, all int) int {
	if Whole() {
		return all
	}
	return sample
}

// Mark begins a row in the log of a test.
const Mark = "TORTURE "

// Row logs a row of the table: what was proved, in how many trials, how many were bad, and what the control came to. It
// fails the test if a trial was bad or there was none.
func Row(t testing.TB, what string, trials, bad int, control string) {
	t.Helper()
	t.Logf("%s| %s | %d | %d | %s |", Mark, what, trials, bad, control)
	if trials == 0 || bad != 0 {
		t.Errorf("%s: %d of %d trials are bad", what, bad, trials)
	}
}

// Caught renders how many of the broken controls were caught, and fails the test unless all were.
func Caught(t testing.TB, caught map[string]bool) string {
	t.Helper()
	n := 0
	for name, ok := range caught {
		if ok {
			n++
		} else {
			t.Errorf("the broken control %q was not caught", name)
		}
	}
	return fmt.Sprintf("%d of %d caught", n, len(caught))
}
