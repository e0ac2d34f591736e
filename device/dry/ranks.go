package dry

import (
	"apr/device"
	"apr/tensor"
)

// Exchange is what a rank gives to the others in a step, in bytes that leave its memory at least, whatever
// algorithm carries them.
type Exchange struct {
	Gradients float64 `json:"gradients_sent"`
	Weights   float64 `json:"weights_sent"`
	// Host are the bytes of the host's memory through which gradients go; 0: they go from device to device.
	Host int64 `json:"host_buffer"`
}

// A stream of a target whose Share has a World above 1 is that of one of several ranks. The others are not there: what
// would come from them has no values either.
var _ device.Exchanger = (*Stream)(nil)

// others returns (W−1)/W, which a ring of W ranks sends of what it adds or gathers.
func (d *Device) others() float64 {
	w := float64(max(1, d.target.Share.World))
	return (w - 1) / w
}

// sends counts a sum of gradients: a reduce-scatter of what ranks share, and a sum of the rest on every rank, which is
// a reduce-scatter and a gather.
func (s *Stream) sends(params []*device.Param) {
	for _, p := range params {
		n := p.Rows * p.Cols
		_, _, tail := p.Share.Own(n)
		all := float64(tail) + 2*float64(n-tail)
		s.dev.exchange.Gradients += 4 * all * s.dev.others()
	}
}

// SumRanks counts what a sum of whole tensors sends.
func (s *Stream) SumRanks(_ bool, ts ...device.Tensor) {
	device.CheckSumRanks(ts...)
	for _, t := range ts {
		use(device.OpAdd, t)
		s.dev.exchange.Gradients += 2 * 4 * float64(t.Rows*t.Cols) * s.dev.others()
	}
}

// ReduceGradients counts what it sends. A tree of more than two ranks takes memory, and sends what all ranks keep from
// each to each.
func (s *Stream) ReduceGradients(tree bool, params []*device.Param) {
	s.sends(params)
	world, kept := s.dev.target.Share.World, 0
	if !tree || world <= 2 {
		return
	}
	for _, p := range params {
		n := p.Rows * p.Cols
		_, _, tail := p.Share.Own(n)
		s.dev.exchange.Gradients += 4 * float64(n-tail) * (float64(world-1) - 2*s.dev.others())
		kept += p.Share.Kept(n)
	}
	s.Release(s.Temp("ranks.tree", device.Gradients, tensor.F32, world, min(kept, device.TreePiece)))
}

// SendGradients is ReduceGradients: gradients travel where they lie.
func (s *Stream) SendGradients(params []*device.Param) { s.sends(params) }

// GatherWeights counts what a gather of the weights that products read sends.
func (s *Stream) GatherWeights(params []*device.Param) {
	for _, p := range params {
		_, _, tail := p.Share.Own(p.Rows * p.Cols)
		s.dev.exchange.Weights += float64(s.dev.target.Matrices.RowBytes(tail)) * s.dev.others()
	}
}

// Arrive does nothing: nothing is on its way.
func (s *Stream) Arrive() {}

// GatherWhole, TakeShare, Spread and Widen move values, in memory that is there.
func (s *Stream) GatherWhole(*device.Param, device.Companion) {}

// TakeShare moves values.
func (s *Stream) TakeShare(*device.Param, device.Companion) {}

// Spread moves values.
func (s *Stream) Spread(*device.Param) {}

// Widen moves values.
func (s *Stream) Widen(*device.Param) {}
