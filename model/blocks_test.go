package model_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/corpus"
	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/model"
	"apr/tensor"
)

// families are descriptions whose features no golden has, beyond the shapes of Qwen2: heads of two widths, a network twice as
// wide, several layers of a type with keys and values of their own before those that share them, half-rotated heads, windows
// longer than the sequence and of one position, biases, also of gates, groups of three heads.
var families = map[string]string{
	"gemma 4": `{"model_type":"gemma4_text","hidden_size":24,"num_hidden_layers":8,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,
		"global_head_dim":16,"num_global_key_value_heads":1,"attention_k_eq_v":true,"intermediate_size":10,"vocab_size":17,"sliding_window":2,
		"layer_types":["sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention"],
		"num_kv_shared_layers":4,"use_double_wide_mlp":true,"hidden_size_per_layer_input":6,"vocab_size_per_layer_input":17,"final_logit_softcapping":3.0,
		"rope_parameters":{"full_attention":{"rope_type":"proportional","rope_theta":100.0,"partial_rotary_factor":0.5},"sliding_attention":{"rope_type":"default","rope_theta":10.0}}}`,
	"gemma 4 without sharing": `{"model_type":"gemma4_text","hidden_size":28,"num_hidden_layers":3,"num_attention_heads":6,"num_key_value_heads":2,"head_dim":6,
		"global_head_dim":14,"intermediate_size":14,"vocab_size":23,"sliding_window":4,"hidden_size_per_layer_input":0,"final_logit_softcapping":2.0,
		"layer_types":["full_attention","sliding_attention","full_attention"],
		"rope_parameters":{"full_attention":{"rope_type":"proportional","rope_theta":100.0,"partial_rotary_factor":0.25},"sliding_attention":{"rope_type":"default","rope_theta":10.0}}}`,
	"gemma 2": `{"model_type":"gemma2","hidden_size":12,"num_hidden_layers":2,"num_attention_heads":3,"num_key_value_heads":1,"head_dim":4,"intermediate_size":9,"vocab_size":17,
		"query_pre_attn_scalar":0.5,"attn_logit_softcapping":2.0,"final_logit_softcapping":3.0,"sliding_window":3}`,
	"gemma 3": `{"model_type":"gemma3_text","hidden_size":12,"num_hidden_layers":4,"num_attention_heads":3,"num_key_value_heads":3,"head_dim":6,"intermediate_size":11,"vocab_size":19,
		"query_pre_attn_scalar":3,"sliding_window":1,"sliding_window_pattern":2,"rope_theta":50.0,"rope_local_base_freq":7.0,"rope_scaling":{"rope_type":"linear","factor":3.0}}`,
	"granite": `{"model_type":"granitemoehybrid","hidden_size":12,"num_hidden_layers":2,"num_attention_heads":3,"num_key_value_heads":1,"intermediate_size":4,
		"shared_intermediate_size":7,"vocab_size":17,"attention_multiplier":0.3,"embedding_multiplier":3,"residual_multiplier":0.4,"logits_scaling":2,"attention_bias":true}`,
	"olmo 3": `{"model_type":"olmo3","hidden_size":12,"num_hidden_layers":4,"num_attention_heads":6,"num_key_value_heads":3,"head_dim":4,"intermediate_size":9,"vocab_size":17,"sliding_window":2}`,
	"olmo 2": `{"model_type":"olmo2","hidden_size":20,"num_hidden_layers":2,"num_attention_heads":5,"num_key_value_heads":1,"intermediate_size":9,"vocab_size":17,"attention_bias":true}`,
	"phi 3": `{"model_type":"phi3","hidden_size":24,"num_hidden_layers":2,"num_attention_heads":3,"num_key_value_heads":1,"intermediate_size":9,"vocab_size":17,"tie_word_embeddings":true,
		"partial_rotary_factor":0.75,"max_position_embeddings":64,"original_max_position_embeddings":4,"rope_scaling":{"type":"longrope","short_factor":[1,1.5,2],"long_factor":[2,3,4]}}`,
	"ministral 3": `{"model_type":"ministral3","hidden_size":12,"num_hidden_layers":2,"num_attention_heads":3,"num_key_value_heads":1,"head_dim":4,"intermediate_size":9,"vocab_size":17,
		"sliding_window":3,"rope_parameters":{"rope_type":"yarn","factor":4,"original_max_position_embeddings":2,"llama_4_scaling_beta":0.3,"mscale":1,"mscale_all_dim":0.5}}`,
	"mistral": `{"model_type":"mistral","hidden_size":18,"num_hidden_layers":2,"num_attention_heads":6,"num_key_value_heads":2,"head_dim":10,"intermediate_size":25,"vocab_size":31,"sliding_window":100}`,
	"qwen 3":  `{"model_type":"qwen3","hidden_size":12,"num_hidden_layers":3,"num_attention_heads":6,"num_key_value_heads":2,"head_dim":10,"intermediate_size":9,"vocab_size":17,"attention_bias":true}`,
	"llama": `{"model_type":"llama","hidden_size":16,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":4,"head_dim":6,"intermediate_size":13,"vocab_size":17,"attention_bias":true,
		"rope_theta":30.0,"rope_scaling":{"rope_type":"llama3","factor":4.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":16}}`,
	"qwen 3 with experts": `{"model_type":"qwen3_moe","hidden_size":12,"num_hidden_layers":3,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":6,"intermediate_size":9,"vocab_size":17,
		"num_experts":5,"num_experts_per_tok":2,"moe_intermediate_size":7,"norm_topk_prob":true,"mlp_only_layers":[1]}`,
	"qwen 3 with experts, not renormalised": `{"model_type":"qwen3_moe","hidden_size":12,"num_hidden_layers":4,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":6,"intermediate_size":9,"vocab_size":17,
		"num_experts":6,"num_experts_per_tok":6,"moe_intermediate_size":5,"decoder_sparse_step":2}`,
	"gemma 4 with experts": `{"model_type":"gemma4_text","hidden_size":12,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":6,"global_head_dim":6,"intermediate_size":9,
		"vocab_size":17,"sliding_window":3,"hidden_size_per_layer_input":0,"enable_moe_block":true,"num_experts":4,"top_k_experts":2,"moe_intermediate_size":5}`,
	"qwen 3.5": `{"model_type":"qwen3_5_text","hidden_size":12,"num_hidden_layers":2,"layer_types":["linear_attention","linear_attention"],"num_attention_heads":3,"num_key_value_heads":1,
		"head_dim":8,"intermediate_size":9,"vocab_size":17,"linear_num_key_heads":2,"linear_num_value_heads":6,"linear_key_head_dim":6,"linear_value_head_dim":16,"linear_conv_kernel_dim":3}`,
	"qwen 3.5 with attention": `{"model_type":"qwen3_5_text","hidden_size":12,"num_hidden_layers":3,"layer_types":["linear_attention","full_attention","full_attention"],"num_attention_heads":6,
		"num_key_value_heads":2,"head_dim":8,"intermediate_size":9,"vocab_size":17,"attention_bias":true,"linear_num_key_heads":1,"linear_num_value_heads":2,"linear_key_head_dim":3,
		"linear_value_head_dim":4,"linear_conv_kernel_dim":2}`,
	"gpt-oss": `{"model_type":"gpt_oss","hidden_size":12,"num_hidden_layers":3,"num_attention_heads":6,"num_key_value_heads":2,"head_dim":4,"intermediate_size":5,"vocab_size":17,
		"num_local_experts":5,"num_experts_per_tok":3,"sliding_window":3,"rope_scaling":{"rope_type":"yarn","factor":4,"original_max_position_embeddings":8,"truncate":false}}`,
	"smollm 3": `{"model_type":"smollm3","hidden_size":16,"num_hidden_layers":5,"num_attention_heads":4,"num_key_value_heads":1,"intermediate_size":13,"vocab_size":17,"no_rope_layers":[0,1,1,0,1]}`,
}

