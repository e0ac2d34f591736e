// Package watch ends a process that makes no progress.
//
// A Watchdog is told of every sign of progress: what begins (Phase, Doing), and every optimiser step (Stepped). It
// looks itself at how much work a device has ended (Follow), so that a slow device within one long phase is not taken
// for a hung one. When no sign came for too long it collects the evidence, which is what was going on, the stacks of
// all goroutines and the state of the device, and hands it to a function that writes it down and ends the process. Too
// long is
//
//	300 s before the first step, then max(60 s, 20 × median step), or a fixed time
//
// and covers everything a run does: opening, uploading, probing, reading text, steps, checkpoints, evaluations.
//
// Bytes read from and written to files count as progress, on Linux.
//
// Caveats. The watcher asks no driver: what it says of a device is what the device's own calls have seen. Time counts
// only while the watcher itself runs, so a process that was suspended is not taken for one that hangs. Stacks are taken
// by stopping all goroutines; should that hang too, the evidence goes without them. A hung device cannot be saved, so
// nothing is checkpointed: the last checkpoint is what remains.
package watch

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The limits of the specification.
const (
	First  = 300 * time.Second // until the first step is done
	Least  = 60 * time.Second
	Factor = 20 // times the median step
)

// transfer is how many bytes read and written are a sign of progress: who opens, hashes, encodes or writes large files
// need not tell of every piece. In one tick, for a driver may read a little now and then.
const transfer = 256 << 10

// recent is how many steps the median is taken over.
const recent = 101

// Options of a Watchdog.
type Options struct {
	Timeout time.Duration // instead of the rule; 0: the rule
	State   func() string // the state of devices as last seen, for the report; it must not wait. nil: none
	Stalled func(Report)  // called once, in a goroutine of its own
	Tick    func(Beat)    // called every tick by the watcher, which must not be kept waiting; nil: nobody

	first, least, tick, patience time.Duration // for tests; 0: the constants
	stack                        func() []byte
}

// Beat is what a watchdog knows of the run.
type Beat struct {
	Phase string        // of the run
	Doing string        // what goes on in it
	Steps int           // optimiser steps done in this process
	Idle  time.Duration // since the last sign of progress
	Limit time.Duration // of Idle
}

// Where says what goes on, in which phase.
func (b Beat) Where() string {
	if b.Phase == "" || b.Phase == b.Doing {
		return b.Doing
	}
	return b.Phase + ": " + b.Doing
}

// Report is the evidence of a stall.
type Report struct {
	Beat
	State  string // of devices
	Stacks []byte // of all goroutines; empty if they could not be taken
}

// String is the text of stall.txt.
func (r Report) String() string {
	stacks := string(r.Stacks)
	if stacks == "" {
		stacks = "not available: the goroutines could not be stopped\n"
	}
	return fmt.Sprintf("no progress for %v; the limit is %v\nsteps done in this process: %d\n"+
		"phase: %s\nlast operation: %s\ndevice: %s\n\nstacks of all goroutines:\n\n%s",
		r.Idle.Round(time.Millisecond), r.Limit.Round(time.Millisecond), r.Steps, cmp.Or(r.Phase, "none"),
		cmp.Or(r.Doing, "none"), cmp.Or(r.State, "nothing known"), stacks)
}

// Watchdog watches a process. All methods may be called on a nil *Watchdog, and from any goroutine.
type Watchdog struct {
	opt   Options
	signs atomic.Int64 // of progress
	phase atomic.Pointer[string]
	doing atomic.Pointer[string]
	ended atomic.Pointer[func() int64] // work that a device has ended
	stop  chan struct{}
	once  sync.Once

	mu     sync.Mutex // of the below; held for moments only
	steps  int
	recent []time.Duration // a ring
}

// Start begins to watch.
func Start(o Options) *Watchdog {
	o.first, o.least = cmp.Or(o.first, First), cmp.Or(o.least, Least)
	o.tick, o.patience = cmp.Or(o.tick, time.Second), cmp.Or(o.patience, patience)
	if o.Timeout > 0 {
		o.tick = min(o.tick, max(o.Timeout/10, time.Millisecond))
	}
	if o.stack == nil {
		o.stack = allStacks
	}
	w := &Watchdog{opt: o, stop: make(chan struct{})}
	go w.run()
	return w
}

