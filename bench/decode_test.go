//go:build emulate || gpu

package bench_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"apr/arch"
	"apr/bench"
	"apr/bench/randmodel"
	"apr/convert"
	"apr/device"
	"apr/device/cpu"
	"apr/device/cuda"
	"apr/device/cuda/kernel"
	"apr/generate"
	"apr/model"
	"apr/modelfile"
	"apr/tensor"
)

// withoutDecode is a stream whose layers are run operation by operation; products make the norms that they read.
type withoutDecode struct {
	device.Stream
	device.NormReader
}

func byOperation(s device.Stream) device.Stream {
	if reads, ok := s.(device.NormReader); ok {
		return withoutDecode{s, reads}
	}
	return s // of a device that has no other way
}

// TestDecodeAgrees: all layers as one launch are as close to a CPU with float32 as operation by operation, for every logit
// of several positions, in all types of blocks, with shapes that divide nothing evenly, and with keys in several shares.
func TestDecodeAgrees(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	for _, c := range []struct {
		hidden, inter, heads, kv, d, layers int
		scheme                              convert.Scheme
		prompt                              int
	}{
		{512, 768, 4, 2, 128, 3, convert.Q4_K_M, 5},
		{256, 2304, 6, 2, 64, 2, convert.Q4_K_M, 37},
		{256, 256, 4, 1, 32, 1, convert.Q4_K_M, 1700},
		{160, 2176, 3, 3, 32, 3, convert.Q8_0, 1},
		{224, 96, 5, 5, 32, 2, convert.Q4_K_M, 9},  // Q5_0 and Q8_0
		{256, 27648, 4, 2, 64, 1, convert.Q8_0, 1}, // on 16 multiprocessors a warp has room for one span
	} {
		if c.inter == 27648 {
			t.Setenv("APR_EMULATOR_MULTIPROCESSORS", "16")
		}
		t.Run(fmt.Sprintf("%d %d %d/%d×%d %v after %d", c.hidden, c.inter, c.heads, c.kv, c.d, c.scheme, c.prompt), func(t *testing.T) {
			config, err := bench.Shape("0.5b")
			if err != nil {
				t.Fatal(err)
			}
			sizes := config.Sizes()
			sizes.Hidden, sizes.Width, sizes.Heads, sizes.KVHeads, sizes.HeadDim = c.hidden, c.inter, c.heads, c.kv, c.d
			sizes.Layers, sizes.Vocab = c.layers, 512
			config = arch.Qwen2(sizes)
			f, err := bench.RandomQuantised(config, 3, c.scheme)
			if err != nil {
				t.Fatal(err)
			}
			exact, err := cpu.New(cpu.Options{})
			if err != nil {
				t.Fatal(err)
			}
			want := decoded(t, exact, f, c.prompt, false)
			d := openCUDA(t)
			defer d.Close()
			apart := distance(decoded(t, d, f, c.prompt, false), want)
			together := distance(decoded(t, d, f, c.prompt, true), want)
			t.Logf("relative error %.5f as one launch, %.5f operation by operation", together, apart)
			if !(together <= 1.15*apart) || apart == 0 {
				t.Errorf("relative error %.5f, operation by operation %.5f", together, apart)
			}
		})
	}
}

// TestDecodeAgreesByFamily compares one launch, separate operations and a CPU for families whose layers have more features than Qwen2's.
// The weights are large, so that attention scores reach their soft-caps and a few positions have most of the attention. Greedy ids must
// equal the CPU's.
func TestDecodeAgreesByFamily(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	for name, scheme := range map[string]convert.Scheme{
		"gemma2": convert.Q4_K_M, "gemma3": convert.Q4_K_M, "gemma4": convert.Q4_K_M, "gemma4_kv": convert.Q8_0,
		"olmo2": convert.Q4_K_M, "olmo3": convert.Q8_0, "granite": convert.Q4_K_M, "qwen3": convert.Q8_0,
	} {
		t.Run(fmt.Sprintf("%s %v", name, scheme), func(t *testing.T) {
			_, config, err := randmodel.Model{Name: name}.Config()
			if err != nil {
				t.Fatal(err)
			}
			config.InitRange = .08
			f, err := bench.RandomQuantised(config, 3, scheme)
			if err != nil {
				t.Fatal(err)
			}
			exact, err := cpu.New(cpu.Options{})
			if err != nil {
				t.Fatal(err)
			}
			const prompt = 12 // longer than the windows
			want := decoded(t, exact, f, prompt, false)
			d := openCUDA(t)
			defer d.Close()
			apart := distance(decoded(t, d, f, prompt, false), want)
			got := decoded(t, d, f, prompt, true)
			together := distance(got, want)
			t.Logf("relative error %.5f as one launch, %.5f operation by operation", together, apart)
			steep := apart > .05 // bfloat16 says little about such logits: scores of Gemma 4 have no factor
			if most := map[bool]float64{false: 1.15, true: 1.5}[steep]; !(together <= most*apart) || apart == 0 {
				t.Errorf("relative error %.5f, operation by operation %.5f", together, apart)
			}
			for lo := 0; lo < len(want) && !steep; lo += config.Vocab {
				z, exact := got[lo:lo+config.Vocab], want[lo:lo+config.Vocab]
				if id, right := slices.Index(z, slices.Max(z)), slices.Index(exact, slices.Max(exact)); id != right {
					t.Errorf("position %d: id %d, want %d", lo/config.Vocab, id, right)
				}
			}
		})
	}
}

