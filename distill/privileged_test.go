package distill

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/generate"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/model"
	"apr/teacher"
)

// saidRows is a teacher whose logits are given: of the k-th kept position those of row k.
type saidRows struct{ rows ref.Mat }

func (saidRows) Begin(device.Stream, *model.Batch) {}
func (saidRows) End(device.Stream)                 {}
func (t saidRows) HeadRows() int                   { return t.rows.Cols }
func (t saidRows) Logits(s device.Stream, lo, hi int, dst device.Tensor) {
	for k := lo; k < hi; k++ {
		row := make([]float32, t.rows.Cols)
		for j := range row {
			row[j] = float32(t.rows.V[k*t.rows.Cols+j])
		}
		s.Upload(dst.RowRange(k-lo, k-lo+1), row)
	}
}

// TestPrivilegedReference: with words of the teacher's own, shorter and longer than the prompts, divergence and
// gradient of a step are those of float64 logits that are paired by hand: the teacher's behind the k-th id of a reply
// with the student's there.
func TestPrivilegedReference(t *testing.T) {
	tr, big, _ := ownTrainer(t, false)
	const seqLen, theirs = 12, 24
	s, v := tr.stream, tr.Loss.Vocab
	rng := rand.New(rand.NewPCG(8, 9))
	random := func(n int) []int32 {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(rng.IntN(4000))
		}
		return ids
	}
	d := drawn{}
	// Ids of the prompt, of the words, of the reply:
	for _, n := range [][3]int{{3, 15, 5}, {7, 1, 6}, {4, 4, 9}, {1, 20, 1}} {
		d.prompts, d.words = append(d.prompts, random(n[0])), append(d.words, random(n[1]))
		d.texts = append(d.texts, generate.Text{IDs: random(n[2])})
	}
	p := &policy{seqLen: seqLen, pad: 5}
	b := p.add(corpus.Batch{SeqLen: seqLen}, d)
	tr.OwnRows(len(d.texts), seqLen, false)
	// By hand: rows of ids, and of each the positions at which a reply is predicted.
	byHand := func(m *model.Model, before [][]int32, n int) (out ref.Mat) {
		ids := corpus.Batch{Rows: len(before), SeqLen: n, Tokens: make([]int32, n*len(before))}
		for i := range before {
			copy(ids.Tokens[i*n:(i+1)*n], append(append([]int32{}, before[i]...), d.texts[i].IDs...))
		}
		z := rowLogits(t, m, s, ids, v)
		out.Cols = v
		for i := range before {
			at := i*n + len(before[i]) - 1
			out.V = append(out.V, z.V[at*v:(at+len(d.texts[i].IDs))*v]...)
			out.Rows += len(d.texts[i].IDs)
		}
		return out
	}
	pz, qz := byHand(big.Model, d.words, theirs), byHand(tr.Student, d.prompts, seqLen)
	want := 0.0
	for k := range pz.Rows {
		row := func(m ref.Mat) []float64 { return ref.LogSoftmax(m.V[k*v:(k+1)*v], 1) }
		want += ref.Divergence(row(pz), row(qz), tr.Loss.Spec)
	}
	step := func(of teacher.Teacher) (device.Scalars, [][]float32) {
		tr.Teacher = of
		tr.gradients(b, b.TargetCount())
		sc, err := s.Wait(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return sc, gradientsOf(t, tr)
	}
	words := &teacher.Privileged{Inner: big, Device: big.Model.Device(), SeqLen: theirs}
	defer words.Free()
	words.Give(p.teacherRows(d, theirs))
	sc, got := step(words)
	near.Check(t, "divergence", []float64{sc.D / want}, []float64{1}, 1e-5)
	_, hand := step(saidRows{pz})
	for i := range got {
		near.Check(t, "gradient", got[i], doubles(hand[i]), 1e-4)
	}
	contracttest.Cases(t, pz.Rows)
}

// privilegedConfig is a run of one model that teaches itself by words that only the teacher reads.
func privilegedConfig(t *testing.T, lines string) Config {
	c := ownConfig(t)
	c.Student, c.StudentConfig, c.AllowSameModel = c.Teacher, "", true
	c.OnPolicy = OnPolicy{Fraction: 1, MaxTokens: 6, Samples: 1}
	c.Steps, c.LR, c.BatchSize, c.CheckpointEvery = 3, 1e-4, 2, 0
	path := filepath.Join(t.TempDir(), "words.jsonl")
	if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Data, c.ChatTemplate = []string{path}, "chatml"
	return c
}

