package model

import (
	"math"

	"apr/device"
	"apr/tensor"
)

// onceMost is the most positions that atOnce asks a device for.
const onceMost = 4

// atOnce runs all layers for a few positions, and the norm behind them, as one operation, if the device has it.
func (p *pass) atOnce(dst, x device.Tensor) bool {
	at, ok := p.s.(device.Decoder)
	if !ok || x.Rows > onceMost {
		return false
	}
	how := p.decodes(at, dst, x)
	if x.Rows == 1 {
		p.cache.decoding = how
	}
	if how != oneLaunch {
		return false
	}
	if f := p.m.Config.LogitScale; f != 1 {
		p.s.Scale(dst, dst, f)
	}
	return true
}

const oneLaunch = "one launch"

// decodes lets a device run all layers as one operation, and returns how they ran.
func (p *pass) decodes(at device.Decoder, dst, x device.Tensor) string {
	const by = "operation by operation: "
	d := device.Decode{Norm: p.m.norm.value, Position: p.cache.length, Eps: p.m.Config.Eps}
	for i := range p.m.layers {
		b := &p.m.layers[i]
		if lacks := p.decodeLacks(b, x.Rows); lacks != "" {
			return by + lacks
		}
		d.Layers = append(d.Layers, p.decodeLayer(b))
	}
	if err := at.Decode(dst, x, d); err != nil {
		return by + err.Error()
	}
	return oneLaunch
}

// decodeLacks names what a description of a layer cannot say of n positions, or "".
func (p *pass) decodeLacks(b *layer, n int) string {
	m := &b.moe
	switch {
	case b.Linear():
		return string(device.DeltaNet)
	case b.qkv.lora != nil || b.o.lora != nil || b.gateUp.lora != nil || b.down.lora != nil:
		return "adapters that are not merged"
	case b.OutScale && b.outScale[0] == 0:
		return "a layer's output is multiplied by 0"
	case n > 1 && b.Attn.Window > 0 && p.cache.layers[b.Attn.KVFrom].held+n > b.Attn.Window:
		return "positions that see different windows"
	case n > 1 && b.ple > 0:
		return "per-layer embeddings of several positions"
	case !b.hasExperts():
		return ""
	case m.router.lora != nil || m.gate.lora != nil || m.up.lora != nil || m.down.lora != nil:
		return "adapters that are not merged"
	case b.FFN.MoE.Beside:
		return "experts beside a dense network"
	case !m.perExpert.value.IsZero() || !m.router.bias.value.IsZero() || !m.gate.bias.value.IsZero() ||
		!m.up.bias.value.IsZero() || !m.down.bias.value.IsZero():
		return "experts with biases or factors"
	case !p.counts.IsZero():
		return "experts whose use is counted"
	}
	return ""
}

// decodeLayer describes a layer for one position.
func (p *pass) decodeLayer(b *layer) device.DecodeLayer {
	a, from := b.Attn, &p.cache.layers[b.Attn.KVFrom]
	l := device.DecodeLayer{
		AttnNorm: b.preMixer.value, AttnPost: b.postMixer.value, FFNNorm: b.preFFN.value, FFNPost: b.postFFN.value,
		Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim,
		QKV: b.qkv.weight, Bias: b.qkv.bias.value, QNorm: b.qNorm.value, KNorm: b.kNorm.value, VNorm: b.own && a.VNorm, VIsK: b.own && a.VIsK,
		QBeta: a.QBeta, QLength: a.QLength, Gate: a.Gate, Sinks: b.sinks.value,
		Cache: from.rows, Shared: !b.own, Row: from.held, Keys: from.held + 1, Scale: scoreScale(a.Scale, a.HeadDim), Cap: a.Cap,
		O: b.o.weight, OBias: b.o.bias.value, GateUp: b.gateUp.weight, Down: b.down.weight, Act: b.act(), Residual: b.Residual,
	}
	if b.hasExperts() {
		m, of := &b.moe, b.FFN.MoE
		l.Experts = &device.DecodeExperts{
			Router: m.router.weight, Gate: m.gate.weight, Up: m.up.weight, Down: m.down.weight,
			Count: of.Experts, Active: of.Active, Renorm: (&expertActs{}).routing(of).Renorm,
		}
	}
	if a.Rope >= 0 {
		l.Rope = p.m.table(a.Rope, p.cache.class)
	}
	if a.Window > 0 && l.Keys > a.Window {
		l.First, l.Keys = l.Keys-a.Window, a.Window
	}
	if b.ple > 0 {
		l.PerLayer = &device.DecodePerLayer{
			Gate: b.pleGate.weight, Project: b.pleOut.weight, Norm: b.pleNorm.value, Input: p.p.ColRange(b.index*b.ple, (b.index+1)*b.ple),
		}
	}
	if b.OutScale {
		l.OutScale = float64(b.outScale[0])
	}
	return l
}

