package corpus

import "apr/internal/fault"

// Windows cut a sequence of ids into overlapping or adjoining windows for evaluation: window j holds
// ids[j·stride : j·stride+S+1] and scores those of its S targets that no earlier window scored, that is all S of
// window 0 and the last stride ones of the others. What does not fill a window is not scored.
type Windows struct {
	SeqLen, Stride int
	Documents      bool // batches say where documents begin
	ids            []int32
	mask           []uint8
	docs           []Doc
	n              int
	parts          []rowPart
	routed         bool
}

// NewWindows returns the windows over t's ids, documents being joined by their end-of-text ids. stride must be in
// 1…seqLen. A fault of kind Invalid says that no window fits.
func NewWindows(t *Tokens, seqLen, stride int) (*Windows, error) {
	if err := checkSeqLen(seqLen); err != nil {
		return nil, err
	}
	if stride < 1 || stride > seqLen {
		return nil, fault.New(fault.Usage, "stride %d is not between 1 and the window's length %d", stride, seqLen).WithID("E-CORPUS-030")
	}
	if len(t.IDs) < seqLen+1 {
		return nil, fault.New(fault.Invalid, "the data holds %s, fewer than the %d of one window",
			fault.Plural(len(t.IDs), "token"), seqLen+1).
			WithHint("use more data or a smaller --seq-len").WithID("E-CORPUS-031")
	}
	w := &Windows{SeqLen: seqLen, Stride: stride, ids: t.IDs, mask: t.Mask, docs: t.Docs, routed: t.Routes != nil}
	from := int64(0)
	for _, p := range t.routeParts() { // no window holds text of two routes
		w.parts = append(w.parts, rowPart{w.n, p.route, from})
		if n := int(p.end-from) - seqLen - 1; n >= 0 {
			w.n += n/stride + 1
		}
		from = p.end
	}
	if w.n == 0 {
		return nil, fault.New(fault.Invalid, "no route has the %d tokens of one window", seqLen+1).
			WithHint("use more data or a smaller --seq-len").WithID("E-CORPUS-031")
	}
	return w, nil
}

// Routed reports whether windows go different ways.
func (w *Windows) Routed() bool { return w.routed }

// part returns the part of window j.
func (w *Windows) part(j int) rowPart {
	at := 0
	for at+1 < len(w.parts) && w.parts[at+1].row <= j {
		at++
	}
	return w.parts[at]
}

// Len returns the number of windows.
func (w *Windows) Len() int { return w.n }

// Batch returns windows [lo,hi) as rows; its mask is 1 at the targets that count.
func (w *Windows) Batch(lo, hi int) Batch {
	b := newBatch(hi-lo, w.SeqLen)
	if w.Documents {
		b.Starts = make([]int32, len(b.Tokens))
	}
	for j := lo; j < hi; j++ {
		inputs, targets, mask := b.row(j - lo)
		p := w.part(j)
		from := int(p.id) + (j-p.row)*w.Stride
		to := from + w.SeqLen + 1
		var m []uint8
		if w.mask != nil {
			m = w.mask[from:to]
		}
		fillRow(w.ids[from:to], m, 0, inputs, targets, mask)
		if w.routed {
			b.Routes = append(b.Routes, p.route)
		}
		if j > p.row {
			clear(mask[:w.SeqLen-w.Stride])
		}
		if w.Documents {
			fillStarts(b.Starts[(j-lo)*w.SeqLen:(j-lo+1)*w.SeqLen], w.docs, int64(from))
		}
	}
	return b
}
