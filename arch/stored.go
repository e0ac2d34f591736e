package arch

import "fmt"

// expertLayout says how Hugging Face stores the experts of a family.
type expertLayout int

const (
	expertsEach   expertLayout = iota // mlp.experts.E.gate_proj.weight [I, H], router mlp.gate
	expertsOSS                        // mlp.experts.gate_up_proj [E, H, 2I], columns gate, up, gate, up ...; router mlp.router
	expertsGemma4                     // experts.gate_up_proj [E, 2I, H], rows gate then up; router.proj
)

// MXFP4 is the Config.Stored of models whose experts Hugging Face holds in blocks of MXFP4.
const MXFP4 = "mxfp4"

// HoldsMXFP4 reports whether Hugging Face's files of this model can hold experts in blocks of MXFP4.
func (c Config) HoldsMXFP4() bool { return c.family().stored.experts == expertsOSS }

// stored says how a family's tensors lie in files, where that is not as Qwen2's do.
type stored struct {
	qkv, gateUp, down string // Hugging Face: fused q, k and v; fused gate and up; another name of down
	experts           expertLayout
	fusedGGUF         bool   // attn_qkv, and gate and up together in ffn_up
	pairs             bool   // GGUF: q and k are rotated in neighbouring pairs
	plusOne           bool   // GGUF: norms are stored as w+1
	ffnNormGGUF       string // GGUF: the norm before the FFN, if not ffn_norm
	ropeFactors       bool   // GGUF: rotary divisors in tensors of their own
}

// Slots returns every tensor of a model, in the order of its arithmetic: the embedding, layer by layer, the last norm,
// the head unless it is tied. Shapes, names and places follow from the description alone.
func Slots(c Config) []Slot {
	b := &slots{c: c, f: c.family()}
	b.at = -1
	b.add(Embedding, "model.embed_tokens.weight", "token_embd.weight", c.Vocab, c.Hidden)
	if p := c.PLE; p.Width > 0 {
		b.add(PLETable, "model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight", p.Vocab, len(c.Layers)*p.Width)
		b.add(PLEModel, "model.per_layer_model_projection.weight", "per_layer_model_proj.weight", len(c.Layers)*p.Width, c.Hidden)
		b.norm("model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight", p.Width)
	}
	for i, l := range c.Layers {
		b.layer(i, l)
	}
	b.at = -1
	b.norm("model.norm.weight", "output_norm.weight", c.Hidden)
	if !c.Tied {
		b.add(Head, "lm_head.weight", "output.weight", c.Vocab, c.Hidden)
	}
	return b.list
}

// slots collects the tensors of a model.
type slots struct {
	c    Config
	f    *family
	at   int // the layer; −1 outside
	list []Slot
}

// add appends a tensor that both formats store by itself. Within a layer names lack their prefixes.
func (b *slots) add(role Role, name, gguf string, shape ...int) *Slot {
	if b.at >= 0 {
		name, gguf = fmt.Sprintf("model.layers.%d.%s", b.at, name), fmt.Sprintf("blk.%d.%s", b.at, gguf)
	}
	b.list = append(b.list, Slot{
		Name: name, Role: role, Layer: b.at, Shape: shape, Decay: len(shape) > 1, Init: Normal,
		HF: Place{Name: name, Shape: shape}, GGUF: Place{Name: gguf, Shape: shape},
	})
	return &b.list[len(b.list)-1]
}

// norm appends the weight of a norm over n values.
func (b *slots) norm(name, gguf string, n int) *Slot {
	s := b.add(Norm, name, gguf, n)
	s.Init = Identity
	if b.f.stored.plusOne {
		s.GGUF.Values = PlusOne
	}
	return s
}

// bias appends a vector that begins at zero.
func (b *slots) bias(role Role, name, gguf string, shape ...int) *Slot {
	s := b.add(role, name, gguf, shape...)
	s.Bias, s.Init, s.Decay = true, Zeros, false
	return s
}

func (b *slots) layer(i int, l Layer) {
	b.at = i
	h := b.c.Hidden
	if l.Pre {
		b.norm("input_layernorm.weight", "attn_norm.weight", h)
	}
	if l.Linear() {
		b.delta(l.Delta)
	} else {
		b.attention(l.Attn)
	}
	ffnNorm := "ffn_norm.weight"
	if b.f.stored.ffnNormGGUF != "" {
		ffnNorm = b.f.stored.ffnNormGGUF + ".weight"
	}
	switch {
	case l.Pre && l.Post:
		b.norm("post_attention_layernorm.weight", "post_attention_norm.weight", h)
		b.norm("pre_feedforward_layernorm.weight", ffnNorm, h)
	case l.Pre:
		b.norm("post_attention_layernorm.weight", ffnNorm, h)
	default:
		b.norm("post_attention_layernorm.weight", "post_attention_norm.weight", h)
	}
	if l.FFN.Width > 0 {
		b.dense(l.FFN)
	}
	if l.FFN.MoE != (MoE{}) {
		b.experts(l.FFN.MoE)
	}
	if l.Post {
		b.norm("post_feedforward_layernorm.weight", "post_ffw_norm.weight", h)
	}
	if p := b.c.PLE.Width; p > 0 {
		b.add(PLEGate, "per_layer_input_gate.weight", "inp_gate.weight", p, h)
		b.add(PLEOut, "per_layer_projection.weight", "proj.weight", h, p)
		b.norm("post_per_layer_input_norm.weight", "post_norm.weight", h)
	}
	if l.OutScale {
		s := b.add(Scale, "layer_scalar", "layer_output_scale.weight", 1)
		s.Fixed, s.Init = true, Ones
	}
}

