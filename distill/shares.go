package distill

import (
	"context"
	"encoding/binary"
	"slices"

	"apr/collective"
	"apr/device"
	"apr/model"
)

// shares moves training state that ranks share (device.Share) between the ranks and rank 0, which alone reads and
// writes checkpoints and students, so that these have whole tensors whatever the number of ranks. Rank 0 says what it
// wants; the others do their part until it says that it is done. nil: nothing is shared.
type shares struct {
	comm   collective.Comm
	s      device.Exchanger
	params []*device.Param
}

// What rank 0 may want.
const (
	shareDone   = iota
	shareGather // all values of a companion, in the memory of its gradient on every rank
	shareSpread // every rank takes its elements of what rank 0 has there
)

// newShares returns nil if the ranks share nothing of m.
func newShares(r Ranks, s device.Stream, m *model.Model) *shares {
	if !r.Joined || !slices.ContainsFunc(m.Params(), func(p *device.Param) bool { return p.Shared(device.OfM) }) {
		return nil
	}
	x := &shares{comm: r.Comm, s: s.(device.Exchanger), params: m.Params()}
	if r.Rank() == 0 {
		m.Whole = x.gather
	}
	return x
}

// say tells the other ranks what rank 0 wants.
func (x *shares) say(what, param int, c device.Companion) error {
	b := make([]byte, 0, 12)
	for _, v := range []int{what, param, int(c)} {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return x.comm.Broadcast(b)
}

// gather is model.Model.Whole of rank 0. When a rank is lost, what is gathered is an error of the stream.
func (x *shares) gather(p *device.Param, c device.Companion) {
	if x.say(shareGather, slices.Index(x.params, p), c) == nil {
		x.s.GatherWhole(p, c)
	}
}

// spread gives every rank its elements of a companion that rank 0 has uploaded to its staging place.
func (x *shares) spread(param int, c device.Companion) error {
	if err := x.say(shareSpread, param, c); err != nil {
		return err
	}
	x.take(x.params[param], c)
	return nil
}

func (x *shares) take(p *device.Param, c device.Companion) {
	x.s.Spread(p)
	if c == device.OfValue {
		x.s.RefreshWeight(p)
	} else {
		x.s.TakeShare(p, c)
	}
}

// done ends what rank 0 wants.
func (x *shares) done() error {
	if x == nil {
		return nil
	}
	return x.say(shareDone, 0, 0)
}

// serve does what rank 0 wants, until it is done.
func (x *shares) serve() error {
	if x == nil {
		return nil
	}
	for {
		b := make([]byte, 12)
		if err := x.comm.Broadcast(b); err != nil {
			return err
		}
		what, p := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
		c := device.Companion(binary.LittleEndian.Uint32(b[8:]))
		switch what {
		case shareDone:
			_, err := x.s.Wait(context.Background())
			return err
		case shareGather:
			x.s.GatherWhole(x.params[p], c)
		case shareSpread:
			x.take(x.params[p], c)
		}
	}
}
