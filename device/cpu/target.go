package cpu

import (
	"fmt"
	"os"
	"strings"

	"apr/device"
	"apr/device/dry"
	"apr/internal/cgroup"
	"apr/tensor"
)

var _ dry.Planned = (*Device)(nil)

// Target describes the device for one dry run. Its budget is what the device holds and what the system has available.
// The scratch of workers and the packed panels of matrix products are not part of it.
func (d *Device) Target() dry.Target {
	d.mu.Lock()
	room := d.expand
	d.mu.Unlock()
	t := dry.Target{Info: d.Info(), Matrices: tensor.F32, Temps: &classes{}}
	t.Keep = func(spec device.WeightSpec) (dry.Kept, error) {
		w, plain, err := layOut(spec)
		if err != nil {
			return dry.Kept{}, err
		}
		if d.packs(w) {
			kept, err := dry.Stored(spec)
			kept.Bytes = w.packedBytes()
			return kept, err
		}
		if n := w.expandedBytes(); plain || n <= room {
			if !plain {
				room -= n
			}
			return dry.Kept{Bytes: n, Types: tensor.F32.String()}, nil
		}
		kept, err := dry.Stored(spec)
		kept.Bytes = 0
		for i, p := range w.parts {
			if p.rowBytes == 0 {
				kept.Bytes += spec.Parts[i].Info().Size
			} else {
				kept.Bytes += int64(p.rows) * int64(p.rowBytes)
			}
		}
		return kept, err
	}
	if available := availableMemory(); available > 0 {
		t.Budget = available
		now, _ := d.Memory()
		for _, n := range now {
			t.Budget += n
		}
	}
	return t
}

// classes places temps as a stream's free lists do: released ones serve their own size class only.
type classes struct {
	free [numClasses]int
	peak int64
}

// Size returns the bytes of the class of n.
func (c *classes) Size(n int64) int64 {
	_, size := sizeClass(n)
	return size
}

// Place takes a free buffer of the class, or makes one.
func (c *classes) Place(n int64) int64 {
	class, size := sizeClass(n)
	if c.free[class] > 0 {
		c.free[class]--
	} else {
		c.peak += size
	}
	return int64(class) // all that Release must know
}

// Release gives a buffer back to its class.
func (c *classes) Release(place int64) { c.free[place]++ }

// Peak returns the bytes of all buffers ever made.
func (c *classes) Peak() int64 { return c.peak }

// availableMemory returns what the machine has left and the limits of the process's cgroup leave, in bytes; 0: neither is known.
func availableMemory() int64 {
	available := machineMemory()
	if g, err := cgroup.Find("/", os.Getpid()); err == nil {
		if free, ok := g.Free(); ok && (available == 0 || free < available) {
			return max(1, free)
		}
	}
	return available
}

// machineMemory returns MemAvailable of /proc/meminfo in bytes, 0 where there is none.
func machineMemory() int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		var kb int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	return 0
}
