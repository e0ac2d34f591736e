package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"apr/bench/trial"

	"github.com/klauspost/compress/zstd"
)

// documents writes the first n documents of a file that have at most size bytes.
func documents(t *testing.T, from, to string, n, size int) {
	t.Helper()
	packed, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	var out []byte
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() && n > 0 {
		var d struct {
			Text string `json:"text"`
		}
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			t.Fatal(err)
		}
		if len(d.Text) <= size {
			out = append(append(out, lines.Bytes()...), '\n')
			n--
		}
	}
	if err := os.WriteFile(to, out, 0o644); err != nil {
		t.Fatal(err)
	}
}

// Every variant is made with a handful of tokens by the program of this tree: what one run's flags are wrong for
// would fail.
func TestEveryVariantRuns(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	if out, err := exec.Command("go", "build", "-o", file("apr"), "../../cmd/apr").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv("XDG_CACHE_HOME", file("cache")) // after the build, whose cache it would be
	documents(t, "../../examples/gosrc/data/gosrc-train-sample.jsonl.zst", file("train.jsonl"), 12, 6000)
	documents(t, "../../examples/gosrc/data/gosrc-val.jsonl.zst", file("held.jsonl"), 1, 1500)
	args := []string{"-apr", file("apr"), "-teacher", "../../examples/gosrc/teacher.apr", "-name", "tiny", "-data", file("train.jsonl"), "-held", file("held.jsonl"),
		"-backend", "cpu", "-tokens", "192", "-batch-size", "2", "-seq-len", "32", "-seeds", "1", "-jobs", "2", "-calibration-tokens", "256", "-log", file("log.jsonl"), "-docs", file("x.md")}
	if err := os.WriteFile(file("x.md"), []byte("<!-- students tiny begin --><!-- students tiny end -->"), 0o644); err != nil {
		t.Fatal(err)
	}
	begin := func() []record {
		t.Helper()
		o, err := parse(args)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.run(context.Background()); err != nil {
			t.Fatal(err)
		}
		l, err := trial.ReadLog[settings, record](file("log.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		return l.Records
	}
	all := begin()
	for _, v := range variants {
		r := find(rowsOf(all), v.name)
		if len(r.runs) == 1 {
			if x := r.runs[0]; !(x.Nats > 0 && x.KL > 0 && x.Tokens == 64*max(1, v.tokens(192)/64) && len(x.Curve) > 1) {
				t.Errorf("%s: %+v", v.name, x)
			}
			continue
		}
		// A program that refuses something by name has no figure for it.
		if len(r.why) < len(refused) || r.why[:len(refused)] != refused || v.start == random && !v.attention {
			t.Errorf("%s: %s", v.name, r.why)
		}
	}
	again := begin()
	for _, r := range again[len(all):] {
		if r.Status == done {
			t.Errorf("%s was run again", r.Variant)
		}
	}
}
