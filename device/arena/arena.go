// Package arena decides where in one piece of memory buffers of changing lifetimes stand. It places; it has no memory.
//
// Place takes the smallest hole that is large enough, the lowest of equal ones, or the end; Release joins a hole with
// its neighbours. Places follow from the sequence of calls alone, so a sequence that was once run without a device
// (device/dry) tells the size of the memory that a real one needs for it.
//
// Caveats. An arena grows without limit: whoever has the memory compares Peak, or the end of what was placed, with its
// size. It serves one goroutine. Calls cost time in proportion to the number of holes, which are few in a training step.
package arena

import (
	"fmt"
	"math"
	"slices"
)

// Arena places buffers at offsets from 0 on.
type Arena struct {
	align int64
	live  map[int64]int64 // offset → size of what is placed
	holes []span          // free pieces below end, ascending, never adjacent to one another or to end
	end   int64           // everything from here on is free
	peak  int64
	used  int64
	most  int64
}

// span is the piece [lo, hi).
type span struct{ lo, hi int64 }

// New returns an empty arena whose offsets and sizes are multiples of align, a power of two.
func New(align int64) *Arena {
	if align < 1 || align&(align-1) != 0 {
		panic(fmt.Sprintf("arena: alignment %d is no power of two", align))
	}
	return &Arena{align: align, live: map[int64]int64{}}
}

// Size returns the bytes that a buffer of n bytes takes: n rounded up to the alignment, which is also the least.
func (a *Arena) Size(n int64) int64 {
	if n < 0 || n > math.MaxInt64-a.align {
		panic(fmt.Sprintf("arena: a buffer of %d bytes", n))
	}
	return max(a.align, (n+a.align-1)&^(a.align-1))
}

// Place returns the offset of a new buffer of n bytes. Buffers that are placed never overlap.
func (a *Arena) Place(n int64) (offset int64) {
	size := a.Size(n)
	best := -1
	for i, h := range a.holes {
		if have := h.hi - h.lo; have >= size && (best < 0 || have < a.holes[best].hi-a.holes[best].lo) {
			best = i
		}
	}
	if best < 0 {
		offset = a.grow(size)
	} else {
		h := &a.holes[best]
		offset = h.lo
		if h.lo += size; h.lo == h.hi {
			a.holes = slices.Delete(a.holes, best, best+1)
		}
	}
	a.live[offset] = size
	a.used += size
	a.most = max(a.most, a.used)
	return offset
}

// grow places size bytes at the end.
func (a *Arena) grow(size int64) (offset int64) {
	if size > math.MaxInt64-a.end {
		panic("arena: more bytes than an int64 counts")
	}
	offset = a.end
	a.end += size
	a.peak = max(a.peak, a.end)
	return offset
}

// Release frees the buffer at offset. Releasing what is not placed is a mistake of the program and panics.
func (a *Arena) Release(offset int64) {
	size, ok := a.live[offset]
	if !ok {
		panic(fmt.Sprintf("arena: nothing is placed at %d", offset))
	}
	delete(a.live, offset)
	a.used -= size
	freed := span{offset, offset + size}
	i, _ := slices.BinarySearchFunc(a.holes, offset, func(h span, lo int64) int { return int(min(1, max(-1, h.lo-lo))) })
	if i < len(a.holes) && a.holes[i].lo == freed.hi {
		freed.hi = a.holes[i].hi
		a.holes = slices.Delete(a.holes, i, i+1)
	}
	if i > 0 && a.holes[i-1].hi == freed.lo {
		i--
		freed.lo = a.holes[i].lo
		a.holes = slices.Delete(a.holes, i, i+1)
	}
	if freed.hi == a.end {
		a.end = freed.lo
		return
	}
	a.holes = slices.Insert(a.holes, i, freed)
}

// Peak returns the size of the memory that everything so far needed: the highest end of a buffer.
func (a *Arena) Peak() int64 { return a.peak }

// Used returns the bytes placed now; 0 when everything was released.
func (a *Arena) Used() int64 { return a.used }
