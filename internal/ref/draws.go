package ref

import "math"

// DrawsLogits returns logits of a teacher whose softmax at a temperature is the mean of n draws of each row: drawn has
// those of all rows, in any order.
func DrawsLogits(drawn []int, n, cols int, temperature float64) Mat {
	t := New(len(drawn)/n, cols)
	for i, id := range drawn {
		t.Row(i / n)[id]++
	}
	for i, count := range t.V {
		t.V[i] = temperature * math.Log(count/float64(n))
	}
	return t
}
