package modelfile_test

import (
	"strings"
	"testing"

	"apr/arch"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/hostile"
	"apr/modelfile"
	"apr/tensor"
)

const sizes = `"hidden_size":896,"intermediate_size":4864,"num_hidden_layers":24,"num_attention_heads":14,
"num_key_value_heads":2,"vocab_size":151936,"max_position_embeddings":32768,"initializer_range":0.02,"tie_word_embeddings":true,
"hidden_act":"silu","use_cache":true,"bos_token_id":151643,`

// transformers 4 wrote rope_theta, torch_dtype and a sliding window that is not used; transformers 5 writes
// rope_parameters, dtype and layer_types. Both mean the same model.
const (
	transformers4 = `{"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2",` + sizes + `"eos_token_id":151645,"rms_norm_eps":1e-06,
"rope_theta":1000000.0,"torch_dtype":"bfloat16","sliding_window":32768,"max_window_layers":21,"use_sliding_window":false,
"rope_scaling":null,"transformers_version":"4.43.1"}`
	transformers5 = `{"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2",` + sizes + `"eos_token_id":[151645,151643],"rms_norm_eps":1e-06,
"rope_parameters":{"rope_theta":1000000.0,"rope_type":"default"},"dtype":"bfloat16","sliding_window":null,
"layer_types":["full_attention","full_attention","full_attention","full_attention","full_attention","full_attention",
"full_attention","full_attention","full_attention","full_attention","full_attention","full_attention",
"full_attention","full_attention","full_attention","full_attention","full_attention","full_attention",
"full_attention","full_attention","full_attention","full_attention","full_attention","full_attention"],"transformers_version":"5.17.0"}`
)

func TestReadConfig(t *testing.T) {
	want := arch.Qwen2(arch.Sizes{Hidden: 896, Layers: 24, Heads: 14, KVHeads: 2, HeadDim: 64, Width: 4864, Vocab: 151936,
		MaxPositions: 32768, Theta: 1e6, Eps: 1e-6, Tied: true, InitRange: 0.02, BOS: 151643, EOS: 151645, DType: tensor.BF16,
	})
	for name, text := range map[string]string{"transformers 4": transformers4, "transformers 5": transformers5} {
		got, err := modelfile.ReadConfig(write(t, text))
		want := want
		if name == "transformers 5" {
			want.EOS = []int{151645, 151643}
		}
		if err != nil || !got.Equal(want) || got.DType != want.DType {
			t.Errorf("%s: %+v (%v), want %+v", name, got, err, want)
		}
	}
	if n := want.Parameters(); n != 494_032_768 {
		t.Errorf("%d parameters, Qwen2.5-0.5B has 494032768", n)
	}
}

// What a file leaves out is what transformers takes: as many key heads as heads, θ 10000, no tie, float32, no ids.
func TestConfigDefaults(t *testing.T) {
	got, err := modelfile.ReadConfig(write(t, `{"model_type":"qwen2","hidden_size":8,"intermediate_size":4,"num_hidden_layers":1,
"num_attention_heads":2,"vocab_size":9}`))
	want := arch.Qwen2(arch.Sizes{Hidden: 8, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 4, Width: 4, Vocab: 9,
		MaxPositions: 32768, Theta: 1e4, Eps: 1e-6, InitRange: 0.02, BOS: -1, EOS: -1, DType: tensor.F32,
	})
	if err != nil || !got.Equal(want) || got.DType != want.DType {
		t.Errorf("%+v (%v), want %+v", got, err, want)
	}
}

// What is written is read as it was, and the keys of both versions stand in it.
func TestConfigRoundTrip(t *testing.T) {
	for name, c := range shapes {
		for _, d := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16} {
			text := hfJSON(t, c, d)
			got, err := modelfile.ReadConfig(write(t, text))
			want := c
			want.DType = d
			if err != nil || !got.Equal(want) || got.DType != want.DType {
				t.Errorf("%s: %+v (%v), want %+v", name, got, err, want)
			}
			for _, key := range []string{`"rope_theta"`, `"rope_parameters"`, `"torch_dtype"`, `"dtype"`} {
				if !strings.Contains(text, key) {
					t.Errorf("%s: no key %s", name, key)
				}
			}
		}
	}
}

