package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/internal/contracttest"
	"apr/modelfile"
	runlog "apr/run/log"
	"apr/tensor"
)

// copies makes copies of a teacher with the program's own commands, each from those before it.
var copies = []struct {
	name string
	make []string // arguments; the last is the path of the copy
}{
	{"same: .apr", []string{"convert", "teacher", "-o", "copy.apr"}},
	{"same: gguf", []string{"convert", "teacher", "-o", "copy.gguf"}},
	{"same: gguf of .apr", []string{"convert", "copy.apr", "-o", "twice.gguf"}},
	{"same: folder of gguf", []string{"convert", "copy.gguf", "-o", "back"}},
	{"same: imported", []string{"import", "teacher", "-o", "imported.apr"}},
	{"same: exported", []string{"export", "copy.apr", "-o", "exported"}},
	{"same: f32", []string{"convert", "teacher", "--quantize", "f32", "-o", "f32"}},
	{"same: bf16 of f32", []string{"convert", "f32", "--quantize", "bf16", "-o", "bf16.apr"}},
	{"same: f16", []string{"convert", "teacher", "--quantize", "f16", "-o", "f16.safetensors"}},
	{"derived: q4_k_m", []string{"convert", "teacher", "--quantize", "q4_k_m", "-o", "q4_k_m.gguf"}},
	{"derived: q4k", []string{"quantize", "copy.apr", "--scheme", "q4k", "-o", "q4k.apr"}},
	{"derived: q6k", []string{"convert", "teacher", "--quantize", "q6k", "-o", "q6k.apr"}},
	{"derived: q8_0", []string{"convert", "teacher", "--quantize", "q8_0", "-o", "q8_0.gguf"}},
	{"derived: f32 of q4_k_m", []string{"convert", "q4_k_m.gguf", "--quantize", "f32", "-o", "expanded.apr"}},
	{"derived: bf16 of q8_0", []string{"convert", "q8_0.gguf", "--quantize", "bf16", "-o", "narrowed"}},
	{"derived: f32 of another program's q4_k_m", []string{"convert", "other.gguf", "--quantize", "f32", "-o", "others.apr"}},
	{"derived: q8_0 of q4_k_m", []string{"convert", "expanded.apr", "--quantize", "q8_0", "-o", "again.gguf"}},
}

