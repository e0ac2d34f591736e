package cuda

import (
	"errors"

	"apr/device"
	"apr/device/cuda/blas"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/device/cuda/kernel/manifest"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/tensor"
)

// Products in 8-bit floats: y[i,j] = sx[i]·sw[j]·Σ x8[i,k]·w8[j,k], with e4m3 numbers whose rows are scaled so that the
// largest becomes 448. Activations are rounded for each product; a matrix once, at load, or from its blocks each time.

// fp8Rows is the memory for activations of one product in 8-bit floats; a product of more comes in pieces.
const fp8Rows = 160 << 20

// fp8Works refuses 8-bit floats where there are no kernels or no products for them.
func (d *Device) fp8Works() error {
	if d.target() == manifest.Hopper && d.gemm != nil && d.act == tensor.BF16 {
		return nil
	}
	return fault.New(fault.Unavailable, "8-bit floats need a card of compute capability 9.0, cublasLt and activations in bf16").
		WithHint("--teacher-gemm bf16 works everywhere").WithID("E-CUDA-034")
}

// fp8Matrix is a matrix of 8-bit floats, or of blocks that become such.
type fp8Matrix struct {
	bytes kernel.Bytes // of a matrix that is kept in them
	scale kernel.Mat   // float32 [rows, 1]
}

// scaleAt returns the place of the scales in the weight's memory: behind everything else.
func (l *layout) scaleAt(b *buffer) kernel.Mat {
	return kernel.Mat{Ptr: b.place.address() + uint64(l.scales), Rows: l.rows, Cols: 1, Stride: 1, Type: tensor.F32}
}

func rowsOf(m kernel.Mat, lo, hi int) kernel.Mat {
	m.Ptr += uint64(lo * m.Stride * m.Type.BlockBytes())
	m.Rows = hi - lo
	return m
}

func bytesRows(m kernel.Bytes, lo, hi int) kernel.Bytes {
	m.Ptr += uint64(lo * m.Stride)
	m.Rows = hi - lo
	return m
}

// loadFP8 reads a matrix that is kept in 8-bit floats: some rows at a time as bfloat16, which are then rounded.
func (d *Device) loadFP8(w *weight, l *layout, b *buffer) error {
	w.fp8 = &fp8Matrix{bytes: kernel.Bytes{Ptr: b.place.address(), Rows: l.rows, Cols: l.cols, Stride: l.cols}, scale: l.scaleAt(b)}
	for _, p := range l.parts {
		step := max(1, int(d.expansion.Load().bytes)/max(1, 2*l.cols))
		for lo := 0; lo < p.rows; lo += step {
			hi := min(lo+step, p.rows)
			at := rowsAt{ptr: d.expansion.Load().place.address(), from: lo, rows: hi - lo, cols: l.cols, dtype: tensor.BF16}
			if err := d.read(at, p); err != nil {
				return err
			}
			o := &operation{dev: d, stream: d.internal(), name: "the rounding of " + p.info.Name}
			x := kernel.Mat{Ptr: at.ptr, Rows: at.rows, Cols: l.cols, Stride: l.cols, Type: tensor.BF16}
			kernel.QuantizeRows(o, bytesRows(w.fp8.bytes, p.first+lo, p.first+hi), rowsOf(w.fp8.scale, p.first+lo, p.first+hi), x)
			o.end()
		}
	}
	return nil
}

// scaleBlocks finds the scales of a matrix in blocks.
func (d *Device) scaleBlocks(w *weight, l *layout, b *buffer) {
	w.fp8 = &fp8Matrix{scale: l.scaleAt(b)}
	o := &operation{dev: d, stream: d.internal(), name: "the scales of a matrix"}
	for _, k := range w.parts {
		if k.dense.IsZero() {
			kernel.RowScalesE4M3(o, rowsOf(w.fp8.scale, k.first, k.first+k.rows), k.blocks)
		}
	}
	o.end()
}

// expandFP8 adds to the operation what makes rows [lo,hi) of w 8-bit floats.
func (o *operation) expandFP8(w *weight, lo, hi int) kernel.Bytes {
	if w.parts == nil {
		return bytesRows(w.fp8.bytes, lo, hi)
	}
	all := kernel.Bytes{Ptr: o.dev.expansion.Load().place.address() + fp8Rows, Rows: hi - lo, Cols: w.t.Cols, Stride: w.t.Cols}
	for _, k := range w.runs {
		first, end := max(lo, k.first), min(hi, k.first+k.rows)
		if first >= end {
			continue
		}
		dst, scale := bytesRows(all, first-lo, end-lo), rowsOf(w.fp8.scale, first, end)
		if k.dense.IsZero() {
			kernel.DequantizeE4M3(o, dst, k.blocks.Slice(first-k.first, end-k.first), scale)
		} else {
			kernel.QuantizeRows(o, dst, scale, rowsOf(k.dense, first-k.first, end-k.first))
		}
	}
	return all
}

// fp8Slab returns how many rows of a matrix become 8-bit floats at a time; with blocks it depends on the memory.
func fp8Slab(rows, cols int, blocks bool, expansion int64) int {
	if !blocks {
		return rows
	}
	return slabRows(rows, int64(cols), expansion-fp8Rows)
}

