package collective_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"apr/collective"
	"apr/internal/contracttest"
	"apr/internal/fault"
)

func init() {
	implementations["sockets"] = func(t *testing.T, world int) []collective.Comm {
		return processes(t, world,
			options(10*time.Second))
	}
}

func options(silence time.Duration) collective.Options {
	return collective.Options{Secret: []byte("a secret"), Wait: 10 * time.Second, Silence: silence}
}

func hello(rank, world int) collective.Hello {
	return collective.Hello{Rank: rank, World: world, Generation: 3, Who: fmt.Sprintf("host%d", rank),
		Fields: []collective.Field{{Name: "program", Value: "apr 1"}, {Name: "data", Value: "abc"}}}
}

func listen(t *testing.T) (net.Listener, func(context.Context) (net.Conn, error)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, dialer(l.Addr().String())
}

func dialer(addr string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", addr) }
}

// gather makes a group over sockets of those that say hello; the first one is rank 0.
func gather(t *testing.T, hellos []collective.Hello, opts []collective.Options) ([]collective.Comm, []error) {
	t.Helper()
	l, dial := listen(t)
	comms, errs := make([]collective.Comm, len(hellos)), make([]error, len(hellos))
	var wg sync.WaitGroup
	for r := range hellos {
		wg.Go(func() {
			if r == 0 {
				comms[r], errs[r] = collective.Serve(context.Background(), l, hellos[r], opts[r])
			} else {
				comms[r], errs[r] = collective.Join(context.Background(), dial, hellos[r], opts[r])
			}
		})
	}
	wg.Wait()
	return comms, errs
}

// processes are ranks joined by sockets, in this process.
func processes(t *testing.T, world int, o collective.Options) []collective.Comm {
	t.Helper()
	hellos, opts := make([]collective.Hello, world), make([]collective.Options, world)
	for r := range hellos {
		hellos[r], opts[r] = hello(r, world), o
	}
	comms, errs := gather(t, hellos, opts)
	ok(t, errs)
	return comms
}

// A rank of another run, program, data, world or generation is refused, with the field's name on both sides; the
// secret is never shown.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(h *collective.Hello, o *collective.Options)
		want   string // in both errors
		waits  bool   // rank 0 waits for a better one
	}{
		{"data", func(h *collective.Hello, _ *collective.Options) { h.Fields[1].Value = "xyz" },
			"another data: xyz, that of rank 0 is abc", false},
		{"program", func(h *collective.Hello, _ *collective.Options) { h.Fields[0].Value = "apr 2" }, "another program",
			false},
		{"no data", func(h *collective.Hello, _ *collective.Options) { h.Fields = h.Fields[:1] }, "does not say its data",
			false},
		{"more fields", func(h *collective.Hello, _ *collective.Options) {
			h.Fields = append(h.Fields, collective.Field{Name: "x", Value: "y"})
		}, "says 3 things", false},
		{"world", func(h *collective.Hello, _ *collective.Options) { h.World = 4 }, "a world of 4 ranks", false},
		{"rank", func(h *collective.Hello, _ *collective.Options) { h.Rank = 7 }, "rank 7 is outside 1 to 2", false},
		{"twice", func(h *collective.Hello, _ *collective.Options) { h.Rank = 1 }, "there is one already", false},
		{"older generation", func(h *collective.Hello, _ *collective.Options) { h.Generation = 2 }, "generation 2", true},
		{"secret", func(_ *collective.Hello, o *collective.Options) { o.Secret = []byte("another") }, "secret", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			hellos, opts := []collective.Hello{hello(0, 3), hello(1, 3), hello(2, 3)},
				[]collective.Options{options(time.Second), options(time.Second), options(time.Second)}
			opts[0].Wait = 1500 * time.Millisecond
			c.change(&hellos[2], &opts[2])
			_, errs := gather(t, hellos, opts)
			kind := fault.Invalid
			if c.waits {
				kind = fault.Network
			}
			if fault.KindOf(errs[0]) != kind || (c.waits && !strings.Contains(errs[0].Error(),
				"rank 2 of 3 did not arrive within 1.5s")) ||
				!c.waits && !strings.Contains(errs[0].Error(), c.want) {
				t.Errorf("rank 0: %v", errs[0])
			}
			if c.name == "twice" {
				return // either of the two may have been first
			}
			if fault.KindOf(errs[2]) != fault.Invalid || !strings.Contains(errs[2].Error(), c.want) ||
				strings.Contains(errs[2].Error(), "another ") && strings.Contains(errs[2].Error(), "a secret") {
				t.Errorf("rank 2: %v", errs[2])
			}
		})
	}
}

// Strangers do no harm: what is no rank is turned away, also one that sends nothing or endless lengths, and the group
// forms.
func TestStrangers(t *testing.T) {
	l, dial := listen(t)
	for _, text := range []string{"GET / HTTP/1.1\r\n\r\n", "", "APRRANK\x02",
		"APRRANK\x020123456789abcdef\xff\xff\xff\xff"} {
		c, err := dial(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := collective.Join(context.Background(), dial, hello(1, 2), options(time.Second)); err != nil {
			t.Error(err)
		}
	})
	if _, err := collective.Serve(context.Background(), l, hello(0, 2), options(time.Second)); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// Ranks that never come are named, and how long was waited; so is a rank 0 that never listens.
func TestMissing(t *testing.T) {
	o := options(time.Second)
	o.Wait = 300 * time.Millisecond
	hellos := []collective.Hello{hello(0, 5), hello(2, 5)}
	_, errs := gather(t, hellos, []collective.Options{o, o})
	if fault.KindOf(errs[0]) != fault.Network || !strings.Contains(errs[0].Error(),
		"ranks 1, 3, 4 of 5 did not arrive within 300ms") {
		t.Errorf("rank 0: %v", errs[0])
	}
	l, dial := listen(t)
	l.Close()
	if _, err := collective.Join(context.Background(), dial, hello(1, 2), o); fault.KindOf(err) != fault.Network ||
		!strings.Contains(err.Error(), "rank 1 did not reach rank 0 within") {
		t.Errorf("rank 1: %v", err)
	}
}

// A connection that is cut names the rank at its end, on every rank.
func TestCutConnection(t *testing.T) {
	for _, cut := range []int{1, 2, 3} {
		l, dial := listen(t)
		comms := make([]collective.Comm, 4)
		var conn net.Conn
		var wg sync.WaitGroup
		for r := range comms {
			wg.Go(func() {
				var err error
				if r == 0 {
					comms[0], err = collective.Serve(context.Background(), l, hello(0, 4), options(time.Second))
				} else {
					comms[r], err = collective.Join(context.Background(), func(ctx context.Context) (net.Conn, error) {
						c, err := dial(ctx)
						if r == cut {
							conn = c
						}
						return c, err
					}, hello(r, 4), options(time.Second))
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		ok(t, each(comms, func(c collective.Comm) error { return c.Barrier() }))
		conn.Close()
		for r, err := range each(comms, func(c collective.Comm) error { return c.Sum32(make([]float32, 100)) }) {
			want := cut
			if r == cut {
				want = 0 // all it knows is that it does not reach rank 0
			}
			var lost *collective.Lost
			if !errors.As(err, &lost) || lost.Rank != want || lost.How != collective.Gone {
				t.Errorf("rank %d: %v, want the loss of rank %d", r, err, want)
			}
		}
	}
}
