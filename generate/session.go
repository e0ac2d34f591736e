package generate

import (
	"context"

	"apr/device"
	"apr/internal/fault"
	"apr/model"
)

// Session continues one growing sequence turn by turn, as in a conversation: keys and values of the positions that a turn
// shares with the one before are not computed again.
type Session struct {
	g         *generator
	positions int
}

// NewSession reserves a cache of so many positions, at most those of the model. A conversation draws from one generator of
// random numbers, seeded once.
func NewSession(m *model.Model, s device.Stream, o Options, positions int) *Session {
	return &Session{g: newGenerator(m, s, positions, o), positions: positions}
}

// Free gives the device's memory back.
func (s *Session) Free() { s.g.free() }

// Continue is Generate for a prompt of which a beginning may be cached: the longest prefix that it shares with the sequence of
// the last turn, its answer included. The answer has at most Options.MaxTokens ids, and no more than there is room for. An end
// by an error of emit, or by ctx, leaves a session that can continue.
func (s *Session) Continue(ctx context.Context, prompt []int32, emit func(int32) error) (Result, error) {
	g := s.g
	if len(prompt) >= s.positions {
		return Result{}, fault.New(fault.Inference, "a prompt of %d tokens leaves no room in a context of %d", len(prompt), s.positions)
	}
	o := g.o
	o.MaxTokens = min(o.MaxTokens, s.positions-len(prompt))
	if err := o.check(g.m, prompt); err != nil {
		return Result{}, err
	}
	return g.turn(ctx, prompt, o.MaxTokens, emit)
}

// keep leaves of the cached positions those that prompt begins with, and returns how many. The last position of a prompt is
// always computed: the answer follows from its hidden state. A cache that cannot forget the others begins anew.
func (g *generator) keep(prompt []int32) int {
	n := 0
	for n < len(g.seen) && n < len(prompt)-1 && g.seen[n] == prompt[n] {
		n++
	}
	if drop := len(g.seen) - n; g.cache.Forgets(drop) {
		g.cache.Forget(drop)
	} else {
		g.cache.Reset()
		n = 0
	}
	g.seen = g.seen[:n]
	return n
}

// settle ends what the device began early: the position that it computed of the last id stays cached.
func (g *generator) settle() {
	if g.early == nil || g.early.wait == nil {
		return
	}
	g.early.drop()
	g.seen = append(g.seen, g.early.id)
}
