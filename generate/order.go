package generate

import (
	"context"
	"errors"
)

// ErrEnough ends InOrder without an error.
var ErrEnough = errors.New("enough texts")

// InOrder submits n requests, a few more than there are slots at a time, and hands each finished text to done in their order, whatever
// the order in which they end. An error of done ends it, ErrEnough as success; texts under way are dropped.
func (e *Engine) InOrder(ctx context.Context, n int, request func(i int) Request, done func(i int, q *Sequence, r Result) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var under []*Sequence
	next := 0
	for i := range n {
		for ; next < n && next < i+4*e.o.Slots; next++ {
			q, err := e.Submit(ctx, request(next))
			if err != nil {
				return err
			}
			under = append(under, q)
		}
		q := under[0]
		under = under[1:]
		r, err := q.Result()
		if err == nil {
			err = done(i, q, r)
		}
		if errors.Is(err, ErrEnough) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}
