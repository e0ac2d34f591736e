//go:build !windows

package safetensors

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/hostile"
	"apr/quant"
	"apr/quant/quanttest"
	"apr/tensor"
)

// raised returns values as a tensor of type d.
func raised(name string, d tensor.DType, shape []int, values []float32) tensor.Source {
	raw := make([]byte, len(values)*d.BlockBytes())
	tensor.Narrow(raw, values, d)
	return tensor.BytesSource(tensor.Info{Name: name, DType: d, Shape: shape}, raw)
}

func bytesOf(name string, d tensor.DType, shape []int, raw []byte) tensor.Source {
	return tensor.BytesSource(tensor.Info{Name: name, DType: d, Shape: shape}, raw)
}

// written writes a file and returns its path.
func written(t *testing.T, tensors ...tensor.Source) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), SingleName)
	if err := Write(path, tensors, Options{}); err != nil {
		t.Fatal(err)
	}
	return path
}

// opened opens a file, dequantised.
func opened(t *testing.T, path string, f quant.FP8) (*File, error) {
	t.Helper()
	file, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file, file.Dequantise(f)
}

// TestDequantise: values are those of the bytes times their scales, at whatever offset they are read; scales are no longer
// listed, and other tensors stay.
func TestDequantise(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		rows, cols    int
		f             quant.FP8
		name          string
		scales        tensor.DType
		scalar, moved bool
	}{
		{40, 70, quant.FP8{BlockRows: 16, BlockCols: 32}, "m.weight_scale_inv", tensor.F32, false, false},
		{40, 70, quant.FP8{BlockRows: 16, BlockCols: 32}, "m.weight_scale_inv", tensor.BF16, false, false},
		{33, 300, quant.FP8{}, "m.weight_scale_inv", tensor.BF16, true, true},
		{700, 129, quant.FP8{}, "m.weight_scale", tensor.F32, true, true},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			values := make([]float32, c.rows*c.cols)
			for i := range values {
				values[i] = float32(r.NormFloat64())
			}
			narrow := func(x float32) float32 {
				raw := make([]byte, 4)
				tensor.Narrow(raw, []float32{x}, c.scales)
				back := make([]float32, 1)
				tensor.Widen(back, raw, c.scales)
				return back[0]
			}
			q, scales := quanttest.FP8(values, c.rows, c.cols, c.f.BlockRows, c.f.BlockCols, narrow)
			all := []tensor.Source{
				bytesOf("m.weight", tensor.F8_E4M3, []int{c.rows, c.cols}, q), raised(c.name, c.scales, c.f.Shape(c.rows, c.cols), scales),
				raised("m.bias", tensor.BF16, []int{2}, []float32{1, 2}),
			}
			if c.moved {
				all = append(all, raised("m.activation_scale", tensor.BF16, nil, []float32{1}), raised("m.input_scale", tensor.F32, nil, []float32{1}))
			}
			f, err := opened(t, written(t, all...), c.f)
			if err != nil {
				t.Fatal(err)
			}
			if len(f.Tensors()) != 2 || f.Tensors()[0].Name != "m.bias" || f.Tensors()[0].Held().DType != tensor.BF16 {
				t.Fatalf("tensors %v", f.Tensors())
			}
			w, _ := f.Tensor("m.weight")
			if w.DType != tensor.F32 || w.Size != int64(4*len(q)) || w.Held().DType != tensor.F8_E4M3 || w.Held().Size != int64(len(q)) {
				t.Fatalf("%+v, held %+v", w.Info, w.Held())
			}
			m, err := c.f.Matrix(c.rows, c.cols, scales, c.scales, c.f.Shape(c.rows, c.cols))
			if err != nil {
				t.Fatal(err)
			}
			want := make([]byte, 4*len(q))
			m.Decode(want, q, 0)
			checkReads(t, r, w, want)
		})
	}
}

// checkReads reads a tensor whole and in parts.
func checkReads(t *testing.T, r *rand.Rand, w tensor.Stored, want []byte) {
	t.Helper()
	got, err := io.ReadAll(io.NewSectionReader(w, 0, w.Size))
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("whole: %d bytes, %v", len(got), err)
	}
	for range 200 {
		contracttest.Cases(t, 1)
		lo := r.IntN(len(want) + 3)
		p := make([]byte, r.IntN(min(len(want), 900)))
		n, err := w.ReadAt(p, int64(lo))
		end := min(lo+len(p), len(want))
		if n != max(0, end-lo) || n > 0 && !bytes.Equal(p[:n], want[lo:end]) || (err == io.EOF) != (lo >= len(want) || lo+len(p) > len(want)) {
			t.Fatalf("%d bytes at %d of %d: %d, %v", len(p), lo, len(want), n, err)
		}
	}
	if _, err := w.ReadAt(make([]byte, 1), -1); err == nil || err == io.EOF {
		t.Errorf("a negative offset: %v", err)
	}
}

