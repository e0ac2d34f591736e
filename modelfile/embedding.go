package modelfile

import (
	"cmp"
	"math"
	"slices"
)

// embeddingRows is how many rows of two embeddings are compared.
const embeddingRows = 256

const embeddingName = "model.embed_tokens.weight"

// EmbeddingRows returns n rows of a model's embedding, of ids spread over the first ids of its vocabulary, as float32.
func EmbeddingRows(f *Files, n, ids int) ([][]float32, error) {
	n = min(n, ids)
	at := make([]int, n)
	for i := range at {
		at[i] = i * ids / n
	}
	return embeddingRowsOf(f, at)
}

// embeddingRowsOf returns the rows of ids.
func embeddingRowsOf(f *Files, ids []int) (rows [][]float32, err error) {
	r, err := f.stretches(embeddingName)
	if err != nil {
		return nil, err
	}
	for _, at := range ids {
		s, err := r.read(at, at+1)
		if err != nil {
			return nil, err
		}
		rows = append(rows, s.values)
	}
	return rows, nil
}

// EmbeddingLikeness compares the embeddings of two models of one tokenizer by rows of ids that both have. Where hidden
// sizes differ, the cosine is 0, and angles alone are compared.
func EmbeddingLikeness(a, b *Files) (cosine, angles float64, err error) {
	return EmbeddingLikenessOf(a, b, SameIDs(min(a.Config.Vocab, b.Config.Vocab)))
}

// SameIDs pairs each of the first n ids with itself.
func SameIDs(n int) [][2]int32 {
	pairs := make([][2]int32, n)
	for i := range pairs {
		pairs[i] = [2]int32{int32(i), int32(i)}
	}
	return pairs
}

// EmbeddingLikenessOf is EmbeddingLikeness of models of two tokenizers: each pair is an id of a's and one of b's that
// stand for one token. Rows of some are compared, spread over the pairs. Without pairs both are 0.
func EmbeddingLikenessOf(a, b *Files, pairs [][2]int32) (cosine, angles float64, err error) {
	var rows [2][][]float32
	for side, f := range []*Files{a, b} {
		ids := make([]int, min(embeddingRows, len(pairs)))
		for i := range ids {
			ids[i] = int(pairs[i*len(pairs)/len(ids)][side])
		}
		var err error
		if rows[side], err = embeddingRowsOf(f, ids); err != nil {
			return 0, 0, err
		}
	}
	return MeanCosine(rows[0], rows[1]), SameAngles(rows[0], rows[1]), nil
}

// MeanCosine returns the mean over rows of x·y/(‖x‖·‖y‖), x and y the embeddings of one id in two models;
// rows of zeros do not count. Other orders, widths, scales and codes of what is inside a layer leave these rows as they
// are; those of models that were trained from other numbers measure 0, as do those of other widths.
func MeanCosine(a, b [][]float32) float64 {
	sum, counted := 0.0, 0
	for i := range min(len(a), len(b)) {
		if len(a[i]) != len(b[i]) {
			return 0
		}
		if c, ok := cosineOf(a[i], b[i]); ok {
			sum, counted = sum+c, counted+1
		}
	}
	return sum / float64(max(counted, 1))
}

// SameAngles returns the correlation of the ranks of cos(xᵢ,xⱼ) with those of cos(yᵢ,yⱼ) over all i < j, x and
// y the rows of two embeddings, of any widths. An order or a rotation of the hidden columns, which changes every row,
// changes no angle between rows; neither does a column that is there twice, or one of zeros. Ranks, since rows that
// training hardly moved stand near each other in every model, and make the cosines themselves correlate in strangers.
func SameAngles(a, b [][]float32) float64 {
	var x, y []float64
	for i := range min(len(a), len(b)) {
		for j := range i {
			of, ok := cosineOf(a[i], a[j])
			and, too := cosineOf(b[i], b[j])
			if ok && too {
				x, y = append(x, of), append(y, and)
			}
		}
	}
	return correlation(ranks(x), ranks(y))
}

// ranks returns the place of each value in ascending order, the mean of their places for equal ones.
func ranks(v []float64) []float64 {
	order := make([]int, len(v))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(v[i], v[j]) })
	out := make([]float64, len(v))
	for from := 0; from < len(order); {
		to := from + 1
		for to < len(order) && v[order[to]] == v[order[from]] {
			to++
		}
		for _, i := range order[from:to] {
			out[i] = float64(from+to-1) / 2
		}
		from = to
	}
	return out
}

// correlation returns that of the pairs (xᵢ,yᵢ); 0 where one side does not vary.
func correlation(x, y []float64) float64 {
	var sx, sy, xx, yy, xy float64
	for i := range x {
		sx, sy, xx, yy, xy = sx+x[i], sy+y[i], xx+x[i]*x[i], yy+y[i]*y[i], xy+x[i]*y[i]
	}
	n := float64(len(x))
	spread := math.Sqrt(n*xx-sx*sx) * math.Sqrt(n*yy-sy*sy)
	if !(spread > 0) {
		return 0
	}
	return (n*xy - sx*sy) / spread
}

// cosineOf returns x·y/(‖x‖·‖y‖); false: one of them is zero.
func cosineOf(x, y []float32) (float64, bool) {
	var dot, xx, yy float64
	for c, v := range x {
		w := float64(y[c])
		dot, xx, yy = dot+float64(v)*w, xx+float64(v)*float64(v), yy+w*w
	}
	norm := math.Sqrt(xx) * math.Sqrt(yy)
	return dot / norm, norm != 0
}
