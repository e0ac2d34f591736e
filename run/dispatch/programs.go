package dispatch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"apr/internal/fault"
	"apr/internal/launcher"
)

// Available refuses, as not available, a program that PATH does not have.
func Available(name string) error {
	if _, err := exec.LookPath(name); err != nil {
		return fault.New(fault.Unavailable, "%s is not on PATH", name).WithHint("install it, or dispatch from a machine that has it").WithID("E-DISPATCH-010")
	}
	return nil
}

// secrets are variables that no job inherits: sbatch, for one, hands its environment to the job.
var secrets = []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}

// Without returns an environment without secrets, and without what makes this process one of several ranks: the job is
// none of them, and sbatch hands on all it finds.
func Without(environ []string) []string {
	return slices.DeleteFunc(launcher.Without(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(secrets, name)
	})
}

// longest is how long a submitting program may take.
const longest = 2 * time.Minute

// Submit runs a program of the system with a text on stdin and returns what it prints. Its failure is a fault: 255 of
// ssh and scp is the network's, 3, 7 and 9 of a script are what they are of this program.
func Submit(ctx context.Context, argv []string, stdin string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	var out bytes.Buffer
	err := run(ctx, argv, stdin, &out)
	return strings.TrimSpace(out.String()), err
}

// Follow runs a program whose output is shown until it ends, and returns its exit code.
func Follow(ctx context.Context, argv []string, stdin string, out io.Writer) (int, error) {
	err := run(ctx, argv, stdin, out)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() >= 0 && fault.KindOf(err) != fault.Network {
		return exit.ExitCode(), nil
	}
	return 0, err
}

func run(ctx context.Context, argv []string, stdin string, out io.Writer) error {
	if err := Available(argv[0]); err != nil {
		return err
	}
	var complaint tail
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Stdin, c.Stdout, c.Stderr, c.Env = strings.NewReader(stdin), out, &complaint, Without(os.Environ())
	c.WaitDelay = 5 * time.Second
	err := c.Run()
	if err == nil {
		return nil
	}
	kind := fault.Other
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		switch code := exit.ExitCode(); {
		case code == 255 && (argv[0] == "ssh" || argv[0] == "scp"):
			kind = fault.Network
		case code == int(fault.NotFound) || code == int(fault.IO) || code == int(fault.Unavailable):
			kind = fault.Kind(code)
		}
	}
	if text := strings.TrimSpace(string(complaint)); text != "" {
		return fault.New(kind, "%s: %s", argv[0], text).Because(err).WithID("E-DISPATCH-011")
	}
	return fault.New(kind, "%s failed", argv[0]).Because(err).WithID("E-DISPATCH-011")
}

// tail keeps the last bytes written to it.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	*t = append(*t, p...)
	if over := len(*t) - 4096; over > 0 {
		*t = append((*t)[:0], (*t)[over:]...)
	}
	return len(p), nil
}

// Process is a job on this machine.
type Process struct {
	PID int
	cmd *exec.Cmd
}

// Start starts a program with a session of its own, so that it outlives this process and its terminal. Its output is
// appended to the file log.
func Start(program string, j Job, log string) (*Process, error) {
	if ownSession == nil {
		return nil, fault.New(fault.Unavailable, "Windows cannot start a supervised run of its own").WithHint("apr distill").WithID("E-DISPATCH-013")
	}
	f, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fault.In(fault.IO, log, "cannot be written").Because(err)
	}
	defer f.Close() // the child has it; what it writes is the child's business
	c := exec.Command(program)
	c.Args = j.Command
	c.Env, c.Stdout, c.Stderr = append(launcher.Without(os.Environ()), j.Env...), f, f
	c.SysProcAttr = ownSession
	if err := c.Start(); err != nil {
		return nil, fault.In(fault.Other, program, "cannot be started").Because(err)
	}
	return &Process{c.Process.Pid, c}, nil
}

// Wait waits for the process and returns its exit code, 128 + the signal if one ended it.
func (p *Process) Wait() int {
	err := p.cmd.Wait()
	if s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	if code := p.cmd.ProcessState.ExitCode(); err == nil || code > 0 {
		return code
	}
	return 1
}
