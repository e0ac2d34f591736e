package ref

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"apr/arch"
)

// shapes are descriptions whose features no golden has: heads of two widths, a network twice as wide, several layers of a
// type with keys and values of their own before those that share them, experts on every other layer, biases of llamas, a
// fused network of Granite 4, heads whose groups are not of two.
var netShapes = map[string]string{
	"gemma 4": `{"model_type":"gemma4_text","hidden_size":12,"num_hidden_layers":8,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":4,
		"global_head_dim":8,"num_global_key_value_heads":1,"attention_k_eq_v":true,"intermediate_size":10,"vocab_size":17,"sliding_window":2,
		"layer_types":["sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention"],
		"num_kv_shared_layers":4,"use_double_wide_mlp":true,"hidden_size_per_layer_input":3,"vocab_size_per_layer_input":17,"final_logit_softcapping":3.0,
		"enable_moe_block":true,"num_experts":5,"top_k_experts":2,"moe_intermediate_size":3,
		"rope_parameters":{"full_attention":{"rope_type":"proportional","rope_theta":100.0,"partial_rotary_factor":0.5},"sliding_attention":{"rope_type":"default","rope_theta":10.0}}}`,
	"qwen3_moe": `{"model_type":"qwen3_moe","hidden_size":12,"num_hidden_layers":4,"num_attention_heads":6,"num_key_value_heads":2,"head_dim":4,"intermediate_size":9,
		"vocab_size":17,"num_experts":6,"num_experts_per_tok":3,"moe_intermediate_size":5,"decoder_sparse_step":2,"norm_topk_prob":false,"attention_bias":true}`,
	"granite 4": `{"model_type":"granitemoehybrid","hidden_size":12,"num_hidden_layers":2,"num_attention_heads":3,"num_key_value_heads":1,"intermediate_size":4,
		"shared_intermediate_size":7,"vocab_size":17,"attention_multiplier":0.3,"embedding_multiplier":3,"residual_multiplier":0.4,"logits_scaling":2,"attention_bias":true}`,
	"gpt_oss": `{"model_type":"gpt_oss","hidden_size":12,"num_hidden_layers":2,"num_attention_heads":6,"num_key_value_heads":2,"head_dim":4,"intermediate_size":5,
		"vocab_size":17,"num_local_experts":5,"num_experts_per_tok":3,"sliding_window":3,"rope_scaling":{"rope_type":"yarn","factor":4,"original_max_position_embeddings":8,"truncate":false}}`,
	"qwen3_5": `{"model_type":"qwen3_5_text","hidden_size":12,"num_hidden_layers":2,"layer_types":["linear_attention","full_attention"],"num_attention_heads":3,"num_key_value_heads":1,
		"head_dim":8,"intermediate_size":9,"vocab_size":17,"linear_num_key_heads":2,"linear_num_value_heads":6,"linear_key_head_dim":3,"linear_value_head_dim":4,"linear_conv_kernel_dim":3}`,
	"gemma 2": `{"model_type":"gemma2","hidden_size":12,"num_hidden_layers":2,"num_attention_heads":3,"num_key_value_heads":1,"head_dim":4,"intermediate_size":9,"vocab_size":17,
		"query_pre_attn_scalar":0.5,"attn_logit_softcapping":2.0,"final_logit_softcapping":3.0,"sliding_window":3}`,
	"olmo 3": `{"model_type":"olmo3","hidden_size":12,"num_hidden_layers":4,"num_attention_heads":6,"num_key_value_heads":3,"head_dim":4,"intermediate_size":9,"vocab_size":17,"sliding_window":2}`,
	"phi 3": `{"model_type":"phi3","hidden_size":24,"num_hidden_layers":2,"num_attention_heads":3,"num_key_value_heads":1,"intermediate_size":9,"vocab_size":17,"tie_word_embeddings":true,
		"partial_rotary_factor":0.75,"max_position_embeddings":64,"original_max_position_embeddings":4,"rope_scaling":{"type":"longrope","short_factor":[1,1.5,2],"long_factor":[2,3,4]}}`,
	"ministral 3": `{"model_type":"ministral3","hidden_size":12,"num_hidden_layers":2,"num_attention_heads":3,"num_key_value_heads":1,"head_dim":4,"intermediate_size":9,"vocab_size":17,
		"sliding_window":3,"rope_parameters":{"rope_type":"yarn","factor":4,"original_max_position_embeddings":2,"llama_4_scaling_beta":0.3,"mscale":1,"mscale_all_dim":0.5}}`,
}

