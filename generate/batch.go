package generate

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/tensor"
)

// EngineOptions bound what an Engine works on.
type EngineOptions struct {
	Slots     int // sequences at a time
	Capacity  int // tokens of a sequence at most, prompt and answer
	Positions int // tokens of all sequences together that have pages; 0: Slots·Capacity
	Rows      int // of a pass over one token of each sequence: the rest is padding; 0: as many as there are sequences
	Vocab     int // ids that exist
	Queue     int // requests that may wait; 0: any number
}

// passRows is the shape of a pass on a device whose products depend on their number of rows.
const passRows = 64

// PassRows returns what Rows has to be for texts that depend on nothing but their requests. A CPU gives every row of a product
// the same bits in any company.
func PassRows(dev device.Device) int {
	if dev.Info().Kind == "cpu" {
		return 0
	}
	return passRows
}

// Request is a text to continue.
type Request struct {
	Prompt []int32
	Options
	Sample   int  // which of several texts of one prompt and seed
	LogProbs int  // likeliest ids that each token names beside its own; below 0: no log-probabilities
	Score    bool // the prompt's log-probabilities are wanted: of each token behind the first, given those before it
	KeepStop bool // the id that ends the text is its last token, with its log-probability
}

// Token is one id of a text.
type Token struct {
	ID      int32
	LogProb float64       // ln softmax(logits)[ID], whatever the temperature; 0 without Request.LogProbs
	Top     []Alternative // the likeliest, in order
}

// Alternative is an id that might have stood in a place.
type Alternative struct {
	ID      int32
	LogProb float64
}

// ErrBusy is returned by Submit while as many requests wait as may.
var ErrBusy = errors.New("too many requests wait")

// ErrClosed is returned by Submit after Close.
var ErrClosed = errors.New("the engine is closed")

// Engine continues many texts at a time by continuous batching: each has a slot while it is written, one pass computes the next
// token of all, and a slot that becomes empty takes the next request at once.
//
// A text depends on its request, the model and the device kind, and on nothing else: not on its neighbours, its
// slot, the order of arrival or the number of slots. A pass has one shape or gives each row the bits that it has
// alone; its prompt is read in rows of passes or alone, as its length says; and its random numbers are a function
// of seed, prompt, sample and position.
type Engine struct {
	m      *model.Model
	s      device.Stream
	o      EngineOptions
	paged  *model.Paged
	prompt *model.Cache  // of the prompt that is being read
	ids    device.Tensor // I32 [promptChunk or Capacity, 1]
	hidden device.Tensor // [rows, h]
	best   device.Tensor // [2·rows, 2]: of ArgMax, then of DrawNext
	chosen device.Tensor // I32 [rows, 1]
	keys   device.Tensor // I32 [2·rows, 1]
	limits device.Tensor // [rows, 3]
	host   passHost

	slots   []*Sequence // by slot; nil: empty
	reading []*Sequence // in their slots, not all of whose tokens are in pages

	mu      sync.Mutex
	wake    sync.Cond
	waiting []*Sequence
	closed  bool
	failed  error
	done    chan struct{}
	stats   Stats
}

// Stats are an engine's figures.
type Stats struct {
	Active, Waiting            int   // sequences now
	Requests, Finished, Failed int64 // so far
	PromptTokens, Tokens       int64 // read, made
	Passes                     int64 // over a row for each token
}

// Sequence is a text that is being written.
type Sequence struct {
	Tokens <-chan Token // closed at the end; a reader may be late without holding up others

	ctx    context.Context
	r      Request
	tokens chan Token
	key    [sha256.Size]byte
	ids    []int32 // prompt and answer
	slot   int
	read   int  // of ids
	inRows bool // ids are read in rows of passes, else alone
	reads  bool // it is in Engine.reading
	made   int
	start  time.Time
	scores []Token
	result Result
	err    error
}

