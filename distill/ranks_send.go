package distill

import (
	"fmt"

	"apr/corpus"
	"apr/device"
)

// sentTogether is how many elements of gradients travel at a time, at least, while the backward pass goes on: fewer
// would pay more for each call than for the bytes. Tests have less.
var sentTogether = 4 << 20

// overlaps reports whether gradients travel between devices beside the backward pass. A sum of parts by position is
// complete only when the last part is.
func (t *Trainer) overlaps() bool {
	return t.Ranks.Joined && t.Ranks.Leaves == 0 && t.Ranks.World() > 1
}

// sender sends the gradients of one step in buckets, whose order and content depend on the model alone: ranks that
// compute nothing send the same ones. A nil sender sends nothing.
type sender struct {
	t       *Trainer
	b       corpus.Batch // of all ranks
	ready   []*device.Param
	waiting int // elements of ready
	sent    int // parameters
}

// sender returns what sends the gradients of a step of b, or nil if they are added up otherwise.
func (t *Trainer) sender(b corpus.Batch) *sender {
	if !t.overlaps() {
		return nil
	}
	return &sender{t: t, b: b}
}

// begin asks the other ranks for their batch. The device computes what it was given meanwhile.
func (x *sender) begin() error { return x.t.sameBatch(x.b) }

// complete is Saved.Complete.
func (x *sender) complete(params []*device.Param) {
	for _, p := range params {
		x.ready = append(x.ready, p)
		x.waiting += p.Rows * p.Cols
	}
	if x.waiting >= sentTogether {
		x.send()
	}
}

func (x *sender) send() {
	x.t.stream.(device.Exchanger).SendGradients(x.ready)
	x.sent += len(x.ready)
	x.ready, x.waiting = nil, 0
}

// rest sends what the student's backward pass did not complete: the gradients of Hidden.
func (x *sender) rest() {
	if x.t.Hidden != nil {
		x.complete(x.t.Hidden.params)
	}
	x.send()
	if all := len(x.t.trained()); x.sent != all {
		panic(fmt.Sprintf("distill: %d of %d gradients were sent to the other ranks", x.sent, all))
	}
}

// all sends gradients that are all complete.
func (x *sender) all() error {
	if x == nil {
		return nil
	}
	if err := x.begin(); err != nil {
		return err
	}
	for _, params := range x.t.Student.Completion() {
		x.complete(params)
	}
	x.rest()
	return nil
}