func (b *slots) attention(a Attention) {
	h, own := b.c.Hidden, b.c.OwnKV(b.at)
	q := a.QDim()
	if a.Gate {
		q *= 2
	}
	type part struct {
		role Role
		rows int
	}
	parts := []part{{Q, q}}
	if own {
		parts = append(parts, part{K, a.KVDim()})
		if !a.VIsK {
			parts = append(parts, part{V, a.KVDim()})
		}
	}
	first, total := 0, 0
	for _, p := range parts {
		total += p.rows
	}
	for _, p := range parts {
		name, gguf := fmt.Sprintf("self_attn.%s_proj", p.role), fmt.Sprintf("attn_%s", p.role)
		w := b.add(p.role, name+".weight", gguf+".weight", p.rows, h)
		b.fuse(w, b.f.stored.qkv, "attn_qkv.weight", first, total)
		b.pairs(w, a)
		first += p.rows
		if a.QKVBias {
			b.pairs(b.bias(p.role, name+".bias", gguf+".bias", p.rows), a)
		}
	}
	b.add(O, "self_attn.o_proj.weight", "attn_output.weight", h, a.QDim())
	if a.OBias {
		b.bias(O, "self_attn.o_proj.bias", "attn_output.bias", h)
	}
	if a.QKNorm != NoQKNorm {
		nq, nk := a.HeadDim, a.HeadDim
		if a.QKNorm == RowNorm {
			nq, nk = a.QDim(), a.KVDim()
		}
		b.norm("self_attn.q_norm.weight", "attn_q_norm.weight", nq)
		if own {
			b.norm("self_attn.k_norm.weight", "attn_k_norm.weight", nk)
		}
	}
	if a.Sinks {
		s := b.add(Sinks, "self_attn.sinks", "attn_sinks.weight", a.Heads)
		s.Init = Zeros
	}
}

// fuse places w at rows [first, …) of a tensor of total rows, in files that fuse.
func (b *slots) fuse(w *Slot, hf, gguf string, first, total int) {
	shape := []int{total, w.Shape[1]}
	if hf != "" {
		w.HF = Place{Name: fmt.Sprintf("model.layers.%d.%s.weight", b.at, hf), Shape: shape, First: first}
	}
	if b.f.stored.fusedGGUF {
		w.GGUF = Place{Name: fmt.Sprintf("blk.%d.%s", b.at, gguf), Shape: shape, First: first}
	}
}

// pairs orders the rows of q and k, and of their biases, as GGUF files of some families do.
func (b *slots) pairs(s *Slot, a Attention) {
	if b.f.stored.pairs && (s.Role == Q || s.Role == K) {
		s.GGUF.Rows = Order{Kind: Pairs, Width: a.HeadDim}
	}
}

func (b *slots) dense(f FFN) {
	h := b.c.Hidden
	gate := b.add(Gate, "mlp.gate_proj.weight", "ffn_gate.weight", f.Width, h)
	b.fuse(gate, b.f.stored.gateUp, "ffn_up.weight", 0, 2*f.Width)
	up := b.add(Up, "mlp.up_proj.weight", "ffn_up.weight", f.Width, h)
	b.fuse(up, b.f.stored.gateUp, "ffn_up.weight", f.Width, 2*f.Width)
	down := b.add(Down, "mlp.down_proj.weight", "ffn_down.weight", h, f.Width)
	if name := b.f.stored.down; name != "" {
		down.HF.Name = fmt.Sprintf("model.layers.%d.%s.weight", b.at, name)
	}
}

