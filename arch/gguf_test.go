package arch

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"apr/internal/fault"
)

// every description that the tests know: of goldens and of public models.
func everything(t testing.TB) map[string]Config {
	all := fixtures(t)
	for _, s := range sizes {
		all[s.name] = parseText(t, s.text)
	}
	all["granite without rotary embedding"] = parseText(t, `{"model_type": "granitemoehybrid", "hidden_size": 64, "num_hidden_layers": 2,
		"num_attention_heads": 4, "max_position_embeddings": 64, "vocab_size": 160, "intermediate_size": 96, "shared_intermediate_size": 96,
		"layer_types": ["attention", "attention"], "position_embedding_type": "nope"}`)
	return all
}

// A description comes back from the keys, shapes and tables of its GGUF file. What llama.cpp's keys cannot hold comes back
// from ours: SmolLM3 with other layers than every fourth without rotary embedding, experts whose weights do not sum to 1.
func TestGGUFRoundTrip(t *testing.T) {
	unportable := []string{"qwen3_moe_mixed", "smollm3"}
	for name, c := range everything(t) {
		g := virtual(c, append(GGUFMetadata(c), GGUFTokens(c)...))
		got, err := FromGGUF(name+".gguf", g)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !same(got, c) {
			t.Errorf("%s: came back as\n%s, was\n%s", name, got.forGGUF().JSON(), c.forGGUF().JSON())
		}
		_, own := g.Value(ownKey)
		if want := slices.Contains(unportable, name); c.Portable() == want || own != want {
			t.Errorf("%s: portable is %v, has a key of ours: %v", name, c.Portable(), own)
		}
	}
}

