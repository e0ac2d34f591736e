package dry

import (
	"apr/device"
	"apr/internal/fault"
)

var _ device.Repeater = (*Stream)(nil)

// repetition is what one run of a part recorded.
type repetition struct {
	counts    []int64 // by index in Device.list: how often each operation came
	positions int64
	waits     int
	from, to  device.Phase
	placed    int64 // Device.placed at the end
	steady    bool  // it gave back what it took, and found room for it: once more would place everything as this time
}

// Repeat runs f, and counts it instead where running it could record nothing new: it ran before under an equal key, at its end
// there was as much memory as at its beginning, and nothing was placed since.
func (s *Stream) Repeat(key any, f func()) {
	d := s.dev
	if r, ok := d.repeats[key]; ok && r.steady && r.placed == d.placed && r.from == s.phase {
		for i, n := range r.counts {
			d.list[i].Times += n
		}
		s.scalars.Positions += r.positions
		d.waits += r.waits
		s.phase = r.to
		return
	}
	before := d.Record()
	live, holding, positions, phase, err := d.live, len(d.holding), s.scalars.Positions, s.phase, s.err
	f()
	after := d.Record()
	r := repetition{
		counts: make([]int64, len(d.list)), positions: s.scalars.Positions - positions, waits: d.waits - before.Waits, from: phase, to: s.phase, placed: d.placed,
		steady: d.live == live && len(d.holding) == holding && after.Total() == before.Total() && fault.ExitCode(s.err) == fault.ExitCode(err),
	}
	for i, c := range d.list {
		r.counts[i] = c.Times
		if i < len(before.Ops) {
			r.counts[i] -= before.Ops[i].Times
		}
	}
	d.repeats[key] = r
}
