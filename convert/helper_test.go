package convert

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"apr/arch"
	"apr/format/safetensors"
	"apr/modelfile"
	"apr/tensor"
	"apr/tokenizer"
)

const shared = "../testdata/models/gosrc"

// tiny is a model of one layer; its matrices have 32 columns unless wide.
func tiny(tied bool) arch.Config {
	return arch.Qwen2(arch.Sizes{Hidden: 32, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 16, Width: 64, Vocab: 4160,
		MaxPositions: 64, Theta: 10000, Eps: 1e-6, Tied: tied, BOS: -1, EOS: 4093, DType: tensor.F32,
	})
}

// weightsOf returns random values for every tensor of c; norms are 1.
func weightsOf(c arch.Config) map[string][]float32 {
	r := rand.New(rand.NewPCG(1, 2))
	w := map[string][]float32{}
	for name, shape := range sorted(arch.Shapes(c)) {
		n, _ := tensor.Elements(shape)
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(r.NormFloat64()) * 0.05
			if len(shape) == 1 && filepath.Ext(name) == ".weight" {
				v[i] = 1
			}
		}
		w[name] = v
	}
	return w
}

// folder writes a Hugging Face folder of the weights, in type d, with the shared tokenizer.
func hfJSON(t *testing.T, c arch.Config, d tensor.DType) []byte {
	t.Helper()
	b, err := arch.HFConfig(c, d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func folder(t *testing.T, c arch.Config, w map[string][]float32, d tensor.DType) string {
	t.Helper()
	dir := t.TempDir()
	shapes := arch.Shapes(c)
	var sources []tensor.Source
	for name, v := range sorted(w) {
		shape, ok := shapes[name]
		if !ok {
			shape = []int{len(v)}
			if name == headName {
				shape = []int{c.Vocab, c.Hidden}
			}
		}
		raw := make([]byte, len(v)*d.BlockBytes())
		tensor.Narrow(raw, v, d)
		sources = append(sources, tensor.BytesSource(tensor.Info{Name: name, DType: d, Shape: shape}, raw))
	}
	if err := safetensors.Write(filepath.Join(dir, safetensors.SingleName), sources, safetensors.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), hfJSON(t, c, d), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		data, err := os.ReadFile(filepath.Join(shared, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// open opens a model for the time of the test.
func open(t *testing.T, path string) *Container {
	t.Helper()
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// stored makes a tensor in memory.
func stored(name string, d tensor.DType, shape []int, raw []byte) tensor.Stored {
	return tensor.Stored{Info: tensor.Info{Name: name, DType: d, Shape: shape, Size: int64(len(raw))}, ReaderAt: bytes.NewReader(raw)}
}

// f32 makes a float32 tensor in memory.
func f32(name string, shape []int, v ...float32) tensor.Stored {
	raw := make([]byte, 4*len(v))
	tensor.Narrow(raw, v, tensor.F32)
	return stored(name, tensor.F32, shape, raw)
}

// memory is a model in memory.
type memory []tensor.Stored

func (m memory) Path() string             { return "memory" }
func (m memory) Tensors() []tensor.Stored { return m }
func (m memory) Verify() error            { return nil }
func (m memory) Close() error             { return nil }
func (m memory) Tensor(name string) (tensor.Stored, bool) {
	i := slices.IndexFunc(m, func(t tensor.Stored) bool { return t.Name == name })
	if i < 0 {
		return tensor.Stored{}, false
	}
	return m[i], true
}

var nan, inf = float32(math.NaN()), float32(math.Inf(1))

// bare is a container of tensors without configuration and tokenizer.
func bare(ts []tensor.Stored) *Container {
	none := errors.New("there is none")
	return &Container{Format: "safetensors", Container: &modelfile.Container{
		Path: "memory", File: memory(ts),
		ReadConfig:    func() (arch.Config, error) { return arch.Config{}, none },
		ReadTokenizer: func() (*tokenizer.Tokenizer, error) { return nil, none },
	}}
}
