package model

import (
	"cmp"

	"apr/arch"
	"apr/device"
	"apr/tensor"
)

// acts are the intermediate tensors of one layer, a row for each position. Zero ones do not exist in this layer, or are not
// kept. In training each of them is its own; an inference reuses a few for all layers, x, x2 and x3 being one.
type acts struct {
	x, rstd1, y1        device.Tensor // residual stream before the mixer, 1/σ, normed
	mixed               device.Tensor // projections as files have them, where heads of q and gates take turns
	proj                device.Tensor // projections, where q, k and v are more than their rotation
	rstdQ, rstdK, rstdV device.Tensor // 1/σ of their norms
	qkv                 device.Tensor // q and k rotated, v
	kv                  device.Tensor // finished k, v where later layers or positions read them
	gate                device.Tensor // gates beside the attention, where it is gated
	att, lse            device.Tensor // what o reads: the attention, gated if it is, or what a DeltaNet gives; the log-sum-exp
	delta               deltaActs
	z1, rstdZ1          device.Tensor // output of o before its norm, 1/σ
	x2, rstd2, y2       device.Tensor // residual stream before the FFN, 1/σ, normed
	gateUp, glu         device.Tensor // gate and up, their product
	z2, rstdZ2          device.Tensor // output of down before its norm, 1/σ
	x3                  device.Tensor // residual stream before the per-layer embedding
	pleGU, pleGLU       device.Tensor // its gate beside the layer's slice p, their product
	z3, rstdZ3          device.Tensor // output of pleOut before its norm, 1/σ
	moe                 expertActs
	low                 lowActs
}

// lowActs are what adapters make of what linears read, before their B.
type lowActs struct{ qkv, o, gateUp, down device.Tensor }

// need is one tensor of a layer.
type need struct {
	t    *device.Tensor
	last Recompute // that keeps it for the backward
	name string
	d    tensor.DType
	cols int  // 0: the layer has none
	stat bool // what only a backward reads: 1/σ, a log-sum-exp, what adapters keep
	rows int  // 0: one for each position
}

// keptByNone is the last policy that keeps what a backward computes again in any case.
const keptByNone Recompute = -1

