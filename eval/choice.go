package eval

import (
	"context"

	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
)

// Continuation is a sequence of ids of which those from From on are scored; From is at least 1.
type Continuation struct {
	IDs  []int32
	From int
}

// LogLikelihoods returns Σ ln q(id) over the scored ids of each continuation, in nats. Rows are padded at the end, which
// causal attention does not see.
func LogLikelihoods(ctx context.Context, s device.Stream, m *model.Model, rows []Continuation, vocab int) ([]float64, error) {
	longest := 0
	for _, r := range rows {
		if r.From < 1 || r.From >= len(r.IDs) {
			return nil, fault.New(fault.Invalid, "a continuation of %d ids scored from id %d on", len(r.IDs), r.From)
		}
		longest = max(longest, len(r.IDs)-1)
	}
	if longest == 0 {
		return nil, fault.New(fault.Invalid, "nothing to evaluate: no continuation")
	}
	if longest > m.Config.MaxPositions {
		return nil, fault.New(fault.Inference, "a prompt and its continuation have %d tokens, the model %d positions", longest, m.Config.MaxPositions)
	}
	o := Options{Vocab: vocab}
	o.defaults(longest)
	p := &positioner{comparison: comparison{s: s, o: o}, m: m}
	p.batch = model.NewBatch(m.Device(), o.Rows, longest)
	defer p.batch.Free(m.Device())
	out := make([]float64, len(rows))
	for lo := 0; lo < len(rows); lo += o.Rows {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		group := rows[lo:min(lo+o.Rows, len(rows))]
		b := padded(group)
		p.out = p.out[:0]
		if err := p.add(b, 0, b.SeqLen); err != nil {
			return nil, err
		}
		for _, x := range p.out {
			out[lo+(x.At-1)/b.SeqLen] -= x.Own.CE
		}
	}
	return out, nil
}

// padded makes a batch of rows of unlike length, with a mask over the ids to score.
func padded(rows []Continuation) corpus.Batch {
	b := corpus.Batch{Rows: len(rows)}
	for _, r := range rows {
		b.SeqLen = max(b.SeqLen, len(r.IDs)-1)
	}
	n := b.Rows * b.SeqLen
	b.Tokens, b.Targets, b.Mask = make([]int32, n), make([]int32, n), make([]uint8, n)
	for i, r := range rows {
		at := i * b.SeqLen
		copy(b.Tokens[at:], r.IDs[:len(r.IDs)-1])
		copy(b.Targets[at:], r.IDs[1:])
		for j := r.From - 1; j < len(r.IDs)-1; j++ {
			b.Mask[at+j] = 1
		}
	}
	return b
}

// Best returns the index of the largest value, or −1 if several are largest: a tie has no best.
func Best(values []float64) int {
	best, ties := 0, 0
	for i, v := range values {
		switch {
		case i == 0 || v > values[best]:
			best, ties = i, 0
		case v == values[best]:
			ties++
		}
	}
	if ties > 0 || len(values) == 0 {
		return -1
	}
	return best
}
