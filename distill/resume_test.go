package distill

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/internal/fault"
	runlog "apr/run/log"
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

// A run goes on only with models of the same arithmetic, the same ids and the same program; a checkpoint of an older
// program, which does not say all of that, needs --allow-changed, and one of a newer program is not read.
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
		}, fault.Invalid, "the checkpoint is of schema apr.checkpoint/2, which recorded less of what bits depend on than apr.checkpoint/5"},
		{"an older checkpoint, allowed", func(c *Config) {
			c.AllowChanged = true
			editState(t, checkpoint, func(st map[string]any) { st["schema"] = "apr.checkpoint/2" })
		}, 0, ""},
		{"another leg's checkpoint", func(c *Config) {
			c.AllowChanged = true
			editState(t, checkpoint, func(st map[string]any) { st["leg"] = "control" })
		}, fault.Invalid, `is a checkpoint of leg "control", not of "student"`},
		{"a newer checkpoint", func(c *Config) {
			c.AllowChanged = true
			editState(t, checkpoint, func(st map[string]any) { st["schema"] = "apr.checkpoint/9" })
		}, fault.Format, `is a checkpoint of schema "apr.checkpoint/9"; this program reads apr.checkpoint/5`},
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

// onOther is a CPU that says it has another instruction set.
type onOther struct{ device.Device }

func (d onOther) Info() device.Info {
	i := d.Device.Info()
	i.ISA = "another"
	return i
}

// decides lists all that mustAgree compares beside the options, each with a test that changes it: those without a
// change here are changed by TestResumeIdentity, or are chosen by the device.
var decides = []string{
	"activations", "chosen_teacher_backend", "chosen_teacher_gemm", "device_identity", "device_kind", "held_ids", "inputs", "instruction_set",
	"planned_chunk_rows", "planned_micro_rows", "program", "schedule_steps", "schedule_warmup", "student_config", "teacher_config", "tokens",
	"trained_ids", "vocabulary",
}

// A run goes on only with the inputs that it began with: every one is changed here, in the file that it is read from,
// and refused by its name.
func TestResumeInputs(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	put := func(name, text string) {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace := func(name, was, is string) {
		b, err := os.ReadFile(at(name))
		if err != nil || !strings.Contains(string(b), was) {
			t.Fatalf("%s does not hold %q (%v)", name, was, err)
		}
		put(name, strings.Replace(string(b), was, is, 1))
	}
	flip := func(name string) { // the last value of the last tensor, by its lowest bit
		b, err := os.ReadFile(at(name))
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)-2] ^= 1
		put(name, string(b))
	}
	row := func(n int) string {
		return strings.Repeat(fmt.Sprintf("{\"text\":\"package p%d\\n\\nfunc main() { println(%d) }\\n\"}\n", n, n), 40)
	}
	seen := map[string]bool{}
	for _, tt := range []struct {
		name   string
		begins bool // the student has weights of its own
		change func(c *Config)
		other  bool // on a device of another instruction set
		want   []string
	}{
		{name: "weights of the teacher", change: func(*Config) { flip("teacher/model.safetensors") }, want: []string{"inputs.teacher was "}},
		{name: "weights of the student", begins: true, change: func(*Config) { flip("student/model.safetensors") }, want: []string{"inputs.student_init was "}},
		{name: "a special token", change: func(*Config) {
			replace("teacher/tokenizer.json", `"special": true`, `"special": false`)
		}, want: []string{"inputs.tokenizer was "}},
		{name: "the chat template", change: func(*Config) {
			replace("teacher/tokenizer_config.json", `assistant\n`, `assistant \n`)
		}, want: []string{"inputs.tokenizer_config was "}},
		{name: "the student's template", begins: true, change: func(*Config) {
			replace("student/tokenizer_config.json", `assistant\n`, `assistant \n`)
		}, want: []string{"inputs.tokenizer_config was "}},
		{name: "a text", change: func(*Config) { put("two.jsonl", row(7)) }, want: []string{"inputs.data was ", "trained_ids was "}},
		{name: "the order of texts", change: func(c *Config) { c.Data[0], c.Data[1] = c.Data[1], c.Data[0] }, want: []string{"inputs.data was ", "trained_ids was "}},
		{name: "the held-out text", change: func(*Config) { put("held.jsonl", row(8)) }, want: []string{"inputs.eval_data was ", "held_ids was "}},
		{name: "no held-out text", change: func(c *Config) { c.EvalData = nil }, want: []string{"inputs.eval_data was ", "is not known", "held_ids was "}},
		{name: "the instruction set", other: true, change: func(*Config) {}, want: []string{"instruction_set was ", ", is another"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, name := range []string{"teacher", "student"} {
				if err := errors.Join(os.RemoveAll(at(name)), os.CopyFS(at(name), os.DirFS("../testdata/models/gosrc"))); err != nil {
					t.Fatal(err)
				}
			}
			flip("student/model.safetensors") // or it would be the teacher
			put("one.jsonl", row(1))
			put("two.jsonl", row(2))
			put("held.jsonl", row(3))
			c := tinyConfig(t)
			c.Teacher, c.Data, c.EvalData, c.Steps, c.AllowSameModel = at("teacher"), []string{at("one.jsonl"), at("two.jsonl")}, []string{at("held.jsonl")}, 2, true
			if tt.begins {
				c.Student, c.StudentConfig = at("student"), ""
			}
			if _, _, err := runOnce(t, c, 0, 1); fault.KindOf(err) != fault.Stopped {
				t.Fatal(err)
			}
			editState(t, filepath.Join(c.Output, "checkpoints", checkpointsOf(t, c)[0]), func(st map[string]any) {
				for key := range st["must_agree"].(map[string]any) {
					seen[key] = true
				}
			})
			c.Resume = ResumeAuto
			tt.change(&c)
			err := opens(t, c, tt.other)
			for _, want := range tt.want {
				if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q", err, want)
				}
				contracttest.Cases(t, 1)
			}
		})
	}
	for key := range optionsOf(Config{}) {
		delete(seen, key)
	}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, decides) {
		t.Errorf("a checkpoint compares %q, and the tests know of %q", got, decides)
	}
}

// opens opens a run, and does no step of it.
func opens(t *testing.T, c Config, other bool) error {
	t.Helper()
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var dev device.Device = d
	if other {
		dev = onOther{d}
	}
	c.Options = optionsOf(c)
	r, err := Start(t.Context(), c, dev, &quiet{}, func(*runlog.Manifest) {})
	if err != nil {
		return err
	}
	return r.Close()
}
