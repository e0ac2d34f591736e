package teacher

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"apr/teacher/cache"
)

// Drawer draws ids from softmax(t/T) with replacement. What it draws at a position of a row follows from the seed,
// the row's key, the position and the logits alone. It may be used by one goroutine at a time.
type Drawer struct {
	Temperature float64
	Draws       int
	Seed        uint64

	weights  []float64 // e^{(t−max)/T} of each id
	uniforms []float64
}

// drawKey is the key of a row's random numbers: the first 8 bytes, little-endian, of SHA-256 of "apr draws", the seed
// in 8 bytes and the key of the row.
func drawKey(seed uint64, row cache.Key) [2]uint32 {
	b := binary.LittleEndian.AppendUint64([]byte("apr draws"), seed)
	sum := sha256.Sum256(append(b, row[:]...))
	return [2]uint32{binary.LittleEndian.Uint32(sum[:]), binary.LittleEndian.Uint32(sum[4:])}
}

// philox returns block counter of the generator Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy
// as 1, 2, 3").
func philox(key [2]uint32, counter [4]uint32) [4]uint32 {
	for range 10 {
		hi0, lo0 := bits.Mul32(0xD2511F53, counter[0])
		hi1, lo1 := bits.Mul32(0xCD9E8D57, counter[2])
		counter = [4]uint32{hi1 ^ counter[1] ^ key[0], lo1, hi0 ^ counter[3] ^ key[1], lo0}
		key[0] += 0x9E3779B9
		key[1] += 0xBB67AE85
	}
	return counter
}

// uniform returns the numbers u of a position, ascending: of block i of philox, whose counter is (position, i, 0, 0),
// words 0 and 1, then 2 and 3, each pair the first 53 bits of a fraction in [0,1), the higher word first.
func (d *Drawer) uniform(key [2]uint32, position int) []float64 {
	d.uniforms = d.uniforms[:0]
	for i := uint32(0); len(d.uniforms) < d.Draws; i++ {
		w := philox(key, [4]uint32{uint32(position), i, 0, 0})
		for k := 0; k < 4 && len(d.uniforms) < d.Draws; k += 2 {
			d.uniforms = append(d.uniforms, math.Ldexp(float64((uint64(w[k])<<32|uint64(w[k+1]))>>11), -53))
		}
	}
	slices.Sort(d.uniforms)
	return d.uniforms
}

// Draw appends the draws at a position of a row to entries, ids ascending, and returns the entropy of softmax(t/T) in
// nats. With w = e^{(t−max)/T} and C its running sum over the ids in float64, a uniform u draws the first id with C >
// u·Σw. Logits whose sum is not finite are an error.
func (d *Drawer) Draw(entries []cache.Entry, logits []float32, row cache.Key, position int) (_ []cache.Entry, entropy float64, err error) {
	top := float64(slices.Max(logits)) // NaN if one is
	if cap(d.weights) < len(logits) {
		d.weights = make([]float64, len(logits))
	}
	d.weights = d.weights[:len(logits)]
	sum, energy := 0.0, 0.0
	for i, t := range logits {
		x := (float64(t) - top) / d.Temperature
		w := math.Exp(x)
		d.weights[i] = w
		if sum += w; w > 0 {
			energy += w * x
		}
	}
	if !(sum >= 1 && sum <= math.MaxFloat64) {
		return nil, 0, fmt.Errorf("the teacher's logits at position %d are not finite", position)
	}
	us := d.uniform(drawKey(d.Seed, row), position)
	at, running := 0, 0.0
	for i, w := range d.weights {
		running += w
		n := 0
		for at < len(us) && us[at]*sum < running {
			at, n = at+1, n+1
		}
		if n > 0 {
			entries = append(entries, cache.Entry{ID: int32(i), Count: uint8(n)})
		}
		if at == len(us) {
			break
		}
	}
	if at < len(us) {
		panic("teacher: a uniform number below 1 drew nothing") // running ends as sum, and u·sum < sum
	}
	return entries, math.Log(sum) - energy/sum, nil
}
