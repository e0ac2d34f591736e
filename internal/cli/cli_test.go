package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"apr/internal/fault"
)

// demoOptions is a command with one option of each kind.
type demoOptions struct {
	teacher, student, output, backend, dtype string
	data, targets                            []string
	alpha, lr                                float64
	batch, rank, capSteps                    int
	packing, lora, probe                     bool
	every                                    time.Duration
	seed                                     int64
	resume                                   string
}

type demoResult struct {
	Loss float64   `json:"loss"`
	Rows []float32 `json:"rows"`
	Word string    `json:"word"`
	Gone *int      `json:"gone"`
}

func (demoResult) Text(p *Page) { p.Printf("demo\n") }

func demo(o *demoOptions, run func(*Env) (Result, error)) *Command {
	return &Command{
		Name: "demo", Short: "Demo", Example: "apr demo t", Exits: []fault.Kind{fault.Invalid},
		ConfigArg: true, PrintConfig: true, EnvPrefix: "DEMO_",
		Options: []Option{
			{Name: "teacher", Arg: true, Required: true, Model: true, Foreign: []string{"teacher-model"}, Value: String(&o.teacher, "")},
			{Name: "student", Model: true, Value: String(&o.student, "")},
			{Name: "data", Short: "d", Path: true, Value: Strings(&o.data)},
			{Name: "output", Short: "o", Path: true, Value: String(&o.output, "")},
			{Name: "alpha", Value: Float(&o.alpha, 0.5).In(0, 1)},
			{Name: "learning-rate", Aliases: []string{"lr"}, Value: Float(&o.lr, 3e-4).Above(0)},
			{Name: "batch-size", First: true, Foreign: []string{"per-device-batch"}, Value: Int(&o.batch, 16).AtLeast(1)},
			{Name: "seed", Value: Int64(&o.seed, 42)},
			{Name: "backend", Env: "DEMO_BACKEND", Value: Enum(&o.backend, "auto", "auto", "cpu", "cuda").Alias("gpu", "cuda").Unbuilt("tpu").Refuse("fixture", "there is no fixture")},
			{Name: "packing", Negatable: true, Value: Bool(&o.packing, true)},
			{Name: "lora", Value: Bool(&o.lora, false)},
			{Name: "lora-rank", Value: Int(&o.rank, 32)},
			{Name: "lora-targets", Value: Words(&o.targets, []string{"q", "v"}, "q", "k", "v", "o")},
			{Name: "probe", Value: OnOff(&o.probe, true)},
			{Name: "checkpoint-interval", Value: Duration(&o.every, 10*time.Minute)},
			{Name: "resume", Optional: "newest", Value: String(&o.resume, "")},
			{Name: "stage", NotBuilt: "stages", Value: String(&o.dtype, "")},
			{Name: "max-steps", EnvOnly: true, Env: "DEMO_MAX_STEPS", Value: Int(&o.capSteps, 0).AtLeast(1)},
		},
		Nested: map[string][]Nested{
			"teacher.model_id":        {{Option: "teacher"}},
			"student.model_id":        {{Option: "student"}},
			"student.lora.rank":       {{Option: "lora-rank"}, {Option: "lora", Value: "true"}},
			"training.learning_rate":  {{Option: "learning-rate"}},
			"dataset.path":            {{Option: "data"}},
			"distillation.alpha":      {{Option: "alpha"}},
			"dataset.max_seq_length":  {{Option: "batch-size"}},
			"output.dir":              {{Option: "output"}},
			"distillation.batch_size": {{Option: "batch-size"}},
		},
		Run: func(_ context.Context, e *Env) (Result, error) { return run(e) },
	}
}

// call runs the demo command with its files in dir and returns what it left behind.
type outcome struct {
	code        int
	out, stderr string
	opts        demoOptions
	settings    Settings
}

func call(t *testing.T, args []string, environ ...string) outcome {
	t.Helper()
	var r outcome
	var out, errw bytes.Buffer
	app := &App{Name: "apr", In: strings.NewReader(""), Out: &out, Err: &errw, Environ: environ,
		Foreign: map[string]string{"train": "demo --lora"},
		Commands: []*Command{demo(&r.opts, func(e *Env) (Result, error) {
			r.settings = e.Settings
			switch r.opts.teacher {
			case "panic":
				panic("broken")
			case "fails":
				return demoResult{Loss: math.NaN()}, fault.In(fault.Invalid, "f.apr", "too bad").WithHint("do better")
			case "streams":
				fmt.Fprint(e.Out, "streamed")
				e.Page().Printf("printed")
			case "odd":
				return nil, errors.New("odd")
			}
			return demoResult{Loss: math.Inf(1), Rows: []float32{1, float32(math.NaN())}, Word: "<a>"}, nil
		})}}
	r.code = app.Main(args)
	r.out, r.stderr = out.String(), errw.String()
	return r
}

