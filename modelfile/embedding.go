package modelfile

import "math"

// embeddingRows is how many rows of two embeddings are compared.
const embeddingRows = 256

// EmbeddingCosine returns the mean over rows of x·y/(‖x‖·‖y‖), x and y the embeddings of one id in a and b, of ids spread over the
// vocabulary that both have; rows of zeros do not count. It is 0 where hidden sizes differ. Other orders, widths, scales and
// codes of what is inside a layer leave these rows as they are; those of models that were trained from other numbers measure 0.
func EmbeddingCosine(a, b *Files) (float64, error) {
	const name = "model.embed_tokens.weight"
	if a.Config.Hidden != b.Config.Hidden {
		return 0, nil
	}
	rows := min(a.Config.Vocab, b.Config.Vocab)
	x, y, err := readers(a, b, tensorPair{name, name, name, []int{rows, a.Config.Hidden}})
	if err != nil {
		return 0, err
	}
	sum, counted := 0.0, 0
	for i, n := 0, min(rows, embeddingRows); i < n; i++ {
		at := i * rows / n
		s, err := x.read(at, at+1)
		if err != nil {
			return 0, err
		}
		t, err := y.read(at, at+1)
		if err != nil {
			return 0, err
		}
		var dot, ss, tt float64
		for c, v := range s.values {
			w := float64(t.values[c])
			dot, ss, tt = dot+float64(v)*w, ss+float64(v)*float64(v), tt+w*w
		}
		if norm := math.Sqrt(ss) * math.Sqrt(tt); norm != 0 {
			sum, counted = sum+dot/norm, counted+1
		}
	}
	return sum / float64(max(counted, 1)), nil
}
