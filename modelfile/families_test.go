package modelfile_test

import (
	"bytes"
	"fmt"
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
	"apr/modelfile"
	"apr/quant"
	"apr/tensor"
)

// fixtures returns the folders of all goldens of families and variants.
func fixtures(t *testing.T) []string {
	t.Helper()
	var dirs []string
	for _, pattern := range []string{"families/*", "variants/*"} {
		found, err := filepath.Glob(filepath.Join(goldens, pattern, "config.json"))
		must(t, err)
		for _, f := range found {
			dirs = append(dirs, filepath.Dir(f))
		}
	}
	if len(dirs) < 27 {
		t.Fatalf("%d fixtures", len(dirs))
	}
	return dirs
}

// gathered returns the values of every slot as arch.Gather finds them in a safetensors file: what no reader of slots wrote.
func gathered(t *testing.T, c arch.Config, path string) map[string][]float32 {
	t.Helper()
	f, err := safetensors.Open(path)
	must(t, err)
	defer f.Close()
	out := map[string][]float32{}
	for _, s := range arch.Slots(c) {
		var parts [][]float32
		for e := range max(s.HF.Each, 1) {
			name := strings.ReplaceAll(s.HF.Name, "{e}", string(rune('0'+e)))
			st, ok := f.Tensor(name)
			if !ok || e > 9 {
				t.Fatalf("%s: no tensor %s", path, name)
			}
			values, err := modelfile.ReadFloat32(path, st)
			must(t, err)
			parts = append(parts, values)
		}
		out[s.Name] = arch.Gather(s, s.HF, parts)
	}
	return out
}

// slotSources returns the slots of a model as they are read, norms, biases and other vectors widened as files have them.
func slotSources(t *testing.T, f *modelfile.Files, d tensor.DType) (out []tensor.Source) {
	t.Helper()
	for _, s := range arch.Slots(f.Config) {
		v, err := f.ReadFloat32(s.Name)
		must(t, err)
		dt := d
		if len(s.Shape) == 1 || s.Bias {
			dt = tensor.F32
		}
		raw := make([]byte, len(v)*dt.BlockBytes())
		tensor.Narrow(raw, v, dt)
		out = append(out, tensor.BytesSource(tensor.Info{Name: s.Name, DType: dt, Shape: s.Shape}, raw))
	}
	return out
}

// TestFamiliesThroughEveryFormat opens every fixture, whose slots are those that arch.Gather finds in its file, writes it as
// .apr, GGUF and a Hugging Face folder, and opens these: the description and every value are the same. w+1 and −e^w, which
// GGUF stores, cost a rounding of float32.
func TestFamiliesThroughEveryFormat(t *testing.T) {
	for _, dir := range fixtures(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			contracttest.Cases(t, 1)
			f := open(t, dir)
			must(t, f.CheckTensors())
			want := gathered(t, f.Config, filepath.Join(dir, "model.safetensors"))
			sameSlots(t, "fixture", f, want, 0)
			out := t.TempDir()
			sources := slotSources(t, f, tensor.BF16)
			apr, gguf, hf := filepath.Join(out, "m.apr"), filepath.Join(out, "m.gguf"), filepath.Join(out, "hf")
			must(t, modelfile.SaveAPR(apr, f.Config, nil, sources, nil, "", false))
			must(t, modelfile.SaveGGUF(gguf, f.Config, nil, sources, modelfile.GGUFOrigin{}, false))
			_, err := modelfile.SaveHF(hf, f.Config, nil, slotSources(t, f, tensor.BF16), tensor.BF16, false)
			must(t, err)
			for name, path := range map[string]string{".apr": apr, "GGUF": gguf, "Hugging Face": hf} {
				g := open(t, path)
				must(t, g.CheckTensors())
				tol := 0.
				if name == "GGUF" {
					tol = 2e-7
				} else if !g.Config.Equal(f.Config) {
					t.Errorf("%s: %s", name, arch.Compare(f.Config, g.Config))
				}
				sameSlots(t, name, g, want, tol)
				if k := identify(t, f, g); k.Relation != modelfile.Same {
					t.Errorf("%s: %s", name, k)
				}
			}
		})
	}
}

// sameSlots compares all slots, to tol of 1 + |w|.
func sameSlots(t *testing.T, name string, f *modelfile.Files, want map[string][]float32, tol float64) {
	t.Helper()
	for _, s := range arch.Slots(f.Config) {
		got, err := f.ReadFloat32(s.Name)
		must(t, err)
		if len(got) != len(want[s.Name]) || len(got) == 0 {
			t.Fatalf("%s: %s has %d values, want %d", name, s.Name, len(got), len(want[s.Name]))
		}
		for i, w := range want[s.Name] {
			if !(math.Abs(float64(got[i])-float64(w)) <= tol*(1+math.Abs(float64(w)))) {
				t.Fatalf("%s: %s: value %d is %g, want %g", name, s.Name, i, got[i], w)
			}
		}
	}
}

