package cluster

import (
	"container/heap"
	"math"
	"math/rand/v2"
)

// event is something that happens at a time.
type event struct {
	at    float64
	order int // events of one time happen in the order in which they were planned
	do    func()
	off   bool
}

// clock is virtual time and what is to happen in it.
type clock struct {
	now     float64
	planned queue
	count   int
	rng     *rand.Rand
}

func newClock(seed uint64) *clock { return &clock{rng: rand.New(rand.NewPCG(seed, 1))} }

// after plans f. Infinite delays never come.
func (c *clock) after(delay float64, f func()) *event {
	e := &event{at: c.now + delay, order: c.count, do: f}
	c.count++
	if !math.IsInf(delay, 1) {
		heap.Push(&c.planned, e)
	}
	return e
}

// run lets events happen until over, or until nothing is planned.
func (c *clock) run(over func() bool) {
	for !over() && len(c.planned) > 0 {
		e := heap.Pop(&c.planned).(*event)
		if e.off {
			continue
		}
		c.now = e.at
		e.do()
	}
}

// exponential is a random time of the given mean.
func (c *clock) exponential(mean float64) float64 {
	if math.IsInf(mean, 1) {
		return mean
	}
	return c.rng.ExpFloat64() * mean
}

// queue is a heap of events.
type queue []*event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if q[i].at != q[j].at {
		return q[i].at < q[j].at
	}
	return q[i].order < q[j].order
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(*event)) }
func (q *queue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}
