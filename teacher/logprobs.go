package teacher

import (
	"apr/device"
	"apr/tensor"
)

// LogProbs reads ln softmax(z)[y], the logarithm of the probability of one id in each row of logits, piece by piece.
type LogProbs struct {
	dev   device.Device
	index device.Tensor // I32 [logProbRows, 1]
	all   device.Tensor // F32 [n, 1]
}

// logProbRows is how many rows are read at a time: of them a further row of the vocabulary exists.
const logProbRows = 64

// NewLogProbs reserves memory for n of them.
func NewLogProbs(dev device.Device, n int) *LogProbs {
	return &LogProbs{
		dev: dev, index: dev.Alloc("logprobs.index", device.Batch, tensor.I32, logProbRows, 1),
		all: dev.Alloc("logprobs", device.Batch, tensor.F32, n, 1),
	}
}

// Read reads those of ids in the rows of z, and keeps them from the at-th on.
func (l *LogProbs) Read(s device.Stream, z device.Tensor, ids []int32, at int) {
	host := make([]int32, logProbRows)
	for lo := 0; lo < z.Rows; lo += logProbRows {
		hi := min(lo+logProbRows, z.Rows)
		x := z.RowRange(lo, hi)
		y := s.Temp("logprobs.rows", device.Logits, tensor.F32, logProbRows, (z.Cols+15)/16*16).
			RowRange(0, x.Rows).ColRange(0, z.Cols)
		s.Mix(y, x, 1, 1, false)
		for i := range x.Rows {
			host[i] = int32(i*y.Stride) + ids[lo+i]
		}
		index := l.index.RowRange(0, x.Rows)
		s.UploadInts(index, host[:x.Rows])
		flat := y // with what is between its rows, which nobody reads, one long column
		flat.Rows, flat.Cols, flat.Stride = (x.Rows-1)*y.Stride+y.Cols, 1, 1
		s.Gather(l.all.RowRange(at+lo, at+hi), flat, index)
		s.Release(y)
	}
}

// Host returns the first n of them.
func (l *LogProbs) Host(s device.Stream, n int) ([]float32, error) {
	host := make([]float32, n)
	return host, s.Download(host, l.all.RowRange(0, n))
}

// Free gives the memory back.
func (l *LogProbs) Free() { l.dev.Free(l.index, l.all) }
