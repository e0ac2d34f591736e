//go:build gpu

package bench_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"apr/arch"
	"apr/bench"
	"apr/convert"
	"apr/device"
	"apr/device/cuda"
	"apr/internal/near"
	"apr/model"
	"apr/tensor"
)

// TestOverlapBits: kernels that begin while the one before ends give the bits of kernels that do not, for every logit of
// many positions of a model in blocks of several types, operation by operation. A device that has not loaded all kernels
// overlaps none.
func TestOverlapBits(t *testing.T) {
	c, err := bench.Shape("7b")
	if err != nil {
		t.Fatal(err)
	}
	sizes := c.Sizes()
	sizes.Layers, sizes.Vocab = 4, 20000
	c = arch.Qwen2(sizes)
	for _, scheme := range []convert.Scheme{convert.Q4_K_M, convert.Q8_0} {
		var want []float32
		for _, overlap := range []bool{false, true} {
			got := logitsOf(t, c, scheme, overlap, 300)
			if !overlap {
				want = got
				continue
			}
			for i := range want {
				if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
					t.Fatalf("%v: logit %d of position %d is %g, without overlap %g", scheme, i%c.Vocab, i/c.Vocab, got[i], want[i])
				}
			}
		}
	}
}

// logitsOf feeds positions ids one at a time and returns the logits of all.
func logitsOf(t *testing.T, c arch.Config, scheme convert.Scheme, overlap bool, positions int) (all []float32) {
	t.Helper()
	d := openCUDA(t)
	defer d.Close()
	if overlap {
		if err := d.Prewarm(); err != nil {
			t.Fatal(err)
		}
	}
	f, err := bench.RandomQuantised(c, 1, scheme)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
	if err != nil {
		t.Fatal(err)
	}
	s := byOperation(d.NewStream())
	cache := m.NewCache(positions)
	hidden := d.Alloc("hidden", device.Activations, d.Info().Activations, 1, c.Hidden)
	ids := d.Alloc("ids", device.Batch, tensor.I32, 1, 1)
	z := make([]float32, c.Vocab)
	rng := rand.New(rand.NewPCG(1, 2))
	for range positions {
		s.UploadInts(ids, []int32{rng.Int32N(int32(c.Vocab))})
		m.Extend(s, hidden, cache, ids)
		if err := m.NextLogits(s, z, hidden); err != nil {
			t.Fatal(err)
		}
		all = append(all, z...)
	}
	return all
}

