package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// TestEveryUsageErrorIsJSON: in whatever way a usage error comes up, and wherever --json stands, stdout is the one JSON object
// and names the exit code.
func TestEveryUsageErrorIsJSON(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	type usage struct {
		name string
		args []string
		env  string
	}
	cases := []usage{
		{"unknown command", []string{"nonsense"}, ""},
		{"unknown subcommand", []string{"runs", "nonsense"}, ""},
		{"no subcommand", []string{"runs"}, ""},
		{"help of an unknown command", []string{"help", "nonsense"}, ""},
		{"unknown flag", []string{"inspect", "--nonsense", "x"}, ""},
		{"unknown flag of a subcommand", []string{"runs", "list", "--nonsense"}, ""},
		{"unknown flag before the command", []string{"--nonsense", "inspect"}, ""},
		{"unknown short flag", []string{"inspect", "-Z"}, ""},
		{"value of a switch", []string{"inspect", "x", "--hash=maybe"}, ""},
		{"value of a negated switch", []string{"distill", "--no-packing=maybe"}, ""},
		{"value of a global switch", []string{"inspect", "x", "--quiet=maybe"}, ""},
		{"value of a global choice", []string{"inspect", "x", "--color", "green"}, ""},
		{"value of a number", []string{"tensors", "x", "--limit", "1e2"}, ""},
		{"value of a choice", []string{"quantize", "x", "-o", "y.apr", "-s", "q9"}, ""},
		{"missing argument", []string{"inspect"}, ""},
		{"missing flag", []string{"quantize", "x", "-o", "y.apr"}, ""},
		{"too many arguments", []string{"inspect", "x", "y"}, ""},
		{"contradiction", []string{"version", "--quiet", "--verbose"}, ""},
		{"configuration: unknown key", []string{"tensors", "--config", file("key.yaml", "limt: 3\n")}, ""},
		{"configuration: no YAML", []string{"tensors", "--config", file("no.yaml", "a: [\n")}, ""},
		{"configuration: value", []string{"distill", file("value.yaml", "alpha: much\n")}, ""},
		{"environment", []string{"version"}, "APR_OFFLINE=perhaps"},
		{"environment of the hub", []string{"version"}, "HF_HUB_OFFLINE=perhaps"},
		{"environment of a command", []string{"distill", "t", "--student", "s", "-d", "x"}, "APR_DISTILL_MAX_STEPS=0"},
	}
	for _, tt := range cases {
		for _, flag := range []string{"--json", "--json=true", "--json=on", "--json=maybe", "--json="} {
			for _, args := range [][]string{append(slices.Clone(tt.args), flag), append([]string{flag}, tt.args...)} {
				checkJSONError(t, tt.name, args, tt.env, 2)
			}
		}
		if args := append(slices.Clone(tt.args), "--json", "--json=false"); true {
			var out strings.Builder
			if code := run(args, strings.NewReader(""), &out, io.Discard, []string{tt.env}); code != 2 || out.Len() > 0 {
				t.Errorf("%v: exit %d, %q on stdout", args, code, out.String())
			}
		}
	}
	// The last value is missing: nothing can follow it.
	checkJSONError(t, "missing value", []string{"--json", "tensors", "x", "--limit"}, "", 2)
	checkJSONError(t, "missing value", []string{"--json=maybe", "tensors", "x", "--limit"}, "", 2)
	// A switch whose value cannot be parsed is an error of its own.
	for _, command := range [][]string{{"version"}, {"runs", "list"}, {"help"}} {
		checkJSONError(t, "value of --json", append(command, "--json=maybe"), "", 2)
	}
}

// checkJSONError runs the program and requires one JSON object that describes the failure.
func checkJSONError(t *testing.T, name string, args []string, env string, want int) {
	t.Helper()
	var out strings.Builder
	code := run(args, strings.NewReader(""), &out, io.Discard, []string{env})
	var got struct {
		Schema, Status string
		ExitCode       int `json:"exit_code"`
		Error          *struct{ Kind, Message string }
	}
	d := json.NewDecoder(strings.NewReader(out.String()))
	if err := d.Decode(&got); err != nil || d.More() {
		t.Errorf("%s: %v: exit %d, stdout %q", name, args, code, out.String())
		return
	}
	if code != want || got.ExitCode != want || got.Status != "failed" || got.Error == nil || got.Error.Kind != "usage" || got.Error.Message == "" {
		t.Errorf("%s: %v: exit %d, %s", name, args, code, out.String())
	}
}

