// Package sandbox runs programs that a model wrote, in child processes that can do little.
//
// A program runs in a directory of its own with limits on time, memory, size and number of files. Three walls of Linux stand
// around it, none of which needs privileges:
//
//   - A system-call filter (seccomp) with a list of what is allowed; every other call fails with EPERM. No sockets, no children, no
//     signals to others, no change of a file's mode, owner, times, attributes or links, anywhere.
//   - Landlock: it reads and executes the files that its Program names, changes files in its own directory, and nothing else.
//   - Its user: an administrator's program runs under a user id that owns nothing. No program has a capability, but one: where the
//     toolchain lies in a directory that not everyone may read, CAP_DAC_READ_SEARCH stays, for the toolchain is read while the program
//     runs. Landlock still bounds what is opened, the filter refuses open_by_handle_at; names, sizes and modes of all files can be seen.
//
// A program is killed when the process that started it ends, however that ends.
//
// It inherits neither the environment nor open files, but the ends of pipes that its Program names. The child is this
// same program under another name, which confines itself before it becomes the program. Go's compiler and linker run in
// the same walls: they see text that a model wrote.
//
// Caveats. Children of a program that is not confined outlive it. The names, sizes and modes of files (stat) that its user may look up can be seen, their content cannot. Programs of
// ordinary users run as that user, behind the other two walls, and may make as many threads as he may. Until its time is up
// a program may fill the disk with files, each within its limit: memory, where temporary files lie in memory. Where confinement is not to be had, Open refuses, unless the
// caller accepts it; Limits then says so. This keeps mistakes and mischief of generated programs in, not a determined attacker
// who knows a hole in the kernel.
package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"apr/internal/fault"
)

// childName is the program's name when it is to confine itself.
const childName = "apr-sandbox"

// Limits of one program.
type Limits struct {
	Time      time.Duration // on the clock; of the processor, rounded up to seconds
	Memory    uint64        // bytes of private writable memory; with what was made read-only and what is only reserved, 2 GiB more
	FileBytes uint64        // of one file
	Files     uint64        // open at one time
}

// DefaultLimits are generous for the test of a function.
var DefaultLimits = Limits{Time: 10 * time.Second, Memory: 1 << 30, FileBytes: 16 << 20, Files: 64}

// Program is one to run.
type Program struct {
	Argv  []string
	Input string
	// Read are files, and directories with all below them, that it may read and execute; its executable is among them.
	Read   []string
	Dir    string  // its directory, made by MakeDir; empty: a fresh one that is removed afterwards
	Limits *Limits // instead of the box's
	// Stdin and Stdout replace Input and what Run returns of the standard output: two programs may be connected by pipes.
	// Started is called once a program has them, or will never have them: its parent may then close its own ends.
	Stdin, Stdout *os.File
	Started       func()
}

// order is the command to the child, as JSON in its first argument.
type order struct {
	Limits
	Dir      string
	Argv     []string
	Read     []string
	ID       int  // user and group to become; 0: none
	Parent   int  // process that the program ends with
	Confined bool // refuse to go on without filter and Landlock
}

// probeProgram is what the child runs to try its own confinement.
const probeProgram = "apr-sandbox-probe"

// ErrExec says that all was ready for a program, but that its file is none that can be executed.
var ErrExec = errors.New("the program's file cannot be executed")

// execFailed begins what the child says of that.
const execFailed = "exec: "

// Box starts programs.
type Box struct {
	limits   Limits
	confined bool
	id       int // user and group of programs; 0: the caller's own
}

// Result is how a program ended.
type Result struct {
	Exit           int // −1: killed
	TimedOut       bool
	Stdout, Stderr string // the last 64 KiB
}

// Open tries the confinement: a child that makes a socket, a child process, a signal, and that reads, makes and changes files
// outside must be refused each. If it cannot be confined the error is of kind Unavailable, unless unconfined is accepted.
//
// It removes directories that killed processes left.
func Open(ctx context.Context, l Limits, unconfined bool) (*Box, error) {
	if err := removeLeftOvers(); err != nil {
		return nil, err
	}
	var failed error
	for _, id := range userIDs(os.Geteuid()) {
		b := &Box{limits: l, confined: true, id: id}
		allowed, err := b.probe(ctx)
		if err == nil && len(allowed) == 0 {
			return b, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err == nil {
			err = fmt.Errorf("it can use: %s", strings.Join(allowed, ", "))
		}
		failed = err
	}
	if !unconfined {
		return nil, fault.New(fault.Unavailable, "generated programs cannot be confined here").Because(failed).
			WithHint("it takes Linux 6.2 or later on amd64 or arm64, with seccomp and Landlock; --allow-network runs them all the same, in a container or where nothing can be harmed").WithID("E-SANDBOX-001")
	}
	return &Box{limits: l}, nil
}

// userIDs are the user ids that a user's programs may run under, the best first: an administrator's programs get one that nobody else has
// (of the range that systemd takes such ids from), or nobody's where that is not in the user namespace, or his own.
func userIDs(user int) []int {
	if user != 0 {
		return []int{0}
	}
	return []int{firstID + rand.IntN(countIDs), 65534, 0}
}

// The ids that an administrator's programs get.
const firstID, countIDs = 61184, 4096

// Confined reports whether all three walls are up; they are not if Open was asked to do without.
func (b *Box) Confined() bool { return b.confined }

// Limits says in words what a program may not do, and what it may although it should not.
func (b *Box) Limits() []string {
	l := b.limits
	out := []string{fmt.Sprintf("time %v", l.Time), fmt.Sprintf("memory %d MiB", l.Memory>>20), fmt.Sprintf("files of %d MiB, %d open", l.FileBytes>>20, l.Files), "empty directory"}
	if !b.confined {
		return append(out, "NOT confined: network, processes and files are open")
	}
	out = append(out, "no network", "no child processes", "no reading outside its directory and the toolchain", "no change outside its directory")
	if b.id != 0 {
		return append(out, "a user id of its own, where that can read the toolchain")
	}
	return append(out, "the user's own id")
}

// dirPrefix begins the names of programs' directories.
const dirPrefix = "apr-program-"

// MakeDir makes a directory that programs may change. The caller removes it with Remove.
func (b *Box) MakeDir() (string, error) {
	dir, err := MakeTemp(dirPrefix)
	if err == nil && b.id != 0 {
		// For its owner, or for this process's group: that is who a program is that cannot be given its own id.
		if err = errors.Join(os.Chown(dir, b.id, os.Getegid()), os.Chmod(dir, 0o770)); err != nil {
			err = fault.New(fault.IO, "no directory for a program").Because(err)
			andRemove(dir, &err)
			return "", err
		}
	}
	return dir, err
}

// MakeTemp makes a directory for temporary files, whose name begins with prefix. The caller removes it with Remove; if he is killed, the
// next Open does.
func MakeTemp(prefix string) (string, error) {
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return "", fault.New(fault.IO, "no directory for programs").Because(err)
	}
	lock(dir)
	if err := mark(dir); err != nil {
		err = fault.New(fault.IO, "no directory for programs").Because(err)
		andRemove(dir, &err)
		return "", err
	}
	return dir, nil
}

