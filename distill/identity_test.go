package distill

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
	f := openModel(t, "../testdata/models/gosrc")
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	var out []tensor.Source
	for _, st := range f.File.Tensors() {
		values, err := f.ReadFloat32(st.Name)
		if err != nil {
			t.Fatal(err)
		}
		change(st.Name, st.Cols(), values)
		raw := make([]byte, len(values)*d.BlockBytes())
		tensor.Narrow(raw, values, d)
		out = append(out, tensor.BytesSource(tensor.Info{Name: st.Name, DType: d, Shape: st.Shape}, raw))
	}
	dir := filepath.Join(t.TempDir(), "copy")
	if _, err := modelfile.SaveHF(dir, f.Config, tok, out, d, false); err != nil {
		t.Fatal(err)
	}
	return dir
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

// A copy whose values are others, and whose first step has no divergence, is told: on the terminal, as an event, as a finding.
func TestFirstStepOfACopy(t *testing.T) {
	copies := func(t *testing.T, student string) (q *quiet, found bool, f diagnose.Findings) {
		c := tinyConfig(t)
		c.Student, c.StudentConfig, c.Steps, c.SeqLen = student, "", 1, 32
		_, q, err := runOnce(t, c, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		r, err := runlog.Read(c.Output)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range r.Events {
			found = found || e.Name == runlog.FirstStepAgrees
		}
		if r.Manifest.Kinship == nil || r.Manifest.Kinship.Relation != "different" {
			t.Errorf("kinship %+v", r.Manifest.Kinship)
		}
		if f, err = diagnose.Run(c.Output, VerifyCheckpoint); err != nil {
			t.Fatal(err)
		}
		return q, found, f
	}
	q, found, f := copies(t, changedCopy(t, tensor.F32, permuted)) // which leaves attention, norms and tables as they are
	if !found || !strings.Contains(strings.Join(q.messages, "\n"), "is it a copy of the teacher?") || len(f.Findings) != 2 || !hasFinding(f, "copy") || !hasFinding(f, "alike") {
		t.Errorf("event: %v; messages %q; findings %+v", found, q.messages, f.Findings)
	}
	q, found, f = copies(t, changedCopy(t, tensor.F32, func(name string, _ int, v []float32) {
		for i := range v {
			v[i] *= 1.01
		}
	}))
	if found || strings.Contains(strings.Join(q.messages, "\n"), "copy of the teacher") || len(f.Findings) != 0 {
		t.Errorf("a student that learns: event: %v; messages %q; findings %+v", found, q.messages, f.Findings)
	}
	contracttest.Cases(t, 2)
}

func hasFinding(f diagnose.Findings, id string) bool {
	return slices.ContainsFunc(f.Findings, func(x diagnose.Finding) bool { return x.ID == id })
}

// A copy with one value changed is another model; that the rest is the teacher's is told: on the terminal, as an event, as a
// finding, and in the manifest.
func TestEditedCopyIsTold(t *testing.T) {
	c := tinyConfig(t)
	c.Student, c.StudentConfig, c.Steps = changedCopy(t, tensor.F32, func(name string, _ int, v []float32) {
		if name == "model.norm.weight" {
			v[3] *= 1.05
		}
	}), "", 1
	_, q, err := runOnce(t, c, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := runlog.Read(c.Output)
	if err != nil {
		t.Fatal(err)
	}
	if k := r.Manifest.Kinship; k == nil || k.Relation != "different" || k.Alike == 0 || k.Alike != k.Tensors-1 || !slices.Equal(k.Others, []string{"model.norm.weight"}) {
		t.Errorf("kinship %+v", k)
	}
	if !slices.ContainsFunc(r.Events, func(e runlog.Event) bool { return e.Kind == "warning" && e.Name == runlog.MostlyAlike }) {
		t.Error("no event")
	}
	if said := strings.Join(q.messages, "\n"); !strings.Contains(said, "is it an edited copy?") || !strings.Contains(said, "model.norm.weight") {
		t.Errorf("messages %q", q.messages)
	}
	f, err := diagnose.Run(c.Output, VerifyCheckpoint)
	if err != nil || !hasFinding(f, "alike") {
		t.Errorf("findings %+v, %v", f.Findings, err)
	}
	contracttest.Cases(t, 1)
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
