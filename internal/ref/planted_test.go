package ref

import (
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
)

// mutant is a mistake in a description, in the parameters that are read, or in the arithmetic.
type mutant struct {
	name    string
	plant   func(n *Net)
	notices string // goldens that have to notice, by their logits
	other   string // goldens that notice by gradients, or by greedy ids, only: "gradient of …", "greedy ids of …"
}

// each changes every layer.
func each(change func(i int, l *arch.Layer)) func(*Net) {
	return func(n *Net) {
		for i := range n.Arch.Layers {
			change(i, &n.Arch.Layers[i])
		}
	}
}

// attention changes every layer with attention.
func attention(change func(a *arch.Attention)) func(*Net) {
	return each(func(_ int, l *arch.Layer) {
		if !l.Linear() {
			change(&l.Attn)
		}
	})
}

// ropes changes every rotary embedding of a kind, of any kind for "".
func ropes(kind arch.RopeKind, change func(r *arch.Rope)) func(*Net) {
	return func(n *Net) {
		for i := range n.Arch.Ropes {
			if r := &n.Arch.Ropes[i]; kind == "" || r.Kind == kind {
				change(r)
			}
		}
	}
}

// params changes the parameters whose names end so.
func params(suffix string, change func(n *Net, m Mat) Mat) func(*Net) {
	return func(n *Net) {
		for name, m := range n.Params {
			if strings.HasSuffix(name, suffix) {
				n.Params[name] = change(n, m.Clone())
			}
		}
	}
}

func times(s func(n *Net) float64) func(*Net, Mat) Mat {
	return func(n *Net, m Mat) Mat {
		f := s(n)
		for i := range m.V {
			m.V[i] *= f
		}
		return m
	}
}

func act(a arch.Activation) func(*Net) {
	return each(func(_ int, l *arch.Layer) { l.FFN.Act = a })
}

func moe(change func(m *arch.MoE)) func(*Net) {
	return each(func(_ int, l *arch.Layer) {
		if l.FFN.MoE.Experts > 0 {
			change(&l.FFN.MoE)
		}
	})
}

// rowsTo moves rows of every matrix: row r of the result is row from(r) of m.
func rowsTo(from func(n *Net, r int) int) func(*Net, Mat) Mat {
	return func(n *Net, m Mat) Mat {
		out := m.Clone()
		for r := range m.Rows {
			copy(out.Row(r), m.Row(from(n, r)))
		}
		return out
	}
}

// pairsOf is the order of rows that makes neighbouring pairs of halves.
func pairsOf(n *Net, r int) int {
	return arch.Order{Kind: arch.Pairs, Width: n.Arch.Layers[len(n.Arch.Layers)-1].Attn.HeadDim}.FromFile(r)
}

func all(plants ...func(*Net)) func(*Net) {
	return func(n *Net) {
		for _, p := range plants {
			p(n)
		}
	}
}

// Wrong activations for tests alone.
func init() {
	erf := func(g float64) float64 { return .5 * g * (1 + math.Erf(g/math.Sqrt2)) }
	plain := func(f func(g, u float64) float64) activation { return activation{f: f} }
	activations["erf"] = plain(func(g, u float64) float64 { return erf(g) * u })
	activations["oss, clamped below"] = plain(func(g, u float64) float64 {
		_, u = ossClamp(g, u)
		g = max(min(g, ossLimit), -ossLimit)
		return (u + 1) * g * sigmoid(1.702*g)
	})
	activations["oss, sigmoid of the unclamped"] = plain(func(g, u float64) float64 {
		c, u := ossClamp(g, u)
		return (u + 1) * c * sigmoid(1.702*g)
	})
	activations["oss, unclamped"] = plain(func(g, u float64) float64 { return (u + 1) * g * sigmoid(1.702*g) })
	activations["oss, without 1"] = plain(func(g, u float64) float64 { g, u = ossClamp(g, u); return u * g * sigmoid(1.702*g) })
}

