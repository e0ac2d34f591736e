package eval

import (
	"fmt"
	"testing"

	"apr/internal/contracttest"
)

// TestCountdown: every problem's own solution is right, is the same again, and is wrong for another target.
func TestCountdown(t *testing.T) {
	seen := map[string]bool{}
	for i := range 2000 {
		c := NewCountdown(7, i, 4, 20)
		if err := c.Check(c.Solution); err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		if fmt.Sprint(c) != fmt.Sprint(NewCountdown(7, i, 4, 20)) {
			t.Fatalf("problem %d is another one the second time", i)
		}
		seen[c.Prompt()] = true
		if c.Target++; c.Check(c.Solution) == nil {
			t.Errorf("%v: right for another target", c)
		}
	}
	if len(seen) < 1900 {
		t.Errorf("%d different problems of 2000", len(seen))
	}
	contracttest.Cases(t, len(seen))
}

// TestCountdownGrader: what a grader must not take.
func TestCountdownGrader(t *testing.T) {
	c := Countdown{Numbers: []int{3, 7, 25, 6}, Target: 46}
	for text, right := range map[string]bool{
		"25+3*7": true, " 7 * 3 + 25 ": true, "(25+3*7)": true, "25+7+7+7": false, "46": false,
		"40+6": false, "25+3*7=46": false, "": false,
		"25+3*7+": false, "(25+3*7": false, "25+21": false, "7*6+25/6": false,
		"6*7+3": false, "99999999999999999999": false, "25+3*7 46": false,
	} {
		if got := c.Check(text) == nil; got != right {
			t.Errorf("%q: %t", text, got)
		}
		contracttest.Cases(t, 1)
	}
}
