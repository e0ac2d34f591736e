package falsify

import (
	"bytes"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// frame is what a test program begins the lines with that say how tests go on, when it runs with -test.v=test2json. What
// tests print does not begin so: a line that a test prints is never taken for its result.
const frame = '\x16'

// Lines of a test program: a test goes on, or has ended.
var (
	goesOn   = regexp.MustCompile(`^=== (RUN|PAUSE|CONT|NAME) *(\S*)$`)
	hasEnded = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+) \(([0-9.]+)s\)$`)
)

// readVerbose reads what a test program prints with -test.v=test2json, as go tool test2json does: where there is no Go
// toolchain the program is run by itself. ok says that it ended with exit code 0.
func readVerbose(r io.Reader, ok bool) (*stream, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	s := &stream{tests: map[string]*testRun{}}
	test, passed := "", false
	for line := range bytes.Lines(text) {
		// A frame within a line ends what a test printed without a newline.
		for i, piece := range strings.Split(string(line), string(rune(frame))) {
			if piece == "" {
				continue
			}
			if i == 0 {
				s.add(event{Action: "output", Test: test, Output: piece})
				continue
			}
			bare := strings.TrimRight(piece, "\r\n")
			if m := goesOn.FindStringSubmatch(bare); m != nil {
				test = m[2]
				if action := map[string]string{"RUN": "run", "PAUSE": "pause", "CONT": "cont"}[m[1]]; action != "" && test != "" {
					s.add(event{Action: action, Test: test})
				}
			} else if m := hasEnded.FindStringSubmatch(bare); m != nil {
				test = m[2]
				seconds, _ := strconv.ParseFloat(m[3], 64) // digits, as the pattern says
				s.add(event{Action: strings.ToLower(m[1]), Test: test, Elapsed: seconds})
			} else {
				passed = passed || bare == "PASS"
				s.add(event{Action: "output", Output: piece})
			}
		}
	}
	s.passed = ok && passed
	return s, nil
}
