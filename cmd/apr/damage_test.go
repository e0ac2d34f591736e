package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"apr/format/safetensors"
	"apr/internal/contracttest"
	"apr/modelfile"
	"apr/tensor"
)

// place is a byte of an .apr file that somebody changes.
type place struct {
	name   string
	offset int
	crc    bool // the file is well-formed all the same: only the checksum over it tells
}

// places are in every section of a file that our writer wrote.
func places(t *testing.T, file []byte) []place {
	t.Helper()
	le := binary.LittleEndian
	index, data := int(le.Uint64(file[24:])), int(le.Uint64(file[32:]))
	digit := bytes.Index(file, []byte(`"rope_theta":`)) + len(`"rope_theta":`)
	if digit > index || file[digit] != '1' && file[digit] != '5' {
		t.Fatalf("no rope_theta in the metadata: %q", file[digit:digit+8])
	}
	name := index + 2 + int(le.Uint16(file[index:])) // behind the first entry's name
	return []place{
		{"flags of the header", 6, false},
		{"checksum of the header", 41, false},
		{"a digit of the metadata", digit, true},
		{"a dimension in the index", name + 2, false},
		{"the first byte of the first tensor", data, true},
		{"the middle of the data", (data + len(file)) / 2, true},
		{"the end of the last tensor", len(file) - 5, true},
		{"the checksum at the end", len(file) - 1, true},
	}
}

// readers are commands that read all of a model, X, beside one that is sound, S; output is what none of them may leave.
var readers = []struct {
	args   string
	output string
}{
	{"convert X -o out.apr", "out.apr"},
	{"convert X -o out.gguf --quantize f16", "out.gguf"},
	{"convert X -o out.safetensors", "out.safetensors"},
	{"convert X -o folder", "folder"},
	{"quantize X -s q4k -o quantized.apr", "quantized.apr"},
	{"prune X --layers 0-0 -o pruned.apr", "pruned.apr"},
	{"export X --format hf -o exported", "exported"},
	{"export X --format gguf -o exported.gguf", "exported.gguf"},
	{"import X -o imported.apr", "imported.apr"},
	{"distill X --student-config student.json -d train.jsonl --steps 1 --batch-size 2 --seq-len 16 --backend cpu -o taught", "taught"},
	{"distill S --student X -d train.jsonl --steps 1 --batch-size 2 --seq-len 16 --backend cpu --allow-same-model -o learned", "learned"},
	{"eval X --text somewhere_else --backend cpu", ""},
	{"eval S --teacher X --text somewhere_else --backend cpu", ""},
	{"eval X --task choice --data choice.jsonl --backend cpu", ""},
	{"eval X --task match --data match.jsonl --backend cpu", ""},
	{"run X func -n 1 --cpu", ""},
	{"bench X --max-tokens 2 --iterations 1 --warmup 0 --backend cpu", ""},
	{"bench S --kd X --batch-size 2 --seq-len 16 --iterations 1 --warmup 0 --floor 0 --backend cpu", ""},
	{"diff X S --values --no-threshold", ""},
	{"diff X X", ""},
	{"inspect X --hash", ""},
	{"inspect X --quality", ""},
	{"tensors X --stats", ""},
	{"validate X", ""},
	{"check X --no-gpu", ""},
	{"dispatch X --student-config student.json -d train.jsonl --steps 1 --batch-size 2 --seq-len 16 --backend cpu " +
		"--min-disk 1MB -o sent --dry-run", "sent"},
}

// stated is how the message names both checksums; apr check names its stage before.
var stated = regexp.MustCompile(`^(stage "load" failed: )?X\.apr: footer at offset \d+: the content is damaged: its file checksum, stored at the end, is [0-9a-f]{8}; bytes 0 to \d+ give [0-9a-f]{8} \[E-APR-036\]( \[E-CHECK-001\])?$`)

