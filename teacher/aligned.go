package teacher

import (
	"math"
	"slices"
	"sort"

	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/tensor"
	"apr/tokenizer/align"
)

// Partial is a Teacher that does not teach at every position. Its Logits leaves the other rows as they are: who asks
// puts the student's logits there before, which makes divergence and gradient zero.
type Partial interface {
	Teacher
	// Align finds the positions of b, the next batch that Begin is given, at which the teacher teaches.
	Align(b corpus.Batch) error
	// Counts returns what became of the positions of the batches since the last call.
	Counts() AlignCounts
}

// AlignCounts says what became of positions whose targets count, and of text.
type AlignCounts struct {
	Targets int `json:"targets"`
	Common  int `json:"common"` // of them, those after which a token of both begins at one place
	Taught  int `json:"taught"` // of them, those whose next ids agree under W
	Bytes   int `json:"bytes"`  // of the rows' text
	Lost    int `json:"lost"`   // of them, those that no place of the teacher's covers
	// Why says for one of the lost pieces why it was lost; empty: none was.
	Why string `json:"why,omitempty"`
}

// Add adds what became of other rows.
func (c *AlignCounts) Add(o AlignCounts) {
	c.Targets, c.Common, c.Taught = c.Targets+o.Targets, c.Common+o.Common, c.Taught+o.Taught
	c.Bytes, c.Lost = c.Bytes+o.Bytes, c.Lost+o.Lost
	if c.Why == "" {
		c.Why = o.Why
	}
}

// Aligned is a teacher whose tokenizer is not the student's. It reads the text of the rows in ids of its own, and moves
// its distribution to the student's ids by the matrix W of a pair of tokenizers:
//
//	p = Wᵀ·softmax(t/T),  as logits T·ln p
//
// at the positions that align.Pair names. Elsewhere it does not teach.
type Aligned struct {
	Inner       Teacher // over ids of its own
	Device      device.Device
	Pair        *align.Pair
	Most        int // positions of a row of the teacher's: text behind them does not teach
	Temperature float64
	Apart       bool // attention and positions restart at each document
	Fresh       bool // rows begin documents
	// Text lets the text teach where the teacher does not: the next id has all of the probability. Without it these rows
	// of Logits stay as they are.
	Text bool
	Dry  bool // no text is read: every position teaches, in rows of Most positions

	aligner *align.Aligner
	batch   *model.Batch
	w       device.Projection
	next    corpus.Batch // of the teacher's ids
	aligned bool
	targets []int32 // of the kept positions of the student's batch
	taught  []int32 // of the kept positions of the student's batch, those that the teacher's kept positions belong to
	counts  AlignCounts
	ids     []int32
	rows    []int32
	sure    []float32
}

// Align aligns the rows of b.
func (t *Aligned) Align(b corpus.Batch) error {
	if t.Dry {
		return nil
	}
	if t.aligner == nil {
		t.aligner = t.Pair.NewAligner()
	}
	rows := make([][]int32, b.Rows)
	starts := make([][]int32, b.Rows)
	from := make([][]int32, b.Rows) // the teacher's positions that count
	t.taught, t.targets = t.taught[:0], t.targets[:0]
	kept, longest := int32(0), 1
	for i := range b.Rows {
		row, counts, err := AlignRow(t.aligner, b.Slice(i, i+1), &t.ids, t.Fresh, t.Most)
		if err != nil {
			return err
		}
		t.counts.Add(counts)
		for p, m := range b.Mask[i*b.SeqLen : (i+1)*b.SeqLen] {
			if m == 0 {
				continue
			}
			t.targets = append(t.targets, b.Targets[i*b.SeqLen+p])
			if p < len(row.From) && row.From[p] >= 0 {
				from[i] = append(from[i], row.From[p])
				t.taught = append(t.taught, kept)
			}
			kept++
		}
		rows[i], starts[i] = slices.Clone(row.IDs), slices.Clone(row.Starts)
		longest = max(longest, len(row.IDs))
	}
	t.next = t.fill(rows, starts, from, min(t.Most, (longest+lengthStep-1)/lengthStep*lengthStep))
	t.aligned = true
	return nil
}

// lengthStep is of what the teacher's rows are a multiple: few lengths, of which a device plans products.
const lengthStep = 32

// AlignRow aligns a batch of one row up to its last target, and counts. ids is scratch.
func AlignRow(a *align.Aligner, b corpus.Batch, ids *[]int32, fresh bool, most int) (*align.Row, AlignCounts, error) {
	var c AlignCounts
	last := -1
	for p, m := range b.Mask {
		if m != 0 {
			last = p
			c.Targets++
		}
	}
	*ids = append((*ids)[:0], b.Tokens[:last+1]...)
	if last >= 0 {
		*ids = append(*ids, b.Targets[last])
	}
	row, err := a.Align(*ids, fresh, most)
	if err != nil {
		return nil, c, err
	}
	for p, from := range row.From {
		if b.Mask[p] == 0 {
			continue
		}
		if from != align.Apart {
			c.Common++
		}
		if from >= 0 {
			c.Taught++
		}
	}
	c.Bytes, c.Lost = row.Bytes, row.LostBytes()
	if len(row.Lost) > 0 {
		c.Why = row.Lost[0].Why
	}
	return row, c, nil
}

