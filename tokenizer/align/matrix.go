package align

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"apr/internal/fault"
	"apr/tokenizer"
)

// Matrix is W [teacher's ids, student's ids], sparse: row t says to which of the student's ids the probability of the
// teacher's id t goes. A row sums to one, or it is empty: the teacher's id has no counterpart and is cut before the
// softmax, as padding is.
//
// The mass of an id goes to the first of the student's ids that its bytes are encoded to, as text that goes on; that of
// a special token goes to the student's special token of the same role.
type Matrix struct {
	TeacherIDs, StudentIDs int

	starts  []int32 // of each row, and the end of the last
	ids     []int32 // the student's
	weights []float32
	audit   Audit
}

// Audit is what W is made of.
type Audit struct {
	TeacherIDs   int      `json:"teacher_ids"`
	StudentIDs   int      `json:"student_ids"`
	Exact        int      `json:"exact"`         // teacher's ids whose bytes are one id of the student's
	Digits       int      `json:"digits"`        // teacher's ids of digits alone
	DigitsExact  int      `json:"digits_exact"`  // of them, those that are exact
	Specials     int      `json:"specials"`      // teacher's special tokens
	SpecialsRole int      `json:"specials_role"` // of them, those with a counterpart by role or name
	Empty        int      `json:"empty"`         // teacher's ids without counterpart
	Covered      int      `json:"covered"`       // student's ids that some teacher's id goes to
	Worst        []Worst  `json:"worst"`         // ids of which the smallest part arrives
	Lost         []string `json:"lost"`          // some of the ids without counterpart
}

// Worst is an id whose first student id is a small part of it.
type Worst struct {
	ID    int32   `json:"id"`
	Text  string  `json:"text"`
	First string  `json:"first"`
	Share float64 `json:"share"` // of its bytes
}

// How many ids an audit names.
const worstIDs = 8

// Line says what the audit found in one line.
func (a Audit) Line() string {
	line := fmt.Sprintf("%d of %d teacher ids are one id of the student (%.1f %%), of digits %d of %d, special tokens "+
		"by role %d of %d; %d ids have no counterpart; %d of %d student ids are covered",
		a.Exact, a.TeacherIDs, 100*float64(a.Exact)/float64(max(1, a.TeacherIDs)), a.DigitsExact, a.Digits,
		a.SpecialsRole, a.Specials, a.Empty, a.Covered, a.StudentIDs)
	var worst []string
	for _, w := range a.Worst {
		worst = append(worst, fmt.Sprintf("%q→%q", w.Text, w.First))
	}
	if len(worst) > 0 {
		line += "; worst " + strings.Join(worst, " ")
	}
	return line
}

// newMatrix builds W of a pair whose roles are known.
func newMatrix(p *Pair) *Matrix {
	w := &Matrix{TeacherIDs: p.Teacher.RealIDs(), StudentIDs: p.Student.RealIDs(), starts: make([]int32, 1,
		p.Teacher.RealIDs()+1)}
	roles := map[int32]int32{} // of the teacher's special tokens
	for pass := range 2 {      // an end of text goes before other tokens that mean the same
		for s, t := range p.counterpart {
			if _, ok := roles[t]; t != none && !ok && (pass == 1 || p.roles[s] == ends) {
				roles[t] = int32(s)
			}
		}
	}
	a, enc, covered := &w.audit, p.Student.NewEncoder(), make([]bool, w.StudentIDs)
	a.TeacherIDs, a.StudentIDs = w.TeacherIDs, w.StudentIDs
	var ids []int32
	for i := range w.TeacherIDs {
		id := int32(i)
		to, special := roles[id]
		b, _ := p.Teacher.Bytes(id)
		switch {
		case special:
			a.SpecialsRole++
			a.Specials++
			a.Exact++
		case p.Teacher.Kind(id) == tokenizer.Control || b == "":
			to = none
			if p.Teacher.Kind(id) == tokenizer.Control {
				a.Specials++
			}
		default:
			ids = enc.AppendContinuing(ids[:0], b, tokenizer.PlainText)
			to = w.take(p, id, b, ids)
		}
		if to == none {
			if a.Empty++; len(a.Lost) < worstIDs && b != "" {
				a.Lost = append(a.Lost, b)
			}
		} else {
			covered[to] = true
			w.ids, w.weights = append(w.ids, to), append(w.weights, 1)
		}
		w.starts = append(w.starts, int32(len(w.ids)))
	}
	for _, c := range covered {
		if c {
			a.Covered++
		}
	}
	return w
}

