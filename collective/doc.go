// Package collective joins the ranks of one run: processes, or goroutines of one process, that train one student
// together. A Comm has the few collectives of data-parallel training over host memory: sums, reduce-scatter,
// all-gather, broadcast and a barrier; and messages from one rank to another, for ranks that do different work.
//
// There are two implementations: Local, whose ranks are goroutines, and the sockets of Listen and Join, whose ranks are
// processes joined to rank 0 over TCP. Both pass one conformance suite. Neither is a communicator between GPUs.
//
// Every rank calls the same methods with the same lengths in the same order. A rank that calls another one is an error
// on all of them. A sum is a binary tree over the ranks, ((0+1)+(2+3))+((4+5)+(6+7)), whatever arrives first: its bits
// repeat, and are the same on every rank.
//
// Caveats. After an error a Comm is dead, on this rank and soon on all. Sockets move all data through rank 0, which
// suits a few CPU ranks. Frames after the handshake have checksums, by which damage on the way ends the group, but are
// neither encrypted nor authenticated: the network between ranks has to be a trusted one, and the shared secret only
// keeps strangers and other runs from joining.
package collective

import (
	"errors"
	"fmt"
	"time"

	"apr/internal/fault"
)

// Comm is one rank's view of the group.
type Comm interface {
	Rank() int
	World() int
	// Sum32: x[i] ← Σ_r x_r[i] on every rank.
	Sum32(x []float32) error
	// Sum64 is Sum32 in float64.
	Sum64(x []float64) error
	// ReduceScatter: elements Shard(len(x), rank, world) of x ← those of Σ_r x_r. Other elements of x are undefined
	// afterwards.
	ReduceScatter(x []float32) error
	// AllGather: elements Shard(len(x), r, world) of x ← those of rank r, for every r.
	AllGather(x []float32) error
	// Broadcast: x ← x of rank 0, of the same length on every rank.
	Broadcast(x []byte) error
	// Barrier returns after every rank has called it.
	Barrier() error
	// First returns the group of ranks 0 to n−1, of which this one is: its collectives are theirs alone. It is lost and
	// closed with the whole group, never by itself. Every caller has to give the same n.
	First(n int) Comm
	// Post sends a message to another rank of the whole group. It does not wait until that rank takes it: how many
	// messages wait is the callers' business.
	Post(to int, x []byte) error
	// Take waits for the next message posted to this rank: by rank from, or by Anyone. Messages of one rank are taken in
	// the order in which it posted them.
	Take(from int) (by int, x []byte, err error)
	// Abort ends the group: pending and later calls of all ranks return a *Lost that names this rank and cause.
	Abort(cause error)
	// OnLost lets f be called once, in a goroutine of its own, when the group ends because a rank was lost; at once if it
	// has.
	OnLost(f func(*Lost))
	// Close leaves the group after the last call. Ranks may close at different times.
	Close() error
}

// Anyone lets Take return the message of any rank.
const Anyone = -1

// Shard returns the elements [lo,hi) of n that belong to rank r of world: floor(n·r/world) to floor(n·(r+1)/world).
func Shard(n, r, world int) (lo, hi int) {
	return int(int64(n) * int64(r) / int64(world)), int(int64(n) * int64(r+1) / int64(world))
}

// How is the way in which a rank was lost.
type How string

// The ways.
const (
	Gone   How = "gone"   // its connection ended without a farewell: it died, or the network did
	Silent How = "silent" // nothing was heard of it for the time limit: it is stopped, or unreachable
	Failed How = "failed" // it ended the group itself, because of an error of its own
	Hung   How = "hung"   // it ended the group itself, because it made no progress
	// Damaged: what it sent arrived different. The network, or a machine's memory, cannot be trusted.
	Damaged How = "damaged"
)

// Lost says which rank the group cannot go on without.
type Lost struct {
	Rank, World int
	How         How
	After       time.Duration // of Silent: how long nothing was heard
	Cause       string
}

// Error names the rank.
func (l *Lost) Error() string {
	switch l.How {
	case Silent:
		return fmt.Sprintf("rank %d of %d is silent: nothing was heard of it for %v", l.Rank, l.World,
			l.After.Round(time.Second/10))
	case Failed:
		return fmt.Sprintf("rank %d of %d failed: %s", l.Rank, l.World, l.Cause)
	case Hung:
		return fmt.Sprintf("rank %d of %d hung: %s", l.Rank, l.World, l.Cause)
	case Damaged:
		return fmt.Sprintf("rank %d of %d sent a frame that arrived damaged: %s", l.Rank, l.World, l.Cause)
	}
	return fmt.Sprintf("rank %d of %d is gone: %s", l.Rank, l.World, l.Cause)
}

// because returns the loss of a rank that ends the group because of an error: its own, or the loss of another that it
// was told of.
func because(cause error, rank, world int) *Lost {
	var earlier *Lost
	if errors.As(cause, &earlier) {
		return earlier
	}
	how := Failed
	if fault.KindOf(cause) == fault.Hung {
		how = Hung
	}
	return &Lost{Rank: rank, World: world, How: how, Cause: cause.Error()}
}

// number is what sums are of.
type number interface{ float32 | float64 }

// tree adds parts[1:] to parts[0] as a binary tree of neighbours; all parts are overwritten. For i even, part i and
// part i+1 are added first, then part i and part i+2, and so on.
func tree[T number](parts [][]T) {
	for stride := 1; stride < len(parts); stride *= 2 {
		for i := 0; i+stride < len(parts); i += 2 * stride {
			a, b := parts[i], parts[i+stride]
			for k := range a {
				a[k] += b[k]
			}
		}
	}
}

// operation is what a rank asks for; all ranks have to ask for the same.
type operation struct {
	Name string
	N    int // elements
}

func (o operation) String() string { return fmt.Sprintf("%s of %d", o.Name, o.N) }

// differ is the error of ranks that ask for different operations: a fault of the program, or of inputs that differ.
func differ(rank int, is operation, than operation) string {
	return fmt.Sprintf("ranks do not do the same: rank %d asks for %v, rank 0 for %v", rank, is, than)
}

// The operations' names.
const (
	opSum32, opSum64, opScatter, opGather, opBroadcast, opBarrier = "sum of float32", "sum of float64", "reduce-scatter",
		"all-gather", "broadcast", "barrier"
)
