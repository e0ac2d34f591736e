package eval

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/tensor"
)

// View is how two models see one target.
type View struct {
	Position int     // of the target's row and column in the batch: row·S + column
	KL       float64 // KL(reference‖model) over the shared ids, at temperature 1, in nats
	// Of the reference and of the model:
	P   [2]float64    // the probability of the target
	Top [2][]Expected // the likeliest ids, the best first, of equal ones the lowest
}

// Expected is an id with its probability.
type Expected struct {
	ID int32
	P  float64
}

// Look returns how reference and model see each target of b that counts, with the top likeliest ids of both. It computes in
// float64 from the logits over the first o.Vocab ids:
//
//	p = softmax(z_reference), q = softmax(z_model), KL = Σ p·(ln p − ln q)
func Look(ctx context.Context, s device.Stream, reference, m *model.Model, b corpus.Batch, top int, o Options) ([]View, error) {
	return LookApart(ctx, s, reference, b, m, b, top, o)
}

// LookApart is Look where the reference reads rows of its own, whose targets that count are those of b in its order.
func LookApart(ctx context.Context, s device.Stream, reference *model.Model, own corpus.Batch, m *model.Model,
	b corpus.Batch, top int, o Options) ([]View, error) {
	total := b.TargetCount()
	if total == 0 {
		return nil, nil
	}
	models := [2]*model.Model{reference, m}
	var xs [2]device.Tensor
	for i, read := range [2]corpus.Batch{own, b} {
		c := &comparison{s: s, o: o}
		c.batch = model.NewBatch(m.Device(), read.Rows, read.SeqLen)
		defer c.batch.Free(m.Device())
		if read.Starts != nil {
			c.batch.SeparateDocuments(m.Device())
		}
		c.batch.Load(s, read, read.Rows)
		if c.batch.N != total {
			panic(fmt.Sprintf("eval: %d targets of the reference's, %d of the model's", c.batch.N, total))
		}
		xs[i] = c.hidden(models[i])
		defer s.Release(xs[i])
	}
	n := min(lookRows, total)
	z := s.Temp("logits", device.Logits, tensor.F32, n, o.Vocab)
	defer s.Release(z)
	var host [2][]float32
	for i := range host {
		host[i] = make([]float32, n*o.Vocab)
	}
	var views []View
	kept := targets(b)
	for lo := 0; lo < total; lo += n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		hi := min(lo+n, total)
		for i, sub := range models {
			part := z.RowRange(0, hi-lo)
			sub.Logits(s, part, xs[i].RowRange(lo, hi))
			if err := s.Download(host[i][:(hi-lo)*o.Vocab], part); err != nil {
				return nil, err
			}
		}
		for k := lo; k < hi; k++ {
			row := func(i int) []float32 { return host[i][(k-lo)*o.Vocab : (k-lo+1)*o.Vocab] }
			v := view(row(0), row(1), b.Targets[kept[k]], top)
			if v.Position = kept[k]; math.IsNaN(v.KL) || math.IsInf(v.KL, 0) {
				return nil, fault.New(fault.Inference, "target %d of a sample: KL %g is not finite", kept[k], v.KL)
			}
			views = append(views, v)
		}
	}
	return views, nil
}

// lookRows is how many rows of logits Look holds on the host at one time.
const lookRows = 16

// targets are the positions of b whose target counts, in the order in which a batch keeps them.
func targets(b corpus.Batch) (kept []int) {
	for i, m := range b.Mask {
		if m != 0 {
			kept = append(kept, i)
		}
	}
	return kept
}

// view compares two rows of logits.
func view(reference, z []float32, target int32, top int) View {
	var v View
	var logp [2][]float64
	for i, row := range [2][]float32{reference, z} {
		logp[i] = logSoftmax(row)
		v.P[i] = math.Exp(logp[i][target])
		v.Top[i] = likeliest(logp[i], top)
	}
	for j, lp := range logp[0] {
		if p := math.Exp(lp); p > 0 {
			v.KL += float64(p * (lp - logp[1][j]))
		}
	}
	return v
}

// logSoftmax is z − ln Σ exp z.
func logSoftmax(z []float32) []float64 {
	most := math.Inf(-1)
	for _, x := range z {
		most = max(most, float64(x))
	}
	var sum float64
	for _, x := range z {
		sum += math.Exp(float64(x) - most)
	}
	out := make([]float64, len(z))
	for i, x := range z {
		out[i] = float64(x) - most - math.Log(sum)
	}
	return out
}

// likeliest returns the n largest of log probabilities.
func likeliest(logp []float64, n int) []Expected {
	best := make([]int32, 0, n+1)
	better := func(a, b int32) int { return cmp.Or(cmp.Compare(logp[b], logp[a]), cmp.Compare(a, b)) }
	for i := range logp {
		id := int32(i)
		if len(best) == n && better(id, best[n-1]) > 0 {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, id, better)
		if best = slices.Insert(best, at, id); len(best) > n {
			best = best[:n]
		}
	}
	out := make([]Expected, len(best))
	for i, id := range best {
		out[i] = Expected{ID: id, P: math.Exp(logp[id])}
	}
	return out
}