// quantisable is a configuration of a family whose rows are whole blocks.
func quantisable(t *testing.T, text string) arch.Config {
	t.Helper()
	c, err := arch.Parse("config.json", text, arch.Options{})
	must(t, err)
	return c
}

// TestBlocksMoveWhole: blocks of q and k whose rows a format orders otherwise, of fused tensors and of stacked experts are the
// same bytes after .apr, GGUF and .apr again; and GGUF holds them where arch says.
func TestBlocksMoveWhole(t *testing.T) {
	const size = `"hidden_size":256,"intermediate_size":512,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":512,"max_position_embeddings":64,`
	for name, text := range map[string]string{
		"pairs":   `{"model_type":"llama",` + size + `"head_dim":64}`,
		"fused":   `{"model_type":"phi3",` + size + `"rope_theta":1e4}`,
		"experts": `{"model_type":"qwen3_moe",` + size + `"head_dim":64,"num_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":256,"norm_topk_prob":true}`,
	} {
		for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q6_K} {
			t.Run(name+" "+d.String(), func(t *testing.T) {
				contracttest.Cases(t, 1)
				c := quantisable(t, text)
				w := randomWeights(c)
				blocks := map[string][]byte{}
				var sources []tensor.Source
				for _, src := range w.sources(c, tensor.F32) {
					if len(src.Shape) > 1 {
						raw := make([]byte, int64(src.Rows())*d.RowBytes(src.Cols()))
						must(t, quant.Quantize(raw, w[src.Name], d))
						blocks[src.Name] = raw
						src = tensor.BytesSource(tensor.Info{Name: src.Name, DType: d, Shape: src.Shape, Size: int64(len(raw))}, raw)
					}
					sources = append(sources, src)
				}
				dir := t.TempDir()
				first, gguf, second := filepath.Join(dir, "a.apr"), filepath.Join(dir, "b.gguf"), filepath.Join(dir, "c.apr")
				must(t, modelfile.SaveAPR(first, c, nil, sources, nil, "", false))
				must(t, modelfile.SaveGGUF(gguf, c, nil, asStored(open(t, first)), modelfile.GGUFOrigin{}, false))
				must(t, modelfile.SaveAPR(second, c, nil, asStored(open(t, gguf)), nil, "", false))
				for _, path := range []string{first, gguf, second} {
					f := open(t, path)
					for slot, want := range blocks {
						st, ok := f.File.Tensor(slot)
						if !ok || st.DType != d {
							t.Fatalf("%s: %s is %s", path, slot, st.DType)
						}
						got := make([]byte, st.Size)
						if n, err := st.ReadAt(got, 0); n < len(got) {
							t.Fatal(err)
						}
						if !bytes.Equal(got, want) {
							t.Errorf("%s: %s has other bytes", path, slot)
						}
						part := make([]byte, 301) // from inside a row, over several
						if n, err := st.ReadAt(part, 77); n < len(part) || !bytes.Equal(part, want[77:77+301]) {
							t.Errorf("%s: %s: bytes 77 to 378 are others (%v)", path, slot, err)
						}
					}
				}
			})
		}
	}
}

// asStored are the slots of a file in the types that it has.
func asStored(f *modelfile.Files) (out []tensor.Source) {
	for _, st := range f.File.Tensors() {
		out = append(out, st.Source())
	}
	return out
}

// Of a multimodal checkpoint the text model is read, and the rest named.
func TestNestedCheckpoint(t *testing.T) {
	dir := filepath.Join(goldens, "families", "gemma3_text")
	f := open(t, dir)
	out := t.TempDir()
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(out, "config.json"), []byte(`{"model_type":"gemma3","vision_config":{},"text_config":`+string(config)+`}`), 0o600))
	var sources []tensor.Source
	for _, st := range f.Stored.Tensors() {
		src := st.Source()
		src.Name = "language_model." + src.Name
		sources = append(sources, src)
	}
	other := tensor.BytesSource(tensor.Info{Name: "vision_tower.encoder.weight", DType: tensor.F32, Shape: []int{2}}, make([]byte, 8))
	must(t, safetensors.Write(filepath.Join(out, "model.safetensors"), append(sources, other), safetensors.Options{}))
	g := open(t, out)
	must(t, g.CheckTensors())
	if !slices.Equal(g.Left, []string{other.Name}) {
		t.Errorf("left: %v", g.Left)
	}
	sameSlots(t, "nested", g, gathered(t, f.Config, filepath.Join(dir, "model.safetensors")), 0)
}

