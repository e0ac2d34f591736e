package generate

import (
	"context"
	"slices"

	"apr/device"
	"apr/model"
	"apr/tensor"
)

// Prompts of up to rowPrompt tokens are read in the rows that a pass has left, so that they cost no pass of their
// own while others write. From there on one pass over the prompt alone costs less than as many rows.
const rowPrompt = 2 * passRows

// patience is in how many passes, as many rows as they have left, the first prompt must be read; else one more
// pass is made.
const patience = 16

// read lets a sequence in a slot be read from its first token on.
func (e *Engine) read(q *Sequence) {
	n := len(q.ids)
	q.read, q.reads = 0, true
	q.inRows = e.o.Rows > 0 && e.o.Rows <= model.PageRows && n <= rowPrompt && e.paged.TakesPrompt(n)
	e.reading = append(e.reading, q)
}

// asks reports whether there is something to do for a sequence before it is read, or instead.
func (q *Sequence) asks() bool { return q.r.MaxTokens == 0 || q.r.Score && q.scores == nil }

// readOne scores a prompt, or reads a chunk of the first sequence that is read alone. Behind the last chunk its
// tokens are in pages, and the next one is chosen.
func (e *Engine) readOne() error {
	i := slices.IndexFunc(e.reading, func(q *Sequence) bool { return !q.inRows || q.asks() })
	if i < 0 {
		return nil
	}
	q := e.reading[i]
	if q.read == 0 && q.r.Score && q.scores == nil {
		if err := e.score(q); err != nil {
			return err
		}
	}
	if q.r.MaxTokens == 0 {
		e.end(q, nil)
		return nil
	}
	if q.inRows {
		return nil
	}
	chunk := q.ids[q.read:min(q.read+promptChunk, len(q.ids))]
	ids, hidden := e.ids.RowRange(0, len(chunk)), e.hidden.RowRange(0, 1)
	e.s.UploadInts(ids, chunk)
	e.m.Extend(e.s, hidden, e.prompt, ids)
	if q.read += len(chunk); q.read < len(q.ids) {
		_, err := e.s.Wait(context.Background())
		return err
	}
	e.paged.Load(e.s, q.slot, e.prompt)
	e.prompt.Reset()
	e.reading, q.reads = slices.Delete(e.reading, i, i+1), false
	e.count(func(s *Stats) { s.PromptTokens += int64(len(q.ids)) })
	return e.choose([]row{{q: q, chooses: true}}, hidden)
}

// row is one of a pass.
type row struct {
	q       *Sequence
	id      int32
	chooses bool // the token that follows is chosen
}

// passHost is what the host fills for each pass, again and again.
type passHost struct {
	rows   []row
	ids    []int32
	slots  []int
	ways   []way
	keys   []int32
	limits []float32 // as they were uploaded last
	next   []float32
	told   []float32
	tokens []Token
	errs   []error
}

// resized returns s with n elements, all zero.
func resized[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}

// step makes the next token of every sequence that has been read. Rows that are left read prompts.
func (e *Engine) step() error {
	rows := e.host.rows[:0]
	for _, q := range e.slots {
		switch {
		case q == nil || q.reads:
		case e.m.Recomputes(len(q.ids)-1, len(q.ids)) > 0: // other frequencies from here on
			e.read(q)
		default:
			rows = append(rows, row{q, q.ids[len(q.ids)-1], true})
		}
	}
	most := e.o.Rows
	if most == 0 {
		most = len(rows)
	} else {
		rows = e.prompts(rows)
	}
	e.host.rows = rows
	for len(rows) > 0 {
		n := min(most, len(rows))
		if err := e.pass(rows[:n], most); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// prompts fills the rows that passes have left with tokens of prompts, in the order of arrival.
func (e *Engine) prompts(rows []row) []row {
	most, first := e.o.Rows, true
	left := (most - len(rows)%most) % most
	e.reading = slices.DeleteFunc(e.reading, func(q *Sequence) bool {
		if !q.inRows || q.asks() {
			return false
		}
		n := len(q.ids) - q.read
		if first && n > patience*left {
			left += most
		}
		first = false
		for range min(n, left) {
			q.read++
			left--
			rows = append(rows, row{q, q.ids[q.read-1], q.read == len(q.ids)})
		}
		if q.read < len(q.ids) {
			return false
		}
		q.reads = false
		e.count(func(s *Stats) { s.PromptTokens += int64(len(q.ids)) })
		return true
	})
	return rows
}

// pass feeds a token for each row, padded to n rows, and chooses those that follow.
func (e *Engine) pass(rows []row, n int) error {
	h := &e.host
	h.ids, h.slots = resized(h.ids, n), h.slots[:0]
	for i, r := range rows {
		h.ids[i], h.slots = r.id, append(h.slots, r.q.slot)
	}
	hidden := e.hidden.RowRange(0, n)
	z := e.s.Temp("logits", device.Logits, tensor.F32, n, e.o.Vocab)
	defer e.s.Release(z)
	draws := e.prepare(rows, n, e.draws())
	behind := model.Behind{Tensors: []device.Tensor{z}, Numbers: []int{0}, Run: func() {
		e.m.Logits(e.s, z, hidden)
		e.find(z, draws)
	}}
	if draws {
		behind.Numbers[0] = 1
	}
	e.m.ExtendEach(e.s, hidden, e.paged, h.ids, h.slots, behind)
	e.count(func(s *Stats) { s.Passes++ })
	return e.take(rows, z, draws)
}
