package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"

	"apr/convert"
	"apr/format/gguf"
	"apr/format/safetensors"
	"apr/modelfile"
	"apr/tensor"
)

// backToFolder converts a GGUF file to a Hugging Face folder, and returns the number of its tensors and the largest
// difference from those of the folder that the file was made of.
func backToFolder(ctx context.Context, folder, file string) (n int, largest float64, err error) {
	out := strings.TrimSuffix(file, ".gguf") + "-back"
	if err := write(ctx, file, out, convert.Options{Force: true}); err != nil {
		return 0, 0, err
	}
	a, err := safetensors.Open(filepath.Join(folder, "model.safetensors"))
	if err != nil {
		return 0, 0, err
	}
	defer a.Close()
	b, err := safetensors.Open(filepath.Join(out, "model.safetensors"))
	if err != nil {
		return 0, 0, err
	}
	defer b.Close()
	if len(a.Tensors()) != len(b.Tensors()) {
		return 0, 0, fmt.Errorf("%s has %d tensors, %s %d", folder, len(a.Tensors()), out, len(b.Tensors()))
	}
	for _, t := range a.Tensors() {
		other, ok := b.Tensor(t.Name)
		if !ok {
			return 0, 0, fmt.Errorf("%s: no tensor %s", out, t.Name)
		}
		x, err := modelfile.ReadFloat32(folder, t)
		if err != nil {
			return 0, 0, err
		}
		y, err := modelfile.ReadFloat32(out, other)
		if err != nil {
			return 0, 0, err
		}
		if len(x) != len(y) {
			return 0, 0, fmt.Errorf("%s: %s has %d values, want %d", out, t.Name, len(y), len(x))
		}
		for i := range x {
			largest = worse(largest, math.Abs(float64(x[i])-float64(y[i])))
		}
		n++
	}
	return n, largest, nil
}

// blocksThroughAPR converts a GGUF file to .apr and back, and returns how many of its tensors in blocks of a type that
// .apr has are the same bytes again.
func blocksThroughAPR(ctx context.Context, file string) (same, all int, err error) {
	stem := strings.TrimSuffix(file, ".gguf")
	if err := write(ctx, file, stem+".apr", convert.Options{Force: true}); err != nil {
		return 0, 0, err
	}
	if err := write(ctx, stem+".apr", stem+"-back.gguf", convert.Options{Force: true}); err != nil {
		return 0, 0, err
	}
	a, err := gguf.Open(file)
	if err != nil {
		return 0, 0, err
	}
	defer a.Close()
	b, err := gguf.Open(stem + "-back.gguf")
	if err != nil {
		return 0, 0, err
	}
	defer b.Close()
	for _, t := range a.Tensors() {
		if !t.DType.IsQuantized() {
			continue
		}
		other, ok := b.Tensor(t.Name)
		if !ok {
			return 0, 0, fmt.Errorf("%s-back.gguf: no tensor %s", stem, t.Name)
		}
		all++
		if other.DType != t.DType {
			continue
		}
		x, y, err := bytesOf(t, other)
		if err != nil {
			return 0, 0, err
		}
		if bytes.Equal(x, y) {
			same++
		}
	}
	return same, all, nil
}

func bytesOf(a, b tensor.Stored) (x, y []byte, err error) {
	if x, err = io.ReadAll(io.NewSectionReader(a, 0, a.Size)); err != nil {
		return nil, nil, err
	}
	y, err = io.ReadAll(io.NewSectionReader(b, 0, b.Size))
	return x, y, err
}
