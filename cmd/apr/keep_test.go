package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"apr/internal/contracttest"
)

// inCopies makes a folder of models that a test may lose: m, a folder; shards, one with an index; t.apr; link, to m; links, whose files
// are links to those of m; shown, a folder of token shards; and run, the record of a run.
func inCopies(t *testing.T) {
	t.Helper()
	inModelFolder(t)
	shards(t)
	must(t, "convert", "teacher", "-o", "t.apr")
	err := errors.Join(os.CopyFS("m", os.DirFS("teacher")), os.Symlink("m", "link"), os.Mkdir("links", 0o700), os.Mkdir("run", 0o700),
		os.WriteFile("good.txt", []byte("package main\n"), 0o600), os.WriteFile("cut.jsonl", []byte("{\"text\": \"package\"}\n{\"text\": \"pack"), 0o600))
	names, _ := filepath.Glob("m/*")
	for _, name := range names {
		err = errors.Join(err, os.Symlink("../"+name, filepath.Join("links", filepath.Base(name))))
	}
	for name, text := range map[string]string{
		"manifest.json": `{"schema":"apr.manifest/1","id":"run","command":["apr","distill"],"start":"2026-11-20T14:47:00Z"}`, "steps.jsonl": "", "events.jsonl": "",
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join("run", name), []byte(text), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	must(t, "tokenize", "encode-corpus", "--corpus", "good.txt", "--tokenizer", "teacher", "--output", "shown")
}

// contents returns every file below the working directory with a hash of what it holds, and every link with where it leads.
func contents(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || d.IsDir():
			return err
		case d.Type()&fs.ModeSymlink != 0:
			all[path], err = os.Readlink(path)
			return err
		}
		text, err := os.ReadFile(path)
		all[path] = fmt.Sprintf("%x", sha256.Sum256(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// No command replaces what it reads, or what the folder of its input holds, by whatever name and with force: exit code 5, which names the
// output, and every file is there as it was.
func TestOutputKeepsInputs(t *testing.T) {
	for _, tt := range []struct{ name, args string }{
		{"the folder of the weights", "convert m/model.safetensors -o m --quantize bf16 --force"},
		{"a link to the folder of the weights", "convert m/model.safetensors -o link --quantize bf16 --force"},
		{"the folder to which the weights' links lead", "convert links/model.safetensors -o m --quantize bf16 --force"},
		{"the folder of links", "convert links/model.safetensors -o links --quantize bf16 --force"},
		{"the folder of the teacher", "prune m --layers 0-0 -o m --force"},
		{"the folder of exported weights", "export m/model.safetensors --format hf -o m --force"},
		{"a configuration", "export m --format gguf -o m/config.json --force"},
		{"a tokenizer in a model", "import other.gguf --tokenizer t.apr -o t.apr --force"},
		{"a folder that is named by its index", "convert shards/model.safetensors.index.json -o shards --force"},
		{"weights beside the index of the input", "convert shards -o shards/model.safetensors --force"},
		{"weights beside the index of another model", "convert t.apr -o shards/model.safetensors"},
		{"a tokenizer's folder", "tokenize import-hf --input m --output m --force"},
		{"a link to a tokenizer's folder", "tokenize import-hf --input m/tokenizer.json --output link --force"},
		{"the steps of a run", "runs report run -o run/steps.jsonl --format md --force"},
		{"the manifest of a run", "runs report run -o run/manifest.json --format html --force"},
		{"a record that the run has not written yet", "runs report run -o run/receipt.json --format html"},
		{"token shards, from a text that is cut", "tokenize encode-corpus --corpus cut.jsonl --tokenizer teacher --output shown --force"},
		{"token shards, from the same manifest", "tokenize encode-corpus --corpus shown/manifest.json --tokenizer teacher --output shown --force"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inCopies(t)
			before := contents(t)
			args := strings.Fields(tt.args)
			code, v := call(t, args...)
			if code != 5 {
				t.Errorf("exit %d, %v", code, v["error"])
			}
			if after := contents(t); !maps.Equal(before, after) {
				for name := range before {
					if before[name] != after[name] {
						t.Errorf("%s was changed", name)
					}
				}
				t.Errorf("%d files, there were %d", len(after), len(before))
			}
			contracttest.Cases(t, 1)
		})
	}
}

// What holds no input is replaced as before.
func TestOutputsBesideInputs(t *testing.T) {
	inCopies(t)
	for _, args := range []string{
		"convert m -o other", "convert m -o other --force", "convert m -o m/small.apr", "convert m -o m/small.apr --force",
		"tokenize import-hf --input m --output tok", "tokenize import-hf --input m --output tok --force",
		"tokenize encode-corpus --corpus good.txt --tokenizer teacher --output shown --force",
		"runs report run -o run/report.md", "runs report run -o run/report.md --force", "runs report run -o r.html",
	} {
		must(t, strings.Fields(args)...)
		contracttest.Cases(t, 1)
	}
	if left, _ := filepath.Glob("shown/.*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A folder with an index and weights that the index does not list is two models: it is refused with both names, for others read the
// weights where apr would read the index.
func TestFolderOfTwoModels(t *testing.T) {
	inCopies(t)
	if err := os.Link("m/model.safetensors", "shards/model.safetensors"); err != nil {
		t.Fatal(err)
	}
	code, v := call(t, "inspect", "shards")
	e, _ := v["error"].(map[string]any)
	text := fmt.Sprint(e["message"], e["path"])
	if code != 3 || !strings.Contains(text, "model.safetensors.index.json and model.safetensors, which") {
		t.Errorf("exit %d, %v", code, v)
	}
	must(t, "inspect", "shards/model.safetensors.index.json")
	contracttest.Cases(t, 1)
}

// The cache of tokens removes no folder that it has not made, also none whose name begins with a dot and that is older than a day.
func TestCacheKeepsFolders(t *testing.T) {
	sample, err := os.ReadFile("../../examples/gosrc/data/gosrc-train-sample.jsonl.zst")
	inModelFolder(t)
	long := time.Now().Add(-48 * time.Hour)
	err = errors.Join(err, os.MkdirAll("cw/.tmp-corpus", 0o700), os.WriteFile("cw/.tmp-corpus/a.jsonl.zst", sample, 0o600), os.Chtimes("cw/.tmp-corpus", long, long))
	if err != nil {
		t.Fatal(err)
	}
	code, v := call(t, "eval", "teacher", "--data", "cw/.tmp-corpus/a.jsonl.zst", "--max-tokens", "256", "--seq-len", "128", "--data-cache", "cw")
	if use, _ := v["data_cache"].(map[string]any); code != 0 || use["state"] != "written" {
		t.Fatalf("exit %d, %v", code, v)
	}
	if _, err := os.Stat("cw/.tmp-corpus/a.jsonl.zst"); err != nil {
		t.Error(err)
	}
	contracttest.Cases(t, 1)
}

// A file of a folder that is left out for what it holds is counted and named, in the log and in the manifest.
func TestNotTextIsNamed(t *testing.T) {
	inModelFolder(t)
	text := []byte("package main\n\nfunc main() { println(1, 2, 3) }\n")
	if err := errors.Join(os.Mkdir("text", 0o700), os.WriteFile("text/a.txt", text, 0o600), os.WriteFile("text/nul.txt", []byte("a\x00b"), 0o600),
		os.WriteFile("text/latin.txt", []byte("caf\xe9"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	code := run(strings.Fields("distill teacher --student-config teacher/config.json -d text --steps 1 --batch-size 1 --seq-len 8 --backend cpu --val-fraction 0 -o run"),
		strings.NewReader(""), &out, &errs, []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir()})
	manifest, err := os.ReadFile("run/manifest.json")
	if code != 0 || err != nil {
		t.Fatalf("exit %d, %v: %s", code, err, errs.String())
	}
	const want = "2 files are left out, not text (NUL or bad UTF-8): text/latin.txt, text/nul.txt"
	if !strings.Contains(errs.String(), want) || !strings.Contains(string(manifest), want) {
		t.Errorf("%q is not in the manifest and on stderr: %s", want, errs.String())
	}
	contracttest.Cases(t, 1)
}
