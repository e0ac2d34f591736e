package distill

import (
	"errors"

	"apr/device"
)

// loader is a device that loads code. All of it belongs before the second step, when memory is not yet full and no step
// waits for it.
type loader interface {
	Loads() int64 // kernels and plans of products so far
	Seal()        // says that what is loaded from now on is late
}

// loads counts what is loaded during the steps of a leg after its first. Evaluations and checkpoints between steps may
// load what they need.
type loads struct {
	dev    loader // nil: the device loads nothing
	beside loader // a queue beside it; nil: there is none
	late   int64
	sealed bool
}

func newLoads(dev device.Device) loads {
	d, _ := dev.(loader)
	return loads{dev: d}
}

// step performs a step and counts.
func (l *loads) step(apply func() error) error {
	if l.dev == nil {
		return apply()
	}
	before := l.count()
	err := apply()
	if l.sealed {
		l.late += l.count() - before
		return err
	}
	if err == nil || errors.Is(err, ErrNonFinite) {
		l.sealed = true
		l.dev.Seal()
		if l.beside != nil {
			l.beside.Seal()
		}
	}
	return err
}

// count returns what was loaded so far.
func (l *loads) count() int64 {
	n := l.dev.Loads()
	if l.beside != nil {
		n += l.beside.Loads()
	}
	return n
}

// watch counts what a queue loads, too.
func (l *loads) watch(q *Queue) {
	if q != nil {
		l.beside, _ = q.Device.(loader)
	}
}

// recordLoads writes down what was counted, and warns if it is not nothing.
func (l *leg) recordLoads() error {
	if !l.loads.sealed {
		return nil
	}
	kind, late := "record", l.loads.late
	if late > 0 {
		kind = "warning"
		l.run.obs.Message("warning: %d kernels or products were loaded in steps of leg %s after its first; --kernel-log names them", late, l.name)
	}
	return l.run.dir.Event(kind, "loads after the first step", map[string]any{"leg": l.name, "loads": late},
		"counted inside steps; all loads belong before the second step")
}
