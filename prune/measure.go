package prune

import (
	"context"
	"math"

	"apr/arch"
	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/tensor"
)

// Importance says how much the parts of a model matter to some text; the formulas are those of the package. Lists are
// by layer.
type Importance struct {
	Tokens  int64
	Layers  []float64
	Neurons [][]float64
	Heads   [][]float64
	Experts [][]float64

	norms map[string]*normSums // by slot
}

// normSums are means over positions of what a norm normalises, x̂ = x·rstd: of |x̂| and x̂², by column. weight is
// what the norm multiplies by.
type normSums struct {
	slot        arch.Slot
	weight      []float32
	abs, square []float64
}

// share returns the part of Σ x̂² that is in the columns that stay.
func (n *normSums) share(columns []int) float64 {
	kept, all := 0.0, 0.0
	for _, c := range columns {
		kept += n.square[c]
	}
	for _, x := range n.square {
		all += x
	}
	return kept / all
}

// batchPositions is about how many positions are computed at a time.
const batchPositions = 1024

// Measure runs m, whose weights are f's, over windows of text.
func Measure(ctx context.Context, m *model.Model, f *modelfile.Files, w *corpus.Windows, progress func(done, total int)) (*Importance, error) {
	l, err := newListener(m, f)
	if err != nil {
		return nil, err
	}
	rows := max(1, batchPositions/w.SeqLen)
	batch := model.NewBatch(m.Device(), rows, w.SeqLen)
	defer batch.Free(m.Device())
	for lo := 0; lo < w.Len(); lo += rows {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		hi := min(lo+rows, w.Len())
		b := w.Batch(lo, hi)
		batch.Load(l, b, b.Rows)
		if err := l.forward(m, batch.Tokens); err != nil {
			return nil, err
		}
		if progress != nil {
			progress(hi, w.Len())
		}
	}
	if _, err := l.Wait(ctx); err != nil {
		return nil, err
	}
	return l.importance(f.Path)
}

// forward computes a batch and sums what the streams between layers say.
func (l *listener) forward(m *model.Model, t model.Tokens) error {
	n, h, layers := t.Rows*t.SeqLen, m.Config.Hidden, len(m.Config.Layers)
	d := m.Device().Info().Activations
	outputs := map[int]device.Tensor{}
	for i := -1; i < layers; i++ {
		outputs[i] = l.Temp("prune.stream", device.Scratch, d, n, h)
	}
	dst := l.Temp("prune.hidden", device.Scratch, d, n, h)
	m.HiddenKeeping(l, dst, t, model.Kept{Outputs: outputs})
	before, behind := make([]float32, n*h), make([]float32, n*h)
	err := l.Download(before, outputs[-1])
	for i := 0; i < layers && err == nil; i++ {
		err = l.Download(behind, outputs[i])
		l.layers[i] += turned(before, behind, h)
		before, behind = behind, before
	}
	l.Release(dst)
	for i := layers - 1; i >= -1; i-- {
		l.Release(outputs[i])
	}
	l.positions += int64(n)
	if err == nil {
		err = l.err
	}
	return err
}

// turned returns the sum over rows of h values of 1 − cos(x, y). Rows of zeros do not turn.
func turned(x, y []float32, h int) (sum float64) {
	for at := 0; at < len(x); at += h {
		xy, xx, yy := 0.0, 0.0, 0.0
		for c := at; c < at+h; c++ {
			a, b := float64(x[c]), float64(y[c])
			xy, xx, yy = xy+a*b, xx+a*a, yy+b*b
		}
		if norm := math.Sqrt(xx * yy); norm != 0 {
			sum += 1 - xy/norm
		}
	}
	return sum
}

