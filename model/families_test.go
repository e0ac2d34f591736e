package model_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/format/safetensors"
	"apr/internal/contracttest"
	"apr/model"
	"apr/modelfile"
	"apr/tensor"
)

// Tolerances, with the largest difference seen of all goldens beside them; see internal/ref for what transformers' own
// float32 tables are worth (4e-7 of the logits, 8e-6 of a gradient).
const (
	familyLogits   = 1e-5 // of the largest logit
	familyHidden   = 1e-5 // relative L2 of the output of a layer
	familyGradient = 1e-4 // relative L2 of a tensor
)

// fixture is a golden of a family.
type fixture struct {
	config arch.Config
	values map[string][]float32 // by slot
	want   map[string][]float64 // tensors of golden.safetensors
	rows   int
	ids    []int32
	golden struct {
		Unmasked struct {
			CE       float64 `json:"ce"`
			GradNorm float64 `json:"grad_norm"`
		} `json:"unmasked"`
		Prompt  []int32 `json:"greedy_prompt"`
		Greedy  []int32 `json:"greedy_ids"`
		Float32 float64 `json:"float32_of_transformers_relative"` // what transformers' own float32 differs by
	}
}

// computedFixtures returns the folders of all goldens whose description is computed.
func computedFixtures(t *testing.T) (dirs []string) {
	t.Helper()
	for _, kind := range []string{"families", "variants"} {
		all, err := filepath.Glob(filepath.Join(goldens, kind, "*"))
		must(t, err)
		for _, dir := range all {
			if c, err := modelfile.ReadConfig(filepath.Join(dir, "config.json")); err != nil {
				t.Fatal(err)
			} else if c.NotComputed() == "" {
				dirs = append(dirs, dir)
			}
		}
	}
	if len(dirs) != 21 {
		t.Fatalf("%d goldens, want 21", len(dirs))
	}
	return dirs
}

// testDevice opens the device on which the goldens run.
var testDevice = newCPU

// eachFamily runs a test for every golden.
func eachFamily(t *testing.T, run func(t *testing.T, f *fixture)) {
	for _, dir := range computedFixtures(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			contracttest.Cases(t, 1)
			run(t, readFixture(t, dir))
		})
	}
}

// readFixture reads a golden.
func readFixture(t *testing.T, dir string) *fixture {
	t.Helper()
	c, err := modelfile.ReadConfig(filepath.Join(dir, "config.json"))
	must(t, err)
	f := &fixture{config: c, values: map[string][]float32{}}
	raw, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	must(t, err)
	must(t, json.Unmarshal(raw, &f.golden))
	var shapes map[string][]int
	f.want, shapes = readTensors(t, filepath.Join(dir, "golden.safetensors"))
	f.rows = shapes["input_ids"][0]
	files := open(t, dir)
	for _, s := range arch.Slots(f.config) {
		f.values[s.Name], err = files.ReadFloat32(s.Name)
		must(t, err)
	}
	for _, v := range f.want["input_ids"] {
		f.ids = append(f.ids, int32(v))
	}
	return f
}

func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// readTensors reads a safetensors file: values and shapes by name.
func readTensors(t *testing.T, path string) (map[string][]float64, map[string][]int) {
	t.Helper()
	f, err := safetensors.Open(path)
	must(t, err)
	defer f.Close()
	out, shapes := map[string][]float64{}, map[string][]int{}
	for _, s := range f.Tensors() {
		data := make([]byte, s.Size)
		if _, err := s.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
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
			case tensor.BF16:
				v[i] = float64(tensor.BF16ToF32(binary.LittleEndian.Uint16(data[2*i:])))
			default:
				t.Fatalf("%s: %s is of type %v", path, s.Name, s.DType)
			}
		}
		out[s.Name], shapes[s.Name] = v, s.Shape
	}
	return out, shapes
}

// A fixture is what a model is loaded from: model.Weights.
var _ model.Weights = (*fixture)(nil)

func (f *fixture) Arch() arch.Config { return f.config }

func (f *fixture) Verify() error { return nil }

func (f *fixture) Source(name string) (device.Source, error) {
	for _, s := range arch.Slots(f.config) {
		if s.Name == name {
			return floatSource{tensor.Info{Name: name, DType: tensor.F32, Shape: s.Shape, Size: 4 * s.Elements()}, f.values[name]}, nil
		}
	}
	return nil, errors.New("no slot " + name)
}

func (f *fixture) ReadFloat32(name string) ([]float32, error) {
	return append([]float32(nil), f.values[name]...), nil
}

type floatSource struct {
	info   tensor.Info
	values []float32
}

func (s floatSource) Info() tensor.Info { return s.info }

func (s floatSource) ReadRows(dst []byte, lo, hi int) error {
	cols := s.info.Cols()
	for i, v := range s.values[lo*cols : hi*cols] {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
	}
	return nil
}

// frozen and trainable put the fixture on a device.
func (f *fixture) frozen(t *testing.T, d device.Device) *model.Model {
	t.Helper()
	m, err := model.LoadFrozen(d, f, device.TeacherWeights)
	must(t, err)
	return m
}

