package checked

import (
	"math/big"
	"testing"
)

// TestAgainstBig compares every operation on numbers around the edges of 64 bits with exact arithmetic.
func TestAgainstBig(t *testing.T) {
	edges := []Size{0, 1, 2, 3, 63, 64, 65, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1<<63 - 1, 1 << 63, 1<<64 - 65, 1<<64 - 64, 1<<64 - 63, 1<<64 - 1}
	limit := new(big.Int).Lsh(big.NewInt(1), 64)
	exact := func(a Size) *big.Int { return new(big.Int).SetUint64(uint64(a)) }
	check := func(name string, a, b, got Size, err error, want *big.Int) {
		t.Helper()
		if fits := want.Cmp(limit) < 0; fits != (err == nil) || fits && exact(got).Cmp(want) != 0 {
			t.Errorf("%s(%d, %d) = %d, %v; exactly %v", name, a, b, got, err, want)
		}
	}
	for _, a := range edges {
		for _, b := range edges {
			got, err := a.Add(b)
			check("Add", a, b, got, err, new(big.Int).Add(exact(a), exact(b)))
			got, err = a.Mul(b)
			check("Mul", a, b, got, err, new(big.Int).Mul(exact(a), exact(b)))
			if b == 0 {
				continue
			}
			up := new(big.Int).Sub(new(big.Int).Add(exact(a), exact(b)), big.NewInt(1))
			up.Div(up, exact(b))
			check("DivUp", a, b, a.DivUp(b), nil, up)
			got, err = a.Align(b)
			check("Align", a, b, got, err, up.Mul(up, exact(b)))
		}
	}
}

func TestShape(t *testing.T) {
	for _, c := range []struct {
		name string
		dims []uint64
		n    Size
		err  string
	}{
		{"scalar", nil, 1, ""},
		{"matrix", []uint64{3, 4}, 12, ""},
		{"empty", []uint64{3, 0}, 0, ""},
		{"largest", []uint64{1<<63 - 1}, 1<<63 - 1, ""},
		{"over int", []uint64{1 << 63}, 0, "dimension 9223372036854775808 is over 9223372036854775807"},
		{"over int64", []uint64{1 << 32, 1 << 31}, 0, "the product of shape [4294967296 2147483648] overflows"},
		{"wraps to 0", []uint64{1 << 32, 1 << 32}, 0, "the product of shape [4294967296 4294967296] overflows"},
		{"wraps beside 0", []uint64{1 << 32, 0, 1 << 32}, 0, "the product of shape [4294967296 0 4294967296] overflows"},
	} {
		_, n, err := Shape(c.dims)
		if n != c.n || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: %d, %v", c.name, n, err)
		}
	}
}
