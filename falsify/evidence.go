package falsify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// casesMark begins the line that contracttest.Cases prints.
const casesMark = "APR-CASES"

// timeoutPanic begins the message of a test program that ran out of time.
const timeoutPanic = "panic: test timed out after "

// maxOutput bounds what is kept of the output of one test.
const maxOutput = 64 << 10

// event is one line of go test -json.
type event struct {
	Action      string
	Package     string
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// testRun is what a stream says about one test or subtest.
type testRun struct {
	action  string // its last: run, pass, fail, skip, or pause and cont on the way
	cases   uint64
	seconds float64
	output  []byte
}

// stream is the evidence of one go test of one package.
type stream struct {
	tests       map[string]*testRun
	passed      bool   // the package passed
	cached      bool   // its result was not made now
	buildFailed bool   // there was nothing to run
	timedOut    bool   // it was ended, by the test program or from outside
	output      []byte // what belongs to no test
}

// readStream reads the events of go test -json. Lines that are no events are output.
func readStream(r io.Reader) (*stream, error) {
	s := &stream{tests: map[string]*testRun{}}
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		var e event
		if json.Unmarshal(line, &e) != nil || e.Action == "" {
			s.output = appendOutput(s.output, string(line))
			continue
		}
		s.add(e)
	}
	return s, nil
}

// add takes in one event.
func (s *stream) add(e event) {
	if strings.HasPrefix(e.Output, timeoutPanic) {
		s.timedOut = true
	}
	if e.Test == "" {
		s.addPackage(e)
		return
	}
	t := s.tests[e.Test]
	if t == nil {
		t = &testRun{}
		s.tests[e.Test] = t
	}
	if e.Action != "output" {
		t.action, t.seconds = e.Action, e.Elapsed
		return
	}
	if name, n, ok := parseCases(e.Output); ok {
		if name == e.Test && n > 0 { // a test counts its own cases
			t.cases += n
		}
		return
	}
	t.output = appendOutput(t.output, e.Output)
}

// addPackage takes in an event of the package.
func (s *stream) addPackage(e event) {
	switch e.Action {
	case "output", "build-output":
		if f := strings.Fields(e.Output); len(f) >= 3 && f[0] == "ok" && f[2] == "(cached)" {
			s.cached = true
		}
		s.output = appendOutput(s.output, e.Output)
	case "pass":
		s.passed = true
	case "build-fail":
		s.buildFailed = true
	case "fail":
		s.buildFailed = s.buildFailed || e.FailedBuild != ""
	}
}

// parseCases reads a line of contracttest.Cases.
func parseCases(line string) (test string, n uint64, ok bool) {
	f := strings.Fields(line)
	if len(f) != 3 || f[0] != casesMark {
		return "", 0, false
	}
	n, err := strconv.ParseUint(f[2], 10, 63)
	return f[1], n, err == nil
}

func appendOutput(out []byte, text string) []byte {
	if len(out)+len(text) > maxOutput {
		out = out[len(out)/2:]
	}
	return append(out, text...)
}

// quota is how many cases a check has to visit.
type quota struct {
	least uint64
	exact bool // neither fewer nor more
}

// verdict is what one run of a check showed.
type verdict struct {
	result   result
	cases    uint64
	skipped  int
	seconds  float64
	observed string // one line
	tail     string // the end of the output
}

// result is the outcome of one run of a check.
type result int

const (
	notRun  result = iota
	passed         // evidence as it is due
	failed         // it ran, and the claim is false
	vacuous        // it showed nothing
	broken         // it could not be run to its end
)

// judge says what the stream shows about the test called name, with everything below it. It passed only if it and all
// its subtests ran now, to their end, without failure and without a skip, in a package that passed, and visited the
// cases that are due.
func (s *stream) judge(name string, q quota) verdict {
	var v verdict
	var failures, open []string
	var own *testRun
	var output []byte
	for _, id := range sortedTests(s.tests) {
		t := s.tests[id]
		if id == name {
			own, v.seconds = t, t.seconds
		} else if !strings.HasPrefix(id, name+"/") {
			continue
		}
		v.cases += t.cases
		output = append(output, t.output...)
		switch t.action {
		case "pass":
		case "skip":
			v.skipped++
		case "fail":
			failures = append(failures, id)
		default:
			open = append(open, id)
		}
	}
	v.tail = tail(append(output, s.output...))
	say := func(r result, format string, args ...any) verdict {
		v.result, v.observed = r, fmt.Sprintf(format, args...)
		return v
	}
	switch {
	case s.buildFailed:
		return say(broken, "does not build")
	case s.timedOut:
		return say(broken, "timed out")
	case len(failures) > 0:
		return say(failed, "%s failed", failures[len(failures)-1])
	case len(open) > 0:
		return say(failed, "the test program ended in %s", open[len(open)-1])
	case own == nil && !s.passed:
		return say(broken, "the package failed before the test")
	case own == nil:
		return say(vacuous, "no test matched")
	case v.skipped > 0:
		return say(vacuous, "%d skipped", v.skipped)
	case !s.passed:
		return say(broken, "the test passed, and its package failed")
	case s.cached:
		return say(vacuous, "the result is a cached one")
	case v.cases == 0:
		return say(vacuous, "0 cases")
	case q.exact && v.cases != q.least:
		return say(vacuous, "visited %d cases, claimed are %d", v.cases, q.least)
	case v.cases < q.least:
		return say(vacuous, "visited %d cases, at least %d are due", v.cases, q.least)
	}
	return say(passed, "passed, %d cases", v.cases)
}

// tail is the end of an output, without the lines that every test has.
func tail(out []byte) string {
	var kept []string
	for line := range strings.Lines(string(out)) {
		text := strings.TrimRight(line, " \n")
		if bare := strings.TrimSpace(text); bare == "" || strings.HasPrefix(bare, "=== ") || strings.HasPrefix(bare, "--- PASS") {
			continue
		}
		kept = append(kept, text)
	}
	const lines, size = 20, 2000
	text := strings.Join(kept[max(0, len(kept)-lines):], "\n")
	return strings.ToValidUTF8(text[max(0, len(text)-size):], "")
}