// A GGUF file that says something else than what is computed is refused, with the key.
func TestGGUFRefused(t *testing.T) {
	qwen3, phi, moe := parseText(t, sizes[0].text), fixtures(t)["phi3_longrope"], fixtures(t)["qwen3_moe_mixed"]
	for _, tt := range []struct {
		name   string
		c      Config
		change func(v virtualGGUF)
		kind   fault.Kind
		want   string
	}{
		{"unknown architecture", qwen3, func(v virtualGGUF) { v.keys["general.architecture"] = "qwen4" }, fault.Format, `key "general.architecture": general.architecture "qwen4" is not supported`},
		{"no architecture", qwen3, func(v virtualGGUF) { delete(v.keys, "general.architecture") }, fault.Load, "is missing"},
		{"no layers", qwen3, func(v virtualGGUF) { v.keys["qwen3.block_count"] = uint32(0) }, fault.Invalid, "qwen3.block_count"},
		{"too many layers", qwen3, func(v virtualGGUF) { v.keys["qwen3.block_count"] = uint32(1 << 31) }, fault.Invalid, "not between 1 and 1024"},
		{"a count that is a string", qwen3, func(v virtualGGUF) { v.keys["qwen3.embedding_length"] = "x" }, fault.Format, `key "qwen3.embedding_length": expected a non-negative integer`},
		{"a negative count", qwen3, func(v virtualGGUF) { v.keys["qwen3.embedding_length"] = int32(-5) }, fault.Format, "expected a non-negative integer, found -5"},
		{"no eps", qwen3, func(v virtualGGUF) { delete(v.keys, "qwen3.attention.layer_norm_rms_epsilon") }, fault.Load, "layer_norm_rms_epsilon"},
		{"eps NaN", qwen3, func(v virtualGGUF) { v.keys["qwen3.attention.layer_norm_rms_epsilon"] = float32(math.NaN()) }, fault.Format, "NaN"},
		{"value length", qwen3, func(v virtualGGUF) { v.keys["qwen3.attention.value_length"] = uint32(64) }, fault.Format, "64 is not the head dimension 128"},
		{"window", qwen3, func(v virtualGGUF) { v.keys["qwen3.attention.sliding_window"] = uint32(64) }, fault.Format, "a window of 64"},
		{"rows in pairs", qwen3, func(v virtualGGUF) { v.keys["qwen3.tensor_data_layout"] = "Meta AI original pth" },
			fault.Format, `key "qwen3.tensor_data_layout": "Meta AI original pth" contradicts the architecture`},
		{"weights of experts", qwen3, func(v virtualGGUF) { v.keys["qwen3.expert_weights_norm"] = false },
			fault.Format, `key "qwen3.expert_weights_norm": false is not supported`},
		{"rope type", qwen3, func(v virtualGGUF) { v.keys["qwen3.rope.scaling.type"] = "ntk" }, fault.Format, `rotary embedding of type "ntk"`},
		{"a key that changes the model", qwen3, func(v virtualGGUF) { v.keys["qwen3.attn_logit_softcapping"] = float32(50) }, fault.Format, `key "qwen3.attn_logit_softcapping": 50 is not supported`},
		{"not causal", qwen3, func(v virtualGGUF) { v.keys["qwen3.attention.causal"] = false }, fault.Format, `key "qwen3.attention.causal": false is not supported`},
		{"experts where none are", qwen3, func(v virtualGGUF) { v.keys["qwen3.expert_count"] = uint32(8) }, fault.Format, `key "qwen3.expert_count": 8`},
		{"heads differ", qwen3, func(v virtualGGUF) {
			v.keys["qwen3.attention.head_count"] = append(slices.Repeat([]int32{16}, 27), 8)
		}, fault.Format, "layer 27 has 8 heads"},
		{"short list", qwen3, func(v virtualGGUF) { v.keys["qwen3.attention.head_count_kv"] = []int32{8} }, fault.Format, "a list of 28"},
		{"no embedding", qwen3, func(v virtualGGUF) { delete(v.shapes, "token_embd.weight") }, fault.Load, "token_embd.weight"},
		{"heads do not divide", qwen3, func(v virtualGGUF) { v.keys["qwen3.attention.head_count_kv"] = uint32(3) }, fault.Invalid, "3 key-value heads do not divide 16 heads"},
		{"eos outside", qwen3, func(v virtualGGUF) { v.keys["tokenizer.ggml.eot_token_id"] = uint32(1 << 20) }, fault.Invalid, "outside the vocabulary"},
		{"no original length", phi, func(v virtualGGUF) { delete(v.keys, "phi3.rope.scaling.original_context_length") }, fault.Format, `x.gguf: key "original_max_position_embeddings": longrope needs it`},
		{"table of another width", phi, func(v virtualGGUF) { v.tables["rope_factors_short.weight"] = []float32{1, 2} }, fault.Format, "has 2 entries"},
		{"own key of another model", moe, func(v virtualGGUF) { v.keys[ownKey] = string(qwen3.JSON()) }, fault.Invalid, "describes another model"},
		{"own key no description", moe, func(v virtualGGUF) { v.keys[ownKey] = "{}" }, fault.Format, "model_type"},
	} {
		v := virtual(tt.c, append(GGUFMetadata(tt.c), GGUFTokens(tt.c)...)).(virtualGGUF)
		tt.change(v)
		_, err := FromGGUF("x.gguf", v)
		if fault.KindOf(err) != tt.kind || !strings.Contains(fmt.Sprint(err), tt.want) || !strings.HasPrefix(fmt.Sprint(err), "x.gguf: ") {
			t.Errorf("%s: %v (%v), want %v with %q", tt.name, err, fault.KindOf(err), tt.kind, tt.want)
		}
	}
}

