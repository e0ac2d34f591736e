// Package align compares how two tokenizers cut one text: a student's, in which training rows are written, and a
// teacher's of another vocabulary.
//
// A [Pair] turns a row of the student's ids into the teacher's ids of the same text and says after which of the
// student's ids the teacher predicts the same next piece of text; its [Matrix] W says which of the student's ids a
// teacher's id stands for there.
//
// Places are counted in a virtual text: a byte of decoded text is one unit, and so is each special token (begin of
// text, end of text, a marker that both tokenizers have). Special tokens are matched by their role, or by equal text of
// two control tokens; text that looks like one is text. A teacher's token j teaches after the student's token i if
//
//	start(student, i+1) = start(teacher, j+1)  and  W(teacher id j+1) = student id i+1
//
// The first condition makes both predict what follows the same prefix. The second one keeps positions out at which the
// teacher's next token is a longer or shorter piece than the student's: W would move its probability to an id that the
// student never writes there.
//
// # Caveats
//
//   - A row that begins inside a document is encoded from there: the teacher does not see what came before, as the
//     student does not.
//   - Text that the teacher's tokenizer changes (a normal form, characters that it does not have) does not teach, and
//     neither does the rest of a document behind a special token that the teacher has no counterpart for. [Row.Lost]
//     says how many bytes that was, and why.
package align

import (
	"fmt"
	"slices"
	"strings"

	"apr/corpus"
	"apr/internal/fault"
	"apr/tokenizer"
)

// none is the counterpart of an id that has none; nowhere is the place of a token that nothing is compared with.
const (
	none    = tokenizer.None
	nowhere = int64(-1)
)

// Why a position of the student does not teach, in Row.From.
const (
	Apart   = int32(-1) // no token of the teacher's begins where the next one of the student's does
	Differs = int32(-2) // one does, and stands for another id of the student's
)

// role is what an id of the student does in a row.
type role uint8

// The roles.
const (
	text    role = iota // it stands for bytes
	ends                // it ends a document
	begins              // it begins a document
	marker              // a special token that the teacher has, too
	strange             // a special token without counterpart, or one that stands for unknown characters
)

// Pair is a student's and a teacher's tokenizer. It is safe for concurrent use; an Aligner of it is for one goroutine.
type Pair struct {
	Student, Teacher *tokenizer.Tokenizer
	W                *Matrix

	roles       []role  // by the student's id
	counterpart []int32 // by the student's id: the teacher's special token, or none
	endOfText   int32   // the teacher's
	prefixed    bool    // the student's tokenizer writes a space before a document
}

// EqualTokens pairs ids of the teacher's and of the student's tokenizer that stand for the same bytes, or for special
// tokens with the same text, in the order of the student's ids. Of several ids with the same bytes the lowest counts.
func (p *Pair) EqualTokens() (pairs [][2]int32) {
	type token struct {
		text    string
		special bool
	}
	of := func(t *tokenizer.Tokenizer, id int) (token, bool) {
		b, ok := t.Bytes(int32(id))
		return token{b, t.Kind(int32(id)) == tokenizer.Control}, ok && b != ""
	}
	theirs := map[token]int32{}
	for id := range p.Teacher.RealIDs() {
		if k, ok := of(p.Teacher, id); ok {
			if _, twice := theirs[k]; !twice {
				theirs[k] = int32(id)
			}
		}
	}
	for id := range p.Student.RealIDs() {
		if k, ok := of(p.Student, id); ok {
			if t, both := theirs[k]; both {
				pairs = append(pairs, [2]int32{t, int32(id)})
				delete(theirs, k)
			}
		}
	}
	return pairs
}

