package modelfile_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"apr/arch"
	"apr/modelfile"
	"apr/tensor"
)

const goldens = "../testdata/golden"

func open(t *testing.T, path string) *modelfile.Files {
	t.Helper()
	f, err := modelfile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shapes are small models: the second has an untied head, three queries to a key, and heads that are not as wide
// together as the model.
var shapes = map[string]arch.Config{
	"tied": arch.Qwen2(arch.Sizes{
		Hidden: 16, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 8, Width: 24, Vocab: 40,
		MaxPositions: 64, Theta: 1e6, Eps: 1e-6, Tied: true, InitRange: 0.3, BOS: -1, EOS: 3, DType: tensor.F32,
	}),
	"untied, own head size": arch.Qwen2(arch.Sizes{
		Hidden: 20, Layers: 3, Heads: 6, KVHeads: 2, HeadDim: 4, Width: 28, Vocab: 33,
		MaxPositions: 64, Theta: 1e4, Eps: 1e-5, InitRange: 0.3, BOS: 1, EOS: 2, DType: tensor.F32,
	}),
}

// weights are the values of a model by slot.
type weights map[string][]float32

// randomWeights returns values for every slot, norms and biases too, so that none can be forgotten; matrices are bfloat16.
func randomWeights(c arch.Config) weights {
	rng, w := rand.New(rand.NewPCG(5, 6)), weights{}
	for _, s := range arch.Slots(c) {
		v := make([]float32, s.Elements())
		for i := range v {
			v[i] = tensor.BF16ToF32(tensor.F32ToBF16(float32(0.3 * rng.NormFloat64())))
		}
		w[s.Name] = v
	}
	return w
}

// sources are the values as they are written: matrices in type d, vectors in float32.
func (w weights) sources(c arch.Config, d tensor.DType) (out []tensor.Source) {
	for _, s := range arch.Slots(c) {
		dt := d
		if len(s.Shape) == 1 {
			dt = tensor.F32
		}
		raw := make([]byte, s.Elements()*int64(dt.BlockBytes()))
		tensor.Narrow(raw, w[s.Name], dt)
		out = append(out, tensor.BytesSource(tensor.Info{Name: s.Name, DType: dt, Shape: s.Shape}, raw))
	}
	return out
}

// write writes a config.json and returns its path.
func write(t *testing.T, config string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	must(t, os.WriteFile(path, []byte(config), 0o600))
	return path
}