// TestDequantiseRefuses: what is missing or contradicts is named, with file and tensor.
func TestDequantiseRefuses(t *testing.T) {
	block := quant.FP8{BlockRows: 2, BlockCols: 2}
	q := bytesOf("m.weight", tensor.F8_E4M3, []int{4, 4}, make([]byte, 16))
	scales := func(shape []int, values ...float32) tensor.Source {
		return raised("m.weight_scale_inv", tensor.F32, shape, values)
	}
	nan := float32(math.NaN())
	for name, tt := range map[string]struct {
		f       quant.FP8
		tensors []tensor.Source
		want    string
	}{
		"no scales":     {block, []tensor.Source{q}, `tensor "m.weight": is of type f8_e4m3 and has no scales [E-ST-070]`},
		"two":           {quant.FP8{}, []tensor.Source{q, scales(nil, 1), raised("m.weight_scale", tensor.F32, nil, []float32{1})}, `has two tensors of scales, "m.weight_scale_inv" and "m.weight_scale"`},
		"wrong shape":   {block, []tensor.Source{q, scales([]int{4, 1}, 1, 1, 1, 1)}, `tensor "m.weight_scale_inv": scales have shape [4 1]; 4×4 elements in blocks of 2×2 need [2 2]`},
		"scalar":        {block, []tensor.Source{q, scales(nil, 1)}, `scales have shape []; 4×4 elements`},
		"no blocks":     {quant.FP8{}, []tensor.Source{q, scales([]int{2, 2}, 1, 1, 1, 1)}, `scales have shape [2 2]`},
		"NaN":           {quant.FP8{}, []tensor.Source{q, scales(nil, nan)}, `scale 0 is NaN`},
		"whole numbers": {quant.FP8{}, []tensor.Source{q, bytesOf("m.weight_scale_inv", tensor.I32, nil, make([]byte, 4))}, `holds scales of type i32`},
		"8-bit scales":  {quant.FP8{}, []tensor.Source{q, bytesOf("m.weight_scale_inv", tensor.F8_E4M3, nil, make([]byte, 1))}, `holds scales of type f8_e4m3`},
		"a vector":      {quant.FP8{}, []tensor.Source{bytesOf("m.weight", tensor.F8_E4M3, []int{4}, make([]byte, 4)), scales(nil, 1)}, `shape [4]`},
		"three":         {quant.FP8{}, []tensor.Source{bytesOf("m.weight", tensor.F8_E4M3, []int{2, 2, 1}, make([]byte, 4)), scales(nil, 1)}, `shape [2 2 1]`},
	} {
		contracttest.Cases(t, 1)
		path := written(t, tt.tensors...)
		_, err := opened(t, path, tt.f)
		if fault.KindOf(err) != fault.Load || !strings.Contains(fmt.Sprint(err), tt.want) || !strings.HasPrefix(fmt.Sprint(err), path) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	for _, dtype := range []string{"F8_E5M2", "F8_E4M3FNUZ", "F8_E8M0"} {
		contracttest.Cases(t, 1)
		_, err := Open(save(t, raw(one(`"`+dtype+`"`, "[2]", "[0,2]"), 2)))
		if fault.KindOf(err) != fault.Format || !strings.Contains(fmt.Sprint(err), "dtype "+dtype+" is not supported") {
			t.Errorf("%s: %v", dtype, err)
		}
	}
}

// TestDequantiseDamaged: no damage to a small file makes reading it panic, or cost more than it is.
func TestDequantiseDamaged(t *testing.T) {
	q, scales := quanttest.FP8(make([]float32, 6*10), 6, 10, 4, 4, nil)
	path := written(t, bytesOf("m.weight", tensor.F8_E4M3, []int{6, 10}, q), raised("m.weight_scale_inv", tensor.F32, []int{2, 3}, scales))
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(t.TempDir(), "damaged")
	n := hostile.EachDamage(t, good, func(name string, b []byte) {
		if err := os.WriteFile(at, b, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(at)
		if err != nil {
			return
		}
		defer f.Close()
		if err := f.Dequantise(quant.FP8{BlockRows: 4, BlockCols: 4}); err != nil {
			if fault.KindOf(err) != fault.Load {
				t.Errorf("%s: %v", name, err)
			}
			return
		}
		for _, s := range f.Tensors() {
			if got, err := io.ReadAll(io.NewSectionReader(s, 0, s.Size)); err != nil || int64(len(got)) != s.Size {
				t.Errorf("%s: %s has %d of %d bytes, %v", name, s.Name, len(got), s.Size, err)
			}
		}
	})
	contracttest.Cases(t, n)
}

// A file that is shortened after it was opened says so.
func TestDequantiseShortened(t *testing.T) {
	path := written(t, bytesOf("m.weight", tensor.F8_E4M3, []int{4, 4}, make([]byte, 16)), raised("m.weight_scale_inv", tensor.F32, nil, []float32{1}))
	f, err := opened(t, path, quant.FP8{})
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, st.Size()-1); err != nil {
		t.Fatal(err)
	}
	w, _ := f.Tensor("m.weight")
	if _, err := w.ReadAt(make([]byte, 64), 0); fault.KindOf(err) != fault.IO || !strings.Contains(err.Error(), "m.weight") {
		t.Errorf("%v", err)
	}
}
