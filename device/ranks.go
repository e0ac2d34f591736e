package device

import "apr/tensor"

// GroupIDBytes is the size of a group's id.
const GroupIDBytes = 128

// Joiner is a Device that can be joined with the devices of other ranks of a run, so that sums over the ranks go from
// memory to memory, past the host. A device belongs to one group at a time.
type Joiner interface {
	Device
	// CanJoin returns nil if what joining needs is there: else a fault of kind Unavailable says what was looked for.
	CanJoin() error
	// GroupID returns what every rank needs to meet the others: rank 0 asks for it and tells it. It is a secret of the
	// group.
	GroupID() ([]byte, error)
	// Join makes this device rank `rank` of world; it waits for all others. NewStream's streams are Exchangers then.
	Join(rank, world int, id []byte) error
	// Part ends the group at once, whatever goes on in it: operations on the way end, and fail with cause. Any goroutine
	// may call it.
	Part(cause error)
}

// Exchanger is a Stream of a device that has joined others. All ranks call its methods with the same parameters and
// shapes in the same order.
type Exchanger interface {
	Stream
	// SumRanks: t ← Σ_r t_r over the ranks, for each t: float32 without gaps. With tree the sum is the binary tree of
	// neighbours ((0+1)+(2+3))+…, whose bits do not depend on how rows were dealt to a power of two of ranks.
	SumRanks(tree bool, ts ...Tensor)
	// ReduceGradients: of each gradient the elements that this rank keeps (ParamSpec.Share) ← their sum over the ranks.
	// Others are undefined afterwards. tree as in SumRanks. Verdict and AdamW then are of these elements, and of all.
	ReduceGradients(tree bool, params []*Param)
	// SendGradients begins ReduceGradients of some parameters beside what is queued from now on. Their gradients are
	// complete: until Arrive nothing may read or write them. What was sent is added in the order of calls.
	SendGradients(params []*Param)
	// GatherWeights: every Weight ← what the ranks that keep its elements have, after AdamW, beside what is queued from
	// now on. An operation that reads such a Weight waits for it by itself.
	GatherWeights(params []*Param)
	// Arrive lets what is queued from now on wait for all that was sent and gathered. How long the device waited with
	// nothing else to do is time of PhaseExchange.
	Arrive()
	// GatherWhole: p.Grad ← all elements of a shared companion; of OfGrad, what ReduceGradients left with each rank.
	GatherWhole(p *Param, c Companion)
	// TakeShare: this rank's elements of a shared companion ← those of p.Grad.
	TakeShare(p *Param, c Companion)
	// Spread: p.Grad ← p.Grad of rank 0.
	Spread(p *Param)
	// Widen: p.Grad ← the values of p.Weight as products read them.
	Widen(p *Param)
}

// Pairer is a Device that can be joined with that of one other rank, to pass tensors to it past the host.
type Pairer interface {
	Device
	// CanJoin and GroupID are those of a Joiner.
	CanJoin() error
	GroupID() ([]byte, error)
	// Pair joins this device with the one of rank peer, which calls it too; one of the two gives. It waits for the other.
	// NewStream's streams are Passers then.
	Pair(peer int, gives bool, id []byte) error
	// Part is that of a Joiner: it ends pairs, too.
	Part(cause error)
}

// Passer is a Stream of a device that is paired with others. Both sides make their calls in the same order, with
// tensors of the same type and size.
type Passer interface {
	Stream
	// Pass: x of Receive on rank peer's device ← x, F32 or BF16 without gaps.
	Pass(peer int, x Tensor)
	// Receive: x ← x of Pass on rank peer's device.
	Receive(peer int, x Tensor)
}

// CheckPass checks a call of Pass or Receive.
func CheckPass(x Tensor) {
	if x.IsZero() || x.DType != tensor.F32 && x.DType != tensor.BF16 || !x.Dense() {
		panic("device: Pass: a tensor is not float32 or bfloat16 without gaps")
	}
}

// TreePiece is how many elements each rank adds up at a time, at most, in a sum as a tree over more than two ranks. So
// many of every rank are in memory at a time, as a temp of the gradients.
const TreePiece = 1 << 20

// CheckSumRanks checks a call of SumRanks.
func CheckSumRanks(ts ...Tensor) {
	for _, t := range ts {
		if t.IsZero() || t.DType != tensor.F32 || !t.Dense() {
			panic("device: SumRanks: a tensor is not float32 without gaps")
		}
	}
}
