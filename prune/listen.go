package prune

import (
	"math"
	"strings"

	"apr/arch"
	"apr/device"
	"apr/model"
	"apr/modelfile"
)

// listener is a stream that sums what norms, down and output projections read, and how routers choose.
type listener struct {
	device.Stream
	norms     map[device.Tensor]*normSums  // by weight
	inputs    map[device.Weight]*inputSums // of down and output projections
	routers   map[device.Weight]*expertSums
	router    *expertSums // of the latest product of a router
	layers    []float64
	positions int64
	host      []float32
	err       error
}

// newListener returns a listener to m, whose weights are f's.
func newListener(m *model.Model, f *modelfile.Files) (*listener, error) {
	c := m.Config
	l := &listener{
		Stream: m.Device().NewStream(), layers: make([]float64, len(c.Layers)),
		norms: map[device.Tensor]*normSums{}, inputs: map[device.Weight]*inputSums{}, routers: map[device.Weight]*expertSums{},
	}
	for t, s := range m.Vectors() {
		if !overStream(s) && !overHeads(c, s) {
			continue
		}
		w, err := f.ReadFloat32(s.Name)
		if err != nil {
			return nil, err
		}
		if s.Role == arch.Norm {
			for i := range w {
				w[i] += float32(c.NormOffset)
			}
		}
		l.norms[t] = &normSums{slot: s, weight: w, abs: make([]float64, len(w)), square: make([]float64, len(w))}
	}
	for w, slots := range m.Matrices() {
		s := slots[0]
		if s.Layer < 0 {
			continue
		}
		layer := c.Layers[s.Layer]
		switch {
		case s.Role == arch.Router:
			l.routers[w] = &expertSums{layer: s.Layer, mass: make([]float64, s.Shape[0])}
		case s.Role == arch.Down, s.Role == arch.O && !layer.Linear():
			in := &inputSums{layer: s.Layer, sums: make([]float64, s.Shape[1])}
			if s.Role == arch.O {
				in.headDim, in.sums = layer.Attn.HeadDim, make([]float64, layer.Attn.Heads)
				var err error
				if in.norm, err = columnNorms(f, s); err != nil {
					return nil, err
				}
			}
			l.inputs[w] = in
		}
	}
	return l, nil
}

// overStream reports whether a norm, or the scale of a router's input, is over the channels of the residual stream.
func overStream(s arch.Slot) bool {
	switch {
	case s.Role == arch.Scale:
		return strings.HasSuffix(s.Name, "router.scale")
	case s.Role != arch.Norm:
		return false
	}
	for _, other := range []string{"self_attn.q_norm.weight", "self_attn.k_norm.weight", "linear_attn.norm.weight", "per_layer_projection_norm.weight"} {
		if strings.HasSuffix(s.Name, other) {
			return false
		}
	}
	return true
}

// overHeads reports whether a norm is over all query heads of a row.
func overHeads(c arch.Config, s arch.Slot) bool {
	return s.Role == arch.Norm && strings.HasSuffix(s.Name, "self_attn.q_norm.weight") && c.Layers[s.Layer].Attn.QKNorm == arch.RowNorm
}

// RMSNorm listens to what it normalises.
func (l *listener) RMSNorm(y, rstd, sum, x, delta, w device.Tensor, eps float64) {
	n := l.norms[w]
	if n != nil && delta.IsZero() {
		l.normed(n, x, eps)
	}
	l.Stream.RMSNorm(y, rstd, sum, x, delta, w, eps)
	if n != nil && !delta.IsZero() {
		l.normed(n, sum, eps)
	}
}

// HeadNorm listens to norms over whole rows.
func (l *listener) HeadNorm(y, rstd, x, w device.Tensor, headDim int, eps float64) {
	if n := l.norms[w]; n != nil && headDim == x.Cols {
		l.normed(n, x, eps)
	}
	l.Stream.HeadNorm(y, rstd, x, w, headDim, eps)
}

// normed adds the rows of x as the norm n of them sees them.
func (l *listener) normed(n *normSums, x device.Tensor, eps float64) {
	host := l.floats(x)
	for ; len(host) > 0; host = host[x.Cols:] {
		row, mean := host[:x.Cols], 0.0
		for _, v := range row {
			mean += float64(v) * float64(v)
		}
		rstd := 1 / math.Sqrt(mean/float64(x.Cols)+eps)
		for c, v := range row {
			a := math.Abs(float64(v)) * rstd
			n.abs[c] += a
			n.square[c] += a * a
		}
	}
}

// MatMul listens to what it multiplies.
func (l *listener) MatMul(y, x device.Tensor, w device.Weight, bias device.Tensor, add bool) {
	if in := l.inputs[w]; in != nil {
		for host := l.floats(x); len(host) > 0; host = host[x.Cols:] {
			in.add(host[:x.Cols])
		}
	}
	if r := l.routers[w]; r != nil {
		l.router = r
	}
	l.Stream.MatMul(y, x, w, bias, add)
}

// Route listens to the choice.
func (l *listener) Route(w, z, scale device.Tensor, r device.Routing) {
	l.Stream.Route(w, z, scale, r)
	weights := l.floats(w)
	for i, e := range l.choices(r) {
		l.router.mass[int(e)] += float64(weights[i])
	}
}
