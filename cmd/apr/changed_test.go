package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
)

// What a run wrote is compared with its receipt wherever it is used as a model: by the run's name, its student.apr, its
// folder and each file in it. A copy elsewhere is a model like others.
func TestChangedStudentIsRefused(t *testing.T) {
	smallRun(t)
	distil := "distill teacher STUDENT -d train.jsonl --steps 1 --batch-size 2 --seq-len 16 " +
		"--control none --backend cpu -o made"
	first := strings.Fields(strings.Replace(distil, "STUDENT", "--student-config student.json", 1))
	if code, v := call(t, first...); code != 0 {
		t.Fatal(v["error"])
	}
	use := func(model string) (code int, message string) {
		contracttest.Cases(t, 1)
		code, v := call(t, "export", model, "-o", "out.gguf", "--force")
		return code, fmt.Sprint(v["error"])
	}
	for _, file := range []string{"made/student/model.safetensors", "made/student/config.json", "made/student.apr"} {
		models := []string{"made/student", file}
		if filepath.Ext(file) == ".apr" {
			models = []string{"made", file}
		}
		sound, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, model := range models {
			if filepath.Ext(model) != ".json" {
				if code, message := use(model); code != 0 {
					t.Errorf("%s as it was: exit %d: %s", model, code, message)
				}
			}
		}
		changed := append([]byte{}, sound...)
		if changed[len(changed)-100] ^= 1; filepath.Ext(file) == ".json" {
			changed = append(sound[:len(sound):len(sound)], '\n')
		}
		if err := os.WriteFile(file, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, model := range models {
			says := filepath.Base(file) + ": is not what the run wrote"
			if code, message := use(model); code != 5 || !strings.Contains(message, says) {
				t.Errorf("%s of %s changed: exit %d: %s", file, model, code, message)
			}
		}
		again := strings.Fields(strings.Replace(distil, "STUDENT", "--student "+models[0], 1) + " --force")
		if code, v := call(t, again...); models[0] == "made/student" &&
			(code != 5 || !strings.Contains(fmt.Sprint(v["error"]), "is not what the run wrote")) {
			t.Errorf("--student %s: exit %d: %v", models[0], code, v["error"])
		}
		if file == "made/student/model.safetensors" {
			if err := os.CopyFS("copy", os.DirFS("made/student")); err != nil {
				t.Fatal(err)
			}
			if code, message := use("copy"); code != 0 {
				t.Errorf("a copy: exit %d: %s", code, message)
			}
		}
		if err := os.WriteFile(file, sound, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove("made/student/tokenizer.json"); err != nil {
		t.Fatal(err)
	}
	if code, message := use("made/student"); code != 5 || !strings.Contains(message, "is gone") {
		t.Errorf("a file that is gone: exit %d: %s", code, message)
	}
}