// NextLogits writes the logits over the first V ids that follow hidden [1, h] to host memory and waits.
func (m *Model) NextLogits(s device.Stream, host []float32, hidden device.Tensor) error {
	z := s.Temp("logits", device.Logits, tensor.F32, 1, len(host))
	defer s.Release(z)
	m.Logits(s, z, hidden)
	return s.Download(host, z)
}

// Greedy finds the id of the largest logit on the device, so that two numbers come to the host instead of a vocabulary.
type Greedy struct {
	m     *Model
	vocab int
	id    device.Tensor // I32 [1,1]
	best  device.Tensor // [1,2]: the id and its logit, or what says that a logit is not finite
	host  [2]float32    // best
}

// NewGreedy returns a Greedy over the first vocab < 2²⁴ ids.
func (m *Model) NewGreedy(vocab int) *Greedy {
	alloc := func(name string, d tensor.DType, cols int) device.Tensor {
		return m.dev.Alloc(name, device.Logits, d, 1, cols)
	}
	return &Greedy{m: m, vocab: vocab, id: alloc("greedy.id", tensor.I32, 1), best: alloc("greedy.best", tensor.F32, 2)}
}

// Free gives the device's memory back.
func (g *Greedy) Free() { g.m.dev.Free(g.id, g.best) }

// Next returns the id of the largest logit that follows hidden [1, h], the lowest of several, and waits. It reports false
// if a logit is NaN or +∞, or all are −∞; then the id says nothing, and NextLogits shows which.
func (g *Greedy) Next(s device.Stream, hidden device.Tensor) (id int32, finite bool, err error) {
	g.queue(s, hidden)
	err = s.Download(g.host[:], g.best)
	return g.found(err)
}

// ID is where the device has the id: I32 [1,1].
func (g *Greedy) ID() device.Tensor { return g.id }

// Begin is Next in two parts, for a stream that is a device.Fetcher: what it returns waits, and has to be called once. Until then
// the device may already compute what follows ID.
func (g *Greedy) Begin(s device.Stream, hidden device.Tensor) func() (id int32, finite bool, err error) {
	g.queue(s, hidden)
	wait := s.(device.Fetcher).Fetch(g.best)
	return func() (int32, bool, error) { return g.found(wait(g.host[:])) }
}

// queue lets the device find the id.
func (g *Greedy) queue(s device.Stream, hidden device.Tensor) {
	z := s.Temp("logits", device.Logits, tensor.F32, 1, g.vocab)
	defer s.Release(z)
	g.m.Logits(s, z, hidden)
	s.ArgMax(g.id, g.best, z)
}

// found reads what queue has found.
func (g *Greedy) found(err error) (id int32, finite bool, _ error) {
	if err != nil {
		return 0, false, err
	}
	if logit := float64(g.host[1]); math.IsNaN(logit) || math.IsInf(logit, 0) {
		return 0, false, nil
	}
	return int32(g.host[0]), true, nil
}
