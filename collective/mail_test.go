package collective_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"apr/collective"
	"apr/internal/contracttest"
)

// letter is what rank from posts to rank to as its i-th message: none, few, and more bytes than a frame has.
func letter(from, to, i int) []byte {
	return bytes.Repeat([]byte{byte(1 + from), byte(to), byte(i)}, []int{0, 1, 500_000}[i])
}

// Messages arrive whole, at the rank that they are for, in the order of each sender, and beside collectives.
func TestPost(t *testing.T) {
	forAll(t, func(t *testing.T, comms []collective.Comm) {
		ok(t, each(comms, func(c collective.Comm) (err error) {
			defer func() {
				if err != nil {
					c.Abort(err) // the others wait
				}
			}()
			for i := range 3 {
				for to := range c.World() {
					if to == c.Rank() {
						continue
					}
					if err := c.Post(to, letter(c.Rank(), to, i)); err != nil {
						return err
					}
				}
				if err := c.Sum32([]float32{1}); err != nil {
					return err
				}
			}
			next := make([]int, c.World())
			for range 3 * (c.World() - 1) / 2 { // the first half of anyone, the rest of one rank after the other
				by, x, err := c.Take(collective.Anyone)
				if err != nil {
					return err
				}
				if !slices.Equal(x, letter(by, c.Rank(), next[by])) {
					return fmt.Errorf("message %d of rank %d for rank %d is another one", next[by], by, c.Rank())
				}
				next[by]++
			}
			for from := range next {
				for ; from != c.Rank() && next[from] < 3; next[from]++ {
					by, x, err := c.Take(from)
					if err != nil {
						return err
					}
					if by != from || !slices.Equal(x, letter(from, c.Rank(), next[from])) {
						return fmt.Errorf("message %d of rank %d for rank %d is another one, by rank %d", next[from], from,
							c.Rank(), by)
					}
				}
			}
			return c.Barrier()
		}))
	})
}

// The first ranks have collectives of their own, with the tree of as many ranks, while the others do something else.
func TestFirst(t *testing.T) {
	forAll(t, func(t *testing.T, comms []collective.Comm) {
		for n := 1; n <= len(comms); n++ {
			want := sums(n, 1000)
			ok(t, each(comms, func(c collective.Comm) error {
				if c.Rank() < n {
					first := c.First(n)
					x, y := values(c.Rank(), 1000), []byte{byte(c.Rank())}
					if err := errors.Join(first.Sum32(x), first.Broadcast(y), first.Barrier(), first.Close()); err != nil {
						return err
					}
					if first.World() != n || first.Rank() != c.Rank() || !slices.Equal(x, want) || y[0] != 0 {
						return fmt.Errorf("rank %d: the sum of the first %d ranks is not theirs", c.Rank(), n)
					}
				}
				return c.Barrier()
			}))
		}
	})
}

// A rank that is lost is named to those that wait for a message, and to the first ranks' collectives.
func TestLostToThoseWhoWait(t *testing.T) {
	for name, make := range implementations {
		contracttest.Cases(t, 1)
		comms := make(t, 4)
		errs := each(comms, func(c collective.Comm) (err error) {
			switch c.Rank() {
			case 3:
				c.Abort(errors.New("out of memory"))
			case 2:
				_, _, err = c.Take(collective.Anyone)
			case 1:
				_, _, err = c.Take(3)
			case 0:
				err = c.First(2).Barrier()
			}
			return err
		})
		for r, err := range errs[:3] {
			var lost *collective.Lost
			if !errors.As(err, &lost) || lost.Rank != 3 {
				t.Errorf("%s: rank %d: %v, want rank 3 named", name, r, err)
			}
		}
	}
}

// Who waits for a rank that has left is told so.
func TestTakeOfOneWhoLeft(t *testing.T) {
	for name, make := range implementations {
		contracttest.Cases(t, 1)
		comms := make(t, 2)
		errs := each(comms, func(c collective.Comm) error {
			if c.Rank() == 0 {
				return c.Close()
			}
			_, _, err := c.Take(0)
			return err
		})
		var lost *collective.Lost
		if errs[0] != nil || !errors.As(errs[1], &lost) || lost.Rank != 0 {
			t.Errorf("%s: %v, want rank 0 named", name, errs)
		}
	}
}