func TestUsageErrors(t *testing.T) {
	tests := []struct {
		name string
		args string
		env  string
		code int
		want string // part of stderr
	}{
		{"unknown command", "dmeo x", "", 2, `did you mean "demo"?`},
		{"command of another program", "Train x --alpha 1", "", 2, `did you mean "apr demo --lora"?`},
		{"flag of another program", "demo t --per_device_batch 1", "", 2, "did you mean --batch-size?"},
		{"argument as a flag", "demo --teacher t", "", 2, "TEACHER is an argument, given without a flag: apr demo TEACHER [flags]"},
		{"argument by another name", "demo --teacher-model t", "", 2, "TEACHER is an argument"},
		{"negative number", "demo t --batch-size -3", "", 2, "--batch-size: -3 is too small: at least 1"},
		{"unknown command with flags", "dmeo x --alpha 1", "", 2, `unknown command "dmeo"`},
		{"unknown flag", "demo t --alhpa 1", "", 2, "did you mean --alpha?"},
		{"unknown short flag", "demo t -z", "", 2, "unknown flag -z"},
		{"missing value", "demo t --alpha", "", 2, "--alpha: needs a value"},
		{"missing argument", "demo", "", 2, "missing argument TEACHER"},
		{"extra argument", "demo a b", "", 2, "unexpected argument \"b\"\n  hint: apr demo --help shows the usage"},
		{"unknown enum value", "demo t --backend cudda", "", 2, `did you mean "cuda"?`},
		{"refused enum value", "demo t --backend fixture", "", 2, "there is no fixture"},
		{"unbuilt enum value", "demo t --backend tpu", "", 9, "not built yet"},
		{"unbuilt flag", "demo t --stage train", "", 9, "--stage: not built yet: stages"},
		{"integer with exponent", "demo t --batch-size 1e3", "", 2, "not an integer"},
		{"integer in hex", "demo t --batch-size 0x10", "", 2, "not an integer"},
		{"integer with unit", "demo t --batch-size 16x", "", 2, "not an integer"},
		{"integer with separator", "demo t --batch-size 1_000", "", 2, "not an integer"},
		{"integer out of range", "demo t --batch-size 99999999999999999999", "", 2, "out of range"},
		{"integer below bound", "demo t --batch-size 0", "", 2, "--batch-size: 0 is too small: at least 1"},
		{"nan", "demo t --alpha nan", "", 2, "not a decimal number"},
		{"inf", "demo t --learning-rate inf", "", 2, "not a decimal number"},
		{"overflow", "demo t --lr 1e999", "", 2, "out of range"},
		{"hex float", "demo t --alpha 0x1p-1", "", 2, "not a decimal number"},
		{"blank", "demo t --seed", "", 2, "needs a value"},
		{"above bound", "demo t --alpha 1.5", "", 2, "outside 0 to 1"},
		{"open bound", "demo t --lr 0", "", 2, "0 is too small: above 0"},
		{"bool value", "demo t --lora=maybe", "", 2, "neither true"},
		{"list element", "demo t --lora-targets q,w", "", 2, `unknown value "w"`},
		{"duration", "demo t --checkpoint-interval 10", "", 2, "not a duration"},
		{"negative duration", "demo t --checkpoint-interval -1s", "", 2, "not a duration"},
		{"environment enum", "demo t", "DEMO_BACKEND=cdua", 2, "DEMO_BACKEND: unknown value"},
		{"environment number", "demo t", "DEMO_MAX_STEPS=0", 2, "DEMO_MAX_STEPS: 0 is too small"},
		{"environment-only option has no flag", "demo t --max-steps 3", "", 2, "unknown flag --max-steps"},
		{"global enum", "demo t --color sometimes", "", 2, "--color: unknown value"},
		{"global bool", "demo t --offline=2", "", 2, "--offline"},
		{"contradiction", "demo t -q -v", "", 2, "contradict"},
		{"missing config", "demo t --config none.yaml", "", 3, "none.yaml: configuration file not found"},
		{"panic", "demo panic", "", 1, "please report"},
		{"plain error", "demo odd", "", 1, "odd"},
		{"failure", "demo fails", "", 5, "hint: do better"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := call(t, strings.Fields(tt.args), tt.env)
			if r.code != tt.code || !strings.Contains(r.stderr, tt.want) {
				t.Errorf("exit %d, stderr %q; want exit %d, %q", r.code, r.stderr, tt.code, tt.want)
			}
			if strings.Contains(r.stderr, "goroutine ") {
				t.Errorf("stack trace shown:\n%s", r.stderr)
			}
			if r := call(t, append(strings.Fields(tt.args), "--json"), tt.env); tt.want != "" {
				checkEnvelope(t, r, tt.code)
			}
		})
	}
}

