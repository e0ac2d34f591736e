package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"apr/internal/cli"
	"apr/internal/contracttest"
)

var update = flag.Bool("update", false, "rewrite schema/*.json")

// TestSchemaIsCurrent keeps schema/distill.json what the option table makes; go test ./cmd/apr -update rewrites it.
func TestSchemaIsCurrent(t *testing.T) {
	const file = "../../schema/distill.json"
	var o distillOptions
	c := &cli.Command{Name: "distill", Options: o.table(), Nested: distillNested}
	want := cli.Schema(c, "distill.json")
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the option table says; run go test ./cmd/apr -run Schema -update", file)
	}
}

// distillCall runs the option table of distill under a command that does nothing.
func distillCall(t *testing.T, args []string, environ ...string) (distillOptions, cli.Settings, string, int) {
	t.Helper()
	var o distillOptions
	var settings cli.Settings
	var out, errw bytes.Buffer
	c := &cli.Command{
		Name: "distill", Options: o.table(), Nested: distillNested, Advice: distillAdvice, EnvPrefix: "APR_DISTILL_", ConfigArg: true, PrintConfig: true,
		Run: func(_ context.Context, e *cli.Env) (cli.Result, error) {
			settings = e.Settings
			return nil, o.check(settings)
		},
	}
	app := &cli.App{Name: "apr", In: strings.NewReader(""), Out: &out, Err: &errw, Environ: environ, Commands: []*cli.Command{c}}
	code := app.Main(args)
	return o, settings, out.String() + errw.String(), code
}

