package trial

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Clock ends a table in time: nothing begins that would likely end too late.
type Clock struct {
	end     time.Time // zero: there is no limit
	mu      sync.Mutex
	longest time.Duration
}

// NewClock returns a clock that ends after limit, and a context that ends with it; 0 is no limit.
func NewClock(ctx context.Context, limit time.Duration) (*Clock, context.Context, context.CancelFunc) {
	if limit <= 0 {
		ctx, stop := context.WithCancel(ctx)
		return &Clock{}, ctx, stop
	}
	c := &Clock{end: time.Now().Add(limit)}
	ctx, stop := context.WithDeadline(ctx, c.end)
	return c, ctx, stop
}

// enough reports whether another item fits, if it takes as long as the longest one so far.
func (c *Clock) enough() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end.IsZero() || time.Now().Add(c.longest).Before(c.end)
}

func (c *Clock) took(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.longest = max(c.longest, d)
}

// Each calls f for items, n at a time and in their order. It returns the first error, after which nothing begins,
// and how many items the clock left out.
func Each[T any](ctx context.Context, c *Clock, n int, items []T, f func(context.Context, T) error) (left int, err error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, n))
	var mu sync.Mutex
	for _, item := range items {
		g.Go(func() error {
			if ctx.Err() != nil || !c.enough() {
				mu.Lock()
				left++
				mu.Unlock()
				return nil
			}
			start := time.Now()
			defer func() { c.took(time.Since(start)) }()
			return f(ctx, item)
		})
	}
	return left, g.Wait()
}
