package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"apr/internal/cli"
	"apr/internal/fault"
	"apr/run/supervise"
)

// startedRanks are the other ranks of this machine, started by rank 0.
type startedRanks struct {
	all  []*startedRank
	mu   sync.Mutex
	tell func(error) // called with the first death before all ranks have met
}

// startedRank is one of them.
type startedRank struct {
	rank  int
	cmd   *exec.Cmd
	tail  lastWordsOf
	ended chan struct{}
}

// lastWordsOf keeps the last of what a process says.
type lastWordsOf struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 4 << 10

func (t *lastWordsOf) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - tailBytes; over > 0 {
		t.text = t.text[over:]
	}
	return len(p), nil
}

func (t *lastWordsOf) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}

// startRanks starts the ranks of this machine after this one, with the command line of this process.
func startRanks(e *cli.Env, p *party, threads int) (*startedRanks, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fault.New(fault.Other, "the program's own path is not known").Because(err)
	}
	environ := slices.DeleteFunc(e.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv,
			supervise.Variable+"=")
	})
	c := &startedRanks{}
	for i := 1; i < p.local; i++ {
		r := p.rank + i
		k := &startedRank{rank: r, cmd: exec.Command(self, e.Command[1:]...), ended: make(chan struct{})}
		k.cmd.Args[0] = os.Args[0]
		k.cmd.Env = append(slices.Clone(environ), fmt.Sprintf("APR_DISTILL_RANK=%d", r),
			fmt.Sprintf("APR_DISTILL_WORLD_SIZE=%d", p.world),
			"APR_DISTILL_RENDEZVOUS="+p.rendezvous, startedVariable+"=1", secretVariable+"="+string(p.secret),
			fmt.Sprintf("%s=%d", deviceVariable, p.firstDevice+i), fmt.Sprintf("GOMAXPROCS=%d", threads),
			fmt.Sprintf("%s=%d", generationVariable, p.generation))
		k.cmd.Stderr = &k.tail
		if err := k.cmd.Start(); err != nil {
			c.end(0, func() {})
			return nil, fault.New(fault.Other, "rank %d cannot be started", r).Because(err)
		}
		c.all = append(c.all, k)
		go func() {
			defer close(k.ended)
			_ = k.cmd.Wait() // its state says how it ended
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.tell != nil {
				c.tell(k.death())
				c.tell = nil
			}
		}()
	}
	return c, nil
}

// death is how a rank ended, as an error of the kind of its exit code.
func (k *startedRank) death() error {
	kind := fault.Kind(k.cmd.ProcessState.ExitCode())
	if kind <= 0 {
		kind = fault.Other
	}
	return fault.New(kind, "rank %d ended before all ranks had met: %v", k.rank, k.cmd.ProcessState).
		WithHint("it said: %s", k.tail.String()).WithID("E-RANKS-034")
}

// died lets f be called when a rank ends, or has ended already.
func (c *startedRanks) died(f func(error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.all {
		select {
		case <-k.ended:
			f(k.death())
			return
		default:
		}
	}
	c.tell = f
}

// patienceWithRanks is how long other ranks may take to end after rank 0 has done its part, and once the run has
// failed.
const (
	patienceWithRanks = 20 * time.Second
	patienceOnFailure = 2 * time.Second
)

// end waits for all ranks, and ends those that do not end by themselves. alive is called meanwhile.
func (c *startedRanks) end(patience time.Duration, alive func()) {
	limit, tick := time.After(patience), time.NewTicker(time.Second)
	defer tick.Stop()
	for _, k := range c.all {
		for waiting := true; waiting; {
			select {
			case <-k.ended:
				waiting = false
			case <-tick.C:
				alive()
			case <-limit:
				for _, k := range c.all {
					_ = k.cmd.Process.Kill() // it may have ended meanwhile
					<-k.ended
				}
				return
			}
		}
	}
}
