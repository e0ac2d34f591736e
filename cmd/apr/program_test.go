package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/run/verify"
)

// The program is named by the content of its file.
func TestProgramIdentity(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if got := programIdentity(); got != contentOf(own) || !strings.HasPrefix(got, "executable ") || len(got) != len("executable ")+64 {
		t.Errorf("this test is %q, its file %q", got, contentOf(own))
	}
	if got := contentOf(filepath.Join(t.TempDir(), "none")); got != "" {
		t.Errorf("a file that is not there is %q", got)
	}
	id := func(text string) string {
		path := filepath.Join(t.TempDir(), "program")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return contentOf(path)
	}
	long := strings.Repeat("a", 1<<20)
	first, again, other := id(long+"b"), id(long+"b"), id(long+"c")
	if first != again || first == other {
		t.Error("two programs that differ in their last byte are one, or one is two")
	}
	contracttest.Cases(t, 4)
}

// Under go run the program is a file of another name each time: its content names it, the same for equal code, another for changed
// code, with and without -trimpath.
func TestContentUnderGoRun(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	identity := func(flags ...string) string {
		c := exec.Command("go", append(append([]string{"run"}, flags...), ".")...)
		c.Dir, c.Env = dir, append(os.Environ(), "GOFLAGS=")
		path, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, path)
		}
		return string(path)
	}
	put("go.mod", "module x\n\ngo 1.24\n")
	const text = "package main\n\nimport (\n\t\"crypto/sha256\"\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() {\n\tp, _ := os.Executable()\n\tb, _ := os.ReadFile(p)\n\tfmt.Printf(\"%x %d\", sha256.Sum256(b), 1)\n}\n"
	for _, flags := range [][]string{nil, {"-trimpath"}} {
		put("main.go", text)
		first, again := identity(flags...), identity(flags...)
		put("main.go", strings.Replace(text, ", 1)", ", 1+1)", 1))
		changed := identity(flags...)
		if first != again || first[:64] == changed[:64] {
			t.Errorf("%v: %s, again %s, changed %s", flags, first, again, changed)
		}
		contracttest.Cases(t, 2)
	}
}

// A value that a run did not write down is not recorded: it neither agrees nor disagrees, is counted as such, and is no check.
func TestVerifyNotRecorded(t *testing.T) {
	smallRun(t)
	lines := func() (text string) {
		t.Helper()
		var out strings.Builder
		if code := run([]string{"verify", "run", "--steps", "1"}, strings.NewReader(""), &out, &out, []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir()}); code != 0 {
			t.Fatalf("exit %d: %s", code, out.String())
		}
		return out.String()
	}
	// a test has no revision: git_sha and dirty are null on both sides
	if text := lines(); !strings.Contains(text, "not recorded, so not verified: manifest.json: version.git_sha") || !strings.Contains(text, "2 values were not recorded") ||
		strings.Contains(text, "null") || !strings.Contains(text, "3 agree, 2 not recorded") {
		t.Error(text)
	}
	edit(t, "run/manifest.json", `"program": "`, `"was": "`)
	reseal(t, "run")
	if text := lines(); !strings.Contains(text, "version.program") || !strings.Contains(text, "3 values were not recorded") {
		t.Error(text)
	}
	code, v := call(t, "verify", "run", "--steps", "1")
	if code != 0 || v["not_recorded"] != 3.0 || v["passed"] != true {
		t.Errorf("exit %d: %v of %v", code, v["not_recorded"], v["passed"])
	}
	edit(t, "run/manifest.json", `"was": "`, `"program": "executable 00`)
	reseal(t, "run")
	if text := lines(); !strings.Contains(text, "program: differs: this is not the build that trained (manifest.json: version.program)") || !strings.Contains(text, "checks agree.") {
		t.Errorf("another program: %s", text)
	}
	if code, v := call(t, "verify", "run", "--steps", "1"); code != 0 || v["program"] != "differs" || v["passed"] != true {
		t.Errorf("another program: exit %d, %v, %s", code, v["program"], errorText(v))
	}
	editLine(t, "student", 1, func(v map[string]any) { scale(v, "grad_norm", 1.01) })
	reseal(t, "run")
	if code, v := call(t, "verify", "run"); code != 5 || v["program"] != "differs" || !strings.Contains(errorText(v), "student step 1: grad_norm") {
		t.Errorf("another program, and another figure: exit %d, %v, %s", code, v["program"], errorText(v))
	}
	r := &verifyResult{Checks: []verify.Check{{Name: "code", NotRecorded: true}}}
	if r.judge(nil) == nil || r.Passed {
		t.Error("a run of which nothing was recorded is verified")
	}
	contracttest.Cases(t, 7)
}

func errorText(v map[string]any) string {
	e, _ := v["error"].(map[string]any)
	s, _ := e["message"].(string)
	return s
}
