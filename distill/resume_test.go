package distill

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

func checkpointsOf(t *testing.T, c Config) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(c.Output, "checkpoints"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Going back to an earlier checkpoint gives up the later ones: with other settings they are of another run, and the
// next resume must continue the new one.
func TestResumeFromAnEarlierCheckpoint(t *testing.T) {
	c := tinyConfig(t)
	c.CheckpointEvery, c.KeepCheckpoints = 2, 3
	_, whole := mustRun(t, c, 0)
	if got, want := checkpointsOf(t, c), []string{"step-000004", "step-000006", "step-000008"}; !slices.Equal(got, want) {
		t.Fatalf("checkpoints %v, want %v", got, want)
	}
	c.Resume, c.AllowChanged, c.LR = filepath.Join(c.Output, "checkpoints", "step-000004"), true, 5e-3
	if _, _, err := runOnce(t, c, 0, 1); fault.KindOf(err) != fault.Stopped {
		t.Fatal(err)
	}
	if got, want := checkpointsOf(t, c), []string{"step-000004", "step-000005"}; !slices.Equal(got, want) {
		t.Errorf("checkpoints %v, want %v", got, want)
	}
	c.Resume, c.AllowChanged = ResumeAuto, false
	out, other := mustRun(t, c, 0)
	if !strings.HasSuffix(out.ResumedFrom, "step-000005") || bytes.Equal(whole, other) {
		t.Errorf("resumed from %q; the same student as before: %v", out.ResumedFrom, bytes.Equal(whole, other))
	}
	if got, want := checkpointsOf(t, c), []string{"step-000005", "step-000006", "step-000008"}; !slices.Equal(got, want) {
		t.Errorf("checkpoints %v, want %v", got, want)
	}
	if n := len(readSteps(t, c)); n != 8 {
		t.Errorf("%d steps recorded, want 8", n)
	}
	contracttest.Cases(t, 1)
}

// editState changes state.json of a checkpoint, and its sum, as another program would have written it.
func editState(t *testing.T, dir string, change func(map[string]any)) {
	t.Helper()
	path := filepath.Join(dir, stateFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var st map[string]any
	if err := json.Unmarshal(text, &st); err != nil {
		t.Fatal(err)
	}
	change(st)
	if text, err = json.Marshal(st); err != nil {
		t.Fatal(err)
	}
	own := sha256.Sum256(text)
	for name, b := range map[string][]byte{path: text, filepath.Join(dir, sumsFile): []byte(sums(hex.EncodeToString(own[:]), st["sha256"].(string)))} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A run goes on only with models of the same arithmetic, the same ids and the same program; a checkpoint of an older program,
// which does not say all of that, needs --allow-changed, and one of a newer program is not read.
func TestResumeIdentity(t *testing.T) {
	teacher, student, text := filepath.Join(t.TempDir(), "teacher"), filepath.Join(t.TempDir(), "student.json"), filepath.Join(t.TempDir(), "text.jsonl")
	if err := os.CopyFS(teacher, os.DirFS("../testdata/models/gosrc")); err != nil {
		t.Fatal(err)
	}
	words := strings.Repeat("{\"text\":\"package main\\n\\nfunc main() { println(1, 2, 3) }\\n\"}\n", 60)
	put := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace := func(path, was, is string) {
		b, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(b), was) {
			t.Fatalf("%s does not hold %q (%v)", path, was, err)
		}
		put(path, strings.Replace(string(b), was, is, 1))
	}
	config, checkpoint := filepath.Join(teacher, "config.json"), ""
	for _, tt := range []struct {
		name   string
		change func(c *Config)
		kind   fault.Kind
		want   string
	}{
		{"nothing", func(*Config) {}, 0, ""},
		{"the teacher's theta", func(*Config) { replace(config, `1000000.0`, `1000001.0`) }, fault.Invalid, "teacher_config.ropes.0.theta was 1e+06, is 1.000001e+06"},
		{"the teacher's epsilon", func(*Config) { replace(config, `1e-06`, `2e-06`) }, fault.Invalid, "teacher_config.eps was 1e-06, is 2e-06"},
		{"the teacher's positions", func(*Config) { replace(config, `2048`, `1024`) }, fault.Invalid, "teacher_config.max_positions was 2048, is 1024"},
		{"the student's theta", func(*Config) { replace(student, `1e6`, `2e6`) }, fault.Invalid, "student_config.ropes.0.theta was 1e+06, is 2e+06"},
		{"the student's epsilon", func(*Config) { replace(student, `1e-6`, `2e-6`) }, fault.Invalid, "student_config.eps was 1e-06, is 2e-06"},
		{"the student's positions", func(*Config) { replace(student, `256`, `128`) }, fault.Invalid, "student_config.max_positions was 256, is 128"},
		{"how the student is drawn", func(*Config) { replace(student, `"vocab_size"`, `"initializer_range":0.03,"vocab_size"`) }, fault.Invalid, "student_config.init_range was 0.02, is 0.03"},
		{"blanks in the student's file", func(*Config) { replace(student, `,`, ` , `) }, 0, ""},
		{"the text", func(*Config) { put(text, strings.Replace(words, "println(1", "println(7", 1)) }, fault.Invalid, "trained_ids was "},
		{"the program", func(c *Config) { c.Build = "another" }, fault.Invalid, "program was test, is another"},
		{"an option that was not there", func(*Config) {
			editState(t, checkpoint, func(st map[string]any) { delete(st["must_agree"].(map[string]any), "learning_rate") })
		}, fault.Invalid, "learning_rate was not recorded, is 0.01"},
		{"an older checkpoint", func(*Config) {
			editState(t, checkpoint, func(st map[string]any) { st["schema"] = "apr.checkpoint/2" })
		}, fault.Invalid, "the checkpoint is of schema apr.checkpoint/2, which recorded less of what bits depend on than apr.checkpoint/4"},
		{"an older checkpoint, allowed", func(c *Config) {
			c.AllowChanged = true
			editState(t, checkpoint, func(st map[string]any) { st["schema"] = "apr.checkpoint/2" })
		}, 0, ""},
		{"a newer checkpoint", func(c *Config) {
			c.AllowChanged = true
			editState(t, checkpoint, func(st map[string]any) { st["schema"] = "apr.checkpoint/9" })
		}, fault.Format, `is a checkpoint of schema "apr.checkpoint/9"; this program reads apr.checkpoint/4`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			put(student, tinyStudent)
			put(text, words)
			original, err := os.ReadFile("../testdata/models/gosrc/config.json")
			if err != nil {
				t.Fatal(err)
			}
			put(config, string(original))
			c := tinyConfig(t)
			c.Teacher, c.StudentConfig, c.Data, c.Steps = teacher, student, []string{text}, 3
			if _, _, err := runOnce(t, c, 0, 1); fault.KindOf(err) != fault.Stopped {
				t.Fatal(err)
			}
			checkpoint = filepath.Join(c.Output, "checkpoints", checkpointsOf(t, c)[0])
			c.Resume = ResumeAuto
			tt.change(&c)
			_, _, err = runOnce(t, c, 0, 0)
			if tt.want == "" && err != nil || tt.want != "" && (fault.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want kind %v and %q", err, tt.kind, tt.want)
			}
		})
	}
}
