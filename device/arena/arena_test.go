package arena

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// What is placed never overlaps, is aligned, and lies below the peak, whatever the order of calls.
func TestNoOverlap(t *testing.T) {
	for seed := range uint64(200) {
		a, rng := New(64), rand.New(rand.NewPCG(seed, 1))
		live := map[int64]int64{}
		for range 300 {
			if len(live) > 0 && rng.IntN(5) < 2 {
				off := anyKey(rng, live)
				a.Release(off)
				delete(live, off)
				continue
			}
			n := rng.Int64N(1 << (1 + rng.IntN(16)))
			off := a.Place(n)
			if off%64 != 0 || off < 0 || off+n > a.Peak() {
				t.Fatalf("seed %d: %d bytes at %d, peak %d", seed, n, off, a.Peak())
			}
			for o, size := range live {
				if off < o+max(size, 1) && o < off+max(n, 1) {
					t.Fatalf("seed %d: [%d,%d) overlaps [%d,%d)", seed, off, off+n, o, o+size)
				}
			}
			live[off] = n
			checkHoles(t, a)
		}
		for off := range live {
			a.Release(off)
			checkHoles(t, a)
		}
		if a.Used() != 0 || a.end != 0 || len(a.holes) != 0 {
			t.Fatalf("seed %d: %d bytes used, end %d, holes %v after everything was released", seed, a.Used(), a.end, a.holes)
		}
	}
}

// checkHoles: holes ascend, do not touch one another or the end, and with what is placed they fill the arena.
func checkHoles(t *testing.T, a *Arena) {
	t.Helper()
	last, free := int64(-1), int64(0)
	for _, h := range a.holes {
		if h.lo <= last || h.hi <= h.lo || h.hi >= a.end {
			t.Fatalf("holes %v, end %d", a.holes, a.end)
		}
		last, free = h.hi, free+h.hi-h.lo
	}
	if free+a.used != a.end || a.most > a.peak {
		t.Fatalf("%d free + %d used, end %d; most %d, peak %d", free, a.used, a.end, a.most, a.peak)
	}
}

func anyKey(rng *rand.Rand, m map[int64]int64) int64 {
	keys := make([]int64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys[rng.IntN(len(keys))]
}

// The same calls give the same places, in another arena and in the same one once it is empty again.
func TestSameSequenceSamePlaces(t *testing.T) {
	sequence := func(a *Arena) (places []int64) {
		rng := rand.New(rand.NewPCG(7, 7))
		var live []int64
		for range 500 {
			if len(live) > 0 && rng.IntN(3) == 0 {
				i := rng.IntN(len(live))
				a.Release(live[i])
				live = slices.Delete(live, i, i+1)
				continue
			}
			off := a.Place(rng.Int64N(5000))
			live, places = append(live, off), append(places, off)
		}
		for _, off := range live {
			a.Release(off)
		}
		return places
	}
	a := New(256)
	first, peak := sequence(a), a.Peak()
	if second := sequence(a); !slices.Equal(first, second) || a.Peak() != peak {
		t.Error("the second run through one arena differs")
	}
	if other := sequence(New(256)); !slices.Equal(first, other) {
		t.Error("another arena differs")
	}
}

// Buffers of stack-like lifetimes lose nothing to holes; others little.
func TestPeakIsNearTheMost(t *testing.T) {
	a := New(1)
	var live []int64
	for range 3 {
		for n := range int64(100) {
			live = append(live, a.Place(1+n*n))
		}
		for _, off := range slices.Backward(live) {
			a.Release(off)
		}
		live = live[:0]
	}
	if a.Peak() != a.most {
		t.Errorf("stack: peak %d, most %d", a.Peak(), a.most)
	}
	// Sizes as of a model: few different ones, released in the order they came.
	a, rng := New(256), rand.New(rand.NewPCG(3, 3))
	for range 4000 {
		if len(live) > 40 {
			a.Release(live[0])
			live = live[1:]
		}
		live = append(live, a.Place(int64(1<<20)*(1+rng.Int64N(4))))
	}
	if float64(a.Peak()) > 1.25*float64(a.most) {
		t.Errorf("queue: peak %d, most %d", a.Peak(), a.most)
	}
}

func TestPlaces(t *testing.T) {
	a := New(16)
	at := func(n, want int64) {
		t.Helper()
		if got := a.Place(n); got != want {
			t.Errorf("%d bytes at %d, want %d", n, got, want)
		}
	}
	at(100, 0)   // 112
	at(0, 112)   // an empty buffer has a place of its own
	at(50, 128)  // 64
	at(16, 192)  //
	at(32, 208)  //
	at(1, 240)   // keeps the end
	a.Release(0) // a hole of 112
	a.Release(208)
	at(20, 208) // the smaller hole
	at(20, 0)   // what is left of the larger
	at(80, 32)
	a.Release(240)
	a.Release(208)
	at(64, 208) // the end moved back
	if a.Peak() != 272 || a.Used() != 272 {
		t.Errorf("peak %d, used %d, want 272", a.Peak(), a.Used())
	}
}

func TestMistakesPanic(t *testing.T) {
	for name, f := range map[string]func(){
		"negative":       func() { New(1).Place(-1) },
		"not placed":     func() { New(1).Release(0) },
		"released twice": func() { a := New(1); a.Release(a.Place(1)); a.Release(0) },
		"alignment":      func() { New(24) },
		"too many":       func() { a := New(1); a.Place(1 << 62); a.Place(1 << 62) },
		"too large":      func() { New(2).Place(1<<63 - 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// Once its tables have grown, an arena allocates nothing.
func TestNoAllocations(t *testing.T) {
	a := New(256)
	var live [64]int64
	round := func() {
		for i := range live {
			live[i] = a.Place(int64(i) * 300)
		}
		for i := range live {
			a.Release(live[(i*7)%len(live)])
		}
	}
	round()
	if n := testing.AllocsPerRun(20, round); n > 0 {
		t.Errorf("%v allocations a round", n)
	}
}
