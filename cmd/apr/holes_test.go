package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/convert"
	"apr/internal/contracttest"
	"apr/modelfile"
)

// clearTensor replaces the bytes of a stored tensor from byte from to byte to (0: its end) by zeros, in the file or the folder of shards
// that a model is, and returns the tensor's size.
func clearTensor(t *testing.T, model, name string, from, to int) int {
	t.Helper()
	f, err := modelfile.OpenContainer(model)
	if err != nil {
		t.Fatal(err)
	}
	st, ok := f.Stored.Tensor(name)
	if !ok {
		t.Fatalf("%s: no tensor %s", model, name)
	}
	raw := make([]byte, st.Size)
	if n, err := st.ReadAt(raw, 0); n < len(raw) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if to == 0 {
		to = len(raw)
	}
	found := 0
	err = filepath.WalkDir(model, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		file, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if i := bytes.Index(file, raw); i >= 0 {
			found++
			clear(file[i+from : i+to])
			return os.WriteFile(path, file, 0o600)
		}
		return nil
	})
	if err != nil || found != 1 {
		t.Fatalf("%s: %s is in %d files, %v", model, name, found, err)
	}
	return len(raw)
}

// holed are forms of a model without a checksum, a GGUF file and a folder of shards, and a matrix and the embedding of each.
var holed = []struct{ model, matrix, embed string }{
	{"X.gguf", "blk.3.ffn_gate.weight", "token_embd.weight"},
	{"X", "model.layers.3.mlp.gate_proj.weight", "model.embed_tokens.weight"},
}

// writeForm writes the teacher in the form that the name says.
func writeForm(t *testing.T, model string) {
	t.Helper()
	c, err := convert.Open("teacher")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := convert.Write(t.Context(), c, model, convert.Options{Force: true, MaxShard: 1 << 20})
	if err != nil || model == "X" && len(r.Files) < 5 {
		t.Fatal(err, r)
	}
}

// A download that reserved the length of a file and stopped leaves zeros. A matrix of nothing else is refused by every command that uses
// the weights, with the file, the tensor and the offset, and nothing is written: not what a checksum would then call sound.
func TestHoleIsRefused(t *testing.T) {
	smallRun(t)
	for name, text := range map[string]string{
		"choice.jsonl": `{"prompt":"package ","choices":["main","1 2 3"],"answer":0}` + "\n",
		"match.jsonl":  `{"prompt":"package ","answer":"main"}` + "\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range holed {
		writeForm(t, h.model)
		size := clearTensor(t, h.model, h.matrix, 0, 0)
		place := fmt.Sprintf(`tensor %q: all %d bytes are zero, from offset `, h.matrix, size)
		for _, r := range readers {
			if slices.Contains(asItIs, strings.Fields(r.args)[0]) {
				continue
			}
			t.Run(h.model+": "+r.args, func(t *testing.T) {
				contracttest.Cases(t, 1)
				code, v := call(t, strings.Fields(strings.NewReplacer("X", h.model, "S", "teacher").Replace(r.args))...)
				if message := errorText(v); code != 5 || !strings.Contains(message, place) || !strings.Contains(message, h.model) {
					t.Errorf("exit %d: %s; want 5 and %s", code, message, place)
				}
				if r.output != "" {
					leftBehind(t, r.output)
				}
			})
		}
		if code, v := call(t, "validate", h.model); code != 5 || !strings.Contains(fmt.Sprint(v["checks"]), "content.zero") {
			t.Errorf("%s: validate: exit %d: %v", h.model, code, v["error"])
		}
	}
}

// Zeros to the end of a matrix, and many anywhere, are a warning; few between others are not.
func TestHoleIsSaid(t *testing.T) {
	smallRun(t)
	for _, h := range holed {
		for _, tt := range []struct {
			tensor   string
			from, to int
			length   int // of what is said; 0: nothing is
		}{
			{h.matrix, 191_608, 0, 5000}, // its end
			{h.matrix, 4000, 4000 + 6000, 0},
			{h.embed, 1000, 1000 + 64<<10, 64 << 10},
			{h.embed, 1000, 1000 + 60<<10, 0},
		} {
			t.Run(fmt.Sprintf("%s: %s: %d to %d", h.model, tt.tensor, tt.from, tt.to), func(t *testing.T) {
				contracttest.Cases(t, 1)
				writeForm(t, h.model)
				clearTensor(t, h.model, tt.tensor, tt.from, tt.to)
				said := fmt.Sprintf("tensor %q: %d bytes are zero, from offset ", tt.tensor, tt.length)
				code, v := call(t, "import", h.model, "-o", "imported.apr", "--force")
				if all := fmt.Sprint(v["warnings"]); code != 0 || strings.Contains(all, said) != (tt.length > 0) || strings.Contains(all, "zero") != (tt.length > 0) {
					t.Errorf("import: exit %d: %s; want %q", code, all, said)
				}
				for _, args := range []string{
					"distill M --student-config student.json -d train.jsonl --steps 1 --batch-size 2 --seq-len 16 --control none --backend cpu -o taught --force",
					"run M func -n 1 --cpu",
				} {
					var out, errs bytes.Buffer
					code := run(strings.Fields(strings.ReplaceAll(args, "M", h.model)), strings.NewReader(""), &out, &errs, []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir()})
					if all := errs.String() + out.String(); code != 0 || strings.Count(strings.ReplaceAll(all, `\"`, `"`), "are zero") != min(tt.length, 1) {
						t.Errorf("apr %s: exit %d: %s; want %q", args, code, all, said)
					}
				}
			})
		}
	}
}
