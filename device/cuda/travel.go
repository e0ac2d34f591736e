package cuda

import (
	"errors"
	"os"
	"time"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/internal/fault"
)

// What ranks exchange in each step travels on a stream of its own, beside what is computed:
//
//	the device's    layer 1 --+-- layer 0 --+-- embedding --+------- AdamW --+-- teacher --+-- student
//	                         from           |               |     done     ready         done
//	travels.stream            1 ----------- 0 ------------ rest --+          weights ------+
//
// Both are ordered by events; the host waits for nothing. A buffer is away from the call that sends it until Arrive: an
// operation on a gradient that is away is a mistake of the program (a panic), for it would be added to a sum, or lost;
// an operation on a weight that is away waits for it.

// Kinds of what travels. Weights take turns with two: those of a step may have left before the host asks how long those
// of the step before were waited for.
const (
	gradientsTravel = iota
	weightsTravel
	kindsOfTravel = weightsTravel + 2
)

// travels is what is on its way between the ranks, and the stream on which it is.
type travels struct {
	late   bool // OverlapVariable is 0
	stream driver.Stream
	ready  driver.Event // on the device's stream: weights are there to be sent
	// From when the device's stream could have gone on, and when what it waits for had arrived.
	from, done [kindsOfTravel]driver.Event

	away [kindsOfTravel][]*buffer // of calls since the last Arrive
	held []*device.Param          // with late: gradients to be sent by Arrive
	turn int                      // of weights
}

// OverlapVariable set to 0 lets everything travel by itself, for measurements of what that costs. Bits are the same.
const OverlapVariable = "APR_NCCL_OVERLAP"

// newTravels reads OverlapVariable.
func newTravels() (v travels, err error) {
	switch how := os.Getenv(OverlapVariable); how {
	case "", "1":
	case "0":
		v.late = true
	default:
		err = fault.In(fault.Usage, OverlapVariable, "%q is not 0 or 1", how).WithID("E-CUDA-075").
			WithHint("1 (or unset) exchanges gradients beside the backward pass, 0 after it")
	}
	return v, err
}

// open makes stream and events.
func (v *travels) open(t *driver.Thread) (err error) {
	if v.stream, err = t.NewStream(); err != nil {
		return err
	}
	if v.ready, err = t.NewEvent(false); err != nil {
		return err
	}
	for _, events := range []*[kindsOfTravel]driver.Event{&v.from, &v.done} {
		for i := range events {
			if events[i], err = t.NewEvent(true); err != nil {
				return err
			}
		}
	}
	return nil
}

// close gives them back.
func (v *travels) close(t *driver.Thread) (err error) {
	for _, e := range append(append([]driver.Event{v.ready}, v.from[:]...), v.done[:]...) {
		err = errors.Join(err, t.DestroyEvent(e))
	}
	return errors.Join(err, t.DestroyStream(v.stream))
}

// settled forgets what was on its way, when it has arrived or never will.
func (g *group) settled() {
	if g == nil {
		return
	}
	for kind, all := range g.travels.away {
		for _, b := range all {
			b.away = false
		}
		g.travels.away[kind] = nil
	}
	g.travels.held = nil
}

// athome makes sure that an operation may use b.
func (s *Stream) athome(op string, b *buffer) {
	if !b.away {
		return
	}
	if b.comp == device.Gradients {
		panic("cuda: " + op + ": the gradient " + b.name + " was sent to the other ranks before it was complete")
	}
	s.Arrive()
}

// SendGradients begins ReduceGradients of params beside what is queued from now on.
func (s *Stream) SendGradients(params []*device.Param) {
	if s.failed() || len(params) == 0 {
		return
	}
	v := &s.dev.group.travels
	for _, p := range params {
		b := p.Grad.Buf.(*buffer)
		s.athome("SendGradients", b)
		s.touched(b)
	}
	if v.late {
		v.held = append(v.held, params...)
	} else {
		s.reduceBeside(params)
	}
	for _, p := range params {
		v.leaves(gradientsTravel, p.Grad.Buf.(*buffer))
	}
}

