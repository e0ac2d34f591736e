//go:build emulate

package main

import (
	"os"
	"path/filepath"
	"testing"

	"apr/arch"
	"apr/bench"
	"apr/device/cuda"
	"apr/device/cuda/emulator"
)

// heldOutTokens is how much of the held-out text is scored, in heldOutCompute: an emulated GPU is slow, and over few
// tokens the rounding of bfloat16 does not average out.
const (
	heldOutTokens  = 1025
	heldOutCompute = cuda.F32
)

// openEmulator makes the CUDA device find the emulator instead of a driver.
func openEmulator(t *testing.T) {
	t.Helper()
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("APR_CUDA_LIB_DIR", dir)
}

// blockTokens is the length of the sequence over which a teacher in blocks is compared.
const blockTokens = 48

// pairOf returns a pair of models with the shapes of Qwen2.5 made narrow, and a text for an epoch of a few steps.
func pairOf(t *testing.T) (p twoModels) {
	t.Helper()
	narrow := func(name string, vocab int) arch.Config {
		c, err := bench.Shape(name)
		if err != nil {
			t.Fatal(err)
		}
		s := c.Sizes()
		s.Hidden, s.Width, s.Heads, s.KVHeads, s.HeadDim, s.Layers, s.Vocab = 256, 512, 4, 2, 64, 2, vocab
		return arch.Qwen2(s)
	}
	p = twoModels{teacher: narrow("7b", 4288), student: narrow("0.5b", 4160), text: filepath.Join(t.TempDir(), "text.txt"), batch: "2", seq: "16"}
	text := "package main\n\nimport \"fmt\"\n\nfunc main() {\n\tfor i := range 10 {\n\t\tfmt.Println(i, i*i, i*i*i)\n\t}\n}\n"
	if err := os.WriteFile(p.text, []byte(text+text+text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// The model that TestCUDAQuantizeAware trains, and in which blocks.
const (
	inBlocksTeacher = "../../testdata/golden/trajectory/student"
	inBlocksScheme  = "q4_0"
)
