package stored

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"apr/internal/contracttest"
	"apr/tensor"
)

// Runs of zeros are found to the byte, wherever they begin and however the payload is read; of what was not read nothing is said.
func TestHoles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		contracttest.Cases(t, 1)
		lead, size := rng.IntN(100), 1+rng.IntN(200_000)
		file := bytes.Repeat([]byte{7}, lead+size)
		var want []tensor.Hole
		for at := rng.IntN(9000); at < size; at += 1 + rng.IntN(30_000) {
			n := min(size-at, []int{1, 127, 128, 129, 4095, 4096, 4097, 6143, 8191, 70_000}[rng.IntN(10)])
			clear(file[lead+at : lead+at+n])
			if n >= 4096 || n == size || n >= 128 && size <= 64<<10 {
				want = append(want, tensor.Hole{Path: "f", Offset: int64(lead + at), From: int64(at), Size: int64(n)})
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
