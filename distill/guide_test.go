package distill

import (
	"context"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/model"
	"apr/modelfile"
	"apr/optim"
	"apr/plan"
	runlog "apr/run/log"
	"apr/teacher"
)

// guided are runs with more than one teacher, or more than logits: models of different families over one vocabulary.
type guided struct {
	name              string
	student           string
	teachers          []string
	ensemble          Ensemble
	guide             Guide
	recompute         model.Recompute
	temperature, keep float64
}

var guidedRuns = []guided{
	{name: "mixture", student: "qwen3", teachers: []string{"llama", "gemma2", "qwen3_moe"}, ensemble: Ensemble{Weights: []float64{.5, .3, .2}}, temperature: 2, keep: .7},
	{name: "mixture, every target", student: "llama", teachers: []string{"olmo2", "gemma3_text"}, temperature: 1, keep: 1},
	{name: "sum of logits", student: "qwen3", teachers: []string{"llama", "gemma2"}, ensemble: Ensemble{Logits: true, Weights: []float64{.25, .75}}, temperature: 2, keep: .7},
	{name: "routes", student: "qwen3", teachers: []string{"llama", "gemma2", "olmo2"}, ensemble: Ensemble{Routes: []Route{{"b", "gemma2"}, {"c", "olmo2"}}, Default: true}, temperature: 1, keep: .6},
	{name: "hidden states", student: "qwen3", teachers: []string{"llama"}, guide: Guide{Weight: .5, Map: []string{"auto"}}, temperature: 1, keep: .7},
	{name: "hidden states, every target", student: "gemma2", teachers: []string{"olmo2"}, guide: Guide{Weight: 2, Map: []string{"0:2,2:0"}}, temperature: 1, keep: 1},
	{name: "hidden states, scaled outputs and per-layer embeddings", student: "gemma4_text", teachers: []string{"granite"}, guide: Guide{Weight: 1, Map: []string{"auto"}}, temperature: 1, keep: .7},
	{name: "hidden states of a teacher with scaled outputs", student: "llama", teachers: []string{"gemma4_text"}, guide: Guide{Weight: 1, Map: []string{"0:0,0:1,2:2"}}, recompute: model.RecomputeNorms, temperature: 1, keep: .7},
	{name: "attention maps", student: "qwen3", teachers: []string{"llama"}, guide: Guide{Attention: 3, Map: []string{"auto"}}, temperature: 1, keep: .7},
	{name: "attention maps and hidden states, every target", student: "gemma2", teachers: []string{"olmo2"}, guide: Guide{Weight: 1, Attention: 5, Map: []string{"1:0,1:2"}}, recompute: model.RecomputeNorms, temperature: 1, keep: 1},
	{name: "attention maps with sinks", student: "gpt_oss", teachers: []string{"gpt_oss"}, guide: Guide{Attention: 4, Map: []string{"0:2,1:0,2:0"}}, recompute: model.RecomputeBlocks, temperature: 1, keep: .7},
	{name: "attention maps within windows", student: "gemma4_text", teachers: []string{"gemma4_text"}, guide: Guide{Attention: 4, Map: []string{"0:1,1:0,2:1"}}, temperature: 1, keep: .7},
	{name: "attention maps one after another", student: "llama", teachers: []string{"qwen3"}, guide: Guide{Attention: 4, Map: []string{"bottom-up"}}, temperature: 1, keep: 1},
	{name: "attention maps of gated attention", student: "qwen3_5_text", teachers: []string{"qwen3"}, guide: Guide{Attention: 4, Map: []string{"2:1"}}, recompute: model.RecomputeBlocks, temperature: 1, keep: .7},
	{name: "hidden states, blocks computed again", student: "qwen3_5_text", teachers: []string{"olmo3"}, guide: Guide{Weight: 1, Map: []string{"bottom-up"}}, recompute: model.RecomputeBlocks, temperature: 1, keep: .7},
}

func family(name string) string { return filepath.Join("../testdata/golden/families", name) }

