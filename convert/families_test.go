package convert

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/format/gguf"
	"apr/internal/contracttest"
	"apr/modelfile"
	"apr/quant"
	"apr/tensor"
	"apr/tokenizer"
)

// widened families: rows are whole blocks, and the vocabulary is the shared tokenizer's.
var families = map[string]string{
	"llama":       `"head_dim":64,"rope_theta":5e5,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":32}`,
	"mistral":     `"head_dim":64,"sliding_window":null`,
	"qwen3":       `"head_dim":64,"tie_word_embeddings":true`,
	"phi3":        `"rope_theta":1e4,"sliding_window":null`,
	"gemma2":      `"head_dim":64,"sliding_window":16,"query_pre_attn_scalar":64`,
	"gemma3_text": `"head_dim":64,"sliding_window":16,"query_pre_attn_scalar":64`,
	"olmo2":       `"rope_theta":1e4`,
	"granite":     `"embedding_multiplier":12,"residual_multiplier":0.22,"attention_multiplier":0.015625,"logits_scaling":8`,
	"smollm3":     `"tie_word_embeddings":true`,
	"qwen3_moe":   `"head_dim":64,"num_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":256,"norm_topk_prob":true`,
}

// TestConvertFamilies quantises a folder of each family to .apr, and takes that through GGUF to .apr, of which every payload is
// the same, and to a folder, which is the same model in plain numbers.
func TestConvertFamilies(t *testing.T) {
	tok, err := tokenizer.Load(shared)
	if err != nil {
		t.Fatal(err)
	}
	for name := range families {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			dir := t.TempDir()
			c, err := open(t, familyFolder(t, dir, name, tok)).Config()
			if err != nil {
				t.Fatal(err)
			}
			steps := []struct {
				from, to string
				opt      Options
			}{
				{"hf", "a.apr", Options{Scheme: Q4_K_M}}, {"a.apr", "b.gguf", Options{}}, {"b.gguf", "c.apr", Options{}}, {"c.apr", "back", Options{DType: tensor.F32}},
				{"hf", "d.gguf", Options{Scheme: Q4_K_M}},
			}
			for _, s := range steps {
				if _, err := Write(context.Background(), open(t, filepath.Join(dir, s.from)), filepath.Join(dir, s.to), s.opt); err != nil {
					t.Fatalf("%s to %s: %v", s.from, s.to, err)
				}
			}
			equalPayloads(t, open(t, filepath.Join(dir, "a.apr")), open(t, filepath.Join(dir, "c.apr")))
			equalPayloads(t, open(t, filepath.Join(dir, "b.gguf")), open(t, filepath.Join(dir, "d.gguf")))
			a, b := files(t, filepath.Join(dir, "a.apr")), files(t, filepath.Join(dir, "back"))
			if err := b.CheckTensors(); err != nil {
				t.Error(err)
			}
			k, err := modelfile.Identify(context.Background(), a, b, func(int64, int64) {})
			if err != nil || k.Relation != modelfile.Same {
				t.Errorf("%v, %v", k, err)
			}
			if !a.Config.Equal(c) {
				t.Errorf("%v", arch.Compare(c, a.Config))
			}
			for _, d := range arch.Compare(c, b.Config) { // a GGUF file knows no family but its architecture, and its tokenizer's padding
				if d.Path != "family" && d.Path != "pad" {
					t.Errorf("%v", d)
				}
			}
			v, err := Validate(context.Background(), open(t, filepath.Join(dir, "b.gguf")), ValidateOptions{}, nil)
			if err != nil || !v.Valid {
				t.Errorf("%v: %+v", err, v.Fault("b.gguf", 0))
			}
		})
	}
}