// leaves notes that b is away.
func (v *travels) leaves(kind int, b *buffer) {
	b.away = true
	v.away[kind] = append(v.away[kind], b)
}

// reduceBeside queues the sum of gradients.
func (s *Stream) reduceBeside(params []*device.Param) {
	o := s.begin("SendGradients")
	if o == nil {
		return
	}
	o.beside(gradientsTravel, &s.dev.group.travels.from[gradientsTravel], func(g *group, t *driver.Thread) error {
		return g.reduceAll(t, params, g.travels.stream)
	})
	o.end()
}

// beside adds a call of NCCL on the stream of travels, behind all that the device's stream was given so far.
func (o *operation) beside(kind int, ready *driver.Event, f func(g *group, t *driver.Thread) error) {
	o.collect(func(g *group, t *driver.Thread) error {
		v := &g.travels
		if err := t.Record(*ready, o.dev.stream); err != nil {
			return err
		}
		if err := t.WaitEvent(v.stream, *ready); err != nil {
			return err
		}
		if err := f(g, t); err != nil {
			return err
		}
		return t.Record(v.done[kind], v.stream)
	})
}

// GatherWeights gives every rank the weights that the others updated, in the type in which products read them, beside
// what is queued from now on.
func (s *Stream) GatherWeights(params []*device.Param) {
	var shared []device.Tensor
	var counts []int
	for _, p := range params {
		lo, hi, _ := p.Share.Own(p.Rows * p.Cols)
		if hi > lo {
			shared, counts = append(shared, p.Weight.(*weight).t), append(counts, hi-lo)
		}
	}
	o := s.begin("GatherWeights", shared...)
	if o == nil || len(shared) == 0 {
		return
	}
	v := &s.dev.group.travels
	kind := weightsTravel + v.turn
	v.turn = 1 - v.turn
	o.beside(kind, &v.ready, func(g *group, t *driver.Thread) error {
		return g.nccl.Together(func() error {
			for i, w := range shared {
				if err := g.gather(t, mat(w), counts[i], v.stream); err != nil {
					return err
				}
			}
			return nil
		})
	})
	o.end()
	for _, w := range shared {
		v.leaves(kind, w.Buf.(*buffer))
	}
	if v.late {
		s.Arrive()
	}
}

// Arrive lets what is queued from now on wait for all that was sent and gathered.
func (s *Stream) Arrive() {
	v := &s.dev.group.travels
	if held := v.held; len(held) > 0 {
		v.held = nil
		s.reduceBeside(held)
	}
	var kinds [kindsOfTravel]bool
	for kind, all := range v.away {
		kinds[kind] = len(all) > 0
	}
	if kinds == [kindsOfTravel]bool{} {
		return
	}
	s.dev.group.settled()
	o := s.begin("Arrive")
	if o == nil {
		return
	}
	o.collect(func(_ *group, t *driver.Thread) error {
		for kind, some := range kinds {
			if !some {
				continue
			}
			if kind >= weightsTravel { // gradients are waited for from when the last of them was complete
				if err := t.Record(v.from[kind], o.dev.stream); err != nil {
					return err
				}
			}
			if err := t.WaitEvent(o.dev.stream, v.done[kind]); err != nil {
				return err
			}
		}
		return nil
	})
	o.end()
	for kind, some := range kinds {
		s.waits[kind] = s.waits[kind] || some
	}
}

// exposed returns how long the device had to wait for what arrived.
func (g *group) exposed(t *driver.Thread, waits [kindsOfTravel]bool) (sum time.Duration, err error) {
	for kind, some := range waits {
		if some {
			took, err := t.Elapsed(g.travels.from[kind], g.travels.done[kind])
			if err != nil {
				return 0, err
			}
			sum += max(0, took)
		}
	}
	return sum, nil
}
