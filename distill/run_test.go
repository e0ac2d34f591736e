package distill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/torture"
	"apr/optim"
	runlog "apr/run/log"
	"apr/tensor"
)

// quiet is an observer that stops the run after some steps, or in its last evaluation, or never.
type quiet struct {
	stopAfter int
	stop      context.CancelFunc
	steps     []runlog.Step
	messages  []string
}

func (q *quiet) Phase(string) {}
func (q *quiet) Advance(int, int) {
	if q.stopAfter == inEvaluation {
		q.stop()
	}
}
func (q *quiet) Leg(string, int, int)           {}
func (q *quiet) Evaluated(string, int, float64) {}
func (q *quiet) Detail(f string, a ...any)      { q.messages = append(q.messages, fmt.Sprintf(f, a...)) }
func (q *quiet) Message(f string, a ...any)     { q.messages = append(q.messages, fmt.Sprintf(f, a...)) }
func (q *quiet) Step(_ string, s runlog.Step) {
	q.steps = append(q.steps, s)
	if len(q.steps) == q.stopAfter {
		q.stop()
	}
}

const tinyStudent = `{"model_type":"qwen2","hidden_size":32,"intermediate_size":48,"num_hidden_layers":2,"num_attention_heads":2,
"num_key_value_heads":1,"vocab_size":4096,"max_position_embeddings":256,"rms_norm_eps":1e-6,"rope_theta":1e6,"tie_word_embeddings":true}`

// inEvaluation stops a run after the first windows of its last evaluation.
const inEvaluation = -1

// tinyConfig is a run of the real teacher and real text that takes a second.
func tinyConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	student := filepath.Join(dir, "config.json")
	if err := os.WriteFile(student, []byte(tinyStudent), 0o600); err != nil {
		t.Fatal(err)
	}
	return Config{
		Teacher: "../testdata/models/gosrc", StudentConfig: student, Data: []string{"../examples/gosrc/data/gosrc-val.jsonl.zst"},
		ChatTemplate: "auto", AssistantOnly: true, Packing: true, Shuffle: true, Output: filepath.Join(dir, "run"),
		Loss: device.LossSpec{Alpha: 0.5, Temperature: 1}, Epochs: 1, Steps: 8, BatchSize: 2, GradAccum: 1, SeqLen: 32,
		LR: 1e-2, WarmupSteps: -1, WarmupRatio: 0.1, Schedule: optim.Cosine, MinLRRatio: 0.1,
		AdamW: device.AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}, MaxGradNorm: 1, Seed: 7,
		CheckpointEvery: 3, KeepCheckpoints: 2, Build: "test",
	}
}

// brief is c on the beginnings of its documents: held-out text is scored whole, by every model.
func brief(t *testing.T, c Config) Config {
	t.Helper()
	var text strings.Builder
	_, err := corpus.Read(context.Background(), c.Data, corpus.ReadOptions{}, func(d corpus.Document) error {
		line, err := json.Marshal(map[string]string{"text": strings.ToValidUTF8(d.Text[:min(len(d.Text), 1500)], "")})
		text.Write(append(line, '\n'))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "brief.jsonl")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Data = []string{path}
	return c
}

// optionsOf are the settings of c that tests change between a run and its resumption, as a command would record them.
func optionsOf(c Config) map[string]any {
	return map[string]any{"learning_rate": c.LR, "assistant_only": c.AssistantOnly,
		"max_loss_ratio": c.MaxLossRatio, "batch_size": c.BatchSize,
		"alpha": c.Loss.Alpha, "teacher_weights": c.Ensemble.Weights}
}

// runOnce executes c and returns its outcome; stopAfter 0 lets it run to the end.
func runOnce(t *testing.T, c Config, workers, stopAfter int) (*Outcome, *quiet, error) {
	t.Helper()
	d, err := cpu.New(cpu.Options{Workers: workers})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	q := &quiet{stopAfter: stopAfter, stop: cancel}
	c.Options = optionsOf(c)
	r, err := Start(ctx, c, d, q, func(*runlog.Manifest) {})
	if err != nil {
		return nil, q, err
	}
	defer r.Close()
	out, err := r.Execute(ctx)
	return out, q, err
}

func mustRun(t *testing.T, c Config, workers int) (*Outcome, []byte) {
	t.Helper()
	out, _, err := runOnce(t, c, workers, 0)
	if err != nil {
		t.Fatal(err)
	}
	return out, studentBytes(t, c)
}

func studentBytes(t *testing.T, c Config) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.Output, "student", "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func in(t *testing.T, c Config) Config {
	c.Output = filepath.Join(t.TempDir(), "run")
	return c
}

