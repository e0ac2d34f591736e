package collective_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"apr/collective"
	"apr/internal/contracttest"
	"apr/internal/fault"
)

// flipper is a connection that turns one bit over.
type flipper struct {
	net.Conn
	sent, received atomic.Pointer[flip]
}

// flip is a bit of what passes from now on.
type flip struct{ at, bit int }

// over turns the bit over in b, if it is there.
func (f *flip) over(b []byte) {
	if f == nil {
		return
	}
	if f.at >= 0 && f.at < len(b) {
		b[f.at] ^= 1 << f.bit
	}
	f.at -= len(b)
}

func (c *flipper) Write(b []byte) (int, error) {
	b = bytes.Clone(b)
	c.sent.Load().over(b)
	return c.Conn.Write(b)
}

func (c *flipper) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received.Load().over(b[:n])
	return n, err
}

// withFlipper makes a group over sockets, of which rank 1 has a flipper.
func withFlipper(t *testing.T, world int) ([]collective.Comm, *flipper) {
	t.Helper()
	l, dial := listen(t)
	comms, errs := make([]collective.Comm, world), make([]error, world)
	var f *flipper
	var wg sync.WaitGroup
	for r := range comms {
		wg.Go(func() {
			if r == 0 {
				comms[r], errs[r] = collective.Serve(context.Background(), l, hello(r, world), options(10*time.Second))
				return
			}
			comms[r], errs[r] = collective.Join(context.Background(), func(ctx context.Context) (net.Conn, error) {
				c, err := dial(ctx)
				if r == 1 && err == nil {
					f = &flipper{Conn: c}
					c = f
				}
				return c, err
			}, hello(r, world), options(10*time.Second))
		})
	}
	wg.Wait()
	ok(t, errs)
	return comms, f
}

// A bit that turns over between two ranks, in any field of a frame or in its payload, ends the group: no rank gets a
// sum that is not the tree's, or a message, and all name the rank whose frame was damaged.
func TestDamagedFrames(t *testing.T) {
	const world, n, head = 3, 600_000, 32 // 3 frames of the sum
	const frame = head + 1<<20
	places := []int{head, head + 4444, frame - 1, frame, frame + 4, frame + head + 77, 2*frame + 5, 2*frame + head + 99}
	for at := range head {
		places = append(places, at)
	}
	want, given := sums(world, n), make([][]float32, world)
	for r := range given {
		given[r] = values(r, n)
	}
	for _, way := range []string{"sent", "received"} {
		for i, at := range places {
			t.Run(fmt.Sprintf("%s/%d", way, at), func(t *testing.T) {
				contracttest.Cases(t, 1)
				comms, f := withFlipper(t, world)
				ok(t, each(comms, collective.Comm.Barrier))
				bad, wrong := 1, &f.sent
				if way == "received" {
					bad, wrong = 0, &f.received
				}
				wrong.Store(&flip{at, i % 8})
				for r, err := range each(comms, func(c collective.Comm) error {
					x := slices.Clone(given[c.Rank()])
					if err := c.Sum32(x); err != nil {
						return err
					}
					if !slices.Equal(x, want) {
						err := errors.New("the sum is not the tree's")
						c.Abort(err) // others may wait
						return err
					}
					return c.Barrier() // those to which nothing damaged came have the sum, and learn of it now
				}) {
					var lost *collective.Lost
					if !errors.As(err, &lost) || lost.Rank != bad || lost.How != collective.Damaged {
						t.Errorf("rank %d: %v, want that a frame of rank %d was damaged", r, err, bad)
					}
				}
			})
		}
	}
	t.Run("message", func(t *testing.T) {
		contracttest.Cases(t, 1)
		comms, f := withFlipper(t, world)
		ok(t, each(comms, collective.Comm.Barrier))
		f.sent.Store(&flip{head + 1, 3})
		for r, err := range each(comms, func(c collective.Comm) error {
			if c.Rank() == 1 {
				_ = c.Post(2, []byte("hello")) // it may have left before the damage is known
			}
			_, x, err := c.Take(collective.Anyone)
			if err == nil {
				err = fmt.Errorf("took %q", x)
				c.Abort(err) // others wait
			}
			return err
		}) {
			if err == nil || !strings.Contains(err.Error(), "rank 1 of 3 sent a frame that arrived damaged: rank 0 finds") {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	})
}

// A program that speaks another version of the protocol is told apart from strangers, on both sides.
func TestOtherVersion(t *testing.T) {
	o := options(time.Second)
	o.Wait = 500 * time.Millisecond
	t.Run("rank", func(t *testing.T) {
		l, dial := listen(t)
		c, err := dial(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "APRRANK\x010123456789abcdef"); err != nil {
			t.Fatal(err)
		}
		_, err = collective.Serve(context.Background(), l, hello(0, 2), o)
		var f *fault.Error
		if !errors.As(err, &f) || !strings.Contains(f.Hint, "a rank is another version of the program: it speaks version 1") {
			t.Errorf("rank 0: %v", err)
		}
		answer := make([]byte, 8+16+32) // as much as version 1 reads before it judges
		if _, err := io.ReadFull(c, answer); err != nil || !bytes.HasPrefix(answer, []byte("APRRANK\x02")) {
			t.Errorf("rank 0 answers %q, %v", answer, err)
		}
	})
	for _, tt := range []struct{ name, answer, want string }{
		{"rank 0", "APRRANK\x03" + strings.Repeat("x", 48), "rank 0 is another version of the program: it speaks version 3"},
		{"rank 0 of version 1", "", "as an older version of the program does"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, dial := listen(t)
			go func() {
				for c, err := l.Accept(); err == nil; c, err = l.Accept() {
					_, _ = io.CopyN(io.Discard, c, 8+16)
					_, _ = io.WriteString(c, tt.answer)
					_ = c.Close()
				}
			}()
			if _, err := collective.Join(context.Background(), dial, hello(1, 2), o); err == nil ||
				!slices.ContainsFunc([]error{err, errors.Unwrap(err)}, func(e error) bool {
					return e != nil && strings.Contains(e.Error(), tt.want)
				}) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
