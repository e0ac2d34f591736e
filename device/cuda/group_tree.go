package cuda

import (
	"apr/device"
	"apr/device/cuda/driver"
	"apr/tensor"
)

// A sum as a tree over more than two ranks: NCCL's own sums have an order that depends on their number. Each rank sends
// every other one the elements that it keeps, in one group of sends and receives, which are the bytes of a
// reduce-scatter, and adds what has come as the binary tree of neighbours ((0+1)+(2+3))+…. Elements that all ranks
// keep, below World·device.ShareUnit of a parameter, go from each to each.

// treeBlock are elements of x: rank q adds up [lo+q·stride, lo+q·stride+n). They stand at `at` of each row of the
// memory in which they arrive.
type treeBlock struct {
	x                 device.Tensor
	lo, n, stride, at int
}

// own are the elements of a rank.
func (b treeBlock) own(rank int) device.Tensor {
	lo := b.lo + rank*b.stride
	return flat(b.x, lo, lo+b.n)
}

// treeChunks cuts the sums of tensors into pieces of at most room elements of each rank.
func treeChunks(ts []device.Tensor, shares []device.Share, room int) (all [][]treeBlock) {
	var chunk []treeBlock
	used := 0
	add := func(x device.Tensor, lo, n, stride int) {
		for n > 0 {
			k := min(n, room-used)
			chunk = append(chunk, treeBlock{x, lo, k, stride, used})
			lo, n, used = lo+k, n-k, used+k
			if used == room {
				all, chunk, used = append(all, chunk), nil, 0
			}
		}
	}
	for i, x := range ts {
		n := x.Rows * x.Cols
		lo, hi, tail := shares[i].Own(n)
		add(x, 0, hi-lo, hi-lo)
		add(x, tail, n-tail, 0)
	}
	if used > 0 {
		all = append(all, chunk)
	}
	return all
}

// sumTree replaces the elements that this rank keeps of each tensor by their sum over the ranks.
func (s *Stream) sumTree(name string, ts []device.Tensor, shares []device.Share) {
	kept := 0
	for i, x := range ts {
		kept += shares[i].Kept(x.Rows * x.Cols)
	}
	g, room := s.dev.group, min(kept, device.TreePiece)
	stage := s.Temp("ranks.tree", device.Gradients, tensor.F32, g.world, room)
	for _, chunk := range treeChunks(ts, shares, room) {
		s.sendTree(name, stage, chunk)
		row := func(rank, lo, n int) device.Tensor { return flat(stage, rank*room+lo, rank*room+lo+n) }
		for _, b := range chunk {
			s.Copy(row(g.rank, b.at, b.n), b.own(g.rank))
		}
		last := chunk[len(chunk)-1]
		for stride := 1; stride < g.world; stride *= 2 {
			for i := 0; i+stride < g.world; i += 2 * stride {
				s.Add(row(i, 0, last.at+last.n), row(i+stride, 0, last.at+last.n))
			}
		}
		for _, b := range chunk {
			s.Copy(b.own(g.rank), row(0, b.at, b.n))
		}
	}
	s.Release(stage)
}

// sendTree gives every rank its elements of this one's, and takes theirs to the rows of stage.
func (s *Stream) sendTree(name string, stage device.Tensor, chunk []treeBlock) {
	ts := []device.Tensor{stage}
	for _, b := range chunk {
		ts = append(ts, b.x)
	}
	o := s.begin(name, ts...)
	if o == nil {
		return
	}
	to := mat(stage)
	o.collect(func(g *group, t *driver.Thread) error {
		return g.nccl.Together(func() error {
			for k := 1; k < g.world; k++ {
				next, before := (g.rank+k)%g.world, (g.rank+g.world-k)%g.world
				for _, b := range chunk {
					from, place := mat(b.own(next)).Ptr, to.Ptr+4*uint64(before*to.Cols+b.at)
					if err := g.nccl.Send(t, g.comm, from, b.n, driver.NcclF32, next, o.dev.stream); err != nil {
						return err
					}
					if err := g.nccl.Recv(t, g.comm, place, b.n, driver.NcclF32, before, o.dev.stream); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
	o.end()
}

// sumWholeTree replaces each tensor by its sum: each rank adds a share, and all gather them.
func (s *Stream) sumWholeTree(ts []device.Tensor) {
	share := device.Share{Rank: s.dev.group.rank, World: s.dev.group.world}
	shares := make([]device.Share, len(ts))
	for i := range shares {
		shares[i] = share
	}
	s.sumTree("SumRanks", ts, shares)
	o := s.begin("SumRanks", ts...)
	if o == nil {
		return
	}
	o.collect(func(g *group, t *driver.Thread) error {
		return g.nccl.Together(func() error {
			for _, x := range ts {
				lo, hi, _ := share.Own(x.Rows * x.Cols)
				if hi == lo {
					continue
				}
				if err := g.gather(t, mat(x), hi-lo, o.dev.stream); err != nil {
					return err
				}
			}
			return nil
		})
	})
	o.end()
}
