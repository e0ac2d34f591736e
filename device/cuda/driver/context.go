package driver

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"unsafe"

	"apr/internal/fault"
)

// Context is a device with the one goroutine that may speak to it. Any goroutine may call its methods, but none from
// inside a closure of Do or Go.
type Context struct {
	queue  chan job
	ended  chan struct{} // closed when the goroutine is done
	mu     sync.RWMutex  // held for reading while sending to queue
	closed bool
	loop   loop
}

// queueLength bounds the closures that wait; a step of a large model has about 2,000 launches.
const queueLength = 4096

// job is a closure of Do or of Go.
type job struct {
	do   func(*Thread) error
	done chan<- result // for Do
	run  func(*Thread) // for Go
}

// result is how a closure of Do ended.
type result struct {
	err   error
	panic *Panic
}

// Panic is the value that Do panics with when a closure panicked on the device's goroutine.
type Panic struct {
	Value any    // of the original panic
	Stack string // of the device's goroutine
}

// Error renders the value and the stack.
func (p *Panic) Error() string { return fmt.Sprintf("%v\n\n%s", p.Value, p.Stack) }

// Unwrap returns the value if it was an error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// errClosed is the error of Do after Close.
var errClosed = errors.New("driver: the context is closed")

// NewContext retains device i's primary context on a goroutine locked to its OS thread.
func (d *Driver) NewContext(i int) (*Context, error) {
	dev, err := d.handle(i)
	if err != nil {
		return nil, err
	}
	c := &Context{queue: make(chan job, queueLength), ended: make(chan struct{})}
	c.loop = loop{thread: &Thread{d: d, device: dev}, queue: c.queue, ended: c.ended}
	go c.loop.run()
	if err := c.Do((*Thread).retain); err != nil {
		c.stop()
		return nil, fault.New(fault.Unavailable, "CUDA device %d cannot be used", i).WithID("E-CUDA-047").Because(err)
	}
	return c, nil
}

// Do runs f on the device's goroutine after everything queued before, waits for it and returns its error. A panic of
// f, or of a closure of Go before it, becomes one of Do, with a *Panic. After Close it fails.
func (c *Context) Do(f func(*Thread) error) error {
	done := make(chan result, 1)
	if !c.send(job{do: f, done: done}) {
		return errClosed
	}
	r := <-done
	if r.panic != nil {
		panic(r.panic)
	}
	return r.err
}

// Go queues f to run on the device's goroutine and returns at once; when some thousands wait it blocks. If f panics,
// the closures of Go after it are dropped and the next Do panics. After Close it does nothing.
func (c *Context) Go(f func(*Thread)) { c.send(job{run: f}) }

// send queues a job unless the context is closed.
func (c *Context) send(j job) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return false
	}
	c.queue <- j
	return true
}

// Close runs what is queued and releases the device; a second call does nothing.
func (c *Context) Close() error {
	err := c.Do((*Thread).release)
	if errors.Is(err, errClosed) {
		return nil
	}
	c.stop()
	return err
}

// stop ends the goroutine.
func (c *Context) stop() {
	c.mu.Lock()
	already := c.closed
	c.closed = true
	c.mu.Unlock()
	if !already {
		close(c.queue)
	}
	<-c.ended
}

// loop is the device's goroutine.
type loop struct {
	thread  *Thread
	queue   <-chan job
	ended   chan<- struct{}
	pending *Panic // of a closure of Go, for the next Do
}

// run takes jobs until the queue is closed. The goroutine never unlocks its thread, so the thread, with CUDA's state of
// it, ends with the goroutine.
func (l *loop) run() {
	runtime.LockOSThread()
	finished := false
	defer func() {
		if !finished { // a closure ended the goroutine by runtime.Goexit: another thread takes over
			go l.run()
		}
	}()
	if l.thread.context != 0 {
		if err := l.thread.makeCurrent(); err != nil {
			l.pending = &Panic{Value: err, Stack: "after runtime.Goexit"}
		}
	}
	for j := range l.queue {
		l.one(j)
	}
	finished = true
	close(l.ended)
}

// one runs a job.
func (l *loop) one(j job) {
	if l.pending != nil {
		if j.done != nil {
			j.done <- result{panic: l.pending}
			l.pending = nil
		}
		return
	}
	r := result{panic: &Panic{Value: "the closure ended its goroutine", Stack: "runtime.Goexit"}}
	defer func() {
		if v := recover(); v != nil {
			r.panic = &Panic{Value: v, Stack: string(debug.Stack())}
		}
		switch {
		case j.done != nil:
			j.done <- r
		case r.panic != nil:
			l.pending = r.panic
		}
	}()
	if j.done != nil {
		r.err = j.do(l.thread)
	} else {
		j.run(l.thread)
	}
	r.panic = nil
}

// retain makes the device's primary context and lets it be this thread's.
func (t *Thread) retain() error {
	if err := t.d.call(&t.d.calls.primaryRetain, uintptr(unsafe.Pointer(&t.context)), uintptr(t.device)); err != nil {
		return err
	}
	return t.makeCurrent()
}

// makeCurrent lets the context be this thread's.
func (t *Thread) makeCurrent() error { return t.d.call(&t.d.calls.ctxSetCurrent, t.context) }

// release gives the primary context back.
func (t *Thread) release() error {
	if t.context == 0 {
		return nil
	}
	t.context = 0
	if err := t.d.call(&t.d.calls.ctxSetCurrent, 0); err != nil {
		return err
	}
	return t.d.call(&t.d.calls.primaryRelease, uintptr(t.device))
}
