package ref

import (
	"fmt"

	"apr/device"
)

// Config gives the sizes and constants of a Qwen2 model.
type Config struct {
	Vocab, Hidden, FFN, Layers int
	Heads, KVHeads, HeadDim    int
	Theta, Eps                 float64
	Tied                       bool // the head is the embedding
}

// Model is a Qwen2 model: its parameters by their names in a checkpoint ("model.layers.0.mlp.up_proj.weight").
type Model struct {
	Config
	Params map[string]Mat
}

// Names returns the parameters' names in a fixed order.
func (c Config) Names() []string {
	names := []string{"model.embed_tokens.weight"}
	for l := range c.Layers {
		for _, n := range []string{
			"input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.k_proj.weight",
			"self_attn.k_proj.bias", "self_attn.v_proj.weight", "self_attn.v_proj.bias", "self_attn.o_proj.weight",
			"post_attention_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
		} {
			names = append(names, fmt.Sprintf("model.layers.%d.%s", l, n))
		}
	}
	names = append(names, "model.norm.weight")
	if !c.Tied {
		names = append(names, "lm_head.weight")
	}
	return names
}

// layer returns the parameter of layer l, such as "mlp.up_proj.weight".
func (m *Model) layer(l int, name string) Mat {
	return m.Params[fmt.Sprintf("model.layers.%d.%s", l, name)]
}

// headName is the parameter that turns hidden states into logits.
func (c Config) headName() string {
	if c.Tied {
		return "model.embed_tokens.weight"
	}
	return "lm_head.weight"
}

// Trace keeps what a forward computed, for the backward.
type Trace struct {
	batch, seq int
	ids        []int
	layers     []layerTrace
	last, rstd Mat // input of the final norm
	Hidden     Mat // after the final norm, [batch·seq, Hidden]
	Logits     Mat // [batch·seq, Vocab]
}

type layerTrace struct {
	x, norm1, rstd1 Mat // block input and its norm
	q, k, v, attn   Mat // q and k rotated
	mid, norm2      Mat // after attention's residual, and its norm
	rstd2           Mat
	gu, act         Mat // gate beside up, silu(gate)·up
}

// attn describes the attention of whole rows.
func (c Config) attn(batch, seq int) device.Attn {
	return device.Attn{Batch: batch, QLen: seq, KLen: seq, KStride: seq, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim}
}

func (c Config) rotary(seq int) device.Rotary {
	return device.Rotary{HeadDim: c.HeadDim, Theta: c.Theta, SeqLen: seq}
}

// Forward runs ids, batch rows of equal length one after the other, through the model.
func (m *Model) Forward(ids []int, batch int) *Trace {
	t := &Trace{batch: batch, seq: len(ids) / batch, ids: ids}
	x := Embed(m.Params["model.embed_tokens.weight"], ids)
	for l := range m.Layers {
		var lt layerTrace
		x, lt = m.forwardLayer(l, x, t)
		t.layers = append(t.layers, lt)
	}
	t.last = x
	t.Hidden, t.rstd = RMSNorm(x, m.Params["model.norm.weight"], m.Eps)
	t.Logits = Linear(t.Hidden, m.Params[m.headName()], Mat{})
	return t
}

func (m *Model) forwardLayer(l int, x Mat, t *Trace) (Mat, layerTrace) {
	lt := layerTrace{x: x}
	lt.norm1, lt.rstd1 = RMSNorm(x, m.layer(l, "input_layernorm.weight"), m.Eps)
	lt.q = Rotate(m.biased(l, "q", lt.norm1), m.rotary(t.seq))
	lt.k = Rotate(m.biased(l, "k", lt.norm1), m.rotary(t.seq))
	lt.v = m.biased(l, "v", lt.norm1)
	lt.attn, _ = Attention(lt.q, lt.k, lt.v, m.attn(t.batch, t.seq))
	lt.mid = x.Clone()
	lt.mid.Add(Linear(lt.attn, m.layer(l, "self_attn.o_proj.weight"), Mat{}))
	lt.norm2, lt.rstd2 = RMSNorm(lt.mid, m.layer(l, "post_attention_layernorm.weight"), m.Eps)
	lt.gu = Beside(Linear(lt.norm2, m.layer(l, "mlp.gate_proj.weight"), Mat{}),
		Linear(lt.norm2, m.layer(l, "mlp.up_proj.weight"), Mat{}))
	lt.act = SwiGLU(lt.gu)
	out := lt.mid.Clone()
	out.Add(Linear(lt.act, m.layer(l, "mlp.down_proj.weight"), Mat{}))
	return out, lt
}