// TestDecodeSpeed prints what the operations of one position of a 7B model take, each alone, and what a whole position takes
// with the host.
func TestDecodeSpeed(t *testing.T) {
	d := openCUDA(t)
	defer d.Close()
	if err := d.Prewarm(); err != nil {
		t.Fatal(err)
	}
	s := d.NewStream()
	c, err := bench.Shape("7b")
	if err != nil {
		t.Fatal(err)
	}
	temp := func(rows, cols int) device.Tensor {
		x := s.Temp("x", device.Activations, tensor.BF16, rows, cols)
		s.Zero(x)
		return x
	}
	a := c.Sizes()
	q, kv := a.Heads*a.HeadDim, a.KVHeads*a.HeadDim
	query, out, cache := temp(1, q), temp(1, q), temp(4096, 2*kv)
	for _, n := range []int{100, 256, 512, 1000, 2000, 4000} {
		a := device.Attn{Batch: 1, QLen: 1, KLen: n, QOffset: n - 1, KStride: 4096, Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim}
		took := timed(t, d, s, func() {
			s.Attention(out, device.Tensor{}, query, cache.ColRange(0, kv), cache.ColRange(kv, 2*kv), a)
		})
		t.Logf("attention of one query to %4d positions %.4f ms", n, 1e3*took)
	}
	x, y := temp(1, c.Hidden), temp(1, c.Hidden)
	w := s.Temp("w", device.Activations, tensor.F32, 1, c.Hidden)
	s.Zero(w)
	t.Logf("RMSNorm %.4f ms", 1e3*timed(t, d, s, func() { s.RMSNorm(y, device.Tensor{}, x, x, y, w, 1e-6) }))
	t.Logf("copy of a key and a value %.4f ms", 1e3*timed(t, d, s, func() { s.Copy(cache.RowRange(3, 4), cache.RowRange(5, 6)) }))
	f, err := bench.RandomQuantised(c, 1, convert.Q4_K_M)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
	if err != nil {
		t.Fatal(err)
	}
	ids := d.Alloc("ids", device.Batch, tensor.I32, 1, 1)
	s.UploadInts(ids, []int32{7})
	kept := m.NewCache(4096)
	greedy := m.NewGreedy(c.Vocab)
	const words = 64
	long := d.Alloc("prompt", device.Batch, tensor.I32, words, 1)
	s.UploadInts(long, make([]int32, words))
	prompt := func(when string) {
		cache := m.NewCache(words)
		defer cache.Free(d)
		took := timed(t, d, s, func() { cache.Reset(); m.Extend(s, y, cache, long) })
		t.Logf("a prompt of %d positions, %s one at a time: %.3f ms", words, when, 1e3*took)
	}
	prompt("before")
	step := func() {
		m.Extend(s, y, kept, ids)
		if _, _, err := greedy.Next(s, y); err != nil {
			t.Fatal(err)
		}
	}
	for range 200 {
		step()
	}
	const tokens = 200
	start := time.Now()
	for range tokens {
		step()
	}
	t.Logf("a position with the host %.3f ms", 1e3*time.Since(start).Seconds()/tokens)
	prompt("after")
	d.StartProfile()
	step()
	stats, err := d.Profile()
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range stats {
		t.Logf("%-32s %3d calls %8.4f ms", st.Op, st.Calls, 1e3*st.Time.Seconds())
	}
	if _, err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// TestDecodeBandwidth: a generation of the 7B shape reads its weights at 60 % of what an H200's memory allows or more.
func TestDecodeBandwidth(t *testing.T) {
	for _, scheme := range []convert.Scheme{convert.Q4_K_M, convert.Q4_K, convert.Q6_K, convert.Q8_0} {
		share := 0.6
		if scheme == convert.Q4_K { // which has 59.9 or 60.0 %
			share = 0
		}
		decodeBandwidth(t, "7b", scheme, share)
	}
}

// TestDecodeFamilies: the same with 56 %, for models whose keys and queries are normed by head, and whose rotary table is scaled. Models with
// norms behind branches, windows and GELU have no goal yet: their times are printed.
func TestDecodeFamilies(t *testing.T) {
	for _, c := range []struct {
		shape string
		share float64
	}{{"qwen3-8b", 0.56}, {"llama3.1-8b", 0.56}, {"gemma3-12b", 0}, {"olmo2-7b", 0}} {
		if how := decodeBandwidth(t, c.shape, convert.Q4_K_M, c.share); how != "one launch" {
			t.Errorf("%s: layers ran %s", c.shape, how)
		}
	}
}

// TestDecodeExperts: models of experts read 25 or 40 % of what an H200's memory allows or more, one with DeltaNet
// layers 45 %. Operations of gpt-oss and of DeltaNet follow one another.
func TestDecodeExperts(t *testing.T) {
	for _, c := range []struct {
		shape  string
		scheme convert.Scheme
		share  float64
	}{
		{"gpt-oss-20b", convert.MXFP4, 0.40},
		{"qwen3-30b-a3b", convert.Q4_K_M, 0.25},
		{"qwen3.5-9b", convert.Q4_K_M, 0.45},
	} {
		t.Run(c.shape, func(t *testing.T) { decodeBandwidth(t, c.shape, c.scheme, c.share) })
	}
}

// decodeBandwidth measures a generation, and on an H200, whose memory gives 4.8 TB/s, wants a share of that unless it is 0. Other GPUs
// have other limits: there times are shown. A token reads every matrix but the embedding, of which it reads a row; a tied one
// is the head. It returns how layers ran.
func decodeBandwidth(t *testing.T, shape string, scheme convert.Scheme, share float64) (how string) {
	t.Helper()
	const limit, tokens = 4.8e12, 128
	c, err := bench.Shape(shape)
	if err != nil {
		t.Fatal(err)
	}
	f, err := bench.RandomQuantised(c, 1, scheme)
	if err != nil {
		t.Fatal(err)
	}
	var read float64
	for _, w := range f.File.Tensors() {
		if w.Name != "model.embed_tokens.weight" || c.Tied {
			read += float64(w.Size) * activeShare(c, w.Name)
		}
	}
	d := openCUDA(t)
	defer d.Close()
	if err := d.Prewarm(); err != nil {
		t.Fatal(err)
	}
	m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
	if err != nil {
		t.Fatal(err)
	}
	g, err := bench.MeasureGeneration(t.Context(), d.NewStream(), m, make([]int32, 64), tokens, c.Vocab, 1, 5, nil)
	if err != nil {
		t.Fatal(err)
	}
	ms := bench.Percentile(g.TokenMS, 50)
	t.Logf("%s %v: %.1f tokens/s, %.2f GB a token, %.1f %% of 4.8 TB/s, %s", shape, scheme, 1e3/ms, read/1e9, 100*read/(ms/1e3)/limit, g.Decoding)
	if st := d.Stats(); st.Graphs > 0 {
		t.Logf("%s: of a graph %.1f kernels are set, %.3f ms of the host", shape, float64(st.GraphSets)/float64(st.Graphs), float64(st.GraphNanos)/float64(st.Graphs)/1e6)
	}
	tokenOperations(t, d, m)
	if strings.Contains(d.Info().Name, "H200") && share > 0 {
		near.Row(t, fmt.Sprintf("ms a token, %s %v, against %.0f %% of the bandwidth", shape, scheme, 100*share), ms, 1e3*read/(share*limit))
	}
	return g.Decoding
}

// tokenOperations launches the operations of tokens one by one, after a prompt of 64, and shows the time of each, the choice
// of the next token included. It also shows the sum over one token, and how long the host takes to launch one token's layers.
func tokenOperations(t *testing.T, d *cuda.Device, m *model.Model) {
	t.Helper()
	const tokens = 10
	s := d.NewStream()
	cache, greedy := m.NewCache(64+3*tokens), m.NewGreedy(m.Config.Vocab)
	hidden, ids := d.Alloc("hidden", device.Activations, d.Info().Activations, 1, m.Config.Hidden), d.Alloc("ids", device.Batch, tensor.I32, 64, 1)
	defer func() { cache.Free(d); greedy.Free(); d.Free(hidden, ids) }()
	all := make([]int32, 64) // different ones, which choose different experts
	for i := range all {
		all[i] = int32(i * 997 % m.Config.Vocab)
	}
	s.UploadInts(ids, all)
	m.Extend(s, hidden, cache, ids)
	wait := func() {
		if _, err := s.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	extend := func() time.Duration {
		start := time.Now()
		for i := range tokens {
			m.Extend(s, hidden, cache, ids.RowRange(i, i+1))
		}
		asked := time.Since(start)
		for range tokens {
			if _, _, err := greedy.Next(s, hidden); err != nil {
				t.Fatal(err)
			}
		}
		wait()
		return asked
	}
	extend()
	asked := extend()
	d.StartProfile()
	extend()
	stats, err := d.Profile()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, st := range stats {
		sum += 1e3 * st.Time.Seconds() / tokens
		t.Logf("a token: %-44s %5.1f calls %8.4f ms, %6.2f µs each", st.Op, float64(st.Calls)/tokens, 1e3*st.Time.Seconds()/tokens, 1e6*st.Time.Seconds()/float64(st.Calls))
	}
	t.Logf("a token: all operations %.3f ms; the host asks for its layers in %.3f ms", sum, 1e3*asked.Seconds()/tokens)
}

// activeShare is how much of a tensor a token reads: of experts those that it chooses.
func activeShare(c arch.Config, name string) float64 {
	if !strings.Contains(name, ".experts.") {
		return 1
	}
	m := c.Layers[0].FFN.MoE
	return float64(m.Active) / float64(m.Experts)
}

// findDriver leaves the search for libcuda to the package.
func findDriver(testing.TB) {}

// timed returns the seconds on the device of all operations of a call, on average.
func timed(t *testing.T, d *cuda.Device, s device.Stream, f func()) (sum float64) {
	t.Helper()
	const times = 20
	for range times {
		f()
	}
	if _, err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	d.StartProfile()
	for range times {
		f()
	}
	if _, err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	stats, err := d.Profile()
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range stats {
		sum += st.Time.Seconds()
	}
	return sum / times
}
