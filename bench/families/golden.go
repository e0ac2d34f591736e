package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"apr/arch"
	"apr/bench/randmodel"
	"apr/device"
	"apr/format/safetensors"
	"apr/internal/ref"
	"apr/modelfile"
	"apr/tensor"
	"apr/tokenizer"
)

// golden is a tiny model with what transformers computes of it in float64; see testdata/golden/README.md.
type golden struct {
	name       string
	config     arch.Config
	values     map[string][]float32 // by slot
	want       map[string][]float64 // tensors of golden.safetensors
	logitsWant []float64
	rows       int
	ids        []int32
	prompt     []int32
	greedy     []int32
	float32    float64 // what another program's float32 differs by from its float64, of the largest logit
	teacher    ref.Mat // logits of a teacher, for a golden whose gradient is of distillation; empty: of cross-entropy
}

// goldens returns all goldens of the module whose root is given: of families and variants, the students of Qwen2, and what the
// float64 reference makes for families without one.
func goldens(root string) (list []*golden, err error) {
	dir := filepath.Join(root, "testdata/golden")
	for _, pattern := range []string{"families/*", "variants/*", "*/*/student"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			g, err := readGolden(path, pattern == "*/*/student")
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			list = append(list, g)
		}
	}
	if len(list) < 29 {
		return nil, fmt.Errorf("%d goldens in %s, want 29", len(list), dir)
	}
	return withJudged(list, root)
}

// withJudged adds a golden of each computed family that has none: its first random model, with the results of the float64
// reference.
func withJudged(list []*golden, root string) ([]*golden, error) {
	seen := map[string]bool{}
	for _, g := range list {
		seen[g.config.Family] = true
	}
	for _, m := range randmodel.Models {
		_, c, err := m.Config()
		if err != nil {
			return nil, err
		}
		if seen[c.Family] || c.NotComputed() != "" {
			continue
		}
		seen[c.Family] = true
		tok, err := tokenizer.Load(filepath.Join(root, randmodel.Tokenizers, m.Tokenizer))
		if err != nil {
			return nil, err
		}
		list = append(list, judgedGolden(m.Name, c, randmodel.Weights(c, tok, false)))
	}
	return list, nil
}

// judgedGolden returns what the float64 reference computes of a model.
func judgedGolden(name string, c arch.Config, values map[string][]float32) *golden {
	g := &golden{name: name + " (float64 reference)", config: c, values: values, rows: 1, ids: promptIDs, want: map[string][]float64{}, float32: 2e-6} // of our CPU
	ids := make([]int, len(g.ids))
	for i, id := range g.ids {
		ids[i] = int(id)
		g.want["loss_mask"] = append(g.want["loss_mask"], 1)
	}
	pass := g.net().Forward(ids, 1)
	g.logitsWant = pass.Logits.V
	z := make([]float32, len(g.logitsWant))
	for i, x := range g.logitsWant {
		z[i] = float32(x)
	}
	dz := ref.Of(len(ids), c.Vocab, g.lossGradient(z))
	for i := range dz.V { // Backward wants the gradient over the capped logits
		if limit := c.FinalCap; limit > 0 {
			dz.V[i] /= 1 - g.logitsWant[i]/limit*g.logitsWant[i]/limit
		}
	}
	grads := pass.Backward(dz)
	for _, s := range arch.Slots(c) {
		if s.Fixed {
			continue
		}
		at := "grad." + s.HF.Name
		if g.want[at] == nil {
			g.want[at] = make([]float64, elements(s.HF.Shape))
		}
		arch.Scatter(s, s.HF, grads[s.Name].V, [][]float64{g.want[at]})
	}
	g.continued(8)
	return g
}

