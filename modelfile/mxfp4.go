package modelfile

import (
	"fmt"
	"io"
	"slices"

	"apr/arch"
	"apr/internal/fault"
	"apr/quant"
	"apr/tensor"
)

// Hugging Face stores experts in MXFP4 as two tensors of bytes, the codes and the scales of blocks of 32 values; a slot is blocks
// in GGML's order, as .apr and GGUF files have them. Bytes move between the two, both ways; no value is decoded.

// mxfp4 makes slot s of a file's codes and scales.
func mxfp4(path string, s arch.Slot, p arch.Place, codes, scales tensor.Stored) (tensor.Stored, error) {
	experts, rows, cols := s.Dims()
	all := p.Shape[1]
	if err := wholeBlocks(path, s); err != nil {
		return tensor.Stored{}, err
	}
	for _, t := range []struct {
		t    tensor.Stored
		want []int
	}{{codes, []int{experts, all, cols / 32, 16}}, {scales, []int{experts, all, cols / 32}}} {
		if !slices.Equal(t.t.Shape, t.want) {
			return tensor.Stored{}, misshapen(path, t.t, t.want)
		}
		if t.t.DType != tensor.U8 {
			return tensor.Stored{}, fault.In(fault.Load, path, "has type %s, MXFP4 is bytes", t.t.DType).At("tensor %q", t.t.Name).WithID("E-MODEL-003")
		}
	}
	info := tensor.Info{Name: s.Name, DType: tensor.MXFP4, Shape: s.Shape, Size: int64(experts*rows) * tensor.MXFP4.RowBytes(cols)}
	return tensor.Stored{Info: info, ReaderAt: &mxfp4Reader{p, codes, scales, experts * rows, rows, cols, all}}, nil
}

// wholeBlocks refuses a slot whose rows are not whole blocks of MXFP4.
func wholeBlocks(path string, s arch.Slot) error {
	if _, _, cols := s.Dims(); cols%tensor.MXFP4.BlockLen() != 0 {
		return fault.In(fault.Load, path, "has rows of %d values, which are not whole blocks of 32 of MXFP4", cols).At("tensor %q", s.Name).
			WithHint("hidden_size and the width of experts must be multiples of 32").WithID("E-MODEL-021")
	}
	return nil
}

// mxfp4Reader reads a slot of a file's codes and scales as blocks.
type mxfp4Reader struct {
	place             arch.Place
	codes, scales     tensor.Stored
	count, rows, cols int // rows of all experts, of an expert; columns
	all               int // rows of an expert in the file
}

// mxfp4Rows is how many rows are moved at a time at most.
const mxfp4Rows = 64