// Run runs a program. An error means that it was not started, or that what it left could not be removed.
func (b *Box) Run(ctx context.Context, p Program) (r Result, err error) {
	if p.Dir == "" {
		if p.Dir, err = b.MakeDir(); err != nil {
			return Result{}, err
		}
		defer andRemove(p.Dir, &err)
	}
	return b.run(ctx, p)
}

func (b *Box) run(ctx context.Context, p Program) (Result, error) {
	self, err := os.Executable()
	if err != nil {
		return Result{}, fault.New(fault.Other, "this program's own file is unknown").Because(err)
	}
	dir, err := filepath.EvalSymlinks(p.Dir)
	if err != nil {
		return Result{}, fault.New(fault.IO, "no directory for a program").Because(err)
	}
	limits := b.limits
	if p.Limits != nil {
		limits = *p.Limits
	}
	text, err := json.Marshal(order{limits, dir, p.Argv, p.Read, b.id, os.Getpid(), b.confined})
	if err != nil {
		return Result{}, err
	}
	runtime.LockOSThread() // the program ends with the thread that started it
	defer runtime.UnlockOSThread()
	status, child, err := os.Pipe()
	if err != nil {
		return Result{}, fault.New(fault.IO, "no pipe").Because(err)
	}
	defer status.Close()
	limited, cancel := context.WithTimeout(ctx, limits.Time)
	defer cancel()
	var out, errs tail
	cmd := exec.CommandContext(limited, self)
	cmd.Args = []string{childName, string(text)}
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "TMPDIR=" + dir, "LANG=C.UTF-8",
		"PYTHONDONTWRITEBYTECODE=1"}, goSettings...)
	cmd.Stdin = strings.NewReader(p.Input)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if p.Stdin != nil {
		cmd.Stdin = p.Stdin
	}
	if p.Stdout != nil {
		cmd.Stdout = p.Stdout
	}
	cmd.ExtraFiles = []*os.File{child}
	cmd.WaitDelay = time.Second
	err = cmd.Start()
	child.Close()
	if p.Started != nil {
		p.Started()
	}
	if ctx.Err() != nil {
		return Result{}, ctx.Err()
	}
	if err != nil {
		return Result{}, fault.New(fault.Other, "a child process does not start").Because(err)
	}
	said, _ := io.ReadAll(io.LimitReader(status, 4096)) // ends when the child becomes the program, or itself ends
	waited := cmd.Wait()
	if what, ok := strings.CutPrefix(string(said), execFailed); ok {
		return Result{}, fault.New(fault.Unavailable, "a program cannot be started: %s", what).Because(ErrExec).WithID("E-SANDBOX-003")
	}
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

// probe returns what a confined child could do although it should not. What it is to leave alone is its own user's, and
// open to everyone: nothing but the sandbox protects it.
func (b *Box) probe(ctx context.Context) (_ []string, err error) {
	outside, err := b.MakeDir()
	if err != nil {
		return nil, err
	}
	defer andRemove(outside, &err)
	if outside, err = filepath.EvalSymlinks(outside); err != nil {
		return nil, err
	}
	file := filepath.Join(outside, "file")
	if err := os.WriteFile(file, []byte("outside"), 0o644); err != nil {
		return nil, err
	}
	if b.id != 0 {
		if err := os.Chown(file, b.id, b.id); err != nil {
			return nil, err
		}
	}
	r, err := b.Run(ctx, Program{Argv: []string{probeProgram, outside, file}})
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
		fmt.Fprint(os.NewFile(3, "status"), err) // if this fails there is no one to report it to
		os.Exit(1)
	}
}

// goSettings are Go's settings for a program: one goroutine runs at a time, and it is only interrupted where it calls a
// function. An interface is two words. A goroutine that saw one word of the old value and one of the new could make a
// pointer of a number, and with it read and write all memory, also that of its tests.
var goSettings = []string{"GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1", "GOTRACEBACK=single"}
