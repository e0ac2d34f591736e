package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"apr/internal/fault"
)

// Settings that went through JSON come back with their values and origins; defaults that could not be given stay.
func TestRestore(t *testing.T) {
	type options struct {
		name  string
		steps int
		rate  float64
		seed  int64
		on    bool
		list  []string
		kind  string
	}
	table := func(o *options) []Option {
		return []Option{
			{Name: "name", Value: String(&o.name, "")}, {Name: "max-steps", Value: Int(&o.steps, 0).AtLeast(1)}, {Name: "rate", Value: Float(&o.rate, 1e-3).Above(0)},
			{Name: "seed", Value: Int64(&o.seed, 42)}, {Name: "on", Value: Bool(&o.on, true)}, {Name: "data", Value: Strings(&o.list)},
			{Name: "kind", Value: Enum(&o.kind, "a", "a", "b")},
		}
	}
	restore := func(o *options, text string) (Settings, error) {
		var was map[string]Setting
		if err := json.Unmarshal([]byte(text), &was); err != nil {
			t.Fatal(err)
		}
		return Restore(table(o), was)
	}
	var got options
	s, err := restore(&got, `{"name":{"value":"x y","origin":"flag"},"max_steps":{"value":0,"origin":"default"},"rate":{"value":2.5e-7,"origin":"config f:1"},
		"seed":{"value":299792458,"origin":"flag"},"on":{"value":false,"origin":"flag"},"data":{"value":["a","b,c"],"origin":"flag"},"kind":{"value":"b","origin":"env K"}}`)
	if err != nil {
		t.Fatal(err)
	}
	if want := (options{"x y", 0, 2.5e-7, 299792458, false, []string{"a", "b,c"}, "b"}); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if s.Origin("rate") != "config f:1" || s.Given("max-steps") || !s.Given("kind") {
		t.Errorf("origins %+v", s)
	}
	for text, want := range map[string]string{
		`{"raet":{"value":"x"}}`: "raet is none", `{"kind":{"value":"c"}}`: "kind", `{"seed":{"value":1.5}}`: "seed", `{"rate":{"value":["1","2"]}}`: "2 values",
	} {
		if _, err := restore(new(options), text); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}

// A call takes over what an earlier one recorded, where it says nothing itself: paths from the earlier folder, flags of all commands,
// nothing of an option that is no more unless somebody had set it.
func TestTakeOver(t *testing.T) {
	folder := t.TempDir()
	call := func(args, recorded string, environ ...string) (o struct {
		teacher, template string
		data              []string
		alpha             float64
		steps             int
	}, s Settings, e *Env, code int, errs string) {
		var was map[string]Setting
		if err := json.Unmarshal([]byte(recorded), &was); err != nil {
			t.Fatal(err)
		}
		var out, errw bytes.Buffer
		c := &Command{
			Name: "go", Options: []Option{
				{Name: "teacher", Arg: true, Required: true, Model: true, Value: String(&o.teacher, "")}, {Name: "data", Path: true, Value: Strings(&o.data)},
				{Name: "chat-template", Path: true, Keywords: []string{"auto"}, Value: String(&o.template, "")},
				{Name: "alpha", Value: Float(&o.alpha, 0.5)}, {Name: "steps", Env: "STEPS", Value: Int(&o.steps, 0).AtLeast(1)},
			},
			Complete: func(e *Env, opts []Option) error { return e.TakeOver(opts, Earlier{Settings: was, Folder: folder}) },
			Run:      func(_ context.Context, env *Env) (Result, error) { s, e = env.Settings, env; return nil, nil },
		}
		app := &App{Name: "apr", In: strings.NewReader(""), Out: &out, Err: &errw, Environ: environ, Commands: []*Command{c}}
		code = app.Main(append([]string{"go"}, strings.Fields(args)...))
		return o, s, e, code, errw.String()
	}
	const recorded = `{"teacher":{"value":"org/name","origin":"flag"},"data":{"value":["a","/b"],"origin":"config c.yaml:2"},"chat_template":{"value":"auto","origin":"flag"},
		"alpha":{"value":0.7,"origin":"flag"},"steps":{"value":9,"origin":"flag"},"gone":{"value":1,"origin":"default"},"allow_config_key":{"value":["x"],"origin":"flag"}}`
	o, s, e, code, errs := call("--alpha 0.9", recorded, "STEPS=3")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	if o.teacher != "org/name" || o.template != "auto" || fmt.Sprint(o.data) != fmt.Sprint([]string{folder + "/a", "/b"}) || o.alpha != 0.9 || o.steps != 3 {
		t.Errorf("got %+v", o)
	}
	for name, want := range map[string]string{"teacher": "flag", "data": "config c.yaml:2", "alpha": "flag", "steps": "env STEPS", "allow-config-key": "flag"} {
		if s.Origin(name) != want {
			t.Errorf("%s is from %q, want %q", name, s.Origin(name), want)
		}
	}
	if !s.Changed("data") || len(e.AllowConfigKeys) != 1 {
		t.Errorf("settings %+v, keys %v", s, e.AllowConfigKeys)
	}
	for text, want := range map[string]string{
		`{"gone":{"value":1,"origin":"flag"}}`: "gone is none of this program", `{"steps":{"value":-1,"origin":"flag"}}`: "steps", `{}`: "missing argument TEACHER",
	} {
		if _, _, _, code, errs := call("", text); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%s: exit %d, %s", text, code, errs)
		}
	}
}

// An error that several parts of a command met is told once.
func TestErrorsAreToldOnce(t *testing.T) {
	var errw bytes.Buffer
	a := &App{Name: "apr", Err: &errw}
	full := func() error { return fault.In(fault.IO, "steps.jsonl", "no space left") }
	a.complain(errors.Join(full(), full(), fault.In(fault.IO, "receipt.json", "no space left")))
	if got, want := errw.String(), "apr: error: steps.jsonl: no space left\napr: error: receipt.json: no space left\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

// A command that a signal has stopped has not failed: no line says error.
func TestStoppedIsNoError(t *testing.T) {
	var errw bytes.Buffer
	a := &App{Name: "apr", Err: &errw}
	a.complain(fault.New(fault.Stopped, "stopped after step 4").WithHint("go on"))
	a.logFormat = "json"
	a.complain(fault.New(fault.Stopped, "stopped after step 4").WithHint("go on"))
	a.logFormat = ""
	a.complain(fault.New(fault.IO, "no room").WithHint("make some"))
	lines := strings.SplitN(errw.String(), "\n", 3)
	if lines[0] != "apr: stopped after step 4; go on" || !strings.Contains(lines[1], `"level":"INFO"`) || lines[2] != "apr: error: no room\n  hint: make some\n" {
		t.Errorf("printed %q", lines)
	}
}