func TestRunWritesWhatItPromises(t *testing.T) {
	c := tinyConfig(t)
	c.Control, c.EvalEvery, c.ValFraction = true, 4, 0.1
	out, _ := mustRun(t, c, 0)
	for _, name := range []string{"manifest.json", "steps.jsonl", "events.jsonl", "receipt.json", "student.apr",
		"student/config.json", "student/model.safetensors", "student/tokenizer.json", "student/tokenizer_config.json"} {
		if st, err := os.Stat(filepath.Join(c.Output, name)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !(out.FinalLoss < out.InitialLoss) {
		t.Errorf("loss rose from %g to %g", out.InitialLoss, out.FinalLoss)
	}
	var names []string
	for _, e := range out.Evaluations {
		names = append(names, e.Name)
	}
	if want := []string{"teacher", "untrained student", "distilled student", "control student"}; !slices.Equal(names, want) {
		t.Errorf("evaluated %v, want %v", names, want)
	}
	if un, dis := out.Evaluation("untrained student"), out.Evaluation("distilled student"); !(dis.NatsPerToken < un.NatsPerToken) {
		t.Errorf("held-out loss: distilled %g, untrained %g", dis.NatsPerToken, un.NatsPerToken)
	}
	// A student with small random weights knows nothing: all 4096 ids are about equally likely.
	if un, control := out.Evaluation("untrained student"), out.Evaluation("control student"); !(math.Abs(un.NatsPerToken-math.Log(4096)) < 0.02) ||
		!(control.NatsPerToken < un.NatsPerToken-0.1) {
		t.Errorf("held-out loss: untrained %g, control %g", un.NatsPerToken, control.NatsPerToken)
	}
	checkHeldOut(t, out)
	events, err := os.ReadFile(filepath.Join(c.Output, "events.jsonl"))
	if err != nil || !strings.Contains(string(events), `"name":"teacher weights"`) || !strings.Contains(string(events), `"name":"vocabulary"`) {
		t.Errorf("decisions are not recorded (%v): %s", err, events)
	}
	steps := readSteps(t, c)
	if len(steps) != 16 {
		t.Fatalf("%d steps recorded, want 8 of each leg", len(steps))
	}
	for i, s := range steps {
		if s["step"] != float64(i%8) || s["targets"] != 64.0 {
			t.Errorf("record %d: step %v with %v targets", i, s["step"], s["targets"])
		}
		if control := s["leg"] == LegControl; control != (s["kl"] == nil) {
			t.Errorf("record %d of leg %v has kl %v", i, s["leg"], s["kl"])
		}
	}
	for name, sum := range out.Outputs {
		if got, _, err := hashFile(filepath.Join(c.Output, name)); err != nil || got != sum {
			t.Errorf("%s: SHA-256 %s (%v), receipt says %s", name, got, err, sum)
		}
	}
	contracttest.Cases(t, len(out.Outputs))
}

// checkHeldOut: margins are the differences of the scores, with an error; the canaries have the scores that they must
// have.
func checkHeldOut(t *testing.T, out *Outcome) {
	t.Helper()
	dis := out.Evaluation("distilled student")
	for i, over := range []string{"untrained student", "control student"} {
		m, e := out.Margins[i], out.Evaluation(over)
		if m.Over != over || !(math.Abs(float64(m.Nats)-(e.NatsPerToken-dis.NatsPerToken)) <= 1e-12) || !(m.Error > 0) ||
			!(m.Interval[0] < m.Nats && m.Nats < m.Interval[1]) || m.Blocks < 2 {
			t.Errorf("margin %+v; scores %g and %g", m, e.NatsPerToken, dis.NatsPerToken)
		}
	}
	for _, e := range out.Evaluations {
		if !(e.Error > 0) || !(float64(e.Interval[0]) < e.NatsPerToken && e.NatsPerToken < float64(e.Interval[1])) {
			t.Errorf("%s: %g nats, error %g, interval %v", e.Name, e.NatsPerToken, e.Error, e.Interval)
		}
	}
	if len(out.Canaries) != 2 {
		t.Fatalf("canaries %+v", out.Canaries)
	}
	for i, name := range []string{"zeroed", "shuffled"} {
		c := out.Canaries[i]
		caught := float64(c.Margin.Nats) >= 5*float64(c.Margin.Error) && c.Margin.Nats > 0
		if c.Name != name || c.What == "" || c.Targets != dis.Targets || c.Caught != caught ||
			!(math.Abs(float64(c.Margin.Nats)-(float64(c.Nats)-dis.NatsPerToken)) <= 1e-12) {
			t.Errorf("canary %+v", c)
		}
	}
	if zeroed := float64(out.Canaries[0].Nats); !(math.Abs(zeroed-math.Log(4096)) <= 1e-6) {
		t.Errorf("a model of zeros scores %g nats, want ln 4096", zeroed)
	}
}

func readSteps(t *testing.T, c Config) []map[string]any {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.Output, "steps.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var steps []map[string]any
	for line := range bytes.Lines(b) {
		var s map[string]any
		if err := json.Unmarshal(line, &s); err != nil {
			t.Fatal(err)
		}
		steps = append(steps, s)
	}
	return steps
}

// Stopping after any step and resuming gives the bits of the unbroken run, and the same step records: places to stop in
// both legs.
func TestResumeIsBitExact(t *testing.T) {
	c, err := killConfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c.Control, c.Steps, c.BatchSize, c.CheckpointEvery = true, 11, 2, 3
	_, want := mustRun(t, c, 0)
	wantSteps := readSteps(t, c)
	splits, bad := torture.Trials(8, 20), 0
	for i := range splits {
		stop := 1 + i*20/splits
		if !t.Run(fmt.Sprintf("after %d", stop), func(t *testing.T) {
			contracttest.Cases(t, 1)
			c := in(t, c)
			_, _, err := runOnce(t, c, 0, stop)
			if fault.KindOf(err) != fault.Stopped {
				t.Fatalf("error %v, want one of kind stopped", err)
			}
			if _, err := os.Stat(filepath.Join(c.Output, "receipt.json")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a stopped run has a receipt: %v", err)
			}
			c.Resume = ResumeAuto
			out, got := mustRun(t, c, 0)
			if !bytes.Equal(got, want) {
				t.Error("the student differs from that of the unbroken run")
			}
			if out.ResumedFrom == "" || out.StepsCompleted != 11 || out.TokensSeen != 11*32 {
				t.Errorf("resumed from %q, %d steps, %d tokens", out.ResumedFrom, out.StepsCompleted, out.TokensSeen)
			}
			compareSteps(t, readSteps(t, c), wantSteps)
		}) {
			bad++
		}
	}
	torture.Row(t, "split points: stopped and resumed; differing bytes of the student or records", splits, bad, "–")
}

// compareSteps compares records but for times.
func compareSteps(t *testing.T, got, want []map[string]any) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i := range got {
		for _, key := range []string{"leg", "step", "lr", "loss", "ce", "kl", "grad_norm", "finite", "diverged", "targets"} {
			if got[i][key] != want[i][key] {
				t.Errorf("record %d: %s is %v, want %v", i, key, got[i][key], want[i][key])
			}
		}
	}
}

// A run that was killed, not stopped, continues from its last periodic checkpoint; a damaged one is skipped.
func TestResumeAfterKill(t *testing.T) {
	c := tinyConfig(t)
	_, want := mustRun(t, c, 0)
	// What a kill after the whole run leaves: checkpoints of steps 6 and 8. Damage the last.
	last := filepath.Join(c.Output, "checkpoints", "step-000008", tensorsFile)
	b, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(last, b, 0o600); err != nil {
		t.Fatal(err)
	}
	c.Resume = ResumeAuto
	out, q, err := runOnce(t, c, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(studentBytes(t, c), want) {
		t.Error("the student differs from that of the unbroken run")
	}
	if !strings.HasSuffix(out.ResumedFrom, "step-000006") || !strings.Contains(strings.Join(q.messages, "\n"), "damaged") {
		t.Errorf("resumed from %q, messages %q", out.ResumedFrom, q.messages)
	}
	if entries, _ := os.ReadDir(filepath.Join(c.Output, "checkpoints")); len(entries) != 2 {
		t.Errorf("%d checkpoints kept, want 2", len(entries))
	}
	contracttest.Cases(t, 1)
}

// A signal in the evaluation at the end breaks it off; the resumed run evaluates again and does not train again.
func TestStopInEvaluation(t *testing.T) {
	c := tinyConfig(t)
	c.ValFraction = 0.3
	_, _, err := runOnce(t, c, 0, inEvaluation)
	if fault.KindOf(err) != fault.Stopped || !strings.Contains(err.Error(), "evaluation") {
		t.Fatalf("error %v", err)
	}
	if _, err := os.Stat(filepath.Join(c.Output, "receipt.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("receipt: %v", err)
	}
	want := studentBytes(t, c)
	c.Resume = ResumeAuto
	out, q, err := runOnce(t, c, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(q.steps) != 0 || len(out.Evaluations) != 3 || !bytes.Equal(studentBytes(t, c), want) {
		t.Errorf("%d steps, evaluations %v", len(q.steps), out.Evaluations)
	}
}

func TestResumeRefusesAnotherRun(t *testing.T) {
	c := tinyConfig(t)
	if _, _, err := runOnce(t, c, 0, 3); fault.KindOf(err) != fault.Stopped {
		t.Fatal(err)
	}
	c.Resume, c.LR = ResumeAuto, 2e-2
	_, _, err := runOnce(t, c, 0, 0)
	if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "learning_rate was 0.01, is 0.02") {
		t.Errorf("error %v, want the changed learning rate", err)
	}
	c.AllowChanged = true
	if _, _, err := runOnce(t, c, 0, 0); err != nil {
		t.Error(err)
	}
	contracttest.Cases(t, 1)
}

// The bits do not depend on the number of workers, nor on what stood in memory before.
func TestDeterministic(t *testing.T) {
	c := tinyConfig(t)
	_, want := mustRun(t, c, 1)
	for _, workers := range []int{2, 3, 5} {
		contracttest.Cases(t, 1)
		if _, got := mustRun(t, in(t, c), workers); !bytes.Equal(got, want) {
			t.Errorf("%d workers give another student than one", workers)
		}
	}
	other := in(t, c)
	other.Seed++
	if _, got := mustRun(t, other, 1); bytes.Equal(got, want) {
		t.Error("another seed gives the same student")
	}
}

// A batch split into micro-batches, with rows that are masked in part, gives the same gradient: the trained student is
// the same but for the order of float32 sums.
func TestAccumulationDoesNotChangeTheStep(t *testing.T) {
	c := tinyConfig(t)
	c.BatchSize, c.Steps, c.Packing = 8, 1, false
	out, _ := mustRun(t, c, 0)
	for _, split := range []struct{ batch, accum int }{{4, 2}, {2, 4}, {1, 8}} {
		contracttest.Cases(t, 1)
		c := in(t, c)
		c.BatchSize, c.GradAccum = split.batch, split.accum
		got, _ := mustRun(t, c, 0)
		if d := got.FinalLoss/out.FinalLoss - 1; !(d < 1e-6 && d > -1e-6) {
			t.Errorf("%d×%d: loss %.9g, whole batch %.9g", split.accum, split.batch, got.FinalLoss, out.FinalLoss)
		}
		a, b := readSteps(t, c)[0]["grad_norm"].(float64), out.gradNorm(t)
		if d := a/b - 1; !(d < 1e-5 && d > -1e-5) {
			t.Errorf("%d×%d: gradient norm %.9g, whole batch %.9g", split.accum, split.batch, a, b)
		}
	}
}

// gradNorm is the recorded gradient norm of the run's first step.
func (o *Outcome) gradNorm(t *testing.T) float64 {
	t.Helper()
	return readSteps(t, Config{Output: o.RunDir})[0]["grad_norm"].(float64)
}

func TestRefusals(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.jsonl")
	broken := filepath.Join(t.TempDir(), "broken.jsonl")
	occupied, copied := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(copied, os.DirFS("../testdata/models/gosrc")); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{empty: "", broken: "{\"text\": \"a\"}\n{\"text\": ", filepath.Join(occupied, "x"): "x"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change func(*Config)
		kind   fault.Kind
		want   string
	}{
		"teacher is the student":    {func(c *Config) { c.Student, c.StudentConfig = copied, "" }, fault.Invalid, "the same model: the relative difference of their values is at most 0"},
		"the teacher's own files":   {func(c *Config) { c.Student, c.StudentConfig = c.Teacher, "" }, fault.Invalid, "the same model: both are the same file"},
		"no teacher":                {func(c *Config) { c.Teacher = "nowhere" }, fault.NotFound, "nowhere"},
		"no data":                   {func(c *Config) { c.Data = []string{"nowhere.jsonl"} }, fault.NotFound, "nowhere.jsonl"},
		"empty data":                {func(c *Config) { c.Data = []string{empty} }, fault.Invalid, "empty.jsonl"},
		"broken data":               {func(c *Config) { c.Data = []string{broken} }, fault.Invalid, "line 2"},
		"evaluated on trained text": {func(c *Config) { c.EvalData = c.Data }, fault.Invalid, "in the training data too"},
		"occupied output":           {func(c *Config) { c.Output = occupied }, fault.Invalid, "not empty"},
		"too long rows":             {func(c *Config) { c.SeqLen = 500 }, fault.Usage, "256 positions"},
		"two students":              {func(c *Config) { c.Student = c.Teacher }, fault.Usage, "exactly one"},
		"nothing to resume":         {func(c *Config) { c.Resume = ResumeAuto }, fault.NotFound, "no run to resume"},
	} {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			cfg := tinyConfig(t)
			c.change(&cfg)
			_, _, err := runOnce(t, cfg, 0, 0)
			if fault.KindOf(err) != c.kind || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("error %v (kind %v), want kind %v and %q", err, fault.KindOf(err), c.kind, c.want)
			}
		})
	}
}

