// Package hostile damages small files and holds their readers to the price of refusing: a second of processor time, and
// 64 MiB of memory beyond four times the input.
//
// Caveats. Processor time and memory are the whole process's: tests that use this package do not run in parallel.
package hostile

import (
	"bytes"
	"fmt"
	"runtime/metrics"
	"testing"
	"time"

	"apr/internal/near"
)

// Limits of reading n bytes.
const (
	MaxTime  = time.Second
	MaxBytes = 64 << 20 // beyond 4n
)

// Bounded calls read, which reads an input of n bytes, and fails t if it took more than the limits.
func Bounded(t testing.TB, n int, read func()) {
	t.Helper()
	bytes, start := allocated(), near.CPUTime()
	read()
	took, got := near.CPUTime()-start, allocated()-bytes
	if took > MaxTime || got > MaxBytes+4*uint64(n) {
		t.Errorf("an input of %d bytes took %v and %d bytes of memory", n, took, got)
	}
}

// allocated returns the bytes that were ever allocated, small objects with some delay.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// Flips are what EachDamage changes a byte by: its lowest bit, a letter's case, its highest bit, all bits.
var Flips = []byte{1, 0x20, 0x80, 0xff}

// EachDamage calls try, within the limits of Bounded, with every prefix of good that is shorter, and with good with each
// byte changed in each of the ways of Flips. try owns the bytes. It returns the number of calls.
func EachDamage(t testing.TB, good []byte, try func(name string, b []byte)) int {
	t.Helper()
	count := 0
	call := func(name string, b []byte) {
		count++
		Bounded(t, len(b), func() { try(name, b) })
	}
	for n := range good {
		call(fmt.Sprintf("first %d bytes", n), bytes.Clone(good[:n]))
	}
	for i := range good {
		for _, x := range Flips {
			b := bytes.Clone(good)
			b[i] ^= x
			call(fmt.Sprintf("byte %d ^ %#x", i, x), b)
		}
	}
	return count
}