const wordsOfTheTeacher = `{"prompt": "func", "teacher_prompt": "the function main: func main() {", "completion": "x"}
{"prompt": "import", "teacher_prompt": [{"role": "user", "content": "fmt"}]}
{"prompt": "go", "completion": "y"}
`

// TestPrivileged: one model teaches itself by words that only the teacher reads. Without these words it has nothing to
// learn, with them it has; a run that stops and goes on ends in the same student.
func TestPrivileged(t *testing.T) {
	c := privilegedConfig(t, wordsOfTheTeacher)
	out, q, err := runOnce(t, c, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := studentBytes(t, c)
	if out.InitialLoss < 1e-2 {
		t.Errorf("divergence %g of the first step: the teacher reads what the student reads", out.InitialLoss)
	}
	for _, s := range q.steps {
		if o := s.OnPolicy; o == nil || o.OffMost > 2e-5 {
			t.Errorf("step %d: %+v", s.Step, o)
		}
	}
	events, err := os.ReadFile(filepath.Join(c.Output, "events.jsonl"))
	if r := toldBy(t, c.Output, q); hasFinding(r.findings, "degenerate") || strings.Contains(r.said, "no record has") {
		t.Errorf("words to learn from: %s; %+v", r.said, r.findings.Findings)
	}
	if err != nil || !strings.Contains(string(events),
		`"name":"words of the teacher's own","detail":{"documents":2,"of":3`) {
		t.Errorf("the words are not recorded (%v): %s", err, events)
	}
	stopped := in(t, c)
	if _, _, err := runOnce(t, stopped, 2, 1); err == nil {
		t.Fatal("the run did not stop")
	}
	stopped.Resume = ResumeAuto
	if _, got := mustRun(t, stopped, 2); !bytes.Equal(got, want) {
		t.Error("stopped and resumed: another student")
	}
	plain := privilegedConfig(t, `{"prompt": "func", "completion": "x"}`)
	plain.Steps = 1
	if out, q, err = runOnce(t, plain, 2, 0); err != nil || out.InitialLoss > 1e-6 {
		t.Errorf("the same words: divergence %g, %v", out.InitialLoss, err)
	}
	if r := toldBy(t, plain.Output, q); !hasFinding(r.findings, "degenerate") ||
		!strings.Contains(r.said, "warning: no record has a teacher_prompt") {
		t.Errorf("the same words: %s; %+v", r.said, r.findings.Findings)
	}
	contracttest.Cases(t, 3)
}

// TestPrivilegedRefused: what words of the teacher's own do not go with is named before anything is written.
func TestPrivilegedRefused(t *testing.T) {
	for name, v := range map[string]struct {
		change func(*Config)
		id     string
		kind   fault.Kind
	}{
		"same model":       {func(c *Config) { c.AllowSameModel = false }, "E-DISTILL-003", fault.Invalid},
		"rows of the data": {func(c *Config) { c.OnPolicy.Fraction = .5 }, "E-POLICY-005", fault.Unavailable},
		"maps": {func(c *Config) { c.Guide = Guide{Attention: 1, Map: []string{"auto"}} }, "E-POLICY-005",
			fault.Unavailable},
		"a cache": {func(c *Config) { c.FromCache = "cache" }, "E-POLICY-001", fault.Unavailable},
		"too long": {func(c *Config) {
			c.Data = privilegedConfig(t, `{"prompt": "a", "teacher_prompt": "`+strings.Repeat("func main ", 3000)+`"}`).Data
		}, "E-POLICY-006", fault.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			c := privilegedConfig(t, wordsOfTheTeacher)
			v.change(&c)
			_, _, err := runOnce(t, c, 1, 0)
			if fault.KindOf(err) != v.kind || !strings.Contains(err.Error(), v.id) {
				t.Errorf("%v, want %s", err, v.id)
			}
			if _, err := os.Stat(c.Output); err == nil {
				t.Error("something was written")
			}
			contracttest.Cases(t, 1)
		})
	}
}
