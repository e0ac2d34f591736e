package cuda

import (
	"fmt"
	"slices"

	"apr/device"
	"apr/device/cuda/blas"
	"apr/device/cuda/kernel"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/tensor"
)

// A matrix in blocks stays as it is in the file. A product of many rows expands it, or as many of its rows as fit, into
// memory that all products share, and multiplies from there; a product of a few rows decodes it on the way. The memory
// of expansion is part of the plan.

// expansionMost bounds the memory in which products expand matrices: gate and up of a 7B model fit whole, a head comes in
// several slabs of rows.
const expansionMost = 288 << 20

// decodeRows is up to how many rows of x a product reads blocks as they are: it is bound by the bytes of the matrix then.
const decodeRows = 8

// layout is how the device keeps a frozen matrix.
type layout struct {
	parts      []*part
	rows, cols int
	bytes      int64
	expands    bool  // products expand it, or those of experts decode it
	host       bool  // it stays in memory of the host
	layer      int   // whose matrices come from there together; −1: it comes alone
	experts    int   // how many experts' matrices it is, of grouped products alone; 0: one matrix
	many       bool  // products of many slots expand those of experts, too: see manySlots
	fp8        bool  // and multiply in 8-bit floats
	scales     int64 // place of their scales
	act        tensor.DType
}

// layout checks what spec claims and says how the matrix is kept.
func (d *Device) layout(spec device.WeightSpec) (*layout, error) {
	l := &layout{act: d.act, fp8: spec.Form.FP8, experts: spec.Experts, layer: -1}
	l.host = spec.Form.HostExperts && spec.Experts > 0 || spec.Form.HostLayers
	if spec.Form.HostLayers {
		l.layer = spec.Layer
	}
	if l.fp8 {
		if err := d.fp8Works(); err != nil {
			return nil, err
		}
	}
	for i, src := range spec.Parts {
		p, err := describe(src, spec, i)
		if err != nil {
			return nil, err
		}
		if i > 0 && p.info.Cols() != l.cols {
			return nil, fault.New(fault.Load, "%d columns, the part before has %d", p.info.Cols(), l.cols).
				At("tensor %q", p.info.Name).WithID("E-CUDA-030")
		}
		p.first, p.as, l.cols = l.rows, d.act, p.info.Cols()
		if spec.Form.Blocks && p.inBlocks() && (l.experts == 0 || kernel.ExpertsServe(p.info.DType)) {
			p.as, l.expands = p.info.DType, true
		}
		l.rows += p.rows
		l.parts = append(l.parts, p)
	}
	for _, p := range l.parts {
		if l.expands { // each part has a place that vector loads may read; without blocks they are one matrix
			l.bytes = (l.bytes + alignment - 1) &^ (alignment - 1)
		}
		p.offset = l.bytes
		l.bytes += int64(p.rows) * p.as.RowBytes(l.cols)
	}
	if l.fp8 && !l.expands {
		l.bytes = int64(l.rows) * int64(l.cols)
	}
	if l.host {
		if err := l.notHosted(spec); err != nil {
			return nil, err
		}
	}
	l.many = l.expands && l.experts > 0 && d.serveSlots(l.rows/l.experts, l.cols, l.experts)
	if l.fp8 && l.experts > 0 && !(l.many && l.inBlocks() && kernel.ExpertsE4M3Serves(l.rows/l.experts, l.cols)) {
		what := fmt.Sprintf("experts of %d×%d %s", l.rows/l.experts, l.cols, l.parts[0].as)
		return nil, fault.New(fault.Unavailable, "%s are not multiplied in 8-bit floats", what).
			At("tensor %q", spec.Name).WithHint("--teacher-backend q4k, or without --teacher-gemm fp8").WithID("E-CUDA-063")
	}
	if l.fp8 {
		l.scales = (l.bytes + alignment - 1) &^ (alignment - 1)
		l.bytes = l.scales + 4*int64(l.rows)
	}
	return l, nil
}

// inBlocks reports whether the kernels read the part as it is stored.
func (p *part) inBlocks() bool {
	return p.size > 0 && p.info.DType.IsQuantized() && kernel.DequantizeServes(kernel.NewBlocks(0, p.rows, p.info.Cols(), p.info.DType))
}

// inBlocks reports whether all of the matrix is in blocks.
func (l *layout) inBlocks() bool {
	return l.expands && !slices.ContainsFunc(l.parts, func(p *part) bool { return !p.as.IsQuantized() })
}

