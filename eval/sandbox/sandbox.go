// Package sandbox runs programs that a model wrote, in child processes that can do little.
//
// A program runs in an empty directory of its own with limits on time, memory, size and number of files. On Linux a
// system-call filter (seccomp) refuses it sockets, children, signals to others, and what only administrators need;
// Landlock, where the kernel has it, refuses writing outside its directory. None of this needs privileges. The child is
// this same program under another name, which confines itself before it becomes the program.
//
// Caveats. The program may read what its user may read. Where confinement is not to be had, Open refuses, unless the
// caller accepts it; Limits then says what is missing. This keeps mistakes and mischief of generated programs in, not a
// determined attacker who knows a hole in the kernel.
package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"apr/internal/fault"
)

// childName is the program's name when it is to confine itself.
const childName = "apr-sandbox"

// Limits of one program.
type Limits struct {
	Time      time.Duration // on the clock; of the processor, rounded up to seconds
	Memory    uint64        // bytes of private writable memory
	FileBytes uint64        // of one file
	Files     uint64        // open at one time
}

// DefaultLimits are generous for the test of a function.
var DefaultLimits = Limits{Time: 10 * time.Second, Memory: 1 << 30, FileBytes: 16 << 20, Files: 64}

// order is what the child is told, as JSON in its first argument.
type order struct {
	Limits
	Dir      string
	Argv     []string
	Confined bool // refuse to go on without the filter
}

// probeProgram is what the child runs to try its own confinement.
const probeProgram = "apr-sandbox-probe"

// Box starts programs.
type Box struct {
	limits   Limits
	confined bool
	writes   bool // outside the directory are refused
}

// Result is how a program ended.
type Result struct {
	Exit           int // −1: killed
	TimedOut       bool
	Stdout, Stderr string // the last 64 KiB
}

// Open tries the confinement: a child that makes a socket, a child process and a file outside must be refused each. If it
// cannot be confined the error is of kind Unavailable, unless unconfined is accepted.
func Open(ctx context.Context, l Limits, unconfined bool) (*Box, error) {
	b := &Box{limits: l, confined: true}
	allowed, err := b.probe(ctx)
	if err == nil && len(allowed) == 0 {
		b.writes = true
		return b, nil
	}
	if err == nil && len(allowed) == 1 && allowed[0] == "files" {
		return b, nil
	}
	if err == nil {
		err = fmt.Errorf("it can use: %s", strings.Join(allowed, ", "))
	}
	if !unconfined {
		return nil, fault.New(fault.Unavailable, "generated programs cannot be confined here").Because(err).
			WithHint("it takes Linux on amd64 or arm64; --allow-network runs them all the same, in a container or where nothing can be harmed").WithID("E-SANDBOX-001")
	}
	b.confined = false
	return b, nil
}

// Limits says in words what a program may not do, and what it may although it should not.
func (b *Box) Limits() []string {
	l := b.limits
	out := []string{fmt.Sprintf("time %v", l.Time), fmt.Sprintf("memory %d MiB", l.Memory>>20), fmt.Sprintf("files of %d MiB, %d open", l.FileBytes>>20, l.Files), "empty directory"}
	if !b.confined {
		return append(out, "NOT confined: network and processes are open")
	}
	out = append(out, "no network", "no child processes")
	if b.writes {
		return append(out, "no writing outside its directory")
	}
	return append(out, "writing outside its directory is NOT refused by this kernel")
}

// Run runs argv with an input in a fresh empty directory, which is removed afterwards. An error means that the program was
// not started.
func (b *Box) Run(ctx context.Context, argv []string, input string) (Result, error) {
	dir, err := os.MkdirTemp("", "apr-program-")
	if err != nil {
		return Result{}, fault.New(fault.IO, "no directory for a program").Because(err)
	}
	defer os.RemoveAll(dir)
	return b.run(ctx, dir, argv, input)
}

