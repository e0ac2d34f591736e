package quant

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"apr/internal/contracttest"
	"apr/tensor"
)

func TestDequantizeEqualsGGMLBitForBit(t *testing.T) {
	for _, f := range readFixtures(t) {
		contracttest.Cases(t, 1)
		got := make([]float32, len(f.decoded))
		Dequantize(got, f.blocks, f.dtype)
		sameBits(t, f.dtype.String(), got, f.decoded)
	}
}

func TestDequantizeRandomBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, d := range blockTypes {
		src := randomBlocks(r, d, 200, false)
		got := make([]float32, 200*d.BlockLen())
		Dequantize(got, src, d)
		sameBits(t, d.String(), got, refDecode(d, src))
	}
}

func TestDequantizeEveryHalfAsScale(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, d := range blockTypes {
		block := randomBlocks(r, d, 1, true)
		got := make([]float32, d.BlockLen())
		for h := range 1 << 16 {
			for n, at := range scaleOffsets(d) {
				binary.LittleEndian.PutUint16(block[at:], uint16(h)^uint16(n*0x1357))
			}
			Dequantize(got, block, d)
			// A full comparison of 65536 blocks is slow; four elements, one in each quarter, see every scale's path.
			for q := range 4 {
				i := q*d.BlockLen()/4 + h%(d.BlockLen()/4)
				sameBits(t, fmt.Sprintf("%v, scale %04x, element %d", d, h, i), got[i:i+1], []float32{refElement(d, block, i)})
			}
		}
	}
}

func TestScalesMinsPackEveryValue(t *testing.T) {
	cases := 0
	r := rand.New(rand.NewPCG(5, 6))
	for j := range 8 {
		for a := range uint64(64) {
			for b := range uint64(64) {
				sc, m := r.Uint64()&0x3f3f3f3f3f3f3f3f, r.Uint64()&0x3f3f3f3f3f3f3f3f
				sc = sc&^(0xff<<(8*j)) | a<<(8*j)
				m = m&^(0xff<<(8*j)) | b<<(8*j)
				cases++
				var s [12]byte
				packScalesMins(&s, sc, m)
				if gotSc, gotM := scalesMins(&s); gotSc != sc || gotM != m {
					t.Fatalf("group %d: packed %016x %016x, unpacked %016x %016x", j, sc, m, gotSc, gotM)
				}
			}
		}
	}
	contracttest.Cases(t, cases)
}

// TestQ6KCodesOfEveryBytes: all 2²⁴ values of the three bytes that hold four codes of Q6_K, through the decoder. A block
// has 64 such triples.
func TestQ6KCodesOfEveryBytes(t *testing.T) {
	block := make([]byte, bytesQ6K)
	for i := range block[192:208] {
		block[192+i] = 1 // scales
	}
	binary.LittleEndian.PutUint16(block[208:], tensor.F32ToF16(1))
	var x [superblock]float32
	cases := 0
	for base := 0; base < 1<<24; base += 64 {
		for i := range 64 { // half h, element l
			h, l, v := i/32, i%32, base+i
			block[64*h+l], block[64*h+32+l], block[128+32*h+l] = byte(v), byte(v>>8), byte(v>>16)
		}
		decodeQ6K(x[:], block, 0)
		for i := range 64 {
			h, l, v := i/32, i%32, base+i
			low, high, two := v&255, v>>8&255, v>>16
			for k, code := range [4]int{low&15 | two&3<<4, high&15 | two>>2&3<<4, low>>4 | two>>4&3<<4, high>>4 | two>>6<<4} {
				if got := x[128*h+32*k+l]; got != float32(code-32) {
					t.Fatalf("bytes %06x: code %d is %g, want %d", v, k, got+32, code)
				}
			}
			cases++
		}
	}
	contracttest.Cases(t, cases)
}

func TestScalesMinsRepackEveryByte(t *testing.T) {
	cases := 0
	r := rand.New(rand.NewPCG(7, 8))
	for at := range 12 {
		for v := range 256 {
			cases++
			var s, again [12]byte
			for i := range s {
				s[i] = byte(r.Uint32())
			}
			s[at] = byte(v)
			sc, m := scalesMins(&s)
			if packScalesMins(&again, sc, m); again != s {
				t.Fatalf("% x became % x", s, again)
			}
		}
	}
	contracttest.Cases(t, cases)
}

func TestDequantizeRangeAnyPart(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for _, d := range blockTypes {
		src := randomBlocks(r, d, 1024/d.BlockLen(), false)
		whole := refDecode(d, src)
		for lo := 0; lo <= 1024; lo += 32 {
			for hi := lo; hi <= 1024; hi += 32 {
				checkRange(t, d, src, whole, lo, hi)
			}
		}
		for range 500 {
			lo := r.IntN(1025)
			checkRange(t, d, src, whole, lo, lo+r.IntN(1025-lo))
		}
	}
}