// Llama 3's scaling is a table in GGUF: its parameters are recognised, and other tables are kept as they are.
func TestRopeTables(t *testing.T) {
	c := parseText(t, size("llama", 4096, 2, 32, 8, 128, 64, 512, llama3))
	tables := GGUFTables(c)
	if len(tables) != 1 || len(tables[0].Values) != 64 || tables[0].Values[0] != 1 || tables[0].Values[63] != 8 {
		t.Fatalf("tables %v", tables)
	}
	v := virtual(c, GGUFMetadata(c)).(virtualGGUF)
	v.tables["rope_freqs.weight"] = slices.Repeat([]float32{3}, 64)
	got, err := FromGGUF("", v)
	if err != nil || got.Ropes[0].Kind != RopeFactors {
		t.Fatalf("%v, %+v", err, got.Ropes)
	}
	for i, f := range got.Ropes[0].Frequencies(0) {
		if want := math.Pow(500000, -float64(i)/64) / 3; !(math.Abs(f/want-1) < 1e-12) {
			t.Errorf("frequency %d: %v, want %v", i, f, want)
		}
	}
	if g := GGUFTables(got); !slices.Equal(g[0].Values, v.tables["rope_freqs.weight"]) {
		t.Errorf("written again as %v", g)
	}
	proportional := GGUFTables(parseText(t, size("gemma4_text", 1536, 6, 8, 1, 256, 64, 512, gemma4Rope)))
	if v := proportional[0].Values; len(v) != 256 || v[63] != 1 || v[64] != 1e30 {
		t.Errorf("gemma 4: %v", v)
	}
}

// The tensors of public models add up to their parameters.
func TestParameters(t *testing.T) {
	for _, s := range sizes {
		c := parseText(t, s.text)
		got := float64(c.Parameters()) / 1e9
		if s.params != 0 && !(math.Abs(got/s.params-1) <= .006) {
			t.Errorf("%s: %.4g, want %g", s.name, got, s.params)
		}
	}
}

// The keys of Qwen2 stand in the order in which llama.cpp's converter writes them; a longrope has no factor, by which
// llama.cpp would divide positions.
func TestGGUFKeys(t *testing.T) {
	list := func(c Config) (out []string) {
		for _, kv := range GGUFMetadata(c) {
			out = append(out, fmt.Sprint(kv.Key, "=", kv.Value))
		}
		return out
	}
	want := []string{
		"general.architecture=qwen2", "qwen2.block_count=2", "qwen2.context_length=131072", "qwen2.embedding_length=8", "qwen2.feed_forward_length=12",
		"qwen2.attention.head_count=2", "qwen2.attention.head_count_kv=1", "qwen2.rope.freq_base=10000", "qwen2.attention.layer_norm_rms_epsilon=1e-06",
	}
	if got := list(parseText(t, size("qwen2", 8, 2, 2, 1, 4, 12, 20, ``))); !slices.Equal(got, want) {
		t.Errorf("qwen2: %q", got)
	}
	want = []string{
		"general.architecture=phi3", "phi3.block_count=3", "phi3.context_length=512", "phi3.embedding_length=48", "phi3.feed_forward_length=96",
		"phi3.attention.head_count=4", "phi3.attention.head_count_kv=2", "phi3.rope.freq_base=10000", "phi3.rope.dimension_count=12",
		"phi3.rope.scaling.original_context_length=16", "phi3.rope.scaling.attn_factor=1.5", "phi3.attention.layer_norm_rms_epsilon=1e-05", "phi3.attention.sliding_window=0",
	}
	if got := list(fixtures(t)["phi3_longrope"]); !slices.Equal(got, want) {
		t.Errorf("phi3: %q", got)
	}
}

// Keys that converters add, and neutral values of those that would change a model, are accepted.
func TestGGUFAccepted(t *testing.T) {
	c := parseText(t, size("llama", 64, 2, 4, 2, 16, 96, 512, llama3))
	v := virtual(c, append(GGUFMetadata(c), GGUFTokens(c)...)).(virtualGGUF)
	for key, value := range map[string]any{
		"general.file_type": uint32(15), "llama.vocab_size": uint32(512), "llama.attention.causal": true, "llama.expert_count": uint32(0),
		"llama.attention.key_length": uint32(16), "llama.attention.value_length": int32(16), "llama.rope.scaling.type": "none", "llama.logit_scale": float32(1),
	} {
		v.keys[key] = value
	}
	if got, err := FromGGUF("x.gguf", v); err != nil || !same(got, c) {
		t.Errorf("%v", err)
	}
}

