package distill

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"time"

	"apr/device"
	"apr/device/dry"
	"apr/format/safetensors"
	"apr/generate"
	"apr/internal/fault"
	"apr/tensor"
)

// With --on-policy-lag 1 the student writes the rows of step n+1 by the weights before step n's update, those that step
// n trains. So writing can go on beside the step: it ends before the update,
//
//	write step 0 | write 1, gradients 0 | update | write 2, gradients 1 | update | …
//
// and what is written is the same wherever in the step it is written. On a CPU both go on at once, each on a stream of
// its own. With CUDA the rows are written in a queue beside the device's own (Queue), if memory suffices for both.
// Else, and on other devices, they are written before the step.

// beside reports whether rows are written beside the step before theirs, on a stream of the same device.
func (o OnPolicy) beside(info device.Info) bool { return o.Lag > 0 && info.Kind == "cpu" }

// queued is what a queue beside the device does in the run's steps; nil: there is no queue.
func (r *Run) queued() *dry.Record {
	if r.in.planned.Record == nil {
		return nil
	}
	return r.in.planned.Record.Beside
}

// next returns the rows of a step: those that are there, or else what the student writes now. With a lag it also has
// those of the step behind it written, or begins them: beside is to be called at the step.
func (p *policy) next(ctx context.Context, step, steps int) (d drawn, err error) {
	if p.ahead == nil {
		p.follow()
		if d, err = p.write(ctx, step); err != nil || p.Lag == 0 {
			return d, err
		}
	} else {
		d = *p.ahead
	}
	if d.step != step {
		panic(fmt.Sprintf("distill: rows of step %d at step %d", d.step, step))
	}
	p.ahead = &d // until others are there: the step may not come to be
	if p.atOnce || step+1 >= steps {
		return d, nil
	}
	after, err := p.write(ctx, step+1)
	if err == nil {
		after.by = step
		p.ahead = &after
	}
	return d, err
}

// besideStep begins to write the rows of the step behind d's, if they are written beside it. end waits for them; it may
// be called again.
func (p *policy) besideStep(ctx context.Context, d drawn, steps int) (end func() error) {
	if p.Lag == 0 || !p.atOnce || d.step+1 >= steps {
		return func() error { return nil }
	}
	var after drawn
	var err error
	p.follow() // the update before, and nothing of the step that is about to be queued
	done := make(chan struct{})
	go func() {
		defer close(done)
		after, err = p.write(context.WithoutCancel(ctx), d.step+1)
	}()
	return func() error {
		<-done
		if err == nil && after.step > p.ahead.step {
			after.by = d.step
			p.ahead = &after
		}
		return err
	}
}

// follow lets a queue see the weights as they are.
func (p *policy) follow() {
	if p.queue != nil {
		p.queue.Device.Follow()
	}
}

// free gives back what newPolicy reserved.
func (p *policy) free() error {
	p.writer.Free()
	if p.queue == nil {
		return nil
	}
	return p.queue.Close()
}

// applied forgets the rows of a step that was done, where none were written behind them.
func (p *policy) applied(step int) {
	if p.ahead != nil && p.ahead.step == step {
		p.ahead = nil
	}
}

// aheadState is what a checkpoint says of rows that are written already; their ids and probabilities are tensors.
type aheadState struct {
	Step    int    `json:"step"` // whose rows they are
	By      int    `json:"by"`   // the step by whose weights they were written
	Lengths []int  `json:"lengths"`
	Stopped []bool `json:"stopped"`
	TookNS  int64  `json:"took_ns"`
}

// The tensors of rows that are written already: their ids, and ln q of each, of all rows in order.
const (
	aheadIDs      = "own.ahead.ids"
	aheadLogProbs = "own.ahead.logprobs"
)

