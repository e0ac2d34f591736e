package arch

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"apr/internal/fault"
)

// The scaling of rotary embeddings in GGUF means what llama.cpp computes; what it computes otherwise than any family, or from
// tensors that it refuses, is refused.
func TestGGUFScaling(t *testing.T) {
	llama := parseText(t, size("llama", 64, 2, 4, 2, 16, 96, 512, ""))
	qwen, mistral3, phi := parseText(t, size("qwen3", 64, 2, 4, 2, 16, 96, 512, "")), parseText(t, size("ministral3", 64, 2, 4, 2, 16, 96, 512, "")), fixtures(t)["phi3_longrope"]
	table := func(v virtualGGUF, name string, x ...float32) {
		v.shapes[name], v.tables[name] = []int{len(x)}, x
	}
	for _, tt := range []struct {
		name   string
		c      Config
		change func(v virtualGGUF)
		want   string // the frequencies by those without scaling, or the error
	}{
		{"a factor without a type is linear", llama, func(v virtualGGUF) { v.keys["llama.rope.scaling.factor"] = float32(4) }, "4 4 4 4 4 4 4 4"},
		{"the old key", llama, func(v virtualGGUF) { v.keys["llama.rope.scale_linear"] = float32(4) }, "4 4 4 4 4 4 4 4"},
		{"the old key beside the new", llama, func(v virtualGGUF) {
			v.keys["llama.rope.scale_linear"], v.keys["llama.rope.scaling.factor"] = float32(4), float32(2)
		}, "2 2 2 2 2 2 2 2"},
		{"no factor", llama, func(v virtualGGUF) { v.keys["llama.rope.scaling.type"] = "linear" }, "1 1 1 1 1 1 1 1"},
		{"a factor of 1", llama, func(v virtualGGUF) { v.keys["llama.rope.scaling.factor"] = float32(1) }, "1 1 1 1 1 1 1 1"},
		{"type none", llama, func(v virtualGGUF) {
			v.keys["llama.rope.scaling.type"], v.keys["llama.rope.scaling.factor"] = "none", float32(4)
		}, "1 1 1 1 1 1 1 1"},
		{"a table and a factor", llama, func(v virtualGGUF) {
			table(v, freqsTable, 1, 1, 1, 2, 2, 2, 4, 4)
			v.keys["llama.rope.scaling.factor"] = float32(2)
		}, "2 2 2 4 4 4 8 8"},
		{"a table and none", llama, func(v virtualGGUF) {
			table(v, freqsTable, 1, 1, 1, 2, 2, 2, 4, 4)
			v.keys["llama.rope.scaling.type"], v.keys["llama.rope.scaling.factor"] = "none", float32(2)
		}, "1 1 1 2 2 2 4 4"},
		{"a table and yarn", llama, func(v virtualGGUF) {
			table(v, freqsTable, 1, 1, 1, 2, 2, 2, 4, 4)
			v.keys["llama.rope.scaling.type"], v.keys["llama.rope.scaling.factor"] = "yarn", float32(2)
		}, `tensor "rope_freqs.weight": is there beside scaling of type yarn`},
		{"a table for qwen3", qwen, func(v virtualGGUF) { table(v, freqsTable, 1, 1, 1, 2, 2, 2, 4, 4) }, `tensor "rope_freqs.weight": rotary divisors are not supported for qwen3`},
		{"a table for mistral3", mistral3, func(v virtualGGUF) { table(v, freqsTable, 1, 1, 1, 2, 2, 2, 4, 4) }, "not supported for mistral3"},
		{"one of two tables", phi, func(v virtualGGUF) { delete(v.shapes, longTable) }, `tensor "rope_factors_short.weight": is there without the other`},
		{"the other", phi, func(v virtualGGUF) { delete(v.shapes, shortTable) }, `tensor "rope_factors_long.weight": is there without the other`},
		{"three tables", phi, func(v virtualGGUF) { table(v, freqsTable, 1, 1, 1, 1, 1, 1) }, `tensor "rope_freqs.weight": is there beside rope_factors_short`},
		{"longrope with a factor", phi, func(v virtualGGUF) { v.keys["phi3.rope.scaling.factor"] = float32(32) }, `key "phi3.rope.scaling.factor": 32 divides positions beside`},
		{"longrope with yarn", phi, func(v virtualGGUF) { v.keys["phi3.rope.scaling.type"] = "yarn" }, "beside scaling of type yarn"},
		{"longrope by name", phi, func(v virtualGGUF) { v.keys["phi3.rope.scaling.type"] = "longrope" }, "1 1.1 1.2 1.3 1.4 1.5"},
		{"longrope without tables", llama, func(v virtualGGUF) { v.keys["llama.rope.scaling.type"] = "longrope" }, `key "llama.rope.scaling.type": longrope, but the file has no tensors`},
		{"a factor of cosines", llama, func(v virtualGGUF) { v.keys["llama.rope.scaling.attn_factor"] = float32(1.5) }, `key "llama.rope.scaling.attn_factor": 1.5 is not supported for scaling of type linear`},
		{"no factor of cosines", llama, func(v virtualGGUF) { v.keys["llama.rope.scaling.attn_factor"] = float32(1) }, "1 1 1 1 1 1 1 1"},
	} {
		v := virtual(tt.c, append(GGUFMetadata(tt.c), GGUFTokens(tt.c)...)).(virtualGGUF)
		tt.change(v)
		c, err := FromGGUF("x.gguf", v)
		got := fmt.Sprint(err)
		if err == nil {
			var list []string
			r := c.Ropes[0]
			plain := Rope{Kind: RopeDefault, Theta: r.Theta, HeadDim: r.HeadDim, Width: r.Width}
			for i, f := range r.Frequencies(0) {
				list = append(list, fmt.Sprint(math.Round(1e4*plain.Frequencies(0)[i]/f)/1e4))
			}
			if got = strings.Join(list, " "); got != tt.want {
				t.Errorf("%s: divided by %s, want %s", tt.name, got, tt.want)
			}
		} else if fault.KindOf(err) != fault.Format || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %v (%v), want %q", tt.name, err, fault.KindOf(err), tt.want)
		}
	}
}

