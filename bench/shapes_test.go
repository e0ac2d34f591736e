package bench_test

import (
	"bytes"
	"io"
	"testing"

	"apr/arch"
	"apr/bench"
	"apr/convert"
	"apr/tensor"
)

// All matrices of a random model differ from each other, and so do all rows that are stored in blocks: a file with equal
// ones would be refused as damaged. A part of a matrix has the same bytes as the whole has there, wherever reading begins.
func TestRandomModelsRepeatNothing(t *testing.T) {
	c := arch.Qwen2(arch.Sizes{Hidden: 1024, Layers: 4, Heads: 2, KVHeads: 1, HeadDim: 512, Width: 1024, Vocab: 5000,
		MaxPositions: 64, Theta: 1e6, Eps: 1e-6, Tied: true, InitRange: 0.02,
	})
	for _, scheme := range []convert.Scheme{convert.Keep, convert.Q4_K_M, convert.Q4_K} {
		f := bench.RandomModel(c, 1)
		if scheme != convert.Keep {
			var err error
			if f, err = bench.RandomQuantised(c, 1, scheme); err != nil {
				t.Fatal(err)
			}
		}
		seen := map[string]string{}
		for _, s := range f.File.Tensors() {
			all := make([]byte, s.Size)
			if _, err := s.ReadAt(all, 0); err != nil {
				t.Fatal(err)
			}
			part := make([]byte, min(1000, s.Size/2))
			if _, err := s.ReadAt(part, s.Size/3); err != nil || !bytes.Equal(part, all[s.Size/3:][:len(part)]) {
				t.Errorf("%q %s: other bytes from the middle on (%v)", scheme, s.Name, err)
			}
			if n, err := s.ReadAt(part, s.Size-1); n != 1 || err != io.EOF {
				t.Errorf("%q %s: %d bytes at the last one, %v", scheme, s.Name, n, err)
			}
			if len(s.Shape) < 2 {
				continue
			}
			types := map[convert.Scheme]tensor.DType{convert.Keep: tensor.BF16, convert.Q4_K: tensor.Q4_K}
			if want, known := types[scheme]; known && s.DType != want {
				t.Errorf("%q %s has type %v", scheme, s.Name, s.DType)
			}
			row := s.Size // the table of bfloat16 goes through all matrices
			if s.DType.IsQuantized() {
				row = s.DType.RowBytes(s.Cols())
			}
			for ; len(all) > 0; all = all[row:] {
				if twin, there := seen[string(all[:row])]; there {
					t.Fatalf("%q: bytes of %s are those of %s", scheme, s.Name, twin)
				}
				seen[string(all[:row])] = s.Name
			}
		}
	}
}