// fill makes a batch of rows of n positions, whose targets nobody reads.
func (t *Aligned) fill(rows, starts, from [][]int32, n int) corpus.Batch {
	return fillRows(rows, starts, from, n, t.Apart)
}

// fillRows makes a batch of rows of n positions, of which those of from count; with apart it says where documents
// begin.
func fillRows(rows, starts, from [][]int32, n int, apart bool) corpus.Batch {
	all := len(rows) * n
	b := corpus.Batch{Rows: len(rows), SeqLen: n, Tokens: make([]int32, all), Targets: make([]int32, all),
		Mask: make([]uint8, all)}
	if apart {
		b.Starts = make([]int32, all)
	}
	for i, ids := range rows {
		pad := int32(0)
		if len(ids) > 0 {
			pad = ids[len(ids)-1]
		}
		for p := range n {
			b.Tokens[i*n+p] = pad
			if p < len(ids) {
				b.Tokens[i*n+p] = ids[p]
			}
			if apart && len(ids) > 0 {
				b.Starts[i*n+p] = starts[i][min(p, len(ids)-1)]
			}
		}
		for _, p := range from[i] {
			b.Mask[i*n+int(p)] = 1
		}
	}
	return b
}

// dry makes a batch for a device that computes nothing: rows of the most positions, of which as many count as of b.
func (t *Aligned) dry(b *model.Batch) {
	rows := make([][]int32, b.Tokens.Rows)
	from, starts := make([][]int32, b.Tokens.Rows), make([][]int32, b.Tokens.Rows)
	for i := range rows {
		rows[i], starts[i] = make([]int32, t.Most), make([]int32, t.Most)
	}
	t.taught, t.targets = t.taught[:0], make([]int32, b.N)
	for i := range b.N {
		row := i / t.Most
		from[row] = append(from[row], int32(i%t.Most))
		t.taught = append(t.taught, int32(i))
	}
	t.next, t.aligned = t.fill(rows, starts, from, t.Most), true
}

// Begin runs the body over the teacher's rows.
func (t *Aligned) Begin(s device.Stream, b *model.Batch) {
	if t.batch == nil {
		t.prepare(s, b.Tokens.Rows)
	}
	if t.Dry {
		t.dry(b)
	}
	if !t.aligned {
		panic("teacher: Begin of a batch that was not aligned")
	}
	t.aligned = false
	if len(t.taught) == 0 {
		return
	}
	t.batch.Load(s, t.next, t.next.Rows)
	t.Inner.Begin(s, t.batch)
}

// prepare takes the memory that lasts.
func (t *Aligned) prepare(s device.Stream, rows int) {
	t.batch = model.NewBatch(t.Device, rows, t.Most)
	if t.Apart {
		t.batch.SeparateDocuments(t.Device)
	}
	starts, ids, weights := t.Pair.W.Columns()
	ints := func(name string, v []int32) device.Tensor {
		x := t.Device.Alloc(name, device.TeacherWeights, tensor.I32, 1, len(v))
		s.UploadInts(x, v)
		return x
	}
	t.w = device.Projection{Teacher: t.Pair.W.TeacherIDs, Starts: ints("projection.starts", starts),
		IDs: ints("projection.ids", ids)}
	t.w.Weights = t.Device.Alloc("projection.weights", device.TeacherWeights, tensor.F32, 1, len(weights))
	s.Upload(t.w.Weights, weights)
}

// certain is how much larger the logit of the text's next id is than all others: e^−80 of all ids together is
// nothing.
const certain = -device.ProjectFloor

// text gives all of the probability to the next id of the text, in rows [lo,hi). dst is written with the columns
// between its rows, as one long column of which most is zero.
func (t *Aligned) text(s device.Stream, lo, hi int, dst device.Tensor) {
	where := s.Temp("logits.text", device.Logits, tensor.I32, dst.Rows, 1)
	values := s.Temp("logits.certain", device.Logits, tensor.F32, dst.Rows, 1)
	t.rows, t.sure = t.rows[:0], t.sure[:0]
	for r, id := range t.targets[lo:hi] {
		t.rows, t.sure = append(t.rows, int32(r*dst.Stride)+id), append(t.sure, float32(certain*t.Temperature))
	}
	s.UploadInts(where, t.rows)
	s.Upload(values, t.sure)
	flat := dst
	flat.Rows, flat.Cols, flat.Stride = (dst.Rows-1)*dst.Stride+dst.Cols, 1, 1
	s.Scatter(flat, values, where)
	s.Release(values)
	s.Release(where)
}

// HeadRows returns that Logits takes any number of columns: those beyond the student's ids have no logits.
func (t *Aligned) HeadRows() int { return math.MaxInt }

