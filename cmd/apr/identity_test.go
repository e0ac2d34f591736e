package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/modelfile"
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
		"data.jsonl.zst": "../../examples/gosrc/data/gosrc-val.jsonl.zst"} {
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
	refused := func(name, teacher, student string) {
		t.Helper()
		contracttest.Cases(t, 1)
		want := map[string]string{"same": "E-DISTILL-003", "derived": "E-DISTILL-007"}[strings.Split(name, ":")[0]]
		for _, args := range [][]string{
			distilArgs("distill", teacher, student, "--steps", "1", "-o", "run"), distilArgs("dispatch", teacher, student, "--steps", "1", "-o", "run", "--dry-run", "--min-disk", "1MB"),
		} {
			if code, v := call(t, args...); code != 5 || errorID(v) != want {
				t.Errorf("%s: apr %v: exit %d, %v", name, args, code, v["error"])
			}
		}
		if _, err := os.Stat("run"); err == nil {
			t.Fatalf("%s: a run was begun", name)
		}
	}
	for _, c := range copies {
		if code, v := call(t, c.make...); code != 0 {
			t.Fatalf("apr %v: %v", c.make, v["error"])
		}
		refused(c.name, "teacher", c.make[len(c.make)-1])
	}
	refused("derived: the teacher in blocks", "q4_k_m.gguf", "teacher")
	refused("same: the teacher in blocks, and expanded", "q4_k_m.gguf", "expanded.apr")
	refused("same: files of weights", "teacher", shards(t))
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
	if code, v := call(t, distilArgs("distill", "teacher", "teacher", "--steps", "2", "-o", "run", "--allow-same-model")...); code != 0 {
		t.Fatal(v["error"])
	}
	students := []string{filepath.Join("run", "student.apr")}
	for _, d := range []string{"bf16", "f16", "q8_0", "q6k", "q4_k_m"} {
		out := d + ".gguf"
		if code, v := call(t, "convert", students[0], "--quantize", d, "-o", out); code != 0 {
			t.Fatal(v["error"])
		}
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
	if code, v := call(t, distilArgs("distill", "teacher", students[0], "--steps", "1", "-o", "again")...); code != 0 {
		t.Error(v["error"])
	}
}
