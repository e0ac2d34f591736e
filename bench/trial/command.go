// Package trial is what programs share that make a table out of many runs of apr: a command whose JSON is read,
// several at a time, a log from which an interrupted table goes on, and figures of several seeds.
//
// A run that a log holds is not repeated. A log belongs to settings; it refuses others, so that no table mixes two.
package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// Failure is a command that ended with another exit code than 0.
type Failure struct {
	Command   string
	Code      int    // -1: it did not start, or was killed
	Complaint string // what it wrote to stderr
	Err       error
}

// Error names the command, its end and its complaint.
func (f *Failure) Error() string {
	return fmt.Sprintf("%s: %v\n%s", f.Command, f.Err, strings.TrimSpace(f.Complaint))
}

// Unwrap returns how the command ended.
func (f *Failure) Unwrap() error { return f.Err }

// exit codes of apr that are a result
const (
	codeUsage    = 2
	codeRefused  = 9
	codeDiverged = 21
)

// Refused reports whether err is apr's answer that this program or device does not have what was asked for.
func Refused(err error) bool {
	var f *Failure
	if !errors.As(err, &f) {
		return false
	}
	return f.Code == codeRefused || f.Code == codeUsage && strings.Contains(f.Complaint, "unknown command")
}

// Diverged reports whether err is a training whose loss left all bounds.
func Diverged(err error) bool {
	var f *Failure
	return errors.As(err, &f) && f.Code == codeDiverged
}

// Why is the first line of what the command of err wrote, or of err itself.
func Why(err error) string {
	text := err.Error()
	var f *Failure
	if errors.As(err, &f) && strings.TrimSpace(f.Complaint) != "" {
		text = strings.TrimSpace(f.Complaint)
	}
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimPrefix(line, "apr: error: ")
}

// Run runs a command with additions to the environment, and reads the JSON that it prints into result unless that is
// nil. The command dies with ctx.
func Run(ctx context.Context, env []string, result any, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(os.Environ(), env...)
	c.WaitDelay = 5 * time.Second
	var out, complaint bytes.Buffer
	c.Stdout, c.Stderr = &out, &complaint
	line := name + " " + strings.Join(args, " ")
	if err := c.Run(); err != nil {
		code := -1
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			code = exit.ExitCode()
		}
		return &Failure{Command: line, Code: code, Complaint: complaint.String(), Err: err}
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(out.Bytes(), result); err != nil {
		return fmt.Errorf("%s printed no JSON: %w", line, err)
	}
	return nil
}

// Share is the environment of one of n commands that run at a time: of a Go program, its share of the processors.
func Share(n int) []string {
	if n <= 1 {
		return nil
	}
	return []string{fmt.Sprintf("GOMAXPROCS=%d", max(1, runtime.NumCPU()/n))}
}

// Machine is what a machine without another name is called.
func Machine() string {
	return fmt.Sprintf("%d processors, %s/%s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
}
