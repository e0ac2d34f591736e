package modelfile_test

import (
	"context"
	"hash/fnv"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/internal/contracttest"
	"apr/modelfile"
	"apr/quant"
	"apr/tensor"
)

// change edits the values of a tensor.
type change func(name string, values []float32)

// variant writes a model with changed values, matrices in type d and vectors in float32, and opens it.
func variant(t *testing.T, f *modelfile.Files, d tensor.DType, changes ...change) *modelfile.Files {
	t.Helper()
	var out []tensor.Source
	for _, st := range f.File.Tensors() {
		values, err := f.ReadFloat32(st.Name)
		must(t, err)
		for _, c := range changes {
			c(st.Name, values)
		}
		info := tensor.Info{Name: st.Name, DType: d, Shape: st.Shape}
		if len(st.Shape) == 1 {
			info.DType = tensor.F32
		}
		raw := make([]byte, int64(st.Rows())*info.DType.RowBytes(st.Cols()))
		if info.DType.IsQuantized() {
			must(t, quant.Quantize(raw, values, info.DType))
		} else {
			tensor.Narrow(raw, values, info.DType)
		}
		out = append(out, tensor.BytesSource(info, raw))
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	must(t, modelfile.SaveGGUF(path, f.Config, nil, out, modelfile.GGUFOrigin{}, false))
	return open(t, path)
}

func rngOf(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = io.WriteString(h, name) // a hash takes everything
	return rand.New(rand.NewPCG(h.Sum64(), 1))
}

// adam moves every value as a step of AdamW does: by the learning rate, up or down.
func adam(rate float64) change {
	return func(name string, values []float32) {
		r := rngOf(name)
		for i := range values {
			values[i] += float32(rate * math.Tanh(3*r.NormFloat64()))
		}
	}
}

// sgd moves a tensor along a direction of norm rate.
func sgd(rate float64) change {
	return func(name string, values []float32) {
		r := rngOf(name)
		for i := range values {
			values[i] += float32(rate * r.NormFloat64() / math.Sqrt(float64(len(values))))
		}
	}
}

// only restricts a change to one tensor.
func only(part string, c change) change {
	return func(name string, values []float32) {
		if strings.HasSuffix(name, part) {
			c(name, values)
		}
	}
}

func scale(by float32) change {
	return func(_ string, values []float32) {
		for i := range values {
			values[i] *= by
		}
	}
}

func identify(t *testing.T, a, b *modelfile.Files) modelfile.Kinship {
	t.Helper()
	k, err := modelfile.Identify(context.Background(), a, b, func(int64, int64) {})
	must(t, err)
	back, err := modelfile.Identify(context.Background(), b, a, func(int64, int64) {})
	must(t, err)
	if back.Relation != k.Relation || back.Tensor != k.Tensor || !reflect.DeepEqual(back.Alike, k.Alike) || !reflect.DeepEqual(back.Close, k.Close) || back.Rows != k.Rows {
		t.Errorf("the other way round %s, not %s", back, k)
	}
	return k
}

var blockTypes = []tensor.DType{tensor.Q8_0, tensor.Q6_K, tensor.Q5_K, tensor.Q4_K, tensor.Q5_0, tensor.Q4_0}

// small is a part of a trained model that is a model: its first layer and some rows of its tables.
func small(t *testing.T) *modelfile.Files {
	t.Helper()
	f := open(t, gosrc)
	c := f.Config
	c.Layers, c.Vocab, c.BOS, c.EOS = c.Layers[:1], 256, -1, nil
	var out []tensor.Source
	for name, shape := range arch.Shapes(c) {
		values, err := f.ReadFloat32(name)
		must(t, err)
		n, _ := tensor.Elements(shape)
		raw := make([]byte, 2*n)
		tensor.Narrow(raw, values[:n], tensor.BF16)
		out = append(out, tensor.BytesSource(tensor.Info{Name: name, DType: tensor.BF16, Shape: shape}, raw))
	}
	dir := filepath.Join(t.TempDir(), "small")
	_, err := modelfile.SaveHF(dir, c, nil, out, tensor.BF16, false)
	must(t, err)
	return open(t, dir)
}

// A model is recognised in every type and through every conversion.
func TestIdentityOfCopies(t *testing.T) {
	hf, whole := small(t), open(t, gosrc)
	wide := variant(t, hf, tensor.F32, sgd(1)) // values that need all digits of float32
	for _, tt := range []struct {
		name string
		a, b *modelfile.Files
		want modelfile.Relation
	}{
		{"itself", hf, hf, modelfile.Same},
		{"bf16 as f32", hf, variant(t, hf, tensor.F32), modelfile.Same},
		{"noise of arithmetic", wide, variant(t, wide, tensor.F32, scale(1+5e-6)), modelfile.Same},
		{"f32 as bf16", wide, variant(t, wide, tensor.BF16), modelfile.Derived},
		{"f32 as f16", wide, variant(t, wide, tensor.F16), modelfile.Derived},
		{"f32 as bf16 and f32", wide, variant(t, variant(t, wide, tensor.BF16), tensor.F32), modelfile.Derived},
		{"f16 and bf16 of one", variant(t, wide, tensor.F16), variant(t, wide, tensor.BF16), modelfile.Derived},
		{"llama.cpp", whole, open(t, gosrcGGUF), modelfile.Derived},
		{"f32 of llama.cpp", whole, variant(t, open(t, gosrcGGUF), tensor.F32), modelfile.Derived},
		{"bf16 of llama.cpp", whole, variant(t, open(t, gosrcGGUF), tensor.BF16), modelfile.Derived},
		{"llama.cpp as f32", open(t, gosrcGGUF), variant(t, open(t, gosrcGGUF), tensor.F32), modelfile.Same},
		{"llama.cpp and we", open(t, gosrcGGUF), variant(t, whole, tensor.Q4_K), modelfile.Derived},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			k, err := modelfile.Identify(context.Background(), tt.a, tt.b, func(int64, int64) {})
			if must(t, err); k.Relation != tt.want {
				t.Error(k)
			}
		})
	}
	for _, d := range blockTypes {
		t.Run(d.String(), func(t *testing.T) {
			blocks := variant(t, hf, d)
			for name, other := range map[string]*modelfile.Files{
				"of bf16": hf, "of f32": wide, "f32": variant(t, blocks, tensor.F32), "bf16": variant(t, blocks, tensor.BF16),
				"q8_0": variant(t, blocks, tensor.Q8_0), "and q6_k of one": variant(t, hf, tensor.Q6_K), "and q8_0 of one": variant(t, hf, tensor.Q8_0),
			} {
				contracttest.Cases(t, 1)
				from := blocks
				if name == "of f32" {
					from = variant(t, wide, d)
				}
				if k := identify(t, from, other); k.Relation == modelfile.Different {
					t.Errorf("%s: %s", name, k)
				}
				if name == "f32" || name == "bf16" || name == "q8_0" { // expanded again, and beside the original
					contracttest.Cases(t, 1)
					if k := identify(t, hf, other); k.Relation != modelfile.Derived {
						t.Errorf("%s of %s of the original: %s", name, d, k)
					}
				}
			}
		})
	}
}

