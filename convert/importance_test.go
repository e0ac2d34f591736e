package convert

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/corpus"
	"apr/device/cpu"
	"apr/format/gguf"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
)

// imatrixConfig is a model of one layer with matrices of 256 and 512 columns.
func imatrixConfig(t *testing.T, more string) arch.Config {
	t.Helper()
	c, err := arch.Parse("config.json", `{"model_type":"qwen2","hidden_size":256,"intermediate_size":512,"num_hidden_layers":1,"num_attention_heads":4,`+
		`"num_key_value_heads":2,"vocab_size":512,"max_position_embeddings":64,"tie_word_embeddings":false,"bos_token_id":1,"eos_token_id":1`+more+`}`, arch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// oldImatrix writes the older format: of each entry, means times calls.
func oldImatrix(t *testing.T, calls int, entries map[string][]float32) string {
	t.Helper()
	var b []byte
	put := func(n int) { b = binary.LittleEndian.AppendUint32(b, uint32(int32(n))) }
	put(len(entries))
	for name, values := range sorted(entries) {
		put(len(name))
		b = append(b, name...)
		put(calls)
		put(len(values))
		for _, v := range values {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v*float32(calls)))
		}
	}
	put(7) // chunks, and the name of the text
	put(4)
	b = append(b, "text"...)
	path := filepath.Join(t.TempDir(), "imatrix.dat")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// newImatrix writes a GGUF file of sums and counts.
func newImatrix(t *testing.T, kind string, entries map[string][]float32, count float32) string {
	t.Helper()
	var all []tensor.Source
	add := func(name string, shape []int, values []float32) {
		raw := make([]byte, 4*len(values))
		tensor.Narrow(raw, values, tensor.F32)
		all = append(all, tensor.BytesSource(tensor.Info{Name: name, DType: tensor.F32, Shape: shape}, raw))
	}
	for name, values := range sorted(entries) {
		sums := slices.Clone(values)
		for i := range sums {
			sums[i] *= count
		}
		add(name+sumsSuffix, []int{1, len(sums)}, sums)
		add(name+countsSuffix, []int{1, 1}, []float32{count})
	}
	path := filepath.Join(t.TempDir(), "imatrix.gguf")
	if err := gguf.Write(path, all, gguf.Options{Metadata: []gguf.KV{{Key: "general.type", Value: kind}, {Key: "imatrix.chunk_count", Value: uint32(3)}}}); err != nil {
		t.Fatal(err)
	}
	return path
}

func ramp(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i%17) / 4
	}
	return v
}

func TestReadImatrix(t *testing.T) {
	c := imatrixConfig(t, "")
	entries := map[string][]float32{"blk.0.attn_q.weight": ramp(256), "blk.0.ffn_down.weight": ramp(512)}
	for name, path := range map[string]string{"older": oldImatrix(t, 8, entries), "GGUF": newImatrix(t, "imatrix", entries, 8)} {
		m, err := ReadImatrix(path, c)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(m) != 2 || !slices.Equal(m["model.layers.0.self_attn.q_proj.weight"], ramp(256)) || !slices.Equal(m["model.layers.0.mlp.down_proj.weight"], ramp(512)) {
			t.Errorf("%s: read %v", name, m)
		}
	}
}