// randomFamily returns a model of a description with random parameters as files have them: norms around 1−offset, factors
// of layers around 1, others normal.
func randomFamily(t *testing.T, name string, rows, seq int) *fixture {
	t.Helper()
	c, err := arch.Parse("config.json", families[name], arch.Options{})
	must(t, err)
	return fixtureOf(c, rand.New(rand.NewPCG(31, uint64(len(name)))), rows, seq)
}

// fixtureOf returns a model of description c with random parameters, and rows of seq random ids.
func fixtureOf(c arch.Config, rng *rand.Rand, rows, seq int) *fixture {
	f := &fixture{config: c, values: map[string][]float32{}, rows: rows}
	for _, s := range arch.Slots(c) {
		v := make([]float32, s.Elements())
		for i := range v {
			v[i] = float32(.2 * rng.NormFloat64())
			if s.Init == arch.Ones || s.Init == arch.Identity {
				v[i] = 1 + v[i]/2
			}
			if strings.HasSuffix(s.Name, "q_norm.weight") { // unscaled scores would choose single keys: steep
				v[i] *= .3
			}
			if s.Init == arch.Identity {
				v[i] -= float32(c.NormOffset)
			}
		}
		f.values[s.Name] = v
	}
	for range rows * seq {
		f.ids = append(f.ids, rng.Int32N(int32(c.Vocab)))
	}
	return f
}

