package distill

import (
	"fmt"
	"slices"

	"apr/collective"
	"apr/corpus"
	"apr/device"
	"apr/tensor"
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
	waiting int     // elements of ready
	sent    int     // parameters
	ids     []int32 // that the embedding's gradient lacks when it is sent: see lastIDs; nil: it lacks none
}

// sender returns what sends the gradients of a step of b, or nil if they are added up otherwise.
func (t *Trainer) sender(b corpus.Batch) *sender {
	if !t.overlaps() {
		return nil
	}
	return &sender{t: t, b: b, ids: t.lastIDs(b)}
}

// lastIDs returns the tokens of each rank's last micro-batch with targets in b, rank after rank.
//
// The gradient of a tied embedding is the largest, and the backward pass ends with it, so that nobody computes while
// it travels. But what is added last are rows: one for each token. So the head's gradient, with what earlier
// micro-batches added, is sent before the backward pass goes down the layers; at its end every rank gets the rows of
// all, and adds them to the sum. That pays while they are much less than the embedding. lastIDs returns nil where they
// are not, or the ranks' micro-batches have different numbers of rows: all ranks see that alike.
func (t *Trainer) lastIDs(b corpus.Batch) (ids []int32) {
	e, world := t.Student.Embedding(), t.Ranks.World()
	if e == nil || !slices.Contains(t.trained(), e) || b.Rows%world != 0 {
		return nil
	}
	for r := range world {
		from, to := collective.Shard(b.Rows, r, world)
		var last corpus.Batch
		for lo := from; lo < to; lo += t.MicroRows {
			if m := b.Slice(lo, min(lo+t.MicroRows, to)); m.TargetCount() > 0 {
				last = m
			}
		}
		ids = append(ids, last.Tokens...)
		if len(last.Tokens) == 0 || len(ids) != (r+1)*len(last.Tokens) {
			return nil
		}
	}
	if 2*len(ids) > e.Rows {
		return nil
	}
	return ids
}

// hooks are Saved.Complete and Saved.AtEmbedding. A nil sender has none.
func (x *sender) hooks() (complete func([]*device.Param), atEmbedding func(device.Tensor)) {
	if x == nil {
		return nil, nil
	}
	if x.ids != nil {
		atEmbedding = x.sendRows
	}
	return x.complete, atEmbedding
}

// sendRows begins to give all ranks dx, the gradient over the rows of the embedding that this rank's tokens took.
func (x *sender) sendRows(dx device.Tensor) {
	t, s := x.t, x.t.stream
	n := len(x.ids)
	if t.shared.rows.Rows < n {
		t.freeRows()
		dev := t.Student.Device()
		t.shared.rows = dev.Alloc("ranks.rows", device.Gradients, dx.DType, n, dx.Cols)
		t.shared.ids = dev.Alloc("ranks.ids", device.Batch, tensor.I32, n, 1)
	}
	t.shared.lacking = n
	s.UploadInts(t.shared.ids.RowRange(0, n), x.ids)
	rows, r := t.shared.rows.RowRange(0, n), t.Ranks.Rank()
	s.Copy(rows.RowRange(r*dx.Rows, (r+1)*dx.Rows), dx)
	s.(device.Exchanger).GatherRows(rows)
}

// addRows adds what sendRows of all ranks sent, once it has arrived, in the order of ranks.
func (t *Trainer) addRows() {
	if n := t.shared.lacking; n > 0 {
		t.stream.EmbedBackward(t.Student.Embedding().Grad, t.shared.ids.RowRange(0, n), t.shared.rows.RowRange(0, n))
	}
	t.shared.lacking = 0
}

// freeRows gives the memory of sendRows back.
func (t *Trainer) freeRows() {
	if !t.shared.rows.IsZero() {
		t.Student.Device().Free(t.shared.rows, t.shared.ids)
	}
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
	for _, params := range x.t.Student.Completion(false) {
		x.complete(params)
	}
	x.rest()
	return nil
}
