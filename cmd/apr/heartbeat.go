package main

import (
	"sync"
	"time"

	"apr/internal/cli"
)

// heartbeat says in the log what goes on, each time that nothing was said for cli.LogPause: where there is no terminal,
// a long phase would be silent. The nil heartbeat says nothing. Safe for concurrent use.
type heartbeat struct {
	say  func(text string)
	stop chan struct{}
	once sync.Once

	mu   sync.Mutex
	text string // what goes on; empty: nothing, or what shows by itself
	last time.Time
}

// newHeartbeat begins to say what goes on until it is closed.
func newHeartbeat(say func(text string)) *heartbeat {
	h := &heartbeat{say: say, stop: make(chan struct{}), last: time.Now()}
	go func() {
		tick := time.NewTicker(cli.LogPause / 10)
		defer tick.Stop()
		for {
			select {
			case <-h.stop:
				return
			case now := <-tick.C:
				h.beat(now)
			}
		}
	}()
	return h
}

// phases is a heartbeat of the log for a command; nil where a terminal shows progress, or none is wanted.
func phases(e *cli.Env) *heartbeat {
	if !e.LogsProgress() {
		return nil
	}
	return newHeartbeat(func(text string) { e.Log.Info(text) })
}

// beat says what goes on if it is time.
func (h *heartbeat) beat(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.text != "" && now.Sub(h.last) >= cli.LogPause {
		h.say(h.text)
		h.last = now
	}
}

// doing sets what goes on; empty: nothing, or what shows by itself.
func (h *heartbeat) doing(text string) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.text == "" { // until now, what went on has shown by itself
		h.last = time.Now()
	}
	h.text = text
}

// close ends it.
func (h *heartbeat) close() {
	if h != nil {
		h.once.Do(func() { close(h.stop) })
	}
}
