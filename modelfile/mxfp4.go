package modelfile

import (
	"io"
	"math"
	"slices"

	"apr/arch"
	"apr/internal/fault"
	"apr/tensor"
)

// mxfp4Values are the numbers of 4 bits: a sign, two bits of exponent, one of mantissa.
var mxfp4Values = [16]float32{0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6}

// mxfp4 makes slot s of blocks of 32 values: byte j of a block holds values 2j (low) and 2j+1, times 2^(scale−127). Bfloat16 holds
// every such value.
func mxfp4(path string, s arch.Slot, p arch.Place, blocks, scales tensor.Stored) (tensor.Stored, error) {
	experts, rows, cols := s.Dims()
	all := p.Shape[1]
	for _, t := range []struct {
		t    tensor.Stored
		want []int
	}{{blocks, []int{experts, all, cols / 32, 16}}, {scales, []int{experts, all, cols / 32}}} {
		if !slices.Equal(t.t.Shape, t.want) {
			return tensor.Stored{}, misshapen(path, t.t, t.want)
		}
		if t.t.DType != tensor.U8 {
			return tensor.Stored{}, fault.In(fault.Load, path, "has type %s, MXFP4 is bytes", t.t.DType).At("tensor %q", t.t.Name).WithID("E-MODEL-003")
		}
	}
	r := &mxfp4Reader{s, p, blocks, scales, rows, cols, all}
	info := tensor.Info{Name: s.Name, DType: tensor.BF16, Shape: s.Shape, Size: 2 * s.Elements()}
	return tensor.Stored{Info: info, ReaderAt: r}, nil
}

// mxfp4Reader reads a slot in MXFP4 as bfloat16.
type mxfp4Reader struct {
	slot            arch.Slot
	place           arch.Place
	blocks, scales  tensor.Stored
	rows, cols, all int // of an expert; all: rows of the file's
}

// ReadAt implements io.ReaderAt.
func (m *mxfp4Reader) ReadAt(p []byte, off int64) (n int, err error) {
	size, row := 2*m.slot.Elements(), make([]byte, 2*m.cols)
	if off < 0 || off >= size {
		return 0, io.EOF
	}
	want := p[:min(int64(len(p)), size-off)]
	for n < len(want) {
		at := int(off+int64(n)) / len(row)
		if err := m.row(row, at); err != nil {
			return n, err
		}
		n += copy(want[n:], row[int(off+int64(n))%len(row):])
	}
	if len(want) < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m *mxfp4Reader) row(dst []byte, at int) error {
	from := at/m.rows*m.all + m.place.Row(at%m.rows)
	blocks, scales, values := make([]byte, m.cols/2), make([]byte, m.cols/32), make([]float32, m.cols)
	if err := full(m.blocks, blocks, int64(from*len(blocks))); err != nil {
		return err
	}
	if err := full(m.scales, scales, int64(from*len(scales))); err != nil {
		return err
	}
	for i, b := range blocks {
		scale := math.Ldexp(1, int(scales[i/16])-127)
		values[2*i], values[2*i+1] = float32(float64(mxfp4Values[b&15])*scale), float32(float64(mxfp4Values[b>>4])*scale)
	}
	tensor.Narrow(dst, values, tensor.BF16)
	return nil
}
