package distill

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"apr/collective"
	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/run/watch"
	"apr/teacher"
	"apr/tensor"
)

// Ranks that only teach are those behind the ones that learn. A learning rank sends the rows that it is going to train
// on, as ids, to its teaching ranks, which answer with the final hidden states of the positions that count, in the type
// of the device's activations. It multiplies them by the teacher's head, which it holds:
//
//	learning rank s of S    rows k ─▶            ─▶ rows k+1, then step k: head, loss, student
//	teaching rank t of K             body of k ─▶ hidden states of k, body of k+1 ─▶ …
//
// The loss sees what it would see if the body were on the learning rank. Teaching ranks read no data, know of no step
// and may be a step ahead; rows that the student wrote itself are ids like others.

// lesson is a question about a batch, and the answer.
type lesson struct {
	questions [][]byte // to each of the rank's teachers; nil: it has no row that counts
	counts    []int    // positions that count, of each
	direct    bool     // the answer goes from device to device
	states    []byte   // once they are there, if not direct
}

// same reports whether two lessons are about the same rows.
func (l lesson) same(as lesson) bool {
	return slices.EqualFunc(l.questions, as.questions, slices.Equal)
}

// pupil is what a learning rank has of its teaching ranks.
type pupil struct {
	comm   collective.Comm // of all ranks
	group  Group
	asked  []lesson // not yet answered, in order
	last   lesson
	waited time.Duration // for answers, since it was last read
	stop   bool          // a teaching rank wants to end
	paired bool          // the device is joined with those of the teaching ranks
	direct bool          // questions that are asked now want answers from device to device
}

// teachersOf returns which of K teaching ranks, [lo,hi), compute the rows of learning rank s of S: each learning rank
// has its own where K ≥ S, else neighbours have one in common.
func teachersOf(s, learning, teaching int) (lo, hi int) {
	lo, hi = collective.Shard(teaching, s, learning)
	return lo, max(hi, lo+1)
}

// teachers is teachersOf of learning rank s; of a split teacher it asks the first section.
func (g Group) teachers(s int) (lo, hi int) {
	if g.Split {
		return 0, 1
	}
	return teachersOf(s, g.World, g.Teachers)
}

// answers is the rank that answers learning rank s's i-th question: the one that was asked, or the section with the
// last layers.
func (g Group) answers(s, i int) int {
	if g.Split {
		return g.All() - 1
	}
	first, _ := g.teachers(s)
	return g.World + first + i
}

// shares reports whether learning ranks have a teaching rank in common that answers them.
func (g Group) shares() bool {
	if g.Split {
		return g.World > 1
	}
	return g.Teachers < g.World
}

// passes reports whether answers may go from device to device: not from a teaching rank that several learning ranks
// have in common, which until one of them receives could not answer the others.
func (p *pupil) passes() bool { return p.paired && !p.group.shares() }

// about makes the questions about the rows of b: to n teachers, rows ⌊R·i/n⌋ to ⌊R·(i+1)/n⌋ to the i-th.
func (p *pupil) about(b corpus.Batch) (l lesson) {
	lo, hi := p.group.teachers(p.group.Rank)
	for i := range hi - lo {
		from, to := collective.Shard(b.Rows, i, hi-lo)
		var text []byte
		n := 0
		if part := b.Slice(from, to); part.TargetCount() > 0 {
			text = encodeRows(part)
			n += part.TargetCount()
		}
		l.questions, l.counts = append(l.questions, text), append(l.counts, n)
	}
	return l
}

// ask asks for what the teacher says of a batch, if that is not known.
func (p *pupil) ask(b corpus.Batch) error {
	l := p.about(b)
	if len(p.asked) == 0 && l.same(p.last) {
		return nil
	}
	l.direct = p.direct
	return p.post(l)
}

func (p *pupil) post(l lesson) error {
	first, _ := p.group.teachers(p.group.Rank)
	for i, text := range l.questions {
		if text == nil {
			continue
		}
		how := byte(0)
		if l.direct {
			how = 1
		}
		if err := p.comm.Post(p.group.World+first+i, append([]byte{how}, text...)); err != nil {
			return err
		}
	}
	p.asked = append(p.asked, l)
	return nil
}

