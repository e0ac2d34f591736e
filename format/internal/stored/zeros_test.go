package stored

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"apr/internal/contracttest"
	"apr/tensor"
)

// Runs of one value are found to the byte, wherever they begin and however the payload is read; of what was not read
// nothing is said.
func TestHoles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		contracttest.Cases(t, 1)
		lead, size := rng.IntN(100), 1+rng.IntN(200_000)
		file := make([]byte, lead+size)
		for i := range file {
			file[i] = byte(1 + rng.IntN(255))
		}
		var want []tensor.Hole
		for at := rng.IntN(9000); at < size; at += 1 + rng.IntN(30_000) {
			n := min(size-at, []int{1, 127, 128, 129, 4095, 4096, 4097, 6143, 8191, 70_000}[rng.IntN(10)])
			fill := []uint64{0, 0, 0x1111111111111111, 0x3f803f803f803f80, 0x0102030405060708}[rng.IntN(5)]
			word := binary.LittleEndian.AppendUint64(nil, fill)
			run := file[lead+at : lead+at+n]
			copy(run, bytes.Repeat(word, n/8+1))
			if at > 0 { // bytes around a run do not go on with it
				file[lead+at-1] = ^word[7]
			}
			if at+n < size {
				file[lead+at+n] = ^word[n%8]
			}
			if n >= 4096 || n == size && (fill == 0 || n >= 128) || n >= 128 && size <= 64<<10 {
				h := tensor.Hole{Path: "f", Offset: int64(lead + at), From: int64(at), Size: int64(n), Fill: first(run)}
				want = append(want, h)
			}
			at += n
		}
		s := &Section{File: bytes.NewReader(file), Path: "f", Name: "x", Offset: int64(lead), Size: int64(size)}
		if got, err := s.Holes(); err != nil || len(got) > 0 {
			t.Fatalf("before reading: %v, %v", got, err)
		}
		step := 1 + rng.IntN(20_000)
		starts := rng.Perm((size + step - 1) / step)
		for _, i := range starts {
			if _, err := s.ReadAt(make([]byte, min(step, size-i*step)), int64(i*step)); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.Holes()
		if err != nil || len(got) != len(want) {
			t.Fatalf("%d bytes, read by %d: %v, %v; want %v", size, step, got, err, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%d bytes, read by %d: %v, want %v", size, step, got, want)
			}
		}
	}
}

// first returns the first 8 bytes of a run.
func first(run []byte) uint64 {
	var b [8]byte
	copy(b[:], run)
	return binary.LittleEndian.Uint64(b[:])
}

// Runs that touch are told apart, also within a page.
func TestHolesThatTouch(t *testing.T) {
	for _, sizes := range [][]int{
		{4096, 4096}, {5000, 7000}, {4096, 100, 9000}, {70_000, 66_000}, {6143, 6143, 6143, 6143},
	} {
		contracttest.Cases(t, 1)
		var file []byte
		var want []tensor.Hole
		for i, n := range sizes {
			b := byte(i * 17)
			if n >= 4096 {
				at, fill := int64(len(file)), first(bytes.Repeat([]byte{b}, 8))
				want = append(want, tensor.Hole{Path: "f", Offset: at, From: at, Size: int64(n), Fill: fill})
			}
			file = append(file, bytes.Repeat([]byte{b}, n)...)
		}
		for i := range 70_000 {
			file = append(file, byte(1+i%251))
		}
		s := &Section{File: bytes.NewReader(file), Path: "f", Name: "x", Size: int64(len(file))}
		if _, err := s.ReadAt(make([]byte, len(file)), 0); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Holes(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%v: %v, %v, want %v", sizes, got, err, want)
		}
	}
}
