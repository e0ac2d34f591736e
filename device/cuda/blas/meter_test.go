//go:build emulate || gpu

package blas

import (
	"fmt"
	"sync"
	"time"

	"apr/device/cuda/driver"
)

// meter reads clock and power all the time.
type meter struct {
	mu      sync.Mutex
	samples []reading
	stop    chan struct{}
}

type reading struct {
	at         time.Time
	mhz, watts float64
}

// newMeter returns nil where nothing can be read.
func newMeter(info driver.DeviceInfo) *meter {
	m, err := driver.OpenManagement()
	if err != nil {
		fmt.Println("no clock and power:", err)
		return nil
	}
	d, err := m.Find(info)
	if err != nil {
		fmt.Println("no clock and power:", err)
		return nil
	}
	w := &meter{stop: make(chan struct{})}
	go func() {
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-w.stop:
				tick.Stop()
				return
			case at := <-tick.C:
				mhz, _ := d.Clock() // 0 where it cannot be read
				watts, _ := d.Power()
				w.mu.Lock()
				w.samples = append(w.samples, reading{at, float64(mhz), watts})
				w.mu.Unlock()
			}
		}
	}()
	return w
}

// mean returns the means of the readings of a time; 0 without.
func (w *meter) mean(from, to time.Time) (mhz, watts float64) {
	if w == nil {
		return 0, 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0.0
	for _, s := range w.samples {
		if s.at.After(from) && s.at.Before(to) {
			mhz, watts, n = mhz+s.mhz, watts+s.watts, n+1
		}
	}
	return mhz / max(n, 1), watts / max(n, 1)
}

func (w *meter) close() {
	if w != nil {
		close(w.stop)
	}
}
