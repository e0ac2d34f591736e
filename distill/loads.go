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
	before := l.dev.Loads()
	err := apply()
	if l.sealed {
		l.late += l.dev.Loads() - before
		return err
	}
	if err == nil || errors.Is(err, ErrNonFinite) {
		l.sealed = true
		l.dev.Seal()
	}
	return err
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