// One byte of a model is changed: every command that reads all of it refuses, says why, and writes nothing.
func TestDamageIsRefused(t *testing.T) {
	smallRun(t)
	for name, text := range map[string]string{
		"choice.jsonl": `{"prompt":"package ","choices":["main","1 2 3"],"answer":0}` + "\n",
		"match.jsonl":  `{"prompt":"package ","answer":"main"}` + "\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if code, v := call(t, "convert", "teacher", "-o", "S.apr"); code != 0 {
		t.Fatal(v["error"])
	}
	sound, err := os.ReadFile("S.apr")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range places(t, sound) {
		damaged := bytes.Clone(sound)
		damaged[p.offset] ^= 3 // a digit stays one
		if err := os.WriteFile("X.apr", damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, r := range readers {
			t.Run(p.name+": "+r.args, func(t *testing.T) {
				contracttest.Cases(t, 1)
				refused(t, p, strings.Fields(strings.NewReplacer("X", "X.apr", "S", "S.apr").Replace(r.args)))
				if r.output != "" {
					leftBehind(t, r.output)
				}
			})
		}
	}
}

// A model that was cut anywhere is refused, and nothing is left.
func TestCutIsRefused(t *testing.T) {
	smallRun(t)
	if code, v := call(t, "convert", "teacher", "-o", "S.apr"); code != 0 {
		t.Fatal(v["error"])
	}
	sound, err := os.ReadFile("S.apr")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 3, 63, 64, 1000, 300_000, len(sound) / 2, len(sound) - 65, len(sound) - 4, len(sound) - 1} {
		if err := os.WriteFile("X.apr", sound[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		for _, r := range readers {
			code, v := call(t, strings.Fields(strings.NewReplacer("X", "X.apr", "S", "S.apr").Replace(r.args))...)
			if message := fmt.Sprint(v["error"]); code != 4 && !(code == 5 && strings.HasPrefix(r.args, "check ")) || !strings.Contains(message, "X.apr") {
				t.Errorf("%d of %d bytes: apr %s: exit %d: %s", size, len(sound), r.args, code, message)
			}
			if r.output != "" {
				leftBehind(t, r.output)
			}
		}
	}
}

// refused requires a command to refuse X.apr.
func refused(t *testing.T, p place, args []string) {
	t.Helper()
	want := 4
	if args[0] == "check" {
		want = 5 // a stage that failed
	}
	code, v := call(t, args...)
	e, _ := v["error"].(map[string]any)
	message := fmt.Sprint(e["message"])
	switch {
	case p.crc && (code != want || !stated.MatchString(message)):
		t.Errorf("exit %d: %s", code, message)
	case code < 3 || code > 6 || !strings.Contains(message, "X.apr"):
		t.Errorf("exit %d: %s", code, message)
	}
}

// leftBehind reports what a command that failed left of its output: the output, or a temporary file.
func leftBehind(t *testing.T, output string) {
	t.Helper()
	for _, pattern := range []string{output, output + ".*", ".*" + output + "*", ".apr-*"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			t.Errorf("left behind: %v", found)
		}
	}
}

// What reads headers alone says that it did not look at the content, and what has no checksum that it cannot be looked at.
func TestUncheckedContentIsSaid(t *testing.T) {
	smallRun(t)
	if code, v := call(t, "convert", "teacher", "-o", "X.apr"); code != 0 {
		t.Fatal(v["error"])
	}
	file, err := os.ReadFile("X.apr")
	if err != nil {
		t.Fatal(err)
	}
	file[len(file)/2] ^= 3
	if err := os.WriteFile("X.apr", file, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"inspect X.apr": "not checked", "inspect teacher": "no checksum", "inspect teacher --hash": "no checksum",
		"tensors X.apr": "not checked", "tensors X.apr --stats --filter norm": "not checked", "tensors teacher --stats": "no checksum",
	} {
		if code, v := call(t, strings.Fields(args)...); code != 0 || v["content"] != want {
			t.Errorf("apr %s: exit %d, content %v, want %q", args, code, v["content"], want)
		}
	}
	plan := "plan X.apr --student-config student.json -d train.jsonl --batch-size 2 --seq-len 16 --backend cpu --no-probe"
	var out, errs bytes.Buffer
	code := run(strings.Fields(plan), strings.NewReader(""), &out, &errs, []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir()})
	if code != 0 || !strings.Contains(out.String(), "not checked") {
		t.Errorf("apr plan: exit %d: %s%s", code, out.String(), errs.String())
	}
}