var mutants = []mutant{
	{"window one wider", attention(func(a *arch.Attention) { a.Window += min(a.Window, 1) }), "mistral_window gemma2 gemma2_capped gemma3_text gemma4_text gemma4_kv gemma4_ple gemma4_moe gpt_oss olmo3 olmo3_yarn", ""},
	{"window one narrower", attention(func(a *arch.Attention) { a.Window -= min(a.Window, 1) }), "mistral_window gemma2 gemma3_text gemma4_text gpt_oss olmo3", ""},
	{"no windows", attention(func(a *arch.Attention) { a.Window = 0 }), "mistral_window gemma2 gemma3_text gemma4_text gpt_oss olmo3", ""},
	{"windows on the other layers", attention(func(a *arch.Attention) { a.Window = 8 - a.Window }), "gemma2 gemma3_text gpt_oss olmo3", ""},
	{"keys and values of the layer below", func(n *Net) { n.Arch.Layers[1].Attn.KVFrom = 0 }, "llama qwen3 gemma2 olmo2 phi3", ""},
	{"shared keys and values of the other type", func(n *Net) { n.Arch.Layers[2].Attn.KVFrom, n.Arch.Layers[3].Attn.KVFrom = 1, 0 }, "gemma4_ple", ""},
	{"v_norm left out", attention(func(a *arch.Attention) { a.VNorm = false }), "gemma4_text gemma4_kv gemma4_ple gemma4_moe", ""},
	{"v is k after norm and rotation", func(n *Net) { n.planted.vOfNormedK = true }, "gemma4_kv", ""},
	{"norm after rotation", func(n *Net) { n.planted.ropeBeforeNorm = true }, "qwen3 qwen3_moe gemma3_text gemma4_text olmo2 olmo3 qwen3_5_text", ""},
	{"no norm of q and k", attention(func(a *arch.Attention) { a.QKNorm = arch.NoQKNorm }), "qwen3 qwen3_moe gemma3_text gemma4_text olmo2 olmo3 qwen3_5_text", ""},
	{"interleaved pairs", all(params("q_proj.weight", rowsTo(pairsOf)), params("k_proj.weight", rowsTo(pairsOf))), "llama granite mistral ministral3 smollm3 phi3", ""},
	{"query heads share tiled", all(params("q_proj.weight", rowsTo(swapHeads)), params("o_proj.weight", swapColumns)), "llama qwen3 mistral phi3 smollm3 granite", ""},
	{"score scale D^−½", attention(func(a *arch.Attention) { a.Scale = 1 / math.Sqrt(float64(a.HeadDim)) }), "granite granite_small gemma4_text gemma4_kv gemma4_ple gemma4_moe", ""},
	{"attention's soft-cap left out", attention(func(a *arch.Attention) { a.Cap = 0 }), "gemma2 gemma2_capped", ""},
	{"derivative of the soft-cap left out", func(n *Net) { n.planted.noCapSlope = true }, "", "gradient of gemma2 gemma2_capped"},
	{"final soft-cap left out", func(n *Net) { n.Arch.FinalCap = 0 }, "gemma2 gemma2_capped gemma4_text", ""},
	{"no sinks", attention(func(a *arch.Attention) { a.Sinks = false }), "gpt_oss gpt_oss_clamped", ""},
	{"sinks scaled like scores", func(n *Net) { n.planted.sinkScaled = true }, "gpt_oss gpt_oss_clamped", ""},
	{"q not scaled by position", attention(func(a *arch.Attention) { a.QBeta = 0 }), "ministral3_qscale", ""},
	{"position scale without ⌊⌋", func(n *Net) { n.planted.smoothQScale = true }, "ministral3_qscale", ""},
	{"no biases of q, k and v", attention(func(a *arch.Attention) { a.QKVBias = false }), "gpt_oss", ""},
	{"no bias of o", attention(func(a *arch.Attention) { a.OBias = false }), "gpt_oss", ""},

	{"full layers' base on windowed layers", attention(func(a *arch.Attention) { a.Rope = 1 }), "gemma3_text", ""},
	{"windowed layers' base on full layers", attention(func(a *arch.Attention) { a.Rope = 0 }), "gemma3_text gemma4_text olmo3_yarn", ""},
	{"proportional as partial", ropes(arch.RopeProportional, func(r *arch.Rope) { r.Kind, r.Width = arch.RopeDefault, 2*r.Rotated }), "gemma4_text gemma4_kv gemma4_ple gemma4_moe", ""},
	{"proportional as whole", ropes(arch.RopeProportional, func(r *arch.Rope) { r.Kind = arch.RopeDefault }), "gemma4_text", ""},
	{"partial as whole", ropes("", func(r *arch.Rope) { r.Width = r.HeadDim }), "qwen3_5_text", ""},
	{"llama3 ignored", ropes(arch.RopeLlama3, func(r *arch.Rope) { r.Kind = arch.RopeDefault }), "llama", ""},
	{"llama3 as linear", ropes(arch.RopeLlama3, func(r *arch.Rope) { r.Kind = arch.RopeLinear }), "llama", ""},
	{"linear ignored", ropes(arch.RopeLinear, func(r *arch.Rope) { r.Kind = arch.RopeDefault }), "llama_linear", ""},
	{"YaRN ignored", ropes(arch.RopeYaRN, func(r *arch.Rope) { r.Kind = arch.RopeDefault }), "ministral3 ministral3_qscale gpt_oss olmo3_yarn", ""},
	{"YaRN's ends rounded", ropes(arch.RopeYaRN, func(r *arch.Rope) { r.Exact = !r.Exact }), "gpt_oss gpt_oss_clamped", ""},
	{"YaRN's factor of cosine and sine left out", ropes(arch.RopeYaRN, func(r *arch.Rope) { r.Attention = 1 }), "gpt_oss gpt_oss_clamped olmo3_yarn", ""},
	{"YaRN's mscale not divided by mscale_all_dim", ropes(arch.RopeYaRN, func(r *arch.Rope) { r.Attention = 1 + .1*math.Log(r.Factor) }), "ministral3 ministral3_qscale", ""},
	{"YaRN on windowed layers", attention(func(a *arch.Attention) { a.Rope = 1 }), "olmo3_yarn", ""},
	{"longrope always short", ropes(arch.RopeLong, func(r *arch.Rope) { r.Original = 1 << 20 }), "phi3_longrope", "greedy ids of phi3_longrope"},
	{"longrope always long", ropes(arch.RopeLong, func(r *arch.Rope) { r.Original = 0 }), "", "greedy ids of phi3_longrope"},
	{"longrope's cache not computed again", func(n *Net) { n.planted.stale = 12 }, "", "greedy ids of phi3_longrope"},
	{"longrope's factor left out", ropes(arch.RopeLong, func(r *arch.Rope) { r.Attention = 1 }), "phi3_longrope", ""},
	{"all layers rotated", func(n *Net) { attention(func(a *arch.Attention) { a.Rope = 0 })(n) }, "smollm3", ""},
	{"no_rope_layers read the other way", func(n *Net) { attention(func(a *arch.Attention) { a.Rope = -1 - a.Rope })(n) }, "smollm3", ""},

	{"eps 1e-5 for 1e-6 and back", func(n *Net) { n.Arch.Eps = map[bool]float64{true: 1e-6, false: 1e-5}[n.Arch.Eps > 5e-6] }, "gemma2 gemma3_text gemma4_text granite granite_small llama mistral ministral3 smollm3 qwen3 qwen3_moe phi3 olmo2 olmo3 gpt_oss qwen3_5_text", ""},
	{"norms multiply by w", func(n *Net) { n.Arch.NormOffset = 0 }, "gemma2 gemma3_text qwen3_5_text", ""},
	{"embedding not scaled", func(n *Net) { n.Arch.EmbedScale = 1 }, "gemma2 gemma3_text gemma4_text granite granite_small", ""},
	{"tied head scaled like the embedding", func(n *Net) { n.Arch.LogitScale *= n.Arch.EmbedScale }, "gemma2 gemma3_text gemma4_text granite granite_small", ""},
	{"logits multiplied by logits_scaling", func(n *Net) { n.Arch.LogitScale = 1 / n.Arch.LogitScale }, "granite granite_small", ""},
	{"residual branches not scaled", each(func(_ int, l *arch.Layer) { l.Residual = 1 }), "granite granite_small", ""},
	{"layer_scalar left out", each(func(_ int, l *arch.Layer) { l.OutScale = false }), "gemma4_kv gemma4_ple", ""},
	{"GELU by erf", act("erf"), "gemma2 gemma2_capped gemma3_text gemma4_text", ""},
	{"SiLU for GELU", act(arch.SiLU), "gemma2 gemma3_text gemma4_text gpt_oss", ""},

	{"PLE not divided by √2", all(params("per_layer_projection_norm.weight", times(func(*Net) float64 { return math.Sqrt2 })),
		params("embed_tokens_per_layer.weight", times(func(*Net) float64 { return math.Sqrt2 }))), "gemma4_ple", ""},
	{"PLE's projection not divided by √H", params("per_layer_model_projection.weight", times(func(n *Net) float64 { return math.Sqrt(float64(n.Arch.Hidden)) })), "gemma4_ple", ""},
	{"PLE's table not times √P", params("embed_tokens_per_layer.weight", times(func(n *Net) float64 { return 1 / math.Sqrt(float64(n.Arch.PLE.Width)) })), "gemma4_ple", ""},
	{"PLE's slices by the layer below", params("embed_tokens_per_layer.weight", func(n *Net, m Mat) Mat {
		return Beside(m.ColRange(n.Arch.PLE.Width, m.Cols), m.ColRange(0, n.Arch.PLE.Width))
	}), "gemma4_ple", ""},

	{"weights not renormalised", moe(func(m *arch.MoE) { m.Renorm, m.TopKFirst = false, false }), "qwen3_moe gpt_oss gemma4_moe", ""},
	{"weights renormalised", moe(func(m *arch.MoE) { m.Renorm = true }), "qwen3_moe_mixed", ""},
	{"one expert fewer", moe(func(m *arch.MoE) { m.Active-- }), "qwen3_moe qwen3_moe_mixed gpt_oss gpt_oss_clamped gemma4_moe", ""},
	{"the next expert's matrices", params("mlp.experts.down_proj.weight", func(_ *Net, m Mat) Mat { return Stack(m.RowRange(m.Cols, m.Rows), m.RowRange(0, m.Cols)) }), "qwen3_moe gpt_oss gemma4_moe", ""},
	{"the router's bias left out", params("mlp.router.bias", times(func(*Net) float64 { return 0 })), "gpt_oss gpt_oss_clamped", ""},
	{"the experts' biases left out", all(params("experts.gate_proj.bias", times(func(*Net) float64 { return 0 })), params("experts.down_proj.bias", times(func(*Net) float64 { return 0 }))), "gpt_oss", ""},
	{"gate and up as halves", ossHalves, "gpt_oss gpt_oss_clamped", ""},
	{"gate clamped below too", act("oss, clamped below"), "gpt_oss_clamped", ""},
	{"σ of the unclamped gate", act("oss, sigmoid of the unclamped"), "gpt_oss_clamped", ""},
	{"nothing clamped", act("oss, unclamped"), "gpt_oss_clamped", ""},
	{"up without its 1", act("oss, without 1"), "gpt_oss gpt_oss_clamped", ""},
	{"router on pre(x)", func(n *Net) { n.planted.routerOnNorm = true }, "gemma4_moe", ""},
	{"experts on pre(x)", func(n *Net) { n.planted.expertsOnNorm = true }, "gemma4_moe", ""},
	{"per_expert_scale left out", params("router.per_expert_scale", func(_ *Net, m Mat) Mat {
		for i := range m.V {
			m.V[i] = 1
		}
		return m
	}), "gemma4_moe", ""},
	{"router's input not divided by √H", params("router.scale", times(func(n *Net) float64 { return math.Sqrt(float64(n.Arch.Hidden)) })), "gemma4_moe", ""},

	{"V heads tiled", func(n *Net) { n.planted.tiledHeads = true }, "qwen3_5_text", ""},
	{"gate before norm", func(n *Net) { n.planted.gateBeforeNorm = true }, "qwen3_5_text", ""},
	{"l2's eps dropped", func(n *Net) { n.planted.noL2Eps = true }, "qwen3_5_text", ""},
	{"decay behind the update", func(n *Net) { n.planted.lateDecay = true }, "qwen3_5_text", ""},
	{"convolution without its oldest tap", func(n *Net) { n.planted.oneTap = true }, "qwen3_5_text", ""},
	{"attention's gate and q exchanged", params("self_attn.q_proj.weight", rowsTo(func(n *Net, r int) int {
		d := n.Arch.Layers[len(n.Arch.Layers)-1].Attn.HeadDim
		return r - r%(2*d) + (r+d)%(2*d)
	})), "qwen3_5_text", ""},
}