// smallExperts is a Qwen3-MoE whose experts the launch takes.
func smallExperts(t *testing.T) arch.Config {
	t.Helper()
	c, err := arch.Parse("config.json", `{"model_type":"qwen3_moe","hidden_size":256,"num_hidden_layers":3,
		"num_attention_heads":4,"num_key_value_heads":2,"head_dim":64,"intermediate_size":512,"moe_intermediate_size":512,
		"num_experts":12,"num_experts_per_tok":3,"norm_topk_prob":true,"decoder_sparse_step":1,"mlp_only_layers":[],
		"vocab_size":512,"max_position_embeddings":4096,"hidden_act":"silu"}`, arch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c.InitRange = .08
	return c
}

// TestDecodeAgreesByExperts is TestDecodeAgrees of a model of experts. The operations of a prompt read rows of
// experts, one launch tiles.
func TestDecodeAgreesByExperts(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	config := smallExperts(t)
	for scheme, prompt := range map[convert.Scheme]int{convert.Q4_K_M: 9, convert.Q8_0: 1} {
		t.Run(fmt.Sprintf("%v after %d", scheme, prompt), func(t *testing.T) {
			f, err := bench.RandomQuantised(config, 3, scheme)
			if err != nil {
				t.Fatal(err)
			}
			exact, err := cpu.New(cpu.Options{})
			if err != nil {
				t.Fatal(err)
			}
			want := decoded(t, exact, f, prompt, false)
			d := openCUDA(t)
			defer d.Close()
			apart := distance(decoded(t, d, f, prompt, false), want)
			together := distance(decoded(t, d, f, prompt, true), want)
			t.Logf("relative error %.5f as one launch, %.5f operation by operation", together, apart)
			if !(together <= 1.15*apart) || apart == 0 {
				t.Errorf("relative error %.5f, operation by operation %.5f", together, apart)
			}
		})
	}
}

// TestDecodeNaN: rows of the embedding whose bits are those of memory that nobody has written yet (0xffff, a NaN) are a NaN like any
// other: the launch ends, and the logits tell.
func TestDecodeNaN(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	f, err := bench.RandomQuantised(small(t, 512, 512), 3, convert.Q4_K_M)
	if err != nil {
		t.Fatal(err)
	}
	d := openCUDA(t)
	defer d.Close()
	all := make(chan []float32)
	go func() { all <- decoded(t, d, ones{f}, 1, true) }()
	select {
	case z := <-all:
		for i, v := range z {
			if v == v {
				t.Fatalf("logit %d is %g", i, v)
			}
		}
	case <-time.After(time.Minute):
		t.Fatal("blocks still wait for each other")
	}
}

// ones is a model whose embedding is in bfloat16, all bits set. Files with such values are refused; memory may yet have them.
type ones struct{ model.Weights }

func (w ones) Source(name string) (device.Source, error) {
	s, err := w.Weights.Source(name)
	if strings.Contains(name, "embed") {
		s = set{s}
	}
	return s, err
}

// set is a matrix in bfloat16, all bits set.
type set struct{ device.Source }

func (s set) Info() tensor.Info {
	i := s.Source.Info()
	i.DType, i.Size = tensor.BF16, tensor.BF16.RowBytes(i.Rows()*i.Cols())
	return i
}

func (s set) ReadRows(dst []byte, _, _ int) error {
	for i := range dst {
		dst[i] = 0xff
	}
	return nil
}

// small is the shape of a model of two layers that run as one launch.
func small(t *testing.T, inter, vocab int) arch.Config {
	t.Helper()
	c, err := bench.Shape("0.5b")
	if err != nil {
		t.Fatal(err)
	}
	s := c.Sizes()
	s.Hidden, s.Width, s.Heads, s.KVHeads, s.HeadDim, s.Layers, s.Vocab = 256, inter, 4, 2, 64, 2, vocab
	return arch.Qwen2(s)
}

// TestPromptAfterDecode: once all layers have run as one launch, for which matrices are put into tiles, a prompt gives the bits
// that it gave before, and a few positions together, whose products no longer read blocks as they are, are close to a CPU.
func TestPromptAfterDecode(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	config := small(t, 512, 512)
	for _, scheme := range []convert.Scheme{convert.Q4_K_M, convert.Q8_0} {
		f, err := bench.RandomQuantised(config, 3, scheme)
		if err != nil {
			t.Fatal(err)
		}
		d := openCUDA(t)
		defer d.Close()
		m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
		if err != nil {
			t.Fatal(err)
		}
		s := d.NewStream()
		exact, err := cpu.New(cpu.Options{})
		if err != nil {
			t.Fatal(err)
		}
		onCPU, err := model.LoadFrozenAs(exact, f, device.StudentWeights, device.Form{Blocks: true})
		if err != nil {
			t.Fatal(err)
		}
		const most = 0.01 // twice what products in bfloat16 give
		long := prompt(t, m, s, 70, 0)
		if together := distance(prompt(t, m, s, 40, 2), prompt(t, onCPU, exact.NewStream(), 40, 2)); !(together < most) {
			t.Errorf("%v: relative error %.5f of two positions after the prompt", scheme, together)
		}
		if after := prompt(t, m, s, 70, 0); !slices.Equal(after, long) {
			t.Errorf("%v: a prompt gives other bits after positions one at a time", scheme)
		}
		if few := distance(prompt(t, m, s, 3, 0), prompt(t, onCPU, exact.NewStream(), 3, 0)); !(few < most) {
			t.Errorf("%v: relative error %.5f of a short prompt", scheme, few)
		}
	}
}

// TestFewAtOnce: the hidden states of 2 to 4 positions that a model reads together, and what follows them, have the
// bits of positions one at a time.
func TestFewAtOnce(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	config := small(t, 512, 512)
	f, err := bench.RandomQuantised(config, 3, convert.Q4_K_M)
	if err != nil {
		t.Fatal(err)
	}
	d := openCUDA(t)
	defer d.Close()
	m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
	if err != nil {
		t.Fatal(err)
	}
	s := d.NewStream()
	read := func(passes ...int) []float32 {
		const n = 16
		cache := m.NewCache(n)
		defer cache.Free(d)
		hidden := d.Alloc("hidden", device.Activations, d.Info().Activations, n, m.Config.Hidden)
		ids := d.Alloc("ids", device.Batch, tensor.I32, n, 1)
		defer d.Free(hidden, ids)
		s.UploadInts(ids, []int32{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3})
		at := 0
		for _, rows := range passes {
			m.Extend(s, hidden.RowRange(at, at+rows), cache, ids.RowRange(at, at+rows))
			at += rows
		}
		out := make([]float32, at*m.Config.Hidden)
		if err := s.Download(out, hidden.RowRange(0, at)); err != nil {
			t.Fatal(err)
		}
		return out
	}
	want := read(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
	for _, passes := range [][]int{{2, 1, 3, 4, 4}, {4, 1, 3, 2, 4}} {
		if !slices.Equal(read(passes...), want) {
			t.Errorf("%d positions together have other bits than one at a time", passes)
		}
	}
}

// prompt feeds n positions at once, then more one at a time, and returns the logits of the last one.
func prompt(t *testing.T, m *model.Model, s device.Stream, n, more int) []float32 {
	t.Helper()
	d := m.Device()
	cache := m.NewCache(n + more)
	defer cache.Free(d)
	hidden, ids := d.Alloc("hidden", device.Activations, d.Info().Activations, 1, m.Config.Hidden), d.Alloc("ids", device.Batch, tensor.I32, n, 1)
	defer d.Free(hidden, ids)
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(7 * i % m.Config.Vocab)
	}
	s.UploadInts(ids, v)
	m.Extend(s, hidden, cache, ids)
	for range more {
		m.Extend(s, hidden, cache, ids.RowRange(0, 1))
	}
	z := make([]float32, m.Config.Vocab)
	if err := m.NextLogits(s, z, hidden); err != nil {
		t.Fatal(err)
	}
	return z
}

// decoded feeds a prompt at once, then positions one at a time, and returns their logits.
func decoded(t *testing.T, d device.Device, f model.Weights, prompt int, together bool) (all []float32) {
	t.Helper()
	s := d.NewStream()
	if _, ok := s.(device.Decoder); together && !ok {
		t.Fatal("the device decodes operation by operation only")
	} else if !together {
		s = byOperation(s)
	}
	all, how := decodedOn(t, d, s, f, prompt)
	if together && how != "one launch" {
		t.Errorf("layers ran %s", how)
	}
	return all
}

// decodedOn is decoded on a stream; it returns how layers ran, too.
func decodedOn(
	t *testing.T, d device.Device, s device.Stream, f model.Weights, prompt int,
) (all []float32, how string) {
	t.Helper()
	m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
	if err != nil {
		t.Fatal(err)
	}
	const positions = 6
	cache := m.NewCache(prompt + positions)
	hidden := d.Alloc("hidden", device.Activations, d.Info().Activations, 1, m.Config.Hidden)
	ids := d.Alloc("ids", device.Batch, tensor.I32, prompt, 1)
	z := make([]float32, m.Config.Vocab)
	rng := rand.New(rand.NewPCG(1, 2))
	feed := func(n int) {
		v := make([]int32, n)
		for i := range v {
			v[i] = rng.Int32N(int32(m.Config.Vocab))
		}
		at := ids.RowRange(0, n)
		s.UploadInts(at, v)
		m.Extend(s, hidden, cache, at)
	}
	feed(prompt)
	for range positions {
		feed(1)
		if err := m.NextLogits(s, z, hidden); err != nil {
			t.Fatal(err)
		}
		all = append(all, z...)
	}
	return all, cache.Decoding()
}

// TestGenerationPlan: a generation takes the memory that its plan says, before the weights come, and none later; no module is
// loaded later, and none that only training needs. After a prompt of up to 64 tokens nothing is expanded.
func TestGenerationPlan(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	config := small(t, 1024, 12000)
	for _, scheme := range []convert.Scheme{convert.Q4_K_M, convert.Q8_0, convert.BF16} {
		f, err := bench.RandomQuantised(config, 3, scheme)
		if err != nil {
			t.Fatal(err)
		}
		for _, prompt := range []int{kernel.TileProductRows, kernel.TileProductRows + 1} {
			t.Run(fmt.Sprintf("%v after %d", scheme, prompt), func(t *testing.T) { checkGenerationPlan(t, f, prompt, scheme != convert.BF16) })
		}
	}
	for _, name := range []string{"gemma2", "olmo2"} {
		_, config, err := randmodel.Model{Name: name}.Config()
		if err != nil {
			t.Fatal(err)
		}
		f, err := bench.RandomQuantised(config, 3, convert.Q4_K_M)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) { checkGenerationPlan(t, f, kernel.TileProductRows+1, true) })
	}
}

