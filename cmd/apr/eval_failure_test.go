//go:build !windows

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/bench"
	"apr/internal/contracttest"
)

// Problems as HumanEval and MBPP have them. The reference solutions are wrong.
const (
	humanEval = `{"task_id":"t/0","prompt":"def add(a, b):\n    \"\"\"sum\"\"\"\n","entry_point":"add","test":"def check(f):\n    assert f(2, 3) == 5\n","canonical_solution":"    return 0\n"}
{"task_id":"t/1","prompt":"def sub(a, b):\n    \"\"\"difference\"\"\"\n","entry_point":"sub","test":"def check(f):\n    assert f(2, 3) == -1\n","canonical_solution":"    return 0\n"}
`
	mbpp = `{"task_id":1,"text":"Write one.","code":"def one():\n    return 0\n","test_list":["assert one() == 1"]}
{"task_id":2,"text":"Write two.","code":"def two():\n    return 0\n","test_list":["assert two() == 2"]}
`
)

// codeTasks are the two tasks, each with its problems, and the same with reference solutions that pass.
var codeTasks = map[string][2]string{
	"humaneval": {humanEval, replaceEach(humanEval, `    return 0\n`, `    return a + b\n`, `    return a - b\n`)},
	"mbpp":      {mbpp, replaceEach(mbpp, `return 0`, `return 1`, `return 2`)},
}

// replaceEach replaces the occurrences of old in s, each by one of news.
func replaceEach(s, old string, news ...string) string {
	for _, n := range news {
		s = strings.Replace(s, old, n, 1)
	}
	return s
}

// learnt are texts that a small model learns by heart: a right and a wrong program for each task.
var learnt = []string{
	"def add(a, b):\n    \"\"\"sum\"\"\"\n    return a + b\n", "def sub(a, b):\n    \"\"\"difference\"\"\"\n    return a + b\n",
	"\"\"\"\nWrite one.\nassert one() == 1\n\"\"\"\ndef one():\n    return 1\n", "\"\"\"\nWrite two.\nassert two() == 2\n\"\"\"\ndef two():\n    return 1\n",
}

// withoutPython reports whether python3 is missing, with which alone programs of these tasks run; then eval must say so.
func withoutPython(t *testing.T) bool {
	t.Helper()
	if _, err := exec.LookPath("python3"); err == nil {
		return false
	}
	if code, v := score(t, reference, "humaneval", humanEval); code != 9 {
		t.Errorf("without python3: exit %d: %v", code, v)
	}
	return true
}

