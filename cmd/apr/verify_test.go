package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/device/vulkan"
	"apr/internal/contracttest"
	runlog "apr/run/log"
)

// call runs the program and returns its exit code and JSON.
func call(t *testing.T, args ...string) (int, map[string]any) {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(append(args, "--json"), strings.NewReader(""), &out, &errs, []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir()})
	var v map[string]any
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatalf("apr %v: exit %d, %v: %s%s", args, code, err, out.String(), errs.String())
	}
	return code, v
}

// smallRun distils four steps with a control and checkpoints after two, from files in a folder of its own, and returns the
// folder. The run is in run/.
func smallRun(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	model, err := filepath.Abs("../../testdata/golden/trajectory/student")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "teacher"), os.DirFS(model)); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("student.json", `{"model_type":"qwen2","hidden_size":32,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,`+
		`"intermediate_size":64,"vocab_size":4096,"max_position_embeddings":64,"rope_theta":10000.0,"rms_norm_eps":1e-06,"tie_word_embeddings":true,"initializer_range":0.02}`)
	var text strings.Builder
	for i := range 40 {
		fmt.Fprintf(&text, "{\"text\":\"package p%d\\n\\nfunc f%d() int { return %d }\\n\"}\n", i, i*i, i)
	}
	write("train.jsonl", text.String())
	write("held.jsonl", `{"text":"package main\n\nimport \"fmt\"\n\nfunc main() {\n\tfmt.Println(1, 2, 3)\n}\n// the end of a file that nobody trained on\n"}`+"\n")
	t.Chdir(dir)
	if code, v := call(t, "distill", "teacher", "--student-config", "student.json", "-d", "train.jsonl", "--eval-data", "held.jsonl", "--steps", "5",
		"--batch-size", "2", "--grad-accum", "2", "--seq-len", "16", "--checkpoint-every", "2", "--control", "ce", "--backend", "cpu", "-o", "run"); code != 0 {
		t.Fatalf("distill: %v", v)
	}
	return dir
}