func files(t *testing.T, path string) *modelfile.Files {
	t.Helper()
	f, err := modelfile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// randomSlots are a model's tensors: small numbers, and what norms multiply by about 1.
func randomSlots(c arch.Config) (out []tensor.Source) {
	rng := rand.New(rand.NewPCG(8, 9))
	for _, s := range arch.Slots(c) {
		v := make([]float32, s.Elements())
		for i := range v {
			v[i] = float32(0.02 * rng.NormFloat64())
			if s.Init == arch.Identity {
				v[i] += float32(1 - c.NormOffset)
			}
		}
		raw := make([]byte, 2*len(v))
		tensor.Narrow(raw, v, tensor.BF16)
		out = append(out, tensor.BytesSource(tensor.Info{Name: s.Name, DType: tensor.BF16, Shape: s.Shape}, raw))
	}
	return out
}

// close reports whether float32 differ by no more than a rounding of numbers about 1.
func close(p, q []byte) bool {
	x, y := make([]float32, len(p)/4), make([]float32, len(q)/4)
	tensor.Widen(x, p, tensor.F32)
	tensor.Widen(y, q, tensor.F32)
	for i := range x {
		if !(math.Abs(float64(x[i]-y[i])) <= 2e-7) {
			return false
		}
	}
	return len(x) == len(y)
}

// equalPayloads compares all tensors of two models, type and bytes.
func equalPayloads(t *testing.T, a, b *Container) {
	t.Helper()
	x, y := a.weights(""), b.weights("")
	if len(x) != len(y) || len(x) == 0 {
		t.Fatalf("%s: %d tensors, %s: %d", a.Path, len(x), b.Path, len(y))
	}
	blocks := 0
	for i := range x {
		p, q := make([]byte, x[i].Size), make([]byte, y[i].Size)
		n, _ := x[i].ReadAt(p, 0)
		m, _ := y[i].ReadAt(q, 0)
		if norm := strings.HasSuffix(x[i].Name, "norm.weight"); norm && close(p, q) { // w+1 is rounded to float32
			continue
		}
		if n < len(p) || m < len(q) || !x[i].Info.Equal(y[i].Info) || !bytes.Equal(p, q) {
			t.Errorf("%s: %s %v and %s %v", x[i].Name, x[i].DType, x[i].Shape, y[i].DType, y[i].Shape)
		}
		if x[i].DType.IsQuantized() {
			blocks++
		}
	}
	if blocks == 0 {
		t.Error("no blocks")
	}
}

// TestConvertValueHeads: K-quants of a matrix whose columns GGUF has in the order of tiled value heads, of which a block holds
// two. A file has the blocks that its columns encode to; what is read are their values in the model's order; and from there it
// goes to a folder and back.
func TestConvertValueHeads(t *testing.T) {
	tok, err := tokenizer.Load(shared)
	if err != nil {
		t.Fatal(err)
	}
	c, err := arch.Parse("config.json", `{"model_type":"qwen3_5_text","hidden_size":256,"intermediate_size":256,"num_hidden_layers":2,"num_attention_heads":4,`+
		`"layer_types":["linear_attention","linear_attention"],"linear_num_key_heads":2,"linear_num_value_heads":4,"linear_key_head_dim":32,"linear_value_head_dim":128,`+
		`"num_key_value_heads":2,"head_dim":64,"vocab_size":4160,"max_position_embeddings":64,"bos_token_id":4093,"eos_token_id":4093}`, arch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if _, err := modelfile.SaveHF(at("hf"), c, tok, randomSlots(c), tensor.BF16, false); err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct {
		from, to string
		opt      Options
	}{
		{"hf", "a.apr", Options{Scheme: Q4_K_M}}, {"a.apr", "b.gguf", Options{}}, {"hf", "d.gguf", Options{Scheme: Q4_K_M}}, {"d.gguf", "back", Options{DType: tensor.F32}},
		{"back", "e.gguf", Options{Scheme: Q4_K_M}}, {"d.gguf", "f.apr", Options{}}, {"f.apr", "g.gguf", Options{}},
	} {
		contracttest.Cases(t, 1)
		r, err := Write(context.Background(), open(t, at(s.from)), at(s.to), s.opt)
		if err != nil {
			t.Fatalf("%s to %s: %v", s.from, s.to, err)
		}
		again := slices.ContainsFunc(r.Warnings, func(line string) bool {
			return strings.HasPrefix(line, "2 tensors are encoded again in q4_k, which rounds") &&
				strings.Contains(line, "the 128 columns of a head") &&
				strings.Contains(line, "(model.layers.0.linear_attn.out_proj.weight and 1 more)")
		})
		if want := s.from == "a.apr"; again != want || !want && strings.Contains(strings.Join(r.Warnings, "\n"), "again") {
			t.Errorf("%s to %s: warnings %q", s.from, s.to, r.Warnings)
		}
	}
	valueHeadsDiffer(t, at("d.gguf"), at("g.gguf"))
	const name = "model.layers.1.linear_attn.out_proj.weight"
	var slot arch.Slot
	for _, s := range arch.Slots(c) {
		if s.Name == name {
			slot = s
		}
	}
	original := readSlot(t, at("hf"), name)
	_, rows, cols := slot.Dims()
	ordered := make([]float32, len(original))
	for i, x := range original {
		_, to := slot.Index(slot.GGUF, 0, i/cols, i%cols)
		ordered[to] = x
	}
	raw := make([]byte, int64(rows)*tensor.Q4_K.RowBytes(cols))
	if err := quant.Quantize(raw, ordered, tensor.Q4_K); err != nil {
		t.Fatal(err)
	}
	g, err := gguf.Open(at("d.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	stored, ok := g.Tensor("blk.1.ssm_out.weight")
	held := make([]byte, stored.Size)
	if n, _ := stored.ReadAt(held, 0); !ok || n < len(held) || stored.DType != tensor.Q4_K || !bytes.Equal(held, raw) {
		t.Error("ssm_out is not what its columns in the order of the file encode to")
	}
	quant.Dequantize(ordered, raw, tensor.Q4_K)
	for _, path := range []string{"d.gguf", "back", "f.apr"} {
		got := readSlot(t, at(path), name)
		for i := range got {
			if _, from := slot.Index(slot.GGUF, 0, i/cols, i%cols); got[i] != ordered[from] {
				t.Fatalf("%s: value %d is %g, want %g", path, i, got[i], ordered[from])
			}
		}
	}
	for _, path := range []string{"b.gguf", "e.gguf"} { // encoded twice
		worst := 0.0
		for i, x := range readSlot(t, at(path), name) {
			worst = math.Max(worst, math.Abs(float64(x-original[i])))
		}
		if !(worst <= 0.015) { // a step of 4 bits over ±0.08
			t.Errorf("%s: a value of %s is off by %g", path, name, worst)
		}
	}
}

// valueHeadsDiffer compares files that differ in the type of two matrices only, which are read as the same numbers.
func valueHeadsDiffer(t *testing.T, a, b string) {
	t.Helper()
	for _, opt := range []DiffOptions{{}, {Values: true}, {Weights: true}} {
		r, err := Diff(context.Background(), open(t, a), open(t, b), opt, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Identical || len(r.Tensors) != 2 || r.Retyped != 2 || r.Equal != r.Compared-2 {
			t.Fatalf("%+v: %+v", opt, r)
		}
		for i, d := range r.Tensors {
			if d.Name != fmt.Sprintf("model.layers.%d.linear_attn.out_proj.weight", i) || d.DTypeA != "q4_k" ||
				d.DTypeB != "f32" || d.SameValues == nil || !*d.SameValues ||
				opt.measures() && *d.MaxAbs != 0 {
				t.Errorf("%+v: %+v", opt, d)
			}
		}
		if err := r.Check(1); opt.measures() && err != nil {
			t.Error(err)
		}
	}
	if r, err := Diff(context.Background(), open(t, a), open(t, a), DiffOptions{}, nil); err != nil || !r.Identical {
		t.Errorf("a file and itself: %+v, %v", r, err)
	}
}

func readSlot(t *testing.T, path, name string) []float32 {
	t.Helper()
	v, err := files(t, path).ReadFloat32(name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