// TestJSONAsAValue: the word --json after a flag that takes a value is that value.
func TestJSONAsAValue(t *testing.T) {
	var out strings.Builder
	if code := run([]string{"tokenize", "encode", "nosuch", "-p", "--json"}, strings.NewReader(""), &out, io.Discard, nil); code != 3 || out.Len() > 0 {
		t.Errorf("exit %d, %q", code, out.String())
	}
}

// TestNoTerminalEscapes: names with terminal escapes reach neither stdout nor stderr as they are, but in JSON they keep their value.
func TestNoTerminalEscapes(t *testing.T) {
	const evil = "e\x1b[2J\u009b31m\u202exyz\x07"
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, evil), filepath.Join(dir, "runs", evil)} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(dir, evil, "c.yaml")
	if err := os.WriteFile(config, []byte("unknown: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "runs", evil, "manifest.json"), []byte(`{"run_id":"x\u001b[2J","command":["a\u001b[2J"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, evil+"-missing")
	for _, args := range [][]string{
		{"inspect", missing}, {"tensors", filepath.Join(dir, evil)}, {"validate", missing}, {"diff", missing, missing},
		{"convert", missing, "-o", filepath.Join(dir, evil, "x.apr")}, {"nonsense" + evil}, {"inspect", "--" + evil}, {"inspect", "-" + evil},
		{"tensors", "x", "--limit", evil}, {"quantize", "x", "-o", "y.apr", "-s", evil}, {"inspect", "x", evil},
		{"tensors", "--config", config}, {"distill", config}, {"runs", "list", "--dir", filepath.Join(dir, "runs")},
		{"runs", "list", "--dir", filepath.Join(dir, evil)}, {"runs", "show", evil, "--dir", filepath.Join(dir, "runs")},
		{"runs", "compare", evil, evil, "--dir", filepath.Join(dir, "runs")}, {"runs", "tail", "--no-follow", evil, "--dir", filepath.Join(dir, "runs")},
		{"contract", "list", "--dir", missing}, {"contract", "show", evil}, {"pull", evil}, {"run", missing, evil},
		{"distill", missing, "--student", missing, "-d", missing}, {"dispatch", missing, "--student", missing, "-d", missing, "--dry-run"},
		{"tokenize", "encode", missing, "-p", evil}, {"eval", missing, "--text", evil}, {"completion", evil}, {"verify", missing}, {"check", missing},
		{"bench", missing}, {"export", missing, "-o", evil}, {"quantize", missing, "-s", "q4k", "-o", evil},
	} {
		for _, more := range [][]string{{"--log-format", "text"}, {"--log-format", "json"}, {"--log-format", "text", "--json"}, {"--log-format", "text", "--verbose", "--no-progress=false"}} {
			var out, errw strings.Builder
			env := []string{"APR_RUNS_DIR=" + filepath.Join(dir, evil), "CUDA_VISIBLE_DEVICES=-1", "APR_OFFLINE=1", "APR_DISTILL_" + evil + "=1"}
			run(append(slices.Clone(args), more...), strings.NewReader(""), &out, &errw, env)
			for stream, text := range map[string]string{"stdout": out.String(), "stderr": errw.String()} {
				if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }); i >= 0 {
					t.Errorf("%q: %s holds %q", append(args, more...), stream, text)
				}
			}
		}
	}
	var out strings.Builder
	run([]string{"inspect", missing, "--json"}, strings.NewReader(""), &out, io.Discard, nil)
	var got struct{ Error struct{ Path string } }
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil || got.Error.Path != missing {
		t.Errorf("%v: path %q, want %q", err, got.Error.Path, missing)
	}
}
