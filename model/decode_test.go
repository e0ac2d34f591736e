package model_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/internal/near"
	"apr/tensor"
)

// A sequence read in pieces of any length gives the hidden states of the whole.
func TestExtendIsHidden(t *testing.T) {
	const length = 23
	for name, c := range shapes {
		d := newCPU(t)
		s := d.NewStream()
		m := randomModel(t, d, s, c)
		all, _ := tokens(d, s, c.Vocab, 1, length)
		x := s.Temp("hidden", device.Activations, tensor.F32, length, c.Hidden)
		m.Hidden(s, x, all)
		want := download(t, s, x)
		cache := m.NewCache(length + 2)
		dst := d.Alloc("dst", device.Activations, tensor.F32, 1, c.Hidden)
		rng := rand.New(rand.NewPCG(1, 2))
		for round := range 8 {
			cache.Reset()
			var split []int
			for cache.Len() < length {
				n := 1 + rng.IntN(length-cache.Len())
				switch round {
				case 0:
					n = 1 // one by one
				case 1:
					n = length // all at once
				}
				split = append(split, n)
				m.Extend(s, dst, cache, all.IDs.RowRange(cache.Len(), cache.Len()+n))
				at := (cache.Len() - 1) * c.Hidden
				near.Check(t, fmt.Sprint(name, " in pieces ", split), download(t, s, dst), want[at:at+c.Hidden], 1e-5)
			}
		}
		if cache.Len() != length {
			t.Errorf("%d positions, want %d", cache.Len(), length)
		}
		logits := make([]float32, c.Vocab-3) // fewer ids than rows
		must(t, m.NextLogits(s, logits, dst))
		z := s.Temp("z", device.Logits, tensor.F32, length, c.Vocab)
		m.Logits(s, z, x)
		near.Check(t, name+": logits", logits, download(t, s, z)[(length-1)*c.Vocab:][:len(logits)], 1e-4)
	}
}

// Writing behind the end of a cache would be a mistake of the program.
func TestFullCachePanics(t *testing.T) {
	d := newCPU(t)
	s := d.NewStream()
	c := shapes["tied"]
	m := randomModel(t, d, s, c)
	all, _ := tokens(d, s, c.Vocab, 1, 5)
	defer func() {
		if recover() == nil {
			t.Error("5 positions fit into a cache of 4")
		}
	}()
	m.Extend(s, d.Alloc("dst", device.Activations, tensor.F32, 1, c.Hidden), m.NewCache(4), all.IDs)
}