// A learning rate that blows the weights up ends the run with exit 21, and every refused step is recorded.
func TestDivergenceStopsTheRun(t *testing.T) {
	c := tinyConfig(t)
	c.LR, c.Steps, c.MaxGradNorm, c.AdamW.WeightDecay = 1e30, 12, 0, 0
	_, q, err := runOnce(t, c, 0, 0)
	if fault.KindOf(err) != fault.Diverged {
		t.Fatalf("error %v, want one of kind diverged", err)
	}
	var refused int
	for _, s := range q.steps {
		if !s.Finite {
			refused++
		}
	}
	if refused != maxRefused {
		t.Errorf("%d refused steps recorded, want %d", refused, maxRefused)
	}
	contracttest.Cases(t, refused)
}

// A run none of whose steps was applied is not completed, however few they were: its student is the one that it began
// with.
func TestNoStepApplied(t *testing.T) {
	c := tinyConfig(t)
	c.AllowOddWeights = true
	c.Teacher = changedCopy(t, tensor.F32, func(name string, _ int, v []float32) {
		if name == "model.norm.weight" {
			for i := range v {
				v[i] = 3e38 // finite, and its logits are not
			}
		}
	})
	for steps := 1; steps < maxRefused; steps++ {
		c.Steps, c.Output = steps, filepath.Join(t.TempDir(), "run")
		_, q, err := runOnce(t, c, 0, 0)
		if fault.KindOf(err) != fault.Diverged || !strings.Contains(err.Error(), "E-DISTILL-040") || len(q.steps) != steps {
			t.Errorf("%d of %d steps: %v", len(q.steps), steps, err)
		}
		r, err := runlog.Read(c.Output)
		if err != nil || r.Status != "failed" {
			t.Errorf("status %v, %v", r.Status, err)
		}
		if _, err := os.Stat(filepath.Join(c.Output, "student.apr")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a student is written: %v", err)
		}
		contracttest.Cases(t, 1)
	}
}

func TestMaxStepsKeepsTheSchedule(t *testing.T) {
	c := tinyConfig(t)
	mustRun(t, c, 0)
	short := in(t, c)
	short.MaxSteps = 3
	out, _ := mustRun(t, short, 0)
	if out.StoppedBy != "max_steps" || out.StepsCompleted != 3 {
		t.Errorf("stopped by %q after %d steps", out.StoppedBy, out.StepsCompleted)
	}
	compareSteps(t, readSteps(t, short), readSteps(t, c)[:3])
}

func TestCheckpointInterval(t *testing.T) {
	c := tinyConfig(t)
	c.CheckpointEvery, c.CheckpointInterval, c.KeepCheckpoints = 0, time.Nanosecond, 100
	mustRun(t, c, 0)
	entries, err := os.ReadDir(filepath.Join(c.Output, "checkpoints"))
	if err != nil || len(entries) != 8 {
		t.Errorf("%d checkpoints (%v), want one after every step", len(entries), err)
	}
}
