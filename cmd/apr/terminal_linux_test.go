package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// sessions are what somebody types, and sees in testdata/terminal/NAME-COLUMNS.txt.
var sessions = map[string]string{
	"distill": "distill model --student-config config.json -d text.jsonl.zst --val-fraction 0.1 --steps 160 --batch-size 2 --seq-len 64 --lr 5e-3 --eval-every 0 -o mine",
	"alone":   "distill model --student-config config.json -d folder --val-fraction 0.3 --steps 30 --batch-size 2 --seq-len 16 --lr 5e-3 --control none -o mine",
	"short": "distill model --student-config large.json -d folder --val-fraction 0.3 --steps 2 " +
		"--batch-size 1 --seq-len 16 --eval-every 0 -o mine",
}

// TestTerminalSessions: what a person sees at 80 and at 120 columns is what the golden files say, numbers apart, and no line is wider
// than the terminal. -update writes the files.
func TestTerminalSessions(t *testing.T) {
	for name, line := range sessions {
		for _, columns := range []int{80, 120} {
			t.Run(fmt.Sprintf("%s-%d", name, columns), func(t *testing.T) {
				c := exec.Command(program(t), strings.Fields(line)...)
				c.Args[0] = "apr" // as found on PATH
				c.Dir = sessionFolder(t)
				c.Env = []string{"TERM=xterm", "HOME=" + c.Dir, "XDG_CACHE_HOME=" + c.Dir, "CUDA_VISIBLE_DEVICES=-1", "PATH=" + os.Getenv("PATH")}
				s := inTerminal(t, c, columns)
				if n := utf8.RuneCountInString(s.widest); n > columns {
					t.Errorf("a line of %d columns: %s", n, s.widest)
				}
				got := "$ apr " + line + "\n" + normal(s.screen()) + "\nlines that changed, in the states they began with:\n" + beginnings(s.states)
				golden := filepath.Join("testdata", "terminal", fmt.Sprintf("%s-%d.txt", name, columns))
				if *update {
					if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(golden)
				if err != nil {
					t.Fatal(err)
				}
				if got != string(want) {
					t.Errorf("on the screen:\n%s\nwant, as in %s:\n%s", got, golden, want)
				}
			})
		}
	}
}

// sessionFolder is the folder in which somebody types: a teacher, two students, a text, and a folder of texts with a file that is none.
func sessionFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"model": "../../testdata/models/gosrc", "text.jsonl.zst": "../../examples/gosrc/data/gosrc-val.jsonl.zst"} {
		path, err := filepath.Abs(target)
		must(err)
		must(os.Symlink(path, filepath.Join(dir, name)))
	}
	must(os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	for i := range 12 {
		text := fmt.Sprintf("package p%d\n\n%s", i, strings.Repeat(fmt.Sprintf("func f%d() int { return %d }\n", i, i), 40))
		must(os.WriteFile(filepath.Join(dir, "folder", fmt.Sprintf("f%d.go", i)), []byte(text), 0o600))
	}
	must(os.WriteFile(filepath.Join(dir, "folder", "picture.png"), []byte("\x00\x01\x02"), 0o600))
	must(os.WriteFile(filepath.Join(dir, "config.json"), []byte(signalConfig), 0o600))
	large := strings.NewReplacer(`"hidden_size":32`, `"hidden_size":256`, `"intermediate_size":48`, `"intermediate_size":768`, `"num_hidden_layers":1`, `"num_hidden_layers":6`).Replace(signalConfig)
	must(os.WriteFile(filepath.Join(dir, "large.json"), []byte(large), 0o600))
	return dir
}

// What differs between machines and runs. Digits keep their number, so that tables keep their shape.
var (
	variableTimes  = regexp.MustCompile(`\b(\d+(\.\d+)?(ms|µs|s)|\d+m\d+(\.\d+)?s|\d+h\d+m)\b`)
	variableSpeeds = regexp.MustCompile(`[\d,]+ tok/s`)
	variableUse    = regexp.MustCompile(`  MFU \d+ %`)
	variableMemory = regexp.MustCompile(`(?m)^(memory +).*$`)
	variableShare  = regexp.MustCompile(`\d+\.\d+ % for checkpoints`)
	variableGap    = regexp.MustCompile(`(closed|control|\bby)(\s)-?[\d.]+ %`)
	variableNorm   = regexp.MustCompile(`\|g\| [\d.]+`)
	variablePart   = regexp.MustCompile(`\d+ %`)
	variableDone   = regexp.MustCompile(`(?m)^\d+ % (step|control)`)
	digits         = regexp.MustCompile(`\d`)
)

// normal replaces what differs between machines and runs.
func normal(text string) string {
	text = variableSpeeds.ReplaceAllString(text, "N tok/s")
	text = variableTimes.ReplaceAllString(text, "TIME")
	text = variableDone.ReplaceAllString(text, "N % ${1}")
	text = variableMemory.ReplaceAllString(text, "${1}BYTES")
	text = variableUse.ReplaceAllString(text, "")
	text = variableShare.ReplaceAllString(text, "N % for checkpoints")
	text = variableGap.ReplaceAllString(text, "${1}${2}N %")
	text = variableNorm.ReplaceAllString(text, "|g| N")
	return digits.ReplaceAllString(text, "#")
}

// How far a phase is shows only where it takes longer than the pause between two drawings.
var phaseShare = regexp.MustCompile(`^[a-z][^0-9]*  \d+ %`)

// beginnings are the first states of each changing line: those of a phase have one name, those of steps another.
func beginnings(states []string) string {
	var seen, out []string
	for _, s := range states {
		if phaseShare.MatchString(s) {
			continue
		}
		name := strings.TrimSpace(digits.ReplaceAllString(s, ""))
		if i := strings.IndexAny(s, "0123456789"); i > 0 { // text, then a number
			name = strings.TrimSpace(s[:i])
		} else if i == 0 {
			name = strings.Fields(s)[2] // 12 % step
		}
		if slices.Contains(seen, name) {
			continue
		}
		seen = append(seen, name)
		text := normal(variablePart.ReplaceAllString(variableUse.ReplaceAllString(s, ""), "N %"))
		out = append(out, strings.TrimSuffix(text, "  TIME left")+"\n") // said once the time of a step is known
	}
	return strings.Join(out, "")
}
