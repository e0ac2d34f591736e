package aprfile

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/tensor"
)

// TestGGMLTypes: codes 160 + g hold the blocks of ggml's type g in rows of whole blocks, and are refused in others.
func TestGGMLTypes(t *testing.T) {
	for code, d := range map[byte]tensor.DType{162: tensor.Q4_0, 166: tensor.Q5_0, 168: tensor.Q8_0, 180: tensor.IQ4_NL, 183: tensor.IQ4_XS, 199: tensor.MXFP4} {
		contracttest.Cases(t, 1)
		cols, size := uint64(d.BlockLen()), uint64(d.BlockBytes())
		f, err := Open(save(t, with(line{"w", code, []uint64{3, 2 * cols}, 0, 6 * size}).build()))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if w, ok := f.Tensor("w"); !ok || w.DType != d || w.Size != int64(6*size) {
			t.Errorf("code %d is %+v, want %s", code, w.Info, d)
		}
		_, err = Open(save(t, with(line{"w", code, []uint64{2, cols / 2}, 0, size}).build()))
		if fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), "fits no meaning of code") {
			t.Errorf("code %d with half blocks: %v", code, err)
		}
		_, err = Open(save(t, with(line{"w", code, []uint64{cols}, 0, size - 1}).build()))
		if fault.KindOf(err) != fault.Format {
			t.Errorf("code %d cut: %v", code, err)
		}
	}
}

// TestWriteGGMLTypes: the bytes of ggml's blocks come back as they were.
func TestWriteGGMLTypes(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Q4_0, tensor.Q5_0, tensor.Q8_0, tensor.IQ4_NL, tensor.IQ4_XS} {
		contracttest.Cases(t, 1)
		payload := bytes.Repeat([]byte{1, 2, 3, 5, 7, 11}, d.BlockBytes())[:2*d.BlockBytes()]
		path := filepath.Join(t.TempDir(), "m.apr")
		if err := Write(path, []tensor.Source{source("w", d, []int{2, d.BlockLen()}, payload)}, Options{}); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w, _ := f.Tensor("w")
		got := make([]byte, w.Size)
		if n, err := w.ReadAt(got, 0); w.DType != d || n != len(payload) || err != nil || !bytes.Equal(got, payload) {
			t.Errorf("%s: %s, %d bytes, %v", d, w.DType, n, err)
		}
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}