// config is the run's configuration.
func (g guided) config(t *testing.T) Config {
	c := tinyConfig(t)
	c.Student, c.StudentConfig, c.AllowSameModel = family(g.student), "", true
	c.Data, c.Dataset = nil, "ids" // the goldens have no tokenizer
	c.SeqLen, c.GradAccum, c.Loss = 16, 2, device.LossSpec{Alpha: .6, Temperature: g.temperature}
	c.Guide, c.Ensemble = g.guide, g.ensemble
	c.Teacher = family(g.teachers[0])
	for _, name := range g.teachers[1:] {
		if g.ensemble.routed() {
			break
		}
		c.Ensemble.More = append(c.Ensemble.More, family(name))
	}
	c.Ensemble.Routes = slices.Clone(g.ensemble.Routes)
	for i := range c.Ensemble.Routes {
		c.Ensemble.Routes[i].Model = family(c.Ensemble.Routes[i].Model)
	}
	return c
}

func (g guided) open(t *testing.T, c Config) *inputs {
	t.Helper()
	in := &inputs{records: map[string]runlog.Input{}}
	if err := in.openModels(c, &quiet{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.close() })
	return in
}

// TestDryStepOfGuides: a dry step says to the byte what the CPU holds with several teachers and with hidden states.
func TestDryStepOfGuides(t *testing.T) {
	for _, g := range guidedRuns {
		t.Run(g.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			c := g.config(t)
			in := g.open(t, c)
			d, err := cpu.New(cpu.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			s := plan.Setting{BatchSize: 3, MicroRows: 2, ChunkRows: 20, Recompute: g.recompute}
			rec, err := in.dryRun(c, d.Target).Record(s)
			if err != nil {
				t.Fatal(err)
			}
			if want := peakOfStep(t, d, in, c, s); !maps.Equal(rec.Peak, want) {
				t.Errorf("planned %v\nheld    %v", rec.Peak, want)
			}
		})
	}
}

// exactGuided is a step in float64: its loss and all gradients, those of P too.
func exactGuided(t *testing.T, c Config, in *inputs, b corpus.Batch, pairs []Compared, maps []Pair, each float64) (loss float64, grads map[string]ref.Mat) {
	t.Helper()
	read := func(f *modelfile.Files) *ref.Net {
		n := &ref.Net{Arch: f.Config, Params: map[string]ref.Mat{}}
		for _, s := range arch.Slots(f.Config) {
			v, err := f.ReadFloat32(s.Name)
			if err != nil {
				t.Fatal(err)
			}
			rows := len(v) / s.Shape[len(s.Shape)-1]
			n.Params[s.Name] = ref.Of(rows, len(v)/rows, v)
		}
		return n
	}
	student := read(in.student)
	var teachers []*ref.Net
	for _, f := range in.teachers() {
		teachers = append(teachers, read(f))
	}
	n := float64(b.TargetCount())
	for r := range b.Rows {
		row := b.Slice(r, r+1)
		ids, kept, targets := make([]int, row.SeqLen), []int(nil), []int(nil)
		for i, id := range row.Tokens {
			if ids[i] = int(id); row.Mask[i] != 0 {
				kept, targets = append(kept, i), append(targets, int(row.Targets[i]))
			}
		}
		trace := student.Forward(ids, 1)
		weights, mixed := c.Ensemble.Shares(len(teachers)), ref.Mat{}
		var first *ref.Pass
		for i, net := range teachers {
			if c.Ensemble.routed() && row.Routes[0] != i {
				continue
			}
			big := net.Forward(ids, 1)
			if first == nil {
				first = big
			}
			logits := ref.Embed(big.Logits.ColRange(0, in.vocab), kept)
			switch {
			case c.Ensemble.routed() || len(teachers) == 1:
				mixed = logits
			case c.Ensemble.Logits && i == 0:
				mixed = ref.Scale(logits, weights[i])
			case c.Ensemble.Logits:
				mixed.Add(ref.Scale(logits, weights[i]))
			default:
				mixed = ref.Mix(mixed, logits, weights[i], c.Loss.Temperature)
			}
		}
		sums, dz := ref.Loss(ref.Embed(trace.Logits.ColRange(0, in.vocab), kept), mixed, targets, 1/n, c.Loss)
		ce, d := c.Loss.Weights()
		loss += (ce*sums.CE + d*sums.D) / n
		wide := ref.New(row.SeqLen, student.Arch.Vocab)
		for i, at := range kept {
			copy(wide.Row(at), dz.Row(i))
		}
		blocks, more := map[int]ref.Mat{}, map[string]ref.Mat{}
		for _, p := range pairs {
			sum, dx, dp := ref.HiddenError(ref.Embed(trace.Blocks[p.Student], kept), ref.Embed(first.Blocks[p.Teacher], kept), ref.Of(p.Rows, p.Cols, p.P), c.Guide.Weight, 1/n, HiddenEps)
			loss += c.Guide.Weight * sum / n
			more[p.Name] = dp
			if _, ok := blocks[p.Student]; !ok {
				blocks[p.Student] = ref.New(row.SeqLen, dx.Cols)
			}
			ref.EmbedBackward(blocks[p.Student], kept, dx)
		}
		all := trace.BackwardFrom(wide, blocks, exactMaps(trace, first, maps, each, kept, 1/n, &loss))
		for name, g := range more {
			all[name] = g
		}
		if grads == nil {
			grads = all
			continue
		}
		for name, g := range all {
			grads[name].Add(g)
		}
	}
	return loss, grads
}