// checkRange decodes [lo,hi) into the middle of a larger buffer and checks that nothing else was written.
func checkRange(t *testing.T, d tensor.DType, src []byte, whole []float32, lo, hi int) {
	t.Helper()
	const canary = 12345
	buf := make([]float32, hi-lo+2)
	buf[0], buf[len(buf)-1] = canary, canary
	DequantizeRange(buf[1:len(buf)-1], src, lo, d)
	sameBits(t, fmt.Sprintf("%v[%d:%d]", d, lo, hi), buf[1:len(buf)-1], whole[lo:hi])
	if buf[0] != canary || buf[len(buf)-1] != canary {
		t.Fatalf("%v[%d:%d]: wrote outside dst", d, lo, hi)
	}
}

func TestDequantizeTruncatedRow(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, d := range blockTypes {
		for _, n := range []int{0, 1, 31, 33, 100, 255, 257, 500} {
			bytes, _ := PackedLen(n, d)
			src := randomBlocks(r, d, int(bytes)/d.BlockBytes(), true)
			got := make([]float32, n)
			Dequantize(got, src, d)
			sameBits(t, fmt.Sprintf("%v, %d elements", d, n), got, refDecode(d, src)[:n])
		}
	}
}

func TestDequantizeAprQ8(t *testing.T) {
	src := binary.LittleEndian.AppendUint32(nil, math.Float32bits(0.1))
	var want []float32
	for v := -128; v < 128; v++ {
		src = append(src, byte(v))
		want = append(want, float32(float32(0.1)*float32(v)))
	}
	got := make([]float32, len(want))
	Dequantize(got, src, tensor.AprQ8)
	sameBits(t, "whole", got, want)
	DequantizeRange(got[:5], src, 7, tensor.AprQ8)
	sameBits(t, "part", got[:5], want[7:12])
	Dequantize(nil, nil, tensor.AprQ8)
}

func TestDequantizeAprQ4UnusableScaleIsZero(t *testing.T) {
	for name, scale := range map[string]uint16{"NaN": 0x7e01, "infinity": 0x7c00, "minus infinity": 0xfc00,
		"subnormal": 0x03ff, "smallest": 0x0001, "zero": 0} {
		block := make([]byte, bytesAprQ4)
		binary.LittleEndian.PutUint16(block, scale)
		block[5] = 0xf0
		got := make([]float32, 32)
		Dequantize(got, block, tensor.AprQ4)
		for i, x := range got {
			if x != 0 {
				t.Errorf("%s scale: element %d is %g, want 0", name, i, x)
			}
		}
	}
}

func TestDequantizePanicsOnWrongLengths(t *testing.T) {
	cases := []struct {
		name string
		call func()
	}{
		{"one byte short", func() { Dequantize(make([]float32, 256), make([]byte, 143), tensor.Q4_K) }},
		{"one block long", func() { Dequantize(make([]float32, 256), make([]byte, 288), tensor.Q4_K) }},
		{"range past end", func() { DequantizeRange(make([]float32, 32), make([]byte, 144), 256, tensor.Q4_K) }},
		{"negative start", func() { DequantizeRange(make([]float32, 32), make([]byte, 144), -32, tensor.Q4_K) }},
		{"start overflows", func() { DequantizeRange(make([]float32, 32), make([]byte, 144), math.MaxInt, tensor.Q4_K) }},
		{"plain type", func() { Dequantize(make([]float32, 1), make([]byte, 4), tensor.F32) }},
		{"invalid type", func() { Dequantize(make([]float32, 1), make([]byte, 4), tensor.Invalid) }},
		{"unknown type", func() { Dequantize(make([]float32, 1), make([]byte, 4), 255) }},
	}
	for _, c := range cases {
		func() {
			defer func() {
				if s, ok := recover().(string); !ok || len(s) < 7 || s[:7] != "quant: " {
					t.Errorf("%s: no panic with a reason", c.name)
				}
			}()
			c.call()
		}()
	}
}

func FuzzDequantize(f *testing.F) {
	for i, x := range readFixtures(f) {
		f.Add(uint8(i), uint16(3), x.blocks[:2*x.dtype.BlockBytes()])
	}
	f.Fuzz(func(t *testing.T, kind uint8, lo uint16, src []byte) {
		d := blockTypes[int(kind)%len(blockTypes)]
		src = src[:len(src)/d.BlockBytes()*d.BlockBytes()]
		want := refDecode(d, src)
		got := make([]float32, len(want))
		Dequantize(got, src, d)
		sameBits(t, d.String(), got, want)
		start := int(lo) % (len(want) + 1)
		DequantizeRange(got[start:], src, start, d)
		sameBits(t, d.String()+" from the middle", got[start:], want[start:])
	})
}

func BenchmarkDequantize(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, d := range blockTypes {
		src := randomBlocks(r, d, 4096/d.BlockLen(), true)
		dst := make([]float32, 4096)
		b.Run(d.String(), func(b *testing.B) {
			b.SetBytes(int64(4 * len(dst)))
			for b.Loop() {
				Dequantize(dst, src, d)
			}
		})
		b.Run(d.String()+"/range32", func(b *testing.B) {
			b.SetBytes(int64(4 * len(dst)))
			for b.Loop() {
				for lo := 0; lo < len(dst); lo += 32 {
					DequantizeRange(dst[lo:lo+32], src, lo, d)
				}
			}
		})
	}
}