// biased applies the q, k or v projection of layer l.
func (m *Model) biased(l int, which string, x Mat) Mat {
	name := "self_attn." + which + "_proj."
	return Linear(x, m.layer(l, name+"weight"), m.layer(l, name+"bias"))
}

// Backward returns the gradient of every parameter, given the gradient over the logits of t.
func (m *Model) Backward(t *Trace, dLogits Mat) map[string]Mat {
	g := make(map[string]Mat)
	for _, name := range m.Names() {
		g[name] = New(m.Params[name].Rows, m.Params[name].Cols)
	}
	dHidden, dHead, _ := LinearBackward(dLogits, t.Hidden, m.Params[m.headName()])
	g[m.headName()].Add(dHead)
	dx, dNorm := RMSNormBackward(dHidden, t.last, t.rstd, m.Params["model.norm.weight"])
	g["model.norm.weight"].Add(dNorm)
	for l := m.Layers - 1; l >= 0; l-- {
		dx = m.backwardLayer(l, dx, t, g)
	}
	EmbedBackward(g["model.embed_tokens.weight"], t.ids, dx)
	return g
}

// backwardLayer adds the gradients of layer l to g and returns the gradient of its input.
func (m *Model) backwardLayer(l int, dOut Mat, t *Trace, g map[string]Mat) Mat {
	lt, prefix := t.layers[l], fmt.Sprintf("model.layers.%d.", l)
	linear := func(name string, dy, x Mat) Mat { // backward of y = x·Wᵀ (+ bias)
		dx, dw, db := LinearBackward(dy, x, m.layer(l, name+".weight"))
		g[prefix+name+".weight"].Add(dw)
		if bias, ok := g[prefix+name+".bias"]; ok {
			bias.Add(db)
		}
		return dx
	}
	norm := func(name string, dy, x, rstd Mat) Mat {
		dx, dw := RMSNormBackward(dy, x, rstd, m.layer(l, name))
		g[prefix+name].Add(dw)
		return dx
	}
	dgu := SwiGLUBackward(linear("mlp.down_proj", dOut, lt.act), lt.gu)
	dNorm2 := linear("mlp.gate_proj", dgu.ColRange(0, m.FFN), lt.norm2)
	dNorm2.Add(linear("mlp.up_proj", dgu.ColRange(m.FFN, 2*m.FFN), lt.norm2))
	dMid := dOut.Clone()
	dMid.Add(norm("post_attention_layernorm.weight", dNorm2, lt.mid, lt.rstd2))

	dAttn := linear("self_attn.o_proj", dMid, lt.attn)
	dq, dk, dv := AttentionBackward(dAttn, lt.attn, lt.q, lt.k, lt.v, m.attn(t.batch, t.seq))
	back := m.rotary(t.seq)
	back.Inverse = true
	dNorm1 := linear("self_attn.q_proj", Rotate(dq, back), lt.norm1)
	dNorm1.Add(linear("self_attn.k_proj", Rotate(dk, back), lt.norm1))
	dNorm1.Add(linear("self_attn.v_proj", dv, lt.norm1))
	dx := dMid
	dx.Add(norm("input_layernorm.weight", dNorm1, lt.x, lt.rstd1))
	return dx
}

// StepLoss returns the mean loss L = 1/N Σ LossAt over the N positions of logits z with mask true, the sums it is made
// of, and ∂L/∂z, which is zero elsewhere. Teacher logits t may be wider than z: only the columns of z count.
func StepLoss(z, t Mat, targets []int, mask []bool, spec device.LossSpec) (loss float64, sums device.Scalars, dz Mat) {
	dz = New(z.Rows, z.Cols)
	rows := make([]int, 0, z.Rows)
	for r, on := range mask {
		if on {
			rows = append(rows, r)
		}
	}
	invN := 1 / float64(len(rows))
	picked := make([]int, len(rows))
	for i, r := range rows {
		picked[i] = targets[r]
	}
	teacher := Mat{}
	if t.V != nil {
		teacher = Embed(t.ColRange(0, z.Cols), rows)
	}
	sums, grad := Loss(Embed(z, rows), teacher, picked, invN, spec)
	EmbedBackward(dz, rows, grad)
	loss = invN * (1 - spec.Alpha) * sums.CE
	if spec.Alpha != 0 {
		loss += invN * spec.Alpha * spec.Temperature * spec.Temperature * sums.D
	}
	return loss, sums, dz
}
