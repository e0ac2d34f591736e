package distill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/device/cpu"
	"apr/device/dry"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/modelfile"
	runlog "apr/run/log"
	"apr/tensor"
)

// small is a device with another amount of memory.
type small struct {
	dry.Planned
	bytes int64
}

func (b small) Target() dry.Target {
	t := b.Planned.Target()
	t.Budget = b.bytes
	return t
}

// chosen opens the inputs of c on a device of so many bytes, 0: what there is, and returns the choice and what the step
// then needs.
func chosen(t *testing.T, c Config, bytes int64) (ControlChoice, int64) {
	t.Helper()
	d, err := cpu.New(cpu.Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	in, err := openInputs(context.Background(), c, small{d, bytes}, &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.close(); err != nil {
		t.Fatal(err)
	}
	return in.control, in.planned.Memory.Total
}

// A control is trained unasked where it costs little, there is a text to compare it on, and memory for it.
func TestControlAuto(t *testing.T) {
	auto := func(change func(c *Config)) Config {
		c := tinyConfig(t)
		c.ControlAuto, c.ValFraction = true, 0.3
		change(&c)
		return c
	}
	alone := auto(func(c *Config) { c.ControlAuto = false })
	_, without := chosen(t, alone, 0)
	alone.Control = true
	forced, with := chosen(t, alone, 0)
	if !(without < with) || !forced.On || forced.Asked != "ce" {
		t.Fatalf("%d bytes without a control, %d with one: %+v", without, with, forced)
	}
	large := filepath.Join(t.TempDir(), "large.json")
	text := strings.NewReplacer(`"hidden_size":32`, `"hidden_size":256`, `"intermediate_size":48`, `"intermediate_size":768`, `"num_hidden_layers":2`, `"num_hidden_layers":6`).Replace(tinyStudent)
	if err := os.WriteFile(large, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	few := filepath.Join(t.TempDir(), "few.txt")
	if err := os.WriteFile(few, []byte("x := 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		c      Config
		bytes  int64
		on     bool
		reason string
	}{
		"a small student":   {auto(func(*Config) {}), 0, true, "it takes"},
		"memory for both":   {auto(func(*Config) {}), with, true, "it takes"},
		"memory for one":    {auto(func(*Config) {}), with - 1, false, "there is no memory to keep the student beside it"},
		"a large student":   {auto(func(c *Config) { c.StudentConfig, c.Steps = large, 1000 }), 0, false, "it would take 4"},
		"nothing held out":  {auto(func(c *Config) { c.ValFraction = 0 }), 0, false, nothingHeld},
		"too little to see": {auto(func(c *Config) { c.ValFraction, c.EvalData = 0, []string{few} }), 0, false, nothingHeld},
		"no teacher": {auto(func(c *Config) { c.Loss.Alpha = 0 }), 0, false,
			"without a teacher it is the same student"},
		"none": {auto(func(c *Config) { c.ControlAuto = false }), 0, false, "--control none"},
	} {
		t.Run(name, func(t *testing.T) {
			got, need := chosen(t, tt.c, tt.bytes)
			if got.On != tt.on || !strings.HasPrefix(got.Reason, tt.reason) || got.On && !(got.Share > 0 && got.Share <= ControlMost) {
				t.Errorf("%+v, want %v because %q", got, tt.on, tt.reason)
			}
			if c := tt.c; tt.bytes > 0 && c.Loss.Alpha > 0 && need > tt.bytes {
				t.Errorf("needs %d of %d bytes", need, tt.bytes)
			}
		})
	}
}

// A control changes no bit of the student, and a resumed run has one if the run before had.
func TestControlLeavesTheStudent(t *testing.T) {
	c := brief(t, tinyConfig(t))
	c.ValFraction = 0.3
	_, without := mustRun(t, c, 0)
	c = in(t, c)
	c.ControlAuto = true
	out, with := mustRun(t, c, 0)
	if !bytes.Equal(without, with) || out.Evaluation(nameControl) == nil {
		t.Errorf("the same student: %v, evaluations %+v", bytes.Equal(without, with), out.Evaluations)
	}
	var k ControlChoice
	if !lastDecision(c.Output, controlDecision, &k) || !k.On || k.Asked != "auto" {
		t.Errorf("the decision says %+v", k)
	}
	for _, before := range []bool{true, false} {
		c = in(t, c)
		c.ControlAuto, c.Resume = before, ""
		if _, _, err := runOnce(t, c, 0, 4); fault.KindOf(err) != fault.Stopped {
			t.Fatalf("%v, want to be stopped", err)
		}
		c.ControlAuto, c.Resume = true, ResumeAuto
		out, got := mustRun(t, c, 0)
		if !bytes.Equal(got, without) || (out.Evaluation(nameControl) != nil) != before {
			t.Errorf("control before %v: the same student %v, evaluations %+v", before, bytes.Equal(got, without), out.Evaluations)
		}
	}
	if err := os.Remove(filepath.Join(c.Output, "events.jsonl")); err != nil { // as of a version that did not write it down
		t.Fatal(err)
	}
	if on, known := controlBefore(c); on || !known {
		t.Errorf("a run that says nothing: %v, %v", on, known)
	}
}

// The outline says what the run is.
func TestOutline(t *testing.T) {
	c := tinyConfig(t)
	c.ValFraction, c.MaxSteps = 0.3, 5
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, err := Start(context.Background(), c, d, &quiet{}, func(*runlog.Manifest) {})
	if err != nil {
		t.Fatal(err)
	}
	o := r.Outline()
	in := r.in
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if o.Teacher.Family != "qwen2" || o.Teacher.Type != "bf16" || o.Teacher.Parameters != in.teacher.Config.Parameters() || !o.Student.New || o.Student.Type != "f32" || o.Student.Bytes != 4*o.Student.Parameters {
		t.Errorf("models: %+v", o)
	}
	if o.Files != 1 || o.Documents == 0 || o.HeldDocuments == 0 || o.HeldTokens == 0 || o.Steps != 5 || o.StepTokens != 64 {
		t.Errorf("data: %+v", o)
	}
	if want := 5 / float64(in.epochSteps); o.Epochs != want {
		t.Errorf("%v epochs, want %v", o.Epochs, want)
	}
}

// A new student whose configuration was copied from another model ends a text as its tokenizer does, and that is told.
func TestNewStudentEndsAsItsTokenizer(t *testing.T) {
	c := tinyConfig(t)
	text, err := os.ReadFile(c.StudentConfig)
	if err != nil {
		t.Fatal(err)
	}
	for given, told := range map[string]bool{"0": true, "[1, 2]": true, "4093": false, "[7, 4093]": false} {
		c := in(t, c)
		c.StudentConfig = filepath.Join(t.TempDir(), "config.json")
		changed := strings.Replace(string(text), "{", `{"eos_token_id": `+given+",", 1)
		if err := os.WriteFile(c.StudentConfig, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := cpu.New(cpu.Options{})
		if err != nil {
			t.Fatal(err)
		}
		q := &quiet{}
		r, err := Start(context.Background(), c, d, q, func(*runlog.Manifest) {})
		if err != nil {
			t.Fatal(err)
		}
		ends := r.in.studentConfig.EOS
		if err := errors.Join(r.Close(), d.Close()); err != nil {
			t.Fatal(err)
		}
		said := strings.Contains(strings.Join(q.messages, "\n"), "which ends no text in the teacher's tokenizer")
		if said != told || !slices.Contains(ends, 4093) {
			t.Errorf("%s: ends %d, told %v", given, ends, said)
		}
	}
}

// The type of a model's weights is what its configuration or its experts say, though most bytes may be of another.
func TestOutlineType(t *testing.T) {
	of := func(stored string, types ...tensor.DType) *modelfile.Files {
		var all tensorList
		for i, d := range types {
			n := 4096 >> i // the first has most bytes
			info := tensor.Info{Name: fmt.Sprint(i), DType: d, Shape: []int{n, 256}, Size: int64(n) * d.RowBytes(256)}
			all = append(all, tensor.Stored{Info: info})
		}
		return &modelfile.Files{Container: &modelfile.Container{File: all}, Config: arch.Config{Stored: stored}}
	}
	for _, tt := range []struct {
		f    *modelfile.Files
		want string
	}{
		{of("", tensor.BF16, tensor.F32), "bf16"}, {of("", tensor.Q4_K, tensor.Q6_K), "q4_k"},
		{of(arch.MXFP4, tensor.BF16, tensor.MXFP4), "mxfp4"}, {of("", tensor.BF16, tensor.MXFP4), "mxfp4"},
		{of("fp8", tensor.BF16, tensor.F32), "fp8"},
	} {
		contracttest.Cases(t, 1)
		if got := weightsType(tt.f); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

// tensorList is the file of tensors that are only described.
type tensorList []tensor.Stored

func (l tensorList) Path() string                        { return "memory" }
func (l tensorList) Tensors() []tensor.Stored            { return l }
func (l tensorList) Tensor(string) (tensor.Stored, bool) { return tensor.Stored{}, false }
func (l tensorList) Verify() error                       { return nil }
func (l tensorList) Close() error                        { return nil }
