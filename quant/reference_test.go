package quant

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"apr/tensor"
)

// blockTypes are all types whose payload is a plain sequence of blocks.
var blockTypes = []tensor.DType{
	tensor.Q4_0, tensor.Q5_0, tensor.Q8_0, tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.AprQ4, tensor.IQ4_NL, tensor.IQ4_XS, tensor.MXFP4,
	tensor.Q3_K, tensor.Q2_K,
}

// refElement is element i of block b, written down from the format's equations one element at a time.
func refElement(d tensor.DType, b []byte, i int) float32 {
	f16 := func(at int) float32 { return tensor.F16ToF32(binary.LittleEndian.Uint16(b[at:])) }
	j, l := i/32, i%32
	switch d {
	case tensor.Q4_K, tensor.Q5_K:
		s := b[4:16]
		var sc, m byte
		if j < 4 {
			sc, m = s[j]&63, s[j+4]&63
		} else {
			sc, m = s[j+4]&15|s[j-4]>>6<<4, s[j+4]>>4|s[j]>>6<<4
		}
		var q byte
		if d == tensor.Q4_K {
			q = b[16+32*(j/2)+l] >> (4 * (j % 2)) & 15
		} else {
			q = b[48+32*(j/2)+l]>>(4*(j%2))&15 | b[16+l]>>j&1<<4
		}
		return float32(float32(f16(0)*float32(sc))*float32(q)) - float32(f16(2)*float32(m))
	case tensor.Q6_K:
		h, k := i/128, i%128/32
		v := int(b[64*h+32*(k%2)+l]>>(4*(k/2))&15 | b[128+32*h+l]>>(2*k)&3<<4)
		return float32(f16(208)*float32(int8(b[192+8*h+2*k+l/16]))) * float32(v-32)
	case tensor.Q3_K: // the scale of 16 elements has its low bits in the 8 bytes after q, its high ones in the 4 after those
		k := i / 16
		sc := int(b[96+k%8]>>(4*(k/8))&15 | b[104+k%4]>>(2*(k/4))&3<<4)
		v := int(b[32+32*(i/128)+l]>>(2*(j%4))&3) + 4*int(b[l]>>j&1)
		return float32(f16(108)*float32(sc-32)) * float32(v-4)
	case tensor.Q2_K:
		sc := b[i/16]
		v := b[16+32*(i/128)+l] >> (2 * (j % 4)) & 3
		return float32(float32(f16(80)*float32(sc&15))*float32(v)) - float32(f16(82)*float32(sc>>4))
	case tensor.Q8_0:
		return f16(0) * float32(int8(b[2+i]))
	case tensor.Q4_0:
		return f16(0) * float32(int(b[2+i%16]>>(4*(i/16))&15)-8)
	case tensor.Q5_0:
		fifth := int(binary.LittleEndian.Uint32(b[2:]) >> i & 1)
		return f16(0) * float32(int(b[6+i%16]>>(4*(i/16))&15)+16*fifth-16)
	case tensor.AprQ4:
		scale := f16(0)
		if e := b[1] >> 2 & 31; e == 0 || e == 31 {
			scale = 0
		}
		return scale * float32(int(b[2+i/2]>>(4*(i%2))&15)-8)
	case tensor.MXFP4: // sign, two bits of exponent, one of mantissa; 2^(e−127)
		c := b[1+l%16] >> (4 * (l / 16)) & 15
		m, e := float64(c&1), int(c>>1&3)
		if e > 0 {
			m, e = m+2, e-1
		}
		x := math.Ldexp(m, e-1+int(b[0])-127)
		switch {
		case b[0] == 255:
			x = math.NaN()
		case c > 8: // minus zero is 0, as in ggml
			x = -x
		}
		return float32(x)
	case tensor.IQ4_NL, tensor.IQ4_XS:
		v := []float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
		if d == tensor.IQ4_NL {
			return f16(0) * v[b[2+l%16]>>(4*(l/16))&15]
		}
		sc := int(b[4+j/2]>>(4*(j%2))&15) | int(binary.LittleEndian.Uint16(b[2:])>>(2*j)&3)<<4
		return float32(f16(0)*float32(sc-32)) * v[b[8+16*j+l%16]>>(4*(l/16))&15]
	}
	panic("no reference for " + d.String())
}

func refDecode(d tensor.DType, src []byte) []float32 {
	var x []float32
	for ; len(src) > 0; src = src[d.BlockBytes():] {
		for i := range d.BlockLen() {
			x = append(x, refElement(d, src, i))
		}
	}
	return x
}

// sameBits fails unless got and want agree in every bit (any NaN equals any NaN: payloads depend on the processor).
func sameBits(t *testing.T, name string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", name, len(got), len(want))
	}
	for i := range got {
		bothNaN := got[i] != got[i] && want[i] != want[i]
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) && !bothNaN {
			t.Fatalf("%s: element %d is %g (%08x), want %g (%08x)", name, i,
				got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

// The fixtures in testdata come from GGML's own quantiser and dequantiser: input.f32 is a 24×512 matrix of several
// distributions, *.blocks its rows quantised, *.f32 those blocks decoded, index.jsonl the root mean square errors.
const fixtureRows, fixtureCols = 24, 512

type fixture struct {
	dtype   tensor.DType
	blocks  []byte
	decoded []float32
	rowRMSE []float64
}

func readF32(t testing.TB, name string) []float32 {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	x := make([]float32, len(b)/4)
	tensor.Widen(x, b, tensor.F32)
	return x
}

func readFixtures(t testing.TB) []fixture {
	t.Helper()
	index, err := os.ReadFile("testdata/index.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var all []fixture
	for lines := bufio.NewScanner(bytes.NewReader(index)); lines.Scan(); {
		var entry struct {
			Type    string
			Bytes   int
			RowRMSE []float64 `json:"row_rmse"`
		}
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil {
			t.Fatal(err)
		}
		blocks, err := os.ReadFile("testdata/" + entry.Type + ".blocks")
		if err != nil {
			t.Fatal(err)
		}
		f := fixture{tensor.ParseDType(strings.ToLower(entry.Type)), blocks, readF32(t, entry.Type+".f32"), entry.RowRMSE}
		if len(blocks) != entry.Bytes || len(f.decoded) != fixtureRows*fixtureCols || len(f.rowRMSE) != fixtureRows {
			t.Fatalf("fixture %s is incomplete", entry.Type)
		}
		all = append(all, f)
	}
	if len(all) != 8 {
		t.Fatalf("%d fixtures, want 8", len(all))
	}
	return all
}

// randomBlocks are n blocks of random bytes; with finite set, scales are halves in 2⁻⁷…2⁻³.
func randomBlocks(r *rand.Rand, d tensor.DType, n int, finite bool) []byte {
	b := make([]byte, n*d.BlockBytes())
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	for i := range n {
		for _, at := range scaleOffsets(d) {
			if finite && d == tensor.MXFP4 {
				b[i*d.BlockBytes()] = byte(110 + r.IntN(20))
			} else if finite {
				binary.LittleEndian.PutUint16(b[i*d.BlockBytes()+at:], uint16(0x2000+r.IntN(0x1000)))
			}
		}
	}
	return b
}

// scaleOffsets are the places of the halves in a block of type d.
func scaleOffsets(d tensor.DType) []int {
	switch d {
	case tensor.Q4_K, tensor.Q5_K:
		return []int{0, 2}
	case tensor.Q6_K:
		return []int{208}
	case tensor.Q3_K:
		return []int{108}
	case tensor.Q2_K:
		return []int{80, 82}
	}
	return []int{0}
}
