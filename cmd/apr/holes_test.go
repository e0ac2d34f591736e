package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/convert"
	"apr/internal/contracttest"
	"apr/modelfile"
	runlog "apr/run/log"
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

// holed are forms of a model without a checksum, a GGUF file and a folder of shards, and a matrix, the embedding and norms of each.
var holed = []struct {
	model, matrix, embed string
	norms                []string
}{
	{"X.gguf", "blk.3.ffn_gate.weight", "token_embd.weight", []string{"output_norm.weight", "blk.1.ffn_norm.weight"}},
	{"X", "model.layers.3.mlp.gate_proj.weight", "model.embed_tokens.weight", []string{"model.norm.weight", "model.layers.1.input_layernorm.weight"}},
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

// distinctNorms gives each norm of the teacher, all of which are 1, values of its own: by them clearTensor finds it.
func distinctNorms(t *testing.T) {
	t.Helper()
	n := 0
	rewritten(t, "norms", func(*arch.Config) {}, func(name string, v []float32) {
		for i := range v {
			if strings.Contains(name, "norm") {
				v[i], n = 1+float32(n%97)/128, n+1
			}
		}
	})
	if err := errors.Join(os.RemoveAll("teacher"), os.Rename("norms", "teacher")); err != nil {
		t.Fatal(err)
	}
}

// A norm of zeros, which makes all that comes after it zero, is damage too, and not the machine's fault.
func TestZeroNormIsRefused(t *testing.T) {
	smallRun(t)
	distinctNorms(t)
	for _, h := range holed {
		for _, norm := range h.norms {
			writeForm(t, h.model)
			size := clearTensor(t, h.model, norm, 0, 0)
			place := fmt.Sprintf(`tensor %q: all %d bytes are zero, from offset `, norm, size)
			for _, args := range []string{
				"eval X --text somewhere_else --backend cpu", "convert X -o out.apr", "quantize X -s q8_0 -o out.gguf", "export X --format hf -o exported", "import X -o out.apr",
				"prune X --layers 0-0 -o out.apr",
				"distill X --student-config student.json -d train.jsonl --steps 1 --batch-size 2 --seq-len 16 --backend cpu -o taught",
				"run X func -n 1 --cpu", "check X --no-gpu", "validate X",
			} {
				contracttest.Cases(t, 1)
				code, v := call(t, strings.Fields(strings.ReplaceAll(args, "X", h.model))...)
				if message := errorText(v); code != 5 || args != "validate X" && !strings.Contains(message, place) {
					t.Errorf("apr %s (%s): exit %d: %s; want 5 and %s", args, h.model, code, message, place)
				}
				for _, output := range []string{"out.apr", "out.gguf", "exported", "taught"} {
					leftBehind(t, output)
				}
			}
		}
	}
}

// Long runs of zeros are a warning: of 4 KiB in a matrix, of 64 KiB or to the end in one whose rows are of tokens, which may have none.
func TestHoleIsSaid(t *testing.T) {
	smallRun(t)
	for _, h := range holed {
		for _, tt := range []struct {
			tensor   string
			from, to int
			length   int // of what is said; 0: nothing is
		}{
			{h.matrix, 191_608, 0, 5000}, // its end
			{h.matrix, 4000, 4000 + 6000, 6000},
			{h.matrix, 4000, 4000 + 4000, 0},
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

// What a run warned of, here also that the teacher's biases are those of a new model, stays in its records, however
// quiet it was: an event, a line of the manifest, a finding.
func TestHoleIsRecorded(t *testing.T) {
	smallRun(t)
	writeForm(t, "X")
	clearTensor(t, "X", "model.layers.3.mlp.gate_proj.weight", 4000, 10_000)
	const said = `tensor "model.layers.3.mlp.gate_proj.weight": 6000 bytes are zero`
	var out, errs bytes.Buffer
	distil := strings.Fields("distill X --student-config student.json -d train.jsonl --steps 1 --batch-size 2 --seq-len 16 --control none --backend cpu --force -o taught")
	for _, args := range [][]string{distil, append(distil, "-q")} {
		errs.Reset()
		if code := run(args, strings.NewReader(""), &out, &errs, []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir()}); code != 0 {
			t.Fatal(errs.String())
		}
		if quiet := slices.Contains(args, "-q"); !quiet && !regexp.MustCompile(`WARN.*6000 bytes are zero`).MatchString(errs.String()) {
			t.Errorf("no WARN: %s", errs.String())
		}
		contracttest.Cases(t, 1)
		r, err := runlog.Read("taught")
		if err != nil {
			t.Fatal(err)
		}
		if w := r.Manifest.Warnings; len(w) != 2 || !strings.Contains(w[0], said) {
			t.Errorf("manifest: %q", w)
		}
		if !slices.ContainsFunc(r.Events, func(e runlog.Event) bool { return e.Name == runlog.DoubtfulModel && strings.Contains(e.Reason, said) }) {
			t.Error("no event says it")
		}
		if _, v := call(t, "runs", "diagnose", "taught"); !strings.Contains(fmt.Sprint(v["findings"]), said) {
			t.Errorf("diagnosis: %v", v["findings"])
		}
	}
	if code, v := call(t, "validate", "X"); code != 0 || fmt.Sprint(v["score"]) != "96" || !strings.Contains(fmt.Sprint(v["checks"]), said) {
		t.Errorf("validate: exit %d: %v, %v", code, v["score"], v["checks"])
	}
}

// A part of a norm that is zero is said.
func TestHoleInNormIsSaid(t *testing.T) {
	smallRun(t)
	distinctNorms(t)
	for _, h := range holed {
		for _, norm := range h.norms {
			contracttest.Cases(t, 1)
			writeForm(t, h.model)
			clearTensor(t, h.model, norm, 64, 64+128)
			said := regexp.MustCompile(regexp.QuoteMeta(fmt.Sprintf("tensor %q: ", norm)) + `1[23]\d bytes are zero, from offset `)
			if code, v := call(t, "import", h.model, "-o", "imported.apr", "--force"); code != 0 || !said.MatchString(fmt.Sprint(v["warnings"])) {
				t.Errorf("import %s (%s): exit %d: %s", h.model, norm, code, fmt.Sprint(v["warnings"]))
			}
		}
	}
}

// overwrite replaces the bytes of a stored tensor from byte from to byte to (0: its end) by b.
func overwrite(t *testing.T, model, name string, from, to int, b byte) {
	t.Helper()
	f, err := modelfile.OpenContainer(model)
	if err != nil {
		t.Fatal(err)
	}
	st, ok := f.Stored.Tensor(name)
	if !ok {
		t.Fatalf("%s: no tensor %s", model, name)
	}
	raw := make([]byte, st.Held().Size)
	if n, err := st.ReadAt(raw, 0); n < len(raw) {
		t.Fatal(err)
	}
	file, err := os.ReadFile(model)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	i := bytes.Index(file, raw)
	if i < 0 {
		t.Fatalf("%s: %s is not in the file", model, name)
	}
	if to == 0 {
		to = len(raw)
	}
	for j := from; j < to; j++ {
		file[i+j] = b
	}
	if err := os.WriteFile(model, file, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A matrix, or 64 KiB of one, that holds one value is damage in every format and type, be the value zero or another:
// refused, unless odd weights are allowed. 4 KiB are a warning, and so are 64 KiB among rows of tokens.
func TestRunsOfOneValue(t *testing.T) {
	smallRun(t)
	writeForm(t, "X.gguf")
	if code, v := call(t, "convert", "teacher", "-o", "Q.gguf", "--quantize", "q4_k"); code != 0 {
		t.Fatal(v["error"])
	}
	for _, tt := range []struct {
		model, tensor string
		from, to      int
		b             byte
		says          string
		code          int
	}{
		{"X.gguf", "blk.3.ffn_gate.weight", 4000, 4000 + 64<<10, 0, `65536 bytes are zero`, 5},
		{"X.gguf", "blk.3.ffn_gate.weight", 4000, 4000 + 64<<10, 0x11, `65536 bytes are 0x11`, 5},
		{"X.gguf", "blk.3.ffn_gate.weight", 4000, 10_000, 0x11, `6000 bytes are 0x11`, 0},
		{"X.gguf", "token_embd.weight", 1000, 1000 + 64<<10, 0x11, `65536 bytes are 0x11`, 0},
		{"X.gguf", "output_norm.weight", 0, 0, 0x3f, ``, 0},
		{"Q.gguf", "blk.3.ffn_gate.weight", 0, 0, 0, `bytes are zero`, 5},
		{"Q.gguf", "blk.3.ffn_gate.weight", 0, 0, 0x11, `bytes are 0x11`, 5},
	} {
		sound, err := os.ReadFile(tt.model)
		if err != nil {
			t.Fatal(err)
		}
		overwrite(t, tt.model, tt.tensor, tt.from, tt.to, tt.b)
		for _, args := range []string{
			"import M -o out.apr --force", "convert M -o out.apr --force", "export M -o out.gguf --force",
			"distill M --student-config student.json -d train.jsonl --steps 1 --batch-size 2 --seq-len 16 --control none " +
				"--backend cpu -o taught --force",
		} {
			contracttest.Cases(t, 1)
			var out, errs bytes.Buffer
			args := strings.Fields(strings.Replace(args, "M", tt.model, 1))
			env := []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir()}
			code := run(args, strings.NewReader(""), &out, &errs, env)
			if all := errs.String() + out.String(); code != tt.code || !strings.Contains(all, tt.says) ||
				strings.Contains(all, "bytes are") != (tt.says != "") {
				t.Errorf("apr %s: exit %d: %s; want %d and %q", args, code, all, tt.code, tt.says)
			}
			if tt.code == 5 && tt.b != 0 && args[0] == "import" {
				if code := run(append(args, "--allow-odd-weights"), strings.NewReader(""), &out, &errs, env); code != 0 {
					t.Errorf("--allow-odd-weights: exit %d: %s", code, errs.String())
				}
			}
		}
		if err := os.WriteFile(tt.model, sound, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
