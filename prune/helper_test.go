package prune

import (
	"context"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"apr/arch"
	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/model"
	"apr/model/modeltest"
	"apr/modelfile"
	"apr/tensor"
)

// fixtures are folders of small models of all families.
func fixtures(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"qwen2": "../testdata/models/gosrc"}
	for _, pattern := range []string{"families/*", "variants/*"} {
		paths, err := filepath.Glob("../testdata/golden/" + pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, p := range paths {
			all[filepath.Base(p)] = p
		}
	}
	return all
}

// plain is a description of float32 with a tiny ε: that of a norm is a number beside Σ x², whatever width is cut.
func plain(c arch.Config) arch.Config {
	c.Eps, c.DType, c.Stored = 1e-12, tensor.F32, ""
	return c
}

// weights are a model's tensors by slot.
type weights map[string][]float32

// numbers returns weights with which a model computes numbers of about 1.
func numbers(c arch.Config, seed uint64) weights {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := weights{}
	for _, s := range arch.Slots(c) {
		v := make([]float32, s.Elements())
		for i := range v {
			x := rng.NormFloat64()
			switch {
			case s.Fixed:
				v[i] = 1
			case s.Role == arch.Embedding: // so large that positions differ, and each expert is chosen somewhere
				v[i] = float32(2 * x / c.EmbedScale)
			case s.Init == arch.Identity:
				v[i] = float32(1 - c.NormOffset + .2*x)
			case s.Init == arch.Ones:
				v[i] = float32(1 + .2*x)
			case len(s.Shape) > 1 && !s.Bias:
				v[i] = float32(x / math.Sqrt(float64(s.Shape[len(s.Shape)-1])))
			default:
				v[i] = float32(.2 * x)
			}
		}
		w[s.Name] = v
	}
	return w
}

// save writes a model and opens it.
func save(t *testing.T, c arch.Config, w weights) *modelfile.Files {
	t.Helper()
	var sources []tensor.Source
	for _, s := range arch.Slots(c) {
		raw := make([]byte, 4*len(w[s.Name]))
		tensor.Narrow(raw, w[s.Name], tensor.F32)
		sources = append(sources, tensor.BytesSource(tensor.Info{Name: s.Name, DType: tensor.F32, Shape: s.Shape}, raw))
	}
	path := filepath.Join(t.TempDir(), "model.apr")
	if err := modelfile.SaveAPR(path, c, nil, sources, nil, "", false); err != nil {
		t.Fatal(err)
	}
	f := modeltest.Open(t, path)
	f.AllowOdd = true // what a test plants is no trained weight
	return f
}

// text is random ids.
func text(t *testing.T, vocab int) *corpus.Windows {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 6))
	ids := make([]int32, 12*32+1)
	for i := range ids {
		ids[i] = int32(rng.IntN(vocab))
	}
	w, err := corpus.NewWindows(&corpus.Tokens{IDs: ids}, 32, 32)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// measured is the importance of a model's parts.
func measured(t *testing.T, d device.Device, f *modelfile.Files) *Importance {
	t.Helper()
	im, err := Measure(context.Background(), modeltest.On(t, d, f), f, text(t, f.Config.Vocab), nil)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// logits are those of the model on the text.
func logits(t *testing.T, d device.Device, f *modelfile.Files) []float32 {
	t.Helper()
	m, s, w := modeltest.On(t, d, f), d.NewStream(), text(t, f.Config.Vocab)
	b := model.NewBatch(d, w.Len(), w.SeqLen)
	defer b.Free(d)
	b.Load(s, w.Batch(0, w.Len()), w.Len())
	n := w.Len() * w.SeqLen
	x := s.Temp("hidden", device.Activations, d.Info().Activations, n, f.Config.Hidden)
	z := s.Temp("logits", device.Logits, tensor.F32, n, f.Config.Vocab)
	defer s.Release(x, z)
	m.Hidden(s, x, b.Tokens)
	m.Logits(s, z, x)
	out := make([]float32, n*f.Config.Vocab)
	if err := s.Download(out, z); err != nil {
		t.Fatal(err)
	}
	return out
}

// apply makes f the cut model.
func apply(t *testing.T, f *modelfile.Files, k Kept, im *Importance) {
	t.Helper()
	var err error
	if f.Config, err = Apply(f.Container, k, im); err != nil {
		t.Fatal(err)
	}
	if err := f.CheckTensors(); err != nil {
		t.Fatal(err)
	}
}

// far is the largest difference relative to the largest value; infinite where a number is not finite.
func far(got, want []float32) float64 {
	worst, largest := 0.0, 0.0
	if len(got) != len(want) {
		return math.Inf(1)
	}
	for i := range got {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if !(d <= math.MaxFloat32) {
			return math.Inf(1)
		}
		worst, largest = max(worst, d), max(largest, math.Abs(float64(want[i])))
	}
	return worst / largest
}

func testDevice(t *testing.T) device.Device {
	return modeltest.CPU(t, cpu.Options{ISA: os.Getenv("APR_CPU"), Workers: 2})
}
