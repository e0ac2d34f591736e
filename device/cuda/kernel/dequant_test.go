//go:build emulate

package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"apr/quant"
	"apr/tensor"
)

// blockTypes are the types of blocks that have kernels.
var blockTypes = []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.Q8_0, tensor.Q4_0, tensor.Q5_0, tensor.IQ4_NL, tensor.IQ4_XS, tensor.MXFP4}

// blocks puts rows of blocks into device memory, an input, with gap bytes between them, and returns their values.
func (l *lab) blocks(d tensor.DType, rows, cols, gap int, content []byte) (Blocks, []float32) {
	n := int(d.RowBytes(cols))
	ptr, memory := l.alloc(rows * (n + gap))
	paint(memory, guard)
	values := make([]float32, rows*cols)
	for r := range rows {
		copy(memory[r*(n+gap):], content[r*n:(r+1)*n])
		quant.Dequantize(values[r*cols:(r+1)*cols], content[r*n:(r+1)*n], d)
	}
	return Blocks{ptr, rows, cols, n + gap, d}, values
}

// randomBlocks returns blocks of random bits, with halves that are finite unless wild.
func (l *lab) randomBlocks(d tensor.DType, n int, wild bool) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(l.rng.Uint32())
	}
	for at := 0; !wild && at < n; at += d.BlockBytes() {
		if d == tensor.MXFP4 {
			b[at] = byte(110 + l.rng.IntN(20))
			continue
		}
		for _, h := range halves(d) {
			binary.LittleEndian.PutUint16(b[at+h:], tensor.F32ToF16(float32(l.rng.NormFloat64())*0.01))
		}
	}
	return b
}

// halves returns where the scales of a block are.
func halves(d tensor.DType) []int {
	switch d {
	case tensor.Q4_K, tensor.Q5_K:
		return []int{0, 2}
	case tensor.Q6_K:
		return []int{208}
	}
	return []int{0}
}

// checkDecoded compares bits; any NaN is a NaN.
func checkDecoded(t *testing.T, l *lab, dst Mat, want []float32) {
	t.Helper()
	got := l.bytes(dst)
	for i, x := range want {
		var g, w uint32
		var isNaN bool
		if dst.Type == tensor.BF16 {
			g, w = uint32(binary.LittleEndian.Uint16(got[2*i:])), uint32(tensor.F32ToBF16(x))
			isNaN = g&0x7fff > 0x7f80
		} else {
			g, w = binary.LittleEndian.Uint32(got[4*i:]), math.Float32bits(x)
			isNaN = g&0x7fffffff > 0x7f800000
		}
		if x != x && !isNaN || x == x && g != w {
			t.Fatalf("value %d of row %d is %x, want %x, rounded from %g", i%dst.Cols, i/dst.Cols, g, w, x)
		}
	}
}

// TestDequantize: the bits of package quant, for random blocks (finite scales, and any bits at all), rows with and
// without gaps on either side, spans that end early, and row ranges.
func TestDequantize(t *testing.T) {
	for _, d := range blockTypes {
		for _, c := range []struct{ rows, cols, gapSrc, gapDst int }{
			{1, 256, 0, 0}, {1, 1024, 0, 0}, {3, 256, 0, 8}, {5, 768, 16, 0}, {33, 512, 0, 0}, {7, 1280, 48, 24}, {2, 9472, 0, 0},
			{1, 32, 0, 0}, {9, 96, 0, 0}, {9, 96, 0, 16}, {4, 896, 16, 8}, {5, 288, 16, 0},
		} {
			if c.cols%d.BlockLen() != 0 {
				continue
			}
			for _, out := range floatTypes {
				for _, wild := range []bool{false, true} {
					t.Run(fmt.Sprintf("%v/%dx%d+%d+%d/%v/wild=%v", d, c.rows, c.cols, c.gapSrc, c.gapDst, out, wild), func(t *testing.T) {
						l := newLab(t)
						l.gap = c.gapDst
						src, want := l.blocks(d, c.rows, c.cols, c.gapSrc, l.randomBlocks(d, c.rows*int(d.RowBytes(c.cols)), wild))
						dst := l.out(out, c.rows, c.cols)
						Dequantize(l.op(), dst, src)
						checkDecoded(t, l, dst, want)
						lo, hi := c.rows/3, max(c.rows-1, 1)
						part := l.out(out, hi-lo, c.cols)
						Dequantize(l.op(), part, src.Slice(lo, hi))
						checkDecoded(t, l, part, want[lo*c.cols:hi*c.cols])
					})
				}
			}
		}
	}
}

// TestDequantizeGolden: blocks and values of GGML's reference.
func TestDequantizeGolden(t *testing.T) {
	for _, d := range blockTypes {
		t.Run(d.String(), func(t *testing.T) {
			read := func(ext string) []byte {
				b, err := os.ReadFile(filepath.Join("../../../quant/testdata", d.String()+ext))
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
			content, values := read(".blocks"), read(".f32")
			want := make([]float32, len(values)/4)
			for i := range want {
				want[i] = math.Float32frombits(binary.LittleEndian.Uint32(values[4*i:]))
			}
			l := newLab(t)
			cols := len(content) / d.BlockBytes() * d.BlockLen()
			src, _ := l.blocks(d, 1, cols, 0, content)
			dst := l.out(tensor.F32, 1, cols)
			if Dequantize(l.op(), dst, src); len(want) != cols {
				t.Fatalf("%d values for %d", len(want), cols)
			}
			checkDecoded(t, l, dst, want)
		})
	}
}
