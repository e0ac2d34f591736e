package ref

import "math"

// DrawMany returns for each draw u, in units of 2^−53, the first id of softmax(z/temperature) whose cumulative
// probability is above it, and the entropy of the distribution in nats, NaN if the logits have none; ids are then −1.
func DrawMany(z []float64, us []uint64, temperature float64) (ids []int, entropy float64) {
	logs := LogSoftmax(z, temperature)
	for _, l := range logs {
		if p := math.Exp(l); p != 0 { // NaN too
			entropy -= p * l
		}
	}
	for _, u := range us {
		id, sum := -1, 0.0
		for i, l := range logs {
			if sum += math.Exp(l); sum > math.Ldexp(float64(u), -53) {
				id = i
				break
			}
		}
		ids = append(ids, id)
	}
	return ids, entropy
}
