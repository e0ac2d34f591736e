package cuda

import (
	"sync"
	"sync/atomic"
	"time"

	"apr/device/cuda/driver"
)

// Activity is what a card does, as NVML says. What it does not say is nil.
type Activity struct {
	Utilisation *int     // percent of the last sampling period in which kernels ran
	Memory      *int64   // bytes in use, by all processes
	Power       *float64 // watts
}

// Monitor asks NVML again and again, in a goroutine of its own: nothing waits for the answers.
type Monitor struct {
	last atomic.Pointer[Activity]
	stop chan struct{}
	once sync.Once
}

// Watch begins to ask what the card does, at once and then every so often. Without NVML there is never an answer.
func (d *Device) Watch(every time.Duration) *Monitor {
	return watch(every, func() func() Activity {
		nvml, err := driver.OpenManagement()
		if err != nil {
			return nil
		}
		card, err := nvml.Find(d.desc)
		if err != nil {
			return nil
		}
		return func() Activity { return activity(card) }
	})
}

// watch opens the source of answers and asks it; a source that is nil has none.
func watch(every time.Duration, open func() (ask func() Activity)) *Monitor {
	m := &Monitor{stop: make(chan struct{})}
	go func() {
		ask := open()
		if ask == nil {
			return
		}
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			a := ask()
			m.last.Store(&a)
			select {
			case <-m.stop:
				return
			case <-tick.C:
			}
		}
	}()
	return m
}

// Last returns the last answer; a Monitor that is nil has none.
func (m *Monitor) Last() Activity {
	if m == nil {
		return Activity{}
	}
	if a := m.last.Load(); a != nil {
		return *a
	}
	return Activity{}
}

// Close ends the asking, without waiting for a question under way.
func (m *Monitor) Close() {
	if m != nil {
		m.once.Do(func() { close(m.stop) })
	}
}

// activity asks for what it can get: cards lack some of it.
func activity(m *driver.Monitor) (a Activity) {
	if v, _, err := m.Utilisation(); err == nil {
		a.Utilisation = &v
	}
	if v, _, err := m.Memory(); err == nil {
		a.Memory = &v
	}
	if v, err := m.Power(); err == nil {
		a.Power = &v
	}
	return a
}