// swapHeads exchanges the second and third of four heads.
func swapHeads(n *Net, r int) int {
	d := n.Arch.Layers[0].Attn.HeadDim
	return []int{0, 2, 1, 3}[r/d]*d + r%d
}

func swapColumns(n *Net, m Mat) Mat {
	out := m.Clone()
	for r := range m.Rows {
		for c := range m.Cols {
			out.Row(r)[c] = m.Row(r)[swapHeads(n, c)]
		}
	}
	return out
}

// ossHalves reads gate and up as the halves of a tensor whose columns alternate.
func ossHalves(n *Net) {
	for _, s := range arch.Slots(n.Arch) {
		if s.Role != arch.ExpertGate || s.Bias {
			continue
		}
		upName := strings.Replace(s.Name, "gate_proj", "up_proj", 1)
		gate, up := n.Params[s.Name].Clone(), n.Params[upName].Clone()
		out := s.Shape[1]
		for r := range gate.Rows {
			e, i := r/out, r%out
			at := func(j int) []float64 { // column j of the stored tensor
				m := n.Params[s.Name]
				if j%2 == 1 {
					m = n.Params[upName]
				}
				return m.Row(e*out + j/2)
			}
			copy(gate.Row(r), at(i))
			copy(up.Row(r), at(out+i))
		}
		n.Params[s.Name], n.Params[upName] = gate, up
	}
}