func TestReadImatrixRefuses(t *testing.T) {
	c := imatrixConfig(t, "")
	truncated := filepath.Join(t.TempDir(), "short")
	raw, err := os.ReadFile(oldImatrix(t, 1, map[string][]float32{"blk.0.attn_q.weight": ramp(256)}))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(truncated, raw[:600], 0o600); err != nil {
		t.Fatal(err)
	}
	negative := ramp(256)
	negative[9] = -1
	for name, tt := range map[string]struct{ path, id string }{
		"other width":     {oldImatrix(t, 1, map[string][]float32{"blk.0.attn_q.weight": ramp(128)}), "E-IMATRIX-001"},
		"other layers":    {oldImatrix(t, 1, map[string][]float32{"blk.1.attn_q.weight": ramp(256)}), "E-IMATRIX-001"},
		"GGUF of a model": {newImatrix(t, "model", map[string][]float32{"blk.0.attn_q.weight": ramp(256)}, 1), "E-IMATRIX-002"},
		"cut":             {truncated, "E-IMATRIX-002"},
		"negative":        {oldImatrix(t, 1, map[string][]float32{"blk.0.attn_q.weight": negative}), "E-IMATRIX-002"},
		"no calls":        {oldImatrix(t, 0, map[string][]float32{"blk.0.attn_q.weight": ramp(256)}), "E-IMATRIX-002"},
	} {
		_, err := ReadImatrix(tt.path, c)
		var f *fault.Error
		if !errors.As(err, &f) || f.ID != tt.id || f.Path != tt.path {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}

// Weights follow the rows of a matrix: the same for each, and those of its expert for a row of experts.
func TestImportanceOfRows(t *testing.T) {
	m := Importance{"a": {1, 2, 3, 4}}
	if got := m.rows(tensor.Info{Name: "a", Shape: []int{3, 4}}, 1, 3); !slices.Equal(got, []float32{1, 2, 3, 4, 1, 2, 3, 4}) {
		t.Errorf("rows of a matrix: %v", got)
	}
	if got := m.rows(tensor.Info{Name: "a", Shape: []int{2, 3, 2}}, 2, 4); !slices.Equal(got, []float32{1, 2, 3, 4}) {
		t.Errorf("rows of experts: %v", got)
	}
	if got := m.rows(tensor.Info{Name: "b", Shape: []int{3, 4}}, 0, 3); got != nil {
		t.Errorf("rows of a matrix that is not known: %v", got)
	}
}

// What is measured on a model is what its matrices are multiplied by: the head what the last norm writes, q and k the same.
func TestActivations(t *testing.T) {
	f, err := modelfile.Open(shared)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ids := make([]int32, 65)
	for i := range ids {
		ids[i] = int32(300 + 7*i)
	}
	w, err := corpus.NewWindows(&corpus.Tokens{IDs: ids, EOS: 1, Docs: []corpus.Doc{{End: int64(len(ids))}}}, 32, 32)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Activations(context.Background(), d, f, w, f.Config.Vocab, nil)
	if err != nil {
		t.Fatal(err)
	}
	norm, err := f.ReadFloat32("model.norm.weight")
	if err != nil {
		t.Fatal(err)
	}
	head, mean := m["lm_head.weight"], 0.0
	for i, v := range head { // the head reads x̂·w, and the mean square of x̂ is 1
		mean += float64(v) / float64(norm[i]) / float64(norm[i]) / float64(len(head))
	}
	if !(math.Abs(mean-1) < 1e-3) {
		t.Errorf("mean square of what the last norm writes is %g", mean)
	}
	q, k := m["model.layers.0.self_attn.q_proj.weight"], m["model.layers.0.self_attn.k_proj.weight"]
	if len(q) != f.Config.Hidden || !slices.Equal(q, k) {
		t.Errorf("q reads %d columns, k others", len(q))
	}
	if _, ok := m["model.embed_tokens.weight"]; ok {
		t.Error("rows of the embedding are gathered, and it has importance")
	}
	for _, s := range arch.Slots(f.Config) {
		if len(s.Shape) == 2 && s.Role != arch.Embedding && len(m[s.Name]) != s.Shape[1] {
			t.Errorf("%s has %d values", s.Name, len(m[s.Name]))
		}
	}
}

// Weighted blocks lose less where inputs are large.
func TestQuantizeByImportance(t *testing.T) {
	c := open(t, shared)
	const name = "model.layers.0.mlp.up_proj.weight"
	weights := make([]float32, 256)
	for i := range weights {
		weights[i] = 0.01
		if i%32 < 4 {
			weights[i] = 100
		}
	}
	errs := func(m Importance) (first, rest float64) {
		out := filepath.Join(t.TempDir(), "q.gguf")
		if _, err := Write(context.Background(), c, out, Options{Scheme: Q4_K, Importance: m}); err != nil {
			t.Fatal(err)
		}
		a, err := modelfile.Open(shared)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		b, err := modelfile.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		x, err := a.ReadFloat32(name)
		if err != nil {
			t.Fatal(err)
		}
		y, err := b.ReadFloat32(name)
		if err != nil {
			t.Fatal(err)
		}
		for i := range x {
			e := float64(x[i]) - float64(y[i])
			if i%32 < 4 {
				first += e * e
			} else {
				rest += e * e
			}
		}
		return first, rest
	}
	plainFirst, plainRest := errs(nil)
	first, rest := errs(Importance{name: weights})
	if !(first < 0.7*plainFirst && rest > plainRest) {
		t.Errorf("columns that count: error %g, without importance %g; others %g, %g", first, plainFirst, rest, plainRest)
	}
	_, r, err := Plan(c, "x.gguf", Options{Scheme: Q4_K, Importance: Importance{name: weights}})
	if err != nil || !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.HasPrefix(w, "no importance is known of ") }) {
		t.Errorf("warnings %v, %v", r.Warnings, err)
	}
}