// A fused tensor of another height is refused with both shapes.
func TestFusedHeight(t *testing.T) {
	f := open(t, filepath.Join(goldens, "families", "phi3"))
	out := t.TempDir()
	config, err := os.ReadFile(filepath.Join(goldens, "families", "phi3", "config.json"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(out, "config.json"), config, 0o600))
	var sources []tensor.Source
	for _, st := range f.Stored.Tensors() {
		src := st.Source()
		if src.Name == "model.layers.1.self_attn.qkv_proj.weight" {
			shape := []int{src.Shape[0] - 1, src.Shape[1]}
			src = tensor.BytesSource(tensor.Info{Name: src.Name, DType: src.DType, Shape: shape}, make([]byte, shape[0]*shape[1]*2))
		}
		sources = append(sources, src)
	}
	must(t, safetensors.Write(filepath.Join(out, "model.safetensors"), sources, safetensors.Options{}))
	err = open(t, out).CheckTensors()
	if err == nil || !strings.Contains(err.Error(), `tensor "model.layers.1.self_attn.qkv_proj.weight": has shape [`) || !strings.Contains(err.Error(), "the configuration needs [") {
		t.Error(err)
	}
}

// The layers of Qwen3.5 that predict further tokens are named and left, in a folder and in a GGUF file, whose blocks they follow.
func TestFurtherTokensAreLeft(t *testing.T) {
	contracttest.Cases(t, 1)
	dir := filepath.Join(goldens, "families", "qwen3_5_text")
	f := open(t, dir)
	out := t.TempDir()
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	must(t, err)
	text := strings.Replace(string(config), "{", `{"mtp_num_hidden_layers":1,`, 1)
	must(t, os.WriteFile(filepath.Join(out, "config.json"), []byte(text), 0o600))
	extra := func(name string) tensor.Source {
		return tensor.BytesSource(tensor.Info{Name: name, DType: tensor.F32, Shape: []int{2, 2}}, make([]byte, 16))
	}
	further := []string{"mtp.fc.weight", "mtp.layers.0.self_attn.q_proj.weight", "mtp.norm.weight"}
	var sources []tensor.Source
	for _, st := range f.Stored.Tensors() {
		sources = append(sources, st.Source())
	}
	for _, name := range further {
		sources = append(sources, extra(name))
	}
	must(t, safetensors.Write(filepath.Join(out, "model.safetensors"), sources, safetensors.Options{}))
	want := gathered(t, f.Config, filepath.Join(dir, "model.safetensors"))
	g := open(t, out)
	must(t, g.CheckTensors())
	if !slices.Equal(g.Left, further) {
		t.Errorf("left: %v", g.Left)
	}
	sameSlots(t, "folder", g, want, 0)

	layers := len(f.Config.Layers)
	stored, err := modelfile.GGUFTensors(f.Config, slotSources(t, f, tensor.BF16))
	must(t, err)
	further = []string{fmt.Sprintf("blk.%d.attn_q.weight", layers), fmt.Sprintf("blk.%d.nextn.eh_proj.weight", layers)}
	for _, name := range further {
		stored = append(stored, extra(name))
	}
	var meta []gguf.KV
	for _, kv := range modelfile.GGUFMetadata(f.Config, nil, stored, modelfile.GGUFOrigin{}) {
		if kv.Key == "qwen35.block_count" {
			kv.Value = uint32(layers + 1)
			meta = append(meta, gguf.KV{Key: "qwen35.nextn_predict_layers", Value: uint32(1)})
		}
		if kv.Key != "apr.config" { // a file of another program
			meta = append(meta, kv)
		}
	}
	path := filepath.Join(out, "m.gguf")
	must(t, gguf.Write(path, stored[:len(stored)-1], gguf.Options{Metadata: meta}))
	err = open(t, path).CheckTensors()
	if err == nil || !strings.Contains(err.Error(), "which 1 layers that predict further tokens do not explain [E-MODEL-017]") {
		t.Errorf("a layer that does not predict: %v", err)
	}
	path = filepath.Join(out, "further.gguf")
	must(t, gguf.Write(path, stored, gguf.Options{Metadata: meta}))
	h := open(t, path)
	must(t, h.CheckTensors())
	if !slices.Equal(h.Left, further) {
		t.Errorf("left: %v", h.Left)
	}
	sameSlots(t, "GGUF", h, want, 2e-7)
}
