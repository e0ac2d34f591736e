//go:build emulate && !gpu

package cuda

import (
	"errors"
	"slices"
	"testing"
	"time"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/tensor"
)

// TestFetch: values come as they are after what was queued before, whatever is queued after; several may be under way, of
// several sizes, and memory is used again.
func TestFetch(t *testing.T) {
	d := emulated(t, Options{})
	s := d.NewStream().(*Stream)
	values := func(n int, first float32) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = first + float32(i)
		}
		return v
	}
	before := d.counts.pinned.Load()
	small, large := d.Alloc("small", device.Scratch, tensor.F32, 1, 5), d.Alloc("large", device.Scratch, tensor.F32, 30, 7)
	for round := range 3 {
		first := float32(1000 * round)
		s.Upload(small, values(5, first))
		s.Upload(large, values(210, first+100))
		a, b := s.Fetch(small), s.Fetch(large)
		s.Upload(small, values(5, first+500))
		c := s.Fetch(small)
		s.Zero(large)
		for i, f := range []struct {
			wait  func([]float32) error
			n     int
			first float32
		}{{b, 210, first + 100}, {a, 5, first}, {c, 5, first + 500}} {
			got := make([]float32, f.n)
			if err := f.wait(got); err != nil || !slices.Equal(got, values(f.n, f.first)) {
				t.Errorf("round %d, fetch %d: %v (%v)", round, i, got, err)
			}
		}
	}
	if n := len(d.fetches.all); n != 3 {
		t.Errorf("%d places for three at a time", n)
	}
	if d.counts.pinned.Load() == before {
		t.Error("no pinned memory was taken")
	}
}

// TestFetchAfterFailure: what waits tells the error of an operation before, and of one that failed while it waited.
func TestFetchAfterFailure(t *testing.T) {
	d := emulated(t, Options{})
	s := d.NewStream().(*Stream)
	x, broken := d.Alloc("x", device.Scratch, tensor.F32, 1, 5), errors.New("broken")
	fail := func() {
		o := s.begin("broken")
		o.call(func(*driver.Thread) error { return broken })
		o.end()
	}
	fail()
	wait := s.Fetch(x)
	if err := wait(make([]float32, 5)); !errors.Is(err, broken) {
		t.Errorf("error %v, want that of the operation before", err)
	}
	s.recover()
	ids := d.Alloc("ids", device.Batch, tensor.I32, 1, 1)
	s.UploadInts(ids, []int32{-3})
	s.Gather(x.ColRange(0, 1), x.ColRange(0, 1), ids)
	if err := s.Fetch(x)(make([]float32, 5)); err == nil {
		t.Error("an id outside is no error")
	}
}

// TestFetchKnowsWhatItWaitedFor: what a fetch says is complete was queued before it, not what another goroutine queued meanwhile.
func TestFetchKnowsWhatItWaitedFor(t *testing.T) {
	d := emulated(t, Options{})
	s, other := d.NewStream().(*Stream), d.NewStream().(*Stream)
	x := d.Alloc("x", device.Scratch, tensor.F32, 1, 5)
	s.Upload(x, make([]float32, 5))
	before := d.issued.Load()
	d.uploads.mu.Lock() // another goroutine is sending
	waits := make(chan func([]float32) error)
	go func() { waits <- s.Fetch(x) }()
	for deadline := time.Now().Add(100 * time.Millisecond); d.issued.Load() == before && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	first := d.issued.Load() > before
	o := other.begin("sent by another goroutine")
	o.call(func(*driver.Thread) error { return nil })
	o.end()
	sent := d.issued.Load()
	d.uploads.mu.Unlock()
	if err := (<-waits)(make([]float32, 5)); err != nil {
		t.Fatal(err)
	}
	if first && d.synced.Load() >= sent {
		t.Errorf("%d operations are said to be complete, of which number %d was queued after the event", d.synced.Load(), sent)
	}
}