// readGolden reads one. A student's results lie in the folder above it, and have no greedy text: the float64 reference,
// which reproduces its logits, makes one.
func readGolden(dir string, student bool) (*golden, error) {
	g := &golden{name: filepath.Base(dir), values: map[string][]float32{}}
	if err := g.readModel(dir); err != nil {
		return nil, err
	}
	results := dir
	if student {
		results = filepath.Dir(dir)
		g.name = filepath.Base(results)
	}
	want, shapes, err := readTensors(filepath.Join(results, "golden.safetensors"))
	if err != nil {
		return nil, err
	}
	g.want, g.rows, g.logitsWant = want, shapes["input_ids"][0], want["logits"]
	for _, v := range want["input_ids"] {
		g.ids = append(g.ids, int32(v))
	}
	if student {
		g.logitsWant = want["student_logits"]
		g.teacher = ref.Mat{Rows: len(g.ids), Cols: len(want["teacher_logits"]) / len(g.ids), V: want["teacher_logits"]}
		g.continued(16)
		return g, nil
	}
	var file struct {
		Prompt []int32 `json:"greedy_prompt"`
		Greedy []int32 `json:"greedy_ids"`

		Float32 float64 `json:"float32_of_transformers_relative"`
	}
	text, err := os.ReadFile(filepath.Join(results, "golden.json"))
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	g.prompt, g.greedy, g.float32 = file.Prompt, file.Greedy, file.Float32
	return g, err
}

func (g *golden) readModel(dir string) error {
	f, err := modelfile.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	g.config = f.Config
	for _, s := range arch.Slots(g.config) {
		if g.values[s.Name], err = f.ReadFloat32(s.Name); err != nil {
			return err
		}
	}
	return nil
}

// continued makes a greedy text of n ids in float64.
func (g *golden) continued(n int) {
	g.prompt = g.ids[:12]
	ids := make([]int, 0, len(g.prompt)+n)
	for _, id := range g.prompt {
		ids = append(ids, int(id))
	}
	for range n {
		best := ref.ArgMax(g.net().Forward(ids, 1).Logits)
		ids = append(ids, best[len(best)-1])
		g.greedy = append(g.greedy, int32(best[len(best)-1]))
	}
}

// net returns the model for the float64 reference.
func (g *golden) net() *ref.Net { return reference(g.config, g.values) }

// reference returns a model for the float64 reference.
func reference(c arch.Config, values map[string][]float32) *ref.Net {
	n := &ref.Net{Arch: c, Params: map[string]ref.Mat{}}
	for _, s := range arch.Slots(c) {
		rows, cols := 1, len(values[s.Name])
		if len(s.Shape) > 1 {
			cols = s.Shape[len(s.Shape)-1]
			rows = len(values[s.Name]) / cols
		}
		n.Params[s.Name] = ref.Of(rows, cols, values[s.Name])
	}
	return n
}

// lossGradient returns the gradient of the golden's loss over the logits before their cap.
func (g *golden) lossGradient(z []float32) []float32 {
	vocab, seq := g.config.Vocab, len(g.ids)/g.rows
	labels, mask := make([]int, len(g.ids)), make([]bool, len(g.ids))
	for i := range g.ids {
		if given, ok := g.want["labels"]; ok {
			labels[i], mask[i] = int(given[i]), g.want["loss_mask"][i] != 0
		} else if i%seq < seq-1 {
			labels[i], mask[i] = int(g.ids[i+1]), g.want["loss_mask"][i] != 0
		}
	}
	logits := ref.Of(len(g.ids), vocab, z)
	spec, teacher := device.LossSpec{Alpha: .5, Temperature: 2}, g.teacher
	if len(teacher.V) == 0 {
		spec, teacher = device.LossSpec{Temperature: 1}, logits
	}
	_, _, dz := ref.StepLoss(logits, teacher, labels, mask, spec)
	out := make([]float32, len(z))
	for i, x := range dz.V {
		if c := g.config.FinalCap; c > 0 {
			x *= 1 - logits.V[i]/c*logits.V[i]/c
		}
		out[i] = float32(x)
	}
	return out
}

// A golden is what a model is loaded from.
func (g *golden) Arch() arch.Config { return g.config }

// Verify finds nothing wrong: all values were read.
func (g *golden) Verify() error { return nil }

