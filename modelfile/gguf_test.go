package modelfile_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"apr/arch"
	"apr/format/gguf"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/near"
	"apr/modelfile"
	"apr/tensor"
)

const (
	gosrc     = "../testdata/models/gosrc"
	gosrcGGUF = "../testdata/models/gosrc-q4_k_m.gguf"
)

// The configuration that llama.cpp wrote is that of the Hugging Face folder it was made from.
func TestGGUFConfig(t *testing.T) {
	a, b := open(t, gosrcGGUF), open(t, gosrc)
	must(t, a.CheckTensors())
	got, want := a.Config, b.Config
	if got.DType != tensor.Q4_K {
		t.Errorf("type %s", got.DType)
	}
	got.DType = want.DType
	if !got.Equal(want) {
		t.Errorf("got  %#v\nwant %#v", got, want)
	}
}

// Every value is that of an independent program, bit for bit (testdata/models/dequantise.py).
func TestGGUFValues(t *testing.T) {
	raw, err := os.ReadFile("../testdata/models/gosrc-q4_k_m.json")
	must(t, err)
	var want map[string]string
	must(t, json.Unmarshal(raw, &want))
	f, original := open(t, gosrcGGUF), open(t, gosrc)
	if len(want) != 75 || len(f.File.Tensors()) != len(want) {
		t.Fatalf("%d tensors, %d known", len(f.File.Tensors()), len(want))
	}
	hashes := map[string]bool{}
	for _, h := range want {
		hashes[h] = true
	}
	for _, x := range f.File.Tensors() {
		got, err := f.ReadFloat32(x.Name)
		must(t, err)
		b := make([]byte, 4*len(got))
		tensor.Narrow(b, got, tensor.F32)
		sum := sha256.Sum256(b)
		if !hashes[hex.EncodeToString(sum[:])] {
			t.Errorf("%s: other values", x.Name)
		}
		// and it is the tensor that its name says
		exact, err := original.ReadFloat32(x.Name)
		must(t, err)
		if x.DType == tensor.F32 {
			near.Check(t, x.Name, got, exact, 0)
			continue
		}
		if c := cosine(got, exact); !(c > 0.99) {
			t.Errorf("%s: cosine %g to the original", x.Name, c)
		}
	}
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}

// A saved file gives back the weights bit for bit, and the configuration but for what GGUF has no word for.
func TestSaveGGUF(t *testing.T) {
	for name, c := range shapes {
		w := randomWeights(c)
		path := filepath.Join(t.TempDir(), "m.gguf")
		must(t, modelfile.SaveGGUF(path, c, nil, w.sources(c, tensor.F32), modelfile.GGUFOrigin{Name: "random"}, false))
		f := open(t, path)
		must(t, f.CheckTensors())
		got := f.Config
		got.InitRange = c.InitRange
		if !got.Equal(c) {
			t.Errorf("%s: configuration %#v, want %#v", name, got, c)
		}
		for slot, want := range w {
			values, err := f.ReadFloat32(slot)
			must(t, err)
			if !slices.Equal(values, want) {
				t.Errorf("%s: %s differs", name, slot)
			}
		}
		if _, err := f.Tokenizer(); fault.KindOf(err) != fault.Load {
			t.Errorf("%s: tokenizer: %v", name, err)
		}
		err := modelfile.SaveGGUF(path, c, nil, w.sources(c, tensor.F32), modelfile.GGUFOrigin{}, false)
		if fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: written over: %v", name, err)
		}
	}
}

// qwen2 is complete metadata of a small model.
func qwen2() []gguf.KV {
	return []gguf.KV{
		{Key: "general.architecture", Value: "qwen2"}, {Key: "qwen2.block_count", Value: uint32(1)}, {Key: "qwen2.context_length", Value: uint32(64)},
		{Key: "qwen2.embedding_length", Value: uint32(8)}, {Key: "qwen2.feed_forward_length", Value: uint32(4)},
		{Key: "qwen2.attention.head_count", Value: uint32(4)}, {Key: "qwen2.attention.layer_norm_rms_epsilon", Value: float32(1e-5)},
	}
}

// with returns metadata with one value replaced, added, or (nil) left out.
func with(key string, value any) []gguf.KV {
	list := slices.DeleteFunc(qwen2(), func(kv gguf.KV) bool { return kv.Key == key })
	if value != nil {
		list = append(list, gguf.KV{Key: key, Value: value})
	}
	return list
}

