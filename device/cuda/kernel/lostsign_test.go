package kernel

import (
	"regexp"
	"strings"
	"testing"
)

var (
	besideZero = regexp.MustCompile(`^setp\.(?:ne|neu)\.f(?:32|64)\s+(%p\d+), %fd?\d+, 0[fd]0+;`)
	orZero     = regexp.MustCompile(`^selp\.f(?:32|64)\s+%fd?\d+, %fd?\d+, 0[fd]0+, (%p\d+);`)
)

// signsLost returns the lines of PTX that choose a value or zero by whether a value, which may be the same before a conversion, is zero. clang 19 makes them of
// |x| > 0 ? x : 0, and then believes that the result has no sign: an absolute value of it is left out.
func signsLost(ptx string) (lines []string) {
	is := map[string]bool{} // predicates of a value that is not zero
	for line := range strings.Lines(ptx) {
		if strings.HasPrefix(line, ".visible") {
			clear(is)
		}
		if m := besideZero.FindStringSubmatch(line); m != nil {
			is[m[1]] = true
		}
		if m := orZero.FindStringSubmatch(line); m != nil && is[m[1]] {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// No kernel has what a compiler makes of a search for the largest magnitude that begins with zero: begin it with the
// first element.
func TestNoSignIsLost(t *testing.T) {
	const bad = ".visible .entry k(\nsetp.ne.f32 \t%p72, %f1, 0f00000000;\nselp.f64 \t%fd39, %fd1, 0d0000000000000000, %p72;\n"
	if lines := signsLost(bad); len(lines) != 1 {
		t.Fatalf("found %q in the pattern itself", lines)
	}
	for _, m := range Modules() {
		for _, line := range signsLost(string(PTX(m.Name))) {
			t.Errorf("%s: %s", m.Name, line)
		}
	}
}
