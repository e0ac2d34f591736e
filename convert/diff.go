package convert

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"math"
	"path"
	"slices"
	"strings"

	"apr/internal/fault"
	"apr/quant"
	"apr/tensor"
)

// DiffOptions say what Diff compares beyond structure and bytes.
type DiffOptions struct {
	Values    bool   // measure the difference of the values of every tensor that differs
	Weights   bool   // the same, for matrices only
	RoundTrip bool   // the same, after A's tensors were converted to B's types
	Filter    string // glob of tensor names; empty: all
}

// measures reports whether values are compared.
func (o DiffOptions) measures() bool { return o.Values || o.Weights || o.RoundTrip }

// TensorDiff is the difference of one tensor that both models have. The measures are nil where they were not asked for
// or the shapes differ.
type TensorDiff struct {
	Name   string   `json:"name"`
	MaxAbs *float64 `json:"max_abs"` // max |a−b|
	RMSE   *float64 `json:"rmse"`    // √(1/n Σ(a−b)²)
	Cosine *float64 `json:"cosine"`  // Σab / √(Σa²·Σb²); 1 for two zero tensors
	DTypeA string   `json:"dtype_a"` // as the file holds it
	DTypeB string   `json:"dtype_b"`
	ShapeA []int    `json:"shape_a"`
	ShapeB []int    `json:"shape_b"`

	SameValues *bool `json:"same_values"` // whether both decode to the same values; null: not compared
}

// MetadataDiff is a property in which two models differ.
type MetadataDiff struct {
	Key string `json:"key"`
	A   any    `json:"a"`
	B   any    `json:"b"`
}

// DiffReport is the difference of two models.
type DiffReport struct {
	Identical bool           `json:"identical"` // same tensors, types, bytes and metadata
	OnlyA     []string       `json:"only_a"`
	OnlyB     []string       `json:"only_b"`
	Metadata  []MetadataDiff `json:"metadata"`
	Tensors   []TensorDiff   `json:"tensors"`  // that differ, the least similar first
	Compared  int            `json:"compared"` // tensors that both have
	Equal     int            `json:"equal"`    // of these, equal in shape, type and bytes
	Measured  int            `json:"measured"` // of the others, with measures
	Retyped   int            `json:"retyped"`  // of the others, known to hold the same values in another type

	MinCosine *float64 `json:"min_cosine"` // over the measured tensors
}

// Diff compares two models tensor by tensor. The copy of a tied head is no tensor of its own. progress gets the bytes
// of A that are done; it may be nil. Where all payloads are read, a damaged file is a fault beside the report: what is
// equal or near is then nobody's model.
func Diff(ctx context.Context, a, b *Container, opt DiffOptions, progress func(int64)) (*DiffReport, error) {
	if _, err := path.Match(opt.Filter, ""); err != nil {
		return nil, fault.New(fault.Usage, "filter %q is not a glob pattern", opt.Filter)
	}
	r := &DiffReport{Metadata: diffMetadata(a, b)}
	as, bs := a.weights(opt.Filter), b.weights(opt.Filter)
	for _, t := range bs {
		if _, ok := find(as, t.Name); !ok {
			r.OnlyB = append(r.OnlyB, t.Name)
		}
	}
	for _, ta := range as {
		tb, ok := find(bs, ta.Name)
		if !ok {
			r.OnlyA = append(r.OnlyA, ta.Name)
			continue
		}
		if err := r.compare(ctx, a, b, ta, tb, opt); err != nil {
			return nil, err
		}
		if progress != nil {
			progress(ta.Size)
		}
	}
	if r.Compared == 0 {
		return r, fault.New(fault.Invalid, "no tensor to compare: the models share none that matches").WithID("E-CONVERT-010")
	}
	r.Identical = r.Equal == r.Compared && len(r.OnlyA)+len(r.OnlyB)+len(r.Metadata) == 0
	slices.SortStableFunc(r.Tensors, func(x, y TensorDiff) int { return cmp.Compare(similarity(x), similarity(y)) })
	if opt.Filter == "" && (opt.measures() || r.Identical) { // all payloads were read
		if err := a.Verify(); err != nil {
			return r, err
		}
		return r, b.Verify()
	}
	return r, nil
}

// similarity orders differences: what could not be measured first, then by cosine.
func similarity(t TensorDiff) float64 {
	if t.Cosine == nil || math.IsNaN(*t.Cosine) {
		return math.Inf(-1)
	}
	return *t.Cosine
}

// Check returns a fault when a measured tensor is less similar than threshold, when tensors are missing or differ in
// shape, or when nothing was measured though something differs. NaN is never similar.
func (r *DiffReport) Check(threshold float64) error {
	if n := len(r.OnlyA) + len(r.OnlyB); n > 0 {
		return fault.New(fault.Invalid, "%d tensors are in one model only", n).WithID("E-CONVERT-011")
	}
	for _, t := range r.Tensors {
		if t.Cosine == nil {
			return fault.New(fault.Invalid, "shapes %v and %v differ", t.ShapeA, t.ShapeB).At("tensor %q", t.Name).WithID("E-CONVERT-012")
		}
		if !(*t.Cosine >= threshold) {
			return fault.New(fault.Invalid, "cosine %.6g is below the threshold %g", *t.Cosine, threshold).At("tensor %q", t.Name).WithID("E-CONVERT-013")
		}
	}
	return nil
}