// net returns the model in float64.
func (f *fixture) net() *ref.Net {
	n := &ref.Net{Arch: f.config, Params: map[string]ref.Mat{}}
	for _, s := range arch.Slots(f.config) {
		rows := 1
		if len(s.Shape) > 1 {
			rows = len(f.values[s.Name]) / s.Shape[len(s.Shape)-1]
		}
		n.Params[s.Name] = ref.Of(rows, len(f.values[s.Name])/rows, f.values[s.Name])
	}
	return n
}

func (f *fixture) ints() (ids []int) {
	for _, id := range f.ids {
		ids = append(ids, int(id))
	}
	return ids
}

// testShape reports whether tests run for a description: those of a device go through some of them.
var testShape = func(string) bool { return true }

// eachShape runs a test for every description of families.
func eachShape(t *testing.T, run func(t *testing.T, name string)) {
	for name := range families {
		if !testShape(name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			run(t, name)
		})
	}
}

// Logits and gradients of shapes beyond the goldens are those of float64, whatever is computed again, as often as a backward adds.
func TestBlocksAgainstFloat64(t *testing.T) {
	const logitsTol, gradientTol = 1e-5, 1e-4
	eachShape(t, func(t *testing.T, name string) {
		f := randomFamily(t, name, 2, 11)
		d := testDevice(t)
		s := d.NewStream()
		m := f.trainable(t, d, s)
		tokens := f.tokens(d, s)
		pass := f.net().Forward(f.ints(), f.rows)
		rng := rand.New(rand.NewPCG(3, 4))
		dz, raw := f.randomGrad(rng, pass)
		want := pass.Backward(dz)
		first := map[string][]float32{}
		for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
			m.ResetTraining(s)
			for range 2 {
				v := m.Forward(s, tokens, r)
				near.CheckRel(t, fmt.Sprint(r, ": logits"), f.logitsOf(t, m, s, v.Hidden), pass.Logits.V, logitsTol)
				f.backwardFrom(m, s, v, raw)
				v.ReleaseTo(s)
			}
			for _, p := range m.Parts() {
				got := download(t, s, p.Of(p.Param.Grad))
				twice := slices.Clone(want[p.Name].V)
				for i := range twice {
					twice[i] *= 2
				}
				near.CheckL2(t, fmt.Sprint(r, ": gradient of ", p.Name), got, twice, gradientTol)
				if r == model.RecomputeNone {
					first[p.Name] = got
				} else if !equalBits(got, first[p.Name]) {
					t.Errorf("%v changes the gradient of %s", r, p.Name)
				}
			}
		}
		x := s.Temp("hidden", device.Activations, tensor.F32, len(f.ids), f.config.Hidden)
		f.frozen(t, d).Hidden(s, x, tokens)
		near.CheckRel(t, "frozen: logits", f.logitsOf(t, m, s, x), pass.Logits.V, logitsTol)
	})
}

