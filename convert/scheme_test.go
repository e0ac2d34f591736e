package convert

import (
	"slices"
	"strconv"
	"testing"

	"apr/arch"
	"apr/internal/fault"
	"apr/tensor"
)

func TestChoose(t *testing.T) {
	const down, q = "model.layers.0.mlp.down_proj.weight", "model.layers.0.self_attn.q_proj.weight"
	tests := []struct {
		name   string
		scheme Scheme
		to     target
		tensor string
		stored tensor.DType
		shape  []int
		head   bool
		want   tensor.DType
	}{
		{"matrix", Q4_K, toAPR, q, tensor.BF16, []int{8, 256}, true, tensor.Q4_K},
		{"hidden 896 stays BF16", Q4_K, toAPR, q, tensor.F32, []int{896, 896}, true, tensor.BF16},
		{"hidden 896 stays BF16 in the mix", Q4_K_M, toAPR, headName, tensor.BF16, []int{8, 896}, true, tensor.BF16},
		{"down projection of hidden 896", Q4_K, toAPR, down, tensor.BF16, []int{896, 4864}, true, tensor.Q4_K},
		{"norm", Q4_K, toAPR, "model.norm.weight", tensor.BF16, []int{256}, true, tensor.F32},
		{"bias", Keep, toAPR, "model.layers.0.self_attn.q_proj.bias", tensor.BF16, []int{256}, true, tensor.F32},
		{"norm in safetensors", Keep, toSafetensors, "model.norm.weight", tensor.BF16, []int{256}, true, tensor.BF16},
		{"norm in safetensors narrowed", F16, toSafetensors, "model.norm.weight", tensor.F32, []int{256}, true, tensor.F16},
		{"keep", Keep, toAPR, q, tensor.F16, []int{8, 30}, true, tensor.F16},
		{"keep blocks", Keep, toAPR, q, tensor.Q5_K, []int{8, 256}, true, tensor.Q5_K},
		{"keep iq4_xs", Keep, toAPR, q, tensor.IQ4_XS, []int{8, 256}, true, tensor.IQ4_XS},
		{"keep iq4_nl", Keep, toAPR, q, tensor.IQ4_NL, []int{8, 96}, true, tensor.IQ4_NL},
		{"iq4_nl in GGUF", Keep, toGGUF, q, tensor.IQ4_NL, []int{8, 96}, true, tensor.IQ4_NL},
		{"iq4_nl in safetensors", Keep, toSafetensors, q, tensor.IQ4_NL, []int{8, 96}, true, tensor.F32},
		{"keep mxfp4", Keep, toAPR, q, tensor.MXFP4, []int{8, 96}, true, tensor.MXFP4},
		{"mxfp4 in GGUF", Keep, toGGUF, q, tensor.MXFP4, []int{8, 96}, true, tensor.MXFP4},
		{"mxfp4 in safetensors", Keep, toSafetensors, q, tensor.MXFP4, []int{8, 96}, true, tensor.F32},
		{"mxfp4 of others than experts", MXFP4, toAPR, q, tensor.F32, []int{8, 96}, true, tensor.BF16},
		{"iq4_nl to q4_k", Q4_K, toAPR, q, tensor.IQ4_NL, []int{8, 256}, true, tensor.Q4_K},
		{"8-bit floats without scales", Keep, toAPR, q, tensor.F8_E4M3, []int{8, 256}, true, tensor.Invalid},
		{"row-padded blocks are widened", Keep, toAPR, q, tensor.Q4_K, []int{8, 300}, true, tensor.F32},
		{"blocks in safetensors", Keep, toSafetensors, q, tensor.Q4_K, []int{8, 256}, true, tensor.F32},
		{"keep q8_0", Keep, toAPR, q, tensor.Q8_0, []int{8, 96}, true, tensor.Q8_0},
		{"keep q5_0", Keep, toAPR, q, tensor.Q5_0, []int{8, 96}, true, tensor.Q5_0},
		{"keep q4_0", Keep, toAPR, q, tensor.Q4_0, []int{8, 96}, true, tensor.Q4_0},
		{"flat q4_0 is widened", Keep, toAPR, q, tensor.Q4_0, []int{8, 100}, true, tensor.F32},
		{"q8_0 in safetensors", Keep, toSafetensors, q, tensor.Q8_0, []int{8, 96}, true, tensor.F32},
		{"to q8_0", Q8_0, toAPR, q, tensor.BF16, []int{8, 96}, true, tensor.Q8_0},
		{"to q8_0, rows of no whole blocks", Q8_0, toAPR, q, tensor.BF16, []int{8, 100}, true, tensor.BF16},
		{"aprender's blocks", Keep, toAPR, q, tensor.AprQ4, []int{8, 256}, true, tensor.F32},
		{"f64", Keep, toAPR, q, tensor.F64, []int{8, 256}, true, tensor.F32},
		{"bf16", BF16, toAPR, q, tensor.Q4_K, []int{8, 256}, true, tensor.BF16},
		{"head", Q4_K_M, toAPR, headName, tensor.BF16, []int{8, 256}, true, tensor.Q6_K},
		{"embedding beside a head", Q4_K_M, toAPR, embedName, tensor.BF16, []int{8, 256}, true, tensor.Q4_K},
		{"embedding that is the head", Q4_K_M, toAPR, embedName, tensor.BF16, []int{8, 256}, false, tensor.Q6_K},
		{"head of q5_k_m", Q5_K_M, toAPR, headName, tensor.BF16, []int{8, 256}, true, tensor.Q6_K},
		{"matrix of q5_k_m", Q5_K_M, toAPR, q, tensor.BF16, []int{8, 256}, true, tensor.Q5_K},
		{"matrix of q4_0", Q4_0, toAPR, q, tensor.BF16, []int{8, 96}, true, tensor.Q4_0},
		{"head of q4_0", Q4_0, toGGUF, headName, tensor.BF16, []int{8, 256}, true, tensor.Q6_K},
		{"head of q4_0, rows of no whole blocks", Q4_0, toGGUF, headName, tensor.BF16, []int{8, 96}, true, tensor.Q8_0},
		{"rows of no whole blocks of q4_0", Q4_0, toGGUF, q, tensor.BF16, []int{8, 100}, true, tensor.F16},
		{"rows of no whole blocks of q5_k", Q5_K_M, toGGUF, q, tensor.BF16, []int{8, 96}, true, tensor.Q8_0},
		{"q5k alone", Q5_K, toAPR, headName, tensor.BF16, []int{8, 256}, true, tensor.Q5_K},
		{"empty matrix", Q4_K, toAPR, q, tensor.BF16, []int{0, 256}, true, tensor.F32},
		{"integers", Keep, toAPR, q, tensor.I32, []int{8, 256}, true, tensor.Invalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := tensor.Stored{Info: tensor.Info{Name: tt.tensor, DType: tt.stored, Shape: tt.shape}}
			all := []tensor.Stored{s}
			if tt.head {
				all = append(all, f32(headName, []int{1, 1}, 1))
			}
			if got, _ := (rule{scheme: tt.scheme, to: tt.to}).choose(s, rolesByName(all, 6)); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// TestChooseOfImport: blocks are kept or widened, and what is no block gets the type asked for.
func TestChooseOfImport(t *testing.T) {
	for _, tt := range []struct {
		name   string
		rule   rule
		stored tensor.DType
		want   tensor.DType
		reason string
	}{
		{"kept", rule{dtype: tensor.BF16}, tensor.Q5_K, tensor.Q5_K, ""},
		{"expanded", rule{expand: true}, tensor.Q4_K, tensor.F32, "q4_k is widened"},
		{"expanded to bf16", rule{expand: true, dtype: tensor.BF16}, tensor.Q6_K, tensor.BF16, "q6_k is widened"},
		{"kept too", rule{dtype: tensor.BF16}, tensor.Q8_0, tensor.Q8_0, ""},
		{"not held", rule{dtype: tensor.BF16}, tensor.AprQ4, tensor.BF16, "aprq4 is widened"},
		{"float", rule{dtype: tensor.BF16}, tensor.F32, tensor.BF16, ""},
		{"float as it is", rule{expand: true}, tensor.F16, tensor.F16, ""},
	} {
		s := tensor.Stored{Info: tensor.Info{Name: "model.layers.0.self_attn.q_proj.weight", DType: tt.stored, Shape: []int{8, 256}}}
		if got, why := tt.rule.choose(s, roles{}); got != tt.want || why != tt.reason {
			t.Errorf("%s: %s, %q", tt.name, got, why)
		}
	}
}

// TestMoreBits compares with the files llama.cpp's quantizer writes: of 6 layers it keeps 2 and 5 (read off a file made
// by it), of 24, 28 and 32 the ones below (its rule use_more_bits).
func TestMoreBits(t *testing.T) {
	for layers, want := range map[int][]int{
		6:  {2, 5},
		24: {0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23},
		28: {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27},
	} {
		sizes := tiny(false).Sizes()
		sizes.Layers = layers
		of := rolesOf(arch.Qwen2(sizes), toGGUF)
		var got []int
		for i := range layers {
			at := "model.layers." + strconv.Itoa(i)
			a, b, up := of.mixed(at+".self_attn.v_proj.weight", Q4_K_M), of.mixed(at+".mlp.down_proj.weight", Q4_K_M), of.mixed(at+".mlp.up_proj.weight", Q4_K_M)
			if a != b || up != tensor.Q4_K {
				t.Errorf("layer %d of %d: %v %v %v", i, layers, a, b, up)
			}
			if a == tensor.Q6_K {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d layers: %v, want %v", layers, got, want)
		}
	}
	of := rolesByName([]tensor.Stored{f32("model.layers.x.mlp.down_proj.weight", []int{1, 1}, 1), f32("model.layers.99999999999.mlp.down_proj.weight", []int{1, 1}, 1)}, 6)
	for name := range of.slots {
		if of.mixed(name, Q4_K_M) != tensor.Q4_K {
			t.Errorf("%s", name)
		}
	}
}

// TestTypesByRole: what is no matrix of a product stays plain, and slots that the output has as one tensor have one type.
func TestTypesByRole(t *testing.T) {
	const size = `"hidden_size":256,"intermediate_size":512,"num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":512,`
	for _, tt := range []struct {
		text string
		to   target
		want map[string]tensor.DType
	}{
		{`{"model_type":"phi3",` + size + `"rope_theta":1e4}`, toGGUF, map[string]tensor.DType{
			"model.layers.0.self_attn.q_proj.weight": tensor.Q4_K, "model.layers.2.self_attn.v_proj.weight": tensor.Q6_K, "model.layers.2.self_attn.q_proj.weight": tensor.Q6_K,
			"model.layers.0.mlp.gate_proj.weight": tensor.Q4_K, "model.layers.2.mlp.down_proj.weight": tensor.Q6_K, "lm_head.weight": tensor.Q6_K,
		}},
		{`{"model_type":"qwen3_moe",` + size + `"head_dim":64,"num_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":256}`, toAPR, map[string]tensor.DType{
			"model.layers.0.mlp.gate.weight": tensor.F32, "model.layers.2.mlp.experts.down_proj.weight": tensor.Q6_K,
			"model.layers.0.mlp.experts.up_proj.weight": tensor.Q4_K, "model.layers.0.self_attn.q_norm.weight": tensor.F32,
		}},
		{`{"model_type":"gemma2",` + size + `"head_dim":64}`, toGGUF, map[string]tensor.DType{
			"model.embed_tokens.weight": tensor.Q6_K, "model.layers.2.self_attn.v_proj.weight": tensor.Q6_K, "model.layers.1.self_attn.v_proj.weight": tensor.Q4_K,
		}},
	} {
		c, err := arch.Parse("config.json", tt.text, arch.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var all []tensor.Stored
		for _, s := range arch.Slots(c) {
			all = append(all, tensor.Stored{Info: tensor.Info{Name: s.Name, DType: tensor.BF16, Shape: s.Shape}})
		}
		plan, err := (rule{scheme: Q4_K_M, to: tt.to}).plan(all, rolesOf(c, tt.to))
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range tt.want {
			i := slices.IndexFunc(plan, func(c Choice) bool { return c.Source.Name == name })
			if i < 0 || plan[i].DType != want {
				t.Errorf("%s: %s: %+v, want %s", c.Family, name, plan[max(i, 0)], want)
			}
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	w := []tensor.Stored{f32("model.norm.weight", []int{1}, 1)}
	tests := []struct {
		name   string
		scheme Scheme
		to     target
		kind   fault.Kind
	}{
		{"blocks in safetensors", Q4_K, toSafetensors, fault.Unavailable},
		{"unknown", "q9", toAPR, fault.Usage},
		{"mxfp4 without experts", MXFP4, toAPR, fault.Invalid},
	}
	for _, tt := range tests {
		if _, err := (rule{scheme: tt.scheme, to: tt.to}).plan(w, roles{}); fault.KindOf(err) != tt.kind {
			t.Errorf("%s: %v, want kind %s", tt.name, err, tt.kind)
		}
	}
	ints := []tensor.Stored{stored("w", tensor.I32, []int{1, 1}, make([]byte, 4))}
	if _, err := (rule{to: toAPR}).plan(ints, roles{}); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("integers: %v", err)
	}
}