// ReadAt implements io.ReaderAt.
func (m *mxfp4Reader) ReadAt(p []byte, off int64) (n int, err error) {
	row := tensor.MXFP4.RowBytes(m.cols)
	size := int64(m.count) * row
	if off < 0 || off >= size {
		return 0, io.EOF
	}
	want := p[:min(int64(len(p)), size-off)]
	var part []byte
	for n < len(want) {
		at, within := int((off+int64(n))/row), (off+int64(n))%row
		if k := min(int64(len(want)-n)/row, int64(m.rows-at%m.rows), mxfp4Rows); within == 0 && k > 0 {
			if err := m.move(want[n:n+int(k*row)], at, int(k)); err != nil {
				return n, err
			}
			n += int(k * row)
			continue
		}
		if part == nil {
			part = make([]byte, row)
		}
		if err := m.move(part, at, 1); err != nil {
			return n, err
		}
		n += copy(want[n:], part[within:])
	}
	if len(want) < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// fileRow returns the row of the file's matrices that row at of the slot is.
func (m *mxfp4Reader) fileRow(at int) int { return at/m.rows*m.all + m.place.Row(at%m.rows) }

// move reads n rows of one expert from row at on. Rows between them, which are of another slot, are read too.
func (m *mxfp4Reader) move(dst []byte, at, n int) error {
	first, step := m.fileRow(at), max(m.place.Step, 1)
	codeBytes, scaleBytes := m.cols/2, m.cols/32
	span := (n-1)*step + 1
	codes, scales := make([]byte, span*codeBytes), make([]byte, span*scaleBytes)
	if err := full(m.codes, codes, int64(first)*int64(codeBytes)); err != nil {
		return err
	}
	if err := full(m.scales, scales, int64(first)*int64(scaleBytes)); err != nil {
		return err
	}
	row := len(dst) / n
	for i := range n {
		from := i * step
		quant.MXFP4FromHF(dst[i*row:(i+1)*row], codes[from*codeBytes:][:codeBytes], scales[from*scaleBytes:][:scaleBytes])
	}
	return nil
}

// notFiniteMXFP4 is the fault of a scale of MXFP4: of the block that begins with element i of t.
func notFiniteMXFP4(path string, t tensor.Stored, i int64, scale byte) error {
	why := "which is NaN"
	if scale != 255 {
		why = "with which values are beyond float32"
	}
	cols := int64(max(1, t.Cols()))
	e := fault.In(fault.Format, path, "block %d (row %d, column %d) has scale %d, %s", i/32, i/cols, i%cols, scale, why).At("tensor %q", t.Name)
	if m, ok := t.ReaderAt.(*mxfp4Reader); ok {
		row := m.fileRow(int(i / cols))
		e = fault.In(fault.Format, path, "element [%d %d %d] is %d, %s as the scale of a block of MXFP4", row/m.all, row%m.all, i%cols/32, scale, why).
			At("tensor %q", m.scales.Name)
	}
	return e.WithHint("weights must be finite; `apr validate` counts the values that are not").WithID("E-MODEL-007")
}

// blocksAndScales are the two tensors that hold slots in MXFP4 as Hugging Face does.
func blocksAndScales(name string, parts []part) ([]tensor.Source, error) {
	shape := parts[0].place.Shape
	for _, p := range parts {
		if err := wholeBlocks("", p.slot); err != nil {
			return nil, err
		}
		if d := p.source.DType; d != tensor.MXFP4 {
			return nil, fault.New(fault.Format, "%s is %s; all experts of a file are MXFP4, or none", p.slot.Name, d).At("tensor %q", name).WithID("E-MODEL-015")
		}
	}
	experts, all, groups := shape[0], shape[1], shape[2]/32
	source := func(suffix string, shape []int, bytes int, take func(dst, blocks []byte)) tensor.Source {
		info := tensor.Info{Name: name + suffix, DType: tensor.U8, Shape: shape, Size: int64(experts) * int64(all) * int64(groups) * int64(bytes)}
		return tensor.Source{Info: info, Payload: func(w io.Writer) error {
			raw := make([]byte, info.Size)
			for _, p := range parts {
				if err := p.spread(raw, groups*bytes, take); err != nil {
					return err
				}
			}
			_, err := w.Write(raw)
			return err
		}}
	}
	return []tensor.Source{
		source("_blocks", []int{experts, all, groups, 16}, 16, func(dst, blocks []byte) { quant.MXFP4ToHF(dst, nil, blocks) }),
		source("_scales", []int{experts, all, groups}, 1, func(dst, blocks []byte) { quant.MXFP4ToHF(nil, dst, blocks) }),
	}, nil
}

// spread writes what take makes of each of the slot's rows where the file has the row, size bytes each.
func (p part) spread(raw []byte, size int, take func(dst, blocks []byte)) error {
	data, err := p.source.bytes()
	if err != nil {
		return err
	}
	defer p.source.done()
	experts, rows, cols := p.slot.Dims()
	row := int(tensor.MXFP4.RowBytes(cols))
	if len(data) != experts*rows*row {
		return fmt.Errorf("%s: %d bytes of MXFP4, want %d", p.slot.Name, len(data), experts*rows*row)
	}
	for at := range experts * rows {
		to := at/rows*p.place.Shape[1] + p.place.Row(at%rows)
		take(raw[to*size:][:size], data[at*row:][:row])
	}
	return nil
}

// storedAs returns how Hugging Face's files hold matrices whose sources have these types: experts in MXFP4, or as values. Experts of
// both kinds are refused.
func storedAs(c arch.Config, tensors []tensor.Source) (string, error) {
	if !c.HoldsMXFP4() {
		return "", nil
	}
	types := map[string]tensor.DType{}
	for _, t := range tensors {
		types[t.Name] = t.DType
	}
	blocks, other := "", ""
	for _, s := range arch.Slots(c) {
		if s.Bias || s.Role != arch.ExpertGate && s.Role != arch.ExpertUp && s.Role != arch.ExpertDown {
			continue
		}
		if d, ok := types[s.Name]; ok && d == tensor.MXFP4 {
			blocks = s.Name
		} else if ok {
			other = s.Name
		}
	}
	switch {
	case blocks == "":
		return "", nil
	case other != "":
		return "", fault.New(fault.Format, "is %s and %s is mxfp4; all experts of a folder are MXFP4, or none", types[other], blocks).
			At("tensor %q", other).WithID("E-MODEL-015")
	}
	return arch.MXFP4, nil
}