// place returns where the part's rows stand in b.
func (p *part) place(b *buffer) rowsAt {
	return rowsAt{ptr: b.place.address() + uint64(p.offset), rows: p.rows, cols: p.info.Cols(), dtype: p.as}
}

// scratch returns the memory in which a product expands the matrix.
func (l *layout) scratch() int64 {
	values := int64(l.rows) * int64(l.cols)
	switch {
	case l.experts > 0 && !l.many:
		return 0
	case l.experts > 0 && l.fp8: // the matrix of one expert at least
		return fp8Rows + max(values/int64(l.experts), min(expansionMost, values))
	case l.experts > 0:
		return max(values/int64(l.experts)*int64(l.act.BlockBytes()), min(expansionMost, values*int64(l.act.BlockBytes())))
	case l.fp8 && l.expands:
		return fp8Rows + min(expansionMost, values)
	case l.fp8:
		return fp8Rows
	case l.expands:
		return min(expansionMost, int64(l.rows)*l.act.RowBytes(l.cols))
	}
	return 0
}

// keep describes for plans how Weight keeps a matrix.
func (d *Device) keep(spec device.WeightSpec) (dry.Kept, error) {
	l, err := d.layout(spec)
	if err != nil {
		return dry.Kept{}, err
	}
	k := dry.Kept{Bytes: l.bytes, Scratch: l.scratch(), Expands: l.expands && (l.experts == 0 || l.many), FP8: l.fp8}
	if l.host {
		k.Bytes, k.Host, k.Staging, k.Layered = 0, l.bytes, staging(l.bytes), l.layer >= 0
	}
	if l.many {
		k.Reads = slotsFrom(l.fp8, l.experts) - 1
	}
	if l.inBlocks() && l.experts == 0 {
		k.Reads, k.Gathers = decodeRows, len(l.parts) == 1 && gatherable(l.parts[0].as, l.cols)
		if d.tiles(l) {
			k.Arranged = kernel.TileProductRows
		}
	}
	if l.fp8 && !l.expands {
		k.Types = "e4m3"
		return k, nil
	}
	for i, p := range l.parts {
		switch name := p.as.String(); {
		case i == 0:
			k.Types = name
		case p.as != l.parts[i-1].as:
			k.Types += "+" + name
		}
	}
	return k, nil
}

// kept is rows of a matrix that products expand: blocks or, where the file has none for these rows, dense.
type kept struct {
	first  int // row of the weight
	rows   int
	blocks kernel.Blocks
	dense  kernel.Mat
}

func (p *part) kept(b *buffer) kept { return p.keptAt(p.place(b)) }

func (p *part) keptAt(at rowsAt) kept {
	k := kept{first: p.first, rows: p.rows}
	if p.as.IsQuantized() {
		k.blocks = kernel.NewBlocks(at.ptr, p.rows, at.cols, p.as)
	} else {
		k.dense = kernel.Mat{Ptr: at.ptr, Rows: p.rows, Cols: at.cols, Stride: at.cols, Type: p.as}
	}
	return k
}

// runsOf joins neighbours whose blocks, of one type, stand in memory one after the other: one launch decodes them.
func runsOf(parts []kept) (runs []kept) {
	for _, k := range parts {
		if n := len(runs); n > 0 && runs[n-1].continuesWith(k) {
			runs[n-1].rows += k.rows
			runs[n-1].blocks.Rows += k.rows
			continue
		}
		runs = append(runs, k)
	}
	return runs
}

func (k kept) continuesWith(next kept) bool {
	a, b := k.blocks, next.blocks
	return k.dense.IsZero() && next.dense.IsZero() && a.Type == b.Type && b.Ptr == a.Ptr+uint64(a.Rows*a.RowBytes)
}

// growExpansion sees to it that products can expand n bytes. With a plan the memory is there already.
func (d *Device) growExpansion(n int64) error {
	d.growMu.Lock()
	defer d.growMu.Unlock()
	if b := d.expansion.Load(); b != nil {
		if b.bytes >= n {
			return nil
		}
		d.give(b) // queued products still find it: memory stays the device's, and operations run in order
		d.expansion.Store(nil)
	}
	d.poolsMu.Lock()
	defer d.poolsMu.Unlock()
	b, err := d.takeFrom(&d.expansions, "the memory in which products expand matrices", device.Scratch, n, false)
	if err == nil {
		d.expansion.Store(b)
	}
	return err
}

