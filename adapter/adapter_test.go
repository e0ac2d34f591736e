package adapter

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/format/gguf"
	"apr/format/safetensors"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
)

const (
	goldens = "../testdata/golden"
	base    = goldens + "/qwen2/tied_gqa/student"
)

func open(t *testing.T, path string) *modelfile.Files {
	t.Helper()
	f, err := modelfile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func read64(t *testing.T, f *modelfile.Files, name string) []float32 {
	t.Helper()
	v, err := f.ReadFloat32(name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Counts that are known from elsewhere.
func TestParameters(t *testing.T) {
	smollm := arch.Qwen2(arch.Sizes{Hidden: 576, Layers: 30, Heads: 9, KVHeads: 3, HeadDim: 64, Width: 1536, Vocab: 49152, MaxPositions: 2048, Theta: 1e4, Eps: 1e-5, Tied: true, DType: tensor.BF16})
	half := arch.Qwen2(arch.Sizes{Hidden: 896, Layers: 24, Heads: 14, KVHeads: 2, HeadDim: 64, Width: 4864, Vocab: 151936, MaxPositions: 32768, Theta: 1e6, Eps: 1e-6, Tied: true, DType: tensor.BF16})
	for _, c := range []struct {
		config  arch.Config
		targets string
		rank    int
		want    int64
	}{
		{smollm, "q,v", 8, 460_800},
		{half, "q,v,o,gate,up,down", 32, 16_809_984},
	} {
		a, err := New(c.config, strings.Split(c.targets, ","), c.rank, 16, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n := a.Parameters(); n != c.want {
			t.Errorf("rank %d on %s: %d parameters, want %d", c.rank, c.targets, n, c.want)
		}
	}
}

// What cannot be trained is refused by name.
func TestNewRefuses(t *testing.T) {
	c := open(t, base).Config
	moe := open(t, goldens+"/families/qwen3_moe").Config
	for name, tt := range map[string]struct {
		config  arch.Config
		targets []string
		rank    int
		kind    fault.Kind
		says    string
	}{
		"rank 0":         {c, []string{"q"}, 0, fault.Usage, "--lora-rank"},
		"rank too large": {c, []string{"v"}, 33, fault.Usage, "model.layers.0.self_attn.v_proj.weight"},
		"unknown target": {c, []string{"gates"}, 4, fault.Usage, `"gates"`},
		"experts":        {moe, []string{"q", "gate"}, 4, fault.Unavailable, `"gate"`},
	} {
		_, err := New(tt.config, tt.targets, tt.rank, 8, 0)
		if fault.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// PEFT's adapters are read with their ranks and scales, written, and read again: through its own form, and through GGUF where one
// alpha is enough.
func TestRoundTrip(t *testing.T) {
	for _, name := range []string{"plain", "all", "rslora_patterns"} {
		contracttest.Cases(t, 1)
		f := open(t, base)
		a, err := Open(filepath.Join(goldens, "lora", name), f)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string][2]float64{"plain": {4, 2}, "all": {8, 2}, "rslora_patterns": {4, 4}}[name]
		for _, m := range a.Modules {
			rank, scale := want[0], want[1]
			if name == "rslora_patterns" && m.Slot.Role == arch.Down {
				rank, scale = 2, 6/math.Sqrt2
			}
			if float64(m.Rank) != rank || math.Abs(m.Scale-scale) > 1e-12 {
				t.Errorf("%s: %s has rank %d and scale %g, want %g and %g", name, m.Slot.Name, m.Rank, m.Scale, rank, scale)
			}
		}
		dir, file := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "a.gguf")
		if _, err := a.SavePEFT(dir, false); err != nil {
			t.Fatal(err)
		}
		if err := a.SaveGGUF(file, f.Config, false); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{dir, filepath.Join(dir, weightsName), file} {
			b, err := Open(path, f)
			if err != nil {
				t.Fatal(err)
			}
			sameDeltas(t, name+" "+filepath.Base(path), a, b)
		}
		if _, err := a.SavePEFT(dir, false); fault.KindOf(err) != fault.Invalid {
			t.Errorf("written over without --force: %v", err)
		}
	}
}

// sameDeltas compares scale·B·A of all modules.
func sameDeltas(t *testing.T, what string, a, b *Adapter) {
	t.Helper()
	if len(a.Modules) != len(b.Modules) {
		t.Fatalf("%s: %d modules became %d", what, len(a.Modules), len(b.Modules))
	}
	for i, m := range a.Modules {
		n := b.Modules[i]
		if m.Slot.Name != n.Slot.Name {
			t.Fatalf("%s: %s became %s", what, m.Slot.Name, n.Slot.Name)
		}
		x, y := delta(m), delta(n)
		for j := range x {
			if !(math.Abs(x[j]-y[j]) <= 1e-6*(math.Abs(x[j])+1e-3)) {
				t.Fatalf("%s: %s: value %d of the product is %g, was %g", what, m.Slot.Name, j, y[j], x[j])
			}
		}
	}
}

func delta(m Module) []float64 {
	out, in := m.Slot.Shape[0], m.Slot.Shape[1]
	d := make([]float64, out*in)
	for r := range out {
		for k := range m.Rank {
			for c := range in {
				d[r*in+c] += m.Scale * float64(m.B[r*m.Rank+k]) * float64(m.A[k*in+c])
			}
		}
	}
	return d
}

// random returns an adapter of every matrix of a model, of different ranks and scales.
func random(c arch.Config) *Adapter {
	a, x := &Adapter{}, uint32(1)
	fill := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			x = x*1664525 + 1013904223
			v[i] = float32(int32(x)) / (1 << 31)
		}
		return v
	}
	for i, s := range Slots(c) {
		if i%5 != 2 {
			r := 1 + i%3
			a.Modules = append(a.Modules, Module{Slot: s, Rank: r, Scale: []float64{.5, 2}[i%2], A: fill(r * s.Shape[1]), B: fill(s.Shape[0] * r)})
		}
	}
	return a
}

// Adapters of every family survive both forms, also where a file has q, k and v in one tensor or rows in another order: what is
// merged is the same.
func TestFamilies(t *testing.T) {
	dirs, err := filepath.Glob(goldens + "/families/*")
	if err != nil || len(dirs) != 15 {
		t.Fatal(len(dirs), err)
	}
	for _, dir := range dirs {
		contracttest.Cases(t, 1)
		f := open(t, dir)
		a := random(f.Config)
		if f.Config.Tied { // llama.cpp has no output matrix to adapt
			a.Modules = slices.DeleteFunc(a.Modules, func(m Module) bool { return m.Slot.Name == headName })
		}
		want := mergedValues(t, dir, a)
		folder, file := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "a.gguf")
		if _, err := a.SavePEFT(folder, false); err != nil {
			t.Errorf("%s: %v", dir, err)
			continue
		}
		if err := a.SaveGGUF(file, f.Config, false); err != nil {
			t.Errorf("%s: %v", dir, err)
			continue
		}
		for _, path := range []string{folder, file} {
			b, err := Open(path, f)
			if err != nil {
				t.Errorf("%s: %v", dir, err)
				continue
			}
			got := mergedValues(t, dir, b)
			for name, w := range want {
				for i := range w {
					if !(math.Abs(float64(got[name][i]-w[i])) <= 2e-6) {
						t.Fatalf("%s, %s: value %d of %s is %g, want %g", filepath.Base(dir), filepath.Base(path), i, name, got[name][i], w[i])
					}
				}
			}
		}
	}
}

// mergedValues returns all values of a model with an adapter merged, which it compares with float64.
func mergedValues(t *testing.T, dir string, a *Adapter) map[string][]float32 {
	t.Helper()
	f, plain := open(t, dir), open(t, dir)
	if err := a.Merge(f); err != nil {
		t.Fatal(err)
	}
	all := map[string][]float32{}
	for _, s := range arch.Slots(f.Config) {
		all[s.Name] = read64(t, f, s.Name)
	}
	for _, m := range a.Modules {
		name := m.Slot.Name
		if name == headName && plain.Config.Tied {
			name = "model.embed_tokens.weight"
		}
		w, d := read64(t, plain, name), delta(m)
		for i := range w {
			if want := float64(w[i]) + d[i]; !(math.Abs(float64(all[m.Slot.Name][i])-want) <= 2e-6) {
				t.Fatalf("%s: value %d of %s is %g, want %g", dir, i, m.Slot.Name, all[m.Slot.Name][i], want)
			}
		}
	}
	return all
}

// An adapter of the output matrix of a model whose head is tied unties it: the embedding stays.
func TestHeadUnties(t *testing.T) {
	f := open(t, base)
	embedding := read64(t, f, "model.embed_tokens.weight")
	a, err := New(f.Config, []string{"head"}, 2, 4, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := &a.Modules[0]
	m.A, m.B = make([]float32, 2*m.Slot.Shape[1]), make([]float32, 2*m.Slot.Shape[0])
	m.A[0], m.B[0] = 1, .25
	if err := a.SaveGGUF(filepath.Join(t.TempDir(), "a.gguf"), f.Config, false); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("llama.cpp's form of an adapter that it cannot load: %v", err)
	}
	if err := a.Merge(f); err != nil {
		t.Fatal(err)
	}
	if f.Config.Tied {
		t.Error("the merged model's head is tied")
	}
	head := read64(t, f, headName)
	if want := float32(embedding[0] + 2*.25); head[0] != want || !slices.Equal(head[1:], embedding[1:]) {
		t.Errorf("head[0] is %g, want %g; the rest is the embedding: %v", head[0], want, slices.Equal(head[1:], embedding[1:]))
	}
	if !slices.Equal(read64(t, f, "model.embed_tokens.weight"), embedding) {
		t.Error("the embedding changed")
	}
	if err := f.CheckTensors(); err != nil {
		t.Error(err)
	}
}

// Rows of a merged matrix are read from any byte to any other.
func TestReadAt(t *testing.T) {
	f := open(t, base)
	a, err := Open(goldens+"/lora/all", f)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Merge(f); err != nil {
		t.Fatal(err)
	}
	s, _ := f.File.Tensor("model.layers.1.self_attn.k_proj.weight")
	whole := make([]byte, s.Size)
	if n, _ := s.ReadAt(whole, 0); n != len(whole) {
		t.Fatal(n)
	}
	for _, at := range [][2]int64{{0, 1}, {3, 700}, {255, 256}, {256, 512}, {s.Size - 5, s.Size}, {1, s.Size}} {
		part := make([]byte, at[1]-at[0])
		if n, err := s.ReadAt(part, at[0]); n != len(part) || !slices.Equal(part, whole[at[0]:at[1]]) {
			t.Errorf("bytes %v: %d read, %v", at, n, err)
		}
	}
	if n, err := s.ReadAt(make([]byte, 9), s.Size-4); n != 4 || err == nil {
		t.Errorf("%d bytes and %v at the end", n, err)
	}
}

// change writes a copy of an adapter with its configuration changed.
func change(t *testing.T, set map[string]any) string {
	t.Helper()
	dir := t.TempDir()
	from := goldens + "/lora/plain"
	text, err := os.ReadFile(filepath.Join(from, configName))
	var m map[string]any
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	maps.Copy(m, set)
	for k, v := range m {
		if v == "absent" {
			delete(m, k)
		}
	}
	if text, _ = json.Marshal(m); err == nil {
		err = os.WriteFile(filepath.Join(dir, configName), text, 0o600)
	}
	if err == nil {
		err = os.CopyFS(filepath.Join(dir, "w"), os.DirFS(from))
	}
	if err == nil {
		err = os.Rename(filepath.Join(dir, "w", weightsName), filepath.Join(dir, weightsName))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// What changes more than matrices is refused by the name of its key; what decides nothing is accepted.
func TestConfigurations(t *testing.T) {
	f := open(t, base)
	for key, v := range map[string]any{
		"use_dora": true, "modules_to_save": []string{"lm_head"}, "bias": "all", "lora_bias": true, "target_parameters": []string{"experts.w"},
		"trainable_token_indices": []int{3}, "fan_in_fan_out": true, "layer_replication": [][]int{{0, 1}}, "peft_type": "LOHA", "use_qalora": true,
		"init_lora_weights": "pissa", "alora_invocation_tokens": []int{1}, "new_key": true, "kasa_config": map[string]any{"x": 1},
	} {
		_, err := Open(change(t, map[string]any{key: v}), f)
		if fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), key) {
			t.Errorf("%s %v: %v", key, v, err)
		}
	}
	for key, v := range map[string]any{"r": 0, "lora_alpha": "x", "rank_pattern": map[string]any{"(": 3}, "alpha_pattern": map[string]any{"q_proj": 0}} {
		if _, err := Open(change(t, map[string]any{key: v}), f); fault.KindOf(err) != fault.Format {
			t.Errorf("%s %v: %v", key, v, err)
		}
	}
	if _, err := Open(change(t, map[string]any{"r": 5}), f); fault.KindOf(err) != fault.Invalid {
		t.Errorf("another rank than that of the tensors: %v", err)
	}
	for key, v := range map[string]any{"new_key": false, "init_lora_weights": "gaussian", "megatron_core": "absent", "eva_config": map[string]any{"x": 1}, "runtime_config": map[string]any{"ephemeral": 1}} {
		if _, err := Open(change(t, map[string]any{key: v}), f); err != nil {
			t.Errorf("%s %v: %v", key, v, err)
		}
	}
}

// An adapter of another model is refused, by shape and by what its norms were.
func TestAnotherModel(t *testing.T) {
	f, other := open(t, base), open(t, goldens+"/qwen2/untied_mha/student")
	if _, err := Open(goldens+"/lora/plain", other); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "q_proj") {
		t.Errorf("another shape: %v", err)
	}
	if _, err := Open(t.TempDir(), f); fault.KindOf(err) != fault.NotFound {
		t.Errorf("no adapter: %v", err)
	}
	if _, err := Open(base, f); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a model: %v", err)
	}
	if _, err := Open("../testdata/models/gosrc-q4_k_m.gguf", f); fault.KindOf(err) != fault.Format {
		t.Errorf("a model as GGUF: %v", err)
	}
	a, err := Open(goldens+"/lora/plain", f)
	if err != nil {
		t.Fatal(err)
	}
	if a.Norms, err = Identity(f); err != nil {
		t.Fatal(err)
	}
	for i, path := range []string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "a.gguf")} {
		if i == 0 {
			_, err = a.SavePEFT(path, false)
		} else {
			err = a.SaveGGUF(path, f.Config, false)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path, f); err != nil {
			t.Errorf("its own model: %v", err)
		}
		if _, err := Open(path, tampered(t)); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "another model") {
			t.Errorf("a model with other norms: %v", err)
		}
	}
}

