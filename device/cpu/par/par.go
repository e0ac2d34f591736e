// Package par runs the tasks of one operation on all cores: fork, compute, join.
//
// A Pool keeps n-1 goroutines; the caller of Run is the n-th worker. Tasks are numbered and handed out one at a time by
// an atomic counter, so uneven tasks balance themselves. Between two operations of a step the workers spin for some
// microseconds, so that the next fork is seen at once; after that they park and cost nothing.
//
// Caveats. Which worker gets which task is chance: cut the work into tasks by the size of the problem alone, let one
// task compute each output element, and results never depend on the number of workers. Run must not be called from
// inside a task (it would wait for itself). Calls from several goroutines take turns.
package par

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// spinFor is how long an idle worker looks for the next job, and the caller for the last task, before parking.
// A wake-up through the scheduler costs 5–50 µs, so spinning about as long loses at most a factor of two.
const spinFor = 40 * time.Microsecond

// Pool is a fixed set of workers. Its zero value is not usable; see New.
type Pool struct {
	mu      sync.Mutex // held during Run: one job at a time
	job     atomic.Pointer[job]
	ended   atomic.Int64  // tasks of all Runs but the one at work
	jobs    []*job        // one more than there are helpers, so that one is always free; see spare
	workers []*worker     // the n-1 helpers; worker 0 is the caller
	joined  chan struct{} // wakes a parked caller; at most one token, always taken before Run returns
	closed  chan struct{}
	exited  sync.WaitGroup
}

// worker is one helper goroutine's parking place. A token in wake is sent by whoever turns parked from true to false.
type worker struct {
	parked atomic.Bool
	wake   chan struct{}
	holds  atomic.Pointer[job] // the job it may look into, which must not be reused
}

// job is one Run. A worker that arrives late finds next beyond the last task and leaves; it holds only its own job,
// so a new one can start meanwhile. Jobs are used again when no helper holds them.
type job struct {
	f      func(worker, task int)
	tasks  int64
	failed atomic.Pointer[Panic]
	next   padded        // the next task to hand out
	done   padded        // tasks finished
	joined chan struct{} // the pool's
	waits  atomic.Bool   // the caller has parked on joined
}

// padded is a counter alone in its cache line (two lines: adjacent ones are prefetched in pairs).
type padded struct {
	_ [128]byte
	atomic.Int64
	_ [120]byte
}

// Panic is what Run panics with when a task panicked; the other tasks not yet started are then left out.
type Panic struct {
	Task  int    // which task
	Value any    // what it panicked with
	Stack []byte // where, on the worker's own stack
}

// Error tells the task, the value and the worker's stack.
func (p *Panic) Error() string {
	return fmt.Sprintf("task %d panicked: %v\n%s", p.Task, p.Value, p.Stack)
}

// Unwrap gives the value if it was an error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// New starts a pool of n workers, the caller of Run included; n ≤ 0 means one for each usable core.
func New(n int) *Pool {
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	p := &Pool{joined: make(chan struct{}, 1), closed: make(chan struct{})}
	for range n - 1 {
		w := &worker{wake: make(chan struct{}, 1)}
		p.workers = append(p.workers, w)
	}
	for range n {
		p.jobs = append(p.jobs, &job{joined: p.joined})
	}
	for i, w := range p.workers {
		p.exited.Add(1)
		go p.serve(i+1, w)
	}
	return p
}

// Workers is the number of workers n: the worker argument of a task is in [0, n).
func (p *Pool) Workers() int { return len(p.workers) + 1 }

// Close ends the helper goroutines and waits for them. Run still works afterwards, on the caller alone.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	p.exited.Wait()
}

// Run calls f(worker, task) once for every task in [0, tasks), on all workers, and returns when all calls have.
// No two calls run at once with the same worker, so worker may index scratch memory. If a task panics, Run panics
// with a *Panic. One task, or a pool of one worker, runs on the caller without any synchronisation between cores.
func (p *Pool) Run(tasks int, f func(worker, task int)) {
	if tasks <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if tasks == 1 || len(p.workers) == 0 {
		p.serial(tasks, f)
		return
	}
	j := p.spare()
	j.f, j.tasks = f, int64(tasks)
	j.failed.Store(nil)
	j.next.Store(0)
	j.done.Store(0)
	p.job.Store(j)
	for _, w := range p.workers[:min(tasks-1, len(p.workers))] {
		if w.parked.CompareAndSwap(true, false) {
			w.wake <- struct{}{}
		}
	}
	j.work(0)
	j.join()
	p.job.Store(nil)
	p.ended.Add(j.tasks)
	j.f = nil // keep nothing alive that it holds
	if fail := j.failed.Load(); fail != nil {
		panic(fail)
	}
}