// NewPair compares two tokenizers and builds W. A tokenizer without a token that ends a document is a fault of kind
// Load.
func NewPair(student, teacher *tokenizer.Tokenizer) (*Pair, error) {
	p := &Pair{Student: student, Teacher: teacher}
	p.roles, p.counterpart = make([]role, student.RealIDs()), make([]int32, student.RealIDs())
	end, err := corpus.EndOfText(student)
	if err != nil {
		return nil, err
	}
	if p.endOfText, err = corpus.EndOfText(teacher); err != nil {
		return nil, err
	}
	for i := range p.roles {
		id := int32(i)
		p.counterpart[i] = none
		switch {
		case id == end:
			p.roles[i], p.counterpart[i] = ends, p.endOfText
		case id == student.BOS():
			p.roles[i], p.counterpart[i] = begins, teacher.BOS()
		case id == student.Unknown():
			p.roles[i] = strange
		case student.Kind(id) == tokenizer.Control:
			if p.counterpart[i] = p.special(id); p.counterpart[i] == none {
				p.roles[i] = strange
				break
			}
			p.roles[i] = marker
		}
	}
	first := student.Encode("a", tokenizer.PlainText)
	head, _ := student.AppendBytes(nil, first)
	p.prefixed = len(head) > 1 && head[0] == ' '
	p.W = newMatrix(p)
	return p, nil
}

// special returns the teacher's token for a control token of the student: that of the same role, or a control token of
// the same text; none if there is neither.
func (p *Pair) special(id int32) int32 {
	s, t := p.Student, p.Teacher
	switch {
	case id == s.EOS() && t.EOS() != none:
		return t.EOS()
	case id == s.Pad() && t.Pad() != none:
		return t.Pad()
	}
	name, _ := s.Bytes(id)
	if other, ok := t.Special(name); ok && t.Kind(other) == tokenizer.Control && other != t.Unknown() {
		return other
	}
	return none
}

// Row is a row of the student's as the teacher reads it.
type Row struct {
	IDs    []int32 // the teacher's
	Starts []int32 // where in IDs the document of each begins
	// From says for each of the student's input positions at which of IDs the teacher predicts the same next token, or
	// why the position does not teach: Apart or Differs.
	From []int32

	// Spans are pieces of the virtual text between neighbouring places at which a token of both begins.
	Spans []Span

	Bytes  int // of the row's text
	Common int // input positions after which a token of both begins at the same place
	Taught int // of them, those whose next ids agree
	// Lost are pieces of the row that do not teach at all: of Bytes, their sum is covered by no place of the teacher's.
	Lost []Loss
}

// Span is a piece of text that both tokenizers cut at both ends, and not between: the student's input positions
// [From, To) predict its tokens, and the teacher's [TeacherFrom, TeacherTo) theirs, behind the same prefix.
type Span struct{ From, To, TeacherFrom, TeacherTo int32 }

// Loss is a piece of text that does not teach.
type Loss struct {
	Bytes int
	Why   string
}

// LostBytes returns the bytes of all losses.
func (r *Row) LostBytes() (n int) {
	for _, l := range r.Lost {
		n += l.Bytes
	}
	return n
}

// Aligner aligns rows, one after the other.
type Aligner struct {
	p   *Pair
	enc *tokenizer.Encoder

	ids    []int32 // of the row
	starts []int64 // in the virtual text, of the student's tokens; −1: of none that could be predicted
	theirs []int64 // of the teacher's
	raw    []byte  // text of a segment
	at     int64   // in the virtual text
	row    Row
	doc    int32 // where in row.IDs the document begins
	fresh  bool  // the next text begins a document
	owes   bool  // the teacher's token that begins one is to come
	broken string
}

// NewAligner returns an aligner of p.
func (p *Pair) NewAligner() *Aligner { return &Aligner{p: p, enc: p.Teacher.NewEncoder()} }

