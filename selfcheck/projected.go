package selfcheck

import (
	"math"

	"apr/corpus"
	"apr/internal/ref"
	"apr/teacher"
	"apr/tokenizer/align"
)

// Projected is teacher.Aligned in float64: the logits T·ln(Wᵀ·softmax(t/T)) at the positions that the teacher
// teaches, and NaN at the others, where a step takes the student's own logits. most, fresh and temperature are those
// of teacher.Aligned.
func Projected(n *ref.Net, p *align.Pair, most int, fresh bool, temperature float64) Teaching {
	starts, ids, weights := p.W.Columns()
	w := ref.Of(1, len(weights), weights).V
	return func(row corpus.Batch, _, documents []int) ref.Mat {
		out := ref.New(row.SeqLen, p.W.StudentIDs)
		for i := range out.V {
			out.V[i] = math.NaN()
		}
		var scratch []int32
		r, _, err := teacher.AlignRow(p.NewAligner(), row, &scratch, fresh, most)
		if err != nil || len(r.IDs) == 0 {
			return out // a row that cannot be aligned has no run to compare with
		}
		var apart []int
		if documents != nil {
			apart = wide(r.Starts)
		}
		logits := n.ForwardDocuments(wide(r.IDs), 1, apart).Logits.ColRange(0, p.W.TeacherIDs)
		var at, from []int
		for i, j := range r.From {
			if j >= 0 {
				at, from = append(at, i), append(from, int(j))
			}
		}
		moved := ref.Project(ref.Embed(logits, from), wide(starts), wide(ids), w, temperature)
		for k, i := range at {
			copy(out.Row(i), moved.Row(k))
		}
		return out
	}
}

// wide returns ids as ints.
func wide(ids []int32) []int {
	out := make([]int, len(ids))
	for i, id := range ids {
		out[i] = int(id)
	}
	return out
}

// untaught puts the student's logits into rows of NaN, at which the teacher does not teach.
func untaught(t, z ref.Mat) {
	for r := range t.Rows {
		if math.IsNaN(t.Row(r)[0]) {
			copy(t.Row(r), z.Row(r))
		}
	}
}
