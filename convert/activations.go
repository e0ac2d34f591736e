package convert

import (
	"context"

	"apr/corpus"
	"apr/device"
	"apr/eval"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
)

// Activations measures the importance of a model's matrices on windows of text: the mean square of what products multiply them by.
// Products of experts are refused: a token's experts get few positions each, and llama-imatrix knows how to count them.
func Activations(ctx context.Context, dev device.Device, f *modelfile.Files, w *corpus.Windows, vocab int, progress func(done, total int)) (Importance, error) {
	for _, l := range f.Config.Layers {
		if l.FFN.MoE.Experts > 0 {
			return nil, fault.In(fault.Unavailable, f.Path, "importance of experts is not measured").
				WithHint("--imatrix takes a file of llama-imatrix").WithID("E-IMATRIX-003")
		}
	}
	m, err := model.LoadFrozen(dev, f, device.TeacherWeights)
	if err != nil {
		return nil, err
	}
	s := &listener{Stream: dev.NewStream(), heard: map[device.Weight]*heard{}}
	if _, err := eval.Compare(ctx, s, nil, []eval.Subject{{Name: f.Path, Model: m}}, w, eval.Options{Vocab: vocab, Progress: progress}); err != nil {
		return nil, err
	}
	out := Importance{}
	for weight, slots := range m.Matrices() {
		h := s.heard[weight]
		if h == nil {
			continue // rows are gathered from it
		}
		values := make([]float32, len(h.squares))
		for i, sum := range h.squares {
			values[i] = float32(sum / float64(h.rows))
		}
		for _, slot := range slots {
			out[slot.Name] = values
		}
	}
	return out, s.err
}

// listener is a stream that sums the squares of what matrices are multiplied by.
type listener struct {
	device.Stream
	heard map[device.Weight]*heard
	host  []float32
	err   error
}

// heard are sums over rows of one matrix's input.
type heard struct {
	squares []float64
	rows    int64
}

// MatMul listens, and multiplies.
func (l *listener) MatMul(y, x device.Tensor, w device.Weight, bias device.Tensor, add bool) {
	l.listen(x, w)
	l.Stream.MatMul(y, x, w, bias, add)
}

// MatMulGLU listens, and multiplies.
func (l *listener) MatMulGLU(m, gu, x device.Tensor, w device.Weight, act device.Activation, keep bool) {
	l.listen(x, w)
	l.Stream.MatMulGLU(m, gu, x, w, act, keep)
}

func (l *listener) listen(x device.Tensor, w device.Weight) {
	n := x.Rows * x.Cols
	if cap(l.host) < n {
		l.host = make([]float32, n)
	}
	host := l.host[:n]
	if err := l.Download(host, x); err != nil && l.err == nil {
		l.err = err
		return
	}
	h := l.heard[w]
	if h == nil {
		h = &heard{squares: make([]float64, x.Cols)}
		l.heard[w] = h
	}
	h.rows += int64(x.Rows)
	for i, v := range host {
		h.squares[i%x.Cols] += float64(v) * float64(v)
	}
}
