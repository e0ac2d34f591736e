package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"apr/internal/cli"
)

// given are values for every option of the commands that print their configuration: none is the default.
var given = map[string][]string{
	"student": {"/s.apr"}, "student-config": {"/c.json"}, "data": {"/a.txt", "/b, c.jsonl", "/d: #e\n f.txt"}, "dataset": {"/shards"}, "text-field": {"body"},
	"quantize-aware": {"q4_k_m"}, "quantize-search-every": {"8"},
	"messages-field": {""}, "data-cache": {"/cache"}, "output": {"/out"}, "force": {"true"}, "alpha": {"0.125"}, "temperature": {"2"},
	"divergence": {"jsd"}, "align": {"auto"}, "divergence-beta": {"0.25"}, "strategy": {"progressive"},
	"hidden-weight": {"0.5"}, "attention-weight": {"0.25"}, "layer-map": {"0:1", "1:3"}, "teachers": {"/b", "/c.gguf"},
	"teacher-weights": {".5", ".25", ".25"},
	"ensemble":        {"logits"}, "route": {"code=/a", "prose=/b c"}, "epochs": {"3"}, "steps": {"7"}, "max-steps": {"5"},
	"batch-size": {"4"},
	"grad-accum": {"2"}, "seq-len": {"128"}, "learning-rate": {"1e-05"}, "warmup-steps": {"3"}, "warmup-ratio": {"0.5"}, "lr-schedule": {"linear"},
	"min-lr-ratio": {"0.5"}, "beta1": {"0.8"}, "beta2": {"0.9"}, "adam-eps": {"1e-09"}, "weight-decay": {"0"}, "max-grad-norm": {"0.5"}, "max-loss-ratio": {"0"}, "router-balance": {"0.01"},
	"seed": {"9223372036854775807"}, "dtype": {"bf16"}, "backend": {"cpu"}, "device": {"1"}, "gpus": {"all"},
	"world-size": {"4"}, "rank": {"1"}, "rendezvous": {"h:1"},
	"rendezvous-timeout": {"1m0s"}, "deterministic": {"world"}, "elastic": {"1:4"}, "teacher-ranks": {"1"},
	"teacher-split": {"true"},
	"chunk-rows":    {"512"}, "recompute": {"norms"},
	"teacher-backend": {"q4k"}, "teacher-cache": {"off"}, "teacher-gemm": {"fp8"}, "teacher-experts": {"host"}, "managed-memory": {"1"}, "probe": {"off"}, "stall-timeout": {"90s"},
	"supervise": {"true"}, "kernel-log": {"true"}, "no-shuffle": {"true"}, "packing": {"false"}, "document-mask": {"true"}, "chat-template": {"chatml"}, "assistant-only": {"false"},
	"eval-data": {"/e.txt", "/f.txt"}, "val-fraction": {"0.25"}, "eval-every": {"50"}, "samples": {"2"}, "log-every": {"1"}, "checkpoint-every": {"0"},
	"checkpoint-interval": {"1h30m"}, "keep-checkpoints": {"5"}, "resume": {"newest"}, "allow-changed": {"true"}, "allow-same-model": {"true"}, "allow-odd-weights": {"true"},
	"control": {"ce"}, "stage": {"train"}, "cache": {"/cache"}, "teacher-logits": {"cache"}, "token-file": {"/token"},
	"tls-ca": {"/ca.pem"}, "cache-kind": {"hidden"},
	"draws": {"20"}, "cache-entropy": {"off"}, "shard": {"1/3"}, "shard-count": {"3"}, "shard-size": {"1MB"},
	"max-tokens": {"7"}, "sampling-temperature": {"0.5"}, "top-p": {"0.5"}, "target-tokens": {"9"},
	"samples-per-prompt": {"3"}, "min-completion-tokens": {"4"}, "max-prompt-chars": {"99"}, "slots": {"2"},
	"on-policy": {"0.5"}, "on-policy-max-tokens": {"9"}, "on-policy-prompt-tokens": {"16"},
	"on-policy-estimator": {"sampled"}, "on-policy-lag": {"1"},
	"expect": {"data=" + strings.Repeat("0f", 32), "teacher=" + strings.Repeat("1e", 32)},
	"plan":   {"true"}, "runs-dir": {"/runs"}, "lora": {"true"}, "lora-rank": {"8"}, "lora-alpha": {"16"},
	"lora-dropout": {"0.5"}, "lora-targets": {"q,k"}, "lora-merge": {"off"}, "adapter": {"/adapter"},
	// of plan and dispatch
	"memory": {"24.5"}, "shape": {"7b:0.5b"}, "cluster": {"/c.yaml"}, "max-step-tokens": {"8192"}, "machines": {"2"},
	"no-probe": {"true"}, "scheduler": {"slurm"}, "host": {"me@there"}, "remote-dir": {"/there"},
	"binary": {"/apr"}, "image": {"r/apr:1"},
	"kind": {"jobset"}, "claim": {"models"}, "secret": {"aws"}, "dry-run": {"true"}, "follow": {"true"},
	"min-disk": {"1 GB"}, "grace": {"2m"}, "time": {"12h"}, "phase": {"4: teach"}, "falsifier": {"FT-X-001"},
}