// importance returns the means. Numbers that are not finite are refused.
func (l *listener) importance(path string) (*Importance, error) {
	n := len(l.layers)
	im := &Importance{
		Tokens: l.positions, Layers: l.layers, Neurons: make([][]float64, n), Heads: make([][]float64, n), Experts: make([][]float64, n), norms: map[string]*normSums{},
	}
	lists := [][]float64{im.Layers}
	for _, s := range l.norms {
		im.norms[s.slot.Name] = s
		lists = append(lists, s.abs, s.square)
	}
	for _, s := range l.inputs {
		if s.headDim > 0 {
			im.Heads[s.layer] = s.sums
		} else {
			im.Neurons[s.layer] = s.sums
		}
		lists = append(lists, s.sums)
	}
	for _, s := range l.routers {
		im.Experts[s.layer] = s.mass
		lists = append(lists, s.mass)
	}
	for _, list := range lists {
		for i := range list {
			list[i] /= float64(l.positions)
			if math.IsNaN(list[i]) || math.IsInf(list[i], 0) {
				return nil, fault.In(fault.Inference, path, "computes numbers that are not finite on this text").WithID("E-PRUNE-003")
			}
		}
	}
	return im, nil
}

// channels returns the importance of the channels of the residual stream to the layers that stay: of columns of norms
// over it, the mean absolute outputs.
func (im *Importance) channels(c arch.Config, layers []int) []float64 {
	stays := map[int]bool{-1: true}
	for _, i := range layers {
		stays[i] = true
	}
	sums := make([]float64, c.Hidden)
	for _, s := range arch.Slots(c) { // in a fixed order
		n := im.norms[s.Name]
		if n == nil || s.Role != arch.Norm || !overStream(s) || !stays[s.Layer] {
			continue
		}
		for i, x := range n.abs {
			sums[i] += x * math.Abs(float64(n.weight[i]))
		}
	}
	return sums
}

// inputSums are sums over what a matrix multiplies: of neurons |a_j| or, with a head's width, of heads the norm of
// a_c·norm_c.
type inputSums struct {
	layer   int
	headDim int       // 0: of neurons
	norm    []float64 // of the columns of an output projection
	sums    []float64
}

// add adds a row.
func (s *inputSums) add(row []float32) {
	if s.headDim == 0 {
		for j, a := range row {
			s.sums[j] += math.Abs(float64(a))
		}
		return
	}
	for h := range s.sums {
		square := 0.0
		for c := h * s.headDim; c < (h+1)*s.headDim; c++ {
			x := float64(row[c]) * s.norm[c]
			square += x * x
		}
		s.sums[h] += math.Sqrt(square)
	}
}

// expertSums are the sums of the weights with which a layer's router chose each expert.
type expertSums struct {
	layer int
	mass  []float64
}

// columnNorms returns the norms of the columns of a matrix.
func columnNorms(f *modelfile.Files, s arch.Slot) ([]float64, error) {
	w, err := f.ReadFloat32(s.Name)
	if err != nil {
		return nil, err
	}
	norms := make([]float64, s.Shape[1])
	for i, x := range w {
		norms[i%len(norms)] += float64(x) * float64(x)
	}
	for i := range norms {
		norms[i] = math.Sqrt(norms[i])
	}
	return norms, nil
}

// floats downloads t.
func (l *listener) floats(t device.Tensor) []float32 {
	n := t.Rows * t.Cols
	if cap(l.host) < n {
		l.host = make([]float32, n)
	}
	if err := l.Download(l.host[:n], t); err != nil && l.err == nil {
		l.err = err
	}
	return l.host[:n]
}

// choices downloads the experts that a routing chose.
func (l *listener) choices(r device.Routing) []float32 {
	numbers := l.Temp("prune.numbers", device.Scratch, tensor.F32, r.Experts, 1)
	out := l.Temp("prune.chosen", device.Scratch, tensor.F32, r.Chosen.Rows*r.Chosen.Cols, 1)
	defer l.Release(numbers, out)
	host := make([]float32, max(r.Experts, out.Rows))
	for e := range r.Experts {
		host[e] = float32(e)
	}
	l.Upload(numbers, host[:r.Experts])
	l.Gather(out, numbers, r.Chosen)
	if err := l.Download(host[:out.Rows], out); err != nil && l.err == nil {
		l.err = err
	}
	return host[:out.Rows]
}
