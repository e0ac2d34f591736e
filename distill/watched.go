package distill

import (
	"fmt"
	"time"

	runlog "apr/run/log"
	"apr/run/watch"
)

// watched is an observer whose messages are signs of progress too.
type watched struct {
	Observer
	dog *watch.Watchdog
}

func (w watched) Phase(name string) {
	w.dog.Phase(name)
	w.Observer.Phase(name)
}

func (w watched) Advance(done, total int) {
	w.dog.Doing(fmt.Sprintf("%d of %d", done, total))
	w.Observer.Advance(done, total)
}

func (w watched) Leg(leg string, done, total int) {
	w.dog.Phase("leg " + leg)
	w.Observer.Leg(leg, done, total)
}

func (w watched) Step(leg string, s runlog.Step) {
	w.dog.Stepped(time.Duration(s.MS.Total * float64(time.Millisecond)))
	w.Observer.Step(leg, s)
}

func (w watched) Evaluated(leg string, step int, nats float64) {
	w.dog.Doing("after an evaluation")
	w.Observer.Evaluated(leg, step, nats)
}

func (w watched) Detail(format string, args ...any) {
	w.dog.Doing("after: " + fmt.Sprintf(format, args...))
	w.Observer.Detail(format, args...)
}

func (w watched) Message(format string, args ...any) {
	w.dog.Doing("after: " + fmt.Sprintf(format, args...))
	w.Observer.Message(format, args...)
}