// bring is teacher.Lesson.Bring: answers come in the order of questions, and one that nobody waits for is dropped.
func (p *pupil) bring(b corpus.Batch) (h teacher.Heard, err error) {
	want := p.about(b)
	if want.same(p.last) && !p.last.direct {
		return teacher.Heard{Stored: p.last.states}, nil
	}
	for {
		if len(p.asked) == 0 {
			if err := p.post(want); err != nil {
				return h, err
			}
		}
		if err := p.hear(); err != nil {
			return h, err
		}
		switch got := p.last; {
		case got.same(want) && got.direct:
			return teacher.Heard{Receive: func(s device.Stream, dst device.Tensor) { p.receive(s, got, dst) }}, nil
		case got.same(want):
			return teacher.Heard{Stored: got.states}, nil
		case got.direct:
			return h, fault.New(fault.Invalid, "what a teaching rank passes is of other rows than those of the step").
				WithID("E-RANKS-064")
		}
	}
}

// receive copies the answer to a lesson from the teachers' devices.
func (p *pupil) receive(s device.Stream, l lesson, dst device.Tensor) {
	if e, ok := s.(device.Exchanger); ok && p.group.World > 1 {
		e.Arrive() // one communicator at a time: weights of the step before may be on their way
	}
	at := 0
	for i, n := range l.counts {
		if n > 0 {
			s.(device.Passer).Receive(p.group.answers(p.group.Rank, i), dst.RowRange(at, at+n))
		}
		at += n
	}
}

// hear waits for the answers to the first question that has none.
func (p *pupil) hear() error {
	began := time.Now()
	l := p.asked[0]
	p.asked = p.asked[1:]
	for i, text := range l.questions {
		if text == nil {
			continue
		}
		from := p.group.answers(p.group.Rank, i)
		_, x, err := p.comm.Take(from)
		if err != nil {
			return err
		}
		if len(x) == 0 {
			return fault.New(fault.Invalid, "rank %d sent an empty answer", from).WithID("E-RANKS-064")
		}
		p.stop = p.stop || x[0] == 1
		if l.states == nil {
			l.states = x[1:]
		} else {
			l.states = append(l.states, x[1:]...)
		}
	}
	p.last = l
	p.waited += time.Since(began)
	return nil
}

// readWaited returns how long answers were waited for since the last call.
func (p *pupil) readWaited() time.Duration {
	d := p.waited
	p.waited = 0
	return d
}

// dismiss lets the teaching ranks end, which rank 0 does once nobody has a question any more.
func (p *pupil) dismiss() error {
	for t := range p.group.Teachers {
		if err := p.comm.Post(p.group.World+t, nil); err != nil {
			return err
		}
	}
	return nil
}

// rowsHead are the bytes before the rows of a question: rows, positions of a row, and 1 if documents are kept apart.
const rowsHead = 4 + 4 + 1

// encodeRows encodes what a teacher needs to know of rows: ids, which positions count, where documents begin.
func encodeRows(b corpus.Batch) []byte {
	apart := byte(0)
	if b.Starts != nil {
		apart = 1
	}
	x := make([]byte, 0, rowsHead+len(b.Tokens)*9)
	x = binary.LittleEndian.AppendUint32(x, uint32(b.Rows))
	x = binary.LittleEndian.AppendUint32(x, uint32(b.SeqLen))
	x = append(x, apart)
	for _, id := range b.Tokens {
		x = binary.LittleEndian.AppendUint32(x, uint32(id))
	}
	x = append(x, b.Mask...)
	for _, at := range b.Starts {
		x = binary.LittleEndian.AppendUint32(x, uint32(at))
	}
	return x
}

// decodeRows is the inverse of encodeRows; targets are zero.
func decodeRows(x []byte) (b corpus.Batch, err error) {
	odd := fault.New(fault.Invalid, "a question of %d bytes is no rows", len(x)).WithID("E-RANKS-065")
	if len(x) < rowsHead {
		return b, odd
	}
	rows, seqLen, apart := binary.LittleEndian.Uint32(x), binary.LittleEndian.Uint32(x[4:]), x[8]
	x = x[rowsHead:]
	n := int(uint64(rows) * uint64(seqLen) & (1<<40 - 1))
	if apart > 1 || n == 0 || len(x) != n*(5+4*int(apart)) {
		return b, odd
	}
	ints := func(x []byte) []int32 {
		all := make([]int32, n)
		for i := range all {
			all[i] = int32(binary.LittleEndian.Uint32(x[4*i:]))
		}
		return all
	}
	b = corpus.Batch{Rows: int(rows), SeqLen: int(seqLen), Tokens: ints(x), Targets: make([]int32, n), Mask: x[4*n : 5*n]}
	if apart == 1 {
		b.Starts = ints(x[5*n:])
	}
	return b, nil
}

// lecturer computes a teacher's body for other ranks.
type lecturer struct {
	stream  device.Stream
	teacher *teacher.Resident
	batch   *model.Batch
	most    int // rows of a pass
	seqLen  int
	apart   bool // documents are kept apart
}

