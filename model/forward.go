package model

import (
	"math"

	"apr/device"
	"apr/tensor"
)

// Tokens is what a forward pass reads: ids of Rows sequences of SeqLen positions each, I32 [Rows·SeqLen, 1].
//
// At is the position of the first of them within its step, which decides what is dropped in training.
//
// First and Positions, of the same shape or both zero, keep the documents of a sequence apart: where in its sequence the document
// of a position begins, and how far the position is from there. A document then gives what it gives alone.
type Tokens struct {
	IDs              device.Tensor
	Rows, SeqLen, At int
	First, Positions device.Tensor
}

// n returns the number of positions.
func (t Tokens) n() int { return t.Rows * t.SeqLen }

// Slice returns sequences [lo,hi).
func (t Tokens) Slice(lo, hi int) Tokens {
	part := Tokens{IDs: t.IDs.RowRange(lo*t.SeqLen, hi*t.SeqLen), Rows: hi - lo, SeqLen: t.SeqLen, At: t.At + lo*t.SeqLen}
	if !t.First.IsZero() {
		part.First, part.Positions = t.First.RowRange(lo*t.SeqLen, hi*t.SeqLen), t.Positions.RowRange(lo*t.SeqLen, hi*t.SeqLen)
	}
	return part
}

// pass is a forward over the layers. There is one arithmetic and three ways to store what it computes: training keeps what
// its backward reads (Forward), inference reuses a few tensors for all layers (Hidden), and a cache holds the keys and
// values of earlier positions (Extend).
type pass struct {
	m     *Model
	s     device.Stream
	t     Tokens
	act   tensor.DType
	cache *Cache        // of an Extend
	each  *each         // of an ExtendEach
	lock  *together     // of an ExtendTogether or a ReadTogether
	delta device.Tensor // [n, h]: what a branch adds to the residual stream
	adds  bool          // branches add to the residual stream themselves, where nothing stands between: see adding
	p     device.Tensor // [n, layers·p]: per-layer embeddings

	counts device.Tensor // [1 or layers with experts, E]: to which the slots of experts are added; or zero

	// Of a forward that keeps nothing.
	kinds []acts                // by layer.kind
	lent  map[int]device.Tensor // [n, 2·kv·d] by layer: finished k, v that later layers read
	maps  map[int]device.AttnMap
}

// stream is the residual stream between two branches: x + delta, times scale if it is scaled. The next norm does the adding.
type stream struct {
	x, delta device.Tensor
	scaled   bool
	scale    float64
}

// embed looks the ids up: x = EmbedScale·Emb[id].
func (p *pass) embed(x device.Tensor) stream {
	p.s.Embed(x, p.m.embed.weight, p.t.IDs)
	if f := p.m.Config.EmbedScale; f != 1 {
		p.s.Scale(x, x, f)
	}
	return stream{x: x}
}

// normed ends the pending addition of v in sum, and returns what a branch reads: y = norm(v), or v itself without a norm.
func (p *pass) normed(y, rstd, sum device.Tensor, v *stream, w vector) device.Tensor {
	var none device.Tensor
	if !v.delta.IsZero() && (v.scaled || w.value.IsZero()) {
		p.s.RMSNorm(none, none, sum, v.x, v.delta, none, p.m.Config.Eps)
		if v.scaled {
			p.s.Scale(sum, sum, v.scale)
		}
		*v = stream{x: sum}
	}
	switch {
	case w.value.IsZero():
		return v.x
	case v.delta.IsZero():
		p.s.RMSNorm(y, rstd, none, v.x, none, w.value, p.m.Config.Eps)
	default:
		p.s.RMSNorm(y, rstd, sum, v.x, v.delta, w.value, p.m.Config.Eps)
		*v = stream{x: sum}
	}
	return y
}

// operand is what a branch reads: y or, while w is there, what y is to become: the norm of x. Of a single position
// the operation that reads it first makes it, if the device has such operations.
type operand struct{ y, x, w device.Tensor }

// operand is normed, but for a norm that is left to the operation that reads it first.
func (p *pass) operand(y, rstd, sum device.Tensor, v *stream, w vector) *operand {
	_, reads := p.s.(device.NormReader)
	if reads && p.cache != nil && v.x.Rows == 1 && v.delta.IsZero() && rstd.IsZero() && !w.value.IsZero() {
		return &operand{y: y, x: v.x, w: w.value}
	}
	return &operand{y: p.normed(y, rstd, sum, v, w)}
}

// ready returns an operand that is there.
func (p *pass) ready(in *operand) device.Tensor {
	if !in.w.IsZero() {
		var none device.Tensor
		p.s.RMSNorm(in.y, none, none, in.x, none, in.w, p.m.Config.Eps)
		in.w = none
	}
	return in.y
}

// reader returns the stream that can make an operand with what reads it, and the norm that is to be made; nil: it is
// there.
func (p *pass) reader(in *operand) (device.NormReader, device.Normed) {
	if in.w.IsZero() {
		return nil, device.Normed{}
	}
	return p.s.(device.NormReader), device.Normed{Y: in.y, X: in.x, W: in.w, Eps: p.m.Config.Eps}
}

// project writes z = in·Wᵀ + b.
func (p *pass) project(l linear, z device.Tensor, in *operand) {
	if s, n := p.reader(in); s != nil && l.lora == nil && s.NormMatMul(z, n, l.bias.value, l.weight) {
		in.w = device.Tensor{}
		return
	}
	l.forward(p.s, z, p.ready(in))
}

