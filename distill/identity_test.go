package distill

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/run/diagnose"
	runlog "apr/run/log"
	"apr/tensor"
)

// told is what a run of one step says of its student.
type told struct {
	manifest *runlog.Manifest
	events   []runlog.Event
	said     string
	findings diagnose.Findings
}

// event returns the warning of a name.
func (r *told) event(name string) bool {
	return slices.ContainsFunc(r.events, func(e runlog.Event) bool { return e.Kind == "warning" && e.Name == name })
}

// oneStep trains a student one step.
func oneStep(t *testing.T, change func(*Config)) *told {
	t.Helper()
	c := tinyConfig(t)
	c.Steps = 1
	change(&c)
	_, q, err := runOnce(t, c, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := toldBy(t, c.Output, q)
	f := &all.findings
	f.Findings = slices.DeleteFunc(f.Findings, func(x diagnose.Finding) bool {
		return x.ID == "doubtful-file" // students with neurons or layers of zeros
	})
	return all
}

// toldBy reads what the run in a directory says, and what q was told.
func toldBy(t *testing.T, dir string, q *quiet) *told {
	t.Helper()
	r, err := runlog.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	f, err := diagnose.Run(dir, VerifyCheckpoint)
	if err != nil {
		t.Fatal(err)
	}
	return &told{r.Manifest, r.Events, strings.Join(q.messages, "\n"), f}
}

// from lets a run begin with a student.
func from(student string) func(*Config) {
	return func(c *Config) { c.Student, c.StudentConfig = student, "" }
}

// A copy whose values or shapes are others, and whose first step has no divergence, is told: on the terminal, as an
// event, as a finding.
func TestFirstStepOfACopy(t *testing.T) {
	for name, tt := range map[string]struct {
		student  string
		findings int
	}{
		"permuted":     {changedCopy(t, tensor.F32, permuted), 2}, // which leaves attention, norms and tables as they are
		"zero neurons": {zeroNeurons(t, 1), 1}, "doubled heads": {doubledHeads(t), 1},
		"scaled pairs": {changedCopy(t, tensor.F32, scaledPairs), 2}, "permuted heads": {permutedHeads(t), 1},
		"a layer more": {moreLayers(t), 1}, "more rows, and permuted": {resizedAndPermuted(t), 2},
	} {
		contracttest.Cases(t, 1)
		r := oneStep(t, from(tt.student))
		if !r.event(runlog.FirstStepEqual) || r.event(runlog.FirstStepAgrees) || !strings.Contains(r.said, "is it a copy of the teacher?") ||
			len(r.findings.Findings) != tt.findings || !hasFinding(r.findings, "copy") || tt.findings == 2 != hasFinding(r.findings, "alike") {
			t.Errorf("%s: messages %q; findings %+v", name, r.said, r.findings.Findings)
		}
		if k := r.manifest.Kinship; k == nil || k.Relation != "different" {
			t.Errorf("%s: kinship %+v", name, k)
		}
	}
}

// A student that nearly gives the teacher's distribution before it was trained is told, by whatever divergence and
// temperature; a new one and one that was trained from other numbers are not.
func TestFirstStepAgrees(t *testing.T) {
	near := zeroNeurons(t, 1.01)
	for name, spec := range map[string]device.LossSpec{
		"forward": {}, "reverse": {Divergence: device.ReverseKL}, "jsd": {Divergence: device.JSD, Beta: 0.5}, "tvd": {Divergence: device.TVD},
		"skew forward": {Divergence: device.SkewForward, Beta: 0.5}, "skew reverse": {Divergence: device.SkewReverse, Beta: 0.5}, "temperature 4": {Temperature: 4},
	} {
		contracttest.Cases(t, 1)
		r := oneStep(t, func(c *Config) {
			from(near)(c)
			spec.Alpha, spec.Temperature = 0.5, max(spec.Temperature, 1)
			c.Loss = spec
		})
		if !r.event(runlog.FirstStepAgrees) || !strings.Contains(r.said, "already agrees with the teacher") || len(r.findings.Findings) != 1 || !hasFinding(r.findings, "agrees") {
			t.Errorf("%s: messages %q; findings %+v", name, r.said, r.findings.Findings)
		}
	}
	trained := tinyConfig(t)
	trained.Steps, trained.BatchSize = 60, 4
	mustRun(t, trained, 0)
	for name, spec := range map[string]device.LossSpec{
		"forward": {}, "jsd": {Divergence: device.JSD, Beta: 0.9}, "tvd": {Divergence: device.TVD}, "skew": {Divergence: device.SkewForward, Beta: 0.9}, "temperature 8": {Temperature: 8},
	} {
		for what, begin := range map[string]func(*Config){"new": func(*Config) {}, "trained": from(filepath.Join(trained.Output, "student"))} {
			contracttest.Cases(t, 1)
			r := oneStep(t, func(c *Config) {
				begin(c)
				spec.Alpha, spec.Temperature = 0.5, max(spec.Temperature, 1)
				c.Loss = spec
			})
			if strings.Contains(r.said, "warning") || len(r.findings.Findings) != 0 {
				t.Errorf("%s, %s: messages %q; findings %+v", what, name, r.said, r.findings.Findings)
			}
		}
	}
}

// A run that goes on beside its own student, which took the teacher's place, is told at the step where nothing
// diverges.
func TestTeacherThatBecameTheStudent(t *testing.T) {
	contracttest.Cases(t, 1)
	c := tinyConfig(t)
	c.Steps, c.CheckpointEvery = 2, 2
	mustRun(t, c, 0)
	c.Steps, c.Resume, c.AllowChanged = 3, ResumeAuto, true
	c.Teacher = filepath.Join(c.Output, "student")
	_, q, err := runOnce(t, c, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if said := strings.Join(q.messages, "\n"); !strings.Contains(said, "the divergence of step 2 is") {
		t.Errorf("messages %q", said)
	}
}

// A run that goes on beside a changed copy of its own student is told at the first step that is applied there, as a
// first step is, and says what changed; one that goes on beside another model, or with another rate alone, is no copy.
func TestTeacherThatTheStudentMetLate(t *testing.T) {
	c := tinyConfig(t)
	c.Steps, c.BatchSize = 60, 4
	mustRun(t, c, 0)
	louder := reshapedCopyOf(t, filepath.Join(c.Output, "student"), tensor.F32, func(*arch.Config) {},
		func(name string, _ []int, v []float32) []float32 {
			for i := range v {
				if strings.Contains(name, "mlp") {
					v[i] *= 1.02
				}
			}
			return v
		})
	kept := c.Output + ".kept"
	if err := os.CopyFS(kept, os.DirFS(c.Output)); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		change func(*Config)
		says   string
		agrees bool
	}{
		"its student":   {func(c *Config) { c.Teacher = louder }, "inputs.teacher ", true},
		"another model": {func(c *Config) { c.Teacher = untrained(t, 3) }, "inputs.teacher ", false},
		"a rate":        {func(c *Config) { c.LR = 2e-3 }, "learning_rate 0.01 → 0.002", false},
	} {
		contracttest.Cases(t, 1)
		c := in(t, c)
		if err := os.CopyFS(c.Output, os.DirFS(kept)); err != nil {
			t.Fatal(err)
		}
		c.Steps, c.Resume, c.AllowChanged = 62, ResumeAuto, true
		x.change(&c)
		_, q, err := runOnce(t, c, 0, 0)
		c.LR *= 2 // and on: the teacher is known by now
		c.Steps++
		if _, _, again := runOnce(t, c, 0, 0); err != nil || again != nil {
			t.Fatal(err, again)
		}
		said := strings.Join(q.messages, "\n")
		if !strings.Contains(said, "goes on although this differs from the checkpoint: ") ||
			!strings.Contains(said, x.says) ||
			strings.Contains(said, "before step 60, the first with another teacher, the student already agrees") != x.agrees {
			t.Errorf("%s: messages %q", name, said)
		}
		r, err := runlog.Read(c.Output)
		if err != nil {
			t.Fatal(err)
		}
		told := slices.DeleteFunc(r.Events, func(e runlog.Event) bool { return e.Name != runlog.FirstStepAgrees })
		if n := len(told); n != map[bool]int{true: 1}[x.agrees] {
			t.Errorf("%s: %d events", name, n)
		}
	}
}

// A teacher that taught nothing or little before a run goes on is judged at the first step there: one that --alpha 0
// had switched off, and one of several that gets most of the weight. A new student is not told.
func TestTeacherThatIsSwitchedOnLate(t *testing.T) {
	near := zeroNeurons(t, 1.01)
	off := func(c *Config) { c.Loss.Alpha = 0 }
	stranger := louder(t, func(name string, _ int, v []float32) { // sure of other ids
		if strings.HasSuffix(name, "proj.weight") {
			slices.Reverse(v)
		}
	}, 8)
	louderStranger := louder(t, func(name string, _ int, v []float32) {
		if strings.HasSuffix(name, "down_proj.weight") {
			slices.Reverse(v)
		}
	}, 8)
	shares := func(own float64) func(*Config) {
		return func(c *Config) {
			c.Teacher, c.Ensemble = stranger, Ensemble{More: []string{c.Teacher}, Weights: []float64{1 - own, own}}
		}
	}
	routed := func(others, data string, routes ...Route) func(*Config) {
		return func(c *Config) {
			c.Teacher, c.Data, c.Ensemble = others, []string{data}, Ensemble{Routes: routes, Default: true}
		}
	}
	equal := func(data string) func(*Config) {
		return func(c *Config) {
			c.Teacher, c.Data, c.Ensemble = stranger, []string{data}, Ensemble{More: []string{c.Teacher}}
		}
	}
	const copied = "../testdata/models/gosrc"
	mixed, code := documents(t, "code", "prose"), documents(t, "code", "code")
	for name, x := range map[string]struct {
		begin, before, after func(*Config)
		agrees               bool
	}{
		"alpha":            {from(near), off, func(*Config) {}, true},
		"alpha, a new one": {func(*Config) {}, off, func(*Config) {}, false},
		"weights":          {from(near), shares(0.1), shares(0.95), true},
		"a source of the teacher's own": {from(near), routed(copied, code, Route{"code", stranger}),
			routed(copied, mixed, Route{"code", stranger}), true},
		"routes instead of a mixture": {from(near), equal(mixed), routed(stranger, mixed, Route{"prose", copied}), true},
		"a source of a stranger's": {from(near), routed(stranger, code, Route{"code", louderStranger}),
			routed(stranger, mixed, Route{"code", louderStranger}), false},
	} {
		contracttest.Cases(t, 1)
		whole := tinyConfig(t)
		whole.LR = 1e-6
		x.begin(&whole)
		c := whole
		c.Steps = 2
		x.before(&c)
		_, q, err := runOnce(t, c, 0, 0)
		if said := strings.Join(q.messages, "\n"); err != nil || strings.Contains(said, "already agrees with the teacher") {
			t.Fatalf("%s: %v: messages %q", name, err, said)
		}
		c = whole
		c.Steps, c.Resume, c.AllowChanged = 3, ResumeAuto, true
		x.after(&c)
		if _, q, err = runOnce(t, c, 0, 0); err != nil {
			t.Fatal(err)
		}
		said := strings.Join(q.messages, "\n")
		if strings.Contains(said, "before step 2, the first with another teacher, the student already agrees") != x.agrees {
			t.Errorf("%s: messages %q", name, said)
		}
	}
}

// What a run goes on with is another teacher if weights of a teacher changed, one teaches that did not, or shares did.
func TestOtherTeacher(t *testing.T) {
	for d, want := range map[string]bool{
		"inputs.teacher was a, is b": true, "inputs.teacher_2 was not recorded, is b": true,
		"inputs.teacher_cache was a, is b": false, "inputs.student was a, is b": false, "inputs.data was a, is b": false,
		"alpha was 0, is 0.5": true, "alpha was 0.5, is 0": false, "alpha was 0.5, is 0.9": false,
		"teacher_weights.0 was 0.9, is 0.1": true, "teacher_weights was <nil>, is [0.1 0.9]": true,
		"trained_routes was not recorded, is [0 9]": true, "trained_routes.2 was not recorded, is 9": true,
		"trained_routes.0 was 0, is 9":  true,
		"trained_routes.0 was 10, is 9": false, "trained_routes was [1 2], is not known": false,
		"learning_rate was 1, is 2": false, "trained_ids was a, is b": false,
	} {
		if otherTeacher([]string{"seed was 1, is 2", d}) != want {
			t.Errorf("%s: %v", d, !want)
		}
		contracttest.Cases(t, 1)
	}
}

// documents writes data whose documents come from two sources in turn.
func documents(t *testing.T, first, second string) string {
	t.Helper()
	var all strings.Builder
	for i := range 40 {
		fmt.Fprintf(&all, `{"source": %q, "text": "func f%d(a int) int {\n\treturn f%d(a-1) + a*%d\n}\n"}`+"\n",
			[]string{first, second}[i%2], i, i, i)
	}
	path := filepath.Join(t.TempDir(), "documents.jsonl")
	if err := os.WriteFile(path, []byte(all.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// ofFrame is a new student of the teacher's hidden size, layers, heads and head size.
func ofFrame(c *Config) { c.StudentConfig = "../testdata/models/gosrc/config.json" }

// A copy in codes of 4 bits is told beside a teacher in codes of 4 bits, whatever else hides it, by any divergence and
// temperature; a student of the teacher's shapes that was trained from other numbers is not, and neither is one that
// has the teacher's embedding and other numbers else.
func TestFirstStepOfCodes(t *testing.T) {
	run := func(begin func(*Config), spec device.LossSpec) *told {
		contracttest.Cases(t, 1)
		return oneStep(t, func(c *Config) {
			c.Teacher, c.BatchSize, c.SeqLen, c.Loss = "../testdata/models/gosrc-q4_k_m.gguf", 4, 64, spec
			c.AllowOddWeights = true // layers that do next to nothing are mostly zeros
			begin(c)
		})
	}
	forward := device.LossSpec{Alpha: 0.5, Temperature: 1}
	cold, skewed := device.LossSpec{Alpha: 0.5, Temperature: 0.3}, device.LossSpec{Alpha: 0.5, Temperature: 1, Divergence: device.SkewForward, Beta: 0.9}
	near := map[string]bool{"scaled MLP": true, "folded scales": true} // their values are told as well
	for name, tt := range map[string]struct {
		student string
		specs   []device.LossSpec
		table   bool
	}{
		"permuted": {permutedCodes(t), []device.LossSpec{forward}, true}, "scaled MLP": {scaledMLP(t), []device.LossSpec{forward}, true},
		"folded scales": {foldedScales(t), []device.LossSpec{forward}, true}, "padded": {paddedCodes(t), []device.LossSpec{forward, cold, skewed}, true},
		"turned columns": {turnedColumns(t), []device.LossSpec{forward, cold, skewed}, false},
		"a layer more":   {moreLayersInCodes(t), []device.LossSpec{forward}, true}, "a small layer more": {smallLayerInCodes(t), []device.LossSpec{forward}, true},
		"a layer more, turned": {withLayer(t, func(name string, cols int, v []float32) { groupCodes(name, cols, v); turned(name, cols, v) }), []device.LossSpec{forward}, false},
		"louder":               {louder(t, turned, 4), []device.LossSpec{forward, cold}, false}, "quieter, in codes": {louder(t, permuteAndCode, 0.3), []device.LossSpec{forward}, true},
	} {
		for _, spec := range tt.specs {
			r := run(from(tt.student), spec)
			if !r.event(runlog.FirstStepAgrees) || !strings.Contains(r.said, "already agrees with the teacher") ||
				r.manifest.Kinship.Close != near[name] || !hasFinding(r.findings, "agrees") ||
				tt.table != strings.Contains(r.said, "the rows of its embedding are the teacher's") {
				t.Errorf("%s, %+v: messages %q; findings %+v", name, spec, r.said, r.findings.Findings)
			}
		}
	}
	for name, by := range map[string]float32{"40 times as loud": 40, "a fiftieth": 0.02, "a thousandth": 1e-3, "beyond every temperature": 1e5} {
		r := run(func(c *Config) { from(louder(t, turned, by))(c); c.Teacher = "../testdata/models/gosrc" }, forward)
		if !r.event(runlog.FirstStepAgrees) || strings.Contains(r.said, "already chooses the teacher's first id") != (by == 1e5) || !hasFinding(r.findings, "agrees") {
			t.Errorf("%s: messages %q; findings %+v", name, r.said, r.findings.Findings)
		}
	}
	trained := tinyConfig(t)
	ofFrame(&trained)
	trained.Steps, trained.BatchSize, trained.LR, trained.CheckpointEvery = 60, 4, 3e-3, 60
	mustRun(t, trained, 0)
	for name, begin := range map[string]func(*Config){
		"trained": from(filepath.Join(trained.Output, "student")), "new": func(c *Config) { from("")(c); ofFrame(c) }, "table": from(strangerWithTable(t)),
		// What was made from the teacher and has more to learn than a copy in codes.
		"noise": from(changedCopy(t, tensor.F32, noisy(0.36))), "noise, turned": from(changedCopy(t, tensor.F32,
			both(noisy(0.36), turned))),
		"noise, turned, a layer more": from(withLayer(t, both(noisy(0.36), turned))),
		// Any new student is near a teacher that was never trained.
		"beside an untrained teacher": func(c *Config) { from(untrained(t, 1))(c); c.Teacher = untrained(t, 2) },
	} {
		r := run(begin, forward)
		if r.event(runlog.FirstStepAgrees) || hasFinding(r.findings, "agrees") {
			t.Errorf("%s: messages %q; findings %+v", name, r.said, r.findings.Findings)
		}
	}
	hot := device.LossSpec{Alpha: 0.5, Temperature: 8} // at which nearly every student agrees
	if r := run(from(changedCopy(t, tensor.F32, both(noisy(0.36), turned))), hot); r.event(runlog.FirstStepAgrees) {
		t.Errorf("noise, at temperature 8: messages %q", r.said)
	}
}

// A student whose matrices are all near the teacher's is told, whoever made it: on the terminal, as an event, as a
// finding, and in the manifest. It trains.
func TestCloseStudentIsTold(t *testing.T) {
	coded := changedCopy(t, tensor.F32, func(_ string, _ int, v []float32) { codes(v, 64) })
	contracttest.Cases(t, 1)
	r := oneStep(t, from(coded))
	k := r.manifest.Kinship
	if k == nil || k.Relation != "different" || !k.Close || !(k.Within > 0.05 && k.Within < 0.2) || k.Farthest == "" || !strings.Contains(k.Text, "; close: ") {
		t.Errorf("kinship %+v", k)
	}
	if !r.event(runlog.CloseToTeacher) || !strings.Contains(r.said, "no matrix of the student differs from the teacher's by more than 0.") || !hasFinding(r.findings, "close") {
		t.Errorf("messages %q; findings %+v", r.said, r.findings.Findings)
	}
}

func hasFinding(f diagnose.Findings, id string) bool {
	return slices.ContainsFunc(f.Findings, func(x diagnose.Finding) bool { return x.ID == id })
}

// A copy with one value changed, or another number in its configuration, is another model; that the rest is the
// teacher's is told: on the terminal, as an event, as a finding, and in the manifest.
func TestEditedCopyIsTold(t *testing.T) {
	for what, tt := range map[string]struct {
		student string
		others  []string
	}{
		"model.norm.weight": {changedCopy(t, tensor.F32, func(name string, _ int, v []float32) {
			if name == "model.norm.weight" {
				v[3] *= 1.05
			}
		}), []string{"model.norm.weight"}},
		"eps":      {reshapedCopy(t, tensor.F32, func(c *arch.Config) { c.Eps *= 1.5 }, func(_ string, _ []int, v []float32) []float32 { return v }), nil},
		"head_dim": {moreHeads(t), nil},
		"theta":    {reshapedCopy(t, tensor.F32, func(c *arch.Config) { c.Ropes = slices.Clone(c.Ropes); c.Ropes[0].Theta *= 2 }, func(_ string, _ []int, v []float32) []float32 { return v }), nil},
	} {
		contracttest.Cases(t, 1)
		r := oneStep(t, from(tt.student))
		if k := r.manifest.Kinship; k == nil || k.Relation != "different" || k.Alike == 0 || k.Alike != k.Tensors-len(tt.others) || !slices.Equal(k.Others, tt.others) {
			t.Errorf("%s: kinship %+v", what, k)
		}
		if !r.event(runlog.MostlyAlike) {
			t.Errorf("%s: no event", what)
		}
		if !strings.Contains(r.said, "is it an edited copy?") || !strings.Contains(r.said, what) {
			t.Errorf("%s: messages %q", what, r.said)
		}
		if !hasFinding(r.findings, "alike") {
			t.Errorf("%s: findings %+v", what, r.findings.Findings)
		}
	}
}

// A student that is the teacher, or derived from it, trains only when that is allowed, and the run says which of the
// two it is.
func TestKinshipIsRecorded(t *testing.T) {
	for student, want := range map[string]struct {
		relation, id string
	}{
		changedCopy(t, tensor.F32, func(string, int, []float32) {}): {"same", "[E-DISTILL-003]"},
		"../testdata/models/gosrc-q4_k_m.gguf":                      {"derived", "[E-DISTILL-007]"},
	} {
		contracttest.Cases(t, 1)
		c := tinyConfig(t)
		c.Student, c.StudentConfig, c.Steps = student, "", 1
		if _, _, err := runOnce(t, c, 0, 0); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want.id) {
			t.Errorf("%s: %v", want.relation, err)
		}
		if _, err := os.Stat(c.Output); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: refused, and %s is there (%v)", want.relation, c.Output, err)
		}
		c.AllowSameModel = true
		mustRun(t, c, 0)
		r, err := runlog.Read(c.Output)
		if err != nil {
			t.Fatal(err)
		}
		k := r.Manifest.Kinship
		if k == nil || k.Relation != want.relation || !k.Allowed || k.Values == 0 || want.relation == "derived" && !(k.Difference > 0.01 && k.Difference < 0.1 && k.Rounding != "") {
			t.Errorf("kinship %+v, want %s", k, want.relation)
		}
		found := false
		for _, e := range r.Events {
			if e.Kind == "warning" && e.Name == "teacher and student" {
				text, _ := json.Marshal(e.Detail) // what was read as JSON
				found = strings.Contains(string(text), `"relation":"`+want.relation+`"`)
			}
		}
		if !found {
			t.Errorf("%s: no event says so", want.relation)
		}
	}
}
