//go:build !windows

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"apr/internal/fault"
)

// hostile are texts that a shell, a batch system or Kubernetes could take for something else.
var hostile = []string{
	"a b", "it's", `say "hi"`, "$(touch gone)", "`touch gone`", "${HOME}", "$$", "$(HOME)", "a;touch gone", "a&b|c>d", "*", "~", "-rf", "--", `back\slash`, `\`, "%j", "ü–✓", "", "#SBATCH",
}

// lay makes a folder with programs of the given texts on a PATH of its own, and makes it the working directory's
// parent.
func lay(t *testing.T, programs map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/bash\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return dir
}

// recorder writes its arguments, a line each, and its environment's X.
const recorder = `printf '%s\n' "$@" > args; echo "$X" > env` + "\n"

func job(dir string) Job {
	return Job{Ticket: "apr-1", Command: append([]string{"recorder"}, hostile...), Env: []string{"X=$(touch gone) 'x'"},
		Dir: filepath.Join(dir, "it's $(HOME) here"), RunDir: "runs/a b", Grace: 90*time.Second + 1}
}

// recorded requires that the recorder got exactly what the job says, and that no text was executed.
func recorded(t *testing.T, j Job, more ...string) {
	t.Helper()
	want := strings.Join(append(slices.Clone(j.Command[1:]), more...), "\n") + "\n"
	deadline := time.Now().Add(10 * time.Second)
	for { // the recorder may still be at work
		got, err := os.ReadFile(filepath.Join(j.Dir, "args"))
		if string(got) == want {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("arguments %q (%v), want %q", got, err, want)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if left, _ := filepath.Glob(filepath.Join(j.Dir, "gone")); len(left) > 0 {
		t.Error("a text was executed")
	}
}

func shell(t *testing.T, name, script, dir string, env ...string) (out string, code int) {
	t.Helper()
	c := exec.Command(name, "-s")
	c.Stdin, c.Dir, c.Env = strings.NewReader(script), dir, append(os.Environ(), env...)
	var complaint strings.Builder
	c.Stderr = &complaint
	text, err := c.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(text) + complaint.String(), c.ProcessState.ExitCode()
}

func TestQuote(t *testing.T) {
	out, code := shell(t, "sh", "printf '%s\\n' "+words(hostile), t.TempDir())
	if want := strings.Join(hostile, "\n") + "\n"; out != want || code != 0 {
		t.Errorf("got %q, want %q", out, want)
	}
	line := Line([]string{"A=b c"}, []string{"apr", "--data=it's", "-d", "x y", "plain/path.bin"})
	if want := `A='b c' apr --data='it'\''s' -d 'x y' plain/path.bin`; line != want {
		t.Errorf("line %s, want %s", line, want)
	}
}

func TestCheck(t *testing.T) {
	good := Job{Ticket: "apr-1", Command: []string{"apr", "distill", "it's $(x)"}, Host: "me@host.example", Image: "r:5000/a/b@sha256:00", Claim: "c"}
	tests := []struct {
		name string
		bad  func(*Job)
	}{
		{"newline in an argument", func(j *Job) { j.Command = []string{"apr", "a\nb"} }},
		{"carriage return", func(j *Job) { j.Dir = "a\rb" }},
		{"NUL in a path", func(j *Job) { j.RunDir = "a\x00b" }},
		{"escape in a needed path", func(j *Job) { j.Needs = []string{"\x1b[2J"} }},
		{"newline in a variable", func(j *Job) { j.Env = []string{"A=1\nB=2"} }},
		{"invalid UTF-8", func(j *Job) { j.Command = []string{"apr", "\xff"} }},
		{"host that is an option", func(j *Job) { j.Host = "-oProxyCommand=sh" }},
		{"user that is an option", func(j *Job) { j.Host = "-l@host" }},
		{"host with a command", func(j *Job) { j.Host = "host;id" }},
		{"host with a blank", func(j *Job) { j.Host = "host id" }},
		{"host with a path", func(j *Job) { j.Host = "host/../x" }},
		{"ticket with a slash", func(j *Job) { j.Ticket = "../x" }},
		{"image with a blank", func(j *Job) { j.Image = "a b" }},
		{"claim with capitals", func(j *Job) { j.Claim = "Claim" }},
	}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := good
			if tt.bad(&j); fault.KindOf(j.Check()) != fault.Usage {
				t.Errorf("got %v", j.Check())
			}
		})
	}
}