// NewEngine reserves memory on the model's device and begins to work. The stream is the engine's alone until Close.
func NewEngine(m *model.Model, s device.Stream, o EngineOptions) *Engine {
	e := newEngine(m, s, o)
	go e.run()
	return e
}

// newEngine is NewEngine without the work.
func newEngine(m *model.Model, s device.Stream, o EngineOptions) *Engine {
	o.Capacity = min(o.Capacity, m.Config.MaxPositions)
	if o.Positions == 0 {
		o.Positions = o.Slots * o.Capacity
	}
	dev, rows := m.Device(), o.Rows
	if rows == 0 {
		rows = o.Slots
	}
	e := &Engine{
		m: m, s: s, o: o, slots: make([]*Sequence, o.Slots), done: make(chan struct{}),
		paged:  m.NewPaged(model.PagedSizes{Slots: o.Slots, Rows: rows, Capacity: o.Capacity, Positions: o.Positions}),
		prompt: m.NewCache(o.Capacity),
		ids:    dev.Alloc("generate.ids", device.Batch, tensor.I32, max(promptChunk, o.Capacity), 1),
		hidden: dev.Alloc("generate.hidden", device.Activations, dev.Info().Activations, rows, m.Config.Hidden),
		best:   dev.Alloc("generate.best", device.Logits, tensor.F32, 2*rows, 2),
		keys:   dev.Alloc("generate.keys", device.Batch, tensor.I32, 2*rows, 1),
		limits: dev.Alloc("generate.limits", device.Logits, tensor.F32, rows, device.NextLimits),
		chosen: dev.Alloc("generate.chosen", device.Logits, tensor.I32, rows, 1),
	}
	e.wake.L = &e.mu
	return e
}

// Submit queues a request. Its sequence ends early, by the error of ctx, when ctx does. ErrBusy and ErrClosed refuse it, and a fault
// says what is wrong with it.
func (e *Engine) Submit(ctx context.Context, r Request) (*Sequence, error) {
	r.Vocab = e.o.Vocab
	if r.RepeatPenalty == 0 {
		r.RepeatPenalty = 1
	}
	if err := r.check(e.m, r.Prompt); err != nil {
		return nil, err
	}
	if n := len(r.Prompt) + r.MaxTokens; n > e.o.Capacity {
		return nil, fault.New(fault.Inference, "a prompt of %d tokens and %d more exceed the %d tokens of a slot", len(r.Prompt), r.MaxTokens, e.o.Capacity)
	}
	q := &Sequence{ctx: ctx, r: r, tokens: make(chan Token, r.MaxTokens), ids: slices.Clone(r.Prompt), key: textKey(r), start: time.Now()}
	q.Tokens = q.tokens
	q.result = Result{PromptTokens: len(r.Prompt), FinishReason: "length"}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.failed != nil:
		return nil, e.failed
	case e.closed:
		return nil, ErrClosed
	case e.o.Queue > 0 && len(e.waiting) >= e.o.Queue:
		return nil, ErrBusy
	}
	e.waiting = append(e.waiting, q)
	e.stats.Requests++
	e.wake.Signal()
	return q, nil
}

// Close refuses new requests, waits for those that were accepted, and gives the device's memory back.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	e.wake.Signal()
	e.mu.Unlock()
	<-e.done
}

// Stats returns the figures of now.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	s.Waiting = len(e.waiting)
	return s
}

// Ran says how the operations of the latest pass ran; empty: the device knows one way only.
func (e *Engine) Ran() string { return e.paged.Replaying(e.s) }

// Result waits for the end of the text. Its IDs are those of Tokens.
func (q *Sequence) Result() (Result, error) {
	for range q.tokens {
	}
	return q.result, q.err
}

// Scores returns the log-probabilities of the prompt's tokens behind the first, once Tokens is closed.
func (q *Sequence) Scores() []Token { return q.scores }

// run works until Close.
func (e *Engine) run() {
	defer close(e.done)
	defer e.free()
	for e.admit() {
		e.leave()
		err := e.readOne()
		if err == nil {
			err = e.step()
		}
		if err != nil {
			e.fail(err)
		}
	}
}