// settled merges the options of a command that then does nothing, and returns them; or what the command printed.
func settled(t *testing.T, make func() *cli.Command, args, environ []string) (cli.Settings, string) {
	t.Helper()
	c := make()
	var settings cli.Settings
	c.Run = func(_ context.Context, e *cli.Env) (cli.Result, error) { settings = e.Settings; return nil, nil }
	var out, errs bytes.Buffer
	app := &cli.App{Name: "apr", In: strings.NewReader(""), Out: &out, Err: &errs, Environ: environ, Commands: []*cli.Command{c}}
	if code := app.Main(append([]string{c.Name}, args...)); code != 0 {
		t.Fatalf("apr %s %q: exit %d: %s", c.Name, args, code, errs.String())
	}
	return settings, out.String()
}

// sameSettings requires two calls to have the same values, given or not, option by option.
func sameSettings(t *testing.T, what string, a, b cli.Settings, file string) {
	t.Helper()
	for i, s := range a {
		x, err := json.Marshal(s.Value)
		y, err2 := json.Marshal(b[i].Value)
		if err != nil || err2 != nil || !bytes.Equal(x, y) || a.Given(s.Name) != b.Given(s.Name) {
			t.Errorf("%s: %s %s (%s) became %s (%s), read from\n%s", what, s.Name, x, s.Origin, y, b[i].Origin, file)
		}
	}
}

// What --print-config prints is a configuration file that gives the same configuration: of the defaults, of each option of each
// command by itself, and of all at once.
func TestPrintConfigRoundTrip(t *testing.T) {
	for _, command := range []func() *cli.Command{distillCommand, planCommand, dispatchCommand} {
		trip := func(what string, args, environ []string) {
			t.Helper()
			want, _ := settled(t, command, args, environ)
			_, text := settled(t, command, append(args, "--print-config"), environ)
			file := filepath.Join(t.TempDir(), "c.yaml")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, _ := settled(t, command, []string{file}, environ)
			sameSettings(t, what, want, got, text)
		}
		base, all, environ := []string{"/t.apr"}, []string{"/t.apr"}, []string{}
		trip("the defaults", base, nil)
		for _, o := range command().Options {
			values, known := given[o.Name]
			switch {
			case o.Arg:
				continue
			case !known:
				t.Errorf("apr %s: no value is tried for --%s", command().Name, o.Name)
				continue
			case o.EnvOnly:
				trip(o.Name, base, []string{o.Env + "=" + values[0]})
				environ = append(environ, o.Env+"="+values[0])
				continue
			}
			var args []string
			for _, v := range values {
				args = append(args, "--"+o.Name+"="+v)
			}
			trip(o.Name, slices.Concat(base, args), nil)
			all = append(all, args...)
		}
		trip("all", all, environ)
	}
}

// Relative paths mean the same files wherever the printed file lies, and a hub's name stays one.
func TestPrintConfigPaths(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"sub", "elsewhere"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	write("sub/s.apr", "")
	write("sub/f.yaml", "teacher: org/model\nstudent: s.apr\ndata: [a.txt]\nchat_template: chatml\n")
	t.Chdir(dir)
	args := []string{filepath.Join("sub", "f.yaml")}
	_, text := settled(t, distillCommand, append(args, "--eval-data", "e.txt", "--print-config"), nil)
	got, _ := settled(t, distillCommand, []string{write("elsewhere/g.yaml", text)}, nil)
	want := map[string]any{"teacher": "org/model", "student": filepath.Join(dir, "sub/s.apr"), "data": []string{filepath.Join(dir, "sub/a.txt")},
		"eval-data": []string{filepath.Join(dir, "e.txt")}, "chat-template": "chatml"}
	have := map[string]any{}
	for _, s := range got {
		if got.Given(s.Name) {
			have[s.Name] = s.Value
		}
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("read back (-want +got):\n%s\n%s", diff, text)
	}
}

// What no file can say is no key of the printed one, and stands apart in its JSON.
func TestPrintConfigEnvironment(t *testing.T) {
	_, text := settled(t, distillCommand, []string{"/t.apr", "--print-config"}, []string{"APR_DISTILL_MAX_STEPS=3"})
	if strings.Contains(text, "max_steps") || !strings.Contains(text, "# in the environment: APR_DISTILL_MAX_STEPS=3\n") {
		t.Errorf("printed:\n%s", text)
	}
	_, text = settled(t, distillCommand, []string{"/t.apr", "--print-config", "--json"}, []string{"APR_DISTILL_MAX_STEPS=3"})
	var v struct {
		Config      map[string]json.RawMessage
		Environment map[string]string
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	if v.Environment["APR_DISTILL_MAX_STEPS"] != "3" || slices.Contains(slices.Collect(maps.Keys(v.Config)), "max_steps") || len(v.Config) < 40 {
		t.Errorf("%s", text)
	}
}

// A flag for the warm-up in one form outweighs a file that says it in the other, and what is printed says so.
func TestPrintConfigOver(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(file, []byte("teacher: /t.apr\nstudent: /s.apr\ndata: /x.jsonl\nwarmup_ratio: 0.5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, text, _ := distillCall(t, []string{"distill", file, "--warmup-steps", "3", "--print-config"})
	printed := filepath.Join(t.TempDir(), "g.yaml")
	if err := os.WriteFile(printed, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o, s, out, code := distillCall(t, []string{"distill", printed})
	if code != 0 {
		t.Fatalf("exit %d: %s\n%s", code, out, text)
	}
	if c, err := o.config(s); err != nil || c.WarmupSteps != 3 {
		t.Errorf("%d steps of warm-up, %v; want 3:\n%s", c.WarmupSteps, err, text)
	}
}
