package corpus

import (
	"math/bits"
	"math/rand/v2"
	"slices"

	"apr/internal/fault"
)

// Batch is Rows rows of SeqLen positions, row-major. Position i of a row reads Tokens[i] and predicts Targets[i], which
// counts in the loss if Mask[i] is 1.
type Batch struct {
	Rows, SeqLen int
	Tokens       []int32 // [Rows, SeqLen]
	Targets      []int32 // [Rows, SeqLen]
	Mask         []uint8 // [Rows, SeqLen], 0 or 1
	Starts       []int32 // [Rows, SeqLen]: where in its row the document of a position begins; nil: rows are read as one document
	Routes       []int   // [Rows], ascending: which way each row goes, as Rows.Route has it; nil: all go one way
}

func newBatch(rows, seqLen int) Batch {
	n := rows * seqLen
	return Batch{Rows: rows, SeqLen: seqLen, Tokens: make([]int32, n), Targets: make([]int32, n), Mask: make([]uint8, n)}
}

// row returns row i as a view.
func (b Batch) row(i int) (inputs, targets []int32, mask []uint8) {
	lo, hi := i*b.SeqLen, (i+1)*b.SeqLen
	return b.Tokens[lo:hi], b.Targets[lo:hi], b.Mask[lo:hi]
}

// TargetCount returns N, the number of targets that count in the loss.
func (b Batch) TargetCount() int {
	n := 0
	for _, m := range b.Mask {
		n += int(m)
	}
	return n
}

// Micro splits the batch into micro-batches of rows rows each, the last with what remains. They are views.
func (b Batch) Micro(rows int) []Batch {
	if rows < 1 {
		panic("corpus: micro-batch without rows")
	}
	var out []Batch
	for lo := 0; lo < b.Rows; lo += rows {
		out = append(out, b.Slice(lo, min(lo+rows, b.Rows)))
	}
	return out
}

// Slice returns rows [lo,hi) as a view.
func (b Batch) Slice(lo, hi int) Batch {
	i, j := lo*b.SeqLen, hi*b.SeqLen
	s := Batch{Rows: hi - lo, SeqLen: b.SeqLen, Tokens: b.Tokens[i:j:j], Targets: b.Targets[i:j:j], Mask: b.Mask[i:j:j]}
	if b.Starts != nil {
		s.Starts = b.Starts[i:j:j]
	}
	if b.Routes != nil {
		s.Routes = b.Routes[lo:hi:hi]
	}
	return s
}

// Position is a place in the endless sequence of rows: the next row to serve is the Row-th of epoch Epoch's order,
// both from 0.
type Position struct {
	Epoch int64 `json:"epoch"`
	Row   int64 `json:"row"`
}

// LoaderOptions say how a Loader orders rows.
type LoaderOptions struct {
	BatchRows int    // rows of a batch: micro-batch × accumulation × ranks
	Shuffle   bool   // else data order in every epoch
	Seed      uint64 // of the order
	Documents bool   // batches say where documents begin
}

// Loader serves batches over the epochs without end. Every row is served exactly once an epoch: the batch that meets
// the end of an epoch goes on with the first rows of the next one, so batches are always full.
type Loader struct {
	rows *Rows
	opt  LoaderOptions
	pos  Position

	perm      []uint32 // order of epoch permEpoch; nil: data order
	permEpoch int64
}

// NewLoader returns a Loader at the beginning of epoch 0. Without rows, for steps that are made of others, its
// batches of 0 rows are empty, and it stays where it is.
func NewLoader(rows *Rows, opt LoaderOptions) (*Loader, error) {
	if rows == nil && opt.BatchRows == 0 {
		return &Loader{opt: opt, permEpoch: -1}, nil
	}
	if opt.BatchRows < 1 {
		return nil, fault.New(fault.Usage, "a batch of %d rows", opt.BatchRows).WithID("E-CORPUS-020")
	}
	if uint64(rows.Len()) > 1<<32-1 {
		return nil, fault.New(fault.Unavailable, "%d rows are more than the 2^32-1 that can be ordered", rows.Len()).WithID("E-CORPUS-021")
	}
	l := &Loader{rows: rows, opt: opt, permEpoch: -1}
	return l, l.Seek(Position{})
}

// Position returns the place of the next row.
func (l *Loader) Position() Position { return l.pos }

// Seek continues from p, as read from a checkpoint of the same rows, options and seed.
func (l *Loader) Seek(p Position) error {
	if l.rows == nil && p == (Position{}) {
		return nil
	}
	if p.Epoch < 0 || p.Row < 0 || p.Row >= int64(l.count()) {
		return fault.New(fault.Invalid, "position epoch %d, row %d is outside the data's %d rows", p.Epoch, p.Row, l.count()).
			WithHint("the data differs from that of the checkpoint").WithID("E-CORPUS-022")
	}
	l.pos = p
	l.order(p.Epoch)
	return nil
}

// count returns the number of rows.
func (l *Loader) count() int {
	if l.rows == nil {
		return 0
	}
	return l.rows.Len()
}

