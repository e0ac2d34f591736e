// Package checked is the arithmetic through which every number of a file passes: a result that does not fit 64 bits
// is an error, never a smaller number.
package checked

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// ErrOverflow says that a result does not fit 64 bits.
var ErrOverflow = errors.New("overflows 64 bits")

// Size is a count, length or offset claimed by a file.
type Size uint64

// Add returns a+b.
func (a Size) Add(b Size) (Size, error) {
	sum, carry := bits.Add64(uint64(a), uint64(b), 0)
	if carry != 0 {
		return 0, ErrOverflow
	}
	return Size(sum), nil
}

// Mul returns a·b.
func (a Size) Mul(b Size) (Size, error) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 {
		return 0, ErrOverflow
	}
	return Size(lo), nil
}

// Align returns a rounded up to a multiple of to, which must not be 0.
func (a Size) Align(to Size) (Size, error) {
	rest := a % to
	if rest == 0 {
		return a, nil
	}
	return a.Add(to - rest)
}

// DivUp returns a/b rounded up; b must not be 0.
func (a Size) DivUp(b Size) Size {
	q := a / b
	if a%b != 0 {
		q++
	}
	return q
}

// Shape converts claimed dimensions and returns their product. The product of the dimensions other than 0 must fit,
// so that no reader who multiplies in another order sees another number.
func Shape(dims []uint64) (shape []int, n Size, err error) {
	shape = make([]int, len(dims))
	n = 1
	empty := false
	for i, d := range dims {
		if d > math.MaxInt {
			return nil, 0, fmt.Errorf("dimension %d is over %d", d, math.MaxInt)
		}
		shape[i] = int(d)
		if d == 0 {
			empty = true
			continue
		}
		if n, err = n.Mul(Size(d)); err != nil || n > math.MaxInt64 {
			return nil, 0, fmt.Errorf("the product of shape %v overflows", dims)
		}
	}
	if empty {
		n = 0
	}
	return shape, n, nil
}