// ownColumns returns how many columns of the teacher's own logits are computed.
func (t *Aligned) ownColumns() int {
	head := t.w.Teacher
	if h, ok := t.Inner.(interface{ HeadRows() int }); ok {
		head = max(head, h.HeadRows())
	}
	return ProductColumns(t.Device.Info().Activations, t.w.Teacher, head)
}

// Logits writes rows [lo,hi) that the teacher teaches, and leaves the others, or lets the text teach there.
func (t *Aligned) Logits(s device.Stream, lo, hi int, dst device.Tensor) {
	if t.Text {
		t.text(s, lo, hi, dst)
	}
	first := sort.Search(len(t.taught), func(i int) bool { return int(t.taught[i]) >= lo })
	last := sort.Search(len(t.taught), func(i int) bool { return int(t.taught[i]) >= hi })
	n := last - first
	if n == 0 {
		return
	}
	t.rows = t.rows[:0]
	for _, at := range t.taught[first:last] {
		t.rows = append(t.rows, at-int32(lo))
	}
	// As many rows as dst has, whatever teaches: the same memory each time.
	all := s.Temp("logits.own", device.Logits, tensor.F32, dst.Rows, RowLength(t.w.Teacher))
	rows := s.Temp("logits.rows", device.Logits, tensor.I32, dst.Rows, 1)
	s.UploadInts(rows.RowRange(0, n), t.rows)
	more := productRows(t.Device.Info().Activations, n, min(dst.Rows, len(t.taught)-first))
	t.Inner.Logits(s, first, first+more, all.RowRange(0, more).ColRange(0, t.ownColumns()))
	own := all.RowRange(0, n).ColRange(0, t.w.Teacher)
	dst = dst.ColRange(0, t.Pair.W.StudentIDs)
	s.(device.Projector).Project(dst, own, t.w, rows.RowRange(0, n), t.Temperature)
	s.Release(rows, all)
}

// End gives the step's memory back.
func (t *Aligned) End(s device.Stream) {
	if len(t.taught) > 0 {
		t.Inner.End(s)
	}
}

// TaughtOf returns which of the first n kept positions of the batch that was aligned last are taught, ascending.
func (t *Aligned) TaughtOf(n int) []int32 {
	return t.taught[:sort.Search(len(t.taught), func(i int) bool { return int(t.taught[i]) >= n })]
}

// Counts returns what became of the positions of the batches since the last call.
func (t *Aligned) Counts() AlignCounts {
	c := t.counts
	t.counts = AlignCounts{}
	return c
}

// Free gives the memory that lasts back; the teacher must not be used afterwards.
func (t *Aligned) Free() {
	if t.batch == nil {
		return
	}
	t.batch.Free(t.Device)
	t.Device.Free(t.w.Starts, t.w.IDs, t.w.Weights)
	t.batch = nil
}

// TextTeaches reports whether the text's next id stands for a teacher that does not teach a position: it has all of the
// probability, so that the divergence is cross-entropy. That is so for forward KL at temperature 1 alone; other
// divergences and temperatures would pull the student elsewhere than cross-entropy does.
func TextTeaches(spec device.LossSpec) bool {
	forward := spec.Divergence == device.ForwardKL || spec.Divergence == device.JSD && spec.Beta == 0
	return forward && spec.Temperature == 1
}

// CheckAligned refuses a pair of tokenizers or a loss by which a teacher of another vocabulary cannot teach: kind Load
// for a model with fewer rows than its tokenizer has ids, Usage for a loss in which positions that are not taught do
// not learn, Unavailable for a divergence that a teacher's zero makes infinite.
func CheckAligned(p *align.Pair, teacherPath, studentPath string, teacherRows, studentRows int,
	spec device.LossSpec) error {
	if err := p.W.Check(p.Teacher.RealIDs(), p.Student.RealIDs()); err != nil {
		return err
	}
	for _, m := range []struct {
		path      string
		rows, ids int
	}{{teacherPath, teacherRows, p.Teacher.RealIDs()}, {studentPath, studentRows, p.Student.RealIDs()}} {
		if m.rows < m.ids {
			return fault.In(fault.Load, m.path, "has %d vocabulary rows, fewer than its tokenizer's %d ids", m.rows, m.ids).
				WithID("E-VOCAB-002")
		}
	}
	if spec.Alpha == 1 && !TextTeaches(spec) {
		return fault.New(fault.Usage, "--align project with --alpha 1: positions that the teacher cannot teach would learn "+
			"nothing").
			WithHint("an --alpha below 1 trains them by cross-entropy").WithID("E-ALIGN-012")
	}
	reverse := spec.Divergence == device.ReverseKL || spec.Divergence == device.JSD && spec.Beta == 1
	if a := p.W.Audit(); reverse && !p.W.Complete() {
		return fault.New(fault.Unavailable, "not built yet: reverse KL from a teacher with another tokenizer that gives %d "+
			"of the student's %d ids no probability",
			a.StudentIDs-a.Covered, a.StudentIDs).WithHint("--divergence forward-kl, jsd, tvd, skew-forward or skew-reverse").
			WithID("E-ALIGN-013")
	}
	return nil
}