// Ended counts the tasks that have ended, for a watchdog. It waits for nothing; between the last task of a Run and its
// return it may count that Run's tasks not at all.
func (p *Pool) Ended() int64 {
	n := p.ended.Load()
	if j := p.job.Load(); j != nil {
		n += j.done.Load()
	}
	return n
}

// spare returns a job that no helper holds. Each helper holds at most one, and keeps the last it worked on until it sees
// another, so that the same job in p.job always means the same Run to it.
func (p *Pool) spare() *job {
	for _, j := range p.jobs {
		held := false
		for _, w := range p.workers {
			held = held || w.holds.Load() == j
		}
		if !held {
			return j
		}
	}
	panic("par: more jobs held than there are workers")
}

// hold returns the pool's job, held by w, or nil if there is none but the one that w holds already. A job that p.job
// still names once it is held cannot be reused before w lets go.
func (p *Pool) hold(w *worker) *job {
	last := w.holds.Load()
	for {
		j := p.job.Load()
		if j == nil || j == last {
			return nil
		}
		w.holds.Store(j)
		if p.job.Load() == j {
			return j
		}
		w.holds.Store(nil)
		last = nil // not held any more: if p.job names it again, it is another Run
	}
}

// Split calls f(worker, lo, hi) for the pieces [lo, hi) of [0, n), each of grain elements (the last may be shorter).
// The pieces depend on n and grain only.
func (p *Pool) Split(n, grain int, f func(worker, lo, hi int)) {
	if n <= grain { // spares the closure
		if n > 0 {
			p.Run(1, func(worker, _ int) { f(worker, 0, n) })
		}
		return
	}
	p.Run((n+grain-1)/grain, func(worker, task int) {
		f(worker, task*grain, min(n, (task+1)*grain))
	})
}

// serial runs all tasks on the caller.
func (p *Pool) serial(tasks int, f func(worker, task int)) {
	task := 0
	defer func() {
		if v := recover(); v != nil {
			panic(&Panic{Task: task, Value: v, Stack: debug.Stack()})
		}
	}()
	for ; task < tasks; task++ {
		f(0, task)
		p.ended.Add(1)
	}
}

// serve is the life of helper w: wait for a job, work, repeat.
func (p *Pool) serve(id int, w *worker) {
	defer p.exited.Done()
	for j := p.await(w); j != nil; j = p.await(w) {
		j.work(id)
	}
}

// await returns the next job, held by w, spinning first and then parking; nil when the pool is closed.
func (p *Pool) await(w *worker) *job {
	for {
		var j *job
		if spin(func() bool { j = p.hold(w); return j != nil }) {
			return j
		}
		w.parked.Store(true)
		if j := p.hold(w); j != nil { // published after the last look and before parked was seen
			if !w.parked.CompareAndSwap(true, false) {
				<-w.wake // whoever cleared parked sends a token
			}
			return j
		}
		select {
		case <-w.wake:
		case <-p.closed:
			return nil
		}
	}
}

// work runs tasks of j until none is left.
func (j *job) work(worker int) {
	for j.some(worker) {
	}
}

// some runs tasks until none is left (false) or one panics (true: come back, so that the rest is counted off).
func (j *job) some(worker int) (again bool) {
	task, running := int64(0), false
	defer func() {
		if !running {
			return
		}
		if v := recover(); v != nil {
			j.failed.CompareAndSwap(nil, &Panic{Task: int(task), Value: v, Stack: debug.Stack()})
			again = true
		}
		j.finish() // also when the task ended its goroutine
	}()
	for {
		task = j.next.Add(1) - 1
		if task >= j.tasks {
			return false
		}
		if j.failed.Load() == nil {
			running = true
			j.f(worker, int(task))
			running = false
		}
		j.finish()
	}
}

// finish counts one task and wakes the caller after the last.
func (j *job) finish() {
	if j.done.Add(1) == j.tasks && j.waits.CompareAndSwap(true, false) {
		j.joined <- struct{}{}
	}
}

// join waits until every task is done.
func (j *job) join() {
	all := func() bool { return j.done.Load() == j.tasks }
	if spin(all) {
		return
	}
	j.waits.Store(true)
	if all() && j.waits.CompareAndSwap(true, false) {
		return
	}
	<-j.joined
}

// spin polls ready for about spinFor and tells whether it came true. It yields now and then: with fewer cores than
// goroutines the one waited for must get on.
func spin(ready func() bool) bool {
	var start time.Time
	for i := 0; ; i++ {
		for range 32 {
			if ready() {
				return true
			}
		}
		runtime.Gosched()
		if i == 0 {
			start = time.Now()
		} else if i%8 == 0 && time.Since(start) > spinFor {
			return false
		}
	}
}
