package distill

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/run/diagnose"
	runlog "apr/run/log"
	"apr/tensor"
)

// changedCopy writes the test model with other values, in type d, and returns its folder.
func changedCopy(t *testing.T, d tensor.DType, change func(name string, cols int, values []float32)) string {
	t.Helper()
	return reshapedCopy(t, d, func(*arch.Config) {}, func(name string, shape []int, values []float32) []float32 {
		change(name, shape[len(shape)-1], values)
		return values
	})
}

// reshapedCopy writes the test model with another configuration, and the values that belong to it.
func reshapedCopy(t *testing.T, d tensor.DType, set func(*arch.Config), change func(name string, shape []int, values []float32) []float32) string {
	t.Helper()
	f := openModel(t, "../testdata/models/gosrc")
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	c := f.Config
	c.Layers = slices.Clone(c.Layers)
	set(&c)
	var out []tensor.Source
	for _, s := range arch.Slots(c) {
		st, ok := f.File.Tensor(s.Name)
		if !ok {
			t.Fatalf("there is no %s", s.Name)
		}
		values, err := f.ReadFloat32(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		values = change(s.Name, st.Shape, values)
		raw := make([]byte, len(values)*d.BlockBytes())
		tensor.Narrow(raw, values, d)
		out = append(out, tensor.BytesSource(tensor.Info{Name: s.Name, DType: d, Shape: s.Shape}, raw))
	}
	dir := filepath.Join(t.TempDir(), "copy")
	if _, err := modelfile.SaveHF(dir, c, tok, out, d, false); err != nil {
		t.Fatal(err)
	}
	return dir
}

// zeroNeurons writes a copy with neurons of zeros besides, and the rest multiplied by factor.
func zeroNeurons(t *testing.T, factor float32) string {
	const more = 8
	return reshapedCopy(t, tensor.F32, func(c *arch.Config) {
		for i := range c.Layers {
			c.Layers[i].FFN.Width += more
		}
	}, func(name string, shape []int, values []float32) []float32 {
		for i := range values {
			values[i] *= factor
		}
		switch {
		case strings.HasSuffix(name, "gate_proj.weight"), strings.HasSuffix(name, "up_proj.weight"):
			return append(values, make([]float32, more*shape[1])...)
		case strings.HasSuffix(name, "down_proj.weight"):
			var out []float32
			for row := range slices.Chunk(values, shape[1]) {
				out = append(append(out, row...), make([]float32, more)...)
			}
			return out
		}
		return values
	})
}

// doubledHeads writes a copy in which each head of keys and values is there twice.
func doubledHeads(t *testing.T) string {
	return reshapedCopy(t, tensor.F32, func(c *arch.Config) {
		for i := range c.Layers {
			c.Layers[i].Attn.KVHeads *= 2
		}
	}, func(name string, shape []int, values []float32) []float32 {
		if !strings.Contains(name, "k_proj") && !strings.Contains(name, "v_proj") {
			return values
		}
		heads := openModel(t, "../testdata/models/gosrc").Config.Layers[0].Attn.KVHeads
		var out []float32
		for head := range slices.Chunk(values, len(values)/heads) {
			out = append(append(out, head...), head...)
		}
		return out
	})
}

// permuted puts the neurons of every layer in another order, which changes values and computes the same.
func permuted(name string, cols int, values []float32) {
	old := append([]float32(nil), values...)
	rows := len(values) / cols
	for r := range rows {
		for c := range cols {
			from := r*cols + c
			switch {
			case strings.HasSuffix(name, "gate_proj.weight"), strings.HasSuffix(name, "up_proj.weight"):
				from = (rows-1-r)*cols + c
			case strings.HasSuffix(name, "down_proj.weight"):
				from = r*cols + cols - 1 - c
			}
			values[r*cols+c] = old[from]
		}
	}
}

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
	r, err := runlog.Read(c.Output)
	if err != nil {
		t.Fatal(err)
	}
	f, err := diagnose.Run(c.Output, VerifyCheckpoint)
	if err != nil {
		t.Fatal(err)
	}
	return &told{r.Manifest, r.Events, strings.Join(q.messages, "\n"), f}
}

// from lets a run begin with a student.
func from(student string) func(*Config) {
	return func(c *Config) { c.Student, c.StudentConfig = student, "" }
}

// A copy whose values or shapes are others, and whose first step has no divergence, is told: on the terminal, as an event, as a
// finding.
func TestFirstStepOfACopy(t *testing.T) {
	for name, tt := range map[string]struct {
		student  string
		findings int
	}{
		"permuted":     {changedCopy(t, tensor.F32, permuted), 2}, // which leaves attention, norms and tables as they are
		"zero neurons": {zeroNeurons(t, 1), 1}, "doubled heads": {doubledHeads(t), 1},
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

// A student that nearly gives the teacher's distribution before it was trained is told, by whatever divergence and temperature;
// a new one and one that was trained from other numbers are not.
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

// A student whose matrices are all near the teacher's is told, whoever made it: on the terminal, as an event, as a finding, and
// in the manifest. It trains.
func TestCloseStudentIsTold(t *testing.T) {
	coded := changedCopy(t, tensor.F32, func(_ string, _ int, v []float32) {
		for group := range slices.Chunk(v, 64) {
			most := float64(max(slices.Max(group), -slices.Min(group)))
			for i, x := range group {
				group[i] = float32(math.Round(float64(x)/most*7.5) / 7.5 * most)
			}
		}
	})
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

// A copy with one value changed, or another number in its configuration, is another model; that the rest is the teacher's is
// told: on the terminal, as an event, as a finding, and in the manifest.
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
		"eps":   {reshapedCopy(t, tensor.F32, func(c *arch.Config) { c.Eps *= 1.5 }, func(_ string, _ []int, v []float32) []float32 { return v }), nil},
		"theta": {reshapedCopy(t, tensor.F32, func(c *arch.Config) { c.Ropes = slices.Clone(c.Ropes); c.Ropes[0].Theta *= 2 }, func(_ string, _ []int, v []float32) []float32 { return v }), nil},
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

// A student that is the teacher, or derived from it, trains only when that is allowed, and the run says which of the two it is.
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