// CompareWriters compares two names by their norms, then by shape and angles. A string that is no name is a stranger's, as is a name
// without angles whose norms differ.
func TestCompareWriters(t *testing.T) {
	angles, far := strings.Repeat("00", 32), strings.Repeat("00", 27)+strings.Repeat("ff", 5)
	near := strings.Repeat("00", 28) + strings.Repeat("ff", 4) // 32 bits
	for _, x := range []struct {
		a, b string
		want Likeness
	}{
		{"n", "n", OneModel},
		{"n.s." + angles, "n", OneModel},
		{"n.s." + angles, "n.x." + far, OneModel},
		{"n", "m", Strangers},
		{"n.s." + angles, "m", Strangers},
		{"n.s." + angles, "m.s." + near, Relatives},
		{"n.s." + angles, "m.s." + far, Strangers},
		{"n.s." + angles, "m.x." + angles, Strangers},
		{"n.s." + angles, "m.s." + angles[:60], Strangers},
		{"n.s.", "m.s.", Strangers},
		{"n.s.zz", "m.s.zz", Strangers},
		{"n.s", "m.s", Strangers},
	} {
		for _, got := range []Likeness{CompareWriters(x.a, x.b), CompareWriters(x.b, x.a)} {
			if got != x.want {
				t.Errorf("%s and %s: %d, want %d", x.a, x.b, got, x.want)
			}
		}
	}
}

