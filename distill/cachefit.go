package distill

import (
	"math"
	"runtime"
	"slices"
	"sync"

	"apr/internal/fault"
	"apr/teacher/cache"
)

// Limits of a goodness of fit. Other arithmetic moves a distribution a little, and enough draws would show it: that
// much is allowed. A standard score beyond 5 is met by chance once in two million.
const (
	maxScore      = 5.0
	maxDivergence = 0.02 // chi-square divergence of a position: about twice the KL divergence in nats
	maxShift      = 0.02 // nats of the mean log-probability of a draw
	maxError      = 0.05 // of hidden states: the root of the mean squared difference over that of the values
	cells         = 8    // of a position's chi-square, at most
)

// Fit compares draws with the distribution that they should be from. The estimates have mean 0 if they are from it;
// the scores say by how many standard errors the estimates are beyond what other arithmetic may cost.
type Fit struct {
	Divergence      float64 `json:"chi_square_divergence"` // of the distribution that was drawn from, by counts in cells of neighbouring ids
	DivergenceScore float64 `json:"chi_square_score"`
	Shift           float64 `json:"log_probability_shift"` // nats of a draw
	ShiftScore      float64 `json:"log_probability_score"`
}

// fitOf judges sums over positions of n draws each.
func fitOf(chi, likelihood tally, positions, n int) *Fit {
	draws := float64(positions) * float64(n)
	divergence, shift := (chi.sum-chi.mean)/draws, (likelihood.sum-likelihood.mean)/draws
	return &Fit{divergence, score(divergence-maxDivergence, chi.variance, draws), shift, score(math.Abs(shift)-maxShift, likelihood.variance, draws)}
}

// score is an excess of a mean over n in standard errors.
func score(excess, variance, n float64) float64 {
	if variance == 0 && excess <= 0 {
		return 0 // nothing can vary, and nothing differs
	}
	return max(-1e9, min(excess*n/math.Sqrt(variance), 1e9))
}

// ok reports whether the draws may be from the distribution.
func (f Fit) ok() bool { return f.DivergenceScore <= maxScore && f.ShiftScore <= maxScore }

// tally is a sum of statistics with the mean and the variance that it should have.
type tally struct{ sum, mean, variance float64 }

func (m *tally) add(o tally) {
	m.sum, m.mean, m.variance = m.sum+o.sum, m.mean+o.mean, m.variance+o.variance
}

// fitter judges the draws of one position after the other. It may be used by one goroutine at a time.
type fitter struct {
	temperature      float64
	probs            []float64
	chi, likelihoods tally
}

// add takes the n draws at a position into account. With p = softmax(t/T) and c the counts, it sums
//
//	S  = Σ c·ln p          mean n·Σ p·ln p, variance n·(Σ p·ln²p − (Σ p·ln p)²)
//	X² = Σ (c_k − n·p_k)²/(n·p_k) over k cells of neighbouring ids, each of at least an eighth of the mass
//	                       mean k−1, variance 2(k−1) + (Σ 1/p_k − k² − 2k + 2)/n   (Haldane 1937)
func (f *fitter) add(logits []float32, drawn []cache.Entry, n int) {
	top := float64(slices.Max(logits))
	f.probs = f.probs[:0]
	sum := 0.0
	for _, t := range logits {
		w := math.Exp((float64(t) - top) / f.temperature)
		f.probs, sum = append(f.probs, w), sum+w
	}
	logSum := math.Log(sum)
	logP := func(id int) float64 { return (float64(logits[id])-top)/f.temperature - logSum }
	one, two := 0.0, 0.0
	for i := range f.probs {
		if f.probs[i] /= sum; f.probs[i] > 0 {
			l := logP(i)
			one, two = one+f.probs[i]*l, two+f.probs[i]*l*l
		}
	}
	s := tally{0, float64(n) * one, float64(n) * max(two-one*one, 0)}
	for _, e := range drawn {
		s.sum += float64(e.Count) * logP(int(e.ID))
	}
	f.likelihoods.add(s)
	f.chi.add(chiSquare(f.probs, drawn, float64(n)))
}

// chiSquare is X² of one position, with its mean and variance.
func chiSquare(p []float64, drawn []cache.Entry, n float64) (m tally) {
	mass, count, k, inverse, at := 0.0, 0.0, 0, 0.0, 0
	left := 1.0
	for i := range p {
		mass += p[i]
		if at < len(drawn) && int(drawn[at].ID) == i {
			count += float64(drawn[at].Count)
			at++
		}
		if last := i == len(p)-1; last || mass >= 1.0/cells && left-mass >= 1.0/cells {
			if last {
				mass = left // what rounding has left over
			}
			m.sum += (count - n*mass) * (count - n*mass) / (n * mass)
			k, inverse, left = k+1, inverse+1/mass, left-mass
			mass, count = 0, 0
		}
	}
	m.mean = float64(k - 1)
	m.variance = max(2*m.mean+(inverse-float64(k*k)-2*float64(k)+2)/n, 0)
	if k == 1 {
		return tally{}
	}
	return m
}

// fitRows judges the draws of the rows of the pass.
func (p *precomputation) fitRows(r *cache.Reader, keys []cache.Key, chi, likelihood *tally) error {
	h := p.header
	rows := make([]cache.Drawn, len(keys))
	for i, k := range keys {
		var err error
		if rows[i], err = r.Drawn(k); err != nil {
			return err
		}
	}
	workers := make([]fitter, min(runtime.GOMAXPROCS(0), h.ChunkRows))
	return p.eachLogits(len(keys)*h.SeqLen, func(lo, hi int, host []float32) {
		var wait sync.WaitGroup
		for w := range workers {
			wait.Go(func() {
				f := &workers[w]
				*f = fitter{temperature: h.Temperature, probs: f.probs}
				for at := lo + w; at < hi; at += len(workers) {
					d, pos := rows[at/h.SeqLen], at%h.SeqLen
					f.add(host[(at-lo)*h.Vocab:(at-lo+1)*h.Vocab], d.Entries[d.From[pos]:d.From[pos+1]], h.Draws)
				}
			})
		}
		wait.Wait()
		for w := range workers {
			chi.add(workers[w].chi)
			likelihood.add(workers[w].likelihoods)
		}
	})
}

// errorOfRows sums the squares of the differences of hidden states, and those of the values.
func (p *precomputation) errorOfRows(r *cache.Reader, keys []cache.Key, difference, size *float64) error {
	n := p.header.SeqLen * p.header.Width
	host, kept := make([]float32, n), make([]float32, n)
	for i, k := range keys {
		if err := p.stream.Download(host, p.teacher.Final().RowRange(i*p.header.SeqLen, (i+1)*p.header.SeqLen)); err != nil {
			return err
		}
		if err := r.Hidden(k, kept); err != nil {
			return err
		}
		for j, v := range host {
			d := float64(v) - float64(kept[j])
			*difference += d * d
			*size += float64(v) * float64(v)
		}
	}
	if !(*size >= 0 && *size <= math.MaxFloat64) {
		return fault.New(fault.Inference, "the teacher's hidden states are not finite").WithID("E-DISTILL-115")
	}
	return nil
}
