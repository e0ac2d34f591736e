package model_test

import (
	"strings"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/model"
	"apr/tensor"
)

// Greedy ids of DeltaNet layers with a cache are those of float64 without one, though the position before was speculated
// with another id and forgotten.
func TestGreedyOfDeltaNet(t *testing.T) {
	contracttest.Cases(t, 1)
	const prompt, more = 70, 12 // more than a chunk
	f := randomFamily(t, "qwen 3.5", 1, prompt)
	d := testDevice(t)
	s := d.NewStream()
	m := f.frozen(t, d)
	c := m.NewCache(prompt + more)
	defer c.Free(d)
	hidden := d.Alloc("hidden", device.Activations, tensor.F32, 1, f.config.Hidden)
	wrong := d.Alloc("wrong", device.Batch, tensor.I32, 1, 1)
	choice, net, ids := m.NewGreedy(f.config.Vocab), f.net(), f.ints()
	m.Extend(s, hidden, c, f.tokens(d, s).IDs)
	for range more {
		id, finite, err := choice.Next(s, hidden)
		must(t, err)
		z := net.Forward(ids, 1).Logits
		if want := ref.ArgMax(z.RowRange(z.Rows-1, z.Rows))[0]; !finite || int(id) != want {
			t.Fatalf("position %d: id %d, want %d", len(ids), id, want)
		}
		ids = append(ids, int(id))
		s.UploadInts(wrong, []int32{(id + 1) % int32(f.config.Vocab)})
		m.Extend(s, hidden, c, wrong)
		c.Forget(1)
		m.Extend(s, hidden, c, choice.ID())
	}
}

// The check of documents notices a state that is kept from one to the next.
func TestStateAcrossDocumentsShows(t *testing.T) {
	f := randomFamily(t, "qwen 3.5", 1, 12)
	d := newCPU(t)
	s := d.NewStream()
	m, tokens := f.frozen(t, d), f.tokens(d, s)
	x := s.Temp("hidden", device.Activations, tensor.F32, 12, f.config.Hidden)
	m.Hidden(s, x, model.Tokens{IDs: tokens.IDs, Rows: 1, SeqLen: 12})
	apart := f.net().ForwardDocuments(f.ints(), 1, []int{0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5}).Logits.V
	if near.Rel("", f.logitsOf(t, m, s, x), apart, 1e-2) == nil {
		t.Error("documents that see each other give the same logits")
	}
}

// A device that lacks the operations refuses the model by the feature's name.
func TestDeltaNetIsLacking(t *testing.T) {
	err := model.Served(randomFamily(t, "qwen 3.5", 1, 1).config, device.Info{Kind: "cuda", Lacks: []device.Feature{device.DeltaNet}})
	if fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), string(device.DeltaNet)) {
		t.Error(err)
	}
}

// A device whose kernels are bound refuses heads and convolutions beyond that with key and value, and no others.
func TestWideDeltaIsLacking(t *testing.T) {
	by := device.Info{Kind: "cuda", Lacks: []device.Feature{device.WideDelta}}
	for want, change := range map[string]func(*arch.DeltaNet){
		"":                                     func(d *arch.DeltaNet) { d.KeyDim, d.Conv = 128, 8 },
		"linear_key_head_dim 129, at most 128": func(d *arch.DeltaNet) { d.KeyDim = 129 },
		"linear_conv_kernel_dim 9, at most 8":  func(d *arch.DeltaNet) { d.Conv = 9 },
	} {
		c := randomFamily(t, "qwen 3.5", 1, 1).config
		change(&c.Layers[1].Delta)
		err := model.Served(c, by)
		if want == "" && err != nil || want != "" && (fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
