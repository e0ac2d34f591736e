// Package teacher holds the sources of teacher logits.
//
// A teacher is all the loss knows of the big model: Begin runs its body once over the rows of a whole step, Logits
// then writes any range of them. It owns no gradients and no optimiser state.
package teacher

import (
	"apr/device"
	"apr/model"
)

// Teacher writes logits, before any temperature, over the first dst.Cols ids: the vocabulary both models share. Ids
// beyond are cut before the softmax, which equals logits of −∞.
type Teacher interface {
	// Begin runs the body over the step's rows.
	Begin(s device.Stream, b *model.Batch)
	// Logits writes rows [lo,hi) of the step, counted in kept positions, to dst [hi−lo, V] float32.
	Logits(s device.Stream, lo, hi int, dst device.Tensor)
	// End gives the step's memory back.
	End(s device.Stream)
}

// Resident is a teacher whose weights stay on the device in the type of the file.
type Resident struct {
	Model *model.Model
	// Group is the number of sequences whose activations exist at one time; 0: all of the step. See GroupRows.
	Group int

	hidden device.Tensor // [N, h] after the final norm
}

// Begin computes the final hidden states of the kept rows.
func (t *Resident) Begin(s device.Stream, r *model.Batch) {
	act := t.Model.Device().Info().Activations
	n := r.Tokens.Rows * r.Tokens.SeqLen
	all := s.Temp("teacher.hidden", device.Activations, act, n, t.Model.Config.Hidden)
	group := t.Group
	if group <= 0 {
		group = r.Tokens.Rows
	}
	for lo := 0; lo < r.Tokens.Rows; lo += group {
		hi := min(lo+group, r.Tokens.Rows)
		device.Repeat(s, groupShape{t, hi - lo, r.Tokens.SeqLen}, func() {
			t.Model.Hidden(s, all.RowRange(lo*r.Tokens.SeqLen, hi*r.Tokens.SeqLen), r.Tokens.Slice(lo, hi))
		})
	}
	t.hidden = all
	if !r.Keep.IsZero() {
		t.hidden = s.Temp("teacher.kept", device.Activations, act, r.N, t.Model.Config.Hidden)
		s.Gather(t.hidden, all, r.Keep)
		s.Release(all)
	}
}

// groupShape is what the operations on a group of sequences depend on.
type groupShape struct {
	t            *Resident
	rows, seqLen int
}

// Logits multiplies rows [lo,hi) of the hidden states by the head.
func (t *Resident) Logits(s device.Stream, lo, hi int, dst device.Tensor) {
	t.Model.Logits(s, dst, t.hidden.RowRange(lo, hi))
}

// End releases the hidden states.
func (t *Resident) End(s device.Stream) {
	s.Release(t.hidden)
	t.hidden = device.Tensor{}
}

// How many positions go through a body at a time: more bring no speed, and memory is bounded. A GPU may have to expand
// the weights for each group, which at this size is a hundredth of the group's products.
const cpuPositions, gpuPositions = 2048, 16384

// GroupRows returns the Group that is best on a device.
func GroupRows(info device.Info, seqLen int) int {
	if info.Kind == "cpu" {
		return max(1, cpuPositions/seqLen)
	}
	return max(1, gpuPositions/seqLen)
}
