package arch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Every value of every slot goes into the files' tensors and comes back, and every value of these is some slot's, once.
func TestPlaces(t *testing.T) {
	all := fixtures(t)
	oss := all["gpt_oss"]
	oss.Stored = "mxfp4"
	all["gpt_oss as MXFP4"] = oss
	all["granite 4"] = parseText(t, size("granitemoehybrid", 32, 2, 4, 2, 8, 48, 64, `"shared_intermediate_size":48`))
	all["gemma 4, heads of two widths"] = parseText(t, size("gemma4_text", 32, 6, 4, 2, 8, 48, 64,
		`"global_head_dim":16,"num_kv_shared_layers":2,"layer_types":["sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention"],"use_double_wide_mlp":true,"attention_k_eq_v":true,"num_global_key_value_heads":1,"hidden_size_per_layer_input":4,"vocab_size_per_layer_input":64,`+gemma4Rope))
	shared := all["qwen3_moe"]
	shared.Layers = slices.Clone(shared.Layers)
	shared.Layers[0].FFN.MoE.Shared = 24
	all["qwen3_moe with a shared expert"] = shared
	all["llama with biases"] = parseText(t, size("llama", 32, 2, 4, 2, 8, 48, 64, `"attention_bias":true`))
	for name, c := range all {
		for format, place := range map[string]func(Slot) Place{"HF": func(s Slot) Place { return s.HF }, "GGUF": func(s Slot) Place { return s.GGUF }} {
			t.Run(name+"/"+format, func(t *testing.T) { checkPlaces(t, c, place) })
		}
	}
}

func checkPlaces(t *testing.T, c Config, place func(Slot) Place) {
	files, shapes := map[string][]float64{}, map[string][]int{}
	open := func(s Slot) (list [][]float64) {
		p := place(s)
		names := []string{p.Name}
		for e := range p.Each {
			names = append(names[:e], strings.ReplaceAll(p.Name, "{e}", fmt.Sprint(e)))
		}
		for _, n := range names {
			if files[n] == nil {
				files[n], shapes[n] = make([]float64, product(p.Shape)), p.Shape
			}
			if !slices.Equal(shapes[n], p.Shape) {
				t.Errorf("%s has shapes %v and %v", n, shapes[n], p.Shape)
			}
			list = append(list, files[n])
		}
		return list
	}
	next, values, names := 1.0, map[string][]float64{}, map[string]bool{}
	for _, s := range Slots(c) {
		if names[s.Name] {
			t.Errorf("%s twice", s.Name)
		}
		names[s.Name] = true
		v := make([]float64, s.Elements())
		for i := range v {
			v[i] = next
			if place(s).Values == NegExp {
				v[i] = next / 1e6 // a number that e is raised to
			}
			next++
		}
		values[s.Name] = v
		p, into := place(s), open(s)
		s.move(p, func(slot, file, index int) {
			if into[file][index] != 0 {
				t.Errorf("%s: value %d falls on another", s.Name, slot)
			}
			into[file][index] = 1
		})
		for _, f := range into { // Scatter writes what move visits
			for i := range f {
				if f[i] == 1 {
					f[i] = 0.5
				}
			}
		}
		Scatter(s, p, v, into)
	}
	for n, f := range files {
		if i := slices.IndexFunc(f, func(x float64) bool { return x == 0 || x == 0.5 }); i >= 0 {
			t.Errorf("%s: value %d is of no slot", n, i)
		}
	}
	for _, s := range Slots(c) {
		got := Gather(s, place(s), open(s))
		for i, want := range values[s.Name] {
			if d := got[i] - want; !(d <= 1e-6 && d >= -1e-6) {
				t.Fatalf("%s: value %d came back as %v, was %v", s.Name, i, got[i], want)
			}
		}
	}
}

