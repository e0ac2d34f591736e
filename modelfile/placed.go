package modelfile

import (
	"bytes"
	"io"
	"sync"

	"apr/arch"
	"apr/internal/fault"
	"apr/tensor"
)

// part is a slot with its place in a file's tensor.
type part struct {
	slot   arch.Slot
	place  arch.Place
	source *sharedSource
}

// placed returns the tensors of a file that hold the sources of slots: renamed, fused, in the order of the format, with
// its values. Sources that are no slots stay. A place of blocks becomes two tensors. Slots that lie in one tensor have one type.
func placed(c arch.Config, sources []tensor.Source, place func(arch.Slot) arch.Place) ([]tensor.Source, error) {
	byName := map[string]tensor.Source{}
	for _, s := range sources {
		byName[s.Name] = s
	}
	var out []tensor.Source
	fused := map[string][]part{}
	var order []string
	slots := map[string]bool{}
	for _, s := range arch.Slots(c) {
		src, ok := byName[s.Name]
		if !ok {
			continue
		}
		slots[s.Name] = true
		p := place(s)
		if src.Ordered {
			p.Cols = arch.Order{}
		}
		if s.Alone(p) && !p.Blocks {
			src.Name, src.Shape = p.Name, p.Shape
			out = append(out, src)
			continue
		}
		shared := &sharedSource{Source: src, left: max(p.Each, 1)}
		if p.Blocks {
			shared.left = 2 // codes, and scales
		}
		for _, name := range names(p) {
			if len(fused[name]) == 0 {
				order = append(order, name)
			}
			fused[name] = append(fused[name], part{s, p, shared})
		}
	}
	for _, name := range order {
		if fused[name][0].place.Blocks {
			both, err := blocksAndScales(name, fused[name])
			if err != nil {
				return nil, err
			}
			out = append(out, both...)
			continue
		}
		src, err := joined(name, fused[name])
		if err != nil {
			return nil, err
		}
		out = append(out, src)
	}
	for _, s := range sources {
		if !slots[s.Name] {
			out = append(out, s)
		}
	}
	return out, nil
}

// joined is a file's tensor made of slots.
func joined(name string, parts []part) (tensor.Source, error) {
	first := parts[0]
	d := first.source.DType
	info := tensor.Info{Name: name, DType: d, Shape: first.place.Shape}
	info.Size = info.Elements() / int64(d.BlockLen()) * int64(d.BlockBytes())
	held := int64(0)
	for _, p := range parts {
		if p.source.DType != d {
			return tensor.Source{}, fault.New(fault.Format, "%s is %s and %s is %s; they are one tensor", first.slot.Name, d, p.slot.Name, p.source.DType).
				At("tensor %q", name).WithID("E-MODEL-015")
		}
		_, _, cols := p.slot.Dims()
		if d.IsQuantized() && (p.place.Values != arch.Same || !p.place.MovesBlocks(d.BlockLen()) || cols%d.BlockLen() != 0) {
			return tensor.Source{}, fault.New(fault.Format, "%s cannot be stored in blocks of %s", p.slot.Name, d).At("tensor %q", name).WithID("E-MODEL-016")
		}
		held += p.slot.Elements() / int64(max(p.place.Each, 1))
	}
	if held != info.Elements() {
		return tensor.Source{}, fault.New(fault.Load, "holds %d values, of which the model has %d", info.Elements(), held).At("tensor %q", name).WithID("E-MODEL-001")
	}
	return tensor.Source{Info: info, Payload: func(w io.Writer) error {
		raw := make([]byte, info.Size)
		for _, p := range parts {
			if err := p.write(raw, name, d); err != nil {
				return err
			}
		}
		_, err := w.Write(raw)
		return err
	}}, nil
}

// write puts a slot's values into the file's tensor of that name.
func (p part) write(raw []byte, name string, d tensor.DType) error {
	data, err := p.source.bytes()
	if err != nil {
		return err
	}
	defer p.source.done()
	if p.place.Values != arch.Same {
		values := make([]float32, p.slot.Elements())
		tensor.Widen(values, data, d)
		for i, x := range values {
			values[i] = float32(p.place.Values.ToFile(float64(x)))
		}
		data = make([]byte, len(data))
		tensor.Narrow(data, values, d)
	}
	experts, rows, cols := p.slot.Dims()
	block, size := d.BlockLen(), d.BlockBytes()
	run := 1 // blocks that stay together
	if !p.place.Transposed && p.place.Cols == (arch.Order{}) {
		run = cols / block
	}
	all, columns := names(p.place), p.slot.Columns(p.place)
	for e := range experts {
		for r := range rows {
			file, first := p.slot.Index(p.place, e, r, 0)
			if all[file] != name {
				continue
			}
			for c := 0; c < cols; c += run * block {
				from := ((e*rows+r)*cols + c) / block * size
				copy(raw[(first+columns[c])/block*size:][:run*size], data[from:])
			}
		}
	}
	return nil
}

// sharedSource is a slot that several tensors of a file are made of, an expert each: it is read once, and forgotten when the
// last of them has been written.
type sharedSource struct {
	tensor.Source
	lock sync.Mutex
	data []byte
	left int
}

func (s *sharedSource) bytes() ([]byte, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.data == nil {
		b := bytes.NewBuffer(make([]byte, 0, s.Size))
		if err := s.Payload(b); err != nil {
			return nil, err
		}
		s.data = b.Bytes()
	}
	return s.data, nil
}

func (s *sharedSource) done() {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.left--; s.left <= 0 {
		s.data = nil
	}
}
