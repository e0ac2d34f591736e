package falsify

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// TestReadVerbose: what a test program prints with -test.v=test2json shows the same as the JSON that go test makes of it:
// tests that pass, fail, skip, run side by side, panic, run out of time, and print what looks like results.
func TestReadVerbose(t *testing.T) {
	program := filepath.Join(t.TempDir(), "verbose.test")
	build := exec.Command("go", "test", "-c", "-o", program, "./verbose")
	build.Dir = "testdata/falsify"
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	g, err := newGotool(absolute(t, "testdata/falsify"))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	for _, name := range []string{"TestPasses", "TestFails", "TestSkips", "TestBelow", "TestBelow/deep/er", "TestParallel", "TestPretends", "TestPretendsBelow", "TestPanics", "TestHangs", "TestExits", "TestNone"} {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			const limit = 2 * time.Second
			s, err := g.test(t.Context(), "./verbose", nil, []string{name}, "", limit)
			if err != nil {
				t.Fatal(err)
			}
			want := s.judge(name, quota{least: 1})
			p := &prebuilt{gotool: g, dir: filepath.Dir(program), Prebuilt: Prebuilt{Programs: []Program{{Package: "./verbose", File: "verbose.test"}}}}
			if s, err = p.test(t.Context(), "./verbose", nil, []string{name}, "", limit); err != nil {
				t.Fatal(err)
			}
			got := s.judge(name, quota{least: 1})
			if got.result != want.result || got.observed != want.observed || got.cases != want.cases || got.skipped != want.skipped {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
		})
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestPrebuilt: programs that were built before give the statuses of those that are built now, without a go command; a check
// of which nothing is carried is not judged, a device that is missing is told, and a program that was changed is refused.
func TestPrebuilt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "programs")
	files := []string{filepath.Join(fixtures, "card-v1.yaml"), filepath.Join(fixtures, "upheld-v1.yaml")}
	p, err := Prebuild(t.Context(), files, dir, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Programs) != 3 {
		t.Fatalf("%d programs, want one and two mutants: %+v", len(p.Programs), p.Programs)
	}
	t.Setenv("PATH", "")
	run := func(m Machine) *Falsification {
		t.Helper()
		contracttest.Cases(t, 1)
		f, err := Falsify(t.Context(), files, FalsifyOptions{Prebuilt: dir, Machine: m, AllowUnavailable: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Contracts) != 1 || f.Contracts[0].ID != "card-v1" || f.Prebuilt == nil || f.GoVersion == "" {
			t.Fatalf("%+v", f)
		}
		return f
	}
	f := run(Machine{Devices: []string{"a card"}})
	var got []string
	for _, c := range f.Contracts[0].Checks {
		text := c.ID + " " + string(c.Status)
		for _, m := range c.Mutants {
			if m.Killed {
				text += " " + m.ID
			}
		}
		got = append(got, text)
	}
	if want := "FT-CARD UPHELD M-THRICE,FT-EMULATED UPHELD M-THRICE,FT-BLIND SURVIVED"; strings.Join(got, ",") != want {
		t.Errorf("got %q, want %q", strings.Join(got, ","), want)
	}
	if f := run(Machine{}); f.NeedHardware != 3 || f.Upheld != 0 {
		t.Errorf("without a card: %s", f.Tally)
	}
	changed := filepath.Join(dir, p.Programs[0].File)
	text, err := os.ReadFile(changed)
	if err == nil {
		err = os.WriteFile(changed, append(text, 0), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	contracttest.Cases(t, 1)
	if _, err := Falsify(t.Context(), files, FalsifyOptions{Prebuilt: dir}); fault.KindOf(err) != fault.Format {
		t.Errorf("a changed program: %v", err)
	}
	if _, err := Falsify(t.Context(), files, FalsifyOptions{Prebuilt: t.TempDir()}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("no programs: %v", err)
	}
}

// TestHeadline: a status counts where it should, and a check without a mutant counts twice.
func TestHeadline(t *testing.T) {
	run := func(s Status, declared int, lacks ...string) CheckRun {
		return CheckRun{Status: s, Declared: declared, Lacks: lacks}
	}
	f := &Falsification{Counts: map[Status]int{}, Contracts: []ContractRun{
		{Checks: []CheckRun{run(Upheld, 1), run(Upheld, 0), run(Unavailable, 1, "model:x", "cuda"), run(Unavailable, 1, "mem>=48GiB")}},
		{Checks: []CheckRun{run(Upheld, 2), run(Falsified, 1), run(Unavailable, 0, "program:z3")}},
		{Checks: []CheckRun{run(Vacuous, 1), run(Survived, 1), run(Broken, 0)}},
	}}
	f.sum(nil)
	const want = "3 upheld, 1 falsified, 2 need hardware, 3 without a mutant, 1 need a program or a model, 3 show nothing"
	if f.Tally.String() != want {
		t.Errorf("%q, want %q", f.Tally, want)
	}
	for i, s := range []Status{Unavailable, Falsified, Broken} {
		contracttest.Cases(t, 1)
		if f.Contracts[i].Status != s {
			t.Errorf("contract %d is %s, want %s", i, f.Contracts[i].Status, s)
		}
	}
	if f.Contracts[0].NeedHardware != 2 || f.Contracts[0].WithoutMutant != 1 {
		t.Errorf("%+v", f.Contracts[0].Tally)
	}
	text, err := json.Marshal(f)
	if err != nil || !bytes.Contains(text, []byte(`"need_hardware":2`)) || !bytes.Contains(text, []byte(`"without_mutant":3`)) {
		t.Errorf("%s, %v", text, err)
	}
}