// Whatever the values of a file are, reading it returns a description or a fault.
func TestGGUFHostile(t *testing.T) {
	rng := rand.New(rand.NewPCG(41, 42))
	hostile := []any{
		"", "x", true, false, uint32(0), uint32(1), uint32(3), uint32(1 << 31), int32(-1), uint64(1 << 63), int64(-1 << 63), float32(0), float32(-1),
		float32(math.NaN()), float32(math.Inf(1)), math.NaN(), 1e300, []int32{}, []int32{-1, 0, 1}, []bool{}, []bool{true}, []string{"x"}, []float32{1}, nil,
	}
	cases := 0
	for name, c := range fixtures(t) {
		for range 200 {
			v := virtual(c, append(GGUFMetadata(c), GGUFTokens(c)...)).(virtualGGUF)
			for range 1 + rng.IntN(3) {
				keys := slices.Sorted(maps.Keys(v.keys))
				key := keys[rng.IntN(len(keys))]
				if v.keys[key] = hostile[rng.IntN(len(hostile))]; rng.IntN(4) == 0 {
					delete(v.keys, key)
				}
				shapes := slices.Sorted(maps.Keys(v.shapes))
				if tensor := shapes[rng.IntN(len(shapes))]; rng.IntN(4) == 0 {
					v.shapes[tensor] = []([]int){nil, {}, {0}, {-1, -1}, {1 << 40, 1}}[rng.IntN(5)]
				} else if rng.IntN(4) == 0 {
					delete(v.shapes, tensor)
				}
			}
			got, err := FromGGUF(name, v)
			if err == nil {
				Slots(got)
			} else if fault.KindOf(err) == fault.Other {
				t.Errorf("%s: %v is no fault", name, err)
			}
			cases++
		}
	}
	if cases != 27*200 {
		t.Errorf("%d cases", cases)
	}
}

// llama.cpp computes a factor of cosine and sine for YaRN itself, g(1) or g(1)/g(log multiplier) with g(m) = 1+0.1·m·ln F, and
// multiplies it with attn_factor; yarn_attn_factor is the whole factor, as its converter copies it from config.json.
func TestGGUFYarnFactor(t *testing.T) {
	g := func(m float64) float64 { return 1 + .1*m*math.Log(4) }
	for _, tt := range []struct {
		scaling              string
		want, whole, factor  float64 // of the description; of the keys, 0: absent
		logMultiplier, alone float64 // the key; the description without yarn_attn_factor
	}{
		{`"attention_factor": 1.5`, 1.5, 1.5, 1.5 / g(1), 0, 1.5},
		{`"mscale": 1, "mscale_all_dim": 0.5`, g(1) / g(.5), 0, 0, .5, g(1) / g(.5)},
		{`"mscale": 0.7, "mscale_all_dim": 0.5`, g(.7) / g(.5), g(.7) / g(.5), g(.7) / g(1), .5, g(.7) / g(.5)},
		{`"beta_slow": 1`, g(1), 0, 0, 0, g(1)},
	} {
		c := parseText(t, `{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 64,
			"vocab_size": 160, "intermediate_size": 96, "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 16, `+tt.scaling+`}}`)
		v := virtual(c, append(GGUFMetadata(c), GGUFTokens(c)...)).(virtualGGUF)
		key := func(name string) float64 {
			x, _ := v.keys["llama.rope.scaling."+name].(float32)
			return float64(x)
		}
		near := func(what string, got, want float64) {
			if !(math.Abs(got-want) <= 1e-6) {
				t.Errorf("%s: %s is %v, want %v", tt.scaling, what, got, want)
			}
		}
		near("the factor", c.Ropes[0].Attention, tt.want)
		near("yarn_attn_factor", key("yarn_attn_factor"), tt.whole)
		near("attn_factor", key("attn_factor"), tt.factor)
		near("yarn_log_multiplier", key("yarn_log_multiplier"), tt.logMultiplier)
		delete(v.keys, "llama.rope.scaling.yarn_attn_factor")
		got, err := FromGGUF("x.gguf", v)
		if err != nil {
			t.Fatal(err)
		}
		near("the factor read without yarn_attn_factor", got.Ropes[0].Attention, tt.alone)
	}
}
