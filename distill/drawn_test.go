package distill

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/teacher/cache"
)

// undrawn is a device that does not draw many ids.
type undrawn struct{ device.Device }

func (d undrawn) Info() device.Info {
	info := d.Device.Info()
	info.Lacks = append(slices.Clone(info.Lacks), device.DrawsMany)
	return info
}

// TestDrawsOnTheHost: where the device does not draw, logits come to the host, and the cache has the same bytes.
func TestDrawsOnTheHost(t *testing.T) {
	c := smallConfig(t, 40)
	c.Loss.Temperature, c.Seed, c.Student, c.StudentConfig = 1.7, 1<<40+5, "", ""
	job := CacheJob{Kind: cache.Draws, Draws: 33, Entropy: true, Of: 1}
	var all []*cache.Reader
	for _, wrap := range []func(device.Device) device.Device{
		func(d device.Device) device.Device { return d },
		func(d device.Device) device.Device { return undrawn{d} },
	} {
		d, err := cpu.New(cpu.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		c.Output = filepath.Join(t.TempDir(), "cache")
		out, err := Precompute(context.Background(), c, job, wrap(d), &quiet{})
		if err != nil {
			t.Fatal(err)
		}
		if there := drawsThere(wrap(d).Info()); (out.DrawsUS != nil) != there || out.Forward == nil || !(*out.Forward > 0) {
			t.Errorf("the device draws: %v; draws took %v, forward rate %v", there, out.DrawsUS, out.Forward)
		}
		r, err := cache.Open(c.Output)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	if err := all[0].Same("", all[1].Header); err != nil {
		t.Error(err)
	}
	for _, k := range all[0].Keys() {
		a, err := all[0].Row(k)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := all[1].Row(k); err != nil || !bytes.Equal(a, b) {
			t.Fatalf("row %x differs (%v)", k[:4], err)
		}
	}
	contracttest.Cases(t, 1)
}

// TestEarlierCache: a cache of a version that drew otherwise serves training; it is not continued, and verified by
// goodness of fit.
func TestEarlierCache(t *testing.T) {
	c := smallConfig(t, 40)
	c.Steps, c.BatchSize = 2, 4
	job := CacheJob{Kind: cache.Draws, Draws: 50, Entropy: true, Of: 1}
	earlier := func(h *cache.Header) {
		var cut bool
		if h.Algorithms, cut = strings.CutSuffix(h.Algorithms, ", "+drawAlgorithm); !cut {
			t.Fatalf("the header does not say how ids are drawn: %q", h.Algorithms)
		}
	}
	dir := madeElsewhere(t, c, job, earlier, func(*cache.Header) {})
	if _, _, err := runOnce(t, cached(t, c, dir), 0, 0); err != nil {
		t.Errorf("training: %v", err)
	}
	_, err := precompute(t, c, job, 0, dir, 0)
	if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "another algorithms") ||
		!strings.Contains(err.Error(), drawAlgorithm) {
		t.Errorf("continued: %v", err)
	}
	r, err := cache.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := VerifyCache(context.Background(), c, r, 8, d, &quiet{})
	if err != nil || out.Method != goodFit || !out.Passed {
		t.Errorf("verified: %+v, %v", out, err)
	}
	contracttest.Cases(t, 1)
}
