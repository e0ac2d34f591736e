package dry

import (
	"strings"

	"apr/device"
	"apr/tensor"
)

// Stored keeps a matrix as it is in its file: as many bytes.
func Stored(spec device.WeightSpec) (Kept, error) {
	return keep(spec, func(info tensor.Info) tensor.DType { return info.DType }), nil
}

// As returns a Keep that widens, narrows or expands every matrix to elements of type d.
func As(d tensor.DType) func(device.WeightSpec) (Kept, error) {
	return func(spec device.WeightSpec) (Kept, error) {
		return keep(spec, func(tensor.Info) tensor.DType { return d }), nil
	}
}

// BlocksOr returns a Keep that leaves quantised blocks as they are and makes everything else d.
func BlocksOr(d tensor.DType) func(device.WeightSpec) (Kept, error) {
	return func(spec device.WeightSpec) (Kept, error) {
		return keep(spec, func(info tensor.Info) tensor.DType {
			if info.DType.IsQuantized() {
				return info.DType
			}
			return d
		}), nil
	}
}

// keep adds up the parts of spec, each of the type that as says.
func keep(spec device.WeightSpec, as func(tensor.Info) tensor.DType) Kept {
	var k Kept
	var types []string
	for i, src := range spec.Parts {
		info := src.Info()
		rows := info.Rows()
		if spec.Rows != nil {
			rows = spec.Rows[i]
		}
		d := as(info)
		k.Bytes += int64(rows) * d.RowBytes(info.Cols())
		if name := d.String(); len(types) == 0 || types[len(types)-1] != name {
			types = append(types, name)
		}
	}
	k.Types = strings.Join(types, "+")
	return k
}
