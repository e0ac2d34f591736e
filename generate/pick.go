package generate

import (
	"cmp"
	"context"
	"math"
	"slices"

	"apr/device"
	"apr/model"
	"apr/tensor"
)

// pick chooses an id by finite logits, which it may change.
func (q *Sequence) pick(logits []float32) Token {
	var t Token
	top, lse := 0, 0.0
	if q.r.LogProbs >= 0 {
		lse = logSumExp(logits)
		t.Top = likeliest(logits, q.r.LogProbs, lse)
	}
	raw := logits
	if q.r.penalises() || len(q.r.Never) > 0 {
		raw = slices.Clone(logits)
	}
	if q.r.penalises() {
		lower(logits, q.ids, q.r.Options)
	}
	for _, id := range q.r.Never {
		logits[id] = float32(math.Inf(-1))
	}
	for i, z := range logits {
		if z > logits[top] {
			top = i
		}
	}
	t.ID = int32(top)
	if q.r.Temperature > 0 {
		t.ID = sampleAt(logits, q.r.Options, logits[top], q.uniform(q.made))
	}
	if q.r.LogProbs >= 0 {
		t.LogProb = float64(raw[t.ID]) - lse
	}
	return t
}

// logSumExp returns ln Σ e^z in float64.
func logSumExp(logits []float32) float64 {
	top, sum := float64(slices.Max(logits)), 0.0
	for _, z := range logits {
		sum += math.Exp(float64(z) - top)
	}
	return top + math.Log(sum)
}

// likeliest returns the n likeliest ids, the lowest of equal ones first.
func likeliest(logits []float32, n int, lse float64) []Alternative {
	var best []Alternative
	for i, z := range logits {
		p := float64(z) - lse
		if len(best) == n && (n == 0 || p <= best[n-1].LogProb) {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, p, func(a Alternative, p float64) int {
			if a.LogProb >= p {
				return -1
			}
			return 1
		})
		best = slices.Insert(best[:min(len(best), n-1)], min(at, n-1), Alternative{int32(i), p})
	}
	return best
}

// sampleAt draws from softmax(logits/temperature) restricted by top-k and then top-p, by the uniform number u. top is the largest
// logit. All weights are added in one order: that of ids, or, restricted, from the likeliest on.
func sampleAt(logits []float32, o Options, top float32, u float64) int32 {
	weight := func(id int32) float64 { return math.Exp((float64(logits[id]) - float64(top)) / o.Temperature) }
	all := 0.0
	for i := range logits {
		all += weight(int32(i))
	}
	restricted := o.TopK > 0 && o.TopK < len(logits) || o.TopP > 0 && o.TopP < 1
	if !restricted {
		return first(u*all, len(logits), func(i int) (int32, float64) { return int32(i), weight(int32(i)) })
	}
	keep := nucleus(logits, o, top, all, weight)
	sum := 0.0
	for _, id := range keep {
		sum += weight(id)
	}
	return first(u*sum, len(keep), func(i int) (int32, float64) { return keep[i], weight(keep[i]) })
}

// first returns the id at which the running sum of n weights exceeds u, or the last with a weight.
func first(u float64, n int, at func(int) (int32, float64)) (id int32) {
	running := 0.0
	for i := range n {
		one, w := at(i)
		if w == 0 {
			continue
		}
		id = one
		if running += w; running > u {
			break
		}
	}
	return id
}

// nucleus returns the ids that top-k and top-p leave, from the likeliest on, the lowest of equal ones first. Only ids near the top are
// sorted: as many as it takes.
func nucleus(logits []float32, o Options, top float32, all float64, weight func(int32) float64) []int32 {
	k := len(logits)
	if o.TopK > 0 {
		k = min(k, o.TopK)
	}
	for _, far := range []float64{8, 24, math.Inf(1)} { // a weight of e^−far
		var near []int32
		mass := 0.0
		for i, z := range logits {
			if (float64(top)-float64(z))/o.Temperature <= far {
				near = append(near, int32(i))
				mass += weight(int32(i))
			}
		}
		p := 1.0
		if o.TopP > 0 && o.TopP < 1 {
			p = o.TopP
		}
		if enough := len(near) >= k || o.TopK == 0 && p < 1 && mass > p*all*(1+1e-9); !enough && !math.IsInf(far, 1) {
			continue
		}
		slices.SortFunc(near, func(a, b int32) int {
			return cmp.Or(cmp.Compare(logits[b], logits[a]), cmp.Compare(a, b))
		})
		near = near[:min(k, len(near))]
		sum := all
		if k < len(logits) {
			sum = 0
			for _, id := range near {
				sum += weight(id)
			}
		}
		n, mass := 0, 0.0
		for n < len(near) && (n == 0 || p == 1 || mass < p*sum) {
			mass += weight(near[n])
			n++
		}
		return near[:n]
	}
	panic("generate: an id is farther than infinity")
}

// lower divides positive and multiplies negative logits of recent ids by the penalty.
func lower(logits []float32, seen []int32, o Options) {
	done := map[int32]bool{}
	for _, id := range seen[max(0, len(seen)-o.RepeatLastN):] {
		if done[id] {
			continue
		}
		done[id] = true
		if z := logits[id]; z > 0 {
			logits[id] = z / float32(o.RepeatPenalty)
		} else {
			logits[id] = z * float32(o.RepeatPenalty)
		}
	}
}

// scoreRows bounds the rows of logits that exist at one time while a prompt is scored.
const scoreRows = 64

// score computes the log-probabilities of a prompt's tokens.
func (e *Engine) score(q *Sequence) error {
	n := len(q.r.Prompt) - 1
	q.scores = make([]Token, 0, n)
	if n == 0 {
		return nil
	}
	ids := e.ids.RowRange(0, n)
	e.s.UploadInts(ids, q.r.Prompt[:n])
	hidden := e.s.Temp("scored", device.Activations, e.hidden.DType, n, e.m.Config.Hidden)
	defer e.s.Release(hidden)
	e.m.Hidden(e.s, hidden, model.Tokens{IDs: ids, Rows: 1, SeqLen: n})
	z := e.s.Temp("logits", device.Logits, tensor.F32, min(scoreRows, n), e.o.Vocab)
	defer e.s.Release(z)
	for lo := 0; lo < n; lo += scoreRows {
		rows := min(scoreRows, n-lo)
		host := make([]float32, rows*e.o.Vocab)
		e.m.Logits(e.s, z.RowRange(0, rows), hidden.RowRange(lo, lo+rows))
		if err := e.s.Download(host, z.RowRange(0, rows)); err != nil {
			return err
		}
		for i := range rows {
			logits, id := host[i*e.o.Vocab:(i+1)*e.o.Vocab], q.r.Prompt[lo+i+1]
			lse := logSumExp(logits)
			q.scores = append(q.scores, Token{id, float64(logits[id]) - lse, likeliest(logits, max(q.r.LogProbs, 0), lse)})
		}
	}
	_, err := e.s.Wait(context.Background())
	return err
}