// inModelFolder goes to a folder in which the shared test model is "teacher" and its text data.zst.
func inModelFolder(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for name, path := range map[string]string{"teacher": "../../testdata/models/gosrc", "other.gguf": "../../testdata/models/gosrc-q4_k_m.gguf",
		"data.jsonl.zst": "../../examples/gosrc/data/gosrc-val.jsonl.zst",
		"student.json":   "../../examples/gosrc/student-config.json"} {
		from, err := filepath.Abs(path)
		if err == nil {
			err = os.Symlink(from, filepath.Join(dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

// distilArgs are those of a short run of a teacher and a student.
func distilArgs(command, teacher, student string, more ...string) []string {
	return append([]string{command, teacher, "--student", student, "-d", "data.jsonl.zst", "--batch-size", "1", "--seq-len", "16", "--backend", "cpu",
		"--lr", "3e-4", "--no-packing", "--probe", "off"}, more...)
}

// errorID returns the id of a failed call's error.
func errorID(v map[string]any) any {
	e, _ := v["error"].(map[string]any)
	return e["id"]
}

// A student that is its teacher is refused, by whatever conversion it came about, by distill and by the checks of dispatch, and
// in whichever direction: exit code 5.
func TestSameModel(t *testing.T) {
	inModelFolder(t)
	for _, c := range copies {
		must(t, c.make...)
		refusedAs(t, c.name, "teacher", c.make[len(c.make)-1])
	}
	refusedAs(t, "derived: the teacher in blocks", "q4_k_m.gguf", "teacher")
	refusedAs(t, "same: the teacher in blocks, and expanded", "q4_k_m.gguf", "expanded.apr")
	refusedAs(t, "same: files of weights", "teacher", shards(t))
}

// A plan is of headers: a student that is the teacher's file is refused there, too.
func TestPlanOfATeacherItself(t *testing.T) {
	inModelFolder(t)
	for _, student := range []string{"teacher", "./teacher/"} {
		if code, v := call(t, distilArgs("plan", "teacher", student, "--steps", "1")...); code != 5 ||
			errorID(v) != "E-DISTILL-003" {
			t.Errorf("%s: exit %d, %v", student, code, v["error"])
		}
	}
	must(t, distilArgs("plan", "teacher", "teacher", "--steps", "1", "--allow-same-model")...)
}

// must runs a command that has to succeed.
func must(t *testing.T, args ...string) {
	t.Helper()
	if code, v := call(t, args...); code != 0 {
		t.Fatalf("apr %v: %v", args, v["error"])
	}
}

// refusedAs reports a student that distill or the checks of dispatch do not refuse, as the name says.
func refusedAs(t *testing.T, name, teacher, student string) {
	t.Helper()
	contracttest.Cases(t, 1)
	want := map[string]string{"same": "E-DISTILL-003", "derived": "E-DISTILL-007"}[strings.Split(name, ":")[0]]
	for _, args := range [][]string{
		distilArgs("distill", teacher, student, "--steps", "1", "-o", "refused"), distilArgs("dispatch", teacher, student, "--steps", "1", "-o", "refused", "--dry-run", "--min-disk", "1MB"),
	} {
		if code, v := call(t, args...); code != 5 || errorID(v) != want {
			t.Errorf("%s: apr %v: exit %d, %v", name, args, code, v["error"])
		}
	}
	if _, err := os.Stat("refused"); err == nil {
		t.Fatalf("%s: a run was begun", name)
	}
}

// A copy with more or fewer rows of the vocabulary is refused, also after our own conversions.
func TestSameModelOfAnotherVocabulary(t *testing.T) {
	inModelFolder(t)
	for name, rows := range map[string]int{"padded": 4224, "cut": 4096} {
		resize(t, name, rows)
		must(t, "convert", name, "--quantize", "q4_k_m", "-o", name+".gguf")
		must(t, "convert", name, "--quantize", "f16", "-o", name+".apr")
		refusedAs(t, "same: "+name, "teacher", name)
		refusedAs(t, "same: "+name+", f16", "teacher", name+".apr")
		refusedAs(t, "derived: "+name+", in blocks", "teacher", name+".gguf")
		refusedAs(t, "derived: "+name+", of a teacher in blocks", "other.gguf", name)
	}
}

// A copy with a bias more, of zeros, is refused, also after our own conversions, and whichever of both it is; with a bias that adds
// something it is another model.
func TestSameModelWithABias(t *testing.T) {
	inModelFolder(t)
	biased := func(c *arch.Config) {
		c.Family = "llama"
		for i := range c.Layers {
			c.Layers[i].Attn.OBias = true
		}
	}
	rewritten(t, "biased", biased, func(string, []float32) {})
	must(t, "convert", "biased", "--quantize", "q6k", "-o", "biased.apr")
	refusedAs(t, "same: a bias of zeros", "teacher", "biased")
	refusedAs(t, "same: a student without it", "biased", "teacher")
	refusedAs(t, "derived: a bias of zeros, in blocks", "teacher", "biased.apr")
	rewritten(t, "other", biased, func(name string, v []float32) {
		if strings.HasSuffix(name, "o_proj.bias") {
			v[0] = 1
		}
	})
	contracttest.Cases(t, 1)
	code, v := call(t, distilArgs("dispatch", "teacher", "other", "--steps", "1", "-o", "run", "--dry-run", "--min-disk", "1MB")...)
	if kin, _ := v["kinship"].(map[string]any); code != 0 || kin["relation"] != "different" || !strings.Contains(fmt.Sprint(kin["field"]), "o_proj.bias") {
		t.Errorf("a bias of 1: exit %d, %v, %v", code, kin, v["error"])
	}
}

// permute writes a copy of the teacher whose neurons are in another order: the folder "permuted".
func permute(t *testing.T) {
	t.Helper()
	f, err := modelfile.Open("teacher")
	if err != nil {
		t.Fatal(err)
	}
	hidden, width := f.Config.Hidden, f.Config.Layers[0].FFN.Width
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	rewritten(t, "permuted", func(*arch.Config) {}, func(name string, v []float32) {
		switch {
		case strings.HasSuffix(name, "gate_proj.weight"), strings.HasSuffix(name, "up_proj.weight"):
			old := slices.Clone(v)
			for r := range width {
				copy(v[r*hidden:(r+1)*hidden], old[(width-1-r)*hidden:])
			}
		case strings.HasSuffix(name, "down_proj.weight"):
			for row := range slices.Chunk(v, width) {
				slices.Reverse(row)
			}
		}
	})
}

// A copy whose neurons are in another order, and then in codes of 4 bits, is told by the run that trains it.
func TestPermutedCodesAreTold(t *testing.T) {
	inModelFolder(t)
	permute(t)
	must(t, "convert", "permuted", "--quantize", "q4k", "-o", "permuted.apr")
	must(t, distilArgs("distill", "teacher", "permuted.apr", "--steps", "1", "-o", "run")...)
	contracttest.Cases(t, 1)
	if events, err := os.ReadFile("run/events.jsonl"); err != nil || !strings.Contains(string(events), runlog.FirstStepAgrees) {
		t.Errorf("no event says it (%v):\n%s", err, events)
	}
}

// A student that is a copy of one of several routed teachers is told at the first step, also where the first batch has
// none of its rows, and the others are not taken for its like.
func TestRoutedCopyIsTold(t *testing.T) {
	inModelFolder(t)
	permute(t)
	var data strings.Builder
	for i := range 40 {
		source := map[bool]string{true: "code", false: "prose"}[i == 39]
		fmt.Fprintf(&data, `{"source": %q, "text": "func f%d(a int) int {\n\treturn f%d(a-1)\n}\n"}`+"\n", source, i, i)
	}
	if err := os.WriteFile("sources.jsonl", []byte(data.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	short := []string{"-d", "sources.jsonl", "--val-fraction", "0", "--no-shuffle", "--steps", "1", "--batch-size", "2",
		"--seq-len", "16", "--probe", "off", "--control", "none", "--backend", "cpu"}
	must(t, append([]string{"distill", "teacher", "--student-config", "student.json", "-o", "other.apr"}, short...)...)
	must(t, append([]string{"distill", "--strategy", "ensemble", "--route", "prose=other.apr", "--route", "code=teacher",
		"--student", "permuted", "-o", "run"}, short...)...)
	contracttest.Cases(t, 1)
	events, err := os.ReadFile("run/events.jsonl")
	n := strings.Count(string(events), runlog.FirstStepEqual)
	if err != nil || n != 1 || !strings.Contains(string(events), `"teacher":"teacher"`) {
		t.Errorf("%d events (%v):\n%s", n, err, events)
	}
}

// resize writes the teacher with so many rows of its vocabulary: those it has, then zeros.
func resize(t *testing.T, dir string, rows int) {
	t.Helper()
	rewritten(t, dir, func(c *arch.Config) { c.Vocab = rows }, func(string, []float32) {})
}

// rewritten writes the teacher with another configuration and other values: those that it has, then zeros.
func rewritten(t *testing.T, dir string, set func(*arch.Config), change func(name string, values []float32)) {
	t.Helper()
	f, err := modelfile.Open("teacher")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	c := f.Config
	c.Layers = slices.Clone(c.Layers)
	set(&c)
	var out []tensor.Source
	for name, shape := range arch.Shapes(c) {
		var values []float32
		if _, ok := f.File.Tensor(name); ok {
			if values, err = f.ReadFloat32(name); err != nil {
				t.Fatal(err)
			}
		}
		n, _ := tensor.Elements(shape)
		values = append(values, make([]float32, max(0, int(n)-len(values)))...)[:n]
		change(name, values)
		raw := make([]byte, 2*n)
		tensor.Narrow(raw, values, tensor.BF16)
		out = append(out, tensor.BytesSource(tensor.Info{Name: name, DType: tensor.BF16, Shape: shape}, raw))
	}
	if _, err := modelfile.SaveHF(dir, c, tok, out, tensor.BF16, false); err != nil {
		t.Fatal(err)
	}
}

// chains are conversions one after the other, from the folder "teacher", and whose student the last one is.
var chains = []struct {
	teacher string
	types   []string
}{
	{"other.gguf", []string{"q6k", "q8_0"}},
	{"other.gguf", []string{"q8_0", "bf16"}},
	{"other.gguf", []string{"q6k", "bf16", "q8_0"}},
	{"teacher", []string{"q8_0", "bf16", "q6k"}},
	{"teacher", []string{"q4k", "bf16", "q6k"}},
	{"teacher", []string{"q6k", "f16", "q4k"}},
	{"teacher", []string{"q4k", "q6k", "q8_0", "bf16"}},
	{"teacher", []string{"q8_0", "q6k", "q4k", "f32"}},
}

// identityCheck returns what the check of dispatch says of teacher and student.
func identityCheck(v map[string]any) (status, detail string) {
	checks, _ := v["checks"].([]any)
	for _, c := range checks {
		if c, _ := c.(map[string]any); c["id"] == "teacher_is_not_student" {
			status, _ = c["status"].(string)
			detail, _ = c["detail"].(string)
		}
	}
	return status, detail
}

// Whatever chain of our own conversions made a copy: it is refused, or it is said that it is close. It is never silent.
func TestCloseModelIsTold(t *testing.T) {
	inModelFolder(t)
	distilled := false
	for i, c := range chains {
		contracttest.Cases(t, 1)
		student := "teacher"
		for j, d := range c.types {
			next := fmt.Sprintf("%d.%d%s", i, j, map[bool]string{true: ".gguf", false: ".apr"}[d == "q8_0"])
			must(t, "convert", student, "--quantize", d, "-o", next)
			student = next
		}
		code, v := call(t, distilArgs("dispatch", c.teacher, student, "--steps", "1", "-o", "run", "--dry-run", "--min-disk", "1MB")...)
		status, detail := identityCheck(v)
		kin, _ := v["kinship"].(map[string]any)
		switch {
		case code == 5 && errorID(v) == "E-DISTILL-007":
			continue
		case code != 0 || status != "warning" || !strings.Contains(detail, "close: ") || kin["close"] != true:
			t.Errorf("%s and %v: exit %d, %s: %s, kinship %v, %v", c.teacher, c.types, code, status, detail, kin, v["error"])
			continue
		case distilled:
			continue
		}
		must(t, distilArgs("distill", c.teacher, student, "--steps", "1", "-o", "trained")...)
		distilled = true
		if events, err := os.ReadFile("trained/events.jsonl"); err != nil || !strings.Contains(string(events), runlog.CloseToTeacher) {
			t.Errorf("%v: no event says it (%v)", c.types, err)
		}
	}
	if !distilled {
		t.Error("all chains are refused: none shows what is told")
	}
}

// shards writes the teacher as several files, tensors in another order, and returns the folder.
func shards(t *testing.T) string {
	t.Helper()
	f, err := modelfile.Open("teacher")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	var out []tensor.Source
	for _, st := range slices.Backward(f.File.Tensors()) {
		out = append(out, st.Source())
	}
	names, err := modelfile.SaveHFFolder("shards", f.Config, tok, out, modelfile.HFOptions{DType: tensor.BF16, MaxShard: 3 << 20})
	if err != nil || len(names) < 6 {
		t.Fatalf("%v: %v", names, err)
	}
	return "shards"
}

// A student that learned something is another model, in every type: a run that was allowed to start from the teacher gives one.
func TestTrainedStudentIsAnotherModel(t *testing.T) {
	inModelFolder(t)
	must(t, distilArgs("distill", "teacher", "teacher", "--steps", "2", "-o", "run", "--allow-same-model")...)
	students := []string{filepath.Join("run", "student.apr")}
	for _, d := range []string{"bf16", "f16", "q8_0", "q6k", "q4_k_m"} {
		out := d + ".gguf"
		must(t, "convert", students[0], "--quantize", d, "-o", out)
		students = append(students, out)
	}
	for _, s := range students {
		contracttest.Cases(t, 1)
		code, v := call(t, distilArgs("dispatch", "teacher", s, "--steps", "1", "-o", "again", "--dry-run", "--min-disk", "1MB")...)
		kin, _ := v["kinship"].(map[string]any)
		if code != 0 || kin["relation"] != "different" || !(kin["relative_difference"].(float64) > 1e-4) {
			t.Errorf("%s: exit %d, %v, %v", s, code, kin, v["error"])
		}
	}
	must(t, distilArgs("distill", "teacher", students[0], "--steps", "1", "-o", "again")...)
	// its own copies are refused, though rows that were never moved have no rounding errors
	must(t, "convert", "bf16.gguf", "--quantize", "f32", "-o", "wide.apr")
	for _, s := range []string{"bf16.gguf", "f16.gguf", "wide.apr"} {
		refusedAs(t, "derived: "+s, students[0], s)
	}
}