// needs lists the tensors of k, but x, of n positions in the order of the arithmetic. act is the type of activations. Only
// training has k and v that later layers read among them, and only it wants statistics.
func (b *layer) needs(k *acts, n, h int, act tensor.DType, training bool) []need {
	a, p := b.Attn, b.ple
	has := func(ok bool, n int) int {
		if !ok {
			return 0
		}
		return n
	}
	tensorOf := func(t *device.Tensor, last Recompute, name string, cols int) need {
		return need{t, last, name, act, cols, false, 0}
	}
	stat := func(t *device.Tensor, name string, cols int) need {
		return need{t, RecomputeNorms, name, tensor.F32, cols, true, 0}
	}
	groups := func(heads int) int { // that q or k are normalised in
		if a.QKNorm == arch.RowNorm {
			return 1
		}
		return has(a.QKNorm == arch.HeadNorm, heads)
	}
	keptQKV, keptAtt, qkv := RecomputeNorms, RecomputeNorms, b.projected()
	if b.finishes() {
		keptQKV, qkv = RecomputeNone, b.finished()
	}
	if a.Gate {
		keptAtt = RecomputeNone
	}
	low := func(t *device.Tensor, name string, l linear) need {
		return need{t, RecomputeNorms, name, act, l.lora.rank(), true, 0}
	}
	d := b.Delta
	list := []need{
		stat(&k.rstd1, "rstd1", has(b.Pre, 1)),
		tensorOf(&k.y1, RecomputeNone, "y1", has(b.Pre, h)),
		tensorOf(&k.mixed, keptByNone, "projected.mixed", has(a.Gate, b.projected()+a.QDim())),
		tensorOf(&k.proj, RecomputeNorms, "projected", has(b.finishes(), b.projected())),
		stat(&k.rstdQ, "rstd_q", groups(a.Heads)),
		stat(&k.rstdK, "rstd_k", has(b.own, groups(a.KVHeads))),
		stat(&k.rstdV, "rstd_v", has(b.own && a.VNorm, a.KVHeads)),
		tensorOf(&k.qkv, keptQKV, "qkv", qkv),
		tensorOf(&k.kv, RecomputeBlocks, "kv", has(b.lends && training, 2*a.KVDim())),
		tensorOf(&k.delta.in, RecomputeNorms, "delta.in", deltaColumns(d)),
		tensorOf(&k.delta.u, RecomputeNone, "delta.u", d.QKV()),
		tensorOf(&k.delta.o, RecomputeNorms, "delta.o", d.Inner()),
		stat(&k.delta.rstd, "rstd_delta", d.ValueHeads),
		tensorOf(&k.att, RecomputeNone, "gated", d.Inner()),
		tensorOf(&k.gate, RecomputeNorms, "attention.gate", has(a.Gate, 2*a.QDim())),
		tensorOf(&k.att, keptAtt, "attention", a.QDim()),
		stat(&k.lse, "lse", a.Heads),
		tensorOf(&k.z1, RecomputeNorms, "z1", has(b.Post, h)),
		stat(&k.rstdZ1, "rstd_z1", has(b.Post, 1)),
		tensorOf(&k.x2, RecomputeNorms, "x2", h),
		stat(&k.rstd2, "rstd2", has(b.Pre, 1)),
		tensorOf(&k.y2, RecomputeNone, "y2", has(b.Pre, h)),
		tensorOf(&k.gateUp, RecomputeNorms, "gate_up", 2*b.FFN.Width),
		tensorOf(&k.glu, RecomputeNone, "swiglu", b.FFN.Width),
		tensorOf(&k.z2, RecomputeNorms, "z2", has(b.Post, h)),
		stat(&k.rstdZ2, "rstd_z2", has(b.Post, 1)),
		low(&k.low.qkv, "lora.qkv", b.qkv),
		low(&k.low.o, "lora.o", b.o),
		low(&k.low.gateUp, "lora.gate_up", b.gateUp),
		low(&k.low.down, "lora.down", b.down),
		tensorOf(&k.x3, RecomputeNorms, "x3", has(p > 0, h)),
		tensorOf(&k.pleGU, RecomputeNorms, "ple.gate", 2*p),
		tensorOf(&k.pleGLU, RecomputeNone, "ple.glu", p),
		tensorOf(&k.z3, RecomputeNorms, "z3", has(p > 0, h)),
		stat(&k.rstdZ3, "rstd_z3", has(p > 0, 1)),
	}
	return append(list, b.expertNeeds(&k.moe, n, h, act)...)
}

// fill takes those tensors of k, but x, of n positions that r keeps and k lacks; all with keptByNone.
func (b *layer) fill(k *acts, n int, r Recompute, h int, act tensor.DType, training bool, take allocator) {
	for _, t := range b.needs(k, n, h, act, training) {
		if r <= t.last && t.cols > 0 && t.t.IsZero() && (training || !t.stat) {
			*t.t = take(t.name, t.d, cmp.Or(t.rows, n), t.cols)
		}
	}
}

// allocator takes a temp.
type allocator func(name string, d tensor.DType, rows, cols int) device.Tensor

// workspace is one set of tensors that are not kept; all layers use it in turn, those of another width another one.
type workspace struct {
	s      device.Stream
	n      int
	byName map[spot]device.Tensor
	all    []device.Tensor
}

type spot struct {
	name       string
	rows, cols int
}

func newWorkspace(s device.Stream, n int) *workspace {
	return &workspace{s: s, n: n, byName: map[spot]device.Tensor{}}
}

// take returns the tensor of that name and width with a row for each position, the same each time.
func (w *workspace) take(name string, d tensor.DType, cols int) device.Tensor {
	return w.takeRows(name, d, w.n, cols)
}

// takeRows returns the tensor of that name and shape, the same each time.
func (w *workspace) takeRows(name string, d tensor.DType, rows, cols int) device.Tensor {
	t, ok := w.byName[spot{name, rows, cols}]
	if !ok {
		t = w.s.Temp(name, device.Scratch, d, rows, cols)
		w.byName[spot{name, rows, cols}] = t
		w.all = append(w.all, t)
	}
	return t
}

// lend makes take return t, which release leaves to its owner.
func (w *workspace) lend(name string, t device.Tensor) { w.byName[spot{name, t.Rows, t.Cols}] = t }

func (w *workspace) release() { w.s.Release(w.all...) }
