package collective_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"apr/collective"
	"apr/internal/contracttest"
)

// implementations are the communicators under test: each makes a group of world ranks.
var implementations = map[string]func(t *testing.T, world int) []collective.Comm{
	"local": func(t *testing.T, world int) []collective.Comm { return collective.Local(world) },
}

// worlds are the sizes tried; 3 and 5 are no powers of two.
var worlds = []int{1, 2, 3, 4, 5, 8}

// lengths of vectors: none, fewer than ranks, not divisible, and more than a chunk on the wire.
var lengths = []int{0, 1, 3, 7, 1000, 300_001}

// each runs f on every rank and returns the errors.
func each(comms []collective.Comm, f func(c collective.Comm) error) []error {
	errs := make([]error, len(comms))
	var wg sync.WaitGroup
	for r, c := range comms {
		wg.Go(func() { errs[r] = f(c) })
	}
	wg.Wait()
	return errs
}

// forAll runs f for every implementation and world.
func forAll(t *testing.T, f func(t *testing.T, comms []collective.Comm)) {
	for name, make := range implementations {
		for _, world := range worlds {
			t.Run(fmt.Sprintf("%s/%d", name, world), func(t *testing.T) {
				contracttest.Cases(t, 1)
				comms := make(t, world)
				for r, c := range comms {
					if c.Rank() != r || c.World() != world {
						t.Fatalf("rank %d of %d says it is rank %d of %d", r, world, c.Rank(), c.World())
					}
				}
				f(t, comms)
				for _, c := range comms {
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// ok fails on the first error.
func ok(t *testing.T, errs []error) {
	t.Helper()
	for r, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
}

// values of a rank: of very different sizes, so that another order of the sum has other bits.
func values(rank, n int) []float32 {
	rng, x := rand.New(rand.NewPCG(uint64(rank), uint64(n))), make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * math.Pow(10, float64(rng.IntN(6))))
	}
	return x
}

// sums adds what the ranks have as a balanced tree, by recursion: the reference of the order.
func sums(world, n int) []float32 {
	var add func(lo, hi int) []float32
	add = func(lo, hi int) []float32 {
		if hi-lo == 1 {
			return values(lo, n)
		}
		half := 1
		for half*2 < hi-lo {
			half *= 2
		}
		a, b := add(lo, lo+half), add(lo+half, hi)
		for i := range a {
			a[i] += b[i]
		}
		return a
	}
	return add(0, world)
}

// Every rank gets the sum, with the bits of the tree.
func TestSum(t *testing.T) {
	forAll(t, func(t *testing.T, comms []collective.Comm) {
		for _, n := range lengths {
			want := sums(len(comms), n)
			ok(t, each(comms, func(c collective.Comm) error {
				x, y := values(c.Rank(), n), make([]float64, n)
				for i := range y {
					y[i] = float64(c.Rank() + i)
				}
				if err := errors.Join(c.Sum32(x), c.Sum64(y)); err != nil {
					return err
				}
				if !slices.Equal(x, want) {
					return fmt.Errorf("%d elements: the sum is not the tree's", n)
				}
				for i, v := range y {
					if w := len(comms); v != float64(w*(w-1)/2+w*i) {
						return fmt.Errorf("element %d of %d: %v", i, n, v)
					}
				}
				return nil
			}))
		}
	})
}

// A reduce-scatter and an all-gather make a sum, with the same bits.
func TestReduceScatterAllGather(t *testing.T) {
	forAll(t, func(t *testing.T, comms []collective.Comm) {
		for _, n := range lengths {
			want := sums(len(comms), n)
			ok(t, each(comms, func(c collective.Comm) error {
				x := values(c.Rank(), n)
				if err := c.ReduceScatter(x); err != nil {
					return err
				}
				lo, hi := collective.Shard(n, c.Rank(), c.World())
				if !slices.Equal(x[lo:hi], want[lo:hi]) {
					return fmt.Errorf("%d elements: the shard [%d,%d) is not the sum's", n, lo, hi)
				}
				for i := range x {
					if i < lo || i >= hi {
						x[i] = float32(math.NaN()) // whatever others had is not looked at
					}
				}
				if err := c.AllGather(x); err != nil {
					return err
				}
				if !slices.Equal(x, want) {
					return fmt.Errorf("%d elements: the gathered sum is not the tree's", n)
				}
				return nil
			}))
		}
	})
}

// Everyone has rank 0's bytes; a barrier is passed by all or none.
func TestBroadcastAndBarrier(t *testing.T) {
	forAll(t, func(t *testing.T, comms []collective.Comm) {
		var mu sync.Mutex
		came := 0
		ok(t, each(comms, func(c collective.Comm) error {
			for _, n := range []int{0, 5, 3 << 20} {
				x := make([]byte, n)
				for i := range x {
					x[i] = byte((i + 1) * (c.Rank() + 3))
				}
				if err := c.Broadcast(x); err != nil {
					return err
				}
				for i := range x {
					if x[i] != byte((i+1)*3) {
						return fmt.Errorf("byte %d of %d is not rank 0's", i, n)
					}
				}
			}
			mu.Lock()
			came++
			mu.Unlock()
			if err := c.Barrier(); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if came != c.World() {
				return fmt.Errorf("the barrier opened after %d of %d ranks", came, c.World())
			}
			return nil
		}))
	})
}

// Many operations in a row, without a barrier between them, do not get into each other's way.
func TestManyInARow(t *testing.T) {
	forAll(t, func(t *testing.T, comms []collective.Comm) {
		ok(t, each(comms, func(c collective.Comm) error {
			for k := range 200 {
				x := []float32{float32(k), float32(c.Rank())}
				if err := c.Sum32(x); err != nil {
					return err
				}
				if w := c.World(); x[0] != float32(k*w) || x[1] != float32(w*(w-1)/2) {
					return fmt.Errorf("sum %d: %v", k, x)
				}
			}
			return nil
		}))
	})
}

// Ranks that ask for different operations, or lengths, all learn of it; nothing hangs.
func TestDifferentCalls(t *testing.T) {
	for _, c := range []struct {
		name string
		last func(c collective.Comm) error
		want string
	}{
		{"length", func(c collective.Comm) error { return c.Sum32(make([]float32, 5)) }, "sum of float32 of 5"},
		{"operation", func(c collective.Comm) error { return c.Barrier() }, "barrier of 0"},
		{"type", func(c collective.Comm) error { return c.Sum64(make([]float64, 4)) }, "sum of float64 of 4"},
	} {
		forAll(t, func(t *testing.T, comms []collective.Comm) {
			if len(comms) == 1 {
				return
			}
			errs := each(comms, func(comm collective.Comm) error {
				if comm.Rank() == comm.World()-1 {
					return c.last(comm)
				}
				return comm.Sum32(make([]float32, 4))
			})
			for r, err := range errs {
				var lost *collective.Lost
				if !errors.As(err, &lost) || lost.Rank != len(comms)-1 || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: rank %d: %v, want a loss of the last rank that says %q", c.name, r, err, c.want)
				}
			}
		})
	}
}

// An abort reaches ranks that wait, and those that call later; it names the rank and the reason.
func TestAbort(t *testing.T) {
	forAll(t, func(t *testing.T, comms []collective.Comm) {
		bad := len(comms) - 1
		errs := each(comms, func(c collective.Comm) error {
			if c.Rank() == bad {
				time.Sleep(20 * time.Millisecond)
				c.Abort(errors.New("the disk is on fire"))
			}
			return c.Sum32(make([]float32, 3))
		})
		for r, err := range append(errs, each(comms, func(c collective.Comm) error { return c.Barrier() })...) {
			var lost *collective.Lost
			if !errors.As(err, &lost) || lost.Rank != bad || lost.How != collective.Failed || !strings.Contains(err.Error(),
				"the disk is on fire") {
				t.Errorf("call %d: %v", r, err)
			}
		}
	})
}

// A rank that has left is named by those that still wait for it.
func TestLeaving(t *testing.T) {
	forAll(t, func(t *testing.T, comms []collective.Comm) {
		if len(comms) == 1 {
			return
		}
		for r, err := range each(comms, func(c collective.Comm) error {
			if c.Rank() == 1 {
				return c.Close()
			}
			return c.Barrier()
		}) {
			var lost *collective.Lost
			if r != 1 && (!errors.As(err, &lost) || lost.Rank != 1 || lost.How != collective.Gone) {
				t.Errorf("rank %d: %v, want the loss of rank 1", r, err)
			}
		}
	})
}
