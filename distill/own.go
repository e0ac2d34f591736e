package distill

import (
	"apr/corpus"
	"apr/device"
	"apr/tensor"
)

// ownPiece is how many of the student's own positions are looked at together: of them a further row of the vocabulary
// exists.
const ownPiece = 64

// ownRows are the last rows of each batch of a trainer, which the student wrote itself. Their targets y are what it
// drew.
//
// It reads ln q(y) of each under the weights that the step trains, to be held against what the sampler had. The draw
// itself has no gradient. Where the divergence is descended by the drawn ids alone,
//
//	∂L/∂z = 1/N·(ln q(y) − ln p(y))·(e_y − q),  y ~ q = softmax(z),  p the teacher's
//
// replaces the gradient of these positions: in the mean over y that of KL(q‖p) over the whole vocabulary (the score
// function's expectation is zero), from one sample. What is summed as D is the exact divergence in either case.
type ownRows struct {
	rows    int
	sampled bool

	index    device.Tensor // I32 [ownPiece, 1]
	identity device.Tensor // I32 [ownPiece, 1]: 0, 1, 2, …
	starts   device.Tensor // I32 [2, 1]
	logq     device.Tensor // F32 [rows·seqLen, 1]: of the student
	logp     device.Tensor // F32 [ownPiece, 1]: of the teacher
	weight   device.Tensor // F32 [ownPiece, 1]

	first   int     // kept positions of the step from here on are own
	targets []int32 // theirs
	host    []float32
}

// OwnRows makes the last rows of each batch the student's own; sampled descends the divergence by the drawn ids alone.
func (t *Trainer) OwnRows(rows, seqLen int, sampled bool) {
	dev := t.Student.Device()
	column := func(name string, d tensor.DType, n int) device.Tensor {
		return dev.Alloc("own."+name, device.Batch, d, n, 1)
	}
	t.own = &ownRows{
		rows: rows, sampled: sampled, index: column("index", tensor.I32, ownPiece),
		logq: column("logq", tensor.F32, rows*seqLen),
	}
	if sampled {
		t.own.logp, t.own.weight = column("logp", tensor.F32, ownPiece), column("weight", tensor.F32, ownPiece)
		t.own.identity, t.own.starts = column("identity", tensor.I32, ownPiece), column("starts", tensor.I32, 2)
	}
}

// free gives the memory back.
func (o *ownRows) free(dev device.Device) {
	dev.Free(o.index, o.logq)
	if o.sampled {
		dev.Free(o.logp, o.weight, o.identity, o.starts)
	}
}

// begin finds the own positions of a step.
func (o *ownRows) begin(b corpus.Batch) {
	o.first, o.targets = b.Slice(0, b.Rows-o.rows).TargetCount(), o.targets[:0]
	for i := (b.Rows - o.rows) * b.SeqLen; i < len(b.Mask); i++ {
		if b.Mask[i] != 0 {
			o.targets = append(o.targets, b.Targets[i])
		}
	}
}

// in returns how many of the kept positions [lo,hi) are own: the last ones.
func (o *ownRows) in(lo, hi int) int {
	if o == nil {
		return 0
	}
	return hi - min(hi, max(lo, o.first))
}

// read writes to dst [n, 1] ln softmax(z)[y] of the own positions from the at-th on, z [n, V].
func (o *ownRows) read(s device.Stream, dst, z device.Tensor, at int) {
	all := s.Temp("own.logprobs", device.Logits, tensor.F32, ownPiece, rowLength(z.Cols))
	defer s.Release(all)
	y := all.RowRange(0, z.Rows).ColRange(0, z.Cols)
	s.Mix(y, z, 1, 1, false)
	host := make([]int32, z.Rows)
	for i := range host {
		host[i] = int32(i*y.Stride) + o.targets[at+i]
	}
	index := o.index.RowRange(0, z.Rows)
	s.UploadInts(index, host)
	elements := (z.Rows-1)*y.Stride + z.Cols // between rows there is what nobody reads
	s.Gather(dst, device.Tensor{Buf: y.Buf, Off: y.Off, Rows: elements, Cols: 1, Stride: 1, DType: tensor.F32}, index)
}

// loss is Stream.Loss for own positions from the at-th on: it reads what it has to, and writes the gradient that it
// should.
func (o *ownRows) loss(s device.Stream, dz, z, t, targets device.Tensor, spec device.LossSpec, at int) {
	for lo := 0; lo < z.Rows; lo += ownPiece {
		hi := min(lo+ownPiece, z.Rows)
		o.piece(s, dz.RowRange(lo, hi), z.RowRange(lo, hi), t.RowRange(lo, hi), targets.RowRange(lo, hi), spec, at+lo)
	}
}

func (o *ownRows) piece(s device.Stream, dz, z, t, targets device.Tensor, spec device.LossSpec, at int) {
	n := z.Rows
	logq := o.logq.RowRange(at, at+n)
	o.read(s, logq, z, at)
	if !o.sampled {
		s.Loss(dz, z, t, targets, spec)
		return
	}
	logp, weight, identity := o.logp.RowRange(0, n), o.weight.RowRange(0, n), o.identity.RowRange(0, n)
	o.read(s, logp, t, at)
	s.Scale(weight, logq, -1)
	s.Add(weight, logp)
	spec.Alpha = 0 // the gradient of −ln q(y), and the sums of the divergence
	s.Loss(dz, z, t, targets, spec)
	numbers := make([]int32, n)
	for i := range numbers {
		numbers[i] = int32(i)
	}
	s.UploadInts(identity, numbers)
	s.UploadInts(o.starts, []int32{0, int32(n)})
	each := device.Routing{Experts: 1, Active: 1, Chosen: identity, Slots: identity, Rows: identity, Starts: o.starts}
	s.Combine(dz, dz, weight, each, false) // each row times its weight
}

// logProbs returns ln q(y) of the step's own positions under the weights that it began with, in their order.
func (o *ownRows) logProbs(s device.Stream) ([]float32, error) {
	o.host = append(o.host[:0], make([]float32, len(o.targets))...)
	if len(o.host) == 0 {
		return nil, nil
	}
	return o.host, s.Download(o.host, o.logq.RowRange(0, len(o.host)))
}