func (f *fixture) logitsOf(t *testing.T, m *model.Model, s device.Stream, hidden device.Tensor) []float32 {
	t.Helper()
	z := s.Temp("z", device.Logits, tensor.F32, hidden.Rows, f.config.Vocab)
	defer s.Release(z)
	m.Logits(s, z, hidden)
	return download(t, s, z)
}

// backwardFrom adds all gradients, given those over the logits before their cap.
func (f *fixture) backwardFrom(m *model.Model, s device.Stream, v *model.Saved, raw []float32) {
	dz := s.Temp("dz", device.Logits, tensor.F32, v.Hidden.Rows, f.config.Vocab)
	dx := s.Temp("dx", device.Scratch, tensor.F32, v.Hidden.Rows, v.Hidden.Cols)
	defer s.Release(dx, dz)
	s.Upload(dz, raw)
	head, param := m.Head()
	s.MatMulInputGrad(dx, dz, head, false)
	s.MatMulWeightGrad(param.Grad, device.Tensor{}, dz, v.Hidden)
	m.Backward(s, v, dx)
}

// A cache in pieces of any length gives the hidden states of the whole sequence, though windowed layers dropped what no
// window reaches any more, and rotary embeddings changed on the way; also after the latest position was forgotten.
func TestBlocksInPieces(t *testing.T) {
	eachShape(t, func(t *testing.T, name string) {
		const length = 1150
		f := randomFamily(t, name, 1, length)
		d := newCPU(t)
		s := d.NewStream()
		m := f.frozen(t, d)
		tokens := f.tokens(d, s)
		cache := m.NewCache(length)
		dst := d.Alloc("dst", device.Activations, tensor.F32, 1, f.config.Hidden)
		check := func(what string) {
			t.Helper()
			n := cache.Len()
			x := s.Temp("hidden", device.Activations, tensor.F32, n, f.config.Hidden)
			defer s.Release(x)
			m.Hidden(s, x, model.Tokens{IDs: tokens.IDs.RowRange(0, n), Rows: 1, SeqLen: n})
			near.CheckRel(t, fmt.Sprint(what, " to ", n), download(t, s, dst), download(t, s, x.RowRange(n-1, n)), 2e-5)
		}
		extend := func(n int) {
			at := cache.Len()
			m.Extend(s, dst, cache, tokens.IDs.RowRange(at, at+n))
		}
		for _, pieces := range [][]int{{3, 1, 1, 600, 1, 40, 1, 1, 500, 1, 1}, {1149, 1}} {
			cache.Reset()
			for _, n := range pieces {
				extend(n)
				check(fmt.Sprint("a piece of ", n))
				if f.config.Layers[0].Linear() { // whose state goes back to where the call began
					cache.Forget(n)
					extend(n)
				} else {
					cache.Forget(1)
					extend(1)
				}
				check("again")
			}
		}
		if cache.Len() != length {
			t.Errorf("%d positions, want %d", cache.Len(), length)
		}
	})
}

