package model

import (
	"io"
	"slices"

	"apr/arch"
	"apr/device"
	"apr/internal/fault"
	"apr/tensor"
)

// QuantizedBy refuses a device that does not train matrices in blocks, and types of slots that it could not hold.
func QuantizedBy(dev device.Device, c arch.Config, types map[string]tensor.DType) error {
	if slices.Contains(dev.Info().Lacks, device.Quantizes) {
		return fault.New(fault.Unavailable, "%s is not built for %s yet", device.Quantizes, dev.Info().Kind).WithHint("--backend cpu").WithID("E-MODEL-040")
	}
	for _, s := range arch.Slots(c) {
		d, ok := types[s.Name]
		if !ok || len(s.Shape) < 2 {
			continue
		}
		if cols := s.Shape[len(s.Shape)-1]; d.IsQuantized() && cols%d.BlockLen() != 0 {
			return fault.New(fault.Invalid, "rows of %d values are not whole blocks of %v", cols, d).At("tensor %q", s.Name).WithID("E-MODEL-041")
		}
	}
	return nil
}

// blocksOf returns the types of the rows of a group of matrices; nil if all are float32.
func blocksOf(g group, parts []Part, types map[string]tensor.DType) (all []device.BlockRows) {
	plain := true
	for i, s := range g.slots {
		d := types[s.Name]
		if d == tensor.Invalid || s.Bias {
			d = tensor.F32
		}
		plain = plain && d == tensor.F32
		all = append(all, device.BlockRows{DType: d, Rows: parts[i].hi - parts[i].lo})
	}
	if plain {
		return nil
	}
	return all
}

// Quantized reports whether matrices of a trainable model are computed with as blocks hold them.
func (m *Model) Quantized() bool {
	return slices.ContainsFunc(m.params, func(p *device.Param) bool { return len(p.Blocks) > 0 })
}

// StoredSources returns the tensors of a trainable model as they are computed with: matrices in the types of NewTrainableAs, with the
// bytes of their present blocks, norms and biases in float32. A tied head is not listed.
func (m *Model) StoredSources(s device.Stream) []tensor.Source {
	plain := m.Sources(s, tensor.F32)
	for i, p := range m.parts {
		d, lo, n := p.stored()
		if d == tensor.F32 {
			continue
		}
		info := plain[i].Info
		info.DType, info.Size = d, n
		plain[i] = tensor.Source{Info: info, Payload: func(w io.Writer) error {
			all, err := StoredBytes(s, p.Param)
			if err != nil {
				return err
			}
			_, err = w.Write(all[lo : lo+n])
			return err
		}}
	}
	return plain
}

// stored returns the type of a part, and where its bytes are in Param.Stored; F32: in none.
func (p Part) stored() (d tensor.DType, lo, n int64) {
	row := 0
	for _, b := range p.Param.Blocks {
		n = b.Bytes(p.Param.Cols)
		if row == p.lo {
			return b.DType, lo, n
		}
		row, lo = row+b.Rows, lo+n
	}
	return tensor.F32, 0, 0
}

// StoredBytes returns the bytes of a parameter's blocks.
func StoredBytes(s device.Stream, p *device.Param) ([]byte, error) {
	all := make([]byte, p.Stored.Cols)
	return all, s.(device.Quantizer).StoredBytes(all, p)
}
