package eval

import (
	"fmt"
	"testing"

	"apr/internal/contracttest"
)

// TestCountdown: every problem's own solution is right, is the same again, and is wrong for another target.
func TestCountdown(t *testing.T) {
	seen, held := map[string]bool{}, 0
	for i := range 2000 {
		c := NewCountdown(7, i, 4, 20)
		if err := c.Check(c.Solution); err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		if err := c.Check(c.Steps); err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		if fmt.Sprint(c) != fmt.Sprint(NewCountdown(7, i, 4, 20)) {
			t.Fatalf("problem %d is another one the second time", i)
		}
		seen[c.Prompt()] = true
		if c.HeldOut() {
			held++
		}
		if d := c; len(d.Numbers) == 4 {
			d.Numbers = []int{c.Numbers[3], c.Numbers[1], c.Numbers[0], c.Numbers[2]}
			if d.HeldOut() != c.HeldOut() {
				t.Errorf("%v: held out in one order of its numbers only", c)
			}
		}
		if c.Target++; c.Check(c.Solution) == nil || c.Check(c.Steps) == nil {
			t.Errorf("%v: right for another target", c)
		}
	}
	if len(seen) < 1900 {
		t.Errorf("%d different problems of 2000", len(seen))
	}
	if held < 80 || held > 180 {
		t.Errorf("%d of 2000 problems are held out", held)
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
		"3*7=21, 25+21=46": true, "3*7=21,25+21=46": true, "7*3=21, 21+25=46": true, "25+21=46": false,
		"3*7=20, 25+20=45": false,
		"3*7=21, 25+21=47": false, "3*7=21, 3+25=28, 28+21=49": false, "3*7=21, 25+21=46, 46": false, "=46": false,
		"46=46":  false,
		"3*7=21": false, "(3*7)=21, 25+21=46": false, "3*7=21, 25+21=": false, "3*7+25=46": false, "7-3=4, 25+21=46": false,
		"25/3=8, 8*6=48": false, "3-7=-4, 25+21=46": false,
	} {
		if got := c.Check(text) == nil; got != right {
			t.Errorf("%q: %t", text, got)
		}
		contracttest.Cases(t, 1)
	}
}