// fp8Piece returns how many rows of activations are rounded at a time.
func fp8Piece(rows, cols int) int { return min(rows, fp8Rows/(cols+4)/16*16) }

// matMulFP8 is MatMul in 8-bit floats.
func (s *Stream) matMulFP8(y, x device.Tensor, w *weight, bias device.Tensor, add bool) {
	step := fp8Slab(y.Cols, x.Cols, w.parts != nil, s.dev.expansion.Load().bytes)
	piece := fp8Piece(x.Rows, x.Cols)
	for first := 0; first < x.Rows; first += piece {
		end := min(first+piece, x.Rows)
		o := s.begin("MatMul", y, x, bias)
		if o == nil {
			return
		}
		x8, sx := o.roundRows(x.RowRange(first, end))
		for lo := 0; lo < y.Cols; lo += step {
			hi := min(lo+step, y.Cols)
			b := bias
			if !b.IsZero() {
				b = b.ColRange(lo, hi)
			}
			c := mat(y.RowRange(first, end).ColRange(lo, hi))
			o.productFP8(c, x8, sx, o.expandFP8(w, lo, hi), rowsOf(w.fp8.scale, lo, hi), b, add)
		}
		o.end()
	}
}

// roundRows makes x 8-bit floats with a scale for each row.
func (o *operation) roundRows(x device.Tensor) (kernel.Bytes, kernel.Mat) {
	x8, scale := o.roundedAt(x, x.Cols)
	kernel.QuantizeRows(o, x8, scale, mat(x))
	return x8, scale
}

// roundGLU is roundRows of act(g)·u, gu = [g|u].
func (o *operation) roundGLU(gu device.Tensor, act device.Activation) (kernel.Bytes, kernel.Mat) {
	x8, scale := o.roundedAt(gu, gu.Cols/2)
	kernel.QuantizeGLU(o, x8, scale, mat(gu), act)
	return x8, scale
}

// roundedAt returns where rows made from x stand as 8-bit floats, and their scales.
func (o *operation) roundedAt(x device.Tensor, cols int) (kernel.Bytes, kernel.Mat) {
	limit(x.DType == tensor.BF16, device.OpMatMul, "only activations in bfloat16 become 8-bit floats")
	at := o.dev.expansion.Load().place.address()
	x8 := kernel.Bytes{Ptr: at, Rows: x.Rows, Cols: cols, Stride: cols}
	scale := kernel.Mat{Ptr: at + uint64(fp8Rows-(4*x.Rows+255)&^255), Rows: x.Rows, Cols: 1, Stride: 1, Type: tensor.F32}
	return x8, scale
}

// productFP8 adds c = a·bᵀ (+ bias) (+ c) of 8-bit floats to the operation.
func (o *operation) productFP8(c kernel.Mat, a kernel.Bytes, sa kernel.Mat, b kernel.Bytes, sb kernel.Mat, bias device.Tensor, add bool) {
	o.sized(c.Rows, c.Cols, a.Cols)
	d := o.dev
	d.counts.products.Add(1)
	given := mat(bias)
	if !bias.IsZero() && c.Type != tensor.F32 {
		given = o.narrowBias(bias, c.Type)
	}
	shape := fp8Shape(c.Rows, c.Cols, a.Cols, c.Stride, c.Type, !bias.IsZero(), add)
	o.call(func(t *driver.Thread) error {
		p, err := d.plan(t, shape)
		if errors.Is(err, blas.ErrUnsupported) {
			return noFP8(shape)
		}
		if err != nil {
			return err
		}
		return p.RunScaled(t, d.stream, c.Ptr, a.Ptr, b.Ptr, given.Ptr, sa.Ptr, sb.Ptr)
	})
}

// fp8Shape is a product of 8-bit floats whose operands have no gaps.
func fp8Shape(m, n, k, ldc int, out tensor.DType, bias, add bool) blas.Shape {
	return blas.Shape{
		Op: blas.NT, M: m, N: n, K: k, LDA: k, LDB: k, LDC: ldc, In: tensor.U8, Out: out, Compute: blas.FP8, Bias: bias, Add: add, Aligned: true,
	}
}

func noFP8(s blas.Shape) error {
	return fault.New(fault.Unavailable, "cublasLt has no product %s of 8-bit floats with a scale for each row", s.Key()).
		WithHint("a newer cublasLt may (12.9 or later), or use --teacher-gemm bf16").WithID("E-CUDA-035")
}

// fp8Shapes returns the products that a recorded one becomes.
func fp8Shapes(c dry.Count, expansion int64) (all []blas.Shape) {
	piece := fp8Piece(c.M, c.K)
	slab := fp8Slab(c.N, c.K, c.Expands, expansion)
	for _, m := range []int{piece, c.M % max(1, piece)} {
		for _, n := range []int{slab, c.N % max(1, slab)} {
			if m > 0 && n > 0 {
				all = append(all, fp8Shape(m, n, c.K, c.OutStride, c.Out, c.Bias, c.Add))
			}
		}
	}
	return all
}
