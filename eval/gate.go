package eval

import (
	"math"
)

// Score is one evaluation of one model: a figure that a gate judges, and the same by item, for its standard error.
type Score struct {
	Value  float64   // in the unit of the threshold: perplexity, nats, a rate
	Higher bool      // higher is better
	Items  []float64 // independent parts of the evaluation; their mean moves with Value
}

// Passes reports whether the score is on the good side of a threshold. A NaN never is.
func (s Score) Passes(threshold float64) bool {
	if s.Higher {
		return s.Value >= threshold
	}
	return s.Value <= threshold
}

// Advantage returns by how much s is better than o, item by item, as a mean and in standard errors of that mean
// (paired: both were scored on the same items). Equal differences have no spread: the errors are then +∞ for a mean above 0.
// Fewer than two items, or numbers of items that differ, have no standard error: NaN.
func (s Score) Advantage(o Score) (mean, errors float64) {
	n := len(s.Items)
	if n < 2 || n != len(o.Items) {
		return math.NaN(), math.NaN()
	}
	sign := 1.0
	if !s.Higher {
		sign = -1
	}
	diff := make([]float64, n)
	for i := range diff {
		diff[i] = sign * (s.Items[i] - o.Items[i])
		mean += diff[i]
	}
	mean /= float64(n)
	variance := 0.0
	for _, d := range diff {
		variance += (d - mean) * (d - mean) / float64(n-1)
	}
	return mean, mean / math.Sqrt(variance/float64(n))
}

// clusterSize is how many neighbouring positions count as one item: predictions of neighbours are not independent.
const clusterSize = 64

// Clusters returns the means of a quantity over neighbouring positions, 64 at a time; what is left joins the last.
func Clusters(all []Position, of func(Position) float64) []float64 {
	var out []float64
	for lo := 0; lo < len(all); {
		hi := lo + clusterSize
		if len(all)-hi < clusterSize {
			hi = len(all)
		}
		sum := 0.0
		for _, p := range all[lo:hi] {
			sum += of(p)
		}
		out = append(out, sum/float64(hi-lo))
		lo = hi
	}
	return out
}