// take returns the student's id that the teacher's id of bytes b goes to, which the student's tokenizer encodes to ids,
// and counts it.
func (w *Matrix) take(p *Pair, id int32, b string, ids []int32) int32 {
	a := &w.audit
	digits := strings.Trim(b, "0123456789") == ""
	if digits {
		a.Digits++
	}
	first, k := "", 0
	for ; k < len(ids) && first == ""; k++ {
		first, _ = p.Student.Bytes(ids[k])
	}
	// the student's tokenizer changes these bytes
	if first == "" || !strings.HasPrefix(b, first) || p.roles[ids[k-1]] != text {
		return none
	}
	if first == b {
		a.Exact++
		if digits {
			a.DigitsExact++
		}
		return ids[k-1]
	}
	a.Worst = append(a.Worst, Worst{id, b, first, float64(len(first)) / float64(len(b))})
	if len(a.Worst) > 64*worstIDs {
		a.Worst = worst(a.Worst)
	}
	return ids[k-1]
}

// worst returns the worst of all, the worst first.
func worst(all []Worst) []Worst {
	slices.SortStableFunc(all, func(x, y Worst) int {
		return cmp.Or(cmp.Compare(x.Share, y.Share), cmp.Compare(x.ID,
			y.ID))
	})
	return all[:min(worstIDs, len(all))]
}

// Audit returns what W is made of.
func (w *Matrix) Audit() Audit {
	a := w.audit
	a.Worst = worst(slices.Clone(a.Worst))
	return a
}

// First returns the student's id to which most of the mass of a teacher's id goes; none if its row is empty.
func (w *Matrix) First(id int32) int32 {
	if id < 0 || int(id) >= w.TeacherIDs || w.starts[id] == w.starts[id+1] {
		return none
	}
	return w.ids[w.starts[id]]
}

// Complete reports whether every id of the student's is covered, so that no divergence meets a teacher's zero.
func (w *Matrix) Complete() bool { return w.audit.Covered == w.StudentIDs }

// Columns returns W column by column, as device.Projection reads it: entries [starts[s], starts[s+1]) are those of the
// student's id s, in order of the teacher's ids.
func (w *Matrix) Columns() (starts, ids []int32, weights []float32) {
	starts = make([]int32, w.StudentIDs+1)
	for _, s := range w.ids {
		starts[s+1]++
	}
	for s := range w.StudentIDs {
		starts[s+1] += starts[s]
	}
	next := slices.Clone(starts)
	ids, weights = make([]int32, len(w.ids)), make([]float32, len(w.ids))
	for t := range w.TeacherIDs {
		for k := w.starts[t]; k < w.starts[t+1]; k++ {
			at := next[w.ids[k]]
			ids[at], weights[at] = int32(t), w.weights[k]
			next[w.ids[k]]++
		}
	}
	return starts, ids, weights
}

// rowTolerance is how far the sum of a row may be from one.
const rowTolerance = 1e-6

// Check refuses a matrix that is not of these vocabularies, or one whose rows are neither empty nor distributions
// (fault.Invalid).
func (w *Matrix) Check(teacherIDs, studentIDs int) error {
	if w.TeacherIDs != teacherIDs || w.StudentIDs != studentIDs {
		return fault.New(fault.Invalid,
			"the projection is of %d teacher ids and %d student ids, the tokenizers have %d and %d",
			w.TeacherIDs, w.StudentIDs, teacherIDs, studentIDs).WithID("E-ALIGN-002")
	}
	for t := range w.TeacherIDs {
		sum := 0.0
		for k := w.starts[t]; k < w.starts[t+1]; k++ {
			if !(w.weights[k] > 0) {
				return fault.New(fault.Invalid, "the projection has the weight %g in the row of teacher id %d", w.weights[k], t).
					WithID("E-ALIGN-003")
			}
			sum += float64(w.weights[k])
		}
		if w.starts[t] < w.starts[t+1] && !(math.Abs(sum-1) <= rowTolerance) {
			return fault.New(fault.Invalid, "the row of teacher id %d of the projection sums to %.6g, not to 1", t, sum).
				WithID("E-ALIGN-003")
		}
	}
	return nil
}

// Encoding returns the bytes that the hash of W covers: both sizes, and of each row of the teacher's its length, ids
// and weights, in 4 bytes each, little-endian.
func (w *Matrix) Encoding() []byte {
	b := make([]byte, 0, 8+4*w.TeacherIDs+8*len(w.ids))
	put := func(v uint32) { b = binary.LittleEndian.AppendUint32(b, v) }
	put(uint32(w.TeacherIDs))
	put(uint32(w.StudentIDs))
	for t := range w.TeacherIDs {
		put(uint32(w.starts[t+1] - w.starts[t]))
		for k := w.starts[t]; k < w.starts[t+1]; k++ {
			put(uint32(w.ids[k]))
			put(math.Float32bits(w.weights[k]))
		}
	}
	return b
}

// SHA256 returns the hash of Encoding in hexadecimal digits.
func (w *Matrix) SHA256() string { return fmt.Sprintf("%x", sha256.Sum256(w.Encoding())) }
