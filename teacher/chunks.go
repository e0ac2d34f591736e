package teacher

import (
	"math"
	"slices"

	"apr/corpus"
	"apr/device"
	"apr/model"
	"apr/tensor"
	"apr/tokenizer/align"
)

// Chunks is a teacher whose tokenizer is not the student's, and that says of spans of text how likely each is: it reads
// the text of the rows in ids of its own,
//
//	u = Σ_{j in the span} ln p(its token j+1 | its tokens up to j)
//
// for every span that align.Row names. It has no logits for the student's ids; see SpanLoss for what is made of u.
type Chunks struct {
	Inner  Teacher // over ids of its own
	Device device.Device
	Pair   *align.Pair
	Most   int  // positions of a row of the teacher's: spans behind them do not teach
	Rows   int  // of logits that exist at a time
	Apart  bool // attention and positions restart at each document
	Fresh  bool // rows begin documents
	Dry    bool // no text is read: every position is a span, in rows of Most positions

	// Spans of the batch that was aligned last: ranges of kept positions of the student's and of the teacher's.
	Spans []align.Span

	aligner *align.Aligner
	batch   *model.Batch
	reader  *LogProbs
	next    corpus.Batch // of the teacher's ids
	targets []int32      // of its kept positions
	counts  AlignCounts
	ids     []int32
}

// Align finds the spans of the rows of b.
func (t *Chunks) Align(b corpus.Batch) error {
	if t.Dry {
		return nil
	}
	if t.aligner == nil {
		t.aligner = t.Pair.NewAligner()
	}
	rows, starts, from := make([][]int32, b.Rows), make([][]int32, b.Rows), make([][]int32, b.Rows)
	t.Spans, t.targets = t.Spans[:0], t.targets[:0]
	kept := int32(0)
	for i := range b.Rows {
		mine := b.Slice(i, i+1)
		row, counts, err := AlignRow(t.aligner, mine, &t.ids, t.Fresh, t.Most)
		if err != nil {
			return err
		}
		place := make([]int32, b.SeqLen) // of each position among the kept ones
		for p, m := range mine.Mask {
			place[p] = kept
			kept += int32(m)
		}
		counts.Taught = 0
		for _, s := range row.Spans {
			if slices.Contains(mine.Mask[s.From:s.To], 0) {
				continue
			}
			counts.Taught += int(s.To - s.From)
			first := int32(len(t.targets))
			for j := s.TeacherFrom; j < s.TeacherTo; j++ {
				from[i] = append(from[i], j)
				t.targets = append(t.targets, row.IDs[j+1])
			}
			t.Spans = append(t.Spans, align.Span{From: place[s.From], To: place[s.From] + s.To - s.From,
				TeacherFrom: first, TeacherTo: int32(len(t.targets))})
		}
		t.counts.Add(counts)
		rows[i], starts[i] = slices.Clone(row.IDs), slices.Clone(row.Starts)
	}
	t.next = fillRows(rows, starts, from, t.Most, t.Apart)
	return nil
}

// dry makes a batch for a device that computes nothing: rows of the most positions, all of which count.
func (t *Chunks) dry(rows int) {
	ids, starts, from := make([][]int32, rows), make([][]int32, rows), make([][]int32, rows)
	for i := range rows {
		ids[i], starts[i], from[i] = make([]int32, t.Most), make([]int32, t.Most), make([]int32, t.Most)
		for j := range from[i] {
			from[i][j] = int32(j)
		}
	}
	t.next, t.targets = fillRows(ids, starts, from, t.Most, t.Apart), make([]int32, rows*t.Most)
}

// Likelihoods returns ln p of the teacher's own next tokens at its kept positions, for rows of a batch that was
// aligned. It waits for the device.
func (t *Chunks) Likelihoods(s device.Stream, rows int) ([]float32, error) {
	if t.batch == nil {
		t.batch = model.NewBatch(t.Device, rows, t.Most)
		if t.Apart {
			t.batch.SeparateDocuments(t.Device)
		}
		t.reader = NewLogProbs(t.Device, rows*t.Most)
	}
	if t.Dry {
		t.dry(rows)
	}
	if len(t.targets) == 0 {
		return nil, nil
	}
	t.batch.Load(s, t.next, t.next.Rows)
	t.Inner.Begin(s, t.batch)
	z := s.Temp("logits.own", device.Logits, tensor.F32, t.Rows, t.Pair.W.TeacherIDs)
	for lo := 0; lo < len(t.targets); lo += t.Rows {
		hi := min(lo+t.Rows, len(t.targets))
		t.Inner.Logits(s, lo, hi, z.RowRange(0, hi-lo))
		t.reader.Read(s, z.RowRange(0, hi-lo), t.targets[lo:hi], lo)
	}
	s.Release(z)
	t.Inner.End(s)
	if t.Dry {
		return nil, nil
	}
	return t.reader.Host(s, len(t.targets))
}

// Begin does nothing: what the teacher says was asked for before.
func (t *Chunks) Begin(device.Stream, *model.Batch) {}

// Logits is not to be called: there are none for the student's ids.
func (t *Chunks) Logits(device.Stream, int, int, device.Tensor) {
	panic("teacher: spans have no logits for the student's ids")
}

// End does nothing.
func (t *Chunks) End(device.Stream) {}

// Counts returns what became of the positions of the batches since the last call; those in spans are Taught.
func (t *Chunks) Counts() AlignCounts {
	c := t.counts
	t.counts = AlignCounts{}
	return c
}

// Free gives the memory that lasts back; the teacher must not be used afterwards.
func (t *Chunks) Free() {
	if t.batch != nil {
		t.batch.Free(t.Device)
		t.reader.Free()
		t.batch = nil
	}
}

// sure is the largest logarithm of a probability that is told from 1 in float32.
const sure = -0x1p-24

// SpanLoss is the divergence of two likelihoods of one span at a temperature T, the teacher's u and the student's v,
//
//	a = e^{u/T}, b = e^{v/T},  D = a·ln(a/b) + (1−a)·ln((1−a)/(1−b))
//
// as of two coins (Minixhofer et al. 2025, arXiv:2503.20083), and the weight
//
//	−∂D/∂v = (a−b)/((1−b)·T)
//
// by which the gradient q − e_y of each of the student's tokens y in the span is multiplied. A likelihood of 1 is
// taken as the next smaller one of float32.
func SpanLoss(u, v, t float64) (d, weight float64) {
	u, v = min(u/t, sure), min(v/t, sure)
	a, b, notA, notB := math.Exp(u), math.Exp(v), -math.Expm1(u), -math.Expm1(v)
	return a*(u-v) + notA*math.Log(notA/notB), (a - b) / (notB * t)
}