// A model that learned something is another one, however little that was, in whatever type it is kept.
func TestIdentityOfTrained(t *testing.T) {
	hf := small(t)
	q4 := variant(t, hf, tensor.Q4_K)
	const one = "layers.0.mlp.up_proj.weight"
	check := func(name string, a, b *modelfile.Files) {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			if k := identify(t, a, b); k.Relation != modelfile.Different {
				t.Error(k)
			}
		})
	}
	for name, c := range map[string]change{
		"a step of AdamW": adam(3e-4), "a small step of AdamW": adam(1e-5), "a step of SGD": sgd(3e-3),
		"a step of one matrix": only(one, adam(3e-4)), "one matrix scaled": only(one, scale(1.001)), "one matrix turned": only(one, sgd(3e-2)),
	} {
		check(name+", f32", hf, variant(t, hf, tensor.F32, c))
		check(name+", of a teacher of blocks", q4, variant(t, q4, tensor.F32, c))
	}
	for name, c := range map[string]change{"a step of AdamW": adam(3e-4), "a step of one matrix": only(one, adam(3e-4))} {
		for _, d := range append([]tensor.DType{tensor.BF16, tensor.F16}, blockTypes...) {
			check(name+", "+d.String(), hf, variant(t, hf, d, c))
		}
		check(name+", a teacher of blocks and bf16", q4, variant(t, q4, tensor.BF16, c))
		check(name+", a teacher of blocks and q8_0", q4, variant(t, q4, tensor.Q8_0, c))
	}
}