// writers makes two models: one that has learnt the texts, and one of random weights, which writes gibberish.
func writers(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	var text strings.Builder
	for range 8 {
		for _, s := range learnt {
			line, err := json.Marshal(map[string]string{"text": s})
			if err != nil {
				t.Fatal(err)
			}
			text.Write(append(line, '\n'))
		}
	}
	config := strings.NewReplacer(`"hidden_size":32`, `"hidden_size":64`, `"intermediate_size":48`, `"intermediate_size":128`).Replace(signalConfig)
	for name, content := range map[string]string{"train.jsonl": text.String(), "config.json": config} {
		if err := os.WriteFile(path(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if code, v := call(t, "distill", reference, "--student-config", path("config.json"), "-d", path("train.jsonl"), "--val-fraction", "0", "--alpha", "0",
		"--no-packing", "--steps", "160", "--batch-size", "4", "--seq-len", "48", "--learning-rate", "5e-3", "--backend", "cpu", "-o", path("run")); code != 0 {
		t.Fatalf("exit %d: %v", code, v)
	}
	tok, err := filledTokenizer(0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := bench.Shape("0.5b")
	if err != nil {
		t.Fatal(err)
	}
	s := c.Sizes()
	s.Hidden, s.Width, s.Heads, s.KVHeads, s.HeadDim, s.Layers, s.Vocab = 64, 96, 2, 1, 32, 1, tok.RealIDs()
	c = arch.Qwen2(s)
	if err := writeModel(path("gibberish.apr"), bench.RandomModel(c, 5), tok); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"healthy": path("run/student"), "gibberish": path("gibberish.apr")}
}

// score runs apr eval over problems and returns its exit code and JSON.
func score(t *testing.T, model, task, problems string) (int, map[string]any) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "problems.jsonl")
	if err := os.WriteFile(file, []byte(problems), 0o600); err != nil {
		t.Fatal(err)
	}
	return call(t, "eval", model, "--task", task, "--data", file, "--max-tokens", "32", "--backend", "cpu")
}

// rate is the pass@1 of an answer, −1 if it has none.
func rate(v map[string]any) float64 {
	all, _ := v["pass_at_k"].([]any)
	if len(all) != 1 {
		return -1
	}
	first, _ := all[0].(map[string]any)
	r, ok := first["rate"].(float64)
	if !ok {
		return -1
	}
	return r
}

// TestGibberishFails: a model that writes no program scores 0, says that inference failed and why, and ends with exit 8.
func TestGibberishFails(t *testing.T) {
	if withoutPython(t) {
		return
	}
	models := writers(t)
	for task, problems := range codeTasks {
		for _, p := range problems {
			contracttest.Cases(t, 1)
			code, v := score(t, models["gibberish"], task, p)
			why, _ := v["inference_error"].(string)
			if code != 8 || rate(v) != 0 || v["mode"] != "inference_failed" || why == "" {
				t.Errorf("%s: exit %d, rate %g, mode %v, inference error %q: %v", task, code, rate(v), v["mode"], why, v)
			}
		}
	}
}

// TestHealthyPasses: a model that has learnt a right and a wrong program scores between 0 and 1, and ends with exit 0.
func TestHealthyPasses(t *testing.T) {
	if withoutPython(t) {
		return
	}
	models := writers(t)
	for task, problems := range codeTasks {
		contracttest.Cases(t, 1)
		code, v := score(t, models["healthy"], task, problems[0])
		if r := rate(v); code != 0 || !(0 < r && r < 1) || v["mode"] != "inference" || v["inference_error"] != nil {
			t.Errorf("%s: exit %d, rate %g, mode %v: %v", task, code, rate(v), v["mode"], v)
		}
	}
}

// shape lists the keys of a JSON value with the types of their values.
func shape(at string, v any, add func(string)) {
	switch x := v.(type) {
	case map[string]any:
		for key, value := range x {
			shape(at+"."+key, value, add)
		}
	case []any:
		for _, value := range x {
			shape(at+"[]", value, add)
		}
	}
	add(fmt.Sprintf("%s %T", at, v))
}

// TestTasksAlike: HumanEval and MBPP answer in the same shape, with the same mode, rate and exit code, for a model that
// writes programs and for one that writes none.
func TestTasksAlike(t *testing.T) {
	if withoutPython(t) {
		return
	}
	for name, model := range writers(t) {
		var codes []int
		var shapes [][]string
		var rates []float64
		for _, task := range []string{"humaneval", "mbpp"} {
			contracttest.Cases(t, 1)
			code, v := score(t, model, task, codeTasks[task][0])
			keys := map[string]bool{fmt.Sprint("mode is ", v["mode"]): true}
			shape("", v, func(s string) { keys[s] = true })
			codes, rates, shapes = append(codes, code), append(rates, rate(v)), append(shapes, slices.Sorted(maps.Keys(keys)))
		}
		if codes[0] != codes[1] || rates[0] != rates[1] || !slices.Equal(shapes[0], shapes[1]) || len(shapes[0]) < 20 {
			t.Errorf("%s: exits %v, rates %v, shapes\n%v\n%v", name, codes, rates, shapes[0], shapes[1])
		}
	}
}

// TestReferencesAreNotRead: with every reference solution replaced by a program that passes the report is the same, but for
// the hash of the file.
func TestReferencesAreNotRead(t *testing.T) {
	if withoutPython(t) {
		return
	}
	for name, model := range writers(t) {
		for task, problems := range codeTasks {
			if problems[0] == problems[1] {
				t.Fatal("the problems have the same solutions")
			}
			contracttest.Cases(t, 1)
			code, want := score(t, model, task, problems[0])
			again, got := score(t, model, task, problems[1])
			if want["data_sha256"] == got["data_sha256"] {
				t.Errorf("%s, %s: the hash does not tell the files apart", name, task)
			}
			delete(want, "data_sha256")
			delete(got, "data_sha256")
			if code != again || !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: exit %d and %d\n%v\n%v", name, task, code, again, want, got)
			}
		}
	}
}