// exactMaps adds the divergence of attention maps to the loss, and returns its gradients.
func exactMaps(own, big *ref.Pass, pairs []Pair, each float64, kept []int, invN float64, loss *float64) map[int]ref.MapGrads {
	all := map[int]ref.MapGrads{}
	counts := make([]bool, own.Logits.Rows)
	for _, at := range kept {
		counts[at] = true
	}
	for _, p := range pairs {
		sum, dq, dk, dsinks := ref.AttentionDivergence(own.Map(p.Student), big.Map(p.Teacher), counts, each, invN)
		*loss += each * sum * invN
		if before, ok := all[p.Student]; ok {
			dq.Add(before.Q)
			dk.Add(before.K)
			dsinks.Add(before.Sinks)
		}
		all[p.Student] = ref.MapGrads{Q: dq, K: dk, Sinks: dsinks}
	}
	return all
}

// guidedTrainer is a run's trainer on a device.
func guidedTrainer(t *testing.T, d device.Device, c Config, in *inputs, g guided, rows int) *Trainer {
	t.Helper()
	s := d.NewStream()
	var teachers []*model.Model
	for _, f := range in.teachers() {
		m, err := model.LoadFrozen(d, f, device.TeacherWeights)
		if err != nil {
			t.Fatal(err)
		}
		teachers = append(teachers, m)
	}
	student := model.NewTrainable(d, in.studentConfig)
	if err := student.LoadWeights(s, in.student); err != nil {
		t.Fatal(err)
	}
	tr := NewTrainer(student, s, rows, c.SeqLen)
	tr.MicroRows, tr.Loss.ChunkRows, tr.Recompute = 2, 20, g.recompute
	tr.Loss.Spec, tr.Loss.Vocab = c.Loss, in.vocab
	tr.Teacher = c.Ensemble.of(teachers, d.Info(), c.SeqLen, c.Loss.Temperature)
	if c.Ensemble.routed() {
		tr.RouteRows()
	}
	var err error
	if tr.Hidden, err = c.Guide.make(d, in.studentConfig, in.teacher.Config, tr.Teacher, 3); err != nil {
		t.Fatal(err)
	}
	if tr.Hidden != nil {
		tr.Hidden.Init(s, 5)
	}
	if tr.Maps, err = c.Guide.makeMaps(in.studentConfig, in.teacher.Config, tr.Teacher, 3); err != nil {
		t.Fatal(err)
	}
	tr.Optimizer = optim.Optimizer{Schedule: optim.Schedule{Kind: optim.Constant, Peak: 0, Steps: 8}, AdamW: device.AdamW{Eps: 1e-8}}
	return tr
}

// TestGuidedStepAgainstFloat64: the loss that is judged and every gradient, those of the projections too, are those of
// float64, for models of several families, with masked targets and what is not kept computed again.
func TestGuidedStepAgainstFloat64(t *testing.T) { guidedSteps(t, 1e-5, 1e-4) }

