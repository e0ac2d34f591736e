package teacher

import (
	"fmt"

	"apr/corpus"
	"apr/device"
	"apr/model"
)

// Privileged is a teacher that reads other words than the student before the same reply (self-distillation with
// privileged context). Row i of a step is, for the student and for the teacher,
//
//	x_i = prompt_i ‖ reply_i,  x'_i = words_i ‖ reply_i
//
// and only targets of the reply count. So the kept positions of both batches are in one order, and the k-th of the
// student's is taught by the k-th of the teacher's, however many ids the prompts have.
type Privileged struct {
	Inner  Teacher
	Device device.Device
	SeqLen int  // positions of a row of the teacher's
	Dry    bool // no words are read: rows of SeqLen positions, of which as many count as of the student's

	batch *model.Batch
	next  corpus.Batch
}

// Give sets the teacher's rows of the batch that Begin is given next, and of the same batch again.
func (t *Privileged) Give(b corpus.Batch) {
	if b.SeqLen != t.SeqLen {
		panic(fmt.Sprintf("teacher: rows of %d positions, not of %d", b.SeqLen, t.SeqLen))
	}
	t.next = b
}

// Begin runs the body over the teacher's rows.
func (t *Privileged) Begin(s device.Stream, b *model.Batch) {
	if t.batch == nil {
		t.batch = model.NewBatch(t.Device, b.Tokens.Rows, t.SeqLen)
	}
	if t.Dry {
		t.next = t.dry(b)
	}
	if n := t.next.TargetCount(); n != b.N || t.next.Rows != b.Tokens.Rows {
		panic(fmt.Sprintf("teacher: %d targets in %d rows of its own, the student's %d rows have %d",
			n, t.next.Rows, b.Tokens.Rows, b.N))
	}
	t.batch.Load(s, t.next, t.next.Rows)
	t.Inner.Begin(s, t.batch)
}

// dry makes rows of which as many positions count as of b.
func (t *Privileged) dry(b *model.Batch) corpus.Batch {
	all := b.Tokens.Rows * t.SeqLen
	out := corpus.Batch{Rows: b.Tokens.Rows, SeqLen: t.SeqLen, Tokens: make([]int32, all), Targets: make([]int32, all),
		Mask: make([]uint8, all)}
	for i := range b.N {
		out.Mask[i] = 1
	}
	return out
}

// Logits writes rows [lo,hi) of the step, counted in kept positions.
func (t *Privileged) Logits(s device.Stream, lo, hi int, dst device.Tensor) {
	t.Inner.Logits(s, lo, hi, dst)
}

// HeadRows returns how many columns Logits can compute at most; 0: it is not known.
func (t *Privileged) HeadRows() int {
	if h, ok := t.Inner.(interface{ HeadRows() int }); ok {
		return h.HeadRows()
	}
	return 0
}

// End gives the step's memory back.
func (t *Privileged) End(s device.Stream) { t.Inner.End(s) }

// Free gives the memory that lasts back; the teacher must not be used afterwards.
func (t *Privileged) Free() {
	if t.batch != nil {
		t.batch.Free(t.Device)
		t.batch = nil
	}
}
