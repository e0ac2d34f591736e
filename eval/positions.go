package eval

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/tensor"
)

// Position is what one scored target shows of a model and, with a reference, of their agreement. With p the reference's
// probabilities over all V ids, q the model's and y the target, in nats:
//
//	CE = −ln q_y, Entropy = −Σ q ln q, Confidence = max q, Right: argmax q = y, and the same of p in Ref;
//	KL = Σ p ln(p/q), Accept = Σ min(p, q), Agree: argmax p = argmax q
//
// Accept is the probability that speculative decoding keeps a token that the model drafted for the reference (Leviathan
// et al. 2023, arXiv:2211.17192, theorem 3.5). On ties argmax is the lowest id.
type Position struct {
	At     int // index of the target in the text
	Own    Prediction
	Ref    Prediction // zero without a reference
	KL     float64
	Accept float64
	Agree  bool
}

// Prediction is one model's at one target.
type Prediction struct {
	CE, Entropy, Confidence float64
	Right                   bool
}

// Positions scores every target of the windows w, one by one, in float64 on the host from float32 logits: of m, and of
// its agreement with reference if that is not nil. It downloads all logits, chunk by chunk; Compare does not.
func Positions(ctx context.Context, s device.Stream, reference, m *model.Model, w *corpus.Windows, o Options) ([]Position, error) {
	if w.Len() == 0 {
		return nil, fault.New(fault.Invalid, "nothing to evaluate: no window")
	}
	o.defaults(w.SeqLen)
	for _, x := range []*model.Model{reference, m} {
		if x != nil && x.Config.Vocab < o.Vocab {
			return nil, fault.New(fault.Load, "a model has %d vocabulary rows, fewer than the %d ids of the data", x.Config.Vocab, o.Vocab)
		}
	}
	p := &positioner{comparison: comparison{s: s, o: o, reference: reference}, m: m}
	p.batch = model.NewBatch(m.Device(), o.Rows, w.SeqLen)
	if w.Documents {
		p.batch.SeparateDocuments(m.Device())
	}
	defer p.batch.Free(m.Device())
	for lo := 0; lo < w.Len(); lo += o.Rows {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		hi := min(lo+o.Rows, w.Len())
		if err := p.add(w.Batch(lo, hi), lo*w.Stride, w.Stride); err != nil {
			return nil, err
		}
		if o.Progress != nil {
			o.Progress(hi, w.Len())
		}
	}
	if len(p.out) == 0 {
		return nil, fault.New(fault.Invalid, "no target was scored")
	}
	return p.out, nil
}

// positioner scores position by position.
type positioner struct {
	comparison
	m           *model.Model
	out         []Position
	own, theirs []float32 // a chunk of logits each
}

// add scores a batch of windows, the first of which begins at text index from, the others stride later each.
func (p *positioner) add(b corpus.Batch, from, stride int) error {
	if b.TargetCount() == 0 {
		return nil
	}
	s := p.s
	p.batch.Load(s, b, b.Rows)
	var targets []int32
	first := len(p.out)
	for i, on := range b.Mask {
		if on != 0 {
			p.out = append(p.out, Position{At: from + i/b.SeqLen*stride + i%b.SeqLen + 1})
			targets = append(targets, b.Targets[i])
		}
	}
	x := p.hidden(p.m)
	defer s.Release(x)
	var ref device.Tensor
	if p.reference != nil {
		ref = p.hidden(p.reference)
		defer s.Release(ref)
	}
	c := min(p.o.ChunkRows, p.batch.N)
	z := s.Temp("logits", device.Logits, tensor.F32, c, p.o.Vocab)
	defer s.Release(z)
	download := func(host *[]float32, m *model.Model, x device.Tensor) error {
		view := z.RowRange(0, x.Rows)
		m.Logits(s, view, x)
		if n := x.Rows * p.o.Vocab; cap(*host) < n {
			*host = make([]float32, n)
		} else {
			*host = (*host)[:n]
		}
		return s.Download(*host, view)
	}
	for lo := 0; lo < p.batch.N; lo += c {
		hi := min(lo+c, p.batch.N)
		if err := download(&p.own, p.m, x.RowRange(lo, hi)); err != nil {
			return fmt.Errorf("evaluating: %w", err)
		}
		if p.reference != nil {
			if err := download(&p.theirs, p.reference, ref.RowRange(lo, hi)); err != nil {
				return fmt.Errorf("evaluating the reference: %w", err)
			}
		}
		if err := p.judge(p.out[first+lo:first+hi], targets[lo:hi]); err != nil {
			return err
		}
	}
	return nil
}

// judge fills positions from the downloaded logits; all processors share the rows.
func (p *positioner) judge(out []Position, targets []int32) error {
	var next atomic.Int64
	var workers sync.WaitGroup
	v := p.o.Vocab
	for range min(runtime.GOMAXPROCS(0), len(out)) {
		workers.Go(func() {
			q, r := make([]float64, v), make([]float64, v)
			for i := int(next.Add(1)) - 1; i < len(out); i = int(next.Add(1)) - 1 {
				var theirs []float32
				if p.reference != nil {
					theirs = p.theirs[i*v : (i+1)*v]
				}
				at := out[i].At
				out[i] = judge(p.own[i*v:(i+1)*v], theirs, int(targets[i]), q, r)
				out[i].At = at
			}
		})
	}
	workers.Wait()
	for _, x := range out {
		if !isFinite(x.Own.CE, x.Own.Entropy, x.Ref.CE, x.Ref.Entropy, x.KL, x.Accept) {
			return fault.New(fault.Inference, "the loss is not finite at token %d of the text (%g nats, KL %g)", x.At, x.Own.CE, x.KL)
		}
	}
	return nil
}

func isFinite(values ...float64) bool {
	for _, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return false
		}
	}
	return true
}

// judge compares the logits z of a model with t of the reference (nil: none). q and r are room for V values each.
func judge(z, t []float32, target int, q, r []float64) Position {
	var p Position
	var lz, lt float64 // log-sum-exp
	var own, theirs int
	p.Own, own, lz = predict(z, target, q)
	if t == nil {
		return p
	}
	p.Ref, theirs, lt = predict(t, target, r)
	p.Agree = own == theirs
	for i, pi := range r {
		if pi > 0 {
			p.KL += pi * ((float64(t[i]) - lt) - (float64(z[i]) - lz))
		}
		p.Accept += math.Min(pi, q[i])
	}
	return p
}

// predict writes softmax(z) to q and returns what it says of the target, its argmax and ln Σ e^z.
func predict(z []float32, target int, q []float64) (p Prediction, best int, lse float64) {
	for i, v := range z {
		if v > z[best] {
			best = i
		}
	}
	top := float64(z[best])
	sum := 0.0
	for i, v := range z {
		q[i] = math.Exp(float64(v) - top)
		sum += q[i]
	}
	lse = top + math.Log(sum)
	for i, v := range z {
		q[i] /= sum
		if q[i] > 0 {
			p.Entropy += q[i] * (lse - float64(v))
		}
	}
	p.CE, p.Confidence, p.Right = lse-float64(z[target]), q[best], best == target
	return p, best, lse
}
