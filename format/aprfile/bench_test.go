package aprfile

import (
	"fmt"
	"path/filepath"
	"testing"

	"apr/tensor"
)

// BenchmarkOpen opens a file with the vocabulary and the number of tensors of a 0.5B model.
func BenchmarkOpen(b *testing.B) {
	vocabulary, merges := make([]string, 151_643), make([]string, 151_387)
	for i := range vocabulary {
		vocabulary[i] = fmt.Sprintf("Ġtoken%d", i)
	}
	for i := range merges {
		merges[i] = fmt.Sprintf("Ġtok en%d", i)
	}
	var tensors []tensor.Source
	for i := range 290 {
		tensors = append(tensors, source(fmt.Sprintf("model.layers.%d.weight", i), tensor.F32, []int{1}, floats32(1)))
	}
	path := filepath.Join(b.TempDir(), "m.apr")
	meta := map[string]any{"tokenizer.vocabulary": vocabulary, "tokenizer.merges": merges}
	if err := Write(path, tensors, Options{Metadata: meta}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		f, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		if _, ok, err := f.Metadata().Tokenizer(); !ok || err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}