// Models of other shapes, or of an arithmetic of their own, are not read; what only says how a file is used does not count.
func TestIdentityOfConfigurations(t *testing.T) {
	type change = func(*arch.Config)
	layers := func(set func(*arch.Layer)) change {
		return func(c *arch.Config) {
			c.Layers = slices.Clone(c.Layers)
			for i := range c.Layers {
				set(&c.Layers[i])
			}
		}
	}
	shape := map[string][]change{
		"Hidden": {func(c *arch.Config) { c.Hidden *= 2 }},
		"Layers": {
			func(c *arch.Config) { c.Layers = c.Layers[:1] }, layers(func(l *arch.Layer) { l.Attn.Heads *= 2 }), layers(func(l *arch.Layer) { l.Attn.KVHeads *= 2 }),
			layers(func(l *arch.Layer) { l.Attn.HeadDim *= 2 }), layers(func(l *arch.Layer) { l.FFN.Width++ }), layers(func(l *arch.Layer) { l.Attn.QKNorm = arch.HeadNorm }),
		},
	}
	arithmetic := map[string][]change{
		"Ropes": {func(c *arch.Config) { c.Ropes = slices.Clone(c.Ropes); c.Ropes[0].Theta *= 10 }}, "Eps": {func(c *arch.Config) { c.Eps *= 1.1 }},
		"NormOffset": {func(c *arch.Config) { c.NormOffset = 1 }}, "EmbedScale": {func(c *arch.Config) { c.EmbedScale = 2 }},
		"LogitScale": {func(c *arch.Config) { c.LogitScale = 2 }}, "FinalCap": {func(c *arch.Config) { c.FinalCap = 30 }},
		"Layers": {layers(func(l *arch.Layer) { l.Attn.Window = 8 }), layers(func(l *arch.Layer) { l.Residual = .5 })},
	}
	use := map[string][]change{
		"Family": {func(c *arch.Config) { c.Family = "llama" }}, "MaxPositions": {func(c *arch.Config) { c.MaxPositions /= 2 }}, "InitRange": {func(c *arch.Config) { c.InitRange = 1 }},
		"BOS": {func(c *arch.Config) { c.BOS = -1 }}, "EOS": {func(c *arch.Config) { c.EOS = []int{0} }}, "Pad": {func(c *arch.Config) { c.Pad = 1 }},
		"Vocab": {func(c *arch.Config) { c.Vocab++ }}, // of which the rows that both have are compared
		"DType": {func(c *arch.Config) { c.DType = tensor.F32 }}, "Stored": {func(c *arch.Config) { c.Stored = "fp8" }},
		"Tied": {func(*arch.Config) {}}, "PLE": {func(*arch.Config) {}}, // see TestIdentityOfHeads; per-layer embeddings are tensors
	}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(arch.Config{})) {
		if shape[f.Name] == nil && arithmetic[f.Name] == nil && use[f.Name] == nil {
			t.Errorf("nothing is said of the field %s", f.Name)
		}
		for _, set := range shape[f.Name] {
			a, b := open(t, gosrc), open(t, gosrc)
			set(&b.Config)
			k, err := modelfile.Identify(context.Background(), &modelfile.Files{Config: a.Config}, &modelfile.Files{Config: b.Config}, func(int64, int64) {}) // to read would panic
			if must(t, err); k.Relation != modelfile.Different || k.Field == "" || k.Alike != nil {
				t.Errorf("%s: %s", f.Name, k)
			}
		}
		for _, set := range arithmetic[f.Name] {
			a, b := open(t, gosrc), open(t, gosrc)
			set(&b.Config)
			k, err := modelfile.Identify(context.Background(), a, b, func(int64, int64) {})
			if must(t, err); k.Relation != modelfile.Different || k.Field == "" || k.Alike == nil || k.Alike.Alike != k.Alike.Tensors || !strings.Contains(k.String(), "tensors are those of the other model") {
				t.Errorf("%s: %s, likeness %+v", f.Name, k, k.Alike)
			}
		}
		for _, set := range use[f.Name] {
			a, b := open(t, gosrc), open(t, gosrc)
			set(&b.Config)
			if k := identify(t, a, b); k.Relation == modelfile.Different {
				t.Errorf("%s: %s", f.Name, k)
			}
		}
		contracttest.Cases(t, 1)
	}
}

