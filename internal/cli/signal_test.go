//go:build !windows

package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSecondSignal: a signal that comes twice at once asks once; a second one a while later ends the process. Each case is
// a process of its own, which signals itself.
func TestSecondSignal(t *testing.T) {
	if pause, err := time.ParseDuration(os.Getenv("APR_TEST_SIGNAL_PAUSE")); err == nil {
		os.Exit(signalled(pause, os.Getenv("APR_TEST_SUPERVISED") != ""))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, pause, supervised string
		want                    int
	}{
		{"by timeout, at the same time", "0s", "", 20},
		{"by a person", "200ms", "", 130},
		{"by a supervisor and a scheduler", "200ms", "1", 20},
		{"by a person who waits for a supervised process", "1200ms", "1", 130},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := exec.Command(self, "-test.run=^TestSecondSignal$")
			c.Env = append(os.Environ(), "APR_TEST_SIGNAL_PAUSE="+tt.pause, "APR_TEST_SUPERVISED="+tt.supervised)
			out, err := c.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != tt.want {
				t.Errorf("%v, want exit %d\n%s", err, tt.want, out)
			}
		})
	}
}

// signalled runs a program that gets a second signal while it stops for the first, and returns its exit code.
func signalled(pause time.Duration, supervised bool) int {
	interrupt := func() { _ = syscall.Kill(os.Getpid(), syscall.SIGINT) } // a process may always signal itself
	app := &App{Name: "apr", In: strings.NewReader(""), Out: io.Discard, Err: os.Stderr, Supervised: supervised, Commands: []*Command{{
		Name: "stop",
		Run: func(ctx context.Context, _ *Env) (Result, error) {
			interrupt()
			<-ctx.Done()
			time.Sleep(pause)
			interrupt()
			time.Sleep(time.Second / 2) // what ends at once does not get to the end of this
			return nil, ctx.Err()
		},
	}}}
	return app.Main([]string{"stop"})
}