func (b *slots) experts(m MoE) {
	h, e, i := b.c.Hidden, m.Experts, m.Width
	router := "mlp.gate"
	switch b.f.stored.experts {
	case expertsOSS:
		router = "mlp.router"
	case expertsGemma4:
		router = "router.proj"
		b.norm("post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight", h)
		b.norm("pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight", h)
		b.norm("post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight", h)
		b.add(Scale, "router.scale", "ffn_gate_inp.scale", h).Init = Ones
		b.add(Scale, "router.per_expert_scale", "ffn_down_exps.scale", e).Init = Ones
	}
	b.add(Router, router+".weight", "ffn_gate_inp.weight", e, h)
	if m.Bias {
		b.bias(Router, router+".bias", "ffn_gate_inp.bias", e)
	}
	for _, p := range []struct {
		role         Role
		name, gguf   string
		out, in      int
		first, total int // of gate and up where they are stored together
	}{
		{ExpertGate, "gate_proj", "ffn_gate_exps", i, h, 0, 2}, {ExpertUp, "up_proj", "ffn_up_exps", i, h, 1, 2}, {ExpertDown, "down_proj", "ffn_down_exps", h, i, 0, 1},
	} {
		w := b.add(p.role, "mlp.experts."+p.name+".weight", p.gguf+".weight", e, p.out, p.in)
		var bias *Slot
		if m.Bias {
			bias = b.bias(p.role, "mlp.experts."+p.name+".bias", p.gguf+".bias", e, p.out)
			w = &b.list[len(b.list)-2]
		}
		b.placeExperts(w, bias, p.name, p.first, p.total)
	}
	if m.Shared > 0 {
		b.add(Gate, "mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", m.Shared, h)
		b.add(Up, "mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", m.Shared, h)
		b.add(Down, "mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", h, m.Shared)
		b.add(SharedGate, "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", 1, h).GGUF.Shape = []int{h}
	}
}

// placeExperts says where Hugging Face keeps one of the three matrices of all experts. Gate and up, of a total of 2, may
// be one tensor, in which each of them is first or second.
func (b *slots) placeExperts(w, bias *Slot, name string, first, total int) {
	e, out, in := w.Shape[0], w.Shape[1], w.Shape[2]
	joint := name
	if total == 2 {
		joint = "gate_up_proj"
	}
	at := fmt.Sprintf("model.layers.%d.", b.at)
	switch b.f.stored.experts {
	case expertsEach:
		w.HF = Place{Name: at + "mlp.experts.{e}." + name + ".weight", Shape: []int{out, in}, Each: e}
	case expertsOSS:
		w.HF = Place{Name: at + "mlp.experts." + joint, Shape: []int{e, in, total * out}, First: first, Step: total, Transposed: true}
		if b.c.Stored == MXFP4 {
			w.HF.Shape, w.HF.Transposed, w.HF.Blocks = []int{e, total * out, in}, false, true
		}
		if bias != nil {
			bias.HF = Place{Name: at + "mlp.experts." + joint + "_bias", Shape: []int{e, total * out}, First: first, Step: total}
		}
	case expertsGemma4:
		w.HF = Place{Name: at + "experts." + joint, Shape: []int{e, total * out, in}, First: first * out}
		if total == 2 {
			w.GGUF = Place{Name: fmt.Sprintf("blk.%d.ffn_gate_up_exps.weight", b.at), Shape: w.HF.Shape, First: first * out}
		}
	}
}

func (b *slots) delta(d DeltaNet) {
	h := b.c.Hidden
	heads := func(width, from int) Order { // the order of rows or columns, width of them per value head
		if d.KeyHeads == d.ValueHeads {
			return Order{}
		}
		return Order{Kind: ValueHeads, Width: width, Heads: d.ValueHeads, Keys: d.KeyHeads, From: from}
	}
	v := d.QKV() - d.Inner() // rows of q and k, before those of v
	b.add(DeltaQKV, "linear_attn.in_proj_qkv.weight", "attn_qkv.weight", d.QKV(), h).GGUF.Rows = heads(d.ValueDim, v)
	b.add(DeltaZ, "linear_attn.in_proj_z.weight", "attn_gate.weight", d.Inner(), h).GGUF.Rows = heads(d.ValueDim, 0)
	b.add(DeltaB, "linear_attn.in_proj_b.weight", "ssm_beta.weight", d.ValueHeads, h).GGUF.Rows = heads(1, 0)
	b.add(DeltaA, "linear_attn.in_proj_a.weight", "ssm_alpha.weight", d.ValueHeads, h).GGUF.Rows = heads(1, 0)
	conv := b.add(DeltaConv, "linear_attn.conv1d.weight", "ssm_conv1d.weight", d.QKV(), d.Conv)
	conv.HF.Shape, conv.GGUF.Rows = []int{d.QKV(), 1, d.Conv}, heads(d.ValueDim, v)
	log := b.add(DeltaALog, "linear_attn.A_log", "ssm_a", d.ValueHeads)
	log.GGUF.Rows, log.GGUF.Values, log.Init = heads(1, 0), NegExp, Zeros
	dt := b.add(DeltaDT, "linear_attn.dt_bias", "ssm_dt.bias", d.ValueHeads)
	dt.GGUF.Rows, dt.Init = heads(1, 0), Ones
	norm := b.norm("linear_attn.norm.weight", "ssm_norm.weight", d.ValueDim)
	norm.Init, norm.GGUF.Values = Ones, Same // this norm has no offset
	b.add(O, "linear_attn.out_proj.weight", "ssm_out.weight", h, d.Inner()).GGUF.Cols = heads(d.ValueDim, 0)
}