func guidedSteps(t *testing.T, lossTol, gradTol float64) {
	for _, g := range guidedRuns {
		t.Run(g.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			c := g.config(t)
			in := g.open(t, c)
			b := randomBatch(3, c.SeqLen, in.vocab, g.keep)
			if c.Ensemble.routed() {
				b.Routes = []int{0, 1, 2}
			}
			tr := guidedTrainer(t, testDevice(t), c, in, g, b.Rows)
			pairs, err := tr.Compared()
			if err != nil {
				t.Fatal(err)
			}
			attended, each := tr.Maps.Compared(0)
			if c.Guide.bottomUp() && len(pairs)+len(attended) != 1 {
				t.Errorf("%d pairs in the first step of 3", len(pairs)+len(attended))
			}
			want, grads := exactGuided(t, c, in, b, pairs, attended, each)
			rec, err := tr.Apply(context.Background(), b)
			if err != nil {
				t.Fatal(err)
			}
			near.CheckRel(t, "loss", []float64{rec.Loss}, []float64{want}, lossTol)
			if shares := tr.Share(rec); c.Guide.any() {
				near.CheckRel(t, "shares", []float64{shares["ce"] + shares["kl"] + shares["hidden"] + shares["attention"]}, []float64{1}, 1e-9)
			}
			for name, got := range get(t, tr, grad) {
				near.CheckL2(t, "gradient of "+name, got, grads[name].V, gradTol)
			}
			for _, p := range pairs {
				got := make([]float32, p.Rows*p.Cols)
				param := tr.Hidden.params[slices.IndexFunc(tr.Hidden.params, func(x *device.Param) bool { return x.Name == p.Name })]
				if err := tr.stream.Download(got, param.Grad); err != nil {
					t.Fatal(err)
				}
				near.CheckL2(t, "gradient of "+p.Name, got, grads[p.Name].V, gradTol)
			}
		})
	}
}

// TestLayerMaps: which layers are compared, and what is refused.
func TestLayerMaps(t *testing.T) {
	for _, c := range []struct {
		text   string
		ls, lt int
		want   string // pairs, or what the error says
	}{
		{"auto", 2, 6, "[{0 2} {1 5}]"}, {"auto", 4, 4, "[{0 0} {1 1} {2 2} {3 3}]"}, {"auto", 3, 4, "[{0 1} {1 2} {2 3}]"},
		{"auto", 4, 2, "[{0 0} {1 0} {2 1} {3 1}]"}, {"bottom-up", 2, 6, "[{0 2} {1 5}]"}, {"1:0,0:5", 2, 6, "[{0 5} {1 0}]"},
		{"2:0", 2, 6, "the student has layers 0 to 1"}, {"0:6", 2, 6, "the teacher has layers 0 to 5"}, {"-1:0", 2, 6, "the student has layers 0 to 1"},
		{"0", 2, 6, "no pair S:T"}, {"0:x", 2, 6, "no pair S:T"}, {"", 2, 6, "no pair S:T"}, {"0:0,0:0", 2, 6, "twice"}, {"0:0,auto", 2, 6, "no pair S:T"},
	} {
		contracttest.Cases(t, 1)
		pairs, err := Guide{Map: []string{c.text}}.pairs(c.ls, c.lt)
		got := fmt.Sprint(pairs)
		if err != nil {
			got = err.Error()
			if fault.KindOf(err) != fault.Usage {
				t.Errorf("%s: kind %v", c.text, fault.KindOf(err))
			}
		}
		if got != c.want && !(err != nil && strings.Contains(got, c.want)) {
			t.Errorf("%q of %d and %d layers: %s, want %s", c.text, c.ls, c.lt, got, c.want)
		}
	}
}

// TestBottomUp: of n pairs over K steps the i-th comes in at step ⌊i·K/n⌋ and stays.
func TestBottomUp(t *testing.T) {
	h := &Hidden{Pairs: make([]Pair, 3), Steps: 8}
	var got []int
	for k := range 8 {
		h.begin(k)
		got = append(got, h.active)
	}
	if want := []int{1, 1, 2, 2, 2, 3, 3, 3}; !slices.Equal(got, want) {
		t.Errorf("pairs by step %v, want %v", got, want)
	}
}

