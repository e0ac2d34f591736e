package teacher

import (
	"cmp"
	"math"
	"runtime"
	"slices"
	"sync"

	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/teacher/cache"
	"apr/tensor"
)

// Fetcher is a Teacher that reads what it says of a batch before Begin.
type Fetcher interface {
	Teacher
	// Fetch reads what the teacher says of the rows of b, the next batch that Begin is given.
	Fetch(b corpus.Batch) error
}

// Estimator is a Teacher whose distribution is an estimate of another one.
type Estimator interface {
	// Entropy returns the sum of that other one's entropies over the kept positions of the batch, in nats; false: it
	// is not known.
	Entropy() (sum float64, known bool)
}

// Rows is what a teacher said of rows: a cache has it, or makes it when it is asked for.
type Rows interface {
	Drawn(row cache.Key) (cache.Drawn, error)
	// Hidden reads the hidden states of a row into dst, one after the other.
	Hidden(row cache.Key, dst []float32) error
}

// keys returns the keys of a batch's rows.
func keys(b corpus.Batch) (all []cache.Key) {
	for i := range b.Rows {
		r := b.Slice(i, i+1)
		all = append(all, cache.KeyOf(r.Tokens, r.Starts))
	}
	return all
}

// States is a teacher whose final hidden states are read from a cache, and whose head is on the device.
type States struct {
	Resident      // Model needs a head and no layers
	From     Rows // nil on a device that computes nothing

	values []float32 // of the kept positions of the next batch
	stored []byte    // the same as a cache has them, if that is how the device holds them; then values is empty
}

// Fetch reads the hidden states of the kept positions of b.
func (t *States) Fetch(b corpus.Batch) error {
	if t.From == nil { // a step that is run dry
		return nil
	}
	t.values, t.stored = t.values[:0], t.stored[:0]
	width := t.Model.Config.Hidden
	act := t.Model.Device().Info().Activations
	if r, ok := t.From.(*cache.Reader); ok && act != tensor.F32 && r.Header.DType == act.String() {
		return t.fetchStored(r, b, width*act.BlockBytes())
	}
	row := make([]float32, b.SeqLen*width)
	for i, k := range keys(b) {
		if err := t.From.Hidden(k, row); err != nil {
			return err
		}
		for p, m := range b.Slice(i, i+1).Mask {
			if m != 0 {
				t.values = append(t.values, row[p*width:(p+1)*width]...)
			}
		}
	}
	return nil
}

// fetchStored reads the hidden states of the kept positions of b, of so many bytes each, several rows at a time.
func (t *States) fetchStored(r *cache.Reader, b corpus.Batch, size int) error {
	t.stored = slices.Grow(t.stored, b.TargetCount()*size)[:b.TargetCount()*size]
	var wait sync.WaitGroup
	errs, free, at := make([]error, b.Rows), make(chan struct{}, runtime.GOMAXPROCS(0)), 0
	for i, k := range keys(b) {
		mask, dst := b.Slice(i, i+1).Mask, t.stored[at:]
		for _, m := range mask {
			at += size * int(m)
		}
		free <- struct{}{}
		wait.Go(func() {
			defer func() { <-free }()
			if !slices.Contains(mask, 0) {
				errs[i] = r.HiddenBytes(k, dst[:len(mask)*size])
				return
			}
			row := make([]byte, len(mask)*size)
			if errs[i] = r.HiddenBytes(k, row); errs[i] != nil {
				return
			}
			for p, m := range mask {
				if m != 0 {
					dst = dst[copy(dst, row[p*size:(p+1)*size]):]
				}
			}
		})
	}
	wait.Wait()
	return cmp.Or(errs...)
}

// Begin copies the hidden states of the kept rows to the device.
func (t *States) Begin(s device.Stream, b *model.Batch) {
	t.hidden = s.Temp("teacher.kept", device.Activations, t.Model.Device().Info().Activations, b.N, t.Model.Config.Hidden)
	if t.From == nil {
		return
	}
	if len(t.values)+len(t.stored)/t.hidden.DType.BlockBytes() != b.N*t.Model.Config.Hidden {
		panic("teacher: Begin of a batch that was not fetched")
	}
	if len(t.stored) > 0 {
		device.UploadStored(s, t.hidden, t.stored)
		return
	}
	s.Upload(t.hidden, t.values)
}

// Logits is that of Resident.
func (t *States) Logits(s device.Stream, lo, hi int, dst device.Tensor) {
	t.Resident.Logits(s, lo, hi, dst)
}

// End releases the hidden states.
func (t *States) End(s device.Stream) { t.Resident.End(s) }

// Drawn is a teacher of draws that were made before: at each position it gives the distribution count/n of the n
// draws, an unbiased estimate of softmax(t/T). It serves forward KL at that temperature, whose gradient is linear in
// it.
type Drawn struct {
	Draws       int // n
	Temperature float64
	From        Rows // nil on a device that computes nothing

	entries [][]cache.Entry // of the kept positions of the next batch
	entropy float64
	known   bool // entropy is
}

// above is the logarithm of how much likelier an id that was drawn once is than one that was not: e^−40 of all ids
// together is far below the rounding of float32, and ln(count)+40 keeps count/n to 2e-6.
const above = 40

