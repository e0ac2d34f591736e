package model

import (
	"apr/corpus"
	"apr/device"
	"apr/tensor"
)

// Batch is a batch of rows on the device. Kept positions are those whose target counts; head and loss see only these,
// in row order (compaction).
type Batch struct {
	Tokens  Tokens        // all sequences
	Targets device.Tensor // I32 [N, 1]: the kept targets
	Keep    device.Tensor // I32 [N, 1]: their positions in the batch; zero when every position is kept
	N       int           // kept positions
	Micro   []MicroBatch
	Routed  []RoutedPart // of RouteRows: the rows of each route, in order
	At      int          // position within the step of the first row that is loaded: dropout depends on it

	tokens, targets, keep, local     device.Tensor // capacity
	first, positions                 device.Tensor // of SeparateDocuments
	hostTargets, hostKeep, hostLocal []int32
	hostPositions                    []int32
	routed                           device.Tensor // of RouteRows
	hostRouted                       []int32
}

// RoutedPart is a range of a batch's sequences that go one way, and of its kept positions.
type RoutedPart struct {
	MicroBatch
	Route int
}

// Batch returns the part as a batch of its own, to be read by a teacher: without targets.
func (p RoutedPart) Batch() *Batch { return &Batch{Tokens: p.Tokens, Keep: p.Keep, N: p.Hi - p.Lo} }

// MicroBatch is a range of a batch's sequences and of its kept positions.
type MicroBatch struct {
	Tokens Tokens
	Lo, Hi int           // kept positions [Lo,Hi) of the batch
	Keep   device.Tensor // I32 [Hi−Lo, 1]: their positions within the micro-batch; zero when every position is kept
}

// NewBatch reserves device memory for batches of up to rows sequences of seqLen positions.
func NewBatch(dev device.Device, rows, seqLen int) *Batch {
	ints := func(name string) device.Tensor {
		return dev.Alloc(name, device.Batch, tensor.I32, rows*seqLen, 1)
	}
	return &Batch{tokens: ints("batch.tokens"), targets: ints("batch.targets"), keep: ints("batch.keep"), local: ints("batch.local")}
}

// SeparateDocuments reserves memory for where documents begin: batches that say so are then read document by document.
func (d *Batch) SeparateDocuments(dev device.Device) {
	ints := func(name string) device.Tensor {
		return dev.Alloc(name, device.Batch, tensor.I32, d.tokens.Rows, 1)
	}
	d.first, d.positions = ints("batch.first"), ints("batch.positions")
}

// RouteRows reserves memory for the kept positions of routed rows: Load then makes parts of batches that say which way their rows
// go.
func (d *Batch) RouteRows(dev device.Device) {
	d.routed = dev.Alloc("batch.routed", device.Batch, tensor.I32, d.tokens.Rows, 1)
}

// Free gives the batch's memory back; it must not be used afterwards.
func (d *Batch) Free(dev device.Device) {
	dev.Free(d.tokens, d.targets, d.keep, d.local)
	if !d.first.IsZero() {
		dev.Free(d.first, d.positions)
	}
	if !d.routed.IsZero() {
		dev.Free(d.routed)
	}
}

// Load compacts b, splits it into micro-batches of microRows sequences, and copies it to the device.
func (d *Batch) Load(s device.Stream, b corpus.Batch, microRows int) {
	d.hostTargets, d.hostKeep, d.hostLocal = d.hostTargets[:0], d.hostKeep[:0], d.hostLocal[:0]
	d.Micro = d.Micro[:0]
	positions := b.Rows * b.SeqLen
	d.Tokens = Tokens{IDs: d.tokens.RowRange(0, positions), Rows: b.Rows, SeqLen: b.SeqLen, At: d.At}
	d.loadDocuments(s, b)
	for lo := 0; lo < b.Rows; lo += microRows {
		hi := min(lo+microRows, b.Rows)
		m := MicroBatch{Tokens: d.Tokens.Slice(lo, hi), Lo: len(d.hostTargets)}
		for i := lo * b.SeqLen; i < hi*b.SeqLen; i++ {
			if b.Mask[i] != 0 {
				d.hostTargets = append(d.hostTargets, b.Targets[i])
				d.hostKeep = append(d.hostKeep, int32(i))
				d.hostLocal = append(d.hostLocal, int32(i-lo*b.SeqLen))
			}
		}
		m.Hi = len(d.hostTargets)
		if m.Hi-m.Lo < (hi-lo)*b.SeqLen {
			m.Keep = d.local.RowRange(m.Lo, m.Hi)
		}
		d.Micro = append(d.Micro, m)
	}
	d.N = len(d.hostTargets)
	d.Targets = d.targets.RowRange(0, d.N)
	s.UploadInts(d.Tokens.IDs, b.Tokens)
	s.UploadInts(d.Targets, d.hostTargets)
	d.Keep = device.Tensor{}
	if d.N < positions {
		d.Keep = d.keep.RowRange(0, d.N)
		s.UploadInts(d.Keep, d.hostKeep)
		s.UploadInts(d.local.RowRange(0, d.N), d.hostLocal)
	}
	d.route(s, b)
}

// route makes parts of neighbouring rows of one route.
func (d *Batch) route(s device.Stream, b corpus.Batch) {
	d.Routed = d.Routed[:0]
	if b.Routes == nil || d.routed.IsZero() {
		return
	}
	d.hostRouted = d.hostRouted[:0]
	for lo := 0; lo < b.Rows; {
		hi := lo + 1
		for hi < b.Rows && b.Routes[hi] == b.Routes[lo] {
			hi++
		}
		p := RoutedPart{Route: b.Routes[lo], MicroBatch: MicroBatch{Tokens: d.Tokens.Slice(lo, hi), Lo: len(d.hostRouted)}}
		for i := lo * b.SeqLen; i < hi*b.SeqLen; i++ {
			if b.Mask[i] != 0 {
				d.hostRouted = append(d.hostRouted, int32(i-lo*b.SeqLen))
			}
		}
		p.Hi = len(d.hostRouted)
		if p.Hi-p.Lo < (hi-lo)*b.SeqLen {
			p.Keep = d.routed.RowRange(p.Lo, p.Hi)
		}
		d.Routed = append(d.Routed, p)
		lo = hi
	}
	s.UploadInts(d.routed.RowRange(0, d.N), d.hostRouted)
}

// loadDocuments copies to the device where the documents of b begin.
func (d *Batch) loadDocuments(s device.Stream, b corpus.Batch) {
	if b.Starts == nil {
		return
	}
	d.hostPositions = d.hostPositions[:0]
	for i, start := range b.Starts {
		d.hostPositions = append(d.hostPositions, int32(i%b.SeqLen)-start)
	}
	d.Tokens.First, d.Tokens.Positions = d.first.RowRange(0, len(b.Starts)), d.positions.RowRange(0, len(b.Starts))
	s.UploadInts(d.Tokens.First, b.Starts)
	s.UploadInts(d.Tokens.Positions, d.hostPositions)
}
