package main

import (
	"encoding/binary"
	"io"
	"math"
	"os"
	"testing"

	"apr/arch"
	"apr/internal/ref"
	"apr/quant"
	"apr/tensor"
	"apr/tokenizer"
)

// idsOf returns the ids of a prompt, with what the tokenizer puts before it.
func idsOf(t *tokenizer.Tokenizer, text string) (ids []int) {
	if t.AddBOS() {
		ids = append(ids, int(t.BOS()))
	}
	for _, id := range t.Encode(text, tokenizer.Recognise) {
		ids = append(ids, int(id))
	}
	return ids
}

// slotMatrix returns the values of a slot as the judge wants them.
func slotMatrix(c arch.Config, name string, v []float32) ref.Mat {
	for _, s := range arch.Slots(c) {
		if s.Name == name && len(s.Shape) > 1 {
			cols := s.Shape[len(s.Shape)-1]
			return ref.Of(len(v)/cols, cols, v)
		}
	}
	return ref.Of(1, len(v), v)
}

// content returns the bytes of a tensor.
func content(t *testing.T, s tensor.Stored) []byte {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(s, 0, s.Size))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// read returns a file.
func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// asFloats returns the values of blocks as bytes of float32.
func asFloats(t *testing.T, d tensor.DType, blocks []byte) []byte {
	t.Helper()
	values := make([]float32, len(blocks)/d.BlockBytes()*d.BlockLen())
	quant.Dequantize(values, blocks, d)
	out := make([]byte, 0, 4*len(values))
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}