// expandsHere sees to it that w can be expanded, and reports whether it can: without a plan as all matrices so far may be.
func (s *Stream) expandsHere(w *weight) bool {
	if b := s.dev.expansion.Load(); b != nil && b.bytes >= w.expands || s.failed() {
		return !s.failed()
	}
	s.dev.growMu.Lock()
	all := s.dev.expandAll
	s.dev.growMu.Unlock()
	err := s.dev.growExpansion(all)
	s.fail(err)
	return err == nil
}

// slabRows returns how many rows of a matrix are expanded at a time into size bytes: all, or equal shares of them.
func slabRows(rows int, rowBytes, size int64) int {
	const unit = 128 // what tiles of products want
	most := max(1, int(size/max(1, rowBytes)))
	if rows <= most {
		return rows
	}
	if most >= unit {
		most = most / unit * unit
	}
	n := (rows + most - 1) / most
	share := (rows + n - 1) / n
	return min(most, (share+unit-1)/unit*unit)
}

// eachSlab calls f for the rows of w that are expanded at a time.
func (d *Device) eachSlab(w *weight, rows int, f func(lo, hi int)) {
	step := slabRows(rows, d.act.RowBytes(w.t.Cols), d.expansion.Load().bytes)
	for lo := 0; lo < rows; lo += step {
		f(lo, min(lo+step, rows))
	}
}

// expand adds to the operation the expansion of rows [lo,hi) of w.
func (o *operation) expand(w *weight, lo, hi int) kernel.Mat {
	all := kernel.Mat{Ptr: o.dev.expansion.Load().place.address(), Rows: hi - lo, Cols: w.t.Cols, Stride: w.t.Cols, Type: o.dev.act}
	for _, k := range w.runs {
		first, end := max(lo, k.first), min(hi, k.first+k.rows)
		if first >= end {
			continue
		}
		dst := all
		dst.Ptr += uint64((first - lo) * all.Stride * all.Type.BlockBytes())
		dst.Rows = end - first
		if k.dense.IsZero() {
			o.expandBlocks(dst, k.blocks, first-k.first, end-k.first, w.tiled)
			continue
		}
		src := k.dense
		src.Ptr += uint64((first - k.first) * src.Stride * src.Type.BlockBytes())
		src.Rows = end - first
		kernel.Copy(o, dst, src)
	}
	return all
}

// matMulBlocks is MatMul with a matrix in blocks.
func (s *Stream) matMulBlocks(y, x device.Tensor, w *weight, bias device.Tensor, add bool) {
	if !s.expandsHere(w) {
		return
	}
	s.eachNarrow(x, func(first, end int) {
		y, x := y.RowRange(first, end), x.RowRange(first, end)
		s.dev.eachSlab(w, y.Cols, func(lo, hi int) {
			y, b := y.ColRange(lo, hi), bias
			if !b.IsZero() {
				b = b.ColRange(lo, hi)
			}
			if o := s.begin("MatMul", y, x, b); o != nil {
				o.product(blas.NT, mat(y), o.narrow(x), o.expand(w, lo, hi), b, add)
				o.end()
			}
		})
	})
}

// gathers reports whether rows of w are taken from its blocks as they are.
func (w *weight) gathers() bool {
	return len(w.parts) == 1 && w.decodes() && gatherable(w.parts[0].blocks.Type, w.t.Cols)
}

// gatherable reports whether rows of blocks can be gathered, which is done by pairs of bytes.
func gatherable(d tensor.DType, cols int) bool { return d.RowBytes(cols)%2 == 0 }

// decodes reports whether all of w is in blocks one after the other, so that a few rows can be multiplied with it as it is.
func (w *weight) decodes() bool { return !w.tiled && w.inBlocks() }

// inBlocks reports whether all of w is in blocks.
func (w *weight) inBlocks() bool {
	for _, k := range w.parts {
		if !k.dense.IsZero() {
			return false
		}
	}
	return true
}

// decode is MatMul for a few rows of x: blocks are decoded on their way into the sums.
func (s *Stream) decode(y, x device.Tensor, w *weight, bias device.Tensor, add bool) {
	o := s.begin("MatMul", y, x, bias)
	if o == nil {
		return
	}
	o.sized(y.Rows, y.Cols, x.Cols)
	s.dev.counts.products.Add(1)
	parts := w.blocks(y.Cols)
	if x.DType == tensor.BF16 {
		kernel.GemvParts(o, mat(y), mat(x), parts, mat(bias), add)
		o.end()
		return
	}
	first := 0
	for _, p := range parts {
		b, end := bias, first+p.Rows
		if !b.IsZero() {
			b = b.ColRange(first, end)
		}
		kernel.Gemv(o, mat(y.ColRange(first, end)), mat(x), p, mat(b), add)
		first = end
	}
	o.end()
}

