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
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/tensor"
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
	if len(dirs) != 24 {
		t.Fatalf("%d goldens, want 24", len(dirs))
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
			f := readFixture(t, dir)
			d := testDevice(t)
			if err := model.Served(f.config, d.Info()); err != nil { // what a device lacks is refused before anything is loaded
				if _, err := model.LoadFrozen(d, f, device.TeacherWeights); fault.KindOf(err) != fault.Unavailable {
					t.Errorf("loading what %s lacks: %v", d.Info().Kind, err)
				}
				return
			}
			run(t, f)
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
