//go:build emulate

package model_test

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// replayed are the logits of positions one after the other, and the device's counts over the last of them.
type replayed struct {
	logits         [][]float32
	launches, sets int64
	how            string
}

// replay computes positions behind a prompt of three, then some beyond 768 keys, where attention becomes two launches,
// and one again that was forgotten. Rows of a cache that were never written are zero.
func (f *fixture) replay(t *testing.T, o cuda.Options) (r replayed) {
	t.Helper()
	d, err := cuda.Open(o)
	must(t, err)
	defer d.Close()
	s := d.NewStream()
	m := f.frozen(t, d)
	c := m.NewCache(790)
	ids := d.Alloc("ids", device.Batch, tensor.I32, 3, 1)
	hidden := d.Alloc("hidden", device.Activations, d.Info().Activations, 2, f.config.Hidden)
	z := make([]float32, f.config.Vocab)
	s.UploadInts(ids, f.ids[:3])
	m.Extend(s, hidden.RowRange(0, 1), c, ids)
	position := 0
	step := func() {
		before := d.Stats()
		position++
		h := hidden.RowRange(position%2, position%2+1) // as a generation that is one id ahead does
		s.UploadInts(ids.RowRange(0, 1), f.ids[position%len(f.ids):][:1])
		m.Extend(s, h, c, ids.RowRange(0, 1))
		must(t, m.NextLogits(s, z, h))
		r.logits = append(r.logits, slices.Clone(z))
		after := d.Stats()
		r.launches, r.sets = after.Launches-before.Launches+after.Graphs-before.Graphs, after.GraphSets-before.GraphSets
	}
	for range 6 {
		step()
	}
	launches, sets := r.launches, r.sets
	c.Forget(1)
	step()
	r.how = c.Decoding()
	c.Assume(765)
	for range 6 {
		step()
	}
	r.launches, r.sets = launches, sets
	return r
}

// TestCUDAReplay: positions that are replayed as a CUDA graph have the bits of single launches, with a handful of
// launches each.
func TestCUDAReplay(t *testing.T) {
	openEmulator(t)
	eachFamily(t, func(t *testing.T, f *fixture) {
		for _, compute := range []cuda.Compute{cuda.BF16, cuda.F32} {
			one, graph := f.replay(t, cuda.Options{Compute: compute, NoGraphs: true}), f.replay(t, cuda.Options{Compute: compute})
			for i := range one.logits {
				if !equalBits(one.logits[i], graph.logits[i]) {
					t.Errorf("%s: logits of position %d differ", compute, i)
				}
			}
			if !strings.Contains(one.how, "launch by launch, as asked") || !strings.Contains(graph.how, "as a CUDA graph of ") {
				t.Errorf("%s: %q; %q", compute, one.how, graph.how)
			}
			if !(graph.launches <= 10 && graph.sets > 0 && one.launches >= 4*graph.launches) {
				t.Errorf("%s: %d launches a position, %d as a graph", compute, one.launches, graph.launches)
			}
			t.Logf("%s: %d layers, %d launches a position one by one; %d and %d kernels with new arguments as a graph: %s", compute, len(f.config.Layers),
				one.launches, graph.launches, graph.sets, graph.how)
		}
	})
}

// TestCUDAReplayFails: whatever call for a graph fails, kernels are launched one by one, which is said, and nothing
// else changes.
func TestCUDAReplayFails(t *testing.T) {
	openEmulator(t)
	f := readFixture(t, familyDir(t, "qwen3_moe"))
	want := f.replay(t, cuda.Options{NoGraphs: true})
	for _, call := range []string{
		"cuStreamBeginCapture_v2", "cuStreamGetCaptureInfo_v2", "cuGraphInstantiateWithFlags", "cuGraphExecKernelNodeSetParams_v2",
	} {
		t.Setenv("APR_EMULATOR_FAIL", call+":*=801")
		got := f.replay(t, cuda.Options{})
		for i := range want.logits {
			if !equalBits(got.logits[i], want.logits[i]) {
				t.Errorf("%s: logits of position %d differ", call, i)
			}
		}
		if !strings.Contains(got.how, "launch by launch: graphs failed: "+call) || got.launches != want.launches {
			t.Errorf("%s: %q, %d launches, want %d", call, got.how, got.launches, want.launches)
		}
	}
}

func familyDir(t *testing.T, name string) string {
	t.Helper()
	dirs := computedFixtures(t)
	i := slices.IndexFunc(dirs, func(dir string) bool { return filepath.Base(dir) == name })
	if i < 0 {
		t.Fatalf("no golden of %s", name)
	}
	return dirs[i]
}

// TestCUDAFewLaunches: a position of a model with experts, whose heads are wide enough for one kernel, is eight
// launches a layer, nine with sinks, and gives what one pass over all positions gives.
func TestCUDAFewLaunches(t *testing.T) {
	openEmulator(t)
	for name, perLayer := range map[string]int64{"qwen 3 with experts": 8, "gpt-oss": 9} {
		c := randomFamily(t, name, 1, 1).config
		c.Hidden = 64
		for i := range c.Ropes {
			c.Ropes[i].HeadDim, c.Ropes[i].Width = 32, 32
		}
		for i := range c.Layers {
			l := &c.Layers[i]
			l.Attn.HeadDim, l.Attn.Scale = 32, 1/math.Sqrt(32)
			if l.FFN.MoE.Experts > 0 {
				l.FFN.MoE.Width = 32
			}
		}
		f := fixtureOf(c, rand.New(rand.NewPCG(8, 9)), 1, 12)
		d, err := cuda.Open(cuda.Options{NoGraphs: true})
		must(t, err)
		s := d.NewStream()
		m := f.frozen(t, d)
		cache := m.NewCache(len(f.ids))
		tokens := f.tokens(d, s)
		all := d.Alloc("hidden", device.Activations, tensor.BF16, len(f.ids), c.Hidden)
		one := d.Alloc("hidden", device.Activations, tensor.BF16, len(f.ids), c.Hidden)
		m.Hidden(s, all, tokens)
		for i := range f.ids {
			before := d.Stats()
			m.Extend(s, one.RowRange(i, i+1), cache, tokens.IDs.RowRange(i, i+1))
			_, err := s.Wait(t.Context())
			must(t, err)
			after := d.Stats()
			layers := int64(len(c.Layers)) // of each, 4 products are counted as launches too: of experts and their router
			n := after.Launches - before.Launches + after.Products - before.Products - 4*layers
			if i > 0 && n > perLayer*layers+4 {
				t.Errorf("%s: %d launches and products of %d layers", name, n, layers)
			}
		}
		want, got := f.logitsOf(t, m, s, all), f.logitsOf(t, m, s, one)
		for i := range f.ids {
			lo, hi := i*c.Vocab, (i+1)*c.Vocab
			if cos := cosine(got[lo:hi], want[lo:hi]); !(cos >= .999) {
				t.Errorf("%s: position %d: cosine %.5f", name, i, cos)
			}
		}
		must(t, d.Close())
	}
}
