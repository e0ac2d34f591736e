package eval_test

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"apr/eval"
	"apr/internal/contracttest"
)

// programCase is a program of testdata, its tests, and why it does not count.
type programCase struct{ name, given, program, tests, why string }

// readCases reads such a file: programs begin with "=== NAME", their parts with "--- given", "--- program", "--- tests"
// and "--- why".
func readCases(t *testing.T, file string) (all []programCase) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, section := range strings.Split(string(text), "=== ")[1:] {
		name, rest, _ := strings.Cut(section, "\n")
		c := programCase{name: name}
		for _, part := range strings.Split(rest, "--- ")[1:] {
			kind, text, _ := strings.Cut(part, "\n")
			switch kind {
			case "given":
				c.given = text
			case "program":
				c.program = text
			case "tests":
				c.tests = text
			case "why":
				c.why = text
			default:
				t.Fatalf("%s: %q is no part", name, kind)
			}
		}
		all = append(all, c)
	}
	return all
}

// pythonVerdicts runs the programs of a file with their tests, by the way that apr eval takes.
func pythonVerdicts(t *testing.T, file string, want bool) {
	if _, err := exec.LookPath("python3"); err != nil {
		return // TestPythonPrograms says what happens then
	}
	runner := programs(t, []eval.Problem{{Language: "python"}})
	if runner == nil {
		return
	}
	for _, c := range readCases(t, "testdata/python/"+file) {
		t.Run(c.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			p := eval.Problem{Test: c.tests, Language: "python", Style: "mbpp"}
			if c.given != "" {
				p.Program, p.Entry, p.Style = c.given, "f", "humaneval"
			}
			passed, why, err := runner.Passes(context.Background(), p, c.program)
			if err != nil || passed != want || passed != (why == "") {
				t.Errorf("passed=%v, %q, want %v (%v)", passed, cmp.Or(why, "nothing said"), want, err)
			}
		})
	}
}

// A wrong Python program cannot reach the tests: they run in another process.
func TestStatefulPythonPrograms(t *testing.T) { pythonVerdicts(t, "wrong.txt", false) }

// A name that a wrong Python program chooses means nothing to the tests.
func TestForgingPythonPrograms(t *testing.T) { pythonVerdicts(t, "forged.txt", false) }

// What crosses between a right program and its tests arrives as what it was.
func TestHonestPythonPrograms(t *testing.T) { pythonVerdicts(t, "right.txt", true) }