// TestWeightsOfTeachers: weights that do not sum to one are refused with their sum, and so is NaN.
func TestWeightsOfTeachers(t *testing.T) {
	for _, c := range []struct {
		weights []float64
		want    string
	}{
		{[]float64{.7, .4}, "sum to 1.1"}, {[]float64{.5, .4}, "sum to 0.9"}, {[]float64{1}, "1 weights for 2 teachers"},
		{[]float64{math.NaN(), 1}, "not between 0 and 1"}, {[]float64{1.5, -.5}, "not between 0 and 1"}, {[]float64{1, 0}, "not between 0 and 1"}, {[]float64{.7, .3}, ""},
	} {
		contracttest.Cases(t, 1)
		cfg := guidedRuns[1].config(t)
		cfg.Ensemble.Weights = c.weights
		err := cfg.Validate()
		if c.want == "" && err != nil || c.want != "" && !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%v: %v, want %q", c.weights, err, c.want)
		}
	}
}

// TestPlantedGuides: errors that are easily made move a gradient or the loss out of what TestGuidedStepAgainstFloat64
// allows.
func TestPlantedGuides(t *testing.T) {
	hidden, mixture, routes := guidedRuns[4], guidedRuns[0], guidedRuns[3]
	attended := guidedRuns[slices.IndexFunc(guidedRuns, func(g guided) bool { return g.name == "attention maps" })]
	for _, c := range []struct {
		name  string
		run   guided
		plant func(tr *Trainer, b *corpus.Batch)
	}{
		{"nothing", hidden, func(*Trainer, *corpus.Batch) {}},
		{"a teacher's layer beside the right one", hidden, func(tr *Trainer, _ *corpus.Batch) { tr.Hidden.Pairs[0].Teacher, tr.Hidden.Pairs[1].Teacher = 1, 0 }},
		{"a student's layer beside the right one", hidden, func(tr *Trainer, _ *corpus.Batch) { tr.Hidden.Pairs[0].Student = 1 }},
		{"a weight that is lost", hidden, func(tr *Trainer, _ *corpus.Batch) {
			tr.Hidden = &Hidden{Pairs: tr.Hidden.Pairs, params: tr.Hidden.params}
		}},
		{"the teacher's rows of another batch", hidden, func(tr *Trainer, _ *corpus.Batch) { tr.Teacher = shiftedStreams{tr.Teacher.(*teacher.Resident)} }},
		{"weights that do not sum to one", mixture, func(tr *Trainer, _ *corpus.Batch) { tr.Teacher.(*teacher.Ensemble).Weights = []float64{.5, .3, .3} }},
		{"the mixture at another temperature", mixture, func(tr *Trainer, _ *corpus.Batch) { tr.Teacher.(*teacher.Ensemble).Temperature = 1 }},
		{"attention maps of other sequences", attended, func(tr *Trainer, _ *corpus.Batch) { tr.Teacher = shiftedMaps{tr.Teacher.(*teacher.Resident)} }},
		{"a sum over pairs of maps", attended, func(tr *Trainer, _ *corpus.Batch) { tr.Maps.Weight *= float64(len(tr.Maps.Pairs)) }},
		{"a pair of maps that is left out", attended, func(tr *Trainer, _ *corpus.Batch) { tr.Maps.Steps = 100 }},
		{"maps of the wrong layers", attended, func(tr *Trainer, _ *corpus.Batch) { tr.Maps.Pairs[0].Teacher = 1 }},
		{"a route to another teacher", routes, func(_ *Trainer, b *corpus.Batch) { b.Routes = []int{0, 0, 2} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			cfg := c.run.config(t)
			in := c.run.open(t, cfg)
			b := randomBatch(3, cfg.SeqLen, in.vocab, c.run.keep)
			if cfg.Ensemble.routed() {
				b.Routes = []int{0, 1, 2}
			}
			tr := guidedTrainer(t, newCPU(t), cfg, in, c.run, b.Rows)
			pairs, err := tr.Compared()
			if err != nil {
				t.Fatal(err)
			}
			attended, each := tr.Maps.Compared(0)
			loss, grads := exactGuided(t, cfg, in, b, pairs, attended, each)
			c.plant(tr, &b)
			rec, err := tr.Apply(context.Background(), b)
			if err != nil {
				t.Fatal(err)
			}
			far := math.Abs(rec.Loss-loss) / loss / 1e-5
			for name, got := range get(t, tr, grad) {
				var d, n float64
				for i, w := range grads[name].V {
					d, n = d+(float64(got[i])-w)*(float64(got[i])-w), n+w*w
				}
				far = max(far, math.Sqrt(d/n)/1e-4)
			}
			if noticed := far > 1; noticed != (c.name != "nothing") {
				t.Errorf("%g of what is allowed", far)
			}
		})
	}
}

