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

// choose chooses the token behind each row of hidden states.
func (e *Engine) choose(rows []row, hidden device.Tensor) error {
	z := e.s.Temp("logits", device.Logits, tensor.F32, hidden.Rows, e.o.Vocab)
	defer e.s.Release(z)
	draws := e.prepare(rows, hidden.Rows, e.draws())
	e.m.Logits(e.s, z, hidden)
	e.find(z, draws)
	return e.take(rows, z, draws)
}

// prepare says where the token of each row is chosen, and uploads what a device that can draw needs for n rows, if
// it draws one. Other rows are drawn by limits that cost least.
func (e *Engine) prepare(rows []row, n int, can bool) (draws bool) {
	h := &e.host
	h.ways, h.keys, h.next = resized(h.ways, len(rows)), resized(h.keys, 2*n), resized(h.next, device.NextLimits*n)
	for i := range n {
		h.next[device.NextLimits*i] = 1
	}
	for i, r := range rows {
		if !r.chooses {
			continue
		}
		h.ways[i] = e.wayOf(r.q, can)
		if h.ways[i] == drawn {
			draws = true
			h.keys[2*i], h.keys[2*i+1] = r.q.nextKey()
			copy(h.next[device.NextLimits*i:], r.q.limits(e.o.Vocab))
		}
	}
	if !draws {
		return false
	}
	e.s.UploadInts(e.keys.RowRange(0, 2*n), h.keys)
	if len(h.limits) < len(h.next) || !slices.Equal(h.limits[:len(h.next)], h.next) {
		e.s.Upload(e.limits.RowRange(0, n), h.next)
		h.limits = append(h.limits, make([]float32, max(0, len(h.next)-len(h.limits)))...)
		copy(h.limits, h.next)
	}
	return true
}

// find lets the device find the likeliest id of each row of logits and, if a sequence wants that, draw one of each. Of
// n rows best has two numbers a row: the id, and the largest logit; behind those of all rows the id that was drawn, and
// the logarithm of its probability.
func (e *Engine) find(z device.Tensor, draws bool) {
	n := z.Rows
	e.s.ArgMax(e.chosen.RowRange(0, n), e.best.RowRange(0, n), z)
	if draws {
		e.s.(device.NextDrawer).DrawNext(e.chosen.RowRange(0, n), e.best.RowRange(n, 2*n), z, device.Tensor{},
			e.keys.RowRange(0, 2*n), e.limits.RowRange(0, n))
	}
}

// take brings what find found to the host with one download, chooses there what the host chooses, and delivers all
// tokens. Logits stay on the device but for sequences whose token the host chooses.
func (e *Engine) take(rows []row, z device.Tensor, draws bool) error {
	h, n, all := &e.host, z.Rows, z.Rows
	if draws {
		all *= 2
	}
	h.told = resized(h.told, 2*all)
	if err := e.s.Download(h.told, e.best.RowRange(0, all)); err != nil {
		return err
	}
	h.tokens, h.errs = resized(h.tokens, len(rows)), resized(h.errs, len(rows))
	var work sync.WaitGroup
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, r := range rows {
		if !r.chooses {
			continue
		}
		from := 2 * i // the id as a number, and what is finite unless a logit is not
		if h.ways[i] == drawn {
			from += 2 * n
		}
		if v := float64(h.told[from+1]); math.IsNaN(v) || math.IsInf(v, 0) {
			h.errs[i] = fault.New(fault.Inference, "logits at position %d are not finite", len(r.q.ids))
			continue
		}
		if h.ways[i] != onHost {
			h.tokens[i].ID = int32(h.told[from])
			continue
		}
		logits := make([]float32, e.o.Vocab)
		if err := e.s.Download(logits, z.RowRange(i, i+1)); err != nil {
			work.Wait()
			return err
		}
		free <- struct{}{}
		work.Go(func() {
			h.tokens[i] = r.q.pick(logits)
			<-free
		})
	}
	work.Wait()
	for i, r := range rows {
		if r.chooses {
			e.deliver(r.q, h.tokens[i], h.errs[i])
		}
	}
	return nil
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