// A packed row of documents that are kept apart gives of each document what the document alone gives, and gradients are
// those of float64, which are the sums over the documents alone.
func TestDocumentsApart(t *testing.T) {
	eachShape(t, func(t *testing.T, name string) {
		const seq = 23
		f := randomFamily(t, name, 2, seq)
		lengths := [][]int{{9, 14}, {1, 4, 18}}
		if model.Separable(f.config, seq) != nil {
			return // see TestSeparable
		}
		d := testDevice(t)
		s := d.NewStream()
		m := f.trainable(t, d, s)
		b := corpus.Batch{Rows: 2, SeqLen: seq, Tokens: f.ids, Targets: f.ids, Mask: slices.Repeat([]uint8{1}, len(f.ids))}
		var starts []int
		for _, row := range lengths {
			at := 0
			for _, n := range row {
				starts = append(starts, slices.Repeat([]int{at}, n)...)
				at += n
			}
		}
		for _, at := range starts {
			b.Starts = append(b.Starts, int32(at))
		}
		batch := model.NewBatch(d, 2, seq)
		batch.SeparateDocuments(d)
		defer batch.Free(d)
		batch.Load(s, b, 1)
		v := m.Forward(s, batch.Tokens, model.RecomputeBlocks)
		got := f.logitsOf(t, m, s, v.Hidden)
		net := f.net()
		pass := net.ForwardDocuments(f.ints(), 2, starts)
		near.CheckRel(t, "logits", got, pass.Logits.V, 1e-5)
		dz, raw := f.randomGrad(rand.New(rand.NewPCG(8, 9)), pass)
		f.backwardFrom(m, s, v, raw)
		v.ReleaseTo(s)
		want := pass.Backward(dz)
		for _, p := range m.Parts() {
			near.CheckL2(t, "gradient of "+p.Name, download(t, s, p.Of(p.Param.Grad)), want[p.Name].V, 1e-4)
		}
		frozen := f.frozen(t, d)
		for i, tokens := range []model.Tokens{batch.Micro[0].Tokens, batch.Tokens.Slice(1, 2)} {
			x := s.Temp("hidden", device.Activations, tensor.F32, seq, f.config.Hidden)
			frozen.Hidden(s, x, tokens)
			row := f.logitsOf(t, frozen, s, x)
			s.Release(x)
			at := 0
			for _, n := range lengths[i] {
				alone := net.Forward(f.ints()[i*seq+at:i*seq+at+n], 1).Logits.V
				near.CheckRel(t, fmt.Sprint("document at ", at, " of row ", i), row[at*f.config.Vocab:(at+n)*f.config.Vocab], alone, 1e-5)
				at += n
			}
		}
	})
}

// Where frequencies depend on the length of the row, documents cannot be kept apart.
func TestSeparable(t *testing.T) {
	c := randomFamily(t, "phi 3", 1, 1).config
	if err := model.Separable(c, 4); err != nil {
		t.Error(err)
	}
	if err := model.Separable(c, 5); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("%v", err)
	}
}

// Of a layer with a window no more is held than the window and some room.
func TestCacheHoldsTheWindow(t *testing.T) {
	d := newCPU(t)
	m := randomFamily(t, "ministral 3", 1, 1).frozen(t, d)
	bytes := func(capacity int) int64 {
		before, _ := d.Memory()
		c := m.NewCache(capacity)
		defer c.Free(d)
		now, _ := d.Memory()
		return now[device.KVCache] - before[device.KVCache]
	}
	if all, row := bytes(1<<20), bytes(1); all > row*520 {
		t.Errorf("%d bytes for windows of 3 positions, %d for one position", all, row)
	}
	if left, _ := d.Memory(); left[device.KVCache] != 0 {
		t.Errorf("%d bytes are not given back", left[device.KVCache])
	}
}

// What was dropped cannot be remembered.
func TestForgetTooMuchPanics(t *testing.T) {
	d := newCPU(t)
	s := d.NewStream()
	f := randomFamily(t, "ministral 3", 1, 600)
	m := f.frozen(t, d)
	c := m.NewCache(600)
	dst := d.Alloc("dst", device.Activations, tensor.F32, 1, f.config.Hidden)
	m.Extend(s, dst, c, f.tokens(d, s).IDs)
	defer func() {
		if recover() == nil {
			t.Error("500 positions of a window of 3 were forgotten")
		}
	}()
	c.Forget(500)
}