// A key of llama.cpp that was edited in a file of ours with a description of its own has no effect, so the file is refused.
func TestEditedKeys(t *testing.T) {
	moe, smol := fixtures(t)["qwen3_moe_mixed"], fixtures(t)["smollm3"]
	for _, tt := range []struct {
		name   string
		c      Config
		change func(v virtualGGUF)
		want   string // of the error; empty: none
	}{
		{"as written", moe, func(virtualGGUF) {}, ""},
		{"as written, smollm3", smol, func(virtualGGUF) {}, ""},
		{"other widths of integers", moe, func(v virtualGGUF) { v.keys["qwen3moe.block_count"] = uint64(v.keys["qwen3moe.block_count"].(uint32)) }, ""},
		{"base", moe, func(v virtualGGUF) { v.keys["qwen3moe.rope.freq_base"] = float32(5e6) }, `key "qwen3moe.rope.freq_base": is 5e+06, and "apr.config" says 1e+06`},
		{"eps", smol, func(v virtualGGUF) { v.keys["smollm3.attention.layer_norm_rms_epsilon"] = float32(1e-5) }, `key "smollm3.attention.layer_norm_rms_epsilon": is 1e-05, and "apr.config" says 1e-06`},
		{"positions", smol, func(v virtualGGUF) { v.keys["smollm3.context_length"] = uint32(4096) }, `key "smollm3.context_length": is 4096, and "apr.config" says 512`},
		{"experts of a token", moe, func(v virtualGGUF) { v.keys["qwen3moe.expert_used_count"] = uint32(1) }, `key "qwen3moe.expert_used_count": is 1`},
		{"missing", smol, func(v virtualGGUF) { delete(v.keys, "smollm3.rope.freq_base") }, `key "smollm3.rope.freq_base": is missing, and "apr.config" says 5e+06`},
		{"added", smol, func(v virtualGGUF) { v.keys["smollm3.rope.scaling.factor"] = float32(4) }, `key "apr.config": ropes.0.factor is none, and by the other keys and the tensors 4`},
		{"end", smol, func(v virtualGGUF) { v.keys["tokenizer.ggml.eos_token_id"] = uint32(7) }, `says that [7] end a text, and "apr.config" says [2]`},
		{"a further end", smol, func(v virtualGGUF) { v.keys["tokenizer.ggml.eot_token_id"] = uint32(7) }, ""}, // of a tokenizer
		{"two further ends", smol, func(v virtualGGUF) {
			v.keys["tokenizer.ggml.eot_token_id"], v.keys["tokenizer.ggml.eom_token_id"] = uint32(7), uint32(8)
		}, "[2 7 8] end a text"},
	} {
		v := virtual(tt.c, append(GGUFMetadata(tt.c), GGUFTokens(tt.c)...)).(virtualGGUF)
		if _, own := v.keys[ownKey]; !own {
			t.Fatalf("%s: no key of ours", tt.name)
		}
		tt.change(v)
		c, err := FromGGUF("x.gguf", v)
		switch {
		case tt.want == "" && (err != nil || !c.Equal(tt.c)):
			t.Errorf("%s: %v", tt.name, err)
		case tt.want != "" && (fault.KindOf(err) != fault.Invalid || !strings.Contains(fmt.Sprint(err), tt.want)):
			t.Errorf("%s: %v (%v), want %q", tt.name, err, fault.KindOf(err), tt.want)
		}
	}
}

// A rotary embedding for which the family has no tensors comes back from our description.
func TestGGUFTablesOfOthers(t *testing.T) {
	for _, scaling := range []string{
		`{"rope_type":"longrope","short_factor":[1,1,1,1,1,1],"long_factor":[1,2,3,4,5,6],"original_max_position_embeddings":16,"attention_factor":1.5}`,
		`{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":32}`,
	} {
		c := parseText(t, tiny("qwen2", `"rope_scaling":`+scaling))
		got, err := FromGGUF("x.gguf", virtual(c, append(GGUFMetadata(c), GGUFTokens(c)...)))
		if err != nil || !same(got, c) || c.Portable() {
			t.Errorf("%s: %v", scaling, err)
		}
	}
}
