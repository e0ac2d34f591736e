package modelfile

import "math"

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

// EmbeddingLikeness compares the embeddings of two models of equal hidden size and of one tokenizer by rows of ids that
// both have. 0 and 0 where hidden sizes differ.
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
	if a.Config.Hidden != b.Config.Hidden {
		return 0, 0, nil
	}
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
// are; those of models that were trained from other numbers measure 0.
func MeanCosine(a, b [][]float32) float64 {
	sum, counted := 0.0, 0
	for i := range min(len(a), len(b)) {
		if c, ok := cosineOf(a[i], b[i]); ok {
			sum, counted = sum+c, counted+1
		}
	}
	return sum / float64(max(counted, 1))
}

// SameAngles returns the correlation of cos(xᵢ,xⱼ) with cos(yᵢ,yⱼ) over all i < j, x and y the rows of two
// embeddings. An order or a rotation of the hidden columns, which changes every row, changes no angle between rows.
func SameAngles(a, b [][]float32) float64 {
	var n, sx, sy, xx, yy, xy float64
	for i := range min(len(a), len(b)) {
		for j := range i {
			x, ok := cosineOf(a[i], a[j])
			y, too := cosineOf(b[i], b[j])
			if ok && too {
				n, sx, sy, xx, yy, xy = n+1, sx+x, sy+y, xx+x*x, yy+y*y, xy+x*y
			}
		}
	}
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
