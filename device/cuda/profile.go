package cuda

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"apr/device/cuda/driver"
)

// OpStat is what one kind of operation has cost: matrix products and attention by their sizes, all else by name.
type OpStat struct {
	Op    string
	Calls int64
	Time  time.Duration // on the device, from its first launch to the end of its last
}

// profile times every operation by a pair of events. The device's thread alone looks inside.
type profile struct {
	spans []span
	made  []driver.Event
}

// span is an operation between two events.
type span struct {
	op         string
	begin, end driver.Event
}

// StartProfile begins to time every operation from now on, which costs two events for each: whole steps become slower by
// some per cent. Profile ends it.
func (d *Device) StartProfile() { d.prof.Store(&profile{}) }

// Profile waits for everything queued and returns what was timed since StartProfile, the longest first.
func (d *Device) Profile() ([]OpStat, error) {
	p := d.prof.Swap(nil)
	if p == nil {
		return nil, nil
	}
	stats := map[string]*OpStat{}
	err := d.ctx.Do(func(t *driver.Thread) error {
		if err := t.StreamSync(d.stream); err != nil {
			return err
		}
		for _, s := range p.spans {
			took, err := t.Elapsed(s.begin, s.end)
			if err != nil {
				return err
			}
			st := stats[s.op]
			if st == nil {
				st = &OpStat{Op: s.op}
				stats[s.op] = st
			}
			st.Calls++
			st.Time += took
		}
		for _, e := range p.made {
			if err := t.DestroyEvent(e); err != nil {
				return err
			}
		}
		return nil
	})
	var all []OpStat
	for _, s := range stats {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b OpStat) int { return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.Op, b.Op)) })
	return all, d.explain("Profile", err)
}

// time performs an operation between two events.
func (p *profile) time(t *driver.Thread, o *operation) error {
	begin, err := p.mark(t, o.dev.stream)
	if err != nil {
		return err
	}
	if err := o.perform(t); err != nil {
		return err
	}
	end, err := p.mark(t, o.dev.stream)
	if err == nil {
		p.spans = append(p.spans, span{o.name + o.sizes, begin, end})
	}
	return err
}

func (p *profile) mark(t *driver.Thread, s driver.Stream) (driver.Event, error) {
	e, err := t.NewEvent(true)
	if err != nil {
		return e, err
	}
	p.made = append(p.made, e)
	return e, t.Record(e, s)
}

// sized says which sizes the operation has, for a profile.
func (o *operation) sized(sizes ...int) {
	if o.dev.prof.Load() == nil {
		return
	}
	for i, n := range sizes {
		o.sizes += []string{" ", "×"}[min(i, 1)] + strconv.Itoa(n)
	}
}