// An adapter is refused for a model that holds it already, whose norms are the base's, and taken for a base in codes.
// One that is small beside the codes' errors is seen in float32 alone, one that is small beside float32's nowhere.
func TestMergedAlready(t *testing.T) {
	f := open(t, base)
	a, err := Open(goldens+"/lora/plain", f)
	if err != nil {
		t.Fatal(err)
	}
	scaled := func(by float64) *Adapter {
		b := *a
		b.Modules = slices.Clone(a.Modules)
		for i := range b.Modules {
			b.Modules[i].Scale *= by
		}
		return &b
	}
	with := func(b *Adapter) *modelfile.Files {
		return rewritten(t, func(f *modelfile.Files) error { return b.Merge(f) })
	}
	const small, tiny = 1e-3, 1e-7
	for name, c := range map[string]struct {
		scale float64
		model *modelfile.Files
		want  string
	}{
		"its base":                          {1, f, ""},
		"its base in 8 bits":                {1, rounded(t, f), ""},
		"merged":                            {1, with(a), "was merged into"},
		"merged and in 8 bits":              {1, rounded(t, with(a)), "was merged into"},
		"a small one":                       {small, f, ""},
		"a small one, its base in 8 bits":   {small, rounded(t, f), ""},
		"a small one, merged":               {small, with(scaled(small)), "was merged into"},
		"a small one, merged, in 8 bits":    {small, rounded(t, with(scaled(small))), ""},
		"a small one, another one merged":   {small, with(scaled(-3 * small)), ""},
		"one beyond float32, merged":        {tiny, with(scaled(tiny)), ""},
		"one beyond float32, another scale": {tiny, with(a), ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := scaled(c.scale)
			if err := b.Record(f); err != nil {
				t.Fatal(err)
			}
			if b.Times == "" {
				t.Error("nothing was recorded")
			}
			if h, err := b.held(f); err != nil || (h.ratio >= 1./3) != (c.scale < 1) {
				t.Errorf("%+v, %v", h, err)
			}
			dir := filepath.Join(t.TempDir(), "a")
			if _, err := b.SavePEFT(dir, false); err != nil {
				t.Fatal(err)
			}
			read, err := Open(dir, c.model)
			if err == nil {
				err = read.CheckApart(dir, c.model)
			}
			told := fault.KindOf(err) == fault.Invalid && strings.Contains(err.Error(), cmp.Or(c.want, "?"))
			if c.want == "" && err != nil || c.want != "" && !told {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// rounded is f with its matrices rounded as codes of 8 bits are, one scale a row.
func rounded(t *testing.T, f *modelfile.Files) *modelfile.Files {
	t.Helper()
	from := f
	return rewritten(t, func(f *modelfile.Files) error {
		m := &merged{File: from.File, byName: map[string]tensor.Stored{}}
		for _, s := range from.File.Tensors() {
			if v := read64(t, from, s.Name); len(s.Shape) == 2 {
				for r := range s.Shape[0] {
					row := v[r*s.Shape[1] : (r+1)*s.Shape[1]]
					var top float64
					for _, x := range row {
						top = max(top, math.Abs(float64(x)))
					}
					for i, x := range row {
						row[i] = float32(math.Round(float64(x)/top*127) * top / 127)
					}
				}
				raw := make([]byte, s.Size)
				tensor.Narrow(raw, v, s.DType)
				s.ReaderAt = bytesAt(raw)
			}
			m.list, m.byName[s.Name] = append(m.list, s), s
		}
		f.File = m
		return nil
	})
}

// rewritten is the base, changed and written again.
func rewritten(t *testing.T, change func(f *modelfile.Files) error) *modelfile.Files {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "m")
	if err := os.CopyFS(dir, os.DirFS(base)); err != nil {
		t.Fatal(err)
	}
	f := open(t, base)
	if err := change(f); err != nil {
		t.Fatal(err)
	}
	var all []tensor.Source
	for _, s := range f.File.Tensors() {
		all = append(all, s.Source())
	}
	how := safetensors.Options{Force: true, Metadata: map[string]string{"format": "pt"}}
	if err := safetensors.Write(filepath.Join(dir, "model.safetensors"), all, how); err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}

// tampered is the base with one value of one norm changed.
func tampered(t *testing.T) *modelfile.Files {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "m"), os.DirFS(base)); err != nil {
		t.Fatal(err)
	}
	f := open(t, base)
	var all []tensor.Source
	for _, s := range f.File.Tensors() {
		src := s.Source()
		if s.Name == "model.layers.1.input_layernorm.weight" {
			v := read64(t, f, s.Name)
			v[7] *= 1.02
			raw := make([]byte, s.Size)
			tensor.Narrow(raw, v, s.DType)
			src = tensor.BytesSource(s.Info, raw)
		}
		all = append(all, src)
	}
	path := filepath.Join(dir, "m", "model.safetensors")
	if err := safetensors.Write(path, all, safetensors.Options{Force: true, Metadata: map[string]string{"format": "pt"}}); err != nil {
		t.Fatal(err)
	}
	return open(t, filepath.Join(dir, "m"))
}

// Damaged tensors are refused with their name.
func TestDamagedTensors(t *testing.T) {
	f := open(t, base)
	a, err := Open(goldens+"/lora/plain", f)
	if err != nil {
		t.Fatal(err)
	}
	all, err := a.placed(func(s arch.Slot) arch.Place { return s.GGUF })
	if err != nil {
		t.Fatal(err)
	}
	meta := []gguf.KV{{Key: "general.architecture", Value: "qwen2"}, {Key: "general.type", Value: "adapter"}, {Key: "adapter.type", Value: "lora"}, {Key: "adapter.lora.alpha", Value: float32(8)}}
	for name, tt := range map[string]struct {
		change func(list []tensor.Source) ([]tensor.Source, []gguf.KV)
		kind   fault.Kind
	}{
		"B is missing": {func(l []tensor.Source) ([]tensor.Source, []gguf.KV) { return slices.Delete(l, 1, 2), meta }, fault.Load},
		"another tensor": {func(l []tensor.Source) ([]tensor.Source, []gguf.KV) {
			l[0].Name = "blk.0.attn_q.weight"
			return l, meta
		}, fault.Unavailable},
		"a matrix that is none": {func(l []tensor.Source) ([]tensor.Source, []gguf.KV) {
			l[0].Name, l[1].Name = "blk.0.attn_norm.weight.lora_a", "blk.0.attn_norm.weight.lora_b"
			return l, meta
		}, fault.Invalid},
		"another architecture": {func(l []tensor.Source) ([]tensor.Source, []gguf.KV) {
			return l, append([]gguf.KV{{Key: "general.architecture", Value: "llama"}}, meta[1:]...)
		}, fault.Invalid},
		"NaN": {func(l []tensor.Source) ([]tensor.Source, []gguf.KV) {
			raw := make([]byte, l[0].Size)
			tensor.Narrow(raw, []float32{float32(math.NaN())}, tensor.F32)
			l[0] = tensor.BytesSource(l[0].Info, raw)
			return l, meta
		}, fault.Format},
	} {
		list, kv := tt.change(sources(all, func(s stored, which string) string { return s.name + ".lora_" + which }))
		path := filepath.Join(t.TempDir(), "a.gguf")
		if err := gguf.Write(path, list, gguf.Options{Metadata: kv}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := Open(path, f); fault.KindOf(err) != tt.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// PEFT folders and GGUF files with values that no trained adapter has are refused, or warned of, by the rules for models.
func TestDamagedContents(t *testing.T) {
	f, odd := open(t, base), open(t, base)
	odd.AllowOdd = true
	const no = "no trained model has such a weight"
	for _, tt := range []struct {
		name    string
		change  func(m []Module)
		id      string // of the refusal
		says    string // in a warning, also where odd weights are allowed; empty: nothing is said
		allowed bool   // where odd weights are
	}{
		{name: "sound", change: func([]Module) {}},
		{name: "A of 1e30", change: func(m []Module) { m[1].A[7] = 1e30 }, id: "E-MODEL-050", says: no, allowed: true},
		{name: "B of -2e9", change: func(m []Module) { m[1].B[7] = -2e9 }, id: "E-MODEL-050", says: no, allowed: true},
		{name: "1e6", change: func(m []Module) { m[1].B[7] = 1e6 }, says: "a value of magnitude 1e+06"},
		{name: "B of one value", change: func(m []Module) {
			for i := range m[1].B {
				m[1].B[i] = 0.01
			}
		}, id: "E-MODEL-050", says: "values are the same", allowed: true},
		{name: "A of one value", change: func(m []Module) { clear(m[1].A) }, id: "E-ADAPTER-023"},
		{name: "a hole in A", change: func(m []Module) { clear(m[1].A[9 : 9+1024]) }, says: "4096 bytes are zero"},
		{name: "a hole in B", change: func(m []Module) { clear(m[0].B[9 : 9+1024]) }, says: "4096 bytes are zero"},
		{name: "few zeros", change: func(m []Module) { clear(m[1].A[9 : 9+1023]) }},
		{name: "B of zeros", change: func(m []Module) { clear(m[0].B) }, says: "adds nothing to 1 of 2 matrices"},
		{name: "a fresh adapter", change: func(m []Module) { clear(m[0].B); clear(m[1].B) },
			says: "B is zero in all 2 matrices"},
		{name: "A twice", change: func(m []Module) { copy(m[1].A, m[0].A) }, says: "has the same bytes as"},
		{name: "B twice", change: func(m []Module) { copy(m[1].B, m[0].B) }, says: "has the same bytes as"},
		{name: "a module twice", change: func(m []Module) { copy(m[1].A, m[0].A); copy(m[1].B, m[0].B) },
			says: "A and B of model.layers.1.self_attn.q_proj.weight are those of"},
	} {
		a, err := New(f.Config, []string{"q"}, 32, 64, 0)
		if err != nil || len(a.Modules) != 2 {
			t.Fatal(len(a.Modules), err)
		}
		x := uint32(1)
		for i := range a.Modules {
			m := &a.Modules[i]
			m.A, m.B = make([]float32, m.Rank*m.Slot.Shape[1]), make([]float32, m.Rank*m.Slot.Shape[0])
			for _, v := range [][]float32{m.A, m.B} {
				for j := range v {
					x = x*1664525 + 1013904223
					v[j] = (float32(int32(x|1<<12)) + 0.5) / (1 << 34)
				}
			}
		}
		tt.change(a.Modules)
		dir, file := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "a.gguf")
		if _, err := a.SavePEFT(dir, false); err != nil {
			t.Fatal(err)
		}
		if err := a.SaveGGUF(file, f.Config, false); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{dir, file} {
			contracttest.Cases(t, 1)
			said := func(b *Adapter, says string) bool {
				return len(b.Warnings) == 1 && says != "" && strings.Contains(b.Warnings[0], says) ||
					len(b.Warnings) == 0 && says == ""
			}
			b, err := Open(path, f)
			switch {
			case tt.id == "" && (err != nil || !said(b, tt.says)):
				t.Errorf("%s, %s: %+v, %v", tt.name, filepath.Base(path), b, err)
			case tt.id != "" && (fault.KindOf(err) != fault.Invalid || !as(err, tt.id) ||
				!strings.Contains(err.Error(), tt.says)):
				t.Errorf("%s, %s: %v", tt.name, filepath.Base(path), err)
			}
			if b, err = Open(path, odd); tt.allowed && (err != nil || !said(b, tt.says)) {
				t.Errorf("%s, %s: where odd weights are allowed: %v", tt.name, filepath.Base(path), err)
			}
		}
	}
}

// A tensor of q, k and v of which one has no adapter has zeros in B, as it was written.
func TestZerosBesideOthers(t *testing.T) {
	c := open(t, goldens+"/families/phi3")
	a := random(c.Config)
	for i := range a.Modules {
		m := &a.Modules[i]
		m.Rank = min(24, m.Slot.Shape[0], m.Slot.Shape[1])
		m.A, m.B = make([]float32, m.Rank*m.Slot.Shape[1]), make([]float32, m.Rank*m.Slot.Shape[0])
		for j := range m.A {
			m.A[j] = float32(i+1) / float32(j+100)
		}
		for j := range m.B {
			m.B[j] = float32(i+2) / float32(j+100)
		}
	}
	dir := filepath.Join(t.TempDir(), "a")
	if _, err := a.SavePEFT(dir, false); err != nil {
		t.Fatal(err)
	}
	b, err := Open(dir, c)
	if err != nil || strings.Contains(strings.Join(b.Warnings, "\n"), "hole") {
		t.Errorf("%v, %v", b, err)
	}
}

// as reports whether a fault has that id.
func as(err error, id string) bool {
	var e *fault.Error
	return errors.As(err, &e) && e.ID == id
}
