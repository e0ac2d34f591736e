package cuda

import (
	"slices"
	"unsafe"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/tensor"
)

// Ranks may share the training state of parameters: each keeps the master weights and moments of its elements, has
// their gradient, updates them, and gets all others' rounded weights. See device.Share.

// KeepShare lets parameters of models that are trained from now on be shared with the other ranks.
func (d *Device) KeepShare(s device.Share) { d.share = s }

// Share returns what KeepShare said.
func (d *Device) Share() device.Share { return d.share }

// flat returns elements [lo,hi) of a tensor without gaps.
func flat(t device.Tensor, lo, hi int) device.Tensor {
	t.Off, t.Rows, t.Cols, t.Stride = t.Off+lo, 1, hi-lo, hi-lo
	return t
}

// portion is a run of elements of a parameter that a rank keeps, and where in a share it stands.
type portion struct{ lo, hi, at int }

// portions returns the runs of a parameter's elements that this rank updates: all of one that is not shared.
func portions(p *device.Param) []portion {
	n := p.Rows * p.Cols
	lo, hi, tail := p.Share.Own(n)
	if hi == lo {
		return []portion{{0, n, 0}}
	}
	all := []portion{{lo, hi, 0}}
	if tail < n {
		all = append(all, portion{tail, n, hi - lo})
	}
	return all
}

// of returns the run in a companion of p.
func (r portion) of(p *device.Param, c device.Companion) device.Tensor {
	if p.Shared(c) {
		return flat(p.Companion(c), r.at, r.at+r.hi-r.lo)
	}
	return flat(p.Companion(c), r.lo, r.hi)
}

// sharesAny reports whether ranks share one of params.
func sharesAny(params []*device.Param) bool {
	return slices.ContainsFunc(params, func(p *device.Param) bool { return p.Shared(device.OfM) })
}

// ReduceGradients: of each gradient this rank's elements ← their sum over the ranks.
func (s *Stream) ReduceGradients(tree bool, params []*device.Param) {
	s.touchAll(params)
	if tree && s.dev.group.world > 2 && len(params) > 0 { // two ranks have one order
		grads, shares := make([]device.Tensor, len(params)), make([]device.Share, len(params))
		for i, p := range params {
			grads[i], shares[i] = p.Grad, p.Share
		}
		s.sumTree("ReduceGradients", grads, shares)
		return
	}
	o := s.begin("ReduceGradients")
	if o == nil || len(params) == 0 {
		return
	}
	o.collect(func(g *group, t *driver.Thread) error { return g.reduceAll(t, params, o.dev.stream) })
	o.end()
}

// reduceAll adds gradients over the ranks, as one call of NCCL.
func (g *group) reduceAll(t *driver.Thread, params []*device.Param, s driver.Stream) error {
	return g.nccl.Together(func() error {
		for _, p := range params {
			if err := g.reduce(t, p, s); err != nil {
				return err
			}
		}
		return nil
	})
}

// reduce adds the gradient of a parameter over the ranks: a reduce-scatter of what is shared, a sum of the rest.
func (g *group) reduce(t *driver.Thread, p *device.Param, s driver.Stream) error {
	n := p.Rows * p.Cols
	lo, hi, tail := p.Share.Own(n)
	at := mat(p.Grad).Ptr
	if hi > lo {
		if err := g.nccl.ReduceScatter(t, g.comm, at+4*uint64(lo), at, hi-lo, driver.NcclF32, s); err != nil {
			return err
		}
	}
	if tail == n {
		return nil
	}
	at += 4 * uint64(tail)
	return g.nccl.AllReduce(t, g.comm, at, at, n-tail, driver.NcclF32, s)
}

// gather lets elements [r·c,(r+1)·c) of m be those of rank r, for all r.
func (g *group) gather(t *driver.Thread, m kernel.Mat, c int, s driver.Stream) error {
	kind, size := driver.NcclF32, uint64(4)
	if m.Type == tensor.BF16 {
		kind, size = driver.NcclBF16, 2
	}
	return g.nccl.AllGather(t, g.comm, m.Ptr, m.Ptr+size*uint64(g.rank*c), c, kind, s)
}

// GatherWhole: p.Grad ← all elements of a companion that ranks share; of OfGrad what ReduceGradients left.
func (s *Stream) GatherWhole(p *device.Param, c device.Companion) {
	if c != device.OfGrad {
		for _, r := range portions(p) {
			s.Copy(flat(p.Grad, r.lo, r.hi), r.of(p, c))
		}
	}
	lo, hi, _ := p.Share.Own(p.Rows * p.Cols)
	o := s.begin("GatherWhole", p.Grad)
	if o == nil || hi == lo {
		return
	}
	o.collect(func(g *group, t *driver.Thread) error { return g.gather(t, mat(p.Grad), hi-lo, o.dev.stream) })
	o.end()
}

// TakeShare: this rank's elements of a companion ← those of p.Grad.
func (s *Stream) TakeShare(p *device.Param, c device.Companion) {
	for _, r := range portions(p) {
		s.Copy(r.of(p, c), flat(p.Grad, r.lo, r.hi))
	}
}

// Spread: p.Grad ← p.Grad of rank 0.
func (s *Stream) Spread(p *device.Param) {
	o := s.begin("Spread", p.Grad)
	if o == nil {
		return
	}
	m := mat(p.Grad)
	o.collect(func(g *group, t *driver.Thread) error {
		return g.nccl.Broadcast(t, g.comm, m.Ptr, m.Rows*m.Cols, driver.NcclF32, 0, o.dev.stream)
	})
	o.end()
}

// Widen: p.Grad ← the weight that products read.
func (s *Stream) Widen(p *device.Param) { s.cast("Widen", p.Grad, p.Weight.(*weight).t) }

// norms returns the table for the squares of all gradients: the pieces of all elements, of which those that another
// rank counts are empty.
func (s *Stream) norms(params []*device.Param) []kernel.ParamPiece {
	var all []kernel.ParamPiece
	for _, p := range params {
		n := p.Rows * p.Cols
		lo, hi, tail := p.Share.Own(n)
		at := mat(p.Grad).Ptr
		for first := 0; first < n; first += device.ShareUnit {
			piece := kernel.ParamPiece{G: at + 4*uint64(first)}
			if first >= lo && first < hi || first >= tail && s.dev.group.rank == 0 {
				piece.N = uint32(min(device.ShareUnit, n-first))
			}
			all = append(all, piece)
		}
	}
	return all
}

// sharedVerdict is Verdict for gradients of which each rank has some: sums of squares of pieces, each counted by one
// rank, are added over the ranks before the verdict, in the order that one rank has.
func (s *Stream) sharedVerdict(params []*device.Param) {
	table, n := s.table(params, true)
	s.touchAll(params)
	o := s.begin("Verdict")
	if o == nil || table == 0 {
		return
	}
	kernel.VerdictOver(o, table, n, func(sums uint64) {
		o.collect(func(g *group, t *driver.Thread) error {
			return g.nccl.AllReduce(t, g.comm, sums, sums, n, driver.NcclF64, o.dev.stream)
		})
	})
	o.end()
}

// tableBytes returns the bytes of a table.
func tableBytes(pieces []kernel.ParamPiece) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(pieces))), len(pieces)*int(unsafe.Sizeof(pieces[0])))
}
