package modelfile

import (
	"cmp"
	"io"

	"apr/internal/fault"
	"apr/quant"
	"apr/tensor"
)

// CheckFinite refuses weights that are NaN or infinite. raw is the payload of t from byte at on: whole elements or blocks. The fault
// names the first.
func CheckFinite(path string, t tensor.Stored, raw []byte, at int64) error {
	first := -1
	switch {
	case t.DType.IsFloat():
		first = tensor.FirstNonFinite(raw, t.DType)
	case t.DType == tensor.AprQ8 && at > 0: // its scale comes before
	case t.DType.IsQuantized():
		first = quant.FirstNonFinite(raw, t.DType)
	}
	if first < 0 {
		return nil
	}
	i := firstIn(t, at, int64(first))
	if t.DType == tensor.MXFP4 {
		return notFiniteMXFP4(path, t, i, raw[first/t.DType.BlockLen()*t.DType.BlockBytes()])
	}
	return NotFinite(path, t, i)
}

// NotFinite is the fault of a tensor whose element i is NaN or infinite.
func NotFinite(path string, t tensor.Stored, i int64) error {
	cols := int64(max(1, t.Cols()))
	return fault.In(fault.Format, path, "value %d (row %d, column %d) is NaN or infinite", i, i/cols, i%cols).At("tensor %q", t.Name).
		WithHint("weights must be finite; `apr validate` counts the values that are not").WithID("E-MODEL-007")
}

// indexAt returns the index of the element that begins at byte at of the payload of t; blocks may be padded at the end of a row.
func indexAt(t tensor.Stored, at int64) int64 {
	cols, size, length := int64(t.Cols()), int64(max(1, t.DType.BlockBytes())), int64(max(1, t.DType.BlockLen()))
	if row := t.DType.RowBytes(t.Cols()); row > 0 && int64(t.Rows())*row == t.Size {
		return at/row*cols + at%row/size*length
	}
	return at / size * length
}

// firstIn moves an index within a piece that begins at byte at to the tensor, over the padding of the rows between.
func firstIn(t tensor.Stored, at, first int64) int64 {
	size, length := int64(max(1, t.DType.BlockBytes())), int64(max(1, t.DType.BlockLen()))
	return indexAt(t, at+first/length*size) + first%length
}

// eachPiece calls f with the payload of t, in pieces of whole elements or blocks, in order.
func eachPiece(path string, t tensor.Stored, f func(raw []byte, at int64) error) error {
	const size = 1 << 20
	block := int64(max(1, t.DType.BlockBytes()))
	buf := make([]byte, max(1, min(t.Size, size/block*block)))
	for at := int64(0); at < t.Size; {
		raw := buf[:min(int64(len(buf)), t.Size-at)]
		if n, err := t.ReadAt(raw, at); n < len(raw) {
			return unreadable(path, t, err)
		}
		if err := f(raw, at); err != nil {
			return err
		}
		at += int64(len(raw))
	}
	return nil
}

// Copy writes the payload of t to w, and looks at it; a value that is not finite is a fault.
func (n *Content) Copy(w io.Writer, t tensor.Stored) error {
	bad, err := n.copy(w, t)
	return cmp.Or(err, bad)
}

// copy writes the payload of t to w, and looks at it meanwhile. All of t is read and written before it says what is not
// finite: then damage, which explains such values, is found first.
func (n *Content) copy(w io.Writer, t tensor.Stored) (bad, err error) {
	found := make(chan error, 1)
	err = eachPiece(n.c.Path, t, func(raw []byte, at int64) error {
		go func() { found <- n.Look(t, raw, at) }()
		_, err := w.Write(raw)
		if b := <-found; bad == nil {
			bad = b
		}
		return err
	})
	return bad, err
}
