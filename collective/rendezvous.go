package collective

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"apr/internal/fault"
)

// Options are the times and the secret of a group of processes.
type Options struct {
	Secret  []byte
	Wait    time.Duration // for ranks to arrive
	Silence time.Duration // without a sign of life after which a rank is lost
}

// Serve is rank 0: it waits on l for all others, closes l, and returns the group. Strangers, ranks of other runs and
// those of an older generation are turned away; a rank of this run that differs in a field of Hello ends the run on
// both sides, with the field's name. Ranks that do not come are named.
func Serve(ctx context.Context, l net.Listener, h Hello, o Options) (Comm, error) {
	defer l.Close()
	if h.World == 1 {
		return Local(1)[0], nil
	}
	ctx, cancel := context.WithTimeout(ctx, o.Wait)
	defer cancel()
	door := &door{hello: h, options: o, conns: map[int]net.Conn{}, held: map[int]bool{}}
	go func() { <-ctx.Done(); l.Close() }() // ends Accept
	began := time.Now()
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		go door.open(c, cancel)
	}
	return door.result(time.Since(began))
}

// door is where ranks come in.
type door struct {
	hello   Hello
	options Options

	mu     sync.Mutex
	held   map[int]bool     // ranks that are being answered, or in
	conns  map[int]net.Conn // ranks that are in
	turned []string         // who was turned away
	fatal  error
	closed bool
}

// open greets one that has come.
func (d *door) open(c net.Conn, complete func()) {
	_ = c.SetDeadline(time.Now().Add(patience))
	var reserved bool
	h, err := welcome(c, d.options.Secret, func(h Hello) *refusal {
		d.mu.Lock()
		defer d.mu.Unlock()
		if why := h.against(d.hello); why != "" {
			return &refusal{fmt.Sprintf("rank %d (%s) is refused: %s", h.Rank, h.Who, why), h.Generation == d.hello.Generation}
		}
		if d.held[h.Rank] || d.closed {
			return &refusal{fmt.Sprintf("rank %d (%s) is refused: there is one already", h.Rank, h.Who), true}
		}
		d.held[h.Rank], reserved = true, true
		return nil
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		c.Close()
		if reserved {
			delete(d.held, h.Rank)
		}
		var r *refusal
		if errors.As(err, &r) && r.fatal && d.fatal == nil {
			d.fatal = fault.New(fault.Invalid, "%s",
				r.text).WithHint("all ranks need the same program, configuration and data").WithID("E-RANKS-010")
			complete()
		}
		d.turned = append(d.turned, fmt.Sprintf("%v: %v", c.RemoteAddr(), err))
		return
	}
	_ = c.SetDeadline(time.Time{})
	d.conns[h.Rank] = c
	if len(d.conns) == d.hello.World-1 {
		complete()
	}
}

// result is the group, or why there is none.
func (d *door) result(took time.Duration) (Comm, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.fatal == nil && len(d.conns) == d.hello.World-1 {
		return newSockets(0, d.hello.World, d.options.Silence, d.conns), nil
	}
	for _, c := range d.conns {
		c.Close()
	}
	if d.fatal != nil {
		return nil, d.fatal
	}
	var missing []string
	for r := 1; r < d.hello.World; r++ {
		if d.conns[r] == nil {
			missing = append(missing, fmt.Sprint(r))
		}
	}
	err := fault.New(fault.Network, "%s of %d did not arrive within %v", ranks(missing), d.hello.World,
		took.Round(time.Second/10)).WithID("E-RANKS-011")
	if len(d.turned) > 0 {
		slices.Sort(d.turned)
		return nil, err.WithHint("turned away: %s", strings.Join(slices.Compact(d.turned), "; "))
	}
	return nil, err.WithHint("look at the output of those ranks; --rendezvous-timeout allows more time")
}

// ranks says which ranks, in words.
func ranks(all []string) string {
	if len(all) == 1 {
		return "rank " + all[0]
	}
	return "ranks " + strings.Join(all, ", ")
}

// retry is the time between two attempts to reach rank 0.
const retry = 100 * time.Millisecond

// Join is a rank above 0: it reaches rank 0 with dial, again and again until it answers, and returns the group. What
// rank 0 refuses is an error that names the field.
func Join(ctx context.Context, dial func(context.Context) (net.Conn, error), h Hello, o Options) (Comm, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Wait)
	defer cancel()
	began := time.Now()
	for {
		c, err := dial(ctx)
		if err == nil {
			_ = c.SetDeadline(time.Now().Add(patience))
			if err = greet(c, h, o.Secret); err == nil {
				_ = c.SetDeadline(time.Time{})
				return newSockets(h.Rank, h.World, o.Silence, map[int]net.Conn{0: c}), nil
			}
			c.Close()
			var r *refusal
			if errors.As(err, &r) {
				return nil, fault.New(fault.Invalid, "%s",
					r.text).WithHint("all ranks need the same program, configuration and data").WithID("E-RANKS-010")
			}
		}
		select {
		case <-ctx.Done():
			return nil, fault.New(fault.Network, "rank %d did not reach rank 0 within %v", h.Rank,
				time.Since(began).Round(time.Second/10)).Because(err).
				WithHint("rank 0 listens where --rendezvous says; --rendezvous-timeout allows more time").WithID("E-RANKS-012")
		case <-time.After(retry):
		}
	}
}