// TestConfigRefused holds a file for each thing that must be refused, with the exact text.
func TestConfigRefused(t *testing.T) {
	const all = transformers4
	for _, c := range []struct {
		name, old, new string
		kind           fault.Kind
		want           string
	}{
		{"empty", all, "", fault.Format, "line 1, column 1: expected a value, found end of text [E-JSON-001]"},
		{"cut", `"transformers_version":"4.43.1"}`, `"transformers_ver`, fault.Format, "line 5, column 38: string is cut [E-JSON-001]"},
		{"array", all, "[]", fault.Format, "line 1, column 1: expected an object, found an array [E-JSON-007]"},
		{"null", all, "null", fault.Format, "line 1, column 1: expected an object, found null [E-JSON-007]"},
		{"two objects", `"4.43.1"}`, `"4.43.1"} {}`, fault.Format, "line 5, column 54: '{' after the value [E-JSON-006]"},
		{"not JSON", `{"architectures"`, `{architectures`, fault.Format, "line 1, column 2: expected a key, found 'a' [E-JSON-001]"},
		{"byte order mark", `{"architectures"`, "\ufeff{\"architectures\"", fault.Format, "line 1, column 1: byte order mark [E-JSON-002]"},
		{"not UTF-8", `"4.43.1"`, "\"4.43\xff\"", fault.Format, "line 5, column 49: byte 0xff is not UTF-8 [E-JSON-002]"},
		{"unpaired surrogate", `"4.43.1"`, `"\udc00"`, fault.Format, "line 5, column 45: unpaired surrogate [E-JSON-002]"},
		{"raw control character", `"4.43.1"`, "\"4\x01\"", fault.Format, "line 5, column 46: raw control character 0x01 in a string [E-JSON-001]"},
		{"too deep", `"rope_scaling":null`, `"rope_scaling":` + strings.Repeat("[", 65) + strings.Repeat("]", 65), fault.Format, "line 5, column 79: nested deeper than 64 [E-JSON-004]"},
		{"key twice", `"use_cache":true`, `"vocab_size":1`, fault.Format, `line 3, column 21: key "vocab_size" occurs twice [E-JSON-003]`},
		{"key twice by escape", `"use_cache":true`, `"vocab\u005fsize":1`, fault.Format, `line 3, column 21: key "vocab_size" occurs twice [E-JSON-003]`},
		{"key in another case", `"hidden_size"`, `"Hidden_Size"`, fault.Format,
			`line 1, column 1: key "hidden_size" is missing; is "Hidden_Size" misspelt? [E-JSON-008]`},
		{"architecture", `"model_type":"qwen2"`, `"model_type":"llamas"`, fault.Format, `line 1, column 52: model_type "llamas" is not supported; supported: gemma2, gemma3_text, gemma4_text, gpt_oss, granite, granitemoehybrid, llama, ministral3, mistral, olmo2, olmo3, phi3, qwen2, qwen3, qwen3_5_text, qwen3_moe, smollm3 [E-CONFIG-021]`},
		{"key with two wrong letters", `"hidden_size"`, `"hiden_sise"`, fault.Format,
			`line 1, column 1: key "hidden_size" is missing; is "hiden_sise" misspelt? [E-JSON-008]`},
		{"no architecture", `"model_type":"qwen2",`, ``, fault.Format, `line 1, column 1: key "model_type" is missing [E-JSON-008]`},
		{"architecture a number", `"model_type":"qwen2"`, `"model_type":2`, fault.Format, `line 1, column 52: key "model_type": expected a string, found 2 [E-JSON-007]`},
		{"no hidden size", `"hidden_size":896,`, ``, fault.Format, `line 1, column 1: key "hidden_size" is missing [E-JSON-008]`},
		{"no layers", `"num_hidden_layers":24,`, ``, fault.Format, `line 1, column 1: key "num_hidden_layers" is missing [E-JSON-008]`},
		{"no heads", `"num_attention_heads":14,`, ``, fault.Format, `line 1, column 1: key "num_attention_heads" is missing [E-JSON-008]`},
		{"no intermediate size", `"intermediate_size":4864,`, ``, fault.Format, `line 1, column 1: key "intermediate_size" is missing [E-JSON-008]`},
		{"no vocabulary", `"vocab_size":151936,`, ``, fault.Format, `line 1, column 1: key "vocab_size" is missing [E-JSON-008]`},
		{"text for a size", `"hidden_size":896`, `"hidden_size":"896"`, fault.Format, `line 1, column 74: key "hidden_size": expected a non-negative integer, found the string "896" [E-JSON-007]`},
		{"null for a size", `"hidden_size":896`, `"hidden_size":null`, fault.Format, `line 1, column 1: key "hidden_size" is missing [E-JSON-008]`},
		{"negative size", `"vocab_size":151936`, `"vocab_size":-1`, fault.Format, `line 2, column 38: key "vocab_size": expected a non-negative integer, found -1 [E-JSON-007]`},
		{"fraction of a size", `"vocab_size":151936`, `"vocab_size":1.5`, fault.Format, `line 2, column 38: key "vocab_size": expected a non-negative integer, found 1.5 [E-JSON-007]`},
		{"exponent in a size", `"vocab_size":151936`, `"vocab_size":1e5`, fault.Format, `line 2, column 38: key "vocab_size": expected a non-negative integer, found 1e5 [E-JSON-007]`},
		{"leading zero", `"vocab_size":151936`, `"vocab_size":0151936`, fault.Format, "line 2, column 39: number with a leading zero [E-JSON-001]"},
		{"size over u64", `"vocab_size":151936`, `"vocab_size":18446744073709551616`, fault.Format, `line 2, column 38: key "vocab_size": integer 18446744073709551616 does not fit 64 bits [E-JSON-007]`},
		{"zero hidden size", `"hidden_size":896`, `"hidden_size":0`, fault.Invalid, "hidden_size is 0, not between 1 and 131072 [E-CONFIG-010]"},
		{"zero layers", `"num_hidden_layers":24`, `"num_hidden_layers":0`, fault.Format, `line 1, column 123: key "num_hidden_layers": 0 is not between 1 and 1024 [E-JSON-007]`},
		{"zero vocabulary", `"vocab_size":151936`, `"vocab_size":0`, fault.Invalid, "vocab_size is 0, not between 1 and 4194304 [E-CONFIG-010]"},
		{"zero intermediate size", `"intermediate_size":4864`, `"intermediate_size":0`, fault.Invalid, `layer 0: intermediate_size is 0, not between 1 and 1048576 [E-CONFIG-010]`},
		{"1025 layers", `"num_hidden_layers":24`, `"num_hidden_layers":1025`, fault.Format, `line 1, column 123: key "num_hidden_layers": 1025 is not between 1 and 1024 [E-JSON-007]`},
		{"hidden over 2^17", `"hidden_size":896`, `"hidden_size":131073`, fault.Format, `line 1, column 151: key "num_attention_heads": 14 heads do not divide hidden_size 131073 and no head_dim is given [E-JSON-007]`},
		{"absurd vocabulary", `"vocab_size":151936`, `"vocab_size":99999999999`, fault.Format, `line 2, column 38: key "vocab_size": 99999999999 is over 2147483647 [E-JSON-007]`},
		{"absurd positions", `"max_position_embeddings":32768`, `"max_position_embeddings":2000000000`, fault.Invalid, "max_position_embeddings is 2000000000, not between 1 and 1073741824 [E-CONFIG-010]"},
		{"zero heads", `"num_attention_heads":14`, `"num_attention_heads":0`, fault.Invalid, `layer 0: num_attention_heads is 0, not between 1 and 131072 [E-CONFIG-010]`},
		{"zero key-value heads", `"num_key_value_heads":2`, `"num_key_value_heads":0`, fault.Invalid, `layer 0: num_key_value_heads is 0, not between 1 and 131072 [E-CONFIG-010]`},
		{"key-value heads", `"num_key_value_heads":2`, `"num_key_value_heads":4`, fault.Invalid, `layer 0: 4 key-value heads do not divide 14 heads [E-CONFIG-010]`},
		{"heads", `"num_attention_heads":14,`, `"num_attention_heads":12,`, fault.Format, `line 1, column 148: key "num_attention_heads": 12 heads do not divide hidden_size 896 and no head_dim is given [E-JSON-007]`},
		{"odd head", `"hidden_act"`, `"head_dim":63,"hidden_act"`, fault.Invalid, `rotary embedding 0: rotates a number of values that is not even and at least 2; it pairs halves [E-CONFIG-010]`},
		{"wide heads", `"hidden_act"`, `"head_dim":131072,"hidden_act"`, fault.Invalid, `layer 0: 14 heads of 131072 values are wider than 131072 [E-CONFIG-010]`},
		{"theta zero", `"rope_theta":1000000.0`, `"rope_theta":0`, fault.Invalid, `rotary embedding 0: rope_theta is not finite and positive [E-CONFIG-010]`},
		{"theta negative", `"rope_theta":1000000.0`, `"rope_theta":-1`, fault.Invalid, `rotary embedding 0: rope_theta is not finite and positive [E-CONFIG-010]`},
		{"theta infinite", `"rope_theta":1000000.0`, `"rope_theta":1e999`, fault.Format, `line 4, column 14: key "rope_theta": number 1e999 does not fit a float64 [E-JSON-007]`},
		{"theta NaN", `"rope_theta":1000000.0`, `"rope_theta":NaN`, fault.Format, "line 4, column 14: expected a value, found 'N' [E-JSON-001]"},
		{"theta a text", `"rope_theta":1000000.0`, `"rope_theta":"1"`, fault.Format, `line 4, column 14: key "rope_theta": expected a number, found the string "1" [E-JSON-007]`},
		{"epsilon zero", `"rms_norm_eps":1e-06`, `"rms_norm_eps":0`, fault.Invalid, "rms_norm_eps 0 is not finite and positive [E-CONFIG-010]"},
		{"epsilon negative", `"rms_norm_eps":1e-06`, `"rms_norm_eps":-1`, fault.Invalid, "rms_norm_eps -1 is not finite and positive [E-CONFIG-010]"},
		{"epsilon infinite", `"rms_norm_eps":1e-06`, `"rms_norm_eps":Infinity`, fault.Format, "line 3, column 97: expected a value, found 'I' [E-JSON-001]"},
		{"epsilon below float64", `"rms_norm_eps":1e-06`, `"rms_norm_eps":1e-999`, fault.Invalid, "rms_norm_eps 0 is not finite and positive [E-CONFIG-010]"},
		{"initializer", `"initializer_range":0.02`, `"initializer_range":-1`, fault.Invalid, "initializer_range -1 is not finite and non-negative [E-CONFIG-010]"},
		{"tie a number", `"tie_word_embeddings":true`, `"tie_word_embeddings":1`, fault.Format, `line 2, column 124: key "tie_word_embeddings": expected a boolean, found 1 [E-JSON-007]`},
		{"end token", `"eos_token_id":151645`, `"eos_token_id":151936`, fault.Invalid, `bos_token_id or eos_token_id 151936 is outside the vocabulary of 151936 [E-CONFIG-010]`},
		{"begin token", `"bos_token_id":151643`, `"bos_token_id":4194304`, fault.Invalid, `bos_token_id or eos_token_id 4194304 is outside the vocabulary of 151936 [E-CONFIG-010]`},
		{"scaled rotary", `"rope_scaling":null`, `"rope_scaling":{"type":"dynamic","factor":4.0}`, fault.Format, `line 5, column 16: key "rope_type": rotary embedding of type "dynamic" is not supported; supported: default, linear, llama3, yarn, longrope, proportional [E-JSON-007]`},
		{"rotary an array", `"rope_scaling":null`, `"rope_scaling":[]`, fault.Format, "line 5, column 16: expected an object, found an array [E-JSON-007]"},
		{"rotary type a number", `"rope_scaling":null`, `"rope_scaling":{"type":4}`, fault.Format, `line 5, column 24: key "type": expected a string, found 4 [E-JSON-007]`},
		{"activation", `"hidden_act":"silu"`, `"hidden_act":"gelu"`, fault.Format, `line 3, column 14: key "hidden_act": activation "gelu" is not supported; supported: silu, gelu_pytorch_tanh [E-JSON-007]`},
		{"layer types", `"hidden_act"`, `"layer_types":["full_attention","sliding_attention"],"hidden_act"`, fault.Format, `line 3, column 15: key "layer_types": layer 1 is of type "sliding_attention", and use_sliding_window is false [E-JSON-007]`},
		{"layer type a number", `"hidden_act"`, `"layer_types":[1],"hidden_act"`, fault.Format, `line 3, column 16: key "layer_types": expected a string, found 1 [E-JSON-007]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			text := strings.Replace(all, c.old, c.new, 1)
			if text == all {
				t.Fatal("nothing was changed")
			}
			path := write(t, text)
			_, err := modelfile.ReadConfig(path)
			if err == nil {
				t.Fatal("accepted")
			}
			if err.Error() != path+": "+c.want || fault.KindOf(err) != c.kind {
				t.Errorf("got  %s (%v)\nwant %s (%v)", strings.TrimPrefix(err.Error(), path+": "), fault.KindOf(err), c.want, c.kind)
			}
		})
	}
	if _, err := modelfile.ReadConfig(t.TempDir() + "/none.json"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a missing file gives %v", err)
	}
}

// Every prefix is refused, and no changed byte makes a panic.
func TestConfigEveryPrefixAndFlip(t *testing.T) {
	accepted := 0
	contracttest.Cases(t, hostile.EachDamage(t, []byte(transformers5), func(name string, b []byte) {
		_, err := arch.Parse("x", string(b), arch.Options{})
		switch {
		case err != nil && fault.KindOf(err) != fault.Format && fault.KindOf(err) != fault.Invalid:
			t.Errorf("%s: %v", name, err)
		case err == nil && len(b) < len(transformers5):
			t.Errorf("%s: accepted", name)
		case err == nil:
			accepted++
		}
	}))
	if accepted == 0 {
		t.Error("no change was accepted, though the version of transformers may be any text")
	}
}

// FuzzConfig reads any text as config.json: a fault, or a configuration that is the same when it was written and read.
func FuzzConfig(f *testing.F) {
	for _, text := range []string{transformers4, transformers5, `{"model_type":"qwen2","hidden_size":8,"intermediate_size":4,
"num_hidden_layers":1,"num_attention_heads":2,"vocab_size":9,"head_dim":2,"rope_theta":1e-300}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var c arch.Config
		var err error
		hostile.Bounded(t, len(text), func() { c, err = arch.Parse("x", text, arch.Options{}) })
		if err != nil {
			if k := fault.KindOf(err); k != fault.Format && k != fault.Invalid {
				t.Fatalf("kind %v: %v", k, err)
			}
			return
		}
		written, err := arch.HFConfig(c, c.DType)
		if err != nil {
			return // it says that config.json cannot hold it
		}
		again, err := arch.Parse("x", string(written), arch.Options{})
		if err != nil || !again.Equal(c) {
			t.Fatalf("%+v is read again as %+v: %v", c, again, err)
		}
	})
}

// hfJSON is a config.json.
func hfJSON(t *testing.T, c arch.Config, d tensor.DType) string {
	t.Helper()
	b, err := arch.HFConfig(c, d)
	must(t, err)
	return string(b)
}
