package distill

import (
	"context"

	"apr/device"
	"apr/internal/fault"
	runlog "apr/run/log"
)

// Precheck looks at the inputs of a run one after the other, so that whoever starts it later or elsewhere can tell
// which check failed. Models comes first; all of them do what Start does, by the same code, and write nothing.
type Precheck struct {
	c   Config
	in  *inputs
	obs Observer
}

// NewPrecheck begins with the configuration.
func NewPrecheck(c Config, obs Observer) (*Precheck, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := c.checkOutput(); err != nil {
		return nil, err
	}
	c.TokenCache = nil // it is written to
	return &Precheck{c: c, in: &inputs{records: map[string]runlog.Input{}}, obs: obs}, nil
}

// Models reads the headers of both models: their tensors are complete and their tokenizers agree on every id.
func (p *Precheck) Models() error { return p.in.openModels(p.c, p.obs) }

// Shared returns the number of ids that both models share.
func (p *Precheck) Shared() int { return p.in.vocab }

// Memory plans a step on a device like dev. Where none fits, the plan that needs least comes with an error of kind
// Memory.
func (p *Precheck) Memory(ctx context.Context, dev device.Device) (*Estimate, error) {
	c := p.c
	c.Probe = false
	err := p.in.choose(ctx, c, dev, p.obs)
	if p.in.choice == nil || err != nil && fault.KindOf(err) != fault.Memory {
		return nil, err
	}
	k := p.in.choice.Chosen
	if k == nil {
		k = p.in.choice.nearest()
	}
	e := &Estimate{Candidates: p.in.choice.Candidates, Backend: p.in.choice.Backend, BackendReason: p.in.choice.Reason, Disk: p.Disk()}
	e.describe(k)
	return e, err
}

// Probe times a step on a device of its own, after Memory, and returns seconds.
func (p *Precheck) Probe(ctx context.Context, open func() (device.Device, error)) (float64, error) {
	c := p.c
	c.OpenDevice = open
	t, err := p.in.probe(ctx, c, p.in.choice.Chosen, p.obs)
	if err != nil {
		return 0, err
	}
	return t.Milliseconds / 1e3, nil
}

// Disk returns what the run will write.
func (p *Precheck) Disk() DiskNeed { return p.in.diskNeed(p.c, p.c.Steps) }

// CheckpointBytes returns the size of one checkpoint: what trains and two moments, in float32, and blocks.
func (p *Precheck) CheckpointBytes() int64 { return p.in.checkpointBytes(p.c) }

// Identity compares the values of both models and refuses a student that is the teacher; then it hashes both. Without a
// fault, the relation comes with the hashes: nil for a new student.
func (p *Precheck) Identity(ctx context.Context) (*runlog.Kinship, error) {
	err := p.in.identifyAll(ctx, p.c, p.obs)
	if err == nil {
		err = p.in.hashModels(p.c)
	}
	return p.in.kin, err
}

// Data reads and encodes training and held-out text, refuses documents that are in both, and returns the steps of
// Config.Epochs.
func (p *Precheck) Data(ctx context.Context) (steps int, err error) {
	err = p.in.loadData(ctx, p.c, p.obs)
	return int(p.in.loaderSteps), err
}

// HeldOut reports whether some text is held out.
func (p *Precheck) HeldOut() bool { return p.in.held != nil }

// Inputs returns what was read so far, as in a run's manifest.
func (p *Precheck) Inputs() map[string]runlog.Input { return p.in.records }

// Close closes the models.
func (p *Precheck) Close() error { return p.in.close() }