func find(ts []tensor.Stored, name string) (tensor.Stored, bool) {
	i, ok := slices.BinarySearchFunc(ts, name, func(t tensor.Stored, n string) int { return strings.Compare(t.Name, n) })
	if !ok {
		return tensor.Stored{}, false
	}
	return ts[i], true
}

// compare adds the pair ta, tb to the report.
func (r *DiffReport) compare(ctx context.Context, a, b *Container, ta, tb tensor.Stored, opt DiffOptions) error {
	r.Compared++
	heldA, heldB := ta.Held().DType, tb.Held().DType // other than ta.DType where blocks are decoded while they are read
	d := TensorDiff{Name: ta.Name, DTypeA: heldA.String(), DTypeB: heldB.String(), ShapeA: ta.Shape, ShapeB: tb.Shape}
	if ta.Equal(tb.Info) {
		same, err := sameBytes(ctx, a.Path, b.Path, ta, tb)
		if err != nil {
			return err
		}
		if same && heldA == heldB {
			r.Equal++
			return nil
		}
		if same {
			d.SameValues = &same
		}
	}
	if opt.measures() && slices.Equal(ta.Shape, tb.Shape) {
		if opt.Weights && !opt.Values && !opt.RoundTrip && !isMatrix(ta.Info) {
			return nil
		}
		if err := d.measure(ctx, a.Path, b.Path, ta, tb, opt.RoundTrip); err != nil {
			return err
		}
		if d.SameValues == nil && !opt.RoundTrip {
			same := *d.MaxAbs == 0
			d.SameValues = &same
		}
		r.Measured++
		if r.MinCosine == nil || !(*d.Cosine >= *r.MinCosine) {
			r.MinCosine = d.Cosine
		}
	}
	if d.SameValues != nil && *d.SameValues && heldA != heldB {
		r.Retyped++
	}
	r.Tensors = append(r.Tensors, d)
	return nil
}

// sameBytes compares two payloads of equal description.
func sameBytes(ctx context.Context, pathA, pathB string, a, b tensor.Stored) (bool, error) {
	if a.Size != b.Size {
		return false, nil
	}
	const step = 1 << 20
	bufA, bufB := make([]byte, min(step, a.Size)), make([]byte, min(step, a.Size))
	for off := int64(0); off < a.Size; off += step {
		n := min(step, a.Size-off)
		if k, err := a.ReadAt(bufA[:n], off); int64(k) < n {
			return false, readFault(pathA, a.Name, off, err)
		}
		if k, err := b.ReadAt(bufB[:n], off); int64(k) < n {
			return false, readFault(pathB, b.Name, off, err)
		}
		if !bytes.Equal(bufA[:n], bufB[:n]) {
			return false, nil
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
	}
	return true, nil
}

func readFault(path, name string, off int64, err error) error {
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return fault.In(fault.IO, path, "cannot be read at offset %d", off).At("tensor %q", name).Because(err)
}

// measure decodes both tensors and accumulates in float64 in row order.
func (d *TensorDiff) measure(ctx context.Context, pathA, pathB string, a, b tensor.Stored, roundTrip bool) error {
	ra, err := newRowReader(pathA, a)
	if err != nil {
		return err
	}
	rb, err := newRowReader(pathB, b)
	if err != nil {
		return err
	}
	var maxAbs, sum, dot, na, nb float64
	var n int64
	other := make([]float32, min(a.Rows(), ra.chunk())*a.Cols())
	err = ra.each(func(lo int, x []float32) error {
		y := other[:len(x)]
		if err := rb.read(y, lo, lo+len(x)/max(1, a.Cols())); err != nil {
			return err
		}
		if roundTrip {
			if err := through(x, b.Held().DType, a.Cols()); err != nil {
				return ra.fail(fault.KindOf(err), "cannot be stored as %s", b.DType).Because(err)
			}
		}
		for i := range x {
			p, q := float64(x[i]), float64(y[i])
			diff := p - q
			if !(math.Abs(diff) <= maxAbs) { // NaN sticks
				maxAbs = math.Abs(diff)
			}
			sum += diff * diff
			dot += p * q
			na += p * p
			nb += q * q
		}
		n += int64(len(x))
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	rmse := 0.0
	if n > 0 {
		rmse = math.Sqrt(sum / float64(n))
	}
	cos := dot / math.Sqrt(na) / math.Sqrt(nb)
	if maxAbs == 0 {
		cos = 1 // equal values, also where all are zero
	} else if na == 0 || nb == 0 {
		cos = 0
	}
	d.MaxAbs, d.RMSE, d.Cosine = &maxAbs, &rmse, &cos
	return nil
}

// through replaces values by what type d makes of them.
func through(values []float32, d tensor.DType, cols int) error {
	if d.IsQuantized() && !quant.CanQuantize(d) || d == tensor.F8_E4M3 {
		return fault.New(fault.Unavailable, "values are not encoded as %s", d).WithHint("compare without a round trip")
	}
	if d.IsQuantized() && cols%d.BlockLen() != 0 {
		return fault.New(fault.Unavailable, "rows of %d values do not fill blocks of %s", cols, d)
	}
	if !d.IsQuantized() && !d.IsFloat() || d == tensor.F64 || d == tensor.F32 {
		return nil
	}
	raw, err := encodeRows(values, nil, d)
	if err != nil {
		return err
	}
	decodeRows(values, raw, d)
	return nil
}