func TestSSHScript(t *testing.T) {
	dir := lay(t, map[string]string{"recorder": recorder + "echo said; exit 20\n"})
	j := job(dir)
	j.Host = "h"
	out, code := shell(t, "sh", j.SSHScript(), dir)
	var pid int
	if _, err := fmt.Sscanf(out, "%d\n", &pid); err != nil || code != 0 || pid <= 0 {
		t.Fatalf("printed %q, exit %d", out, code)
	}
	recorded(t, j)
	if x, err := os.ReadFile(filepath.Join(j.Dir, "env")); err != nil || string(x) != "$(touch gone) 'x'\n" {
		t.Errorf("variable %q, %v", x, err)
	}
	if out, code := shell(t, "sh", j.FollowScript(), dir); out != "said\n" || code != 20 {
		t.Errorf("followed: %q, exit %d", out, code)
	}
}

func TestSSHScriptRefuses(t *testing.T) {
	dir := lay(t, map[string]string{"recorder": recorder})
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		bad  func(*Job)
		code int
		want string
	}{
		{"a file is missing", func(j *Job) { j.Needs = []string{"/", "not $(here)"} }, 3, "not $(here): there is no such file"},
		{"no disk", func(j *Job) { j.MinFree = 1 << 60 }, 7, "kB are free"},
		{"no directory", func(j *Job) { j.Dir = filepath.Join(dir, "file", "x") }, 7, "cannot be made"},
		{"no program", func(j *Job) { j.Command = []string{"no such program"} }, 9, "no such program is not found"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := job(dir)
			tt.bad(&j)
			if out, code := shell(t, "sh", j.SSHScript(), dir); code != tt.code || !strings.Contains(out, tt.want) {
				t.Errorf("exit %d, %q", code, out)
			}
			if _, err := os.Stat(filepath.Join(j.Dir, "args")); err == nil {
				t.Error("it was started")
			}
		})
	}
}

func TestSCP(t *testing.T) {
	j := Job{Host: "me@h", Dir: "work/"}
	if got, err := j.SCP("bin/apr", "apr"); err != nil || got[len(got)-1] != "me@h:work/apr" || got[len(got)-3] != "--" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, j := range []Job{{Host: "h", Dir: "a b"}, {Host: "h", Dir: "$(id)"}, {Host: "h", Dir: "-x"}, {Host: "[::1]", Dir: "a"}} {
		if _, err := j.SCP("apr", "apr"); fault.KindOf(err) != fault.Usage {
			t.Errorf("%+v: got %v", j, err)
		}
	}
}