// blocks returns the first rows of a matrix that decodes.
func (w *weight) blocks(rows int) (parts []kernel.Blocks) {
	for _, k := range w.parts {
		if k.first < rows {
			parts = append(parts, k.blocks.Slice(0, min(rows-k.first, k.rows)))
		}
	}
	return parts
}

// gateUp returns both halves of a matrix in blocks, if each lies in one part.
func (w *weight) gateUp() (gate, up kernel.Blocks, ok bool) {
	half, parts := w.t.Rows/2, w.blocks(w.t.Rows)
	if len(parts) == 1 {
		parts = []kernel.Blocks{parts[0].Slice(0, half), parts[0].Slice(half, 2*half)}
	}
	if len(parts) != 2 {
		return gate, up, false
	}
	return parts[0], parts[1], true
}

// decodeGated is MatMulGLU with SiLU for a few rows of x and reports whether one kernel serves it: gate and up are of one type.
func (s *Stream) decodeGated(m, gu, x device.Tensor, w *weight, keep bool) bool {
	if w.parts == nil || x.Rows > decodeRows || x.DType != tensor.BF16 || !w.decodes() {
		return false
	}
	if s.failed() {
		return true // tensors need not have a place
	}
	gate, up, ok := w.gateUp()
	if !ok || !kernel.GemvSwiGLUServes(mat(gu), gate, up) {
		return false
	}
	if o := s.begin("MatMulGLU", m, gu, x); o != nil {
		o.sized(gu.Rows, gu.Cols, x.Cols)
		s.dev.counts.products.Add(1)
		kernel.GemvSwiGLU(o, mat(m), mat(gu), mat(x), gate, up, keep)
		o.end()
	}
	return true
}

// inputGradBlocks is MatMulInputGrad with a matrix in blocks.
func (s *Stream) inputGradBlocks(dx, dy device.Tensor, w *weight, add bool) {
	if !s.expandsHere(w) {
		return
	}
	s.eachNarrow(dy, func(first, end int) {
		dx, dy := dx.RowRange(first, end), dy.RowRange(first, end)
		s.dev.eachSlab(w, dy.Cols, func(lo, hi int) {
			dy := dy.ColRange(lo, hi)
			if o := s.begin("MatMulInputGrad", dx, dy); o != nil {
				o.product(blas.NN, mat(dx), o.narrow(dy), o.expand(w, lo, hi), device.Tensor{}, add || lo > 0)
				o.end()
			}
		})
	})
}

// embedBlocks is Embed with a matrix in blocks: rows of blocks are gathered as they are, then decoded.
func (s *Stream) embedBlocks(dst device.Tensor, w *weight, ids device.Tensor) {
	o := s.begin("Embed", dst, ids)
	if o == nil || !s.known("Embed", ids, w.t.Rows) {
		return
	}
	if !w.gathers() { // nobody embeds by such a matrix but tests
		if !s.expandsHere(w) {
			return
		}
		limit(s.dev.expandsWhole(w), device.OpEmbed, "no rows come out of a stacked matrix that is not expanded whole")
		kernel.Embed(o, mat(dst), o.expand(w, 0, w.t.Rows), mat(ids))
		o.end()
		return
	}
	src := w.parts[0].blocks
	raw := kernel.Mat{Ptr: src.Ptr, Rows: src.Rows, Cols: src.RowBytes / 2, Stride: src.RowBytes / 2, Type: tensor.BF16}
	most := kernel.MaxScratch / max(1, src.RowBytes)
	got := raw
	got.Ptr = o.Scratch(min(most, dst.Rows) * src.RowBytes)
	for lo := 0; lo < dst.Rows; lo += most {
		hi := min(lo+most, dst.Rows)
		var part device.Tensor
		if ids.Rows == 1 {
			part = ids.ColRange(lo, hi)
		} else {
			part = ids.RowRange(lo, hi)
		}
		got.Rows = hi - lo
		kernel.Embed(o, got, raw, mat(part))
		kernel.Dequantize(o, mat(dst.RowRange(lo, hi)), kernel.NewBlocks(got.Ptr, got.Rows, src.Cols, src.Type))
	}
	o.end()
}
