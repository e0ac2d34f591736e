package collective

import (
	"encoding/binary"
	"errors"
	"math"
)

var errSize = errors.New("a piece of another size than the operation has")

func sizeOf[T number]() int {
	var x T
	if _, ok := any(x).(float64); ok {
		return 8
	}
	return 4
}

// encode appends x to b, little-endian.
func encode[T number](b []byte, x []T) []byte {
	switch x := any(x).(type) {
	case []float32:
		for _, v := range x {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
	case []float64:
		for _, v := range x {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
		}
	}
	return b
}

// decode is the inverse of encode for exactly len(x) values.
func decode[T number](x []T, b []byte) error {
	if len(b) != len(x)*sizeOf[T]() {
		return errSize
	}
	switch x := any(x).(type) {
	case []float32:
		for i := range x {
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
	case []float64:
		for i := range x {
			x[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
		}
	}
	return nil
}
