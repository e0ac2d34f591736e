//go:build gpu && !emulate

package main

import (
	"testing"

	"apr/bench"
	"apr/device/cuda"
)

// heldOutTokens is how much of the held-out text is scored, in heldOutCompute: all of it.
const (
	heldOutTokens  = 1 << 30
	heldOutCompute = cuda.BF16
)

// openEmulator does nothing: the GPU is real.
func openEmulator(*testing.T) {}

// blockTokens is the length of the sequence over which a teacher in blocks is compared.
const blockTokens = 1024

// pairOf returns the shapes of Qwen2.5 7B and 0.5B, and the held-out text, an epoch of ten steps or so.
func pairOf(t *testing.T) (p twoModels) {
	t.Helper()
	p = twoModels{text: "../../examples/gosrc/data/gosrc-val.jsonl.zst", long: "../../examples/gosrc/data/gosrc-train-sample.jsonl.zst", batch: "32", seq: "256"}
	var err error
	if p.teacher, err = bench.Shape("7b"); err != nil {
		t.Fatal(err)
	}
	if p.student, err = bench.Shape("0.5b"); err != nil {
		t.Fatal(err)
	}
	return p
}

// The model that TestCUDAQuantizeAware trains, and in which blocks.
const (
	inBlocksTeacher = gosrc
	inBlocksScheme  = "q4_k_m"
)