func (f *fixture) trainable(t *testing.T, d device.Device, s device.Stream) *model.Model {
	t.Helper()
	m := model.NewTrainable(d, f.config)
	must(t, m.LoadWeights(s, f))
	return m
}

// tokens uploads the fixture's ids.
func (f *fixture) tokens(d device.Device, s device.Stream) model.Tokens {
	t := d.Alloc("ids", device.Batch, tensor.I32, len(f.ids), 1)
	s.UploadInts(t, f.ids)
	return model.Tokens{IDs: t, Rows: f.rows, SeqLen: len(f.ids) / f.rows}
}

// A print replaces a tensor of a golden: see footprint in internal/ref, whose lines these are.
const printLen = 17

// apart returns the relative L2 distance of a tensor from a golden's, whole or a print.
func apart[T float32 | float64](name string, got []T, want []float64) float64 {
	if len(want) == printLen && len(got) != printLen {
		have := footprint(name, got)
		sum := 0.0
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
		d += (float64(got[i]) - want[i]) * (float64(got[i]) - want[i])
		n += want[i] * want[i]
	}
	return ratio(math.Sqrt(d), math.Sqrt(n))
}

func ratio(d, n float64) float64 {
	if d == 0 {
		return 0
	}
	return d / n
}

func footprint[T float32 | float64](name string, v []T) []float64 {
	out, h := make([]float64, printLen), fnv.New64a()
	h.Write([]byte(name))
	rng := rand.New(rand.NewPCG(1, h.Sum64()))
	for _, x := range v {
		out[0] += float64(x) * float64(x)
		bits := rng.Uint64()
		for j := 1; j < printLen; j++ {
			if bits>>j&1 == 1 {
				out[j] += float64(x)
			} else {
				out[j] -= float64(x)
			}
		}
	}
	out[0] = math.Sqrt(out[0])
	return out
}

// ofMax returns the largest difference, relative to the largest value; NaN if there is one.
func ofMax[T float32 | float64](got []T, want []float64) float64 {
	if len(got) != len(want) {
		return math.NaN()
	}
	var d, top float64
	for i := range want {
		d = math.Max(d, math.Abs(float64(got[i])-want[i]))
		top = math.Max(top, math.Abs(want[i]))
	}
	return d / top
}

// Logits and the hidden states of every layer are those of transformers in float64, as training computes them and as
// inference does.
func TestFamiliesForward(t *testing.T) {
	eachFamily(t, func(t *testing.T, f *fixture) {
		d := testDevice(t)
		s := d.NewStream()
		m := f.trainable(t, d, s)
		tokens := f.tokens(d, s)
		worst := 0.0
		for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
			v := m.Forward(s, tokens, r)
			for i, x := range v.States() {
				name := "hidden." + string(rune('0'+i))
				got := download(t, s, x)
				if i == len(f.config.Layers) {
					for j := range got {
						got[j] /= float32(f.config.LogitScale)
					}
				}
				far := apart(name, got, f.want[name])
				worst = math.Max(worst, far)
				if !(far <= familyHidden) {
					t.Errorf("%v: %s: %.2g", r, name, far)
				}
			}
			f.checkLogits(t, r.String(), m, s, v.Hidden)
			v.ReleaseTo(s)
		}
		x := s.Temp("hidden", device.Activations, tensor.F32, len(f.ids), f.config.Hidden)
		m.Hidden(s, x, tokens)
		f.checkLogits(t, "inference of the trainable", m, s, x)
		frozen := f.frozen(t, d)
		frozen.Hidden(s, x, tokens)
		f.checkLogits(t, "frozen", frozen, s, x)
		snapshot := m.Snapshot(s)
		snapshot.Hidden(s, x, tokens)
		f.checkLogits(t, "snapshot", snapshot, s, x)
		t.Logf("hidden states %.1e", worst)
	})
}

func (f *fixture) checkLogits(t *testing.T, what string, m *model.Model, s device.Stream, hidden device.Tensor) {
	t.Helper()
	z := s.Temp("z", device.Logits, tensor.F32, hidden.Rows, f.config.Vocab)
	defer s.Release(z)
	m.Logits(s, z, hidden)
	far := ofMax(download(t, s, z), f.want["logits"])
	if !(far <= familyLogits) {
		t.Errorf("%s: logits: %.2g of the largest", what, far)
	}
	t.Logf("%s: logits %.1e", what, far)
}

// Gradients of every tensor are those of transformers in float64, whatever is computed again.
func TestFamiliesBackward(t *testing.T) {
	eachFamily(t, func(t *testing.T, f *fixture) {
		d := testDevice(t)
		s := d.NewStream()
		m := f.trainable(t, d, s)
		tokens := f.tokens(d, s)
		before := map[string][]float32{}
		for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
			m.ResetTraining(s)
			f.backward(t, m, s, tokens, r)
			grads := map[string][]float64{}
			for _, p := range m.Parts() {
				got := download(t, s, p.Of(p.Param.Grad))
				grads[p.Name] = nil
				if r == model.RecomputeNone {
					before[p.Name] = got
				} else if !equalBits(got, before[p.Name]) {
					t.Errorf("%v changes the gradient of %s", r, p.Name)
				}
			}
			worst, where := f.gradients(t, before)
			if !(worst <= familyGradient) {
				t.Errorf("%v: gradient of %s: %.2g", r, where, worst)
			}
			t.Logf("%v: gradient %.1e of %s", r, worst, where)
		}
	})
}

func equalBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

// gradients returns the worst distance of gradients by slot from the golden's, which are by the file's tensors.
func (f *fixture) gradients(t *testing.T, grads map[string][]float32) (worst float64, where string) {
	t.Helper()
	files := map[string][]float64{}
	for _, s := range arch.Slots(f.config) {
		if s.Fixed {
			continue
		}
		if files[s.HF.Name] == nil {
			files[s.HF.Name] = make([]float64, elements(s.HF.Shape))
		}
		v := make([]float64, len(grads[s.Name]))
		for i, x := range grads[s.Name] {
			v[i] = float64(x)
		}
		arch.Scatter(s, s.HF, v, [][]float64{files[s.HF.Name]})
	}
	for name, got := range files {
		want, ok := f.want["grad."+name]
		if !ok {
			t.Fatalf("no gradient of %s", name)
		}
		if d := apart("grad."+name, got, want); !(d <= worst) {
			worst, where = math.Max(worst, d), name
		}
	}
	return worst, where
}

// backward adds the gradients of the masked mean cross-entropy, computed on the host in float64.
func (f *fixture) backward(t *testing.T, m *model.Model, s device.Stream, tokens model.Tokens, r model.Recompute) {
	t.Helper()
	v := m.Forward(s, tokens, r)
	defer v.ReleaseTo(s)
	z := s.Temp("z", device.Logits, tensor.F32, len(f.ids), f.config.Vocab)
	defer s.Release(z)
	m.Logits(s, z, v.Hidden)
	s.Upload(z, f.lossGrad(download(t, s, z)))
	head, param := m.Head()
	dx := s.Temp("dx", device.Scratch, tensor.F32, v.Hidden.Rows, v.Hidden.Cols)
	defer s.Release(dx)
	s.MatMulInputGrad(dx, z, head, false)
	s.MatMulWeightGrad(param.Grad, device.Tensor{}, z, v.Hidden)
	m.Backward(s, v, dx)
}

// lossGrad returns the gradient of the loss over the logits before their cap.
func (f *fixture) lossGrad(z []float32) []float32 {
	seq, vocab, n := len(f.ids)/f.rows, f.config.Vocab, 0.0
	counts := func(i int) bool { return i%seq < seq-1 && f.want["loss_mask"][i] != 0 }
	for i := range f.ids {
		if counts(i) {
			n++
		}
	}
	out := make([]float32, len(z))
	for i := range f.ids {
		if !counts(i) {
			continue
		}
		row, sum := z[i*vocab:(i+1)*vocab], 0.0
		for _, x := range row {
			sum += math.Exp(float64(x))
		}
		for j, x := range row {
			g := math.Exp(float64(x)) / sum
			if j == int(f.ids[i+1]) {
				g--
			}
			if c := f.config.FinalCap; c > 0 {
				g *= 1 - float64(x)/c*float64(x)/c
			}
			out[i*vocab+j] = float32(g / n)
		}
	}
	return out
}

// A cache gives the greedy ids of transformers, one position at a time and with the prompt in pieces.
func TestFamiliesGreedy(t *testing.T) {
	eachFamily(t, func(t *testing.T, f *fixture) {
		d := testDevice(t)
		s := d.NewStream()
		m := f.frozen(t, d)
		for _, pieces := range [][]int{{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {12}, {5, 1, 6}} {
			if got := f.greedy(t, m, d, s, pieces); !equalIDs(got, f.golden.Greedy) {
				t.Errorf("prompt in %v: %v, want %v", pieces, got, f.golden.Greedy)
			}
		}
	})
}

func equalIDs(a, b []int32) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

func (f *fixture) greedy(t *testing.T, m *model.Model, d device.Device, s device.Stream, pieces []int) (out []int32) {
	t.Helper()
	prompt := f.golden.Prompt
	c := m.NewCache(len(prompt) + len(f.golden.Greedy))
	defer c.Free(d)
	ids := d.Alloc("ids", device.Batch, tensor.I32, len(prompt), 1)
	hidden := d.Alloc("hidden", device.Activations, tensor.F32, 1, f.config.Hidden)
	choice := m.NewGreedy(f.config.Vocab)
	for _, n := range pieces {
		s.UploadInts(ids.RowRange(0, n), prompt[:n])
		m.Extend(s, hidden, c, ids.RowRange(0, n))
		prompt = prompt[n:]
	}
	for range f.golden.Greedy {
		id, finite, err := choice.Next(s, hidden)
		must(t, err)
		if !finite {
			t.Fatal("a logit is not finite")
		}
		out = append(out, id)
		m.Extend(s, hidden, c, choice.ID())
	}
	return out
}
