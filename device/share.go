package device

import "apr/tensor"

// Share says which part of the training state of a parameter a rank keeps (ZeRO-1; Rajbhandari et al. 2020,
// arXiv:1910.02054). The zero Share, or a World of 1, keeps all of it.
type Share struct{ Rank, World int }

// ShareUnit is what shares are multiples of, in elements: those that a device adds the squares of at a time, so that a
// norm's bits do not depend on the number of ranks.
const ShareUnit = 16384

// Own returns which of n elements this rank keeps: [lo,hi), c = ⌊n/(World·ShareUnit)⌋·ShareUnit of them, which no
// other rank keeps, and [tail,n), which all of them do.
func (s Share) Own(n int) (lo, hi, tail int) {
	if s.World < 2 {
		return 0, 0, 0
	}
	c := n / (s.World * ShareUnit) * ShareUnit
	return s.Rank * c, (s.Rank + 1) * c, s.World * c
}

// Kept returns how many of n elements this rank keeps.
func (s Share) Kept(n int) int {
	lo, hi, tail := s.Own(n)
	return hi - lo + n - tail
}

// Sharer is a Device that keeps its share of the training state of parameters whose spec has one.
type Sharer interface {
	Device
	// Share returns what parameters of a model that is trained have as ParamSpec.Share.
	Share() Share
}

// Companion names a tensor of a parameter.
type Companion int

// The companions that a checkpoint holds, and the gradient.
const (
	OfValue Companion = iota
	OfM
	OfV
	OfGrad
)

// Companion returns the tensor: of a shared one [1, Share.Kept], the own elements and then the tail.
func (p *Param) Companion(c Companion) Tensor {
	switch c {
	case OfValue:
		return p.Value
	case OfM:
		return p.M
	case OfV:
		return p.V
	}
	return p.Grad
}

// Shared reports whether this rank keeps a share of the companion only.
func (p *Param) Shared(c Companion) bool {
	t := p.Companion(c)
	return t.Rows*t.Cols < p.Rows*p.Cols
}

// Staging returns where all values of a companion are uploaded to, or gathered in: the gradient's memory for one of
// which there is a share only, else the companion itself.
func (p *Param) Staging(c Companion) Tensor {
	if p.Shared(c) {
		return p.Grad
	}
	return p.Companion(c)
}

// newShared allocates a companion of which there may be a share only.
func newShared(spec ParamSpec, name string, c Component,
	alloc func(string, Component, tensor.DType, int, int) Tensor) Tensor {
	n := spec.Rows * spec.Cols
	if kept := spec.Share.Kept(n); kept < n {
		return alloc(name, c, tensor.F32, 1, kept)
	}
	return alloc(name, c, tensor.F32, spec.Rows, spec.Cols)
}
