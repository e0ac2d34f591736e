package generate

import (
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"sync"

	"apr/device"
	"apr/internal/fault"
	"apr/tensor"
)

// A way is where a sequence's next token is chosen.
type way int

const (
	onHost way = iota // the row of logits comes to the host
	likely            // the device finds the largest logit
	drawn             // the device draws
)

// coldest is the lowest temperature at which a device draws: quotients of logits and lower ones lose digits of Gumbel's
// numbers.
const coldest = 1e-3

// draws reports whether the device draws next tokens. Logits of a CPU are on the host anyway.
func (e *Engine) draws() bool {
	info := e.m.Device().Info()
	_, ok := e.s.(device.NextDrawer)
	return ok && info.Kind != "cpu" && !slices.Contains(info.Lacks, device.DrawsNext)
}

// wayOf says where the next token of a sequence is chosen. Penalties, ids that are never drawn and log-probabilities in
// float64 are the host's.
func (e *Engine) wayOf(q *Sequence, draws bool) way {
	switch {
	case q.r.LogProbs >= 0 || q.r.penalises() || len(q.r.Never) > 0 || e.o.Vocab >= 1<<24:
		return onHost
	case q.r.Temperature == 0:
		return likely
	case draws && q.r.Temperature >= coldest:
		return drawn
	}
	return onHost
}

// choose chooses the token behind each row of hidden states. Logits stay on the device but for sequences whose token
// the host chooses.
func (e *Engine) choose(qs []*Sequence, hidden device.Tensor) error {
	n := hidden.Rows
	z := e.s.Temp("logits", device.Logits, tensor.F32, n, e.o.Vocab)
	defer e.s.Release(z)
	e.m.Logits(e.s, z, hidden)
	ways, draws := make([]way, len(qs)), e.draws()
	for i, q := range qs {
		ways[i] = e.wayOf(q, draws)
	}
	told, err := e.onDevice(qs, ways, z)
	if err != nil {
		return err
	}
	tokens, errs := make([]Token, len(qs)), make([]error, len(qs))
	var work sync.WaitGroup
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, q := range qs {
		from := 2 * i // the id as a number, and what is finite unless a logit is not
		if ways[i] == drawn {
			from += 2 * n
		}
		if v := float64(told[from+1]); math.IsNaN(v) || math.IsInf(v, 0) {
			errs[i] = fault.New(fault.Inference, "logits at position %d are not finite", len(q.ids))
			continue
		}
		if ways[i] != onHost {
			tokens[i].ID = int32(told[from])
			continue
		}
		logits := make([]float32, e.o.Vocab)
		if err := e.s.Download(logits, z.RowRange(i, i+1)); err != nil {
			work.Wait()
			return err
		}
		free <- struct{}{}
		work.Go(func() {
			tokens[i] = q.pick(logits)
			<-free
		})
	}
	work.Wait()
	for i, q := range qs {
		e.deliver(q, tokens[i], errs[i])
	}
	return nil
}

// onDevice finds the likeliest id of each row of logits and, if a sequence wants that, draws one of each row. It
// returns two numbers a row: the id, and the largest logit; behind those of all rows the id that was drawn, and the
// logarithm of its probability. One download brings them all.
func (e *Engine) onDevice(qs []*Sequence, ways []way, z device.Tensor) ([]float32, error) {
	n, m, rows := z.Rows, len(qs), z.Rows // the rows behind m are padding
	e.s.ArgMax(e.chosen.RowRange(0, n), e.best.RowRange(0, n), z)
	if slices.Contains(ways, drawn) {
		keys, limits := make([]int32, 2*m), make([]float32, device.NextLimits*m)
		for i, q := range qs {
			limits[device.NextLimits*i] = 1
			if ways[i] == drawn {
				keys[2*i], keys[2*i+1] = q.nextKey()
				copy(limits[device.NextLimits*i:], q.limits(e.o.Vocab))
			}
		}
		key, limit := e.keys.RowRange(0, 2*m), e.limits.RowRange(0, m)
		e.s.UploadInts(key, keys)
		e.s.Upload(limit, limits)
		rows += m
		e.s.(device.NextDrawer).DrawNext(e.chosen.RowRange(0, m), e.best.RowRange(n, rows), z.RowRange(0, m),
			device.Tensor{}, key, limit)
	}
	told := make([]float32, 2*rows)
	return told, e.s.Download(told, e.best.RowRange(0, rows))
}

// limits are those of device.NextDrawer.
func (q *Sequence) limits(vocab int) []float32 {
	p := float32(q.r.TopP)
	if q.r.TopP > 0 {
		p = max(p, 1e-30) // 0 would leave all
	}
	return []float32{float32(q.r.Temperature), p, float32(min(q.r.TopK, vocab))}
}

// nextKey returns the halves of the key by which the device draws the next token: a function of seed, prompt, sample
// and position.
func (q *Sequence) nextKey() (lo, hi int32) {
	key := mix(binary.LittleEndian.Uint64(q.key[:]) + (uint64(q.made)+1)*splitGamma)
	return int32(uint32(key)), int32(uint32(key >> 32))
}
