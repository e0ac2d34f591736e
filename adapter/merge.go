package adapter

import (
	"cmp"
	"io"
	"maps"
	"slices"

	"apr/arch"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
)

// Merge makes f the merged model: each adapted matrix is W + scale·B·A in float32, computed row by row when it is read. Who writes
// them rounds once. A tied head that has an adapter is untied.
func (a *Adapter) Merge(f *modelfile.Files) error {
	if err := a.MergeContainer(f.Container); err != nil {
		return err
	}
	var err error
	f.Config, err = f.ReadConfig()
	return err
}

// MergeContainer is Merge of a container, which has a configuration.
func (a *Adapter) MergeContainer(c *modelfile.Container) error {
	config, err := c.ReadConfig()
	if err != nil {
		return err
	}
	if err := cmp.Or(c.CheckStrays(), c.CheckHead()); err != nil { // of the file as it is
		return err
	}
	base := c.File
	m := &merged{File: base, byName: map[string]tensor.Stored{}}
	for _, t := range base.Tensors() {
		m.byName[t.Name] = t
	}
	for _, mod := range a.Modules {
		t, ok := base.Tensor(mod.Slot.Name)
		if mod.Slot.Name == headName && config.Tied {
			t, ok = base.Tensor(embedding(config))
		}
		if !ok {
			return c.Missing(mod.Slot.Name)
		}
		if !slices.Equal(t.Shape, mod.Slot.Shape) {
			return fault.In(fault.Load, c.Path, "has shape %v, the configuration wants %v", t.Shape, mod.Slot.Shape).At("tensor %q", t.Name).WithID("E-MODEL-002")
		}
		r, err := newMergedRows(c.Path, t, mod)
		if err != nil {
			return err
		}
		m.byName[mod.Slot.Name] = tensor.Stored{Info: r.info, ReaderAt: r}
	}
	for _, name := range slices.Sorted(maps.Keys(m.byName)) {
		m.list = append(m.list, m.byName[name])
	}
	c.File = m
	if config.Tied && a.head() {
		config = Untied(config)
		c.ReadConfig = func() (arch.Config, error) { return config, nil }
	}
	return nil
}

// embedding returns the name of the slot that a tied head reads.
func embedding(c arch.Config) string {
	for _, s := range arch.Slots(c) {
		if s.Role == arch.Embedding {
			return s.Name
		}
	}
	panic("adapter: a model without an embedding")
}

// merged is a model file some of whose matrices have their adapters added.
type merged struct {
	tensor.File
	list   []tensor.Stored
	byName map[string]tensor.Stored
}

// Tensors implements tensor.File.
func (m *merged) Tensors() []tensor.Stored { return m.list }

// Tensor implements tensor.File.
func (m *merged) Tensor(name string) (tensor.Stored, bool) {
	t, ok := m.byName[name]
	return t, ok
}

// mergedRows reads a merged matrix as float32.
type mergedRows struct {
	path string
	info tensor.Info
	base tensor.Stored
	Module
}

func newMergedRows(path string, base tensor.Stored, m Module) (*mergedRows, error) {
	if int64(base.Rows())*base.DType.RowBytes(base.Cols()) != base.Size {
		return nil, fault.In(fault.Load, path, "stores rows of %d values in one stream of %s blocks, which cannot be read by row", base.Cols(), base.DType).
			At("tensor %q", base.Name).WithHint("convert the model first").WithID("E-MODEL-005")
	}
	info := tensor.Info{Name: m.Slot.Name, DType: tensor.F32, Shape: m.Slot.Shape, Size: 4 * base.Elements()}
	return &mergedRows{path, info, base, m}, nil
}

// rows reads rows [lo,hi).
func (m *mergedRows) rows(dst []byte, lo, hi int) error {
	cols := m.base.Cols()
	values := make([]float32, (hi-lo)*cols)
	part := m.base
	rowBytes := m.base.DType.RowBytes(cols)
	part.Shape, part.Size = []int{hi - lo, cols}, int64(hi-lo)*rowBytes
	part.ReaderAt = io.NewSectionReader(m.base, int64(lo)*rowBytes, part.Size)
	w, err := modelfile.ReadFloat32(m.path, part)
	if err != nil {
		return err
	}
	for r := lo; r < hi; r++ {
		m.row(values[(r-lo)*cols:(r-lo+1)*cols], w[(r-lo)*cols:(r-lo+1)*cols], r)
	}
	tensor.Narrow(dst, values, tensor.F32)
	return nil
}

// row writes w + scale·Σ_k B[r,k]·A[k,:], each operation rounded to float32, in the order of k.
func (m *mergedRows) row(dst, w []float32, r int) {
	cols := len(dst)
	for k, b := range m.B[r*m.Rank : (r+1)*m.Rank] {
		if b == 0 {
			continue
		}
		for c, a := range m.A[k*cols : (k+1)*cols] {
			dst[c] += float32(b * a)
		}
	}
	scale := float32(m.Scale)
	for c, v := range w {
		dst[c] = v + float32(scale*dst[c])
	}
}

// ReadAt implements io.ReaderAt over the merged matrix.
func (m *mergedRows) ReadAt(p []byte, off int64) (n int, err error) {
	row := int64(4 * m.base.Cols())
	if off < 0 || off >= m.info.Size {
		return 0, io.EOF
	}
	want := p[:min(int64(len(p)), m.info.Size-off)]
	lo, hi := off/row, (off+int64(len(want))+row-1)/row
	raw := want
	if off%row != 0 || int64(len(want)) != (hi-lo)*row {
		raw = make([]byte, (hi-lo)*row)
	}
	if err := m.rows(raw, int(lo), int(hi)); err != nil {
		return 0, err
	}
	if len(raw) != len(want) {
		copy(want, raw[off-lo*row:])
	}
	if len(want) < len(p) {
		err = io.EOF
	}
	return len(want), err
}
