package distill

import (
	"slices"

	"apr/collective"
	"apr/corpus"
)

// absent is the Comm of a dry step of one rank: nobody else is there, and each is taken to have what this one has. No
// number that decides anything is read from it.
type absent struct{ rank, world int }

var _ collective.Comm = absent{}

func (a absent) Rank() int             { return a.rank }
func (a absent) World() int            { return a.world }
func (a absent) Sum32([]float32) error { return nil }

// Sum64: x[i] ← W·x[i].
func (a absent) Sum64(x []float64) error {
	for i := range x {
		x[i] *= float64(a.world)
	}
	return nil
}

func (absent) ReduceScatter([]float32) error { return nil }
func (absent) AllGather([]float32) error     { return nil }
func (absent) Broadcast([]byte) error        { return nil }
func (absent) Barrier() error                { return nil }
func (absent) Abort(error)                   {}
func (absent) OnLost(func(*collective.Lost)) {}
func (absent) Close() error                  { return nil }

// dry are the ranks of a dry step of rank `rank`; joined: its device gives gradients to the others' devices.
func (g Group) dry(rank int, joined bool) Ranks {
	r := g.ranks()
	if g.World > 1 {
		r.Comm, r.Joined, r.dry = absent{rank, g.World}, joined, true
	}
	return r
}

// maskLasts writes to the mask of the last position of each micro-batch of this rank's parts of b.
func (r Ranks) maskLasts(b corpus.Batch, microRows int, mask uint8) {
	first, last, all := r.parts()
	for i := first; i < last; i++ {
		from, to := collective.Shard(b.Rows, i, all)
		for lo := from; lo < to; lo += microRows {
			b.Mask[min(lo+microRows, to)*b.SeqLen-1] = mask
		}
	}
}

// ownRows returns the rows [lo,hi) of a step of `rows` that this rank computes.
func (r Ranks) ownRows(rows int) (lo, hi int) {
	first, last, all := r.parts()
	lo, _ = collective.Shard(rows, first, all)
	_, hi = collective.Shard(rows, last-1, all)
	return lo, hi
}

// alike returns the first rank whose parts of a step have as many rows each as those of this one: what their steps
// take differs in nothing.
func (g Group) alike(rank, rows int) int {
	sizes := func(rank int) (all []int) {
		r := g.dry(rank, false)
		lo, hi, of := r.parts()
		for i := lo; i < hi; i++ {
			from, to := collective.Shard(rows, i, of)
			all = append(all, to-from)
		}
		return all
	}
	own := sizes(rank)
	for other := range rank {
		if slices.Equal(sizes(other), own) {
			return other
		}
	}
	return rank
}

// First are the ranks that are not there, either.
func (a absent) First(n int) collective.Comm { return absent{a.rank, n} }

// Post and Take are of ranks that only teach: a dry step has none.
func (absent) Post(int, []byte) error { panic("distill: a dry step posts nothing") }

// Take has nothing to take.
func (absent) Take(int) (int, []byte, error) { panic("distill: a dry step takes nothing") }