func TestSlurmScript(t *testing.T) {
	dir := lay(t, map[string]string{
		"recorder": recorder + "trap 'exit 20' USR1 TERM; touch ready; for i in $(seq 200); do sleep 0.05; done\n",
		"scontrol": `echo "$@" > ../requeued` + "\n",
	})
	j := job(dir)
	j.GPUs, j.Limit = 2, 36*time.Hour+61*time.Second
	if err := os.MkdirAll(j.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := j.SlurmScript()
	for _, line := range []string{"#SBATCH --requeue\n", "#SBATCH --signal=B:USR1@91\n", "#SBATCH --gres=gpu:2\n", "#SBATCH --time=1-12:01:01\n", "#SBATCH --output=apr-1.log\n"} {
		if !strings.Contains(script, line) {
			t.Errorf("the script has no %q", line)
		}
	}
	if strings.Contains(j.slurmWithout(), "gres") {
		t.Error("GPUs that nobody asked for")
	}
	batch := func(signal syscall.Signal) (code int) {
		c := exec.Command("bash", "-s")
		c.Stdin, c.Dir, c.Env = strings.NewReader(script), dir, append(os.Environ(), "SLURM_JOB_ID=77")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		ready := filepath.Join(j.Dir, "ready")
		for i := 0; i < 500; i++ {
			if _, err := os.Stat(ready); err == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if err := errors.Join(os.Remove(ready), c.Process.Signal(signal)); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		return c.ProcessState.ExitCode()
	}
	requeued := func() string {
		text, _ := os.ReadFile(filepath.Join(dir, "requeued"))
		os.Remove(filepath.Join(dir, "requeued"))
		return string(text)
	}
	if code := batch(syscall.SIGUSR1); code != 20 || requeued() != "requeue 77\n" {
		t.Errorf("USR1: exit %d, or it was not put back into the queue", code)
	}
	recorded(t, j)
	if err := os.MkdirAll(filepath.Join(j.Dir, "runs/a b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if code := batch(syscall.SIGTERM); code != 20 || requeued() != "" {
		t.Errorf("TERM: exit %d, or it was put back into the queue", code)
	}
	recorded(t, j, "--force") // started before, no checkpoint
	if err := os.MkdirAll(filepath.Join(j.Dir, "runs/a b/checkpoints/step-000002"), 0o755); err != nil {
		t.Fatal(err)
	}
	batch(syscall.SIGUSR1)
	recorded(t, j, "--resume=runs/a b")
}

// slurmWithout is the script of the same job without a GPU.
func (j Job) slurmWithout() string { j.GPUs = 0; return j.SlurmScript() }

// TestManifest reads the manifest back and executes its command as a kubelet would.
func TestManifest(t *testing.T) {
	dir := lay(t, map[string]string{"recorder": recorder})
	j := job(dir)
	j.Image, j.Claim, j.GPUs = "r/apr:1", "models", 1
	if err := os.MkdirAll(j.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := j.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	var d manifest
	if err := yaml.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	if d.APIVersion != "batch/v1" || d.Kind != "Job" || d.Spec.CompletionMode != "Indexed" || pod.RestartPolicy != "Never" || pod.Grace != 91 {
		t.Errorf("not the Job that was wanted:\n%s", text)
	}
	for _, want := range []string{"nvidia.com/gpu: 1", "claimName: models", "action: Ignore", "action: FailJob", "- 20\n", "- 23\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q", want)
		}
	}
	var argv []string
	for _, s := range append(slices.Clone(c.Command), c.Args...) {
		argv = append(argv, kubeletExpands(s))
	}
	p := exec.Command(argv[0], argv[1:]...)
	p.Dir = j.Dir
	for _, e := range c.Env {
		p.Env = append(p.Env, e.Name+"="+kubeletExpands(e.Value))
	}
	p.Env = append(os.Environ(), p.Env...)
	if out, err := p.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	recorded(t, j)
	if x, err := os.ReadFile(filepath.Join(j.Dir, "env")); err != nil || string(x) != "$(touch gone) 'x'\n" {
		t.Errorf("variable %q, %v", x, err)
	}
}

// TestParts: an array and an Indexed Job of several processes, which are started again as they are.
func TestParts(t *testing.T) {
	j := job(t.TempDir())
	j.Parts, j.Image, j.Secret = 20, "r/apr:1", "aws"
	script := j.SlurmScript()
	for _, line := range []string{"#SBATCH --array=0-19\n", "#SBATCH --output=apr-1-%a.log\n", "scontrol requeue"} {
		if !strings.Contains(script, line) {
			t.Errorf("the script has no %q", line)
		}
	}
	text, err := j.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"completions: 20\n", "parallelism: 20\n", "backoffLimit: 60\n", "secretRef:\n", "name: aws\n"} {
		if !strings.Contains(string(text), line) {
			t.Errorf("the manifest has no %q", line)
		}
	}
	for _, text := range []string{script, string(text)} {
		if strings.Contains(text, "--force") || strings.Contains(text, "--resume") || strings.Contains(text, ".started") {
			t.Error("a part that is started again is told so")
		}
	}
	j.Secret = "a b"
	if err := j.Check(); fault.KindOf(err) != fault.Usage {
		t.Error(err)
	}
}

// kubeletExpands is what Kubernetes documents for commands: $$ is $, $(NAME) is a variable's value.
func kubeletExpands(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '$' && i+1 < len(s) {
			switch s[i+1] {
			case '$':
				i++
			case '(':
				if end := strings.IndexByte(s[i:], ')'); end > 0 {
					b.WriteString("EXPANDED")
					i += end
					continue
				}
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func TestSubmit(t *testing.T) {
	lay(t, map[string]string{
		"sbatch": "cat\nenv | grep -c '^HF_TOKEN=' \n", "ssh": "echo no route >&2; exit 255\n", "kubectl": "echo broken >&2; exit 3\n", "scp": "exit 1\n",
	})
	t.Setenv("HF_TOKEN", "hf_canary")
	out, _ := Submit(context.Background(), []string{"sbatch"}, "text\n")
	if out != "text\n0" {
		t.Errorf("stdin or a secret: %q", out)
	}
	tests := []struct {
		name string
		kind fault.Kind
		want string
	}{
		{"ssh", fault.Network, "no route"}, {"kubectl", fault.NotFound, "broken"}, {"scp", fault.Other, "scp failed"},
		{"no-such-program", fault.Unavailable, "no-such-program is not on PATH"},
	}
	for _, tt := range tests {
		if _, err := Submit(context.Background(), []string{tt.name}, ""); fault.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, err := Follow(context.Background(), []string{"ssh"}, "", &strings.Builder{}); fault.KindOf(err) != fault.Network {
		t.Errorf("followed: %v", err)
	}
	if code, err := Follow(context.Background(), []string{"kubectl"}, "", &strings.Builder{}); code != 3 || err != nil {
		t.Errorf("followed: %d, %v", code, err)
	}
}

func TestStart(t *testing.T) {
	dir := lay(t, nil)
	log := filepath.Join(dir, "log")
	j := Job{Command: []string{"sh", "-c", `echo "$X"; echo err >&2; sleep 0.3; exit 20`}, Env: []string{"X=a b"}}
	p, err := Start("/bin/sh", j, log)
	if err != nil {
		t.Fatal(err)
	}
	if sid, err := unix.Getsid(p.PID); sid != p.PID || err != nil {
		t.Errorf("session %d of process %d (%v): not one of its own", sid, p.PID, err)
	}
	if code := p.Wait(); code != 20 {
		t.Errorf("exit %d, want 20", code)
	}
	if text, err := os.ReadFile(log); string(text) != "a b\nerr\n" {
		t.Errorf("log %q, %v", text, err)
	}
	j.Command = []string{"sh", "-c", "kill -9 $$"}
	if p, err = Start("/bin/sh", j, log); err != nil {
		t.Fatal(err)
	}
	if code := p.Wait(); code != 137 {
		t.Errorf("exit %d, want 137", code)
	}
	if _, err := Start("/no/such", j, log); err == nil {
		t.Error("what is not there was started")
	}
}

func ExampleJob_SSHScript() {
	j := Job{Ticket: "apr-1", Command: []string{"apr", "distill", "it's"}, Host: "gpu1", Dir: "work"}
	fmt.Println(strings.Contains(j.SSHScript(), `'apr' 'distill' 'it'\''s' > runs/dispatch/apr-1.log`))
	// Output: true
}
