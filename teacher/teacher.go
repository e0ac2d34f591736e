// Package teacher holds the sources of teacher logits.
//
// A teacher is all the loss knows of the big model: Begin runs its body once over the rows of a whole step, Logits
// then writes any range of them. It owns no gradients and no optimiser state.
package teacher

import (
	"apr/device"
	"apr/model"
	"apr/tensor"
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
	// Group is the number of sequences whose activations exist at one time; 0: all of the step. See GroupRows. A
	// model whose layers come from the host takes all groups through a layer before the next, which changes no
	// bit.
	Group int
	// Layers are those whose residual stream is kept for the step, see Streams.
	Layers []int
	// Attended are those whose attention map can be computed for the step, see Maps.
	Attended []int

	first   int                    // position of the step at which the batch begins: 0 but for a part of the step
	hidden  device.Tensor          // [N, h] after the final norm
	streams map[int]device.Tensor  // [N, h] behind each of Layers
	maps    map[int]device.AttnMap // of all positions, by Attended
}

// Streams is a Teacher that also gives hidden states: those of one model whose layers are computed.
type Streams interface {
	Teacher
	// Stream returns rows [lo,hi) of the step, counted in kept positions, of the residual stream behind a layer that is kept.
	Stream(layer, lo, hi int) device.Tensor
}

// Maps is a Teacher whose attention maps can be compared: one model whose layers are computed.
type Maps interface {
	Teacher
	// Map returns what the attention map of a layer of Attended is computed from, over sequences of the step.
	Map(layer int, t model.Tokens) device.AttnMap
}

// Begin computes the final hidden states of the kept rows.
func (t *Resident) Begin(s device.Stream, r *model.Batch) {
	act := t.Model.Device().Info().Activations
	n := r.Tokens.Rows * r.Tokens.SeqLen
	t.first = r.Tokens.At
	all := s.Temp("teacher.hidden", device.Activations, act, n, t.Model.Config.Hidden)
	group := t.Group
	if group <= 0 {
		group = r.Tokens.Rows
	}
	t.streams = make(map[int]device.Tensor, len(t.Layers))
	for _, l := range t.Layers {
		t.streams[l] = s.Temp("teacher.stream", device.Activations, act, n, t.Model.Config.Hidden)
	}
	t.maps = make(map[int]device.AttnMap, len(t.Attended))
	for _, l := range t.Attended {
		t.maps[l] = t.Model.AttentionMap(l, n, func(name string, d tensor.DType, rows, cols int) device.Tensor {
			return s.Temp("teacher."+name, device.Activations, d, rows, cols)
		})
	}
	if t.Model.Streams() { // each layer comes from the host: once, for all groups
		if len(t.Layers)+len(t.Attended) > 0 {
			panic("teacher: nothing is kept of layers that come from the host")
		}
		t.Model.HiddenByLayers(s, all, r.Tokens, group)
		t.hidden = t.kept(s, "teacher.kept", all, r)
		return
	}
	for lo := 0; lo < r.Tokens.Rows; lo += group {
		hi := min(lo+group, r.Tokens.Rows)
		device.Repeat(s, groupShape{t, hi - lo, r.Tokens.SeqLen}, func() {
			part := func(x device.Tensor) device.Tensor { return x.RowRange(lo*r.Tokens.SeqLen, hi*r.Tokens.SeqLen) }
			keep := model.Kept{Outputs: make(map[int]device.Tensor, len(t.Layers)), Maps: make(map[int]device.AttnMap, len(t.Attended))}
			for _, l := range t.Layers {
				keep.Outputs[l] = part(t.streams[l])
			}
			for l, m := range t.maps {
				keep.Maps[l] = device.AttnMap{Q: part(m.Q), K: part(m.K), LSE: part(m.LSE)}
			}
			t.Model.HiddenKeeping(s, part(all), r.Tokens.Slice(lo, hi), keep)
		})
	}
	t.hidden = t.kept(s, "teacher.kept", all, r)
	for _, l := range t.Layers {
		t.streams[l] = t.kept(s, "teacher.stream.kept", t.streams[l], r)
	}
}

// kept returns the rows of all positions that count, in the place of all.
func (t *Resident) kept(s device.Stream, name string, all device.Tensor, r *model.Batch) device.Tensor {
	if r.Keep.IsZero() {
		return all
	}
	kept := s.Temp(name, device.Activations, all.DType, r.N, all.Cols)
	s.Gather(kept, all, r.Keep)
	s.Release(all)
	return kept
}

// Stream returns rows [lo,hi) of the residual stream behind a layer.
func (t *Resident) Stream(layer, lo, hi int) device.Tensor { return t.streams[layer].RowRange(lo, hi) }

// Map returns what the map of a layer of Attended is computed from, over sequences of the step.
func (t *Resident) Map(layer int, of model.Tokens) device.AttnMap {
	return t.Model.MapOf(layer, t.maps[layer], of.At-t.first, of)
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

// HeadRows returns how many columns Logits can compute at most.
func (t *Resident) HeadRows() int { return t.Model.Config.Vocab }

// End releases the hidden states.
func (t *Resident) End(s device.Stream) {
	s.Release(t.hidden)
	for _, l := range t.Layers {
		s.Release(t.streams[l])
	}
	for _, l := range t.Attended {
		s.Release(t.maps[l].Q, t.maps[l].K, t.maps[l].LSE)
	}
	t.hidden, t.streams, t.maps = device.Tensor{}, nil, nil
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

// Final returns the hidden states of all kept positions of the step after the final norm: what Logits multiplies by the head.
func (t *Resident) Final() device.Tensor { return t.hidden }