// A state can forget the positions of the last call, and no others.
func TestForgetOfAStatePanics(t *testing.T) {
	d := newCPU(t)
	s := d.NewStream()
	f := randomFamily(t, "qwen 3.5", 1, 8)
	m := f.frozen(t, d)
	dst := d.Alloc("dst", device.Activations, tensor.F32, 1, f.config.Hidden)
	ids := f.tokens(d, s).IDs
	for what, forget := range map[string]func(*model.Cache){
		"a part of a call":    func(c *model.Cache) { c.Forget(1) },
		"more than a call":    func(c *model.Cache) { c.Forget(4) },
		"two calls in turn":   func(c *model.Cache) { c.Forget(3); c.Forget(5) },
		"a call that is gone": func(c *model.Cache) { c.Forget(3); c.Forget(3) },
	} {
		c := m.NewCache(8)
		m.Extend(s, dst, c, ids.RowRange(0, 5))
		m.Extend(s, dst, c, ids.RowRange(5, 8))
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was forgotten", what)
				}
			}()
			forget(c)
		}()
		c.Free(d)
	}
}

// A norm is held as what it multiplies by, and goes back to a file as it was; what is not trained goes there too.
func TestStoredIsWhatWasLoaded(t *testing.T) {
	for _, name := range []string{"gemma 2", "gemma 4", "olmo 3"} {
		f := randomFamily(t, name, 1, 1)
		d := newCPU(t)
		s := d.NewStream()
		m := f.trainable(t, d, s)
		stored, err := m.Stored(s)
		must(t, err)
		sources := map[string]tensor.Source{}
		for _, src := range m.Sources(s, tensor.F32) {
			sources[src.Name] = src
		}
		for _, slot := range arch.Slots(f.config) {
			near.Check(t, name+": "+slot.Name, stored[slot.Name], f.values[slot.Name], 1.2e-7*(1+f.config.NormOffset))
			var b sliceWriter
			must(t, sources[slot.Name].Payload(&b))
			got := make([]float32, len(b)/4)
			tensor.Widen(got, b, tensor.F32)
			if !equalBits(got, stored[slot.Name]) {
				t.Errorf("%s: %s is written otherwise", name, slot.Name)
			}
		}
		if len(stored) != len(f.values) || len(sources) != len(f.values) {
			t.Errorf("%s: %d tensors stored, %d written, %d loaded", name, len(stored), len(sources), len(f.values))
		}
		m.Init(s, 1)
		fresh, err := m.Stored(s)
		must(t, err)
		for _, slot := range arch.Slots(f.config) {
			if slot.Init == arch.Identity && float64(fresh[slot.Name][0]) != 1-f.config.NormOffset {
				t.Errorf("%s: a new %s is %v", name, slot.Name, fresh[slot.Name][0])
			}
		}
	}
}

type sliceWriter []byte

func (w *sliceWriter) Write(p []byte) (int, error) {
	*w = append(*w, p...)
	return len(p), nil
}

// What the arithmetic lacks is refused by its name.
func TestComputed(t *testing.T) {
	for what, text := range map[string]string{
		"per-layer embeddings of a part of the vocabulary": `{"model_type":"gemma4_text","hidden_size":12,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":2,"head_dim":4,
			"intermediate_size":9,"vocab_size":17,"hidden_size_per_layer_input":3,"vocab_size_per_layer_input":16}`,
		"heads of more than 512 values": `{"model_type":"llama","hidden_size":12,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":2,"head_dim":514,"intermediate_size":9,"vocab_size":17}`,
	} {
		contracttest.Cases(t, 1)
		c, err := arch.Parse("config.json", text, arch.Options{})
		must(t, err)
		if err := model.Computed(c); fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %s", err, what)
		}
	}
}