// Fetch reads the draws of the kept positions of b.
func (t *Drawn) Fetch(b corpus.Batch) error {
	if t.From == nil { // a step that is run dry
		return nil
	}
	rows, err := t.read(keys(b))
	if err != nil {
		return err
	}
	t.entries, t.entropy, t.known = t.entries[:0], 0, true
	for i, d := range rows {
		for p, m := range b.Slice(i, i+1).Mask {
			if m == 0 {
				continue
			}
			t.entries = append(t.entries, d.Entries[d.From[p]:d.From[p+1]])
			if t.known = t.known && d.Entropy != nil; t.known {
				t.entropy += float64(d.Entropy[p])
			}
		}
	}
	return nil
}

// read reads the draws of rows: of a cache several at a time, for decoding is most of it and a step waits for it.
func (t *Drawn) read(keys []cache.Key) ([]cache.Drawn, error) {
	rows, errs, workers := make([]cache.Drawn, len(keys)), make([]error, len(keys)), 1
	if _, ok := t.From.(*cache.Reader); ok {
		workers = min(runtime.GOMAXPROCS(0), len(keys))
	}
	var wait sync.WaitGroup
	for w := range workers {
		wait.Go(func() {
			for i := w; i < len(keys); i += workers {
				rows[i], errs[i] = t.From.Drawn(keys[i])
			}
		})
	}
	wait.Wait()
	return rows, cmp.Or(errs...)
}

// Begin has nothing to compute.
func (t *Drawn) Begin(_ device.Stream, b *model.Batch) {
	if t.From != nil && len(t.entries) != b.N {
		panic("teacher: Begin of a batch that was not fetched")
	}
}

// Logits writes T·(ln(count)+above) for ids that were drawn and 0 for the others, which makes softmax(t/T) count/n.
// dst is written with the columns between its rows, as one long column of which most is zero.
func (t *Drawn) Logits(s device.Stream, lo, hi int, dst device.Tensor) {
	most := dst.Rows * t.Draws
	where := s.Temp("teacher.drawn", device.Logits, tensor.I32, most, 1)
	values := s.Temp("teacher.logits", device.Logits, tensor.F32, most, 1)
	n := most
	if t.From != nil {
		ids, logits := make([]int32, 0, most), make([]float32, 0, most)
		for r, entries := range t.entries[lo:hi] {
			for _, e := range entries {
				ids = append(ids, int32(r*dst.Stride)+e.ID)
				logits = append(logits, float32(t.Temperature*(math.Log(float64(e.Count))+above)))
			}
		}
		n = len(ids)
		s.UploadInts(where.RowRange(0, n), ids)
		s.Upload(values.RowRange(0, n), logits)
	}
	flat := dst
	flat.Rows, flat.Cols, flat.Stride = (dst.Rows-1)*dst.Stride+dst.Cols, 1, 1
	s.Scatter(flat, values.RowRange(0, n), where.RowRange(0, n))
	s.Release(values)
	s.Release(where)
}

// Loss computes the loss of rows [lo,hi) on a stream that can do without logits: see device.DrawsLoss.
func (t *Drawn) Loss(s device.Stream, lo, hi int, grad, z, targets device.Tensor, spec device.LossSpec) {
	drawn := s.Temp("teacher.drawn", device.Logits, tensor.I32, z.Rows*t.Draws, 1)
	if t.From != nil {
		ids := make([]int32, 0, drawn.Rows)
		for _, entries := range t.entries[lo:hi] {
			for _, e := range entries {
				for range e.Count {
					ids = append(ids, e.ID)
				}
			}
		}
		s.UploadInts(drawn, ids)
	}
	spec.Divergence = device.ForwardKL // or JSD with β 0, which is the same
	s.(device.DrawsLoss).LossOfDraws(grad, z, drawn, targets, t.Draws, spec)
	s.Release(drawn)
}

// HeadRows returns that Logits fills any number of columns.
func (t *Drawn) HeadRows() int { return math.MaxInt }

// End has nothing to release.
func (t *Drawn) End(device.Stream) {}

// Entropy returns the sum of the teacher's entropies at the temperature over the kept positions.
func (t *Drawn) Entropy() (sum float64, known bool) {
	return t.entropy, t.known
}

// FromCache returns the teacher that reads rows as the header of a cache describes them. Of hidden states, head is a
// model of the teacher's head. rows is nil on a device that computes nothing.
func FromCache(h cache.Header, rows Rows, head *model.Model) Fetcher {
	if h.Kind == cache.Hidden {
		return &States{Resident: Resident{Model: head}, From: rows}
	}
	return &Drawn{Draws: h.Draws, Temperature: h.Temperature, From: rows}
}

// CheckLoss refuses a loss that a cache cannot teach.
func CheckLoss(where string, r cache.Header, spec device.LossSpec) error {
	if r.Kind == cache.Hidden {
		return nil
	}
	switch beta := spec.Beta; {
	case spec.Divergence == device.ForwardKL, spec.Divergence == device.JSD && beta == 0:
	default:
		return fault.In(fault.Invalid, where, "holds draws, from which forward KL alone can be descended").At("--divergence").
			WithHint("--divergence forward-kl, or hidden states of the teacher: --cache-kind hidden").WithID("E-TEACHER-020")
	}
	if spec.Temperature != r.Temperature {
		return fault.In(fault.Invalid, where, "its draws were made at temperature %g, asked for is %g", r.Temperature,
			spec.Temperature).At("field %q", "temperature").
			WithHint("--temperature %g, or other draws", r.Temperature).WithID("E-TEACHER-021")
	}
	return nil
}
