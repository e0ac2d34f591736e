package eval

import (
	"math"
	"slices"
)

// Audit sums up positions: means over the targets, in nats unless stated.
type Audit struct {
	Targets      int
	NatsPerToken float64
	Entropy      float64 // of the model's predictions
	ECE          float64 // of the model; see calibration

	// With a reference.
	RefNatsPerToken, RefEntropy, RefECE float64
	KL                                  Spread  // KL(reference‖model)
	Top1                                float64 // fraction of targets with the same most likely id
	Acceptance                          float64 // of speculative decoding: mean Σ min(p, q)
	Draft                               Draft
}

// DraftTokens is how many tokens Draft looks ahead.
const DraftTokens = 4

// Draft estimates what the model is worth as a draft of the reference from text that both only read. With a_t the
// probability that the token behind position t is kept (Σ min(p, q) where tokens are drawn, 1 or 0 where both are
// greedy) and r_j the mean of a_t·a_{t+1}·…·a_{t+j−1} over all runs of DraftTokens neighbouring targets,
// of which r_0 = 1:
//
//	the j-th of the proposed tokens, where those before it were kept, is kept with probability r_j/r_{j−1}
//	a pass of the reference over n proposals yields 1 + r_1 + … + r_n tokens
//
// Text of the data stands for text that the reference writes, so it is an estimate; that neighbours are easy or hard
// together is in it.
type Draft struct {
	Runs                        int       // of DraftTokens neighbouring targets; 0: nothing below is known
	Drawn, Greedy               []float64 // by place j = 1 … DraftTokens; of a place that is never reached 0
	DrawnPerPass, GreedyPerPass float64   // tokens of a pass over DraftTokens proposals
}

// draft makes the estimate. Positions are in ascending order of At where they are neighbours.
func draft(all []Position) Draft {
	var d Draft
	var drawn, greedy [DraftTokens]float64
	for i := 0; i+DraftTokens <= len(all); i++ {
		if all[i+DraftTokens-1].At-all[i].At != DraftTokens-1 {
			continue
		}
		d.Runs++
		a, g := 1.0, 1.0
		for j, p := range all[i : i+DraftTokens] {
			if a *= p.Accept; !p.Agree {
				g = 0
			}
			drawn[j], greedy[j] = drawn[j]+a, greedy[j]+g
		}
	}
	if d.Runs == 0 {
		return d
	}
	places := func(sums []float64) (all []float64, perPass float64) {
		before, n := float64(d.Runs), float64(d.Runs)
		perPass = 1
		for _, sum := range sums {
			p := 0.0
			if before > 0 {
				p = sum / before
			}
			all, perPass, before = append(all, p), perPass+sum/n, sum
		}
		return all, perPass
	}
	d.Drawn, d.DrawnPerPass = places(drawn[:])
	d.Greedy, d.GreedyPerPass = places(greedy[:])
	return d
}

// EntropyShift returns by how much the model's predictions are less certain than the reference's: H(q) − H(p).
func (a Audit) EntropyShift() float64 { return a.Entropy - a.RefEntropy }

// Spread describes a quantity over all positions. The quantile of level f is the value at rank ⌈f·n⌉ in ascending order.
type Spread struct {
	Mean, Median, P95, P99, Max float64
	MaxAt                       int // Position.At of the largest, the first of equals
}

// Summarise returns the audit of positions, of which there is at least one.
func Summarise(all []Position, withReference bool) Audit {
	n := float64(len(all))
	a := Audit{Targets: len(all)}
	own, ref := make([]Prediction, len(all)), make([]Prediction, len(all))
	kl := make([]float64, len(all))
	for i, p := range all {
		own[i], ref[i], kl[i] = p.Own, p.Ref, p.KL
		a.NatsPerToken += p.Own.CE / n
		a.Entropy += p.Own.Entropy / n
		a.RefNatsPerToken += p.Ref.CE / n
		a.RefEntropy += p.Ref.Entropy / n
		a.Acceptance += p.Accept / n
		if p.Agree {
			a.Top1++
		}
	}
	a.Top1 /= n
	a.ECE = calibration(own)
	if !withReference {
		return a
	}
	a.RefECE = calibration(ref)
	a.KL, a.Draft = spread(kl), draft(all)
	for _, p := range all {
		if p.KL == a.KL.Max {
			a.KL.MaxAt = p.At
			break
		}
	}
	return a
}

func spread(values []float64) Spread {
	v := slices.Sorted(slices.Values(values))
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	at := func(f float64) float64 { return v[int(math.Ceil(f*float64(len(v))))-1] }
	return Spread{Mean: sum / float64(len(v)), Median: at(0.5), P95: at(0.95), P99: at(0.99), Max: v[len(v)-1]}
}

// calibrationBins is the number of bins of the expected calibration error.
const calibrationBins = 15

// calibration returns the expected calibration error of most likely ids (Guo et al. 2017, arXiv:1706.04599): over 15 bins
// of equal width of Confidence, (k/15, (k+1)/15],
//
//	Σ_bins |bin|/n · |fraction right in the bin − mean confidence in the bin|
func calibration(all []Prediction) float64 {
	var count, right, confidence [calibrationBins]float64
	for _, p := range all {
		k := min(max(int(math.Ceil(p.Confidence*calibrationBins))-1, 0), calibrationBins-1)
		count[k]++
		confidence[k] += p.Confidence
		if p.Right {
			right[k]++
		}
	}
	sum := 0.0
	for k := range count {
		sum += math.Abs(right[k] - confidence[k])
	}
	return sum / float64(len(all))
}