// A run is not verified with a teacher that was damaged since.
func TestVerifyRefusesDamage(t *testing.T) {
	smallRun(t)
	if code, v := call(t, "convert", "teacher", "-o", "X.apr"); code != 0 {
		t.Fatal(v["error"])
	}
	if code, v := call(t, strings.Fields("distill X.apr --student-config student.json -d train.jsonl --val-fraction 0 --steps 1 --batch-size 2 --seq-len 16 --control none --backend cpu -o kept")...); code != 0 {
		t.Fatal(v["error"])
	}
	if code, v := call(t, "verify", "kept"); code != 0 {
		t.Fatal(v["error"])
	}
	file, err := os.ReadFile("X.apr")
	if err != nil {
		t.Fatal(err)
	}
	file[len(file)/2] ^= 3
	if err := os.WriteFile("X.apr", file, 0o600); err != nil {
		t.Fatal(err)
	}
	code, v := call(t, "verify", "kept")
	if message := fmt.Sprint(v["error"]); code != 4 || !strings.Contains(message, "X.apr") || !strings.Contains(message, "E-APR-036") {
		t.Errorf("exit %d: %s", code, message)
	}
}

// asItIs are commands that look into a file, or hand it on: they show values that no model can have.
var asItIs = []string{"diff", "inspect", "tensors", "validate", "dispatch"}

// A NaN or an infinity in a place that nothing may ever compute with, the last row of the embedding, is refused by every command that
// uses the weights: with the file, the tensor and the place, before anything is written. validate says so, too.
func TestNonFiniteIsRefused(t *testing.T) {
	smallRun(t)
	for name, text := range map[string]string{
		"choice.jsonl": `{"prompt":"package ","choices":["main","1 2 3"],"answer":0}` + "\n",
		"match.jsonl":  `{"prompt":"package ","answer":"main"}` + "\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name  string
		dtype tensor.DType
		bad   float32
	}{{"nan", tensor.F32, float32(math.NaN())}, {"inf", tensor.F16, float32(math.Inf(1))}, {"minus", tensor.BF16, float32(math.Inf(-1))}} {
		value, rows, cols := brokenCopy(t, "teacher", "S", "X", tt.dtype, tt.bad)
		place := fmt.Sprintf(`X: tensor "model.embed_tokens.weight": value %d (row %d, column %d) is NaN or infinite [E-MODEL-007]`, value, rows-1, cols-1)
		if code, v := call(t, "validate", "X"); code != 5 || !strings.Contains(fmt.Sprint(v["checks"]), "content.finite") {
			t.Errorf("%s: validate: exit %d: %v", tt.name, code, v["error"])
		}
		for _, r := range readers {
			if slices.Contains(asItIs, strings.Fields(r.args)[0]) {
				continue
			}
			t.Run(tt.name+": "+r.args, func(t *testing.T) {
				contracttest.Cases(t, 1)
				want := 4
				if strings.HasPrefix(r.args, "check ") {
					want = 5
				}
				code, v := call(t, strings.Fields(r.args)...)
				if message := errorText(v); code != want || !strings.Contains(message, place) {
					t.Errorf("exit %d: %s; want %d and %s", code, message, want, place)
				}
				if r.output != "" {
					leftBehind(t, r.output)
				}
			})
		}
	}
}

// brokenCopy writes a model in type d, as it is and with the last value of its embedding replaced, and returns where that is.
func brokenCopy(t *testing.T, model, sound, broken string, d tensor.DType, bad float32) (value, rows, cols int) {
	t.Helper()
	f, err := modelfile.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{sound, broken} {
		var all []tensor.Source
		for _, st := range f.File.Tensors() {
			values, err := f.ReadFloat32(st.Name)
			if err != nil {
				t.Fatal(err)
			}
			if st.Name == "model.embed_tokens.weight" {
				value, rows, cols = len(values)-1, st.Rows(), st.Cols()
				if dir == broken {
					values[value] = bad
				}
			}
			raw := make([]byte, len(values)*d.BlockBytes())
			tensor.Narrow(raw, values, d)
			all = append(all, tensor.BytesSource(tensor.Info{Name: st.Name, DType: d, Shape: st.Shape}, raw))
		}
		if _, err := modelfile.SaveHF(dir, f.Config, tok, all, d, true); err != nil {
			t.Fatal(err)
		}
	}
	return value, rows, cols
}

