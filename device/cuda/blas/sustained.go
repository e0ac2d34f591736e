package blas

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"apr/device/cuda/driver"
)

// Measurement under sustained load. A device at its power limit lowers its clock until the work fits the limit: then the
// fastest algorithm is the one that takes the least energy, which a measurement of some milliseconds does not see. So
// the best of the short measurement run back to back for a while each, in turns that go there and back, on a device
// that has been busy before; the first quarter of a turn does not count.
const (
	finalists     = 4    // candidates that are measured so, at most
	closeBehind   = 1.10 // times the best short measurement
	turns         = 2    // of every finalist, even
	turnTime      = 100 * time.Millisecond
	leadIn        = 4 // one part of so many of a turn does not count
	sustainedHeat = 300 * time.Millisecond
	sameUnderLoad = 1.003
	cacheBytes    = 128 << 20 // twice the largest cache: operands that fit it take turns with copies of them
	maxSets       = 8
)

// sustains reports whether the tuning wants a measurement under load of a shape.
func (l *Library) sustains(s Shape) bool { return l.o.Tune == Sustained && s.FLOP() >= l.o.Large }

// sustain measures the large ones of the open shapes under load, after the short measurement. All of them share
// Options.Load.
func (u *tuner) sustain(all []*candidates, open []int, chosen []choice) error {
	var large []int
	for _, i := range open {
		if u.lib.sustains(all[i].shape) && chosen[i].from == fromTuning {
			large = append(large, i)
		}
	}
	if len(large) == 0 {
		return nil
	}
	o := &u.lib.o
	o.Log(fmt.Sprintf("kernel-cache event=sustained plans=%d seconds=%.1f", len(large), o.Load.Seconds()))
	o.Tell(fmt.Sprintf("the fastest of the library's algorithms for %d matrix products are found by measuring for up to %.0f s, once on this machine",
		len(large), math.Ceil(o.Load.Seconds())))
	u.deadline = time.Now().Add(o.Load)
	for n, i := range large {
		share := time.Until(u.deadline) / time.Duration(len(large)-n)
		if share <= 0 {
			break
		}
		if n == 0 {
			c := all[i]
			if _, err := u.load(u.call(c, chosen[i].index), c.shape, c.ms[chosen[i].index], 0, min(sustainedHeat, share)); err != nil {
				return err
			}
		}
		best, err := u.underLoad(all[i], share)
		if err != nil {
			return fmt.Errorf("tuning %s: %w", all[i].shape.Key(), err)
		}
		chosen[i] = best
	}
	return nil
}

// underLoad measures the finalists of a shape for about share in all and writes the means of their turns to c.ms. Of
// equal ones that with the best short measurement is chosen.
func (u *tuner) underLoad(c *candidates, share time.Duration) (choice, error) {
	if err := u.fill(c.shape); err != nil {
		return choice{}, err
	}
	list := c.finalists()
	turn := min(turnTime, share/time.Duration(turns*len(list)))
	short := slices.Clone(c.ms)
	sum := make([]float64, len(c.list))
	for range turns {
		for _, i := range list {
			ms, err := u.load(u.call(c, i), c.shape, short[i], turn/leadIn, turn-turn/leadIn)
			if err != nil {
				return choice{}, err
			}
			sum[i] += ms / turns
		}
		slices.Reverse(list)
	}
	best := list[0]
	for _, i := range list {
		c.ms[i] = sum[i]
		if sum[i]*sameUnderLoad < sum[best] {
			best = i
		}
	}
	return choice{best, fromLoad}, nil
}

// finalists returns those of the candidates whose short measurements are close to the best, the best first.
func (c *candidates) finalists() (list []int) {
	best := math.Inf(1)
	for i, ms := range c.ms {
		if ms > 0 {
			list, best = append(list, i), min(best, ms)
		}
	}
	slices.SortStableFunc(list, func(i, j int) int { return cmp.Compare(c.ms[i], c.ms[j]) })
	list = slices.DeleteFunc(list, func(i int) bool { return !(c.ms[i] <= closeBehind*best) })
	return list[:min(len(list), finalists)]
}

// call prepares a candidate.
func (u *tuner) call(c *candidates, i int) *driver.LtCall {
	beta := float32(0)
	if c.shape.Add {
		beta = 1
	}
	l := u.lib
	return l.lt.NewCall(l.handle, c.problem.lt, c.list[i].Algo, beta, l.o.Workspace, l.o.Bytes)
}

// sets returns how many copies of a shape's operands take turns, so that no product finds its operands in the cache: as
// many as fill it and fit the scratch memory.
func (u *tuner) sets(s Shape) int {
	n := min((cacheBytes+s.bytes()-1)/s.bytes(), u.scratch.Bytes/s.bytes(), maxSets)
	return int(max(n, 1))
}

// load runs a product back to back, for about lead and then for about timed if a run takes ms milliseconds, and returns
// the milliseconds of a run of the second part.
func (u *tuner) load(call *driver.LtCall, s Shape, ms float64, lead, timed time.Duration) (float64, error) {
	sets, next := u.sets(s), 0
	repeat := func(n int) error {
		for range n {
			a, b, c, _ := s.place(u.scratch.Ptr + uint64(next)*uint64(s.bytes()))
			next = (next + 1) % sets
			if err := call.Start(b, a, c, u.s); err != nil {
				return err
			}
		}
		return nil
	}
	runs := func(d time.Duration) int { return int(math.Ceil(d.Seconds() * 1e3 / max(ms, 1e-3))) }
	n := max(runs(timed), 1)
	if err := repeat(runs(lead)); err != nil {
		return 0, err
	}
	if err := u.t.Record(u.events[0], u.s); err != nil {
		return 0, err
	}
	if err := repeat(n); err != nil {
		return 0, err
	}
	if err := u.t.Record(u.events[1], u.s); err != nil {
		return 0, err
	}
	if err := u.t.EventSync(u.events[1]); err != nil {
		return 0, err
	}
	d, err := u.t.Elapsed(u.events[0], u.events[1])
	return d.Seconds() * 1e3 / float64(n), err
}
