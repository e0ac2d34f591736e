//go:build !windows

package collective_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"apr/collective"
	"apr/internal/contracttest"
)

// silence is when a stopped child counts as lost.
const silence = time.Second

// TestMain runs a rank of TestKilledAndStopped, if the environment says so.
func TestMain(m *testing.M) {
	if os.Getenv("RANK_OF_TEST") == "" {
		os.Exit(m.Run())
	}
	var rank, world int
	var addr string
	if _, err := fmt.Sscan(os.Getenv("RANK_OF_TEST"), &rank, &world, &addr); err != nil {
		panic(err)
	}
	c, err := collective.Join(context.Background(), dialer(addr), hello(rank, world), options(silence))
	for x := []float32{1}; err == nil; time.Sleep(time.Millisecond) {
		err = c.Sum32(x)
	}
	fmt.Println(err)
	os.Exit(3)
}

// A process that is killed, or stopped, is named on every other rank, within the time limit; none hangs. Each of the
// 20 trials of a signal takes another rank and another moment.
func TestKilledAndStopped(t *testing.T) {
	const world, trials = 4, 20
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		for trial := range trials {
			l, _ := listen(t)
			var children []*exec.Cmd
			var out []*strings.Builder
			for r := 1; r < world; r++ {
				c := exec.Command(os.Args[0])
				c.Env = append(os.Environ(), fmt.Sprintf("RANK_OF_TEST=%d %d %s", r, world, l.Addr()))
				b := &strings.Builder{}
				c.Stdout = b
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				children, out = append(children, c), append(out, b)
			}
			comm, err := collective.Serve(context.Background(), l, hello(0, world), options(silence))
			if err != nil {
				t.Fatal(err)
			}
			contracttest.Cases(t, 1)
			victim := 1 + trial%(world-1)
			p := children[victim-1].Process
			time.AfterFunc(time.Duration(5+3*trial)*time.Millisecond, func() { _ = p.Signal(sig) })
			began, unnoticed := time.Now(), time.AfterFunc(silence+farewellTime, func() { _ = p.Kill() })
			for err == nil {
				err = comm.Sum32([]float32{1})
			}
			unnoticed.Stop()
			how := map[syscall.Signal]collective.How{syscall.SIGKILL: collective.Gone, syscall.SIGSTOP: collective.Silent}[sig]
			var lost *collective.Lost
			if !errors.As(err, &lost) || lost.Rank != victim || lost.How != how {
				t.Fatalf("%v of rank %d: rank 0 says %v", sig, victim, err)
			}
			if took := time.Since(began); took > silence+farewellTime {
				t.Errorf("%v of rank %d: named after %v", sig, victim, took)
			}
			_ = p.Kill()
			for r, c := range children {
				_ = c.Wait()
				if r+1 != victim && !strings.Contains(out[r].String(), fmt.Sprintf("rank %d of %d is %s", victim, world, how)) {
					t.Errorf("%v of rank %d: rank %d says %q", sig, victim, r+1, out[r])
				}
			}
		}
	}
}

// farewellTime is what telling others may take, with some room for a busy machine.
const farewellTime = 6 * time.Second
