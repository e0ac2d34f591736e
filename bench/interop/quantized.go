package main

import (
	"context"
	"fmt"
	"math"
	"strings"

	"apr/format/gguf"
	"apr/modelfile"
)

// schemes are the mixes that llama.cpp's quantizer makes of our float32 files.
var schemes = []string{"Q8_0", "Q4_0", "Q4_K_M", "IQ4_NL", "IQ4_XS"}

// quantize lets llama.cpp quantize file, reads the result, and compares each value with what llama.cpp expands it to;
// then the judge's log-probabilities with those of llama.cpp from the expanded file, which are free of the 8-bit
// activations that its products with blocks have.
func (p peer) quantize(ctx context.Context, m random, file, scheme string) (blocks string, c comparison, err error) {
	blocks, expanded, err := p.blocks(ctx, file, scheme)
	if err == nil {
		err = sameValues(blocks, expanded)
	}
	if err != nil || m.Differs != "" {
		return blocks, c, err
	}
	j, err := judge(blocks)
	if err != nil {
		return blocks, c, err
	}
	if c, err = p.judged(ctx, j, expanded, prompts[:1]); err != nil {
		return blocks, c, err
	}
	_, err = onCPU(j, blocks)
	return blocks, c, err
}

// blocks lets llama.cpp quantise a file, and expand the result to float32.
func (p peer) blocks(ctx context.Context, file, scheme string) (blocks, expanded string, err error) {
	stem := strings.TrimSuffix(file, ".gguf")
	blocks, expanded = stem+"-"+scheme+".gguf", stem+"-expanded.gguf"
	if _, _, err := p.run(ctx, "quantize", file, blocks, scheme, "1"); err != nil {
		return "", "", err
	}
	_, _, err = p.run(ctx, "quantize", "--allow-requantize", blocks, expanded, "F32", "1")
	return blocks, expanded, err
}

// sameValues returns an error if a value of a differs from b's.
func sameValues(a, b string) error {
	f, err := gguf.Open(a)
	if err != nil {
		return err
	}
	defer f.Close()
	g, err := gguf.Open(b)
	if err != nil {
		return err
	}
	defer g.Close()
	for _, t := range f.Tensors() {
		other, ok := g.Tensor(t.Name)
		if !ok {
			return fmt.Errorf("%s: no tensor %s", b, t.Name)
		}
		x, err := modelfile.ReadFloat32(a, t)
		if err != nil {
			return err
		}
		y, err := modelfile.ReadFloat32(b, other)
		if err != nil {
			return err
		}
		if len(x) != len(y) {
			return fmt.Errorf("%s: %d values, want %d", t.Name, len(x), len(y))
		}
		for i := range x {
			if math.Float32bits(x[i]) != math.Float32bits(y[i]) {
				return fmt.Errorf("%s: value %d of %s is %v, llama.cpp expands it to %v", t.Name, i, t.DType, x[i], y[i])
			}
		}
	}
	return nil
}
