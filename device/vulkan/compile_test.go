//go:build vulkan

package vulkan

import (
	"testing"
	"time"

	"apr/device/vulkan/kernel"
)

// Every kernel is compiled and dispatched by the driver in no time that a user would notice.
func TestCompileTimes(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	d.sabotage = func(l *launch) { l.push[0] = 0 } // no group has work
	for _, k := range kernel.Manifest().Kernels {
		start := time.Now()
		d.mu.Lock()
		err := d.dispatch(kernel.Launch{Kernel: k.Name, Bind: make([]kernel.Mat, len(k.Bindings)), Args: make([]uint32,
			len(k.Args)), Groups: 1})
		if err == nil {
			err = d.finish()
		}
		d.mu.Unlock()
		if err != nil {
			t.Errorf("%s: %v", k.Name, err)
		}
		t.Logf("%s: %v", k.Name, time.Since(start).Round(time.Millisecond))
	}
}
