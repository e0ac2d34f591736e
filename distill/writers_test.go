package distill

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/adapter"
	"apr/arch"
	"apr/corpus"
	"apr/internal/contracttest"
	"apr/run/diagnose"
	runlog "apr/run/log"
	"apr/tensor"
)

// TestTextOfACopy: a student that learns text of the model that it is a copy of is told, also where norms are scaled,
// hidden columns have another order or matrices are in codes; text of a model with other layers, as a pruned one's
// teacher writes it, and of one with another embedding are not.
func TestTextOfACopy(t *testing.T) {
	const student = "../testdata/models/gosrc"
	own, relative := "the student's own text", "written by a model with the student's shapes and embedding"
	normsOnly := func(path string) string { // as records were before
		norms, err := adapter.Identity(openModel(t, path))
		if err != nil {
			t.Fatal(err)
		}
		return norms
	}
	writer := func(path string) string {
		name, err := adapter.Writer(openModel(t, path))
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	// the same norms times 1.1, which is no copy's scale, and another embedding of the same shape
	other := changedCopy(t, tensor.F32, func(name string, cols int, v []float32) {
		switch {
		case strings.HasSuffix(name, "norm.weight"):
			for i := range v {
				v[i] *= 1.1
			}
		case cols < len(v):
			slices.Reverse(v)
		}
	})
	for name, x := range map[string]struct{ writer, says, cause string }{
		"the student":                       {writer(student), own, "that it wrote itself"},
		"its codes of 4 bits":               {writer("../testdata/models/gosrc-q4_k_m.gguf"), own, "that it wrote itself"},
		"named by norms alone":              {normsOnly(student), own, "that it wrote itself"},
		"AWQ's scales and codes":            {writer(foldedScales(t)), relative, "may be the student's own"},
		"hidden columns turned, in codes":   {writer(turnedColumns(t)), relative, "may be the student's own"},
		"scales and codes in the embedding": {writer(scaledTableInCodes(t)), relative, "may be the student's own"},
		"a layer more":                      {writer(moreLayers(t)), "", ""},
		"another embedding":                 {writer(other), "", ""},
		"a stranger named by norms alone":   {normsOnly(other), "", ""},
		"a name of another program":         {"a.b.c", "", ""},
	} {
		contracttest.Cases(t, 1)
		data := writtenBy(t, x.writer, 1)
		r := oneStep(t, func(c *Config) {
			from(student)(c)
			c.Teacher, c.NoTeacher, c.Loss.Alpha, c.Data, c.ChatTemplate = student, true, 0, []string{data}, "chatml"
		})
		i := slices.IndexFunc(r.findings.Findings, func(f diagnose.Finding) bool { return f.ID == "own-text" })
		if x.says == "" {
			if strings.Contains(r.said, "generated records") || r.event(runlog.OwnText) || i >= 0 {
				t.Errorf("%s: %q", name, r.said)
			}
			continue
		}
		if !strings.Contains(r.said, "warning: 1 of 1 generated records") || !strings.Contains(r.said, x.says) ||
			!r.event(runlog.OwnText) || i < 0 || !strings.Contains(r.findings.Findings[i].Cause, x.cause) {
			t.Errorf("%s: %q, findings %v", name, r.said, r.findings.Findings)
		}
	}
}

// writtenBy writes data of n records that a model of the name wrote.
func writtenBy(t *testing.T, writer string, n int) (path string) {
	path = filepath.Join(t.TempDir(), "own.jsonl")
	prompt, completion := "package main\n\n", "func main() {\n\tprintln(1, 2, 3)\n}\n"
	line, err := json.Marshal(map[string]any{"prompt": prompt, "completion": completion, "writer": writer,
		"sum": corpus.RecordSum(writer, prompt, completion)})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Repeat(append(line, '\n'), n), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// scaledTableInCodes writes a copy with AWQ's scales, the embedding in codes, too.
func scaledTableInCodes(t *testing.T) string {
	return reshapedCopyOf(t, foldedScales(t), tensor.F32, func(*arch.Config) {},
		func(name string, shape []int, v []float32) []float32 {
			rowCodes(name, shape[len(shape)-1], v)
			return v
		})
}
