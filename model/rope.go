package model

import (
	"apr/arch"
	"apr/device"
)

// rope hands out the table of a rotary embedding. Devices keep what they compute of a table by its address, so that each
// is made once.
type rope struct {
	short, long *device.Frequencies
	original    int // longer sequences take long; 0: none do
}

func newRopes(c arch.Config) []rope {
	all := make([]rope, len(c.Ropes))
	for i, r := range c.Ropes {
		table := func(length int) *device.Frequencies {
			return &device.Frequencies{Inv: r.Frequencies(length), Factor: r.Attention}
		}
		all[i].short = table(1)
		all[i].long = all[i].short
		if r.Kind == arch.RopeLong {
			all[i].original, all[i].long = r.Original, table(r.Original+1)
		}
	}
	return all
}

// table returns the frequencies of sequences of a class.
func (m *Model) table(at, class int) *device.Frequencies {
	if class>>at&1 == 1 {
		return m.ropes[at].long
	}
	return m.ropes[at].short
}

// class says which frequencies a sequence of length positions so far has, a bit for each rotary embedding that takes the
// long ones: positions that were turned in another class have to be computed again.
func (m *Model) class(length int) int {
	n := 0
	for i, r := range m.ropes {
		if r.original > 0 && length > r.original {
			n |= 1 << i
		}
	}
	return n
}

// ages reports whether frequencies depend on the length of the sequence.
func (m *Model) ages() bool {
	for _, r := range m.ropes {
		if r.original > 0 {
			return true
		}
	}
	return false
}