// checkEnvelope requires one JSON object on stdout that tells the exit code.
func checkEnvelope(t *testing.T, r outcome, code int) {
	t.Helper()
	var obj struct {
		Schema, Status string
		ExitCode       int `json:"exit_code"`
		Error          *struct {
			Kind, Message string
			Path, Hint    *string
		}
	}
	d := json.NewDecoder(strings.NewReader(r.out))
	if err := d.Decode(&obj); err != nil {
		t.Fatalf("stdout %q: %v", r.out, err)
	}
	if d.More() {
		t.Errorf("more than one value on stdout: %q", r.out)
	}
	if !strings.HasPrefix(obj.Schema, "apr.") || !strings.HasSuffix(obj.Schema, "/1") || obj.ExitCode != code || r.code != code {
		t.Errorf("schema %q, exit_code %d, exit %d; want exit %d", obj.Schema, obj.ExitCode, r.code, code)
	}
	if want := map[bool]string{true: "ok", false: "failed"}[code == 0]; obj.Status != want {
		t.Errorf("status %q, want %q", obj.Status, want)
	}
	if (obj.Error != nil) != (code != 0) || obj.Error != nil && (obj.Error.Kind == "" || obj.Error.Message == "") {
		t.Errorf("error member %+v with exit %d", obj.Error, code)
	}
}

func TestJSONResult(t *testing.T) {
	r := call(t, []string{"demo", "t", "--json"})
	want := `{"schema":"apr.demo/1","loss":null,"rows":[1,null],"word":"<a>","gone":null,"status":"ok","exit_code":0}` + "\n"
	if r.out != want || r.code != 0 {
		t.Errorf("exit %d\n got %s\nwant %s", r.code, r.out, want)
	}
	r = call(t, []string{"demo", "fails", "--json"})
	want = `{"schema":"apr.demo/1","loss":null,"rows":[],"word":"","gone":null,"status":"failed","exit_code":5,` +
		`"error":{"kind":"invalid","message":"f.apr: too bad","path":"f.apr","hint":"do better"}}` + "\n"
	if r.out != want || r.code != 5 {
		t.Errorf("exit %d\n got %s\nwant %s", r.code, r.out, want)
	}
	if r = call(t, []string{"demo", "--help", "--json"}); !strings.Contains(r.out, `"help":"Demo`) {
		t.Errorf("help as JSON: %s", r.out)
	}
}

// TestStreamingIsSilentWithJSON keeps stdout for the one object.
func TestStreamingIsSilentWithJSON(t *testing.T) {
	if r := call(t, []string{"demo", "streams"}); r.out != "streamedprinteddemo\n" {
		t.Errorf("stdout %q", r.out)
	}
	checkEnvelope(t, call(t, []string{"demo", "streams", "--json"}), 0)
}

func TestVerbosePanicShowsStack(t *testing.T) {
	if r := call(t, []string{"demo", "panic", "--verbose"}); !strings.Contains(r.stderr, "goroutine ") {
		t.Errorf("no stack: %s", r.stderr)
	}
}

func TestPrecedence(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yaml")
	write(t, file, "alpha: 0.25\nbackend: cpu\nbatch_size: 4\ndata: [a.jsonl, /b.jsonl]\nteacher: org/name\noutput: runs/x\n")
	r := call(t, []string{"demo", "--config", file, "--alpha", "0.75"}, "DEMO_BACKEND=gpu", "DEMO_OTHER=1", "DEMO_MAX_STEPS=")
	if r.code != 0 {
		t.Fatalf("exit %d: %s", r.code, r.stderr)
	}
	o := r.opts
	if o.alpha != 0.75 || o.backend != "cuda" || o.batch != 4 || o.seed != 42 || o.teacher != "org/name" {
		t.Errorf("merged %+v", o)
	}
	if want := filepath.Join(dir, "a.jsonl"); len(o.data) != 2 || o.data[0] != want || o.data[1] != "/b.jsonl" {
		t.Errorf("data %q, want %q first", o.data, want)
	}
	if want := filepath.Join(dir, "runs/x"); o.output != want {
		t.Errorf("output %q, want %q", o.output, want)
	}
	for name, want := range map[string]string{
		"alpha": "flag", "backend": "env DEMO_BACKEND", "batch-size": "config " + file + ":3", "seed": "default", "max-steps": "default",
	} {
		if got := r.settings.Origin(name); got != want {
			t.Errorf("origin of %s: %q, want %q", name, got, want)
		}
		if r.settings.Given(name) != (want != "default") {
			t.Errorf("Given(%s) = %v", name, r.settings.Given(name))
		}
	}
	if !strings.Contains(r.stderr, "DEMO_OTHER") || !strings.Contains(r.stderr, "not honoured") {
		t.Errorf("no warning about DEMO_OTHER: %s", r.stderr)
	}
}

