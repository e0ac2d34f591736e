package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
)

// stopped leaves a run of two of four steps with a checkpoint after each, and returns the call that continues it.
func stopped(t *testing.T) func(more ...string) (int, map[string]any) {
	t.Helper()
	smallRun(t)
	args := func(more ...string) []string {
		return append([]string{"distill", "teacher", "--student-config", "student.json", "-d", "train.jsonl", "--val-fraction", "0", "--steps", "4",
			"--batch-size", "2", "--seq-len", "16", "--checkpoint-every", "1", "--control", "none", "--backend", "cpu", "-o", "part"}, more...)
	}
	var out bytes.Buffer
	if code := run(args(), strings.NewReader(""), &out, &out, []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir(), "APR_DISTILL_MAX_STEPS=2"}); code != 0 {
		t.Fatalf("exit %d: %s", code, out.String())
	}
	return func(more ...string) (int, map[string]any) { return call(t, args(append(more, "--resume")...)...) }
}

// A run whose records of steps were lost is not continued unless that is allowed, and then says so.
func TestResumeWithLostRecords(t *testing.T) {
	for name, lose := range map[string]func(string) string{
		"cut":     func(s string) string { return s[:strings.Index(s, "\n")+1] },
		"deleted": func(string) string { return "" },
		"damaged": func(s string) string { return strings.Replace(s, `{"`, `{{`, 1) },
		"double":  func(s string) string { return s[:strings.Index(s, "\n")+1] + s },
	} {
		t.Run(name, func(t *testing.T) {
			resume := stopped(t)
			text, err := os.ReadFile("part/steps.jsonl")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Remove("part/steps.jsonl"); err != nil {
				t.Fatal(err)
			}
			if less := lose(string(text)); less != "" {
				if err := os.WriteFile("part/steps.jsonl", []byte(less), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if code, v := resume(); code != 5 || !strings.Contains(errorText(v), "steps.jsonl holds ") || !strings.Contains(errorText(v), " of the 2 steps of leg student") {
				t.Errorf("exit %d: %s", code, errorText(v))
			}
			code, v := resume("--allow-changed")
			events, err := os.ReadFile("part/events.jsonl")
			if code != 0 || err != nil || !strings.Contains(string(events), "resumed with changes") {
				t.Errorf("allowed: exit %d: %s; %v: %s", code, errorText(v), err, events)
			}
			contracttest.Cases(t, 1)
		})
	}
}

// apr runs resume --allow-changed is apr distill --resume --allow-changed.
func TestRunsResumeAllowChanged(t *testing.T) {
	stopped(t)
	if err := os.Remove("part/steps.jsonl"); err != nil {
		t.Fatal(err)
	}
	if code, v := call(t, "runs", "resume", "part"); code != 5 || !strings.Contains(errorText(v), "--allow-changed") {
		t.Errorf("exit %d: %s", code, errorText(v))
	}
	code, v := call(t, "runs", "resume", "part", "--allow-changed")
	events, err := os.ReadFile("part/events.jsonl")
	if code != 0 || err != nil || !strings.Contains(string(events), "resumed with changes") {
		t.Errorf("allowed: exit %d: %s; %v: %s", code, errorText(v), err, events)
	}
	contracttest.Cases(t, 1)
}

// A checkpoint under another step's name is damaged: it is skipped, with an event.
func TestResumeFromARenamedCheckpoint(t *testing.T) {
	resume := stopped(t)
	if err := os.Rename("part/checkpoints/step-000002", "part/checkpoints/step-000099"); err != nil {
		t.Fatal(err)
	}
	code, v := resume()
	events, err := os.ReadFile("part/events.jsonl")
	from, _ := v["resumed_from"].(string)
	if code != 0 || err != nil || filepath.Base(from) != "step-000001" || !strings.Contains(string(events), "checkpoint skipped") {
		t.Errorf("exit %d, from %q: %s; %v: %s", code, from, errorText(v), err, events)
	}
	contracttest.Cases(t, 1)
}

// Code that an overlay changes has the revision and the state of the tree that it is laid over; the program is another one.
func TestOverlayIsAnotherProgram(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	own, err := os.ReadFile("program.go")
	if err != nil {
		t.Fatal(err)
	}
	put("program.go", string(own))
	put("go.mod", "module x\n\ngo 1.24\n")
	put("main.go", "package main\n\nfunc main() { print(programIdentity(), number) }\n")
	put("number.go", "package main\n\nconst number = 1\n")
	put("two.txt", "package main\n\nconst number = 2\n")
	put("overlay.json", `{"Replace": {"number.go": "two.txt"}}`)
	put(".gitignore", "*.json\nx\n")
	command := func(name string, args ...string) string {
		c := exec.Command(name, args...)
		c.Dir, c.Env = dir, append(os.Environ(), "GOFLAGS=-trimpath", "GIT_CONFIG_GLOBAL=/dev/null")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v: %s", name, args, err, out)
		}
		return string(out)
	}
	command("git", "init", "-q")
	command("git", "add", ".")
	command("git", "-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "x")
	identity := func(flags ...string) string {
		command("go", append(append([]string{"build", "-buildvcs=true"}, flags...), "-o", "x", ".")...)
		return command("./x")
	}
	plain, again, overlaid := identity(), identity(), identity("-overlay", "overlay.json")
	id := func(s string) string { return s[:len(s)-1] }
	if plain != again || id(plain) == id(overlaid) || plain[len(plain)-1] == overlaid[len(overlaid)-1] {
		t.Errorf("%s, again %s, with an overlay %s", plain, again, overlaid)
	}
	contracttest.Cases(t, 1)
}