// newLecturer makes room for passes of so many rows.
func newLecturer(dev device.Device, s device.Stream, m *model.Model, rows, seqLen int, apart bool) *lecturer {
	l := &lecturer{stream: s, teacher: &teacher.Resident{Model: m, Group: teacher.GroupRows(dev.Info(), seqLen)},
		batch: model.NewBatch(dev, rows, seqLen), most: rows, seqLen: seqLen, apart: apart}
	if apart {
		l.batch.SeparateDocuments(dev)
	}
	return l
}

// states appends the final hidden states of the kept positions of b to out, in the type of the device's activations.
func (l *lecturer) states(out []byte, b corpus.Batch) ([]byte, error) {
	act, width := l.teacher.Model.Device().Info().Activations, l.teacher.Model.Config.Hidden
	for lo := 0; lo < b.Rows; lo += l.most {
		part := b.Slice(lo, min(lo+l.most, b.Rows))
		if part.TargetCount() == 0 {
			continue
		}
		l.begin(part)
		host := make([]float32, l.batch.N*width)
		if err := l.stream.Download(host, l.teacher.Final()); err != nil {
			return nil, err
		}
		l.teacher.End(l.stream)
		at := len(out)
		out = slices.Grow(out, len(host)*act.BlockBytes())[:at+len(host)*act.BlockBytes()]
		tensor.Narrow(out[at:], host, act) // exact: they are values of this type
	}
	return out, nil
}

// begin runs the body over a batch.
func (l *lecturer) begin(b corpus.Batch) {
	l.stream.SetScalars(device.Scalars{InvN: 1})
	l.batch.Load(l.stream, b, b.Rows)
	l.stream.Phase(device.PhaseTeacher)
	l.teacher.Begin(l.stream, l.batch)
}

// teach answers the questions of the learning ranks until rank 0 has no more. stopping says that this rank was asked to
// end: the learning ranks are told so, and end after their step. The watchdog judges a body, but not how long a
// learning rank takes until it receives: that rank has a watchdog of its own.
func (l *lecturer) teach(comm collective.Comm, vocab int, stopping func() bool, dog *watch.Watchdog) error {
	for n := 0; ; n++ {
		from, x, err := comm.Take(collective.Anyone)
		if err != nil || len(x) == 0 {
			return err
		}
		dog.Doing(fmt.Sprintf("lesson %d, for rank %d", n, from))
		direct := x[0] == 1
		b, err := decodeRows(x[1:])
		if err != nil {
			return err
		}
		if err := checkRows(b, from, l.seqLen, l.apart, vocab); err != nil {
			return err
		}
		if direct && b.Rows > l.most {
			return tooManyRows(from, b.Rows, l.most)
		}
		out := []byte{0}
		if stopping() {
			out[0] = 1
		}
		if direct {
			l.begin(b)
		} else if out, err = l.states(out, b); err != nil {
			return err
		}
		if err := comm.Post(from, out); err != nil {
			return err
		}
		if direct { // the learning rank knows that it can receive
			if err := l.pass(from, dog); err != nil {
				return err
			}
		}
	}
}

// pass gives what the body has left to the device of a learning rank, once it is done.
func (l *lecturer) pass(to int, dog *watch.Watchdog) error {
	err := give(l.stream, dog, to, func() error { return nil }, l.teacher.Final())
	l.teacher.End(l.stream)
	return err
}

// give passes tensors to the device of another rank, once what the stream has to do is done and that rank was told.
func give(s device.Stream, dog *watch.Watchdog, to int, tell func() error, ts ...device.Tensor) error {
	if _, err := s.Wait(context.Background()); err != nil {
		return err
	}
	if err := tell(); err != nil {
		return err
	}
	defer keepAlive(dog, fmt.Sprintf("until rank %d receives", to))()
	for _, t := range ts {
		s.(device.Passer).Pass(to, t)
	}
	_, err := s.Wait(context.Background())
	return err
}

// checkRows refuses rows that no learning rank of this run has.
func checkRows(b corpus.Batch, from, seqLen int, apart bool, vocab int) error {
	if b.SeqLen == seqLen && (b.Starts != nil) == apart &&
		!slices.ContainsFunc(b.Tokens, func(id int32) bool { return id < 0 || int(id) >= vocab }) {
		return nil
	}
	return fault.New(fault.Invalid, "rank %d asks about ids or rows that the teacher has not", from).WithID("E-RANKS-065")
}

// tooManyRows refuses rows that there is no room for, which the plan did not count.
func tooManyRows(from, rows, most int) error {
	return fault.New(fault.Invalid, "rank %d asks about %d rows at a time, more than %d", from, rows, most).
		WithID("E-RANKS-065")
}