// The orders of GGUF are those of its converter, written as formulas from the file's side.
func TestOrders(t *testing.T) {
	const d = 6
	pairs := Order{Kind: Pairs, Width: d}
	for r := range 3 * d {
		if got, want := pairs.FromFile(r), r/d*d+r%2*(d/2)+r%d/2; got != want {
			t.Errorf("pairs: file row %d is slot row %d, want %d", r, got, want)
		}
	}
	const hk, hv, width, from = 2, 6, 4, 10
	heads := Order{Kind: ValueHeads, Width: width, Heads: hv, Keys: hk, From: from}
	for i := range from + hv*width {
		want := i
		if i >= from {
			h := (i - from) / width
			want = from + (h%hk*(hv/hk)+h/hk)*width + (i-from)%width
		}
		if got := heads.FromFile(i); got != want {
			t.Errorf("value heads: file row %d is slot row %d, want %d", i, got, want)
		}
	}
	for _, o := range []Order{pairs, heads, {}} {
		for i := range 30 {
			if o.FromFile(o.ToFile(i)) != i || o.ToFile(o.FromFile(i)) != i {
				t.Errorf("%+v does not come back at %d", o, i)
			}
		}
	}
}

// slot returns a slot of c by name.
func slot(t *testing.T, c Config, name string) Slot {
	t.Helper()
	for _, s := range Slots(c) {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no slot %s", name)
	return Slot{}
}

// Names, shapes and places as files have them.
func TestSlotsOfFamilies(t *testing.T) {
	all := fixtures(t)
	for _, tt := range []struct{ config, slot, hf, gguf string }{
		{"llama", "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight [64 64]", "blk.1.attn_q.weight [64 64] pairs 16"},
		{"qwen3", "model.layers.2.self_attn.k_norm.weight", "model.layers.2.self_attn.k_norm.weight [24]", "blk.2.attn_k_norm.weight [24]"},
		{"phi3", "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.qkv_proj.weight [96 48] from 48", "blk.0.attn_qkv.weight [96 48] from 48"},
		{"phi3", "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_up_proj.weight [192 48] from 96", "blk.0.ffn_up.weight [192 48] from 96"},
		{"olmo2", "model.layers.0.post_feedforward_layernorm.weight", "model.layers.0.post_feedforward_layernorm.weight [48]", "blk.0.post_ffw_norm.weight [48]"},
		{"gemma2", "model.layers.0.pre_feedforward_layernorm.weight", "model.layers.0.pre_feedforward_layernorm.weight [48]", "blk.0.ffn_norm.weight [48] plus_one"},
		{"gemma4_text", "model.layers.0.layer_scalar", "model.layers.0.layer_scalar [1]", "blk.0.layer_output_scale.weight [1]"},
		{"gemma4_ple", "model.embed_tokens_per_layer.weight", "model.embed_tokens_per_layer.weight [160 64]", "per_layer_token_embd.weight [160 64]"},
		{"gemma4_moe", "model.layers.0.mlp.experts.up_proj.weight", "model.layers.0.experts.gate_up_proj [6 80 48] from 40", "blk.0.ffn_gate_up_exps.weight [6 80 48] from 40"},
		{"qwen3_moe", "model.layers.0.mlp.experts.up_proj.weight", "model.layers.0.mlp.experts.{e}.up_proj.weight [48 48] each of 8", "blk.0.ffn_up_exps.weight [8 48 48]"},
		{"gpt_oss", "model.layers.0.mlp.experts.up_proj.weight", "model.layers.0.mlp.experts.gate_up_proj [6 48 192] from 1 step 2 transposed", "blk.0.ffn_up_exps.weight [6 96 48]"},
		{"gpt_oss", "model.layers.0.mlp.experts.up_proj.bias", "model.layers.0.mlp.experts.gate_up_proj_bias [6 192] from 1 step 2", "blk.0.ffn_up_exps.bias [6 96]"},
		{"gpt_oss", "model.layers.0.post_attention_layernorm.weight", "model.layers.0.post_attention_layernorm.weight [48]", "blk.0.post_attention_norm.weight [48]"},
		{"qwen3_5_text", "model.layers.0.linear_attn.A_log", "model.layers.0.linear_attn.A_log [4]", "blk.0.ssm_a [4] value_heads 1 neg_exp"},
		{"qwen3_5_text", "model.layers.0.linear_attn.conv1d.weight", "model.layers.0.linear_attn.conv1d.weight [128 1 4]", "blk.0.ssm_conv1d.weight [128 4] value_heads 16"},
		{"qwen3_5_text", "model.layers.0.linear_attn.out_proj.weight", "model.layers.0.linear_attn.out_proj.weight [48 64]", "blk.0.ssm_out.weight [48 64] columns value_heads 16"},
		{"qwen3_5_text", "model.layers.0.linear_attn.norm.weight", "model.layers.0.linear_attn.norm.weight [16]", "blk.0.ssm_norm.weight [16]"},
	} {
		s := slot(t, all[tt.config], tt.slot)
		if got := describe(s.HF); got != tt.hf {
			t.Errorf("%s %s: HF %s, want %s", tt.config, tt.slot, got, tt.hf)
		}
		if got := describe(s.GGUF); got != tt.gguf {
			t.Errorf("%s %s: GGUF %s, want %s", tt.config, tt.slot, got, tt.gguf)
		}
	}
}

// A value is as many places behind the first of its row as Columns says, in every place of every family.
func TestColumns(t *testing.T) {
	for name, c := range fixtures(t) {
		for _, s := range Slots(c) {
			experts, rows, cols := s.Dims()
			for _, p := range []Place{s.HF, s.GGUF, s.Stacked()} {
				columns := s.Columns(p)
				if len(columns) != cols {
					t.Fatalf("%s %s: %d columns, want %d", name, s.Name, len(columns), cols)
				}
				for _, e := range []int{0, experts - 1} {
					for _, r := range []int{0, rows / 2, rows - 1} {
						file, first := s.Index(p, e, r, 0)
						for c, behind := range columns {
							if f, index := s.Index(p, e, r, c); f != file || index != first+behind {
								t.Fatalf("%s %s: expert %d, row %d, column %d: %d, want %d", name, s.Name, e, r, c, first+behind, index)
							}
						}
					}
				}
			}
		}
	}
}

// describe writes a place in words.
func describe(p Place) string {
	s := fmt.Sprint(p.Name, " ", p.Shape)
	if p.First > 0 {
		s += fmt.Sprint(" from ", p.First)
	}
	if p.Step > 1 {
		s += fmt.Sprint(" step ", p.Step)
	}
	if p.Each > 0 {
		s += fmt.Sprint(" each of ", p.Each)
	}
	if p.Rows.Kind != "" {
		s += fmt.Sprint(" ", p.Rows.Kind, " ", p.Rows.Width)
	}
	if p.Cols.Kind != "" {
		s += fmt.Sprint(" columns ", p.Cols.Kind, " ", p.Cols.Width)
	}
	if p.Transposed {
		s += " transposed"
	}
	if p.Values != Same {
		s += fmt.Sprint(" ", p.Values)
	}
	return s
}

// Blocks move where whole rows do, or runs of columns that hold whole blocks.
func TestMovesBlocks(t *testing.T) {
	big := parseText(t, sizes[slices.IndexFunc(sizes, func(s struct {
		name   string
		text   string
		params float64
	}) bool {
		return s.name == "Qwen3.5 9B"
	})].text)
	all := fixtures(t)
	for _, tt := range []struct {
		p     Place
		block int
		want  bool
	}{
		{slot(t, all["llama"], "model.layers.0.self_attn.q_proj.weight").GGUF, 256, true},
		{slot(t, all["phi3"], "model.layers.0.mlp.up_proj.weight").HF, 256, true},
		{slot(t, all["gpt_oss"], "model.layers.0.mlp.experts.up_proj.weight").HF, 32, false},
		{slot(t, all["gpt_oss"], "model.layers.0.mlp.experts.up_proj.weight").GGUF, 32, true},
		{slot(t, all["gemma2"], "model.norm.weight").GGUF, 32, false},
		{slot(t, big, "model.layers.0.linear_attn.in_proj_qkv.weight").GGUF, 256, true},
		{slot(t, big, "model.layers.0.linear_attn.out_proj.weight").GGUF, 32, true},
		{slot(t, big, "model.layers.0.linear_attn.out_proj.weight").GGUF, 256, false},
	} {
		if got := tt.p.MovesBlocks(tt.block); got != tt.want {
			t.Errorf("%s in blocks of %d: %v", tt.p.Name, tt.block, got)
		}
	}
}

// Qwen2 keeps the order, the names and the decay that its trainer has.
func TestQwen2Slots(t *testing.T) {
	c := parseText(t, size("qwen2", 8, 1, 2, 1, 4, 12, 20, ``))
	var got []string
	for _, s := range Slots(c) {
		if !s.Alone(s.HF) || !s.Alone(s.GGUF) || s.Decay != (len(s.Shape) == 2) || s.Fixed {
			t.Errorf("%+v", s)
		}
		got = append(got, fmt.Sprint(s.Name, s.Shape, s.Role, s.Init))
	}
	want := []string{
		"model.embed_tokens.weight[20 8]embeddingnormal", "model.layers.0.input_layernorm.weight[8]normidentity",
		"model.layers.0.self_attn.q_proj.weight[8 8]qnormal", "model.layers.0.self_attn.q_proj.bias[8]qzeros",
		"model.layers.0.self_attn.k_proj.weight[4 8]knormal", "model.layers.0.self_attn.k_proj.bias[4]kzeros",
		"model.layers.0.self_attn.v_proj.weight[4 8]vnormal", "model.layers.0.self_attn.v_proj.bias[4]vzeros",
		"model.layers.0.self_attn.o_proj.weight[8 8]onormal", "model.layers.0.post_attention_layernorm.weight[8]normidentity",
		"model.layers.0.mlp.gate_proj.weight[12 8]gatenormal", "model.layers.0.mlp.up_proj.weight[12 8]upnormal",
		"model.layers.0.mlp.down_proj.weight[8 12]downnormal", "model.norm.weight[8]normidentity", "lm_head.weight[20 8]headnormal",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// What only the judge computes is named; all goldens are computed.
func TestNotComputed(t *testing.T) {
	all := fixtures(t)
	for name, c := range all {
		if got := c.NotComputed(); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
	c := all["qwen3_moe"]
	c.Layers = slices.Clone(c.Layers)
	c.Layers[1].FFN.MoE.Shared = 4
	if got := c.NotComputed(); got != "shared experts" {
		t.Errorf("shared experts: %q", got)
	}
}

func TestTextName(t *testing.T) {
	for stored, want := range map[string]string{
		"model.layers.0.mlp.up_proj.weight":                "model.layers.0.mlp.up_proj.weight",
		"model.language_model.layers.0.mlp.up_proj.weight": "model.layers.0.mlp.up_proj.weight",
		"language_model.model.norm.weight":                 "model.norm.weight",
		"language_model.lm_head.weight":                    "lm_head.weight",
		"lm_head.weight":                                   "lm_head.weight",
		"model.visual.blocks.0.attn.qkv.weight":            "",
		"vision_tower.vision_model.head.probe":             "",
		"model.vision_tower.x":                             "",
		"multi_modal_projector.mm_soft_emb_norm.weight":    "",
		"model.embed_vision.embedding_projection.weight":   "",
		"mtp.layers.0.mlp.up_proj.weight":                  "",
	} {
		if got, ok := TextName(stored); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", stored, got, ok)
		}
	}
}