// edit replaces one text in a file, which must hold it.
func edit(t *testing.T, name, was, is string) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), was) {
		t.Fatalf("%s does not hold %q", name, was)
	}
	if err := os.WriteFile(name, []byte(strings.Replace(string(b), was, is, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// editLine changes members of the line of steps.jsonl that a leg wrote about a step.
func editLine(t *testing.T, leg string, step int, change func(map[string]any)) {
	t.Helper()
	const name = "run/steps.jsonl"
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	found := false
	for line := range strings.Lines(string(b)) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		if v["leg"] == leg && v["step"] == float64(step) {
			change(v)
			found = true
		}
		line, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s\n", line)
	}
	if !found {
		t.Fatalf("no line of %s step %d", leg, step)
	}
	if err := os.WriteFile(name, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func scale(v map[string]any, key string, by float64) { v[key] = v[key].(float64) * by }

// A run verifies as it is, and does not when anything of it was touched; the message names what.
func TestVerify(t *testing.T) {
	dir := smallRun(t)
	whole := os.DirFS(dir)
	code, v := call(t, "verify", "run")
	if code != 0 || v["passed"] != true {
		t.Fatalf("an untouched run: exit %d, %v", code, v["error"])
	}
	counts := map[string]int{}
	for _, c := range v["checks"].([]any) {
		counts[c.(map[string]any)["name"].(string)]++
	}
	// Both legs: states before steps 0 and 4, the newest checkpoints being those of steps 4 and 5; three cuts of four rows, each
	// with two numbers; four models.
	for name, want := range map[string]int{
		"float64": 2*5 + 2*4, "replay of 4 steps": 2, "replay of 1 steps": 2, "micro-batches of 1 of 4 rows": 4,
		"micro-batches of 2 of 4 rows": 4, "micro-batches of 4 of 4 rows": 4, "scores": 1 + 4*11,
		"margins": 1 + 2*5 + 2*(1+5), "canaries": 1 + 2*3, "final weights": 1, "inputs": 6 + 2, "tokenizer": 2 * 2, "code": 5,
	} {
		if counts[name] != want {
			t.Errorf("%d checks called %q, want %d (all: %v)", counts[name], name, want, counts)
		}
	}
	consistent := func(v map[string]any) { // loss and both terms by the same factor
		for _, key := range []string{"loss", "ce", "kl"} {
			scale(v, key, 1.001)
		}
	}
	for _, tt := range []struct {
		name  string
		touch func(t *testing.T)
		want  string
	}{
		{"a loss", func(t *testing.T) { editLine(t, "student", 3, func(v map[string]any) { scale(v, "loss", 1.001) }) }, "student step 3: loss"},
		{"the first loss", func(t *testing.T) { editLine(t, "student", 0, consistent) }, "result.initial_loss"},
		{"what a loss is made of", func(t *testing.T) {
			editLine(t, "student", 0, func(v map[string]any) { v["ce"], v["kl"] = v["ce"].(float64)+0.01, v["kl"].(float64)-0.01 }) // alpha is ½
		}, "step 0: ce"},
		{"a loss and its terms, within a replay", func(t *testing.T) { editLine(t, "student", 3, consistent) }, "student step 3"},
		{"a gradient norm", func(t *testing.T) { editLine(t, "student", 2, func(v map[string]any) { scale(v, "grad_norm", 1.01) }) }, "student step 2: grad_norm"},
		{"a gradient norm of the control", func(t *testing.T) { editLine(t, "control", 1, func(v map[string]any) { scale(v, "grad_norm", 1.01) }) }, "control step 1: grad_norm"},
		{"a learning rate", func(t *testing.T) { editLine(t, "student", 1, func(v map[string]any) { scale(v, "lr", 2) }) }, "student step 1: lr"},
		{"a count", func(t *testing.T) { editLine(t, "student", 1, func(v map[string]any) { scale(v, "targets", 0.5) }) }, "finite, diverged, targets"},
		{"a step said to be refused", func(t *testing.T) { editLine(t, "control", 1, func(v map[string]any) { v["diverged"] = true }) }, "control step 1: finite, diverged, targets"},
		{"a number of a step", func(t *testing.T) { editLine(t, "student", 4, func(v map[string]any) { v["step"] = 5 }) }, "step 5: step"},
		{"the data", func(t *testing.T) { edit(t, "train.jsonl", "package p7", "package q7") }, "inputs.data.sha256"},
		{"the held-out data", func(t *testing.T) { edit(t, "held.jsonl", "nobody", "somebody") }, "inputs.eval_data.sha256"},
		{"the teacher", func(t *testing.T) { flipByte(t, "teacher/model.safetensors", -1) }, "inputs.teacher.sha256"},
		{"the configuration of the student", func(t *testing.T) { edit(t, "student.json", "1e-06", "1e-05") }, "inputs.student_init.sha256"},
		{"the tokenizer", func(t *testing.T) { edit(t, "teacher/tokenizer.json", `"special": true`, `"special": false`) }, "inputs.tokenizer.sha256"},
		{"the tokenizer and its hash", func(t *testing.T) {
			edit(t, "teacher/tokenizer.json", `"special": true`, `"special": false`)
			rehash(t, "tokenizer")
		}, "inputs.tokenizer.sha256 in student.apr"},
		{"the student", func(t *testing.T) { flipByte(t, "run/student/model.safetensors", -3) }, "outputs.student/model.safetensors"},
		{"the seed", func(t *testing.T) { edit(t, "run/manifest.json", `"value": 42`, `"value": 43`) }, "step 0"},
		{"the program", func(t *testing.T) { edit(t, "run/manifest.json", `"go": "go`, `"go": "gone`) }, "records.manifest.json"},
		{"the speed", func(t *testing.T) { edit(t, "run/receipt.json", `"tokens_per_second": `, `"tokens_per_second": 1`) }, "result.tokens_per_second"},
		{"the time in steps", func(t *testing.T) { edit(t, "run/receipt.json", `"seconds_in_steps": `, `"seconds_in_steps": 1`) }, "result.seconds_in_steps"},
		{"the time of the whole", func(t *testing.T) { edit(t, "run/receipt.json", `"duration_seconds": `, `"duration_seconds": -`) }, "result.duration_seconds"},
		{"the final loss", func(t *testing.T) { edit(t, "run/receipt.json", `"final_loss": `, `"final_loss": 1`) }, "result.final_loss"},
		{"a score", func(t *testing.T) { edit(t, "run/receipt.json", `"nats_per_token": `, `"nats_per_token": 1`) }, "evaluations.0 (teacher): nats_per_token"},
		{"the error of a margin", func(t *testing.T) {
			edit(t, "run/receipt.json", "\n        \"standard_error\": ", "\n        \"standard_error\": 1")
		}, "margins.0 (over untrained student): standard_error"},
		{"a standard error", func(t *testing.T) { edit(t, "run/receipt.json", `"nats_standard_error": `, `"nats_standard_error": 1`) }, "evaluations.0 (teacher): nats_standard_error"},
		{"a canary", func(t *testing.T) { edit(t, "run/receipt.json", `"caught": false`, `"caught": true`) }, "canaries.0 (zeroed)"},
		{"a checkpoint", func(t *testing.T) { flipByte(t, "run/checkpoints/step-000004/state.safetensors", -1) }, "damaged"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			copied := t.TempDir()
			if err := os.CopyFS(copied, whole); err != nil {
				t.Fatal(err)
			}
			t.Chdir(copied)
			tt.touch(t)
			code, v := call(t, "verify", "run")
			message := fmt.Sprint(v["error"])
			if code == 0 || code != 5 && tt.name != "a checkpoint" || v["passed"] == true || !strings.Contains(message, tt.want) {
				t.Errorf("exit %d, %s; want 5 and %q", code, message, tt.want)
			}
		})
	}
}

// rehash writes into the manifest of the run the hash that an input has now.
func rehash(t *testing.T, input string) {
	t.Helper()
	_, v := call(t, "verify", "run")
	for _, c := range v["checks"].([]any) {
		if c := c.(map[string]any); c["field"] == "manifest.json: inputs."+input+".sha256" {
			edit(t, "run/manifest.json", c["logged"].(string), c["recomputed"].(string))
			return
		}
	}
	t.Fatalf("no check of %s", input)
}

// replace changes all of what a pattern matches in a file, which must be something.
func replace(t *testing.T, name, pattern, with string) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	is := regexp.MustCompile(pattern).ReplaceAll(b, []byte(with))
	if bytes.Equal(is, b) {
		t.Fatalf("%s: %q changes nothing", name, pattern)
	}
	if err := os.WriteFile(name, is, 0o600); err != nil {
		t.Fatal(err)
	}
}

// reseal gives the receipt of a run the hashes of the records as they are now.
func reseal(t *testing.T, dir string) {
	t.Helper()
	sums, err := runlog.HashRecords(dir)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "receipt.json")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for record, sum := range sums {
		b = regexp.MustCompile(`("`+regexp.QuoteMeta(record)+`": ")[0-9a-f]*`).ReplaceAll(b, []byte("${1}"+sum))
	}
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Whatever field of a record was edited, a check that names the record disagrees. Scoring a copy of the run takes longest, so that edits
// which different checks find share one copy. An edit that only the hash of a record finds has a copy of its own.
func TestVerifyRecords(t *testing.T) {
	dir := smallRun(t)
	whole := os.DirFS(dir)
	const receipt, manifest, events, steps = "run/receipt.json", "run/manifest.json", "run/events.jsonl", "run/steps.jsonl"
	type change struct{ name, file, pattern, with, want string }
	var copies [][]change
	for _, c := range []change{
		{"cross-entropy", receipt, `("ce": )`, "${1}1", "receipt.json: result.ce"},
		{"divergence", receipt, `(\n    "kl": )`, "${1}1", "receipt.json: result.kl"},
		{"tokens", receipt, `("tokens": )`, "${1}1", "receipt.json: tokens"},
		{"targets", receipt, `(\n  "targets": )`, "${1}1", "receipt.json: targets"},
		{"targets seen", receipt, `("targets_seen": )`, "${1}1", "receipt.json: result.targets_seen"},
		{"status of the result", receipt, `(\n    "status": ")completed`, "${1}failed", "receipt.json: result.status"},
		{"run of the receipt", receipt, `(\n  "run_id": ")`, "${1}x", "receipt.json: run_id"},
		{"run of the result", receipt, `(\n    "run_id": ")`, "${1}x", "receipt.json: result.run_id"},
		{"run of all but the events", "", `("run_id": ")`, "${1}x", "events.jsonl: attempt 1: run_id"},
		{"second copy of the outputs", receipt, `(\n      "student.apr": ")`, "${1}0", "receipt.json: result.outputs"},
		{"error of a margin", receipt, `(\n        "standard_error": 0\.\d\d\d\d\d\d)`, "${1}1", "receipt.json: result.margins"},
		{"number of checkpoints", receipt, `("checkpoints": )`, "${1}1", "receipt.json: result.checkpoints"},
		{"seconds of checkpoints", receipt, `("checkpoint_seconds": )`, "${1}1", "receipt.json: result.checkpoint_seconds"},
		{"resumed from", receipt, `(\n    "initial_loss": )`, "\n    \"resumed_from\": \"x\",${1}", "receipt.json: result.resumed_from"},
		{"a field of the receipt", receipt, `(\n  "by": )`, "\n  \"audited\": true,${1}", "receipt.json: fields"},
		{"a field of the result", receipt, `(\n    "initial_loss": )`, "\n    \"audited\": true,${1}", "receipt.json: fields"},
		{"a field said twice", receipt, `(\n  "by": )`, "\n  \"by\": \"the auditor\",${1}", "receipt.json: line"},
		{"no hashes", receipt, `,\n  "records": \{[^}]*\}`, "", "receipt.json: records.events.jsonl"},
		{"no hash of the steps", receipt, `,\n    "steps.jsonl": "[0-9a-f]*"`, "", "receipt.json: records.steps.jsonl"},
		{"no events", events, `(?s).*`, "", "receipt.json: records.events.jsonl"},
		{"no evaluations", events, `(?m)^.*"kind":"evaluation".*\n`, "", "receipt.json: records.events.jsonl"},
		{"a reason", events, `"reason":"`, `"reason":"not `, "receipt.json: records.events.jsonl"},
		{"a field of an event", events, `"kind":"attempt"`, `"kind":"attempt","audited":true`, "events.jsonl: fields"},
		{"a field of a step", steps, `"leg":"control"`, `"leg":"control","audited":true`, "steps.jsonl: fields"},
		{"the memory of a step", steps, `"memory":`, `"memory":1`, "receipt.json: records.steps.jsonl"},
		{"weight decay", manifest, `("weight_decay": \{\s*"value": )[\d.e-]+`, "${1}0.2", "manifest.json: config.weight_decay"},
		{"beta2", manifest, `("beta2": \{\s*"value": )[\d.e-]+`, "${1}0.95123", "manifest.json: config.beta2"},
		{"largest gradient norm", manifest, `("max_grad_norm": \{\s*"value": )[\d.e-]+`, "${1}1e6", "manifest.json: config.max_grad_norm"},
		{"held-out share", manifest, `("val_fraction": \{\s*"value": )[\d.e-]+`, "${1}0.07", "receipt.json: records.manifest.json"},
		{"warm-up", manifest, `("warmup_steps": \{\s*"value": )[\d.e-]+`, "${1}1", "receipt.json: records.manifest.json"},
		{"bytes of the data", manifest, `(?s)("data": \{[^}]*"bytes": )`, "${1}1", "manifest.json: inputs.data.bytes"},
		{"detail of an input", manifest, `(\d+ documents)`, "1$1", "manifest.json: inputs.data.detail"},
		{"a field of the manifest", manifest, `(\n  "run_id": )`, "\n  \"audited\": true,${1}", "manifest.json: fields"},
		{"samples", "run/samples.json", `("text":\s*")`, "${1}x", "receipt.json: records.samples.json"},
	} {
		apart := func(group []change) bool {
			return slices.ContainsFunc(slices.Concat(group, []change{c}), func(o change) bool {
				return strings.Contains(o.want, ": records.") || strings.HasSuffix(o.want, ": line") || o.file == ""
			}) || slices.ContainsFunc(group, func(o change) bool { return o.want == c.want })
		}
		i := slices.IndexFunc(copies, func(group []change) bool { return !apart(group) })
		if i < 0 {
			copies = append(copies, []change{c})
		} else {
			copies[i] = append(copies[i], c)
		}
	}
	for _, group := range copies {
		t.Run(group[0].name, func(t *testing.T) {
			contracttest.Cases(t, len(group))
			copied := t.TempDir()
			if err := os.CopyFS(copied, whole); err != nil {
				t.Fatal(err)
			}
			t.Chdir(copied)
			for _, c := range group {
				files := []string{c.file}
				if c.file == "" {
					files = []string{receipt, manifest}
				}
				for _, name := range files {
					replace(t, name, c.pattern, c.with)
				}
			}
			code, v := call(t, "verify", "run", "--steps", "1")
			var bad []string
			checks, _ := v["checks"].([]any)
			for _, c := range checks {
				if c := c.(map[string]any); c["ok"] == false && c["not_recorded"] != true {
					bad = append(bad, fmt.Sprint(c["field"]))
				}
			}
			if code != 5 || v["passed"] == true {
				t.Errorf("exit %d, %v; want 5", code, v["error"])
			}
			for _, c := range group {
				if !slices.ContainsFunc(bad, func(field string) bool { return strings.Contains(field, c.want) }) {
					t.Errorf("%s: want %q among\n%s", c.name, c.want, strings.Join(bad, "\n"))
				}
			}
		})
	}
}

// A run of a program that wrote no hashes of records has them counted as not recorded.
func TestVerifyRecordsNotRecorded(t *testing.T) {
	smallRun(t)
	replace(t, "run/receipt.json", `,\n  "records": \{[^}]*\}`, "")
	replace(t, "run/manifest.json", `,\n    "program": "[^"]*"`, "")
	code, v := call(t, "verify", "run", "--steps", "1")
	contracttest.Cases(t, 1)
	if code != 0 || v["not_recorded"] != 7.0 { // four records, the program, and the revision that no test has
		t.Errorf("exit %d, %v not recorded, %v", code, v["not_recorded"], v["error"])
	}
}

// A student that was replaced with everything that names its hash is found by its weights and scores.
func TestVerifyReplacedStudent(t *testing.T) {
	smallRun(t)
	receipt, err := os.ReadFile("run/receipt.json")
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ Outputs map[string]string }
	if err := json.Unmarshal(receipt, &r); err != nil {
		t.Fatal(err)
	}
	was := r.Outputs["student.apr"]
	if code, v := call(t, "distill", "teacher", "--student-config", "student.json", "-d", "train.jsonl", "--eval-data", "held.jsonl", "--steps", "5", "--seed", "9",
		"--batch-size", "2", "--grad-accum", "2", "--seq-len", "16", "--backend", "cpu", "-o", "other"); code != 0 {
		t.Fatalf("distill: %v", v)
	}
	other, err := os.ReadFile("other/student.apr")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("run/student.apr", other, 0o600); err != nil {
		t.Fatal(err)
	}
	if receipt, err = os.ReadFile("other/receipt.json"); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(receipt, &r); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("run/receipt.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("run/receipt.json", bytes.ReplaceAll(text, []byte(was), []byte(r.Outputs["student.apr"])), 0o600); err != nil {
		t.Fatal(err)
	}
	code, v := call(t, "verify", "run", "--steps", "1")
	if message := fmt.Sprint(v["error"]); code != 5 || !strings.Contains(message, "final weights") {
		t.Errorf("exit %d, %s", code, message)
	}
	bad := ""
	for _, c := range v["checks"].([]any) {
		if c := c.(map[string]any); c["ok"] == false {
			bad += fmt.Sprint(c["name"], ": ", c["field"], "\n")
		}
	}
	contracttest.Cases(t, 1)
	if !strings.Contains(bad, "(distilled student): nats_per_token") {
		t.Errorf("disagreements:\n%s", bad)
	}
}

// flipByte inverts one byte of a file, counted from the end if negative.
func flipByte(t *testing.T, name string, at int) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if at < 0 {
		at += len(b)
	}
	b[at] ^= 1
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// What is no finished run is not verified.
func TestVerifyRefusals(t *testing.T) {
	t.Chdir(t.TempDir())
	if code, v := call(t, "verify", "missing"); code != 3 {
		t.Errorf("no run: exit %d, %v", code, v["error"])
	}
	if err := os.Mkdir("run", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("run/manifest.json", []byte(`{"schema":"apr.manifest/1","run_id":"x","config":{"seeds":{"value":1,"origin":"flag"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, v := call(t, "verify", "run"); code != 5 || !strings.Contains(fmt.Sprint(v["error"]), "seeds") {
		t.Errorf("an option that there is not: exit %d, %v", code, v["error"])
	}
}

// A run that was resumed on another device is verified on its last device: another device rounds otherwise, and
// computes the same. A wrong line of either attempt is found.
func TestVerifyOtherDevice(t *testing.T) {
	smallRun(t)
	opens := openVulkan
	t.Cleanup(func() { openVulkan = opens })
	openVulkan = func(vulkan.Options) (device.Device, error) {
		d, err := cpu.New(cpu.Options{ISA: "generic"})
		return planted{d, func(s device.Stream) device.Stream { return s }}, err
	}
	if code, v := call(t, "distill", "teacher", "--student-config", "student.json", "-d", "train.jsonl", "--eval-data",
		"held.jsonl", "--steps", "5", "--batch-size", "2", "--grad-accum", "2", "--seq-len", "16", "--checkpoint-every", "2",
		"--control", "ce", "--backend", "vulkan", "-o", "run", "--resume=run/checkpoints/step-000004",
		"--allow-changed"); code != 0 {
		t.Fatalf("distill: %v", v)
	}
	b, err := os.ReadFile("run/events.jsonl")
	if err != nil || !strings.Contains(string(b), "device_kind was cpu, is vulkan") {
		t.Fatalf("%v; no event says that the device changed", err)
	}
	if code, v := call(t, "verify", "run"); code != 0 || v["passed"] != true || v["device"] != "vulkan" {
		t.Errorf("exit %d on %v: %v", code, v["device"], v["error"])
	}
	var out, errs bytes.Buffer
	code := run([]string{"runs", "show", "run"}, strings.NewReader(""), &out, &errs, []string{"COLUMNS=400"})
	if code != 0 {
		t.Errorf("runs show: exit %d: %s", code, errs.String())
	}
	for _, want := range []string{"attempt 1: cpu, ", "; attempt 2: vulkan, Planted Adapter",
		"backend: The run computes on the CPU: asked for.",
		"backend: The run computes on the Vulkan adapter: asked for."} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("runs show lacks %q:\n%s", want, out.String())
		}
	}
	for _, step := range []int{1, 4} {
		sound, err := os.ReadFile("run/steps.jsonl")
		if err != nil {
			t.Fatal(err)
		}
		editLine(t, "student", step, func(v map[string]any) { scale(v, "grad_norm", 1.01) })
		reseal(t, "run")
		want := fmt.Sprintf("student step %d: grad_norm", step)
		if code, v := call(t, "verify", "run"); code != 5 || !strings.Contains(errorText(v), want) {
			t.Errorf("step %d changed: exit %d, %v", step, code, v["error"])
		}
		if err := os.WriteFile("run/steps.jsonl", sound, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// What was resumed with other settings has no configuration to be recomputed with: that is said, and no line is accused.
func TestVerifyChanged(t *testing.T) {
	smallRun(t)
	if code, v := call(t, "distill", "teacher", "--student-config", "student.json", "-d", "train.jsonl", "--eval-data", "held.jsonl", "--steps", "5",
		"--batch-size", "2", "--grad-accum", "2", "--seq-len", "16", "--checkpoint-every", "2", "--control", "ce", "--backend", "cpu", "-o", "run",
		"--learning-rate", "1e-5", "--resume=run/checkpoints/step-000004", "--allow-changed"); code != 0 {
		t.Fatalf("distill: %v", v)
	}
	if code, v := call(t, "verify", "run"); code != 5 || !strings.Contains(fmt.Sprint(v["error"]), "learning_rate was") ||
		!strings.Contains(fmt.Sprint(v["error"]), "manifest.resume-1.json holds what was in force at the end") {
		t.Errorf("exit %d, %v", code, v["error"])
	}
}