// Align aligns one row: ids are the input ids and, behind them, the last target; fresh says that they begin a document,
// not the middle of one. An id outside the vocabulary is a fault of kind Invalid. The Row is valid until the next call.
// most bounds the teacher's ids, 0: nothing does.
func (a *Aligner) Align(ids []int32, fresh bool, most int) (*Row, error) {
	a.ids, a.at, a.doc, a.fresh, a.broken = ids, 0, 0, fresh, ""
	a.starts, a.theirs = a.starts[:0], a.theirs[:0]
	r := &a.row
	r.IDs, r.Starts, r.From, r.Lost, r.Spans = r.IDs[:0], r.Starts[:0], r.From[:0], r.Lost[:0], r.Spans[:0]
	r.Bytes, r.Common, r.Taught = 0, 0, 0
	a.owes = a.p.Teacher.AddBOS()
	for i := 0; i < len(ids); {
		if ids[i] < 0 || int(ids[i]) >= len(a.p.roles) {
			return nil, fault.New(fault.Invalid, "token id %d is not one of the student's %d", ids[i],
				len(a.p.roles)).At("position %d", i).WithID("E-ALIGN-001")
		}
		if a.p.roles[ids[i]] == text {
			i = a.segment(i)
			continue
		}
		a.special(ids[i])
		i++
	}
	a.match(most)
	return r, nil
}

// push appends a token of the teacher that begins at a place.
func (a *Aligner) push(id int32, at int64) {
	a.row.IDs, a.row.Starts, a.theirs = append(a.row.IDs, id), append(a.row.Starts, a.doc), append(a.theirs, at)
}

// begin begins a document as the teacher expects it.
func (a *Aligner) begin() {
	if a.owes {
		a.push(a.p.Teacher.BOS(), nowhere)
	}
	a.owes = false
}

// special goes over a special token, which is one unit of the virtual text.
func (a *Aligner) special(id int32) {
	p, mine := a.p, a.at
	switch other := p.counterpart[id]; p.roles[id] {
	case ends:
		if a.broken == "" {
			a.push(other, a.at)
		} else {
			a.push(other, nowhere)
			mine = nowhere
		}
		a.doc, a.fresh, a.broken, a.owes = int32(len(a.row.IDs)), true, "", p.Teacher.AddBOS()
	case begins:
		a.fresh = true
		if other == none { // the teacher begins without
			mine = nowhere
			break
		}
		a.push(other, a.at)
		a.owes = false
	case marker:
		a.begin()
		if a.broken != "" {
			mine = nowhere
			break
		}
		a.push(other, a.at)
	case strange:
		mine = nowhere
		name, _ := p.Student.Bytes(id)
		a.lose(len(name), fmt.Sprintf("%q has no counterpart among the teacher's special tokens", name))
	}
	a.starts = append(a.starts, mine)
	a.at++
}

// lose says that the document does not teach from here on.
func (a *Aligner) lose(n int, why string) {
	a.broken = why
	a.row.Bytes += n
	a.row.Lost = append(a.row.Lost, Loss{n, why})
}

// segment goes over text from id i on, and returns where it ends.
func (a *Aligner) segment(i int) int {
	p := a.p
	a.raw = a.raw[:0]
	from := len(a.starts)
	for ; i < len(a.ids); i++ {
		id := a.ids[i]
		if id < 0 || int(id) >= len(p.roles) || p.roles[id] != text {
			break
		}
		b, _ := p.Student.Bytes(id)
		if b == "" {
			a.starts = append(a.starts, nowhere)
			continue
		}
		a.starts = append(a.starts, a.at+int64(len(a.raw)))
		a.raw = append(a.raw, b...)
	}
	words := a.raw
	if a.fresh && p.prefixed && len(words) > 0 && words[0] == ' ' { // the space is no part of the text
		words = words[1:]
		for k := from; k < len(a.starts); k++ {
			if a.starts[k] >= 0 {
				a.starts[k] = max(a.starts[k]-1, a.at)
			}
		}
		a.single(from)
	}
	a.encode(words)
	a.at += int64(len(words))
	a.fresh = false
	return i
}

// single keeps of the student's tokens that begin at one place the last, which has bytes.
func (a *Aligner) single(from int) {
	for k := from; k+1 < len(a.starts) && a.starts[k+1] == a.starts[k]; k++ {
		a.starts[k] = nowhere
	}
}