// randomNet returns a model of a description with random parameters: norms around 1−offset, others normal.
func randomNet(t *testing.T, text string) *Net {
	t.Helper()
	c, err := arch.Parse("config.json", text, arch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return randomOf(c)
}

func randomOf(c arch.Config) *Net {
	rng := rand.New(rand.NewPCG(31, 32))
	n := &Net{Arch: c, Params: map[string]Mat{}}
	for _, s := range arch.Slots(c) {
		v := make([]float64, s.Elements())
		for i := range v {
			v[i] = .5 * rng.NormFloat64()
			if s.Init == arch.Identity || s.Init == arch.Ones {
				v[i] += 1
			}
		}
		n.Params[s.Name] = matrix(s, v)
	}
	return n
}

// The backward is the slope of the forward for every tensor, along a random direction of it.
func TestNetBackwardIsTheSlope(t *testing.T) {
	const h, tol = 1e-6, 1e-6 // a wider step bends: narrow norms are steep
	for name, text := range netShapes {
		t.Run(name, func(t *testing.T) {
			n := randomNet(t, text)
			if name == "qwen3_moe" { // and a shared expert, which no family's configuration sets yet
				c := n.Arch
				c.Layers = slices.Clone(c.Layers)
				c.Layers[1].FFN.MoE.Shared = 4
				n = randomOf(c)
			}
			rng := rand.New(rand.NewPCG(33, 34))
			ids := make([]int, 12)
			for i := range ids {
				ids[i] = rng.IntN(n.Arch.Vocab)
			}
			dz := random(rng, len(ids), n.Arch.Vocab)
			grads := n.Forward(ids, 2).Backward(dz)
			for _, s := range arch.Slots(n.Arch) {
				if s.Fixed {
					continue
				}
				p, u := n.Params[s.Name], random(rng, n.Params[s.Name].Rows, n.Params[s.Name].Cols)
				at := func(step float64) float64 {
					moved := p.Clone()
					for i := range moved.V {
						moved.V[i] += step * u.V[i]
					}
					n.Params[s.Name] = moved
					defer func() { n.Params[s.Name] = p }()
					return along(n.Forward(ids, 2).Logits, dz)
				}
				slope, got := (8*(at(h)-at(-h))-(at(2*h)-at(-2*h)))/(12*h), along(grads[s.Name], u)
				if !(math.Abs(slope-got) <= tol*math.Max(math.Sqrt(dot(grads[s.Name].V, grads[s.Name].V)), 1e-3)) {
					t.Errorf("%s: slope %v, gradient along the direction %v", s.Name, slope, got)
				}
			}
		})
	}
}

// What a position computes does not depend on later ones, nor on other rows.
func TestNetIsCausal(t *testing.T) {
	for name, text := range netShapes {
		if name == "phi 3" {
			continue // a longer sequence has other frequencies
		}
		n := randomNet(t, text)
		ids := []int{1, 2, 3, 4, 5, 6, 7, 8}
		whole, part := n.Forward(slices.Concat([]int{9, 9, 9, 9, 9, 9, 9, 9}, ids), 2).Logits, n.Forward(ids[:5], 1).Logits
		if d := relative(whole.RowRange(8, 13).V, part.V); !(d < 1e-12) {
			t.Errorf("%s: %v", name, d)
		}
	}
}

// Layers share the keys and values of the last layer of their type that has its own.
func TestSharedLayers(t *testing.T) {
	c := randomNet(t, netShapes["gemma 4"]).Arch
	var from, widths, heads, kv []int
	for _, l := range c.Layers {
		from, widths = append(from, l.Attn.KVFrom), append(widths, l.FFN.Width)
		heads, kv = append(heads, l.Attn.HeadDim), append(kv, l.Attn.KVHeads)
	}
	got := fmt.Sprint(from, widths, heads, kv)
	if want := "[0 1 2 3 2 3 2 3] [10 10 10 10 20 20 20 20] [4 8 4 8 4 8 4 8] [2 1 2 1 2 1 2 1]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Of equal router logits the lowest index is chosen; weights are a softmax over all, over the chosen, or divided by their sum.
func TestRoute(t *testing.T) {
	z := func() *node { return &node{Mat: Of(2, 4, []float64{1, 2, 2, 2, 0, 0, 0, 0})} }
	for _, tt := range []struct {
		name string
		m    arch.MoE
		want []float64
	}{
		{"over all", arch.MoE{Active: 2}, []float64{1 / (3 + math.Exp(-1)), 1 / (3 + math.Exp(-1)), .25, .25}},
		{"renormalised", arch.MoE{Active: 2, Renorm: true}, []float64{.5, .5, .5, .5}},
		{"over the chosen", arch.MoE{Active: 2, TopKFirst: true}, []float64{.5, .5, .5, .5}},
	} {
		in := z()
		chosen := Choose(in.Mat, tt.m.Active)
		w := (&tape{}).route(in, chosen, tt.m)
		if !slices.Equal(chosen, []int{1, 2, 0, 1}) {
			t.Errorf("%s: chose %v", tt.name, chosen)
		}
		if d := relative(w.V, tt.want); !(d < 1e-15) {
			t.Errorf("%s: weights %v, want %v", tt.name, w.V, tt.want)
		}
	}
}
