package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"

	"apr/arch"
	"apr/format/gguf"
	"apr/internal/ref"
	"apr/modelfile"
)

const fixtureFolder = "../../testdata/gguf"

// roundings is how many times as far as by one rounding of all weights a pass in float32 may be from the reference:
// every sum rounds, too. With AVX2, whose sums have half as many parts as AVX-512's, it is 10.7 at most (olmo2).
const roundings = 15

// Files of llama.cpp's quantizer, one of every family and every type of blocks: each value has the bits that llama.cpp
// expands it to; the reference computes llama.cpp's log-probabilities from them, and the program on a CPU the reference's.
func TestFilesOfLlamaCpp(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(fixtureFolder, "fixtures.json"))
	if err != nil {
		t.Fatal(err)
	}
	var list []fixture
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	want := 0
	for _, m := range randoms {
		if m.Fixture != "" {
			want++
		}
	}
	if len(list) != want || want < 13 {
		t.Errorf("%d fixtures, want %d", len(list), want)
	}
	for _, f := range list {
		t.Run(f.File, func(t *testing.T) {
			t.Parallel()
			path := f.expand(t)
			f.checkValues(t, path)
			j := f.checkLogs(t, path)
			if d, err := j.cpuDiffers(path); err != nil || !(d <= roundings*j.rounded()) {
				t.Errorf("logits on the CPU differ by %.2g (%v), one rounding of all weights changes them by %.2g", d, err, j.rounded())
			}
		})
	}
}

// expand writes the file without compression.
func (f fixture) expand(t *testing.T) string {
	t.Helper()
	packed, err := os.ReadFile(filepath.Join(fixtureFolder, f.File))
	if err != nil {
		t.Fatal(err)
	}
	r, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := r.DecodeAll(packed, nil)
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != f.SHA256 {
		t.Fatalf("SHA-256 is %x, want %s", sum, f.SHA256)
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (f fixture) checkValues(t *testing.T, path string) {
	t.Helper()
	g, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	n := 0
	for _, s := range g.Tensors() {
		if !s.DType.IsQuantized() {
			continue
		}
		v, err := modelfile.ReadFloat32(path, s)
		if err != nil {
			t.Fatal(err)
		}
		if got := hashOf(v); got != f.Tensors[s.Name] {
			t.Errorf("%s, %s: values hash to %s, llama.cpp's to %s", s.Name, s.DType, got, f.Tensors[s.Name])
		}
		n++
	}
	if n == 0 || n != len(f.Tensors) {
		t.Errorf("%d tensors in blocks, want %d", n, len(f.Tensors))
	}
}

func (f fixture) checkLogs(t *testing.T, path string) *judged {
	t.Helper()
	j, err := judge(path)
	if err != nil {
		t.Fatal(err)
	}
	if ids := encode(j.tok, prompts[0]); !slices.Equal(ids, f.Prompt) {
		t.Errorf("ids %v, llama.cpp has %v", ids, f.Prompt)
	}
	if len(f.Logs) != fixtureTokens || len(f.Tokens) != fixtureTokens {
		t.Fatalf("%d tokens with %d lists of log-probabilities, want %d", len(f.Tokens), len(f.Logs), fixtureTokens)
	}
	ids := append(append([]int{}, f.Prompt...), f.Tokens...)
	z := j.net.Forward(ids[:len(ids)-1], 1).Logits
	for i, want := range f.Logs {
		logs, scale := logProbabilities(z.Row(len(f.Prompt) - 1 + i))
		if len(want) != (len(logs)+everyID-1)/everyID {
			t.Fatalf("%d log-probabilities for %d ids", len(want), len(logs))
		}
		for k, w := range want {
			if got := logs[k*everyID]; !(math.Abs(got-w) <= limit(j.config)*scale) {
				t.Errorf("token %d, id %d: log-probability %.6f, llama.cpp has %.6f", i, k*everyID, got, w)
			}
		}
	}
	return j
}

// rounded returns by how much logits change, of the largest, if every weight changes by about one rounding of float32: thin
// models are as much as a hundred times more sensitive than others.
func (j *judged) rounded() float64 {
	rng, changed := rand.New(rand.NewPCG(1, 2)), map[string]ref.Mat{}
	for _, s := range arch.Slots(j.config) {
		m := j.net.Params[s.Name].Clone()
		for i := range m.V {
			m.V[i] *= 1 + 6e-8*rng.NormFloat64()
		}
		changed[s.Name] = m
	}
	ids := encode(j.tok, prompts[0])
	return apart((&ref.Net{Arch: j.config, Params: changed}).Forward(ids, 1).Logits.V, j.net.Forward(ids, 1).Logits.V)
}
