package model_test

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/device/cpu"
	"apr/model"
	"apr/modelfile"
	"apr/tensor"
)

const goldens = "../testdata/golden"

func newCPU(t *testing.T) device.Device {
	t.Helper()
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

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
	"tied": arch.Qwen2(arch.Sizes{Hidden: 16, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 8, Width: 24, Vocab: 40,
		MaxPositions: 64, Theta: 1e6, Eps: 1e-6, Tied: true, InitRange: 0.3, BOS: -1, EOS: 3, DType: tensor.F32,
	}),
	"untied, own head size": arch.Qwen2(arch.Sizes{Hidden: 20, Layers: 3, Heads: 6, KVHeads: 2, HeadDim: 4, Width: 28, Vocab: 33,
		MaxPositions: 64, Theta: 1e4, Eps: 1e-5, InitRange: 0.3, BOS: 1, EOS: 2, DType: tensor.F32,
	}),
}

// randomModel returns a trainable model whose norms and biases are random too, so that none of them can be forgotten.
func randomModel(t *testing.T, d device.Device, s device.Stream, c arch.Config) *model.Model {
	t.Helper()
	m := model.NewTrainable(d, c)
	rng := rand.New(rand.NewPCG(5, 6))
	for _, p := range m.Parts() {
		host := make([]float32, p.Elements())
		for i := range host {
			host[i] = float32(0.3 * rng.NormFloat64())
			if len(p.Shape) == 1 && filepath.Ext(p.Name) == ".weight" {
				host[i]++
			}
		}
		s.Upload(p.Of(p.Param.Value), host)
	}
	m.Refresh(s)
	return m
}

// tokens uploads rows sequences of seqLen random ids.
func tokens(d device.Device, s device.Stream, vocab, rows, seqLen int) (model.Tokens, []int32) {
	rng := rand.New(rand.NewPCG(7, 8))
	ids := make([]int32, rows*seqLen)
	for i := range ids {
		ids[i] = rng.Int32N(int32(vocab))
	}
	t := d.Alloc("ids", device.Batch, tensor.I32, len(ids), 1)
	s.UploadInts(t, ids)
	return model.Tokens{IDs: t, Rows: rows, SeqLen: seqLen}, ids
}

func download(t *testing.T, s device.Stream, x device.Tensor) []float32 {
	t.Helper()
	host := make([]float32, x.Rows*x.Cols)
	must(t, s.Download(host, x))
	return host
}

// completes lets the backward pass of v report which gradients are complete. What it returns is called afterwards: each
// parameter was reported once, and its gradient has not changed since.
func completes(t *testing.T, m *model.Model, s device.Stream, v *model.Saved) func() {
	t.Helper()
	then := map[*device.Param][]float32{}
	v.Complete = func(params []*device.Param) {
		for _, p := range params {
			if _, twice := then[p]; twice {
				t.Errorf("%s is complete twice", p.Name)
			}
			then[p] = download(t, s, p.Grad)
		}
	}
	return func() {
		for _, p := range m.Params() {
			if g, ok := then[p]; !ok {
				t.Errorf("%s is never complete", p.Name)
			} else if !equalBits(g, download(t, s, p.Grad)) {
				t.Errorf("the gradient of %s changes after it was complete", p.Name)
			}
		}
	}
}