// shiftedStreams gives the rows of streams in another order.
type shiftedStreams struct{ *teacher.Resident }

func (s shiftedStreams) Stream(layer, lo, hi int) device.Tensor {
	if lo == 0 {
		return s.Resident.Stream(layer, 1, hi+1)
	}
	return s.Resident.Stream(layer, lo-1, hi-1)
}

// shiftedMaps gives the maps of sequences to others.
type shiftedMaps struct{ *teacher.Resident }

func (s shiftedMaps) Map(layer int, t model.Tokens) device.AttnMap {
	first := t.At == 0
	if t.At -= t.SeqLen; first {
		t.At += 2 * t.SeqLen
	}
	return s.Resident.Map(layer, t)
}

// TestTeachersOfOtherTokenizers: a teacher that means something else by an id is refused, and both files are named.
func TestTeachersOfOtherTokenizers(t *testing.T) {
	c := tinyConfig(t)
	c.Ensemble.More = []string{narrowTeacher(t, 4100)}
	in := &inputs{records: map[string]runlog.Input{}}
	defer in.close()
	err := in.openModels(c, &quiet{})
	if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.Ensemble.More[0]) || !strings.Contains(err.Error(), "its tokenizer differs from that of "+c.Teacher) {
		t.Errorf("error %v (kind %v)", err, fault.KindOf(err))
	}
}

// TestMappedPairs: which layers have attention maps that can be compared, and which of a probe's few layers stand in
// for others.
func TestMappedPairs(t *testing.T) {
	open := func(name string) arch.Config {
		f, err := modelfile.Open(family(name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return f.Config
	}
	for _, c := range []struct {
		student, teacher, pair string
		seqLen                 int
		want                   string // what the error says; empty: none
	}{
		{"qwen3", "llama", "auto", 64, ""}, {"gemma2", "gemma2", "0:2,1:0,1:1", 64, ""}, {"llama", "gemma2", "auto", 64, ""}, {"gpt_oss", "llama", "1:2", 64, ""},
		{"gemma2", "llama", "0:1", 64, "pair 0:1: the student's window of 8 positions is narrower than the teacher's, which sees all positions"},
		{"gemma2", "llama", "0:1", 8, ""}, {"gemma2", "gemma2", "2:1", 9, "pair 2:1: the student's window of 8 positions"},
		{"qwen3", "gpt_oss", "0:1", 64, "the teacher's attention has sinks and the student's has none"},
		{"qwen3_5_text", "qwen3", "auto", 64, "pair 0:0: the student's layer 0 is a Gated DeltaNet"}, {"qwen3_5_text", "qwen3", "2:0", 64, ""},
		{"qwen3", "qwen3_5_text", "2:1", 64, "pair 2:1: the teacher's layer 1 is a Gated DeltaNet"},
	} {
		contracttest.Cases(t, 1)
		student, big := open(c.student), open(c.teacher)
		err := Guide{Attention: 1, Map: []string{c.pair}}.checkMaps(student, big, c.seqLen)
		if c.want == "" && err != nil || c.want != "" && !(fault.KindOf(err) == fault.Usage && strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s of %s and %s, %d positions: %v, want %q", c.pair, c.student, c.teacher, c.seqLen, err, c.want)
		}
	}
	gemma, hybrid := open("gemma2"), open("qwen3_5_text")
	short := gemma
	short.Layers = short.Layers[:2]
	linear := hybrid
	linear.Layers = linear.Layers[:2]
	for _, c := range []struct {
		student, whole, there arch.Config
		pairs, want           string
	}{
		{gemma, gemma, short, "0:2,1:1,2:2", "[{0 0} {1 1} {2 0}]"}, // a layer with a window stands in for one
		{open("qwen3"), hybrid, linear, "0:2,1:2", "[]"},            // of Gated DeltaNets none does
	} {
		a, err := Guide{Attention: 1, Map: []string{c.pairs}}.fewMaps(c.student, c.whole, c.there, &teacher.Resident{}, 64)
		if a == nil {
			a = &Maps{Pairs: []Pair{}}
		}
		if got := fmt.Sprint(a.Pairs); err != nil || got != c.want {
			t.Errorf("%s: %s, %v, want %s", c.pairs, got, err, c.want)
		}
	}
}