// free gives the device's memory back.
func (e *Engine) free() {
	dev := e.m.Device()
	e.paged.Free()
	e.prompt.Free(dev)
	dev.Free(e.ids, e.hidden, e.best, e.chosen, e.keys, e.limits)
}

// admit gives waiting requests empty slots, in the order of arrival, as far as there are pages. With nothing to do it waits; it
// reports false at the end.
func (e *Engine) admit() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.stats.Active == 0 && len(e.waiting) == 0 {
		if e.closed {
			return false
		}
		e.wake.Wait()
	}
	for len(e.waiting) > 0 {
		q := e.waiting[0]
		slot := slices.Index(e.slots, nil)
		need := len(q.r.Prompt) + q.r.MaxTokens
		if slot < 0 || !e.paged.Admits(need) {
			break
		}
		e.waiting[0] = nil
		e.waiting = e.waiting[1:]
		e.stats.Active++
		e.paged.Admit(e.s, slot, need)
		q.slot, e.slots[slot] = slot, q
		e.read(q)
	}
	return true
}

// leave ends the sequences that nobody waits for any more.
func (e *Engine) leave() {
	for _, q := range e.slots {
		if q != nil && q.ctx.Err() != nil {
			e.end(q, q.ctx.Err())
		}
	}
}

// end empties the slot of a sequence.
func (e *Engine) end(q *Sequence, err error) {
	q.result.Total, q.err = time.Since(q.start), err
	q.result.IDs = q.ids[len(q.r.Prompt):]
	e.slots[q.slot] = nil
	e.paged.Leave(q.slot)
	if i := slices.Index(e.reading, q); i >= 0 {
		e.reading = slices.Delete(e.reading, i, i+1)
		if !q.inRows && q.read > 0 {
			e.prompt.Reset()
		}
	}
	e.mu.Lock()
	e.stats.Active--
	if err != nil {
		e.stats.Failed++
	} else {
		e.stats.Finished++
	}
	e.mu.Unlock()
	close(q.tokens)
}

// fail ends all sequences, and the engine: the device is in doubt.
func (e *Engine) fail(err error) {
	for _, q := range e.slots {
		if q != nil {
			e.end(q, err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failed, e.closed = err, true
	for _, q := range e.waiting {
		q.err = err
		close(q.tokens)
	}
	e.waiting = nil
}

// count changes the figures.
func (e *Engine) count(f func(*Stats)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f(&e.stats)
}

// deliver appends a token to its sequence, or ends it.
func (e *Engine) deliver(q *Sequence, t Token, err error) {
	if err != nil {
		e.end(q, err)
		return
	}
	if q.made == 0 {
		q.result.FirstToken = time.Since(q.start)
	}
	q.made++
	if slices.Contains(q.r.Stop, t.ID) {
		q.result.FinishReason = "stop"
		if q.r.KeepStop {
			q.ids = append(q.ids, t.ID)
			q.tokens <- t
		}
		e.end(q, nil)
		return
	}
	e.count(func(s *Stats) { s.Tokens++ })
	q.ids = append(q.ids, t.ID)
	q.tokens <- t // has room for all
	if q.made == q.r.MaxTokens {
		e.end(q, nil)
	}
}

// textKey is the key of a text's random numbers: SHA-256 of "apr text", seed, sample and the prompt's ids.
func textKey(r Request) [sha256.Size]byte {
	b := binary.LittleEndian.AppendUint64([]byte("apr text"), r.Seed)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Sample))
	for _, id := range r.Prompt {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	return sha256.Sum256(b)
}

// uniform returns the number in [0,1) of a position of the text: the first 53 bits of SHA-256 of key and position.
func (q *Sequence) uniform(position int) float64 {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64(q.key[:], uint64(position)))
	return math.Ldexp(float64(binary.LittleEndian.Uint64(sum[:])>>11), -53)
}