// state returns what a checkpoint keeps of the rows that are written already; nil: there are none.
func (p *policy) state() (*aheadState, []tensor.Source) {
	if p.ahead == nil {
		return nil, nil
	}
	a := &aheadState{Step: p.ahead.step, By: p.ahead.by, TookNS: int64(p.ahead.took)}
	var ids, probs []byte
	for _, t := range p.ahead.texts {
		a.Lengths, a.Stopped = append(a.Lengths, len(t.IDs)), append(a.Stopped, t.Stopped)
		for i, id := range t.IDs {
			ids = binary.LittleEndian.AppendUint32(ids, uint32(id))
			probs = binary.LittleEndian.AppendUint64(probs, math.Float64bits(t.LogProbs[i]))
		}
	}
	source := func(name string, d tensor.DType, all []byte) tensor.Source {
		info := tensor.Info{Name: name, DType: d, Shape: []int{len(ids) / 4}, Size: int64(len(all))}
		return tensor.Source{Info: info, Payload: func(w io.Writer) error { _, err := w.Write(all); return err }}
	}
	return a, []tensor.Source{source(aheadIDs, tensor.I32, ids), source(aheadLogProbs, tensor.F64, probs)}
}

// restore takes over the rows that were written before a checkpoint. A step that has none of its own writes them by the
// weights that it trains.
func (p *policy) restore(a *aheadState, f *safetensors.File, step int) error {
	p.ahead = nil
	if a == nil || p.Lag == 0 {
		return nil
	}
	bad := func(what string) error {
		return fault.In(fault.Invalid, f.Path(), "%s", what).At("rows of step %d", a.Step).
			WithHint("the checkpoint is of another run").WithID("E-CKPT-009")
	}
	if a.Step != step || len(a.Lengths) != p.rows || len(a.Stopped) != p.rows {
		return bad(fmt.Sprintf("%d rows, not %d of step %d", len(a.Lengths), p.rows, step))
	}
	total := 0
	for _, n := range a.Lengths {
		if n < 1 || n > p.seqLen {
			return bad(fmt.Sprintf("a text of %d tokens", n))
		}
		total += n
	}
	read := func(name string, d tensor.DType) ([]byte, error) {
		t, ok := f.Tensor(name)
		if !ok || t.DType != d || t.Size != int64(total*d.BlockBytes()) {
			return nil, bad(fmt.Sprintf("tensor %q is missing or not %d of %v", name, total, d))
		}
		raw := make([]byte, t.Size)
		if n, err := t.ReadAt(raw, 0); n < len(raw) {
			return nil, fault.In(fault.IO, f.Path(), "cannot be read").At("tensor %q", name).Because(err)
		}
		return raw, nil
	}
	ids, err := read(aheadIDs, tensor.I32)
	if err != nil {
		return err
	}
	probs, err := read(aheadLogProbs, tensor.F64)
	if err != nil {
		return err
	}
	_, d := p.requests(a.Step)
	d.by, d.took = a.By, time.Duration(a.TookNS)
	for i, n := range a.Lengths {
		t := generate.Text{Stopped: a.Stopped[i]}
		for range n {
			t.IDs = append(t.IDs, int32(binary.LittleEndian.Uint32(ids)))
			t.LogProbs = append(t.LogProbs, math.Float64frombits(binary.LittleEndian.Uint64(probs)))
			ids, probs = ids[4:], probs[8:]
		}
		d.texts = append(d.texts, t)
	}
	p.ahead = &d
	return nil
}

// dryBeside reserves on a dry device what writing takes beside a step.
func (d DryRun) dryBeside(dev *dry.Device, rows int) error {
	if !d.OnPolicy.beside(dev.Info()) {
		return nil
	}
	alone := dry.New(d.Target())
	_, student, err := d.models(alone)
	if err != nil {
		return err
	}
	d.OnPolicy.newWriter(student.Frozen(), alone.NewStream(), rows, d.SeqLen, d.Vocab).Rehearse()
	if n := alone.Record().Temps; n > 0 {
		dev.Alloc("own.ahead", device.Activations, tensor.U8, 1, int(n))
	}
	return nil
}