// Doing is a sign of progress, and says what begins or goes on.
func (w *Watchdog) Doing(what string) {
	if w == nil {
		return
	}
	w.doing.Store(&what)
	w.signs.Add(1)
}

// Phase is a sign of progress: a phase of the run begins.
func (w *Watchdog) Phase(name string) {
	if w == nil {
		return
	}
	w.phase.Store(&name)
	w.Doing(name)
}

// Follow takes each change of what ended returns as a sign of progress. The watcher calls it every tick, and must not
// be kept waiting by it.
func (w *Watchdog) Follow(ended func() int64) {
	if w != nil {
		w.ended.Store(&ended)
	}
}

// work is what the followed device has ended.
func (w *Watchdog) work() int64 {
	if ended := w.ended.Load(); ended != nil {
		return (*ended)()
	}
	return 0
}

// Stepped is a sign of progress: an optimiser step is done, and took so long.
func (w *Watchdog) Stepped(took time.Duration) {
	if w == nil {
		return
	}
	w.mu.Lock()
	if len(w.recent) < recent {
		w.recent = append(w.recent, took)
	} else {
		w.recent[w.steps%recent] = took
	}
	w.steps++
	w.mu.Unlock()
	w.signs.Add(1)
}

// Close ends the watching.
func (w *Watchdog) Close() {
	if w != nil {
		w.once.Do(func() { close(w.stop) })
	}
}

// limit returns how long may pass without progress, and the steps done.
func (w *Watchdog) limit() (time.Duration, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.opt.Timeout > 0:
		return w.opt.Timeout, w.steps
	case w.steps == 0:
		return w.opt.first, 0
	}
	sorted := slices.Sorted(slices.Values(w.recent))
	return max(w.opt.least, Factor*sorted[len(sorted)/2]), w.steps
}

// run looks every tick whether there was progress. A tick that came late counts as two at most: then the process did not
// run, and neither could anything in it.
func (w *Watchdog) run() {
	tick := time.NewTicker(w.opt.tick)
	defer tick.Stop()
	seen, moved, worked, idle, last := w.signs.Load(), transferred(), w.work(), time.Duration(0), time.Now()
	for {
		select {
		case <-w.stop:
			return
		case now := <-tick.C:
			idle += min(now.Sub(last), 2*w.opt.tick)
			last = now
		}
		n, bytes, work := w.signs.Load(), transferred(), w.work()
		if n != seen || bytes-moved >= transfer || work != worked {
			idle = 0
		}
		seen, moved, worked = n, bytes, work
		b := w.beat(idle)
		if w.opt.Tick != nil {
			w.opt.Tick(b)
		}
		if idle > b.Limit {
			w.stalled(b)
			return
		}
	}
}

func (w *Watchdog) beat(idle time.Duration) Beat {
	b := Beat{Idle: idle}
	b.Limit, b.Steps = w.limit()
	if what := w.doing.Load(); what != nil {
		b.Doing = *what
	}
	if phase := w.phase.Load(); phase != nil {
		b.Phase = *phase
	}
	return b
}

// patience is how long the stacks may take.
const patience = 3 * time.Second

// stalled collects the evidence and hands it on.
func (w *Watchdog) stalled(b Beat) {
	r := Report{Beat: b}
	stacks := make(chan []byte, 1)
	go func() { stacks <- w.opt.stack() }()
	select {
	case r.Stacks = <-stacks:
	case <-time.After(w.opt.patience):
	}
	state := make(chan string, 1)
	if w.opt.State != nil {
		go func() { state <- w.opt.State() }()
		select {
		case r.State = <-state:
		case <-time.After(w.opt.patience / 3):
			r.State = "did not answer"
		}
	}
	if w.opt.Stalled != nil {
		w.opt.Stalled(r)
	}
}

// maxStacks bounds the stacks of all goroutines.
const maxStacks = 16 << 20

func allStacks() []byte {
	for n := 64 << 10; ; n *= 4 {
		buf := make([]byte, n)
		if got := runtime.Stack(buf, true); got < n || n >= maxStacks {
			return buf[:got]
		}
	}
}