func TestSpecialFlags(t *testing.T) {
	r := call(t, strings.Fields("demo t --no-packing --lr 1e-3 -d a -d b --lora-targets k,o --probe off --resume --lora --learning-rate 2e-3"))
	o := r.opts
	if r.code != 0 || o.packing || o.lr != 2e-3 || len(o.data) != 2 || strings.Join(o.targets, "") != "ko" || o.probe || o.resume != "newest" || !o.lora {
		t.Errorf("exit %d (%s), options %+v", r.code, r.stderr, o)
	}
	if r := call(t, []string{"demo", "t", "--resume=step-3"}); r.opts.resume != "step-3" {
		t.Errorf("resume %q", r.opts.resume)
	}
}

func TestConfigErrors(t *testing.T) {
	tests := []struct{ name, yaml, want string }{
		{"unknown key", "alhpa: 1\n", `line 1, column 1: unknown key "alhpa"`},
		{"nearest", "alhpa: 1\n", `did you mean "alpha"?`},
		{"key of another program", "per_device_batch: 1\n", `did you mean "batch_size"?`},
		{"flag spelling", "learning-rate: 1\n", `did you mean "learning_rate"?`},
		{"twice", "alpha: 0.5\nalpha: 0.5\n", "line 2, column 1, alpha: key given twice"},
		{"wrong type", "batch_size: four\n", "line 1, column 13, batch_size: an integer is expected, not the text \"four\""},
		{"float for integer", "batch_size: 4.0\n", "an integer is expected, not the fraction"},
		{"null", "alpha:\n", "a number is expected, not nothing"},
		{"range", "seed: 1\nalpha: 2\n", "line 2, column 1, alpha: 2 is outside 0 to 1"},
		{"list for scalar", "alpha: [0.5]\n", "takes one value"},
		{"mapping for scalar", "alpha: {a: 1}\n", "takes a value, not a mapping"},
		{"empty list", "data: []\n", "the list is empty"},
		{"not a mapping", "- a\n", "must be a mapping"},
		{"two documents", "alpha: 0.5\n---\nalpha: 0.5\n", "more than one YAML document"},
		{"syntax", "alpha: [\n", "not YAML"},
		{"alias", "alpha: &a 0.5\nlearning_rate: *a\n", "aliases are not read"},
		{"not built", "stage: train\n", "not built yet"},
		{"environment only", "max_steps: 3\n", "unknown key"},
		{"nested unknown", "student:\n  lora:\n    dropout: 0.1\n", `unknown key "student.lora.dropout"`},
		{"nested and flat", "alpha: 0.5\ndistillation: {alpha: 0.5}\n", "sets the same option as alpha in line 1"},
		{"section as value", "training: 3\n", `unknown key "training"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "c.yaml")
			write(t, file, tt.yaml)
			r := call(t, []string{"demo", "t", "--config", file})
			want := 2
			if tt.name == "not built" {
				want = 9
			}
			if r.code != want || !strings.Contains(r.stderr, tt.want) {
				t.Errorf("exit %d: %s\nwant %q", r.code, r.stderr, tt.want)
			}
		})
	}
}

func TestNestedForm(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yml")
	write(t, file, "teacher: {model_id: org/t}\nstudent:\n  model_id: ./s.apr\n  lora:\n    rank: 8\ndataset:\n  path: d.jsonl\ntraining: {learning_rate: 1e-4}\n")
	r := call(t, []string{"demo", file})
	o := r.opts
	if r.code != 0 || o.teacher != "org/t" || o.student != filepath.Join(dir, "s.apr") || !o.lora || o.rank != 8 || o.lr != 1e-4 {
		t.Errorf("exit %d (%s), options %+v", r.code, r.stderr, o)
	}
	if len(o.data) != 1 || o.data[0] != filepath.Join(dir, "d.jsonl") {
		t.Errorf("data %q", o.data)
	}
}

// TestPrintConfigRoundTrip reads back what --print-config prints.
func TestPrintConfigRoundTrip(t *testing.T) {
	args := strings.Fields("demo /t --alpha 0.125 -d /x -d /y --no-packing --probe off --checkpoint-interval 90s --learning-rate 1e-05")
	first := call(t, append(args, "--print-config"))
	if first.code != 0 || !strings.Contains(first.out, "# flag") || !strings.Contains(first.out, "# default") {
		t.Fatalf("exit %d: %s%s", first.code, first.out, first.stderr)
	}
	file := filepath.Join(t.TempDir(), "c.yaml")
	write(t, file, first.out)
	a, b := call(t, args), call(t, []string{"demo", file})
	if a.code != 0 || b.code != 0 {
		t.Fatalf("exits %d %d: %s", a.code, b.code, b.stderr)
	}
	for i := range a.settings {
		x, _ := json.Marshal(a.settings[i].Value)
		y, _ := json.Marshal(b.settings[i].Value)
		if !bytes.Equal(x, y) {
			t.Errorf("%s: %s became %s", a.settings[i].Name, x, y)
		}
	}
}

func TestHelp(t *testing.T) {
	r := call(t, []string{"demo", "--help"})
	for _, want := range []string{"Usage:\n  apr demo TEACHER [flags]", "Examples:\n  apr demo t", "Exit codes:\n  0    success", "5    validation failed", "First flags:\n      --batch-size INT", "Other flags:\n      --student MODEL", "alias --lr", "[$DEMO_BACKEND]", "(default: 10m)", "  -d, --data"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("help lacks %q:\n%s", want, r.out)
		}
	}
	if strings.Contains(r.out, "--stage") {
		t.Errorf("help offers what is not built:\n%s", r.out)
	}
}

func TestSchemaIsJSON(t *testing.T) {
	var o demoOptions
	var s struct {
		Properties           map[string]json.RawMessage
		AdditionalProperties bool
	}
	if err := json.Unmarshal(Schema(demo(&o, nil), "x"), &s); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"teacher", "student", "learning_rate", "lr", "training", "dataset", "output"} {
		if s.Properties[k] == nil {
			t.Errorf("no property %s", k)
		}
	}
	if s.AdditionalProperties || s.Properties["max_steps"] != nil || s.Properties["print_config"] != nil {
		t.Error("schema allows keys that a file cannot have")
	}
}

func TestHumanNumbers(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 13717864: "13.7 MB", 999_960_000: "1.0 GB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", -1000: "-1,000", 6854912: "6,854,912"} {
		if got := Count(n); got != want {
			t.Errorf("Count(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	p := newPage(&b, &b, nil)
	p.Table([]string{"name", ">size"}, [][]string{{"a", "1"}, {"b\x1b[31m", "23"}})
	want := "name         size\na               1\n\"b\\x1b[31m\"    23\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestColor(t *testing.T) {
	tests := []struct {
		name, mode string
		env        map[string]string
		want       bool
	}{
		{"not a terminal", "auto", nil, false},
		{"always", "always", map[string]string{"NO_COLOR": "1"}, true},
		{"never", "never", map[string]string{"CLICOLOR_FORCE": "1"}, false},
		{"forced", "auto", map[string]string{"CLICOLOR_FORCE": "1"}, true},
		{"NO_COLOR beats force", "auto", map[string]string{"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, false},
	}
	for _, tt := range tests {
		if got := wantsColor(tt.mode, &bytes.Buffer{}, tt.env); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestMarshalAgreesWithEncodingJSON compares with encoding/json where that can write the value.
func TestMarshalAgreesWithEncodingJSON(t *testing.T) {
	type inner struct {
		A    int `json:"a"`
		Same int `json:"same"`
	}
	type outer struct {
		Same string `json:"same"`
		*inner
		Time   time.Time      `json:"time"`
		Map    map[string]any `json:"map"`
		Empty  []int          `json:"empty,omitempty"`
		Zero   time.Time      `json:"zero,omitzero"`
		Hidden int            `json:"-"`
		Plain  *float64
		Raw    json.RawMessage `json:"raw"`
		lower  int
	}
	x := 1.5
	v := outer{Same: "s", inner: &inner{1, 2}, Time: time.Unix(0, 0).UTC(), Map: map[string]any{"z": 1, "a": []int{1}, "n": nil}, Plain: &x, Raw: json.RawMessage(`{"k":1}`), lower: 1}
	got, err := MarshalJSON(v)
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	got, err = MarshalJSON(map[string]any{"f": math.NaN(), "g": []float32{float32(math.Inf(-1))}, "s": []string(nil)})
	if want := `{"f":null,"g":[null],"s":[]}`; err != nil || string(got) != want {
		t.Errorf("got %s (%v), want %s", got, err, want)
	}
}
