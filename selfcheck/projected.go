package selfcheck

import (
	"math"

	"apr/corpus"
	"apr/distill"
	"apr/internal/ref"
	"apr/teacher"
)

// Projected is teacher.Aligned in float64: the logits T·ln(Wᵀ·softmax(t/T)) at the positions that the teacher
// teaches. At the others it is NaN, where a step takes the student's own logits, or, with Text, the next id of the text
// alone.
func Projected(n *ref.Net, how distill.Projection, temperature float64) Teaching {
	p := how.Pair
	starts, ids, weights := p.W.Columns()
	w := ref.Of(1, len(weights), weights).V
	return func(row corpus.Batch, _, documents []int) ref.Mat {
		out := ref.New(row.SeqLen, p.W.StudentIDs)
		for i := range out.V {
			out.V[i] = math.NaN()
		}
		for i := range out.Rows {
			if !how.Text {
				break
			}
			for s := range out.Cols {
				out.Row(i)[s] = math.Inf(-1)
			}
			out.Row(i)[row.Targets[i]] = 0
		}
		var scratch []int32
		r, _, err := teacher.AlignRow(p.NewAligner(), row, &scratch, how.Fresh, how.Most)
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
