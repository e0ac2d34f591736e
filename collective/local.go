package collective

import "sync"

// Local returns a group of world ranks in this process, one Comm for each goroutine that is a rank.
func Local(world int) []Comm {
	g := newGroup(world)
	g.mail = make([]mailbox, world)
	for r := range g.mail {
		g.mail[r].changed.L = &g.mail[r].mu
	}
	all := make([]Comm, world)
	for r := range all {
		all[r] = &local{g: g, rank: r}
	}
	return all
}

func newGroup(world int) *group {
	g := &group{world: world, given: make([]any, world), ops: make([]operation, world)}
	g.changed.L = &g.mu
	return g
}

// First returns the Comm of ranks 0 to n−1.
func (l *local) First(n int) Comm {
	if n < 1 || n > l.g.world || l.rank >= n {
		panic("collective: First of ranks that this one is not among")
	}
	g := l.g.whole()
	g.mu.Lock()
	defer g.mu.Unlock()
	first := g.firsts[n]
	if first == nil {
		first = newGroup(n)
		first.of, first.lost = g, g.lost
		for _, r := range g.closed {
			if r < n {
				first.closed = append(first.closed, r)
			}
		}
		if g.firsts == nil {
			g.firsts = map[int]*group{}
		}
		g.firsts[n] = first
	}
	return &local{g: first, rank: l.rank}
}

// group is the state that the ranks of Local share.
type group struct {
	world   int
	mu      sync.Mutex
	changed sync.Cond
	arrived int    // ranks at the present barrier
	turn    uint64 // barriers passed
	lost    *Lost
	closed  []int // ranks that left
	told    []func(*Lost)

	of     *group         // the whole one, if this is of its first ranks
	firsts map[int]*group // by their number of ranks; each is locked after the whole group, never before
	mail   []mailbox      // of the whole group, by rank

	given []any // of each rank, between the first and the last barrier of an operation
	ops   []operation
	sum   any // result of a sum
}

type local struct {
	g      *group
	rank   int
	closed bool
}

func (l *local) Rank() int  { return l.rank }
func (l *local) World() int { return l.g.world }

// meet waits for all ranks. first is run by the last one that comes, before any goes on.
func (l *local) meet(first func() error) error {
	g := l.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost == nil && len(g.closed) > 0 {
		g.fail(&Lost{Rank: g.closed[0], World: g.world, How: Gone, Cause: "it has left the group"})
	}
	if g.lost != nil {
		return g.lost
	}
	g.arrived++
	if g.arrived == g.world {
		g.arrived = 0
		if first != nil {
			if err := first(); err != nil {
				g.fail(err.(*Lost))
				return g.lost
			}
		}
		g.turn++
		g.changed.Broadcast()
		return nil
	}
	turn := g.turn
	for g.turn == turn && g.lost == nil {
		g.changed.Wait()
	}
	if g.turn == turn {
		return g.lost
	}
	return nil // all ranks arrived; a rank that is lost after that does not undo it
}

// whole returns the group of all ranks.
func (g *group) whole() *group {
	if g.of != nil {
		return g.of
	}
	return g
}

// fail ends the group; the lock is held. All groups of the same ranks end with it.
func (g *group) fail(l *Lost) {
	if g.lost != nil {
		return
	}
	g.lost = l
	g.changed.Broadcast()
	for _, f := range g.told {
		go f(l)
	}
	if g.of != nil {
		go g.of.end(l)
		return
	}
	for _, first := range g.firsts {
		go first.end(l)
	}
	go func() {
		for r := range g.mail {
			g.mail[r].wake()
		}
	}()
}

// end is fail without the lock.
func (g *group) end(l *Lost) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fail(l)
}

// do runs an operation: x is given to all, then each rank works on what all gave, and afterwards takes what it needs.
func (l *local) do(op operation, x any, prepare func(), work, take func(given []any)) error {
	g := l.g
	g.mu.Lock()
	g.given[l.rank], g.ops[l.rank] = x, op
	g.mu.Unlock()
	if err := l.meet(func() error {
		for r, o := range g.ops {
			if o != g.ops[0] {
				return &Lost{Rank: r, World: g.world, How: Failed, Cause: differ(r, o, g.ops[0])}
			}
		}
		if prepare != nil {
			prepare()
		}
		return nil
	}); err != nil {
		return err
	}
	if work != nil {
		work(g.given)
		if err := l.meet(nil); err != nil {
			return err
		}
	}
	if take != nil {
		take(g.given)
	}
	return l.meet(nil) // what was given may change from here on
}

// sumLocal is the sum for both types: each rank adds its shard of the elements, then copies all of them or its own.
func sumLocal[T number](l *local, name string, x []T, all bool) error {
	const block = 4096
	g := l.g
	lo, hi := Shard(len(x), l.rank, g.world)
	return l.do(operation{name, len(x)}, x, func() { g.sum = make([]T, len(x)) }, func(given []any) {
		parts, out := make([][]T, g.world), g.sum.([]T)
		scratch := make([]T, g.world*block)
		for at := lo; at < hi; at += block {
			n := min(block, hi-at)
			for r := range parts {
				parts[r] = scratch[r*block:][:n]
				copy(parts[r], given[r].([]T)[at:])
			}
			tree(parts)
			copy(out[at:], parts[0])
		}
	}, func([]any) {
		if all {
			lo, hi = 0, len(x)
		}
		copy(x[lo:hi], g.sum.([]T)[lo:hi])
	})
}

func (l *local) Sum32(x []float32) error         { return sumLocal(l, opSum32, x, true) }
func (l *local) Sum64(x []float64) error         { return sumLocal(l, opSum64, x, true) }
func (l *local) ReduceScatter(x []float32) error { return sumLocal(l, opScatter, x, false) }

func (l *local) AllGather(x []float32) error {
	return l.do(operation{opGather, len(x)}, x, nil, nil, func(given []any) {
		for r := range given {
			if lo, hi := Shard(len(x), r, l.g.world); r != l.rank { // nobody writes the shard that others read
				copy(x[lo:hi], given[r].([]float32)[lo:hi])
			}
		}
	})
}

func (l *local) Broadcast(x []byte) error {
	return l.do(operation{opBroadcast, len(x)}, x, nil, nil, func(given []any) {
		if l.rank > 0 {
			copy(x, given[0].([]byte))
		}
	})
}

func (l *local) Barrier() error { return l.do(operation{Name: opBarrier}, nil, nil, nil, nil) }

func (l *local) Abort(cause error) {
	l.g.mu.Lock()
	defer l.g.mu.Unlock()
	l.g.fail(because(cause, l.rank, l.g.world))
}

func (l *local) OnLost(f func(*Lost)) {
	l.g.mu.Lock()
	defer l.g.mu.Unlock()
	if l.g.lost != nil {
		go f(l.g.lost)
		return
	}
	l.g.told = append(l.g.told, f)
}

func (l *local) Close() error {
	g := l.g
	if g.of != nil {
		return nil // with the whole group
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	g.leaves(l.rank)
	for n, first := range g.firsts {
		if l.rank < n {
			first.mu.Lock()
			first.leaves(l.rank)
			first.mu.Unlock()
		}
	}
	go func() {
		for r := range g.mail {
			g.mail[r].wake()
		}
	}()
	return nil
}

// leaves notes that a rank has left; the lock is held.
func (g *group) leaves(rank int) {
	g.closed = append(g.closed, rank)
	if g.arrived > 0 { // others wait for a call that will not come
		g.fail(&Lost{Rank: rank, World: g.world, How: Gone, Cause: "it has left the group"})
	}
}