func (b *Box) run(ctx context.Context, dir string, argv []string, input string) (Result, error) {
	self, err := os.Executable()
	if err != nil {
		return Result{}, fault.New(fault.Other, "this program's own file is unknown").Because(err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return Result{}, fault.New(fault.IO, "no directory for a program").Because(err)
	}
	text, err := json.Marshal(order{b.limits, dir, argv, b.confined})
	if err != nil {
		return Result{}, err
	}
	status, child, err := os.Pipe()
	if err != nil {
		return Result{}, fault.New(fault.IO, "no pipe").Because(err)
	}
	defer status.Close()
	limited, cancel := context.WithTimeout(ctx, b.limits.Time)
	defer cancel()
	var out, errs tail
	cmd := exec.CommandContext(limited, self)
	cmd.Args = []string{childName, string(text)}
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "TMPDIR=" + dir, "LANG=C.UTF-8", "GOMAXPROCS=2", "GOTRACEBACK=single", "PYTHONDONTWRITEBYTECODE=1"}
	cmd.Stdin = strings.NewReader(input)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.ExtraFiles = []*os.File{child}
	cmd.WaitDelay = time.Second
	err = cmd.Start()
	child.Close()
	if ctx.Err() != nil {
		return Result{}, ctx.Err()
	}
	if err != nil {
		return Result{}, fault.New(fault.Other, "a child process does not start").Because(err)
	}
	said, _ := io.ReadAll(io.LimitReader(status, 4096)) // ends when the child becomes the program, or itself ends
	waited := cmd.Wait()
	if len(said) > 0 {
		return Result{}, fault.New(fault.Unavailable, "a program cannot be started: %s", said).WithID("E-SANDBOX-002")
	}
	if ctx.Err() != nil {
		return Result{}, ctx.Err()
	}
	r := Result{Exit: cmd.ProcessState.ExitCode(), TimedOut: limited.Err() != nil, Stdout: out.String(), Stderr: errs.String()}
	var exit *exec.ExitError
	if waited != nil && !errors.As(waited, &exit) && !r.TimedOut && !errors.Is(waited, exec.ErrWaitDelay) && !brokenPipe(waited) {
		return Result{}, fault.New(fault.Other, "a child process is lost").Because(waited)
	}
	return r, nil
}

// brokenPipe: the program ended without reading all of its input.
func brokenPipe(err error) bool {
	var p *os.PathError
	return errors.As(err, &p) && p.Op == "write"
}

// probe returns what a confined child could do although it should not.
func (b *Box) probe(ctx context.Context) ([]string, error) {
	outside, err := os.MkdirTemp("", "apr-outside-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(outside)
	if outside, err = filepath.EvalSymlinks(outside); err != nil {
		return nil, err
	}
	r, err := b.Run(ctx, []string{probeProgram, filepath.Join(outside, "file")}, "")
	switch {
	case err != nil:
		return nil, err
	case r.Exit != 0 || !strings.HasPrefix(r.Stdout, "probed"):
		return nil, fmt.Errorf("the probe ended with %d: %s%s", r.Exit, r.Stdout, r.Stderr)
	}
	return strings.Fields(strings.TrimPrefix(r.Stdout, "probed")), nil
}

// tail keeps the end of what is written.
type tail struct{ b []byte }

const tailBytes = 64 << 10

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if n := len(t.b); n > 2*tailBytes {
		t.b = append(t.b[:0], t.b[n-tailBytes:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	return string(bytes.ToValidUTF8(t.b[max(0, len(t.b)-tailBytes):], []byte("?")))
}

func init() {
	if len(os.Args) == 2 && os.Args[0] == childName {
		var o order
		err := json.Unmarshal([]byte(os.Args[1]), &o)
		if err == nil {
			err = become(o)
		}
		fmt.Fprint(os.NewFile(3, "status"), err) // nobody is left to tell if this fails
		os.Exit(1)
	}
}