// encode appends the teacher's ids of a segment's text.
func (a *Aligner) encode(words []byte) {
	a.begin()
	first, s := len(a.row.IDs), string(words)
	if a.fresh {
		a.row.IDs = a.enc.Append(a.row.IDs, s, tokenizer.PlainText)
	} else {
		a.row.IDs = a.enc.AppendContinuing(a.row.IDs, s, tokenizer.PlainText)
	}
	ids, total := a.row.IDs[first:], 0
	for _, id := range ids {
		b, _ := a.p.Teacher.Bytes(id)
		total += len(b)
	}
	at, why := 0, a.broken
	for k, id := range ids {
		b, _ := a.p.Teacher.Bytes(id)
		if k == 0 && a.fresh && total == len(s)+1 && strings.HasPrefix(b, " ") { // the tokenizer's own prefix
			b = b[1:]
		}
		place := a.at + int64(at)
		switch {
		case b == "" || why != "":
			place = nowhere
		case !strings.HasPrefix(s[at:], b):
			why, place = fmt.Sprintf("the teacher's tokenizer writes %q for %q", clip(b), clip(s[at:])), nowhere
		default:
			at += len(b)
		}
		a.row.Starts, a.theirs = append(a.row.Starts, a.doc), append(a.theirs, place)
	}
	a.row.Bytes += len(s)
	if at == len(s) {
		return
	}
	if why == "" {
		why = fmt.Sprintf("the teacher's tokenizer has nothing for %q", clip(s[at:]))
	}
	a.row.Lost = append(a.row.Lost, Loss{len(s) - at, why})
}

// clip shortens text for a message.
func clip(s string) string {
	if len(s) > 12 {
		return s[:12] + "…"
	}
	return s
}

// match finds for each input position of the student the position of the teacher that predicts the same token.
func (a *Aligner) match(most int) {
	r := &a.row
	whole := len(r.Lost) == 0 && (most <= 0 || len(r.IDs) <= most)
	if most > 0 && len(r.IDs) > most {
		kept := a.bytesUpTo(most)
		if n := r.Bytes - r.LostBytes() - kept; n > 0 {
			r.Lost = append(r.Lost, Loss{n, fmt.Sprintf("the teacher needs %d positions for the row, %d are there",
				len(r.IDs), most)})
		}
		r.IDs, r.Starts, a.theirs = r.IDs[:most], r.Starts[:most], a.theirs[:most]
	}
	j, before := 1, [2]int{}
	for i := 1; i < len(a.ids); i++ {
		from := Apart
		if place := a.starts[i]; place >= 0 {
			for j < len(a.theirs) && a.theirs[j] < place {
				j++
			}
			if j < len(a.theirs) && a.theirs[j] == place {
				r.Common++
				from = Differs
				a.span(&before, i, j)
				if a.p.W.First(r.IDs[j]) == a.ids[i] {
					r.Taught++
					from = int32(j - 1)
				}
			}
		}
		r.From = append(r.From, from)
	}
	if whole { // both end where the row ends
		a.span(&before, len(a.ids), len(r.IDs))
	}
}

// span adds the tokens from the last common place on, before, to those of the student's i and the teacher's j, and
// moves before there. A span with a token that stands for nothing, or stands in no text that is compared, is none.
func (a *Aligner) span(before *[2]int, i, j int) {
	from := *before
	*before = [2]int{i, j}
	if from[0] == 0 || j == from[1] || slices.Contains(a.starts[from[0]:i], nowhere) ||
		slices.Contains(a.theirs[from[1]:j], nowhere) {
		return
	}
	a.row.Spans = append(a.row.Spans, Span{int32(from[0] - 1), int32(i - 1), int32(from[1] - 1), int32(j - 1)})
}

// bytesUpTo returns the bytes of text that teach and lie before the teacher's token n.
func (a *Aligner) bytesUpTo(n int) (bytes int) {
	for j, at := range a.theirs[:n] {
		if b, _ := a.p.Teacher.Bytes(a.row.IDs[j]); at >= 0 && a.p.Teacher.Kind(a.row.IDs[j]) != tokenizer.Control {
			bytes += len(b)
		}
	}
	return bytes
}
