package teacher

import (
	"math"
	"slices"
	"testing"

	"apr/device"
	"apr/internal/contracttest"
	"apr/teacher/cache"
)

// TestPhilox: the known answers of Random123 (kat_vectors, philox4x32 10).
func TestPhilox(t *testing.T) {
	const all = 0xffffffff
	for _, tt := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{all, all, all, all}, [2]uint32{all, all}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0}, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := device.Philox(tt.key, tt.counter); got != tt.want {
			t.Errorf("philox(%x, %x) = %x, want %x", tt.key, tt.counter, got, tt.want)
		}
		contracttest.Cases(t, 1)
	}
}

func BenchmarkDraw(b *testing.B) {
	logits := make([]float32, 151936)
	for i := range logits {
		logits[i] = float32(8 * math.Sin(float64(i*i)))
	}
	d := Drawer{Temperature: 1, Draws: 50}
	for i := 0; b.Loop(); i++ {
		if _, _, err := d.Draw(nil, logits, cache.Key{}, i); err != nil {
			b.Fatal(err)
		}
	}
}

// TestDraw: over many rows, counts follow the distribution (χ² of 8 ids with 7 degrees of freedom), at two
// temperatures; draws repeat, and differ between seeds, rows and positions. A distribution that is one id off fails
// the same test.
func TestDraw(t *testing.T) {
	logits := []float32{1, 3, -2, 0.5, 2.5, 2, -1, 0}
	const rows, n = 2000, 50
	for _, temperature := range []float64{1, 2.5} {
		d := Drawer{Temperature: temperature, Draws: n, Seed: 3}
		p, sum := make([]float64, len(logits)), 0.0
		for i, l := range logits {
			p[i] = math.Exp(float64(l) / temperature)
			sum += p[i]
		}
		entropy := 0.0
		for i := range p {
			p[i] /= sum
			entropy -= p[i] * math.Log(p[i])
		}
		counts := make([]float64, len(logits))
		for r := range rows {
			entries, h, err := d.Draw(nil, logits, cache.KeyOf([]int32{int32(r)}, nil), r%7)
			if err != nil || !(math.Abs(h-entropy) < 1e-12) {
				t.Fatalf("entropy %g, want %g, %v", h, entropy, err)
			}
			for _, e := range entries {
				counts[e.ID] += float64(e.Count)
			}
		}
		chi := func(shift int) (x float64) {
			for i, c := range counts {
				want := rows * n * p[(i+shift)%len(p)]
				x += (c - want) * (c - want) / want
			}
			return x
		}
		if got := chi(0); !(got < 24.3) { // 0.1 %
			t.Errorf("temperature %g: χ² is %g: %v", temperature, got, counts)
		}
		if got := chi(1); !(got > 1000) {
			t.Errorf("temperature %g: χ² of another distribution is %g", temperature, got)
		}
		contracttest.Cases(t, 1)
	}
	draw := func(seed uint64, row, position int) []cache.Entry {
		d := Drawer{Temperature: 1, Draws: n, Seed: seed}
		e, _, err := d.Draw(nil, logits, cache.KeyOf([]int32{int32(row)}, nil), position)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	first := draw(1, 1, 1)
	if !slices.Equal(first, draw(1, 1, 1)) {
		t.Error("draws do not repeat")
	}
	for name, other := range map[string][]cache.Entry{"seed": draw(2, 1, 1), "row": draw(1, 2, 1), "position": draw(1, 1, 2)} {
		if slices.Equal(first, other) {
			t.Errorf("another %s draws the same", name)
		}
	}
}

// TestDrawRefuses: logits that are not finite draw nothing; an id of probability 0 is never drawn.
func TestDrawRefuses(t *testing.T) {
	d := Drawer{Temperature: 1, Draws: 50}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, bad := range [][]float32{{1, nan, 2}, {nan, nan, nan}, {1, inf, 2}, {-inf, -inf, -inf}} {
		if _, _, err := d.Draw(nil, bad, cache.Key{}, 0); err == nil {
			t.Errorf("%v: drawn from", bad)
		}
		contracttest.Cases(t, 1)
	}
	e, h, err := d.Draw(nil, []float32{-inf, 700, -inf}, cache.Key{}, 0)
	if err != nil || h != 0 || len(e) != 1 || e[0] != (cache.Entry{ID: 1, Count: 50}) {
		t.Errorf("%v, %g, %v", e, h, err)
	}
}