func TestGGUFConfigDefaults(t *testing.T) {
	want := arch.Qwen2(arch.Sizes{Hidden: 8, Layers: 1, Heads: 4, KVHeads: 4, HeadDim: 2, Width: 4, Vocab: 3, MaxPositions: 64,
		Theta: 10000, Eps: 1e-5, Tied: true, InitRange: 0.02, BOS: -1, EOS: -1, DType: tensor.F32,
	})
	c, err := openGGUFConfig(t, qwen2(), 3, 8)
	if err != nil || !c.Equal(want) {
		t.Errorf("%v\ngot  %#v\nwant %#v", err, c, want)
	}
}

func TestGGUFConfigRefused(t *testing.T) {
	for _, tt := range []struct {
		name string
		meta []gguf.KV
		kind fault.Kind
		want string // after the path
	}{
		{"architecture missing", with("general.architecture", nil), fault.Load, `key "general.architecture": is missing; a model without it can be inspected, not used [E-GGUF-022]`},
		{"architecture", with("general.architecture", "bert"), fault.Format, `key "general.architecture": general.architecture "bert" is not supported; supported: gemma2, gemma3, gemma4, gpt-oss, granite, llama, mistral3, olmo2, phi3, qwen2, qwen3, qwen35, qwen3moe, smollm3 [E-CONFIG-021]`},
		{"layers missing", with("qwen2.block_count", nil), fault.Load, `key "qwen2.block_count": is missing; a model without it can be inspected, not used [E-GGUF-022]`},
		{"epsilon missing", with("qwen2.attention.layer_norm_rms_epsilon", nil), fault.Load,
			`key "qwen2.attention.layer_norm_rms_epsilon": is missing; a model without it can be inspected, not used [E-GGUF-022]`},
		{"layers a string", with("qwen2.block_count", "1"), fault.Format, `key "qwen2.block_count": expected a non-negative integer, found 1 of type string [E-GGUF-020]`},
		{"layers absurd", with("qwen2.block_count", uint64(1<<63)), fault.Invalid, `key "qwen2.block_count": 2147483647 layers: not between 1 and 1024 [E-CONFIG-010]`},
		{"no heads", with("qwen2.attention.head_count", uint32(0)), fault.Invalid, `layer 0: num_attention_heads is 0, not between 1 and 131072 [E-CONFIG-010]`},
		{"heads", with("qwen2.attention.head_count_kv", uint32(3)), fault.Invalid, `layer 0: 3 key-value heads do not divide 4 heads [E-CONFIG-010]`},
		{"epsilon", with("qwen2.attention.layer_norm_rms_epsilon", float32(-1)), fault.Invalid, "rms_norm_eps -1 is not finite and positive [E-CONFIG-010]"},
		{"rope scaling", with("qwen2.rope.scaling.type", "dynamic"), fault.Format, `key "qwen2.rope.scaling.type": rotary embedding of type "dynamic" is not supported; supported: none, linear, yarn, longrope [E-CONFIG-015]`},
		{"rope of part of a head", with("qwen2.rope.dimension_count", uint32(1)), fault.Invalid, `rotary embedding 0: rotates a number of values that is not even and at least 2; it pairs halves [E-CONFIG-010]`},
		{"window", with("qwen2.attention.sliding_window", uint32(4)), fault.Format, `key "qwen2.attention.sliding_window": a window of 4 is not supported for this architecture [E-CONFIG-015]`},
		{"end outside the vocabulary", with("tokenizer.ggml.eos_token_id", uint32(3)), fault.Invalid, `bos_token_id or eos_token_id 3 is outside the vocabulary of 3 [E-CONFIG-010]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			_, err := openGGUFConfig(t, tt.meta, 3, 8)
			var f *fault.Error
			if !errors.As(err, &f) || f.Kind != tt.kind || err.Error() != f.Path+": "+tt.want {
				t.Errorf("got %v (%v), want %s", err, fault.KindOf(err), tt.want)
			}
		})
	}
	if _, err := openGGUFConfig(t, qwen2(), 24); fault.KindOf(err) != fault.Load {
		t.Errorf("embedding of rank 1: %v", err)
	}
}

// openGGUFConfig writes a file with an embedding of that shape and reads its configuration.
func openGGUFConfig(t *testing.T, meta []gguf.KV, shape ...int) (arch.Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.gguf")
	embed := tensor.BytesSource(tensor.Info{Name: "token_embd.weight", DType: tensor.F32, Shape: shape}, make([]byte, 4*24))
	must(t, gguf.Write(path, []tensor.Source{embed}, gguf.Options{Metadata: meta}))
	f, err := gguf.Open(path)
	must(t, err)
	defer f.Close()
	return modelfile.OpenGGUFConfig(f)
}