// Steps returns the number of batches after which each row was served at least epochs times: ⌈epochs·rows/batch rows⌉.
func (l *Loader) Steps(epochs int) int64 {
	hi, lo := bits.Mul64(uint64(max(epochs, 0)), uint64(l.rows.Len()))
	b := uint64(l.opt.BatchRows)
	if hi >= b {
		return 1<<63 - 1
	}
	q, rem := bits.Div64(hi, lo, b)
	if rem > 0 {
		q++
	}
	return int64(min(q, 1<<63-1))
}

// Next returns the next batch, in memory of its own. A batch without any target is a fault of kind Invalid, for its
// loss is 0/0.
func (l *Loader) Next() (Batch, error) {
	if l.rows == nil {
		return Batch{}, nil
	}
	from := l.pos
	b := l.batch(l.NextRows())
	if b.TargetCount() == 0 {
		return Batch{}, fault.New(fault.Invalid, "the batch at epoch %d, row %d has no target", from.Epoch, from.Row).
			WithHint("%d of %d rows have none; use larger batches, packing, or other data", l.rows.NoTargets, l.rows.Len()).
			WithID("E-CORPUS-023")
	}
	return b, nil
}

// FirstOf returns the first rows that go one way, a batch of them at most, in the order of the present epoch, and
// stays where it is. There may be none.
func (l *Loader) FirstOf(way int) Batch {
	var rows []int
	for k := int64(0); k < int64(l.count()) && len(rows) < l.opt.BatchRows; k++ {
		if row := l.rowAt(k); l.rows.Route(row) == way {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return Batch{}
	}
	return l.batch(rows)
}

// batch fills a batch with rows of the data.
func (l *Loader) batch(rows []int) Batch {
	b := newBatch(len(rows), l.rows.SeqLen)
	if l.opt.Documents {
		b.Starts = make([]int32, len(b.Tokens))
	}
	for i, row := range rows {
		inputs, targets, mask := b.row(i)
		l.rows.Fill(row, inputs, targets, mask)
		if l.opt.Documents {
			l.rows.FillStarts(row, b.Starts[i*b.SeqLen:(i+1)*b.SeqLen])
		}
		if l.rows.Routed() {
			b.Routes = append(b.Routes, l.rows.Route(row))
		}
	}
	return b
}

// RowsFrom returns which rows of the data the batch at p is made of, in their order.
func (l *Loader) RowsFrom(p Position) []int {
	if l.rows == nil {
		return nil
	}
	at := &Loader{rows: l.rows, opt: l.opt, pos: p, permEpoch: p.Epoch - 1} // an order of its own
	at.order(p.Epoch)
	return at.NextRows()
}

// NextRows returns the rows of the next batch, of routed ones those of each route together, and moves behind them.
func (l *Loader) NextRows() []int {
	rows := make([]int, l.opt.BatchRows)
	for i := range rows {
		rows[i] = l.rowAt(l.pos.Row)
		l.advance()
	}
	if l.rows.Routed() {
		slices.SortStableFunc(rows, func(a, b int) int { return l.rows.Route(a) - l.rows.Route(b) })
	}
	return rows
}

// advance moves to the next row, into the next epoch if need be.
func (l *Loader) advance() {
	l.pos.Row++
	if l.pos.Row == int64(l.rows.Len()) {
		l.pos = Position{Epoch: l.pos.Epoch + 1}
		l.order(l.pos.Epoch)
	}
}

func (l *Loader) rowAt(k int64) int {
	if !l.opt.Shuffle {
		return int(k)
	}
	return int(l.perm[k])
}

// order prepares the order of an epoch.
func (l *Loader) order(epoch int64) {
	if l.opt.Shuffle && l.permEpoch != epoch {
		l.perm, l.permEpoch = permutation(l.perm, l.rows.Len(), l.opt.Seed, uint64(epoch)), epoch
	}
}

// permutation returns the order of n rows in an epoch, in p's memory if that suffices: Fisher and Yates' shuffle from
// the last place down, where place i is exchanged with place ⌊x·(i+1)/2⁶⁴⌋, x being the next output of PCG-DXSM
// (math/rand/v2) seeded with (seed, epoch). x is drawn again when the low half of the product is below
// 2⁶⁴ mod (i+1), which makes all places equally likely (Lemire 2019, arXiv:1805.10941). Integers only, so the order is
// the same on every platform.
func permutation(p []uint32, n int, seed, epoch uint64) []uint32 {
	if cap(p) < n {
		p = make([]uint32, n)
	}
	p = p[:n]
	for i := range p {
		p[i] = uint32(i)
	}
	pcg := rand.NewPCG(seed, epoch)
	for i := n - 1; i > 0; i-- {
		m := uint64(i + 1)
		hi, lo := bits.Mul64(pcg.Uint64(), m)
		for threshold := -m % m; lo < threshold; {
			hi, lo = bits.Mul64(pcg.Uint64(), m)
		}
		p[i], p[hi] = p[hi], p[i]
	}
	return p
}
