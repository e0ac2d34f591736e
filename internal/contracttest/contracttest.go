// Package contracttest lets a test say how many cases it visited, for the contracts that name the test as evidence: a
// table without rows and a loop over an empty folder pass, and show nothing.
package contracttest

import (
	"fmt"
	"testing"
)

// Cases says that the test t has visited n cases. It prints the line "APR-CASES NAME n" to the output of t, where
// apr contract falsify reads it; the numbers of a test and its subtests are added up. No case at all fails the test.
func Cases(t testing.TB, n int) {
	t.Helper()
	if n <= 0 {
		t.Fatalf("%d cases were visited: nothing is shown", n)
	}
	fmt.Fprintf(t.Output(), "APR-CASES %s %d\n", t.Name(), n)
}
