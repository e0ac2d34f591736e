//go:build gpu

package bench_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"apr/arch"
	"apr/bench"
	"apr/device"
	"apr/device/cuda"
	"apr/internal/near"
	"apr/model"
	"apr/tensor"
)

// TestDeltaSpeed times a DeltaNet layer and a full-attention layer of Qwen3.5 9B at T = 4,096, both without their
// feed-forward networks. It prints the first time divided by the second. The goals are 0.6 for the forward pass, and
// 0.8 for forward and backward together.
func TestDeltaSpeed(t *testing.T) {
	c, err := bench.Shape("qwen3.5-9b")
	if err != nil {
		t.Fatal(err)
	}
	delta, deltaBoth := mixerMilliseconds(t, c, c.Layers[0])
	full, fullBoth := mixerMilliseconds(t, c, c.Layers[3])
	near.Row(t, "DeltaNet forward, of full attention's", delta/full, 0.6)
	near.Row(t, "DeltaNet forward and backward, of full attention's", deltaBoth/fullBoth, 0.8)
}

// mixerMilliseconds returns the milliseconds that a layer's attention or DeltaNet takes with its projections and norms:
// of the forward pass, and of forward and backward together. Neither the feed-forward network counts, which has a width
// that nothing else has, nor the embedding.
func mixerMilliseconds(t *testing.T, c arch.Config, layer arch.Layer) (forward, both float64) {
	t.Helper()
	const layers, length, rounds = 2, 4096, 3
	c.Layers, c.Vocab = nil, 1024
	layer.FFN.Width = networkWidth
	for i := range layers {
		if !layer.Linear() {
			layer.Attn.KVFrom = i // its own keys and values
		}
		c.Layers = append(c.Layers, layer)
	}
	d := openCUDA(t)
	defer d.Close()
	if err := d.Prewarm(); err != nil {
		t.Fatal(err)
	}
	s := d.NewStream()
	m := model.NewTrainable(d, c)
	if err := m.LoadWeights(s, bench.RandomModel(c, 1)); err != nil {
		t.Fatal(err)
	}
	m.ResetTraining(s)
	ids := d.Alloc("ids", device.Batch, tensor.I32, length, 1)
	s.UploadInts(ids, make([]int32, length))
	var v *model.Saved
	for range rounds {
		d.StartProfile()
		v = m.Forward(s, model.Tokens{IDs: ids, Rows: 1, SeqLen: length}, model.RecomputeNone)
		forward = mixer(t, d, s, "forward", layers)
		dx := s.Temp("dx", device.Scratch, d.Info().Activations, length, c.Hidden)
		s.Zero(dx)
		d.StartProfile()
		m.Backward(s, v, dx)
		both = forward + mixer(t, d, s, "backward", layers)
		s.Release(dx)
		v.ReleaseTo(s)
	}
	t.Logf("DeltaNet %v: forward %.3f ms a layer, both %.3f", layer.Linear(), forward, both)
	return forward, both
}

// networkWidth is the hidden width of the feed-forward network here. The model's own, 12,288, is also the width of a
// DeltaNet's first product, so that the names of operations would not tell the two apart.
const networkWidth = 12800

// mixer ends a profile and shows its operations. It returns the milliseconds a layer of all operations but the
// feed-forward network's: attention or DeltaNet, their products, and norms.
func mixer(t *testing.T, d *cuda.Device, s device.Stream, pass string, layers int) (ms float64) {
	t.Helper()
	if _, err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	stats, err := d.Profile()
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range stats {
		counts := true
		for _, other := range []string{fmt.Sprint(networkWidth), fmt.Sprint(2 * networkWidth), "Embed", "UploadInts"} {
			counts = counts && !strings.Contains(st.Op, other)
		}
		t.Logf("%s, counts %v: %-40s %3d calls %8.4f ms", pass, counts, st.Op, st.Calls, 1e3*st.Time.Seconds())
		if counts {
			ms += 1e3 * st.Time.Seconds() / float64(layers)
		}
	}
	return ms
}