// TestExpertsGenerationPlan is TestGenerationPlan for experts: nothing is taken or loaded later.
func TestExpertsGenerationPlan(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	f, err := bench.RandomQuantised(smallExperts(t), 3, convert.Q4_K_M)
	if err != nil {
		t.Fatal(err)
	}
	checkGenerationPlan(t, f, 40, true)
}

// smallDelta is a model in Q4_K_M whose layers are of Gated DeltaNet or of full attention with gates.
func smallDelta(t *testing.T, layers ...string) *modelfile.Files {
	t.Helper()
	c, err := arch.Parse("config.json", fmt.Sprintf(`{"model_type":"qwen3_5_text","hidden_size":256,
		"num_hidden_layers":%d,"layer_types":["%s"],"num_attention_heads":4,"num_key_value_heads":2,"head_dim":64,
		"intermediate_size":512,"vocab_size":4096,"max_position_embeddings":512,"linear_num_key_heads":16,
		"linear_num_value_heads":32,"linear_key_head_dim":16,"linear_value_head_dim":16}`,
		len(layers), strings.Join(layers, `","`)), arch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := bench.RandomQuantised(c, 3, convert.Q4_K_M)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// plainly is a stream of which no operation does what several do.
type plainly struct {
	device.Stream
	device.Arranger
}

// TestDeltaOperationsAgree: operations that do what several do for one position give the logits of these, bit by bit,
// of matrices in rows and, after a prompt of some positions, in tiles.
func TestDeltaOperationsAgree(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	f := smallDelta(t, "linear_attention", "full_attention", "linear_attention")
	d := openCUDA(t)
	defer d.Close()
	for _, prompt := range []int{1, 3} {
		before, s := d.Stats().Launches, d.NewStream()
		want, _ := decodedOn(t, d, plainly{s, s.(device.Arranger)}, f, prompt)
		between := d.Stats().Launches
		got, _ := decodedOn(t, d, d.NewStream(), f, prompt)
		apart, together := between-before, d.Stats().Launches-between
		if apart-together < 6*8 { // of six positions
			t.Errorf("%d launches, of single operations %d", together, apart)
		}
		if !slices.Equal(got, want) {
			t.Errorf("after %d positions logits differ by %g", prompt, distance(got, want))
		}
	}
}

// TestDeltaGenerationPlan is TestGenerationPlan for layers of Gated DeltaNet, whose states and latest inputs are part
// of the plan.
func TestDeltaGenerationPlan(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	f := smallDelta(t, "linear_attention", "linear_attention")
	for _, prompt := range []int{kernel.TileProductRows, kernel.TileProductRows + 1} {
		t.Run(fmt.Sprint("after ", prompt), func(t *testing.T) { checkGenerationPlan(t, f, prompt, true) })
	}
}

func checkGenerationPlan(t *testing.T, f *modelfile.Files, tokens int, inBlocks bool) {
	findDriver(t)
	var log strings.Builder
	d, err := cuda.Open(cuda.Options{KernelLog: &log})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	prompt, form := make([]int32, tokens), device.Form{Blocks: true}
	o := generate.Options{MaxTokens: 12, RepeatPenalty: 1, Vocab: f.Config.Vocab}
	r, err := generate.DryRun{
		Target: d.Target, Model: model.Describe(f), Component: device.StudentWeights, Form: form, Prompt: tokens, Options: o,
	}.Plan()
	if err != nil {
		t.Fatal(err)
	}
	if expands := inBlocks && tokens > kernel.TileProductRows; expands != (r.Expand > 0) {
		t.Errorf("%d bytes to expand matrices in", r.Expand)
	}
	for _, p := range r.Products() {
		if m := f.Config.Layers[0].FFN.MoE; m.Experts > 0 && p.N == m.Experts {
			continue // a router, which stays dense
		}
		if direct := inBlocks && p.M <= kernel.TileProductRows; p.Direct != direct || p.Arranged != (direct && p.M > 1) && p.M > 1 {
			t.Errorf("%d rows: %+v", p.M, p)
		}
	}
	if err := d.PrepareOnce(r); err != nil {
		t.Fatal(err)
	}
	d.Seal()
	before := d.Stats()
	if before.Allocated != r.Total() {
		t.Errorf("%d bytes taken, %d planned", before.Allocated, r.Total())
	}
	m, err := model.LoadFrozenAs(d, f, device.StudentWeights, form)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := generate.Generate(t.Context(), m, d.NewStream(), prompt, o, nil); err != nil {
			t.Fatal(err)
		}
	}
	if after := d.Stats(); after.Allocated != before.Allocated {
		t.Errorf("%d bytes taken after the plan's %d", after.Allocated-before.Allocated, before.Allocated)
	}
	general := f.Config.Layers[0].Post
	for module, want := range map[string]bool{kernel.GeneralModule: inBlocks && general, kernel.VariantsModule: false} {
		if got := strings.Contains(log.String(), "event=jit key="+module+" "); got != want {
			t.Errorf("%s is loaded: %v", module, got)
		}
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "late=true") && strings.Contains(line, "event=jit") {
			t.Errorf("loaded after the weights: %s", line)
		}
		if strings.Contains(line, "event=jit key=loss ") || strings.Contains(line, "event=jit key=attention_backward") {
			t.Errorf("training only: %s", line)
		}
	}
}

func openCUDA(t *testing.T) *cuda.Device {
	t.Helper()
	findDriver(t)
	d, err := cuda.Open(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// distance returns ‖x−y‖/‖y‖.
func distance(x, y []float32) float64 {
	var d, n float64
	for i := range y {
		e := float64(x[i]) - float64(y[i])
		d, n = d+e*e, n+float64(y[i])*float64(y[i])
	}
	return math.Sqrt(d / n)
}
