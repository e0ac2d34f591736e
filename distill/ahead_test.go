package distill

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/format/safetensors"
	"apr/generate"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/model"
	runlog "apr/run/log"
	"apr/tensor"
)

// aheadConfig is ownConfig with rows that are written a step before theirs.
func aheadConfig(t *testing.T) Config {
	c := ownConfig(t)
	c.OnPolicy.Lag = 1
	return c
}

// TestOwnRowsLag: with a lag the rows of every step but the first are written by older weights, which the records say,
// and the student does not depend on the workers.
func TestOwnRowsLag(t *testing.T) {
	c := aheadConfig(t)
	_, q, err := runOnce(t, c, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := studentBytes(t, c)
	for _, s := range q.steps {
		o := s.OnPolicy
		if o == nil || o.Lag == nil || *o.Lag != min(1, s.Step) || o.Ratio == nil || o.RatioMost == nil {
			t.Fatalf("step %d: %+v", s.Step, o)
		}
		same := o.OffMost <= 2e-5 && math.Abs(float64(*o.Ratio)-1) <= 2e-5
		if (s.Step == 0) != same { // at this learning rate an update moves every probability
			t.Errorf("step %d: |Δ ln q| up to %g, importance ratio %g in the mean, %g at most", s.Step, o.OffMost, *o.Ratio,
				*o.RatioMost)
		}
		contracttest.Cases(t, o.Tokens)
	}
	events, err := os.ReadFile(filepath.Join(c.Output, "events.jsonl"))
	if err != nil || !strings.Contains(string(events), `"beside_the_step":true`) ||
		!strings.Contains(string(events), `"lag":1`) {
		t.Errorf("the lag is not recorded (%v)", err)
	}
	c = in(t, c)
	if _, got := mustRun(t, c, 3); !bytes.Equal(got, want) {
		t.Error("three workers: another student than one's")
	}
}

// TestOwnRowsLagResume: a run that stops, also while the student writes its first rows, and goes on ends in the same
// student: what was written ahead is in the checkpoint.
func TestOwnRowsLagResume(t *testing.T) {
	c := aheadConfig(t)
	c.Steps = 5
	_, want := mustRun(t, c, 1)
	for _, after := range []int{1, 4} {
		c := in(t, c)
		if _, _, err := runOnce(t, c, 2, after); err == nil {
			t.Fatal("the run did not stop")
		}
		c.Resume = ResumeAuto
		if _, got := mustRun(t, c, 3); !bytes.Equal(got, want) {
			t.Errorf("stopped after %d steps: another student", after)
		}
		contracttest.Cases(t, 1)
	}
	c = in(t, c)
	c.Options = optionsOf(c)
	r, err := Start(context.Background(), c, newCPU(t), &quiet{}, func(*runlog.Manifest) {})
	if err != nil {
		t.Fatal(err)
	}
	left := 10
	if _, err := r.Execute(fading{context.Background(), &left}); fault.KindOf(err) != fault.Stopped {
		t.Fatalf("the run did not stop: %v", err)
	}
	r.Close()
	c.Resume = ResumeAuto
	if _, got := mustRun(t, c, 2); !bytes.Equal(got, want) {
		t.Error("stopped while the first rows were written: another student")
	}
	contracttest.Cases(t, 1)
}

// aheadPolicy is a policy over a student whose weights change moves, with prompts of a text.
func aheadPolicy(t *testing.T, atOnce bool) (p *policy, change func()) {
	d := newCPU(t)
	s := d.NewStream()
	student := loadStudent(t, d, s, "../testdata/models/gosrc")
	tok := &corpus.Tokens{IDs: make([]int32, 40), Docs: []corpus.Doc{{End: 40}}}
	for i := range tok.IDs {
		tok.IDs[i] = int32(17*i) % 4000
	}
	prompts, err := corpus.NewPrompts(tok, corpus.PromptOptions{SeqLen: 9, Plain: 3})
	if err != nil {
		t.Fatal(err)
	}
	o := OnPolicy{Fraction: 1, MaxTokens: 6, Samples: 1, Lag: 1}
	p = &policy{OnPolicy: o, rows: 2, prompts: prompts, seqLen: 9, atOnce: atOnce,
		writer:  o.newWriter(student.Frozen(), d.NewStream(), 2, 9, 4096),
		options: generate.Options{Temperature: 1, Seed: 3}}
	t.Cleanup(p.writer.Free)
	return p, func() { scaleWeights(t, student, s, 1.05) }
}

// scaleWeights multiplies all weights.
func scaleWeights(t *testing.T, m *model.Model, s device.Stream, by float32) {
	for _, p := range m.Params() {
		host := make([]float32, p.Rows*p.Cols)
		if err := s.Download(host, p.Value); err != nil {
			t.Fatal(err)
		}
		for i := range host {
			host[i] *= by
		}
		s.Upload(p.Value, host)
	}
	m.Refresh(s)
}

// TestAheadIsOneStepOld: whether rows are written before a step or beside it, those of step n are the ones that the
// weights before the update of step n−1 write.
func TestAheadIsOneStepOld(t *testing.T) {
	const steps = 4
	ctx := context.Background()
	var now [steps][2][]generate.Text // of each step by the weights before it, and those of the step before
	p, change := aheadPolicy(t, false)
	for k := range steps {
		for back := range 2 {
			if k+back < steps {
				d, err := p.write(ctx, k+back)
				if err != nil {
					t.Fatal(err)
				}
				now[k+back][back] = d.texts
			}
		}
		change()
	}
	for _, atOnce := range []bool{false, true} {
		p, change := aheadPolicy(t, atOnce)
		for k := range steps {
			d, err := p.next(ctx, k, steps)
			if err != nil {
				t.Fatal(err)
			}
			end := p.besideStep(ctx, d, steps)
			if err := end(); err != nil { // before the update
				t.Fatal(err)
			}
			want, back := now[k][min(k, 1)], min(k, 1)
			if d.step != k || d.by != k-back || !slices.EqualFunc(d.texts, want, sameText) {
				t.Errorf("beside the step %v: step %d has rows of %d by the weights of %d: %v, want %v", atOnce, k, d.step, d.by,
					d.texts, want)
			}
			if k > 0 && slices.EqualFunc(now[k][0], now[k][1], sameText) {
				t.Fatal("an update changes no text: nothing is shown")
			}
			p.applied(k)
			change()
			contracttest.Cases(t, 1)
		}
		if p.ahead != nil {
			t.Error("rows behind the last step")
		}
	}
}

func sameText(a, b generate.Text) bool {
	return slices.Equal(a.IDs, b.IDs) && slices.Equal(a.LogProbs, b.LogProbs) && a.Stopped == b.Stopped
}

// TestUpdateWaits: what reads the weights beside a step has ended before its update.
func TestUpdateWaits(t *testing.T) {
	tr, _, b := ownTrainer(t, false)
	p := tr.Student.Params()[0]
	read := func() []float32 {
		host := make([]float32, p.Rows*p.Cols)
		if err := tr.stream.Download(host, p.Value); err != nil {
			t.Fatal(err)
		}
		return host
	}
	before := read()
	tr.Optimizer.Schedule.Peak, tr.Optimizer.Schedule.Steps = 1e-2, 1
	asked := 0
	tr.BeforeUpdate = func() error {
		if asked++; !slices.Equal(read(), before) {
			t.Error("the weights were updated before")
		}
		return nil
	}
	if _, err := tr.Apply(context.Background(), b); err != nil {
		t.Fatal(err)
	}
	if asked != 1 || slices.Equal(read(), before) {
		t.Errorf("asked %d times, or the weights were not updated", asked)
	}
	contracttest.Cases(t, 1)
}

// TestAheadDamaged: rows in a checkpoint that are not those of its step are refused.
func TestAheadDamaged(t *testing.T) {
	p, _ := aheadPolicy(t, false)
	d, err := p.write(context.Background(), 2)
	if err != nil {
		t.Fatal(err)
	}
	p.ahead = &d
	st, tensors := p.state()
	f := writtenTensors(t, tensors)
	text, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*aheadState){
		"":                func(*aheadState) {},
		"another step":    func(a *aheadState) { a.Step = 3 },
		"a row too few":   func(a *aheadState) { a.Lengths = a.Lengths[:1] },
		"a longer text":   func(a *aheadState) { a.Lengths[0]++ },
		"an empty text":   func(a *aheadState) { a.Lengths[0] = 0 },
		"no end of a row": func(a *aheadState) { a.Stopped = nil },
	} {
		var a aheadState
		if err := json.Unmarshal(text, &a); err != nil {
			t.Fatal(err)
		}
		change(&a)
		err := p.restore(&a, f, 2)
		if bad := err != nil; bad != (name != "") || bad && !strings.Contains(err.Error(), "E-CKPT-009") {
			t.Errorf("%s: %v", name, err)
		}
		if name == "" && (!slices.EqualFunc(p.ahead.texts, d.texts, sameText) || p.ahead.by != d.by ||
			!slices.EqualFunc(p.ahead.prompts, d.prompts, slices.Equal)) {
			t.Errorf("%v, want %v", *p.ahead, d)
		}
		contracttest.Cases(t, 1)
	}
}

// writtenTensors are the tensors as a file has them.
func writtenTensors(t *testing.T, all []tensor.Source) *safetensors.File {
	path := filepath.Join(t.TempDir(), tensorsFile)
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := safetensors.Encode(out, all, nil); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