// A head that a tied model would not use is refused by every command that uses the weights, by its name and that of the key; a copy of
// the embedding, in whatever type, and a head of zeros are ignored. What reads headers alone does not look.
func TestIgnoredHeadIsRefused(t *testing.T) {
	smallRun(t)
	for name, text := range map[string]string{
		"choice.jsonl": `{"prompt":"package ","choices":["main","1 2 3"],"answer":0}` + "\n",
		"match.jsonl":  `{"prompt":"package ","answer":"main"}` + "\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if code, v := call(t, "convert", "teacher", "-o", "S"); code != 0 {
		t.Fatal(errorText(v))
	}
	for _, head := range []struct {
		name string
		make func(values []float32)
		d    tensor.DType
	}{
		{"a copy", func([]float32) {}, tensor.F32},
		{"a copy in another type", func([]float32) {}, tensor.F64},
		{"zeros", func(v []float32) { clear(v) }, tensor.F32},
	} {
		withHead(t, "S", "X", head.make, head.d)
		for _, args := range []string{"run X func -n 1 --cpu", "convert X -o ok.apr --force", "eval X --text somewhere_else --backend cpu"} {
			if code, v := call(t, strings.Fields(args)...); code != 0 {
				t.Errorf("%s: apr %s: exit %d: %s", head.name, args, code, errorText(v))
			}
			contracttest.Cases(t, 1)
		}
	}
	withHead(t, "S", "X", func(v []float32) { v[len(v)-1]++ }, tensor.F32) // the last value
	for _, r := range readers {
		if slices.Contains(asItIs, strings.Fields(r.args)[0]) {
			continue
		}
		t.Run(r.args, func(t *testing.T) {
			contracttest.Cases(t, 1)
			code, v := call(t, strings.Fields(r.args)...)
			if message := errorText(v); code != 5 || !strings.Contains(message, `X: tensor "lm_head.weight": is another matrix than "model.embed_tokens.weight", and "tie_word_embeddings": true`) {
				t.Errorf("exit %d: %s", code, message)
			}
			if r.output != "" {
				leftBehind(t, r.output)
			}
		})
	}
	if code, v := call(t, "inspect", "X"); code != 0 {
		t.Errorf("inspect: exit %d: %s", code, errorText(v))
	}
}

// withHead copies a tied model of float32 to a folder, with a head: the embedding, changed, in type d.
func withHead(t *testing.T, from, to string, change func([]float32), d tensor.DType) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from))); err != nil {
		t.Fatal(err)
	}
	f, err := modelfile.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !f.Config.Tied {
		t.Fatal("the model is not tied")
	}
	var all []tensor.Source
	for _, st := range f.File.Tensors() {
		all = append(all, st.Source())
	}
	values, err := f.ReadFloat32("model.embed_tokens.weight")
	if err != nil {
		t.Fatal(err)
	}
	embed, _ := f.File.Tensor("model.embed_tokens.weight")
	change(values)
	raw := make([]byte, len(values)*d.BlockBytes())
	if d == tensor.F64 {
		for i, v := range values {
			binary.LittleEndian.PutUint64(raw[8*i:], math.Float64bits(float64(v)))
		}
	} else {
		tensor.Narrow(raw, values, d)
	}
	all = append(all, tensor.BytesSource(tensor.Info{Name: "lm_head.weight", DType: d, Shape: embed.Shape}, raw))
	if _, err := safetensors.WriteDir(to, all, 1<<40, safetensors.Options{Force: true}); err != nil {
		t.Fatal(err)
	}
}
