package distill

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"apr/corpus"
	"apr/device"
	"apr/device/dry"
	"apr/model"
	"apr/modelfile"
	"apr/optim"
	"apr/plan"
	"apr/tensor"
)

// Probe is a short measurement of a step: all of it as planned, but the teacher has its first few layers only, whose
// time is multiplied. Ids are random.
type Probe struct {
	Milliseconds float64 `json:"ms_per_step"`    // estimated: measured, the missing layers added, all rows of a rank
	Measured     float64 `json:"measured_ms"`    // median of the timed steps, as they ran
	TeacherBody  float64 `json:"teacher_ms"`     // of it, the teacher's layers that were there
	Layers       int     `json:"teacher_layers"` // that were there
	Of           int     `json:"teacher_layers_of"`
	Steps        int     `json:"steps"` // timed; one more came before
	LoadSeconds  float64 `json:"seconds"`
	Tokens       int     `json:"tokens"` // of a timed step
}

// probeLayers and probeSteps keep a probe short: the layers of a model are all alike. A CPU is as fast with
// probePositions as with more.
const (
	probeLayers    = 4
	probeSteps     = 3
	probePositions = 2048
)

// probeRows returns how many rows a timed step has, and of a plan's setting what fits them.
func probeRows(c Config, info device.Info, s plan.Setting) (int, plan.Setting) {
	rows := c.Ranks.shareOf(c.Rows())
	if info.Kind == "cpu" {
		rows = min(rows, max(1, probePositions/c.SeqLen))
	}
	s.BatchSize, s.MicroRows = min(s.BatchSize, rows), min(s.MicroRows, rows)
	return rows, s
}

// probe times the candidate's step on a device of its own, which holds nothing afterwards.
func (in *inputs) probe(ctx context.Context, c Config, k *Candidate, obs Observer) (_ *Probe, err error) {
	obs.Phase("timing the teacher backend " + string(k.Backend))
	start := time.Now()
	dev, err := c.OpenDevice()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if err := prepare(dev, k.plan); err != nil {
		return nil, err
	}
	p := &Probe{Steps: probeSteps}
	var teachers []*model.Model
	for _, f := range in.teachers() {
		few := firstLayers(f)
		m, err := model.LoadFrozenAs(dev, few, device.TeacherWeights, k.form)
		if err != nil {
			return nil, err
		}
		teachers = append(teachers, m)
		p.Layers, p.Of = p.Layers+len(few.Config.Layers), p.Of+len(f.Config.Layers)
	}
	rows, setting := probeRows(c, dev.Info(), k.plan.Setting)
	t, err := in.probeTrainer(c, dev, rows, k, setting, teachers)
	if err != nil {
		return nil, err
	}
	p.Tokens = rows * c.SeqLen
	var total, body, update []float64
	rng := rand.New(rand.NewPCG(c.Seed, 9))
	for i := range 1 + probeSteps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b := probeBatch(rng, rows, c.SeqLen, in.vocab)
		if c.Ensemble.routed() { // equal parts
			splits := DryRun{Ensemble: c.Ensemble, Loss: c.Loss, More: make([]*model.Outline, len(in.more))}.splits(rows)
			b.Routes = splits[len(splits)-1]
		}
		begun := time.Now()
		rec, err := t.Apply(ctx, b)
		if err != nil && !errors.Is(err, ErrNonFinite) {
			return nil, err
		}
		if took := time.Since(begun); i > 0 {
			total = append(total, milliseconds(took))
			body = append(body, milliseconds(rec.Phases[device.PhaseTeacher]))
			update = append(update, milliseconds(rec.Phases[device.PhaseOptimizer]))
		}
		obs.Advance(i+1, 1+probeSteps)
	}
	p.Measured, p.TeacherBody = median(total), median(body)
	p.Milliseconds = p.Measured + p.TeacherBody*(float64(p.Of)/float64(max(1, p.Layers))-1)
	p.Milliseconds *= float64(c.Ranks.shareOf(c.Rows())) / float64(rows)
	if w := float64(c.Ranks.World); w > 1 && dev.Info().Kind == "cuda" { // alone, the probe updates what W ranks share
		p.Milliseconds -= median(update) * (1 - 1/w)
	}
	p.LoadSeconds = time.Since(start).Seconds()
	return p, nil
}

