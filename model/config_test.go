package model_test

import (
	"fmt"
	"strings"
	"testing"

	"apr/internal/fault"
	"apr/model"
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
"layer_types":["full_attention","full_attention"],"transformers_version":"5.17.0"}`
)

func TestReadConfig(t *testing.T) {
	want := model.Config{
		Architecture: "qwen2", HiddenSize: 896, Layers: 24, Heads: 14, KVHeads: 2, HeadDim: 64, IntermediateSize: 4864, VocabSize: 151936,
		MaxPositions: 32768, RopeTheta: 1e6, RMSNormEps: 1e-6, Tied: true, InitializerRange: 0.02, BOS: 151643, EOS: 151645, DType: tensor.BF16,
	}
	for name, text := range map[string]string{"transformers 4": transformers4, "transformers 5": transformers5} {
		got, err := model.ReadConfig(write(t, text))
		if err != nil || got != want {
			t.Errorf("%s: %+v (%v), want %+v", name, got, err, want)
		}
	}
	if n := want.ParamCount(); n != 494_032_768 {
		t.Errorf("%d parameters, Qwen2.5-0.5B has 494032768", n)
	}
}

// What a file leaves out is what transformers takes: as many key heads as heads, θ 10000, no tie, float32, no ids.
func TestConfigDefaults(t *testing.T) {
	got, err := model.ReadConfig(write(t, `{"model_type":"qwen2","hidden_size":8,"intermediate_size":4,"num_hidden_layers":1,
"num_attention_heads":2,"vocab_size":9}`))
	want := model.Config{
		Architecture: "qwen2", HiddenSize: 8, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 4, IntermediateSize: 4, VocabSize: 9,
		MaxPositions: 32768, RopeTheta: 1e4, RMSNormEps: 1e-6, InitializerRange: 0.02, BOS: -1, EOS: -1, DType: tensor.F32,
	}
	if err != nil || got != want {
		t.Errorf("%+v (%v), want %+v", got, err, want)
	}
}

// What is written is read as it was, and the keys of both versions stand in it.
func TestConfigRoundTrip(t *testing.T) {
	for name, c := range shapes {
		for _, d := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16} {
			text := string(c.HFJSON(d))
			got, err := model.ReadConfig(write(t, text))
			want := c
			want.DType = d
			if err != nil || got != want {
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

func TestConfigRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		old, new string
		kind     fault.Kind
		want     string
	}{
		"architecture":       {`"model_type":"qwen2"`, `"model_type":"llama"`, fault.Format, `architecture "llama" is not supported; supported: qwen2`},
		"no architecture":    {`"model_type":"qwen2",`, ``, fault.Format, `key "model_type" is missing`},
		"no size":            {`"hidden_size":896,`, ``, fault.Format, `key "hidden_size" is missing`},
		"text for a size":    {`"hidden_size":896`, `"hidden_size":"896"`, fault.Format, "hidden_size"},
		"negative size":      {`"vocab_size":151936`, `"vocab_size":-1`, fault.Format, "vocab_size"},
		"fraction of a size": {`"vocab_size":151936`, `"vocab_size":1.5`, fault.Format, "vocab_size"},
		"zero layers":        {`"num_hidden_layers":24`, `"num_hidden_layers":0`, fault.Invalid, "num_hidden_layers is 0, not between 1 and 1024"},
		"absurd size":        {`"vocab_size":151936`, `"vocab_size":99999999999`, fault.Invalid, "vocab_size is 2147483647"},
		"zero heads":         {`"num_attention_heads":14`, `"num_attention_heads":0`, fault.Invalid, "num_attention_heads is 0"},
		"kv heads":           {`"num_key_value_heads":2`, `"num_key_value_heads":4`, fault.Invalid, "4 key-value heads do not divide 14 heads"},
		"heads":              {`"num_attention_heads":14,`, `"num_attention_heads":12,`, fault.Invalid, "12 heads do not divide hidden_size 896"},
		"odd head":           {`"hidden_act"`, `"head_dim":63,"hidden_act"`, fault.Invalid, "head_dim 63 is odd"},
		"wide heads":         {`"hidden_act"`, `"head_dim":131072,"hidden_act"`, fault.Invalid, "14 heads of 131072 values are wider than"},
		"theta":              {`"rope_theta":1000000.0`, `"rope_theta":0`, fault.Invalid, "rope_theta 0 is not finite and positive"},
		"eps":                {`"rms_norm_eps":1e-06`, `"rms_norm_eps":-1`, fault.Invalid, "rms_norm_eps -1 is not finite and positive"},
		"initializer":        {`"initializer_range":0.02`, `"initializer_range":-1`, fault.Invalid, "initializer_range -1"},
		"end token":          {`"eos_token_id":151645`, `"eos_token_id":151936`, fault.Invalid, "outside the vocabulary of 151936"},
		"scaled rotary":      {`"rope_scaling":null`, `"rope_scaling":{"type":"yarn","factor":4.0}`, fault.Format, `rotary embedding of type "yarn" is not supported; supported: default`},
		"sliding window":     {`"use_sliding_window":false`, `"use_sliding_window":true`, fault.Format, "sliding-window attention is not supported"},
		"activation":         {`"hidden_act":"silu"`, `"hidden_act":"gelu"`, fault.Format, `activation "gelu" is not supported; qwen2 uses silu`},
		"layer types": {`"hidden_act"`, `"layer_types":["full_attention","sliding_attention"],"hidden_act"`, fault.Format,
			`layer 1 is of type "sliding_attention"; supported: full_attention`},
		"not JSON": {`{"architectures"`, `{architectures`, fault.Format, "config.json"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(transformers4, c.old, c.new, 1)
			if text == transformers4 {
				t.Fatal("nothing was changed")
			}
			path := write(t, text)
			_, err := model.ReadConfig(path)
			if fault.KindOf(err) != c.kind || !strings.Contains(fmt.Sprint(err), c.want) || !strings.Contains(fmt.Sprint(err), path) {
				t.Errorf("error %v, want one of kind %v that names the file and says %q", err, c.kind, c.want)
			}
		})
	}
	if _, err := model.ReadConfig(t.TempDir() + "/none.json"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a missing file gives %v", err)
	}
}