// TestDistillConfigRoundTrip reads back what --print-config prints of the defaults and of changed values.
func TestDistillConfigRoundTrip(t *testing.T) {
	args := strings.Fields("distill /t.apr --student /s.apr -d /x.jsonl --chunk-rows 512 --chat-template chatml --no-packing --probe off --lora --lora-targets q,k")
	want, _, out, code := distillCall(t, args)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, out)
	}
	_, _, text, _ := distillCall(t, append(args, "--print-config"))
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, _, out, code := distillCall(t, []string{"distill", file})
	if code != 0 {
		t.Fatalf("exit %d: %s\n%s", code, out, text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

// TestResumeFollows: --resume PATH with a blank is --resume=PATH where PATH is a run or a checkpoint, or one argument too many;
// a word that is neither is the teacher, and the command line that is recorded says what was understood.
func TestResumeFollows(t *testing.T) {
	dir := t.TempDir()
	run, checkpoint := filepath.Join(dir, "run"), filepath.Join(dir, "run", "checkpoints", "step-000001")
	if err := os.MkdirAll(checkpoint, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{filepath.Join(run, "manifest.json"), filepath.Join(checkpoint, "state.json")} {
		if err := os.WriteFile(file, []byte(`{"schema":"apr.manifest/1"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(config, []byte("student: /s\ndata: /x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	rest := []string{"--student", "/s", "-d", "/x"}
	for _, tt := range []struct {
		name            string
		args            []string
		teacher, resume string
		code            int
	}{
		{"run after", append([]string{"/t", "--resume", run}, rest...), "/t", run, 0},
		{"run before", append([]string{"--resume", run, "/t"}, rest...), "/t", run, 0},
		{"checkpoint", append([]string{"/t", "--resume", checkpoint}, rest...), "/t", checkpoint, 0},
		{"equals", append([]string{"/t", "--resume=" + run}, rest...), "/t", run, 0},
		{"bare, then a flag", append([]string{"/t", "--resume"}, rest...), "/t", "newest", 0},
		{"bare, at the end", append(append([]string{"/t"}, rest...), "--resume"), "/t", "newest", 0},
		{"bare, then the teacher", append([]string{"--resume", "/t"}, rest...), "/t", "newest", 0},
		{"no such run", append([]string{"/t", "--resume", "/nosuch"}, rest...), "/t", "/nosuch", 0},
		{"twice", append([]string{"/t", "--resume", "--resume", run}, rest...), "/t", run, 0},
		{"twice, bare at the end", append([]string{"/t", "--resume", run, "--resume"}, rest...), "/t", "newest", 0},
		{"configuration", []string{config, "--resume", run}, "", run, 2}, // no teacher
		{"two words too many", append([]string{"/t", "--resume", "/a", "/b"}, rest...), "", "", 2},
		{"after --", append(append([]string{}, rest...), "--resume", "--", run), run, "newest", 2}, // a run is no teacher
	} {
		o, _, out, code := distillCall(t, append([]string{"distill"}, tt.args...))
		if code != tt.code || code == 0 && (o.Teacher != tt.teacher || o.Resume != tt.resume) {
			t.Errorf("%s: exit %d, teacher %q, resume %q: %s", tt.name, code, o.Teacher, o.Resume, out)
		}
		if code == 2 && tt.resume == run && !strings.Contains(out, "missing argument TEACHER") {
			t.Errorf("%s: %s", tt.name, out)
		}
	}
}

// TestWarmUpOver: a flag for one way to say the warm-up wins over a file that says the other.
func TestWarmUpOver(t *testing.T) {
	args := strings.Fields("distill /t.apr --student /s.apr -d /x.jsonl --warmup-ratio 0.5 --steps 10 --print-config")
	_, _, text, _ := distillCall(t, args)
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		more []string
		want int
	}{{nil, -1}, {[]string{"--warmup-steps", "3"}, 3}} {
		o, s, out, code := distillCall(t, append([]string{"distill", file}, tt.more...))
		if code != 0 {
			t.Fatalf("%v: exit %d: %s", tt.more, code, out)
		}
		if c, err := o.config(s); err != nil || c.WarmupSteps != tt.want {
			t.Errorf("%v: %d steps of warm-up, %v; want %d", tt.more, c.WarmupSteps, err, tt.want)
		}
	}
}

// TestForeignWords: no word of another program is one of ours or stands for two options, and each is answered with the option.
func TestForeignWords(t *testing.T) {
	var o distillOptions
	own, seen := map[string]bool{}, map[string]string{}
	for _, opt := range o.table() {
		for _, name := range append([]string{opt.Name}, opt.Aliases...) {
			own[name] = !opt.EnvOnly
		}
	}
	for option, words := range distillForeign {
		if !own[option] {
			t.Errorf("%s is no option", option)
		}
		for _, w := range words {
			if own[w] || seen[w] != "" || distillAdvice[w] != "" {
				t.Errorf("%s: for %s, and also an option, for %s, or with advice", w, option, seen[w])
			}
			seen[w] = option
		}
	}
	for w := range distillAdvice {
		if own[w] {
			t.Errorf("advice about our own %s", w)
		}
	}
	for w, want := range map[string]string{
		"per_device_train_batch_size": "--batch-size", "model_name_or_path": "--student", "num_train_epochs": "--epochs", "gradient_accumulation_steps": "--grad-accum",
		"bf16": "--dtype", "micro_batch_size": "--batch-size",
		"sequence_len": "--seq-len", "lmbda": "--on-policy",
		"report_to": "apr runs serve", "deepspeed": "leave it out",
	} {
		if _, _, out, code := distillCall(t, []string{"distill", "/t", "--" + w, "x"}); code != 2 || !strings.Contains(out, want) {
			t.Errorf("--%s: exit %d: %s", w, code, out)
		}
	}
	ours := map[string]bool{}
	for _, c := range commands {
		ours[c().Name] = true
	}
	for w, instead := range foreignCommands {
		if first, _, _ := strings.Cut(instead, " "); ours[w] || !ours[first] && first != "help" {
			t.Errorf("%s is our own command, or %s is none", w, instead)
		}
	}
}

func TestDistillSources(t *testing.T) {
	dir := t.TempDir()
	nested := filepath.Join(dir, "nested.yaml")
	text := "teacher: {model_id: org/t}\nstudent: {model_id: org/s, lora: {rank: 8, alpha: 16}}\n" +
		"distillation: {temperature: 2, alpha: 0.7}\ntraining: {epochs: 2, batch_size: 4, learning_rate: 1e-4, weight_decay: 0, max_grad_norm: 0.5, seed: 7}\n" +
		"dataset: {path: d.jsonl, max_seq_length: 128}\noutput: {dir: out, log_steps: 5, save_steps: 50, eval_steps: 25}\n"
	if err := os.WriteFile(nested, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o, s, out, code := distillCall(t, []string{"distill", nested, "--seed", "8"},
		"APR_DISTILL_TEACHER_BACKEND=realizar-q4k", "APR_DISTILL_MAX_STEPS=3", "APR_DISTILL_ALLOW_DEGENERATE_KD=1", "MANAGED_MEMORY=")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, out)
	}
	if o.Teacher != "org/t" || o.Student != "org/s" || !o.LoRA || o.LoRARank != 8 || o.LoRAAlpha != 16 || o.Temperature != 2 ||
		o.Alpha != 0.7 || o.Epochs != 2 || o.BatchSize != 4 || o.LearningRate != 1e-4 || o.WeightDecay != 0 || o.MaxGradNorm != 0.5 ||
		o.Seed != 8 || o.Data[0] != filepath.Join(dir, "d.jsonl") || o.SeqLen != 128 || o.Output != filepath.Join(dir, "out") ||
		o.LogEvery != 5 || o.CheckpointEvery != 50 || o.EvalEvery != 25 || o.TeacherBackend != "q4k" || o.MaxSteps != 3 || !o.AllowSameModel {
		t.Errorf("merged %+v", o)
	}
	if got := s.Origin("lora-rank"); got != "config "+nested+":2" {
		t.Errorf("origin of lora-rank: %q", got)
	}
	contracttest.Cases(t, 1)
}

// What --stage generate does not read is refused however it was given to this call: by a flag or by a variable.
func TestTextsRefuseWhatTheyDoNotRead(t *testing.T) {
	for _, tt := range []struct {
		flag, env, want string
		code            int
	}{
		{"--world-size 2", "", "--world-size has no effect with --stage generate", 2},
		{"", "APR_DISTILL_WORLD_SIZE=2", "APR_DISTILL_WORLD_SIZE has no effect with --stage generate", 2},
		{"", "APR_DISTILL_RANK=1", "APR_DISTILL_RANK has no effect with --stage generate", 2},
		{"", "APR_DISTILL_MAX_STEPS=3", "APR_DISTILL_MAX_STEPS has no effect with --stage generate", 2},
		{"", "MANAGED_MEMORY=1", "file not found", 3}, // it is read, and the data is looked for
		{"", "", "file not found", 3},
	} {
		contracttest.Cases(t, 1)
		var out bytes.Buffer
		dir := t.TempDir()
		args := strings.Fields("distill " + dir + "/t -d " + dir + "/x --stage generate -o " + dir + "/y " + tt.flag)
		code := run(args, strings.NewReader(""), &out, &out, []string{tt.env, "CUDA_VISIBLE_DEVICES=-1", "HOME=" + dir})
		if code != tt.code || !strings.Contains(out.String(), tt.want) {
			t.Errorf("%s %s: exit %d: %s\nwant exit %d, %q", tt.flag, tt.env, code, out.String(), tt.code, tt.want)
		}
	}
}

func TestDistillUsage(t *testing.T) {
	base := "distill /t --student /s -d /x "
	tests := []struct {
		name, args, env, want string
		code                  int
	}{
		{"no student", "distill /t -d x", "", "missing --student", 2},
		{"no data", "distill /t --student s", "", "missing --data", 2},
		{"fixture", base + "--backend fixture", "", "no simulated training", 2},
		{"ensemble of one", base + "--strategy multi", "", "one teacher", 2},
		{"chunk rows", base + "--chunk-rows 100", "", "256 to 4096, or 0", 2},
		{"gpus", base + "--gpus many", "", "positive integer", 2},
		{"zero steps", base + "--steps 0", "", "--steps: 0 is too small: at least 1", 2},
		{"negative steps", base + "--steps -3", "", "--steps: -3 is too small: at least 1", 2},
		{"loss ratio", base + "--max-loss-ratio 0.5", "", "at least 1, or 0", 2},
		{"max steps 0", base, "APR_DISTILL_MAX_STEPS=0", "APR_DISTILL_MAX_STEPS: 0 is too small: at least 1", 2},
		{"managed memory", base, "MANAGED_MEMORY=2", "MANAGED_MEMORY: unknown value", 2},
		{"teacher backend", base, "APR_DISTILL_TEACHER_BACKEND=cubals", `did you mean "cublas"`, 2},
		{"not honoured", base, "APR_DISTILL_FOO=1", "not honoured", 0},
		{"alpha", base + "--alpha 1.01", "", "outside 0 to 1", 2},
		{"beta without a use", base + "--divergence-beta 0.3", "", "--divergence-beta has no effect with --divergence forward-kl", 2},
		{"beta of the reverse", base + "--divergence reverse-kl --divergence-beta 0.3", "", "--divergence reverse-kl", 2},
		{"beta of a distance", base + "--divergence tvd --divergence-beta 0", "", "--divergence tvd", 2},
		{"beta that is the default", base + "--divergence-beta 0.5", "", "", 0},
		{"beta of jsd", base + "--divergence jsd --divergence-beta 0.3", "", "", 0},
		{"beta of skewed", base + "--divergence skew-reverse --divergence-beta 0.3", "", "", 0},
		{"temperature of nothing", base + "--alpha 0 --temperature 2", "", "--temperature has no effect with --alpha 0", 2},
		{"divergence of nothing", base + "--alpha 0 --divergence jsd", "", "--divergence has no effect with --alpha 0", 2},
		{"control of itself", base + "--alpha 0 --control ce", "", "--control has no effect with --alpha 0", 2},
		{"no control of itself", base + "--alpha 0 --control none --temperature 1", "", "", 0},
		{"last rate of a constant", base + "--lr-schedule constant --min-lr-ratio 0.5", "", "--min-lr-ratio has no effect with --lr-schedule constant", 2},
		{"last rate, as it is", base + "--lr-schedule constant --min-lr-ratio 1", "", "", 0},
		{"evaluation of nothing", base + "--val-fraction 0 --eval-every 50", "", "--eval-every has no effect with --val-fraction 0", 2},
		{"no evaluation of nothing", base + "--val-fraction 0 --eval-every 0", "", "", 0},
		{"evaluation of other data", base + "--eval-data /y --eval-every 50", "", "", 0},
		{"changed since when", base + "--allow-changed", "", "--allow-changed has no effect without --resume", 2},
		{"not changed", base + "--allow-changed=false", "", "", 0},
		{"blocks expanded", base + "--teacher-backend q4k --teacher-cache bf16", "", "--teacher-cache has no effect with --teacher-backend q4k", 2},
		{"blocks kept by cublas", base + "--teacher-cache off", "APR_DISTILL_TEACHER_BACKEND=cudatrainer", "--teacher-cache has no effect with --teacher-backend cublas", 2},
		{"turns of shards", "distill /t --student /s --dataset /x --assistant-only", "", "--assistant-only has no effect with --dataset", 2},
		{"no turns of shards", "distill /t --student /s --dataset /x --no-assistant-only --chat-template none --data-cache off", "", "", 0},
		{"template of shards", "distill /t --student /s --dataset /x --chat-template chatml", "", "--chat-template has no effect with --dataset", 2},
		{"field of shards", "distill /t --student /s --dataset /x --text-field body", "", "--text-field has no effect with --dataset", 2},
		{"cache of shards", "distill /t --student /s --dataset /x --data-cache /c", "", "--data-cache has no effect with --dataset", 2},
		{"field of other documents", "distill /t --student /s --dataset /x --eval-data /y --text-field body", "", "", 0},
		{"two warm-ups", base + "--warmup-steps 3 --warmup-ratio 0.1", "", "exclude each other", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			_, _, out, code := distillCall(t, strings.Fields(tt.args), tt.env)
			if code != tt.code || !strings.Contains(out, tt.want) {
				t.Errorf("exit %d: %s\nwant exit %d, %q", code, out, tt.code, tt.want)
			}
		})
	}
}

// TestHelpOfEveryCommand requires an example and the exit codes in the help of each command, down to subcommands.
func TestHelpOfEveryCommand(t *testing.T) {
	n := 0
	for _, c := range commands {
		cmd := c()
		paths := [][]string{{cmd.Name}}
		for _, s := range cmd.Sub {
			paths = append(paths, []string{cmd.Name, s.Name})
		}
		for _, p := range paths {
			var out strings.Builder
			if code := run(append(p, "--help"), strings.NewReader(""), &out, &out, nil); code != 0 {
				t.Errorf("%v --help: exit %d", p, code)
			}
			wants := []string{"Usage:", "Examples:", "apr " + strings.Join(p, " "), "Exit codes:\n  0    success"}
			if len(p) == 1 && len(cmd.Sub) > 0 {
				wants[3] = "Exit codes of all of them; --help of each has its own:\n  0    success"
			}
			for _, want := range wants {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%v --help lacks %q:\n%s", p, want, out.String())
				}
			}
			for line := range strings.SplitSeq(out.String(), "\n") {
				if utf8.RuneCountInString(line) > 80 {
					t.Errorf("%v --help: more than 80 columns: %s", p, line)
				}
			}
			if strings.Contains(out.String(), "not built") {
				t.Errorf("%v --help offers what is not built", p)
			}
			var page strings.Builder
			if code := run(append([]string{"help", "man"}, p...), strings.NewReader(""), &page, &page, nil); code != 0 || !strings.HasPrefix(page.String(), ".TH APR") {
				t.Errorf("apr help man %v: exit %d, %.40q", p, code, page.String())
			}
			n++
		}
	}
	if n < 10 {
		t.Errorf("only %d commands", n)
	}
}