// partly is a file of which a part is read to be timed; nothing is learned from it. Who uses the whole model reads and
// verifies it (hashModels).
type partly struct{ tensor.File }

// Verify verifies nothing, since it would read all the rest.
func (partly) Verify() error { return nil }

// firstLayers returns f to be read in part. Per-layer embeddings lie in one table for all layers: such a model stays
// whole.
func firstLayers(f *modelfile.Files) *modelfile.Files {
	few, c := *f, *f.Container
	c.File = partly{f.File}
	if few.Config.PLE.Width == 0 {
		few.Config.Layers = few.Config.Layers[:min(len(few.Config.Layers), probeLayers)]
	}
	few.Container = &c
	return &few
}

// probeTrainer makes the run's trainer on another device.
func (in *inputs) probeTrainer(c Config, dev device.Device, rows int, k *Candidate, s plan.Setting,
	teachers []*model.Model) (*Trainer, error) {
	stream := dev.NewStream()
	student, _, err := in.newStudent(c, dev)
	if err != nil {
		return nil, err
	}
	if in.student == nil || in.adapter != nil {
		in.begin(student, stream, c.Seed)
	} else if err := student.LoadWeights(stream, in.student); err != nil {
		return nil, err
	}
	t := NewTrainer(student, stream, rows, c.SeqLen)
	t.Cut(s)
	t.Balance, t.SearchEvery = c.RouterBalance, c.searchEvery()
	if c.Ranks.SameBits {
		t.Ranks.Leaves = WorldLeaves / max(1, c.Ranks.World)
	}
	if c.DocumentMask {
		t.SeparateDocuments()
	}
	t.Loss.Spec, t.Loss.Vocab = c.Loss, in.vocab
	c.Ensemble.projected, c.Ensemble.GroupRows = in.projected.idle(), k.Rows
	c.Ensemble.words = in.words.idle()
	if c.Loss.Alpha != 0 {
		t.Teacher = c.Ensemble.of(teachers, dev.Info(), c.SeqLen, c.Loss.Temperature)
		if c.Ensemble.routed() {
			t.RouteRows()
		}
	}
	if len(teachers) == 1 { // of few layers, as many pairs
		h, err := c.Guide.few(dev, in.studentConfig, in.teacher.Config, teachers[0].Config, t.Teacher)
		if err != nil {
			return nil, err
		}
		if t.Hidden = h; h != nil {
			h.Init(stream, c.Seed)
		}
		if t.Maps, err = c.Guide.fewMaps(in.studentConfig, in.teacher.Config, teachers[0].Config, t.Teacher, c.SeqLen); err != nil {
			return nil, err
		}
	}
	t.Optimizer = optim.Optimizer{Schedule: optim.Schedule{Kind: optim.Constant, Peak: c.LR, Steps: 1 + probeSteps}, AdamW: c.AdamW, MaxNorm: c.MaxGradNorm}
	return t, nil
}

// probeBatch returns uniform ids below vocab, all of which count.
func probeBatch(rng *rand.Rand, rows, seqLen, vocab int) corpus.Batch {
	b := dryBatch(rows, seqLen)
	for i := range b.Tokens {
		b.Tokens[i], b.Targets[i] = rng.Int32N(int32(vocab)), rng.Int32N(int32(vocab))
	}
	return b
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// median returns the middle of values, of which there is one at least.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return s[len(s)/2]
}

// unplanned cuts steps as they are asked for, on a device that no plan can be made for.
func unplanned(c Config, dev device.Device) plan.Plan {
	s := plan.Setting{BatchSize: c.BatchSize, MicroRows: c.BatchSize, ChunkRows: c.ChunkRows}
	if s.ChunkRows == 0 {
		s.ChunkRows = DefaultChunkRows(dev.Info())
	}
	if len(c.Recompute) > 0 {
		s.Recompute = c.Recompute[0]
	}
	return plan.Plan{Setting: s}
}

// prepare lets a device that can take all memory and load all code of the planned steps, before there are weights.
func prepare(dev device.Device, p plan.Plan) error {
	if d, ok := dev.(dry.Preparer); ok && p.Record != nil {
		return d.Prepare(p.Record)
	}
	return nil
}