// layer runs one layer. Without keep gate and up are undefined afterwards.
func (p *pass) layer(b *layer, k *acts, v stream, keep bool) stream {
	in := p.operand(k.y1, k.rstd1, k.x, &v, b.preMixer)
	v = p.mixer(b, k, v, in)
	in = p.operand(k.y2, k.rstd2, k.x2, &v, b.preFFN)
	v = p.ffn(b, k, v, in, keep)
	if b.ple > 0 {
		v = p.perLayerBranch(b, k, v)
	}
	if b.OutScale {
		v.scaled, v.scale = true, float64(b.outScale[0])
	}
	return v
}

// mixer runs the branch of attention or of a DeltaNet and returns the residual stream v behind it.
func (p *pass) mixer(b *layer, k *acts, v stream, in *operand) stream {
	if b.Linear() {
		p.linear(b, k, in)
	} else {
		p.attend(b, k, in)
	}
	if p.adding(b, b.postMixer) {
		b.o.keeping(k.low.o).add(p.s, v.x, k.att)
		return v
	}
	p.branch(b.o.keeping(k.low.o), b.postMixer, b.Residual, k.z1, k.rstdZ1, k.att)
	v.delta = p.delta
	return v
}

// adding reports whether the last operation of a branch of b adds to the residual stream: x += w·a, so that the next
// norm reads x alone. A norm or a factor behind the product, or a factor of the layer's output, which waits for the
// addition, is in the way.
func (p *pass) adding(b *layer, post vector) bool {
	return p.adds && post.value.IsZero() && b.Residual == 1 && !b.OutScale
}

// branch writes what a branch adds to the residual stream: delta = residual·post(w·a).
func (p *pass) branch(w linear, post vector, residual float64, z, rstd, a device.Tensor) {
	w.forward(p.s, p.ahead(post, z), a)
	p.behind(post, residual, z, rstd)
}

// ahead returns what the last operation of a branch writes: z if a norm is behind it, else delta.
func (p *pass) ahead(post vector, z device.Tensor) device.Tensor {
	if post.value.IsZero() {
		return p.delta
	}
	return z
}

// behind writes delta = residual·post(z); without a norm delta is there.
func (p *pass) behind(post vector, residual float64, z, rstd device.Tensor) {
	var none device.Tensor
	if !post.value.IsZero() {
		p.s.RMSNorm(p.delta, rstd, none, z, none, post.value, p.m.Config.Eps)
	}
	if residual != 1 {
		p.s.Scale(p.delta, p.delta, residual)
	}
}

// inference takes the tensors of a forward that keeps nothing, a set for each kind of layer, and returns x, the residual stream.
func (p *pass) inference(w *workspace) (x device.Tensor) {
	h := p.m.Config.Hidden
	x = w.take("x", p.act, h)
	y := w.take("y", p.act, h)
	p.delta = w.take("delta", p.act, h)
	for i := range p.m.layers {
		b := &p.m.layers[i]
		if b.kind == len(p.kinds) { // the first of its kind
			p.kinds = append(p.kinds, acts{x: x, y1: y, z1: y, x2: x, y2: y, z2: y, x3: x, z3: y, moe: expertActs{yRouter: y, y: y}})
			b.fill(&p.kinds[b.kind], w.n, keptByNone, h, p.act, false, w.takeRows)
		}
		if b.lends && p.cache == nil && p.each == nil && p.lock == nil { // for all layers that read it
			if p.lent == nil {
				p.lent = map[int]device.Tensor{}
			}
			p.lent[i] = p.s.Temp("kv", device.Scratch, p.act, w.n, 2*b.Attn.KVDim())
			w.all = append(w.all, p.lent[i])
		}
	}
	p.takePerLayer(w)
	return x
}

// reused returns the tensors of a layer in a forward that keeps nothing.
func (p *pass) reused(b *layer) *acts {
	k := &p.kinds[b.kind]
	switch {
	case b.Linear():
	case p.cache != nil:
		k.kv = p.cache.layers[b.index].rows
	default:
		k.kv = p.lent[b.Attn.KVFrom] // none, unless it is shared
	}
	return k
}

// Hidden writes the final hidden states of every position to dst [n, h], keeping nothing: the residual stream after all
// layers, normalised, times the factor of the logits. It is the body of a teacher and of an evaluation.
func (m *Model) Hidden(s device.Stream, dst device.Tensor, t Tokens) {
	m.HiddenCounting(s, dst, t, device.Tensor{})
}

// last writes dst = LogitScale·norm(v), the final hidden states.
func (p *pass) last(dst, rstd, sum device.Tensor, v stream) {
	p.normed(dst, rstd, sum, &v, p.m.norm)
	if f := p.m.Config.LogitScale; f != 1 {
		p.s.Scale(dst, dst, f)
	}
}

// Logits writes the logits of hidden rows x [c, h] over the first dst.Cols ids to dst [c, V] float32, soft-capped if the
// model's are.
func (m *Model) Logits(s device.Stream, dst, x device.Tensor) {
	m.head.forward(s, dst, x)
	if c := m.Config.FinalCap; c > 0 {
		s.SoftCap(dst, dst, c)
	}
}

// scoreScale returns the factor of scores as devices take it: 0 for that of the head's width.
func scoreScale(scale float64, headDim int) float64 {
	if scale == 1/math.Sqrt(float64(headDim)) {
		return 0
	}
	return scale
}