// Two roundings of one original, and copies that went through two types, are derived, whatever type holds them now.
func TestIdentityOfChains(t *testing.T) {
	hf := small(t)
	through := func(types ...tensor.DType) *modelfile.Files {
		f := hf
		for _, d := range types {
			f = variant(t, f, d)
		}
		return f
	}
	const f32, bf16, q4, q6, q8 = tensor.F32, tensor.BF16, tensor.Q4_K, tensor.Q6_K, tensor.Q8_0
	for name, p := range map[string][2]*modelfile.Files{
		"f32 of q4_k and f32 of q8_0":  {through(q4, f32), through(q8, f32)},
		"f32 of q4_k and bf16 of q6_k": {through(q4, f32), through(q6, bf16)},
		"f32 of q8_0 and bf16 of q6_k": {through(q8, f32), through(q6, bf16)},
		"q4_k and bf16 of q6_k":        {through(q4), through(q6, bf16)},
		"q6_k of q4_k":                 {hf, through(q4, f32, q6)},
		"bf16 of q6_k of q4_k":         {hf, through(q4, f32, q6, bf16)},
		"q6_k of q6_k":                 {hf, through(q6, f32, q6)},
		"q4_k, and bf16 of q6_k of it": {through(q4), through(q4, f32, q6, bf16)},
		"f32 of q5_k and f32 of q8_0":  {through(tensor.Q5_K, f32), through(q8, f32)},
		"f32 of q4_0 and f32 of q6_k":  {through(tensor.Q4_0, f32), through(q6, f32)},
	} {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			if k := identify(t, p[0], p[1]); k.Relation != modelfile.Derived {
				t.Error(k)
			}
		})
	}
}

// A copy in which little was changed is another model, and it is said how little; of a trained one nothing is.
func TestLikenessOfCopies(t *testing.T) {
	hf := small(t)
	for name, changed := range map[string]*modelfile.Files{
		"model.norm.weight":                     variant(t, hf, tensor.F32, only("model.norm.weight", func(_ string, v []float32) { v[3] *= 1.05 })),
		"model.layers.0.self_attn.k_proj.bias":  variant(t, hf, tensor.Q8_0, only("k_proj.bias", func(_ string, v []float32) { v[7] *= 3 })),
		"model.layers.0.input_layernorm.weight": variant(t, hf, tensor.BF16, only("input_layernorm.weight", func(_ string, v []float32) { v[0] *= 1.5 })),
	} {
		contracttest.Cases(t, 1)
		k := identify(t, hf, changed)
		if l := k.Alike; k.Relation != modelfile.Different || l == nil || l.Alike != l.Tensors-1 || !reflect.DeepEqual(l.Others, []string{name}) || !strings.Contains(k.String(), "different: "+name) {
			t.Errorf("%s: %s, likeness %+v", name, k, l)
		}
	}
	for _, d := range []tensor.DType{tensor.F32, tensor.BF16, tensor.Q8_0, tensor.Q4_K} {
		contracttest.Cases(t, 1)
		if k := identify(t, hf, variant(t, hf, d, adam(3e-4))); k.Relation != modelfile.Different || k.Alike != nil {
			t.Errorf("trained, %s: %s", d, k)
		}
	}
}

// A tied head that a file writes out is the embedding.
func TestIdentityOfHeads(t *testing.T) {
	c := shapes["tied"]
	w, tied, _ := saved(t, c, tensor.F32)
	c.Tied = false
	write := func(move float32) *modelfile.Files {
		own := maps.Clone(w)
		head := slices.Clone(w["model.embed_tokens.weight"])
		head[len(head)-1] += move
		own["lm_head.weight"] = head
		out := own.sources(c, tensor.F32)
		dir := filepath.Join(t.TempDir(), "untied")
		_, err := modelfile.SaveHF(dir, c, nil, out, tensor.F32, false)
		must(t, err)
		return open(t, dir)
	}
	for move, want := range map[float32]modelfile.Relation{0: modelfile.Same, 0.1: modelfile.Different} {
		contracttest.Cases(t, 1)
		if k := identify(t, open(t, tied), write(move)); k.Relation != want {
			t.Errorf("head moved by %g: %s", move, k)
		}
	}
}

// Of different models hardly anything is read, and a damaged value is no excuse.
func TestIdentityReadsLittle(t *testing.T) {
	hf := open(t, gosrc)
	other := variant(t, hf, tensor.F32, adam(1e-2))
	if k := identify(t, hf, other); k.Relation != modelfile.Different || k.Tensor != "lm_head.weight" || k.Values > 1<<18 {
		t.Errorf("%s after %d values", k, k.Values)
	}
	broken := variant(t, hf, tensor.F32, only("lm_head.weight", func(_ string, v []float32) { v[5] = float32(math.NaN()) }))
	if k := identify(t, hf, broken); k.Relation != modelfile.Different {
		t.Errorf("a NaN: %s", k)
	}
	if k := identify(t, broken, broken); k.Relation != modelfile.Same {
		t.Errorf("the same NaN: %s", k)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := modelfile.Identify(ctx, hf, hf, func(int64, int64) {}); err == nil {
		t.Error("went on after the end")
	}
	contracttest.Cases(t, 4)
}
