package eval_test

import (
	"context"
	"strings"
	"testing"

	"apr/eval"
	"apr/internal/contracttest"
)

// A wrong Go program passes no test by what both share in one process: it is found by its text, which says why.
func TestSharingGoPrograms(t *testing.T) {
	runner := programs(t, []eval.Problem{{Language: "go"}})
	if runner == nil {
		return
	}
	for _, c := range append(readCases(t, "testdata/go/shared.txt"), readCases(t, "testdata/go/followed.txt")...) {
		t.Run(c.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			p := eval.Problem{Program: c.given, Test: c.tests, Language: "go", Style: "code"}
			passed, why, err := runner.Passes(context.Background(), p, c.program)
			if want := strings.TrimSpace(c.why); err != nil || passed != (want == "") || !strings.Contains(why, want) {
				t.Errorf("passed=%v, %q, want %q (%v)", passed, why, want, err)
			}
		})
	}
}
