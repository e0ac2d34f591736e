package corpus

import (
	"math"
	"sort"

	"apr/internal/fault"
)

// Rows are the training rows over Tokens: each of SeqLen inputs and SeqLen targets. They are views, not copies.
type Rows struct {
	SeqLen    int
	NoTargets int   // rows whose targets are all masked
	Dropped   int64 // ids in no row: the tail of a packed corpus, or what truncation cut off
	Truncated int   // documents cut to SeqLen+1 ids; 0 when packed

	tok    *Tokens
	n      int
	starts []int64 // first id of each row, and the end of the last; nil: packed
	parts  []rowPart
	routes []int // of each row; nil: by part
}

// rowPart is a run of packed rows from one id on.
type rowPart struct {
	row, route int
	id         int64
}

// Pack returns the packed rows of t, where documents follow each other without padding: row i is
// ids[i(S+1) : (i+1)(S+1)], S = seqLen, and the tail is dropped. A fault of kind Invalid says that there is no row, or
// no row with a target.
func Pack(t *Tokens, seqLen int) (*Rows, error) {
	if err := checkSeqLen(seqLen); err != nil {
		return nil, err
	}
	width := seqLen + 1
	r := &Rows{SeqLen: seqLen, tok: t}
	from := int64(0)
	for _, p := range t.routeParts() {
		r.parts = append(r.parts, rowPart{r.n, p.route, from})
		r.n += int(p.end-from) / width
		r.Dropped += (p.end - from) % int64(width)
		from = p.end
	}
	if r.n == 0 {
		return nil, fault.New(fault.Invalid, "the data holds %s, fewer than the %d of one row",
			fault.Plural(len(t.IDs), "token"), width).
			WithHint("use more data, a smaller --seq-len, or --no-packing").WithID("E-CORPUS-010")
	}
	return r, r.count()
}

// OnePerRow returns rows of one document each, cut to seqLen+1 ids or padded with masked end-of-text ids.
// A fault of kind Invalid says that there is no row, or no row with a target.
func OnePerRow(t *Tokens, seqLen int) (*Rows, error) {
	if err := checkSeqLen(seqLen); err != nil {
		return nil, err
	}
	r := &Rows{SeqLen: seqLen, tok: t, n: len(t.Docs), starts: make([]int64, 1, len(t.Docs)+1)}
	if r.n == 0 {
		return nil, fault.New(fault.Invalid, "the data holds no document").WithID("E-CORPUS-011")
	}
	for i := range t.Docs {
		end := t.Docs[i].End
		if over := end - r.starts[i] - int64(seqLen+1); over > 0 {
			r.Truncated++
			r.Dropped += over
		}
		r.starts = append(r.starts, end)
		if t.Routes != nil {
			r.routes = append(r.routes, t.Routes[i])
		}
	}
	return r, r.count()
}

func checkSeqLen(seqLen int) error {
	if seqLen < 1 || seqLen > math.MaxInt32-1 {
		return fault.New(fault.Usage, "sequence length %d is not a positive 31-bit number", seqLen).WithID("E-CORPUS-012")
	}
	return nil
}

// count fills NoTargets and refuses rows that teach nothing.
func (r *Rows) count() error {
	for i := range r.n {
		if ids, mask := r.span(i); !hasTarget(ids, mask) {
			r.NoTargets++
		}
	}
	if r.NoTargets == r.n {
		return fault.New(fault.Invalid, "none of the %d rows has a target", r.n).
			WithHint("is --assistant-only on for conversations without assistant turns, or --seq-len too small to reach them?").WithID("E-CORPUS-013")
	}
	return nil
}

// hasTarget reports whether a row of ids with this mask (nil: all ones) has a target, the first id being none.
func hasTarget(ids []int32, mask []uint8) bool {
	if mask == nil {
		return len(ids) > 1
	}
	for _, m := range mask[min(1, len(mask)):] {
		if m != 0 {
			return true
		}
	}
	return false
}

// Len returns the number of rows.
func (r *Rows) Len() int { return r.n }

// span returns row i's own ids, at most SeqLen+1, and their mask, nil if all ones.
func (r *Rows) span(i int) (ids []int32, mask []uint8) {
	width := int64(r.SeqLen + 1)
	lo := r.at(i)
	hi := lo + width
	if r.starts != nil {
		lo = r.starts[i]
		hi = min(r.starts[i+1], lo+width)
	}
	if r.tok.Mask != nil {
		mask = r.tok.Mask[lo:hi]
	}
	return r.tok.IDs[lo:hi], mask
}

// part returns the part of packed row i.
func (r *Rows) part(i int) rowPart {
	at := 0
	for at+1 < len(r.parts) && r.parts[at+1].row <= i { // there are as many as there are routes
		at++
	}
	return r.parts[at]
}

// at returns the first id of packed row i.
func (r *Rows) at(i int) int64 {
	if r.starts != nil {
		return r.starts[i]
	}
	p := r.part(i)
	return p.id + int64(i-p.row)*int64(r.SeqLen+1)
}

// Routed reports whether rows go different ways.
func (r *Rows) Routed() bool { return r.tok.Routes != nil }

// Route returns which way row i goes. No row holds text of two routes.
func (r *Rows) Route(i int) int {
	if r.routes != nil {
		return r.routes[i]
	}
	return r.part(i).route
}

// Fill writes row i as inputs = row[:S], targets = row[1:] and mask (1: the target counts), each of length SeqLen.
func (r *Rows) Fill(i int, inputs, targets []int32, mask []uint8) {
	ids, m := r.span(i)
	fillRow(ids, m, r.tok.EOS, inputs, targets, mask)
}

// FillStarts writes where in row i the document of each input begins, below 0 becoming 0; padding belongs to the last one.
func (r *Rows) FillStarts(i int, starts []int32) {
	if r.starts != nil { // a document a row
		clear(starts)
		return
	}
	fillStarts(starts, r.tok.Docs, r.at(i))
}

// fillStarts writes where the document of each position begins, counted from id first of the corpus, which is position 0.
func fillStarts(starts []int32, docs []Doc, first int64) {
	at := sort.Search(len(docs), func(d int) bool { return docs[d].End > first })
	start := int32(0)
	for p := range starts {
		for ; at < len(docs) && docs[at].End <= first+int64(p); at++ {
			start = int32(docs[at].End - first)
		}
		starts[p] = start
	}
}

// fillRow shifts ids by one into inputs and targets and pads them with pad, masked.
func fillRow(ids []int32, m []uint8, pad int32, inputs, targets []int32, mask []uint8) {
	n := copy(inputs, ids)
	for i := n; i < len(inputs); i++ {
		inputs[i] = pad
	}
	n = 0
	if len(ids) > 0 {
		n = copy(targets, ids[1:])
	}
	for i := n; i < len(targets); i++ {
		targets[i], mask[i] = pad, 0
	}
	for i := range n {
		mask[i] = 1
		if m != nil {
			mask[i] = m[i+1]
		}
	}
}