// mutated returns the fixture's net with an error in it.
func (f *fixture) mutated(m mutant) *Net {
	n := &Net{Arch: f.net.Arch, Params: maps.Clone(f.net.Params)}
	n.Arch.Layers, n.Arch.Ropes = slices.Clone(n.Arch.Layers), slices.Clone(n.Arch.Ropes)
	m.plant(n)
	return n
}

// Every mistake that is plausible is noticed by the goldens that are named beside it: their logits, or what is said, are
// beyond the tolerance of TestFamilies.
//
// No golden can notice: wrong widths of heads by layer, a double-wide network, shared keys and values with several own
// layers of a type, decoder_sparse_step > 1, and equal logits of a router (tests of their own here and in arch); shared
// experts (gradients alone); multimodal positions, which nothing here computes.
func TestPlantedErrors(t *testing.T) {
	loaded := map[string]*fixture{}
	get := func(name string) *fixture {
		if loaded[name] == nil {
			for _, path := range fixtureNames(t, familyGoldens) {
				if filepath.Base(path) == name {
					loaded[name] = open(t, filepath.Join(familyGoldens, path))
				}
			}
		}
		return loaded[name]
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			if m.notices == "" && m.other == "" {
				t.Error("nothing notices it")
			}
			for _, name := range strings.Fields(m.notices) {
				f := get(name)
				d := relative(f.mutated(m).Forward(f.ids, f.batch).Logits.V, f.want["logits"].v)
				t.Logf("%s: %.1e", name, d)
				if d <= familyLogitsTol { // NaN is noticed
					t.Errorf("%s does not notice: logits differ by %.1e", name, d)
				}
			}
			if names, ok := strings.CutPrefix(m.other, "greedy ids of "); ok {
				for _, name := range strings.Fields(names) {
					if f := get(name); slices.Equal(f.greedy(f.mutated(m), len(f.golden.Greedy)), f.golden.Greedy) {
						t.Errorf("%s does not notice by its greedy ids", name)
					}
				}
			}
			if names, ok := strings.CutPrefix(m.other, "gradient of "); ok {
				for _, name := range strings.Fields(names) {
					f := get(name)
					d := f.gradientError(f.mutated(m))
					t.Logf("%s: gradient %.1e", name, d)
					if d <= familyGradientTol {
						t.Errorf("%s does not notice: gradients differ by %.1e", name, d)
					}
				}
			}
		})
	}
}

// gradientError is the worst relative difference of a gradient.
func (f *fixture) gradientError(net *Net) (most float64) {
	p := net.Forward(f.ids, f.batch)
	_, dz := f.loss(p.Logits, true)
	for name, g := range f.gradients(p.Backward(dz)) {
		most = worst(most, far("grad."+name, g, f.want["grad."+name]))
	}
	return most
}
