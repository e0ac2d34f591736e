package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"apr/arch"
	"apr/convert"
	"apr/format/gguf"
	"apr/modelfile"
	"apr/tensor"
)

// backToFolder converts a GGUF file to a Hugging Face folder, and returns the number of its tensors, as the arithmetic has
// them, and the largest difference from the folder that the file was made of.
func backToFolder(ctx context.Context, folder, file string) (n int, largest float64, err error) {
	out := strings.TrimSuffix(file, ".gguf") + "-back"
	if err := write(ctx, file, out, convert.Options{Force: true}); err != nil {
		return 0, 0, err
	}
	a, err := modelfile.Open(folder)
	if err != nil {
		return 0, 0, err
	}
	defer a.Close()
	b, err := modelfile.Open(out)
	if err != nil {
		return 0, 0, err
	}
	defer b.Close()
	if err := b.CheckTensors(); err != nil {
		return 0, 0, err
	}
	for _, s := range arch.Slots(a.Config) {
		x, err := a.ReadFloat32(s.Name)
		if err != nil {
			return 0, 0, err
		}
		y, err := b.ReadFloat32(s.Name)
		if err != nil {
			return 0, 0, err
		}
		if len(x) != len(y) {
			return 0, 0, fmt.Errorf("%s: %s has %d values, want %d", out, s.Name, len(y), len(x))
		}
		for i := range x {
			largest = worse(largest, math.Abs(float64(x[i])-float64(y[i])))
		}
		n++
	}
	return n, largest, nil
}

// moved counts the tensors in blocks of a file that went through another format: with the same bytes, or expanded to
// float32 with the same values.
type moved struct{ same, expanded int }

// throughAPR converts a GGUF file to .apr and back. It is an error if a tensor came back with other values, or in blocks
// of other bytes.
func throughAPR(ctx context.Context, file string) (m moved, err error) {
	stem := strings.TrimSuffix(file, ".gguf")
	back := stem + "-back.gguf"
	if err := write(ctx, file, stem+".apr", convert.Options{Force: true}); err != nil {
		return m, err
	}
	if err := write(ctx, stem+".apr", back, convert.Options{Force: true}); err != nil {
		return m, err
	}
	a, err := gguf.Open(file)
	if err != nil {
		return m, err
	}
	defer a.Close()
	b, err := gguf.Open(back)
	if err != nil {
		return m, err
	}
	defer b.Close()
	for _, t := range a.Tensors() {
		if !t.DType.IsQuantized() {
			continue
		}
		other, ok := b.Tensor(t.Name)
		if !ok {
			return m, fmt.Errorf("%s: no tensor %s", back, t.Name)
		}
		if err := m.count(t, other); err != nil {
			return m, fmt.Errorf("%s: %s, %s: %w", back, t.Name, t.DType, err)
		}
	}
	return m, nil
}

// count compares a tensor with what became of it.
func (m *moved) count(t, other tensor.Stored) error {
	switch other.DType {
	case t.DType:
		x, err := io.ReadAll(io.NewSectionReader(t, 0, t.Size))
		if err != nil {
			return err
		}
		y, err := io.ReadAll(io.NewSectionReader(other, 0, other.Size))
		if err != nil {
			return err
		}
		if !bytes.Equal(x, y) {
			return fmt.Errorf("the blocks have other bytes")
		}
		m.same++
	case tensor.F32:
		x, err := modelfile.ReadFloat32("", t)
		if err != nil {
			return err
		}
		y, err := modelfile.ReadFloat32("", other)
		if err != nil {
			return err
		}
		if !slices.EqualFunc(x, y, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }) {
			return fmt.Errorf("other values")
		}
		m.expanded++
	default:
		return fmt.Errorf("the type became %s", other.DType)
	}
	return nil
}