// ReadFloat32 returns the values of a slot.
func (g *golden) ReadFloat32(name string) ([]float32, error) {
	return append([]float32(nil), g.values[name]...), nil
}

// Source returns a slot in float32.
func (g *golden) Source(name string) (device.Source, error) {
	for _, s := range arch.Slots(g.config) {
		if s.Name == name {
			return floats{tensor.Info{Name: name, DType: tensor.F32, Shape: s.Shape, Size: 4 * s.Elements()}, g.values[name]}, nil
		}
	}
	return nil, fmt.Errorf("no slot %s", name)
}

// floats are values as a device reads them.
type floats struct {
	info   tensor.Info
	values []float32
}

func (f floats) Info() tensor.Info { return f.info }

func (f floats) ReadRows(dst []byte, lo, hi int) error {
	cols := f.info.Cols()
	for i, v := range f.values[lo*cols : hi*cols] {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
	}
	return nil
}

// readTensors reads a safetensors file: values and shapes by name.
func readTensors(path string) (map[string][]float64, map[string][]int, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	out, shapes := map[string][]float64{}, map[string][]int{}
	for _, s := range f.Tensors() {
		data := make([]byte, s.Size)
		if _, err := s.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
			return nil, nil, err
		}
		v := make([]float64, s.Elements())
		for i := range v {
			switch s.DType {
			case tensor.F64:
				v[i] = math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))
			case tensor.I32:
				v[i] = float64(int32(binary.LittleEndian.Uint32(data[4*i:])))
			case tensor.F32:
				v[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
			default:
				return nil, nil, fmt.Errorf("%s is of type %v", s.Name, s.DType)
			}
		}
		out[s.Name], shapes[s.Name] = v, s.Shape
	}
	return out, shapes, nil
}

// printLen is the length of the print that stands for a tensor of a golden: see footprint in internal/ref.
const printLen = 17

// apart returns the relative L2 distance of a tensor from a golden's, whole or a print.
func apart(name string, got, want []float64) float64 {
	if len(want) == printLen && len(got) != printLen {
		have, sum := footprint(name, got), 0.0
		for j := 1; j < printLen; j++ {
			sum += (have[j] - want[j]) * (have[j] - want[j])
		}
		return ratio(math.Max(math.Sqrt(sum/(printLen-1)), math.Abs(have[0]-want[0])), want[0])
	}
	if len(got) != len(want) {
		return math.NaN()
	}
	var d, n float64
	for i := range want {
		d, n = d+(got[i]-want[i])*(got[i]-want[i]), n+want[i]*want[i]
	}
	return ratio(math.Sqrt(d), math.Sqrt(n))
}

func ratio(d, n float64) float64 {
	if d == 0 {
		return 0
	}
	return d / n
}

// footprint returns the norm of v, and its sums with 16 rows of random signs.
func footprint(name string, v []float64) []float64 {
	out, h := make([]float64, printLen), fnv.New64a()
	h.Write([]byte(name))
	rng := rand.New(rand.NewPCG(1, h.Sum64()))
	for _, x := range v {
		out[0] += x * x
		bits := rng.Uint64()
		for j := 1; j < printLen; j++ {
			if bits>>j&1 == 1 {
				out[j] += x
			} else {
				out[j] -= x
			}
		}
	}
	out[0] = math.Sqrt(out[0])
	return out
}

// ofMax returns the largest difference, of the largest value; NaN if there is one.
func ofMax(got []float32, want []float64) float64 {
	if len(got) != len(want) {
		return math.NaN()
	}
	var d, top float64
	for i := range want {
		d, top = math.Max(d, math.Abs(float64(got[i])-want[i])), math.Max(top, math.Abs(want[i]))
	}
	return d / top
}

// cosine returns the cosine of two rows.
func cosine(a []float32, b []float64) float64 {
	var ab, aa, bb float64
	for i := range a {
		x := float64(a[i])
		ab, aa, bb = ab+x*b[i], aa+x*x, bb+b[i]*b[i]
	}
	return ab / math.Sqrt(aa*bb)
}

func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
