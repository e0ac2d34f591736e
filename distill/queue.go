package distill

import (
	"errors"
	"fmt"

	"apr/device"
	"apr/device/dry"
	"apr/model"
	"apr/plan"
	"apr/tensor"
)

// Queue is a device beside a run's own (device.Beside) and the memory in which it computes.
type Queue struct {
	Device device.Beside
	first  device.Device
	memory device.Tensor
}

// besideMemory names what a queue takes of the first device.
const besideMemory = "beside the step"

// OpenQueue opens a queue beside first for what rec planned, in rec.Total() bytes of first's memory.
func OpenQueue(first device.Device, rec *dry.Record) (q *Queue, err error) {
	q = &Queue{first: first, memory: first.Alloc(besideMemory, device.Besides, tensor.U8, 1, int(rec.Total()))}
	if q.Device, err = first.(device.Besider).Beside(q.memory); err != nil {
		first.Free(q.memory)
		return nil, err
	}
	if d, ok := q.Device.(dry.Preparer); ok {
		if err := d.Prepare(rec); err != nil {
			return nil, errors.Join(err, q.Close())
		}
	}
	return q, nil
}

// Close gives the queue and its memory back.
func (q *Queue) Close() error {
	err := q.Device.Close()
	q.first.Free(q.memory)
	return err
}

// dryQueue makes what a queue needs in which the student of a dry device writes its rows, reserves the memory for it
// there, and returns it.
func (d DryRun) dryQueue(dev *dry.Device, student *model.Model, rows int) *dry.Record {
	beside := dry.New(d.Target())
	d.OnPolicy.newWriter(student.Beside(beside), beside.NewStream(), rows, d.SeqLen, d.Vocab).Rehearse()
	rec := beside.Record()
	dev.Alloc(besideMemory, device.Besides, tensor.U8, 1, int(rec.Total()))
	return rec
}

// planQueue returns p with the student's rows written in a queue beside the step, if that can be, cut as p is: then the
// student is the same to the bit. Else it returns p, and why they are written before the step.
func (d DryRun) planQueue(p plan.Plan) (with plan.Plan, why string, err error) {
	target := d.Target()
	switch {
	case target.Info.Kind == "cpu": // beside the step without a queue
		return p, "", nil
	case target.Info.Kind != "cuda":
		return p, "this device has one queue", nil
	case d.Adapter != nil:
		return p, "a second queue reads no base of adapters", nil
	case len(d.Types) > 0:
		return p, "a second queue reads no matrices in blocks", nil
	case p.Record == nil:
		return p, "no plan can be made for this device", nil
	}
	d.queue = true
	rec, err := d.Record(p.Setting)
	if err != nil {
		return p, "", fmt.Errorf("a step with rows written beside it: %w", err)
	}
	with = plan.Of(p.Setting, rec, target.Budget, plan.Rates{})
	if with.Verdict != plan.Ready {
		return p, fmt.Sprintf("beside the step it would need %s of %s", plan.Amount(with.Memory.Total),
			plan.Amount(with.Memory.Available)), nil
	}
	with.Memory.Reserve = p.Memory.Reserve
	with.Costs, with.Seconds = p.Costs, p.Seconds // one pass is not what a step writes
	return with, "", nil
}
