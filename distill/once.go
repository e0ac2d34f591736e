package distill

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"apr/corpus"
	"apr/device"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/model"
	"apr/plan"
	"apr/teacher"
	"apr/teacher/cache"
)

// Ways of a run to get its teacher's logits.
const (
	LogitsAuto  = "auto"  // cache if that pays, of hidden states
	LogitsLive  = "live"  // computed in every epoch
	LogitsCache = "cache" // computed in the first epoch, kept, and read in the others
)

// onceFolder is where a run keeps what its teacher said in the first epoch.
const onceFolder = "teacher-cache"

// logitsDecision is the name of the event that records the choice.
const logitsDecision = "teacher logits"

// LogitsChoice says whether a run's teacher is computed in every epoch, and why.
type LogitsChoice struct {
	Asked  string  `json:"asked"`
	Chosen string  `json:"chosen"` // live, cache
	Kind   string  `json:"kind,omitempty"`
	Bytes  int64   `json:"bytes,omitempty"` // of the cache; of draws estimated
	Epochs float64 `json:"epochs"`
	Reason string  `json:"-"`
}

// Once is what reading costs beside computing, for an epoch.
type Once struct {
	FLOPs     float64 // of the teacher's body
	Peak      float64 // operations a second of the device, at most
	Bytes     float64 // that are written or read
	Bandwidth float64 // bytes a second of the disk
}

// Pays reports whether a teacher that is run once takes less time over so many epochs: even at the device's peak,
// what is not computed in the later ones takes longer than writing once and reading in the others.
func (o Once) Pays(epochs float64) bool {
	return (epochs-1)*o.FLOPs/o.Peak > epochs*o.Bytes/o.Bandwidth
}

// String compares both for an epoch.
func (o Once) String() string {
	return fmt.Sprintf("an epoch of the teacher takes at least %.2g s (%.2g operations at %.3g a second), its hidden "+
		"states %.2g s (%s at %s a second)",
		o.FLOPs/o.Peak, o.FLOPs, o.Peak, o.Bytes/o.Bandwidth, megabytes(int64(o.Bytes)), megabytes(int64(o.Bandwidth)))
}

// cannotKeep says why the rows of the teacher cannot be kept from one epoch to the next; nil: they can.
func (in *inputs) cannotKeep(c Config, info device.Info, steps int) error {
	bad := func(kind fault.Kind, format string, args ...any) error {
		return fault.New(kind, format, args...).WithID("E-DISTILL-117")
	}
	group := teacher.GroupRows(info, c.SeqLen)
	switch {
	case in.cache != nil:
		return bad(fault.Usage, "the teacher is read already")
	case c.Loss.Alpha == 0:
		return bad(fault.Usage, "with --alpha 0 there is no teacher")
	case len(c.Teachers()) > 1 || c.Ensemble.routed():
		return bad(fault.Unavailable, "not built yet with several teachers")
	case in.projected != nil:
		return bad(fault.Unavailable, "not built yet with a teacher with another tokenizer (--align project)")
	case c.Ranks.Teachers > 0:
		return bad(fault.Unavailable, "not built yet with --teacher-ranks")
	case c.Ranks.World > 1 || c.Ranks.SameBits:
		return bad(fault.Unavailable, "not built yet with several ranks or --deterministic=world")
	case c.OnPolicy.On():
		return bad(fault.Unavailable, "nobody knows what the student is going to write (--on-policy)")
	case c.Guide.any():
		return bad(fault.Unavailable, "the teacher's layers are compared, which no cache holds")
	case int64(steps) <= in.epochSteps:
		return bad(fault.Usage, "%d steps are no more than an epoch of %d: nothing would be read again", steps, in.epochSteps)
	case info.Kind != "cpu" && c.LogitsJob.Kind != cache.Draws && c.Rows() > group && c.Rows()%group != 0:
		return bad(fault.Invalid, "steps of %d rows are read %d at a time, and the rest in another size, whose sums may "+
			"differ in their last bit: choose a multiple", c.Rows(), group)
	}
	return nil
}

// chooseLogits decides whether the teacher is computed in every epoch, once the data is read and the step is planned.
func (in *inputs) chooseLogits(c Config, dev device.Device, steps int) error {
	l := LogitsChoice{Asked: c.TeacherLogits, Chosen: LogitsLive, Epochs: float64(steps) / float64(in.epochSteps)}
	if in.rows != nil {
		l.Epochs = float64(steps) * float64(c.Rows()) / float64(in.rows.Len())
	}
	defer func() { in.logits = l }()
	cannot := in.cannotKeep(c, dev.Info(), steps)
	switch {
	case c.TeacherLogits == "" || c.TeacherLogits == LogitsLive:
		l.Asked, l.Reason = LogitsLive, "asked for"
		return nil
	case cannot != nil && c.TeacherLogits == LogitsCache:
		return fault.In(fault.KindOf(cannot), "--teacher-logits", "cache: %w", cannot)
	case cannot != nil:
		l.Reason = cannot.Error()
		return nil
	}
	if c.TeacherLogits == LogitsAuto {
		c.LogitsJob = CacheJob{Kind: cache.Hidden, ShardBytes: c.LogitsJob.ShardBytes}
	}
	planned, _ := dev.(dry.Planned)
	if err := in.makeOnce(c, dev, planned); fault.KindOf(err) == fault.Memory && l.Asked == LogitsAuto {
		l.Reason = "there is no memory for passes beside the step"
		return nil
	} else if err != nil {
		return err
	}
	l.Kind, l.Bytes = in.made.Kind, in.made.Bytes
	var before LogitsChoice
	switch {
	case l.Asked == LogitsCache:
		l.Chosen, l.Reason = LogitsCache, "asked for"
	case c.Resume != "" && lastDecision(c.Output, logitsDecision, &before):
		l.Chosen, l.Reason = before.Chosen, "as before the run was stopped"
	default:
		l.Chosen, l.Reason = in.pays(c, planned, l, steps)
	}
	if l.Chosen == LogitsLive {
		in.made = nil
		return nil
	}
	in.planned, in.choice.Chosen.plan, in.choice.Chosen.Memory = in.made.made.plan, in.made.made.plan,
		&in.made.made.plan.Memory
	return nil
}

// pays chooses by the time that both ways take, and by the room on the disk.
func (in *inputs) pays(c Config, planned dry.Planned, l LogitsChoice, steps int) (chosen, reason string) {
	if planned == nil || in.planned.Record == nil || c.Peak == nil {
		return LogitsLive, "what the teacher costs is not known on this device"
	}
	if need := in.diskNeed(c, steps); need.refuse(c.Output, need.Available, need.Available > 0,
		bytesBelow(c.Output)) != nil {
		return LogitsLive, fmt.Sprintf("%s of hidden states do not fit the disk beside %s of the run: %s are free",
			megabytes(l.Bytes), megabytes(need.Total-need.Cache), megabytes(int64(min(need.Available, math.MaxInt64))))
	}
	rate, err := diskRate(c.Output)
	if err != nil {
		return LogitsLive, "the disk's speed is not known: " + err.Error()
	}
	phase := device.PhaseTeacher.String()
	o := Once{Bytes: float64(l.Bytes), Bandwidth: rate, Peak: c.Peak(),
		FLOPs: (in.planned.Costs.ByPhase[phase] - in.made.made.plan.Costs.ByPhase[phase]) * float64(in.epochSteps)}
	switch {
	case !(o.Peak > 0):
		return LogitsLive, "the device's peak is not known"
	case o.Pays(l.Epochs):
		return LogitsCache, fmt.Sprintf("it pays over %.3g epochs: %v", l.Epochs, o)
	}
	return LogitsLive, fmt.Sprintf("a cache does not pay over %.3g epochs: %v", l.Epochs, o)
}

// rateBytes are written to learn how fast a disk is.
const rateBytes = 16 << 20

// diskRate writes a temporary file beside a path that need not exist, and returns the bytes that reach the disk in a
// second.
func diskRate(path string) (rate float64, err error) {
	dir, err := filepath.Abs(path)
	if err != nil {
		return 0, err
	}
	for {
		if st, err := os.Stat(dir); err == nil && st.IsDir() || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	f, err := os.CreateTemp(dir, ".apr-rate-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i * 7)
	}
	start := time.Now()
	for range rateBytes / len(block) {
		if _, err := f.Write(block); err != nil {
			return 0, err
		}
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	return rateBytes / time.Since(start).Seconds(), nil
}

// maker makes the rows of a teacher when they are asked for, in the passes of a precomputation: each once, into a
// cache that it reads them from. Its order is that of the first epoch, so that a pass has rows of the steps to come.
type maker struct {
	*cache.Kept
	p    *precomputation
	plan plan.Plan
	tell func(what string)
	held func() error // the run's directory is still its own
	done int          // passes
}

// makeOnce describes what is kept of the teacher, and plans the step with its passes.
func (in *inputs) makeOnce(c Config, dev device.Device, planned dry.Planned) error {
	l, err := corpus.NewLoader(in.rows, corpus.LoaderOptions{BatchRows: in.rows.Len(), Shuffle: c.Shuffle, Seed: c.Seed})
	if err != nil {
		return err
	}
	p := &precomputation{c: c, job: c.LogitsJob, dev: dev, in: in, order: l.RowsFrom(corpus.Position{}),
		chosen: &in.choice.Chosen.form}
	if err := p.describe(); err != nil {
		return err
	}
	p.header.Rows = len(p.keys)
	if err := teacher.CheckLoss("--teacher-logits", p.header, c.Loss); err != nil {
		return err
	}
	m := &maker{p: p, plan: in.planned}
	positions := int64(len(p.keys)) * int64(c.SeqLen)
	in.made = &said{Header: p.header, Dir: filepath.Join(c.Output, onceFolder), rows: m, made: m,
		Bytes: positions * drawsBytes}
	if p.header.Kind == cache.Hidden {
		in.made.Bytes = positions * int64(p.header.Width) * int64(dev.Info().Activations.BlockBytes())
	}
	if planned == nil || in.planned.Record == nil {
		return nil
	}
	s, d := in.planned.Setting, in.dryRun(c, planned.Target)
	d.Form, d.Control = in.choice.Chosen.form, in.control.On
	again, err := d.Plan(Choice{BatchSize: s.BatchSize, MicroRows: s.MicroRows, ChunkRows: s.ChunkRows,
		Recompute: []model.Recompute{s.Recompute}})
	if err != nil {
		in.made = nil
		return err
	}
	m.plan = again
	return nil
}

// begin opens the cache of a run whose teacher is loaded.
func (m *maker) begin(r *Run, big *model.Model) (err error) {
	if err := r.dir.Held(); err != nil {
		return err
	}
	dir := r.in.made.Dir
	if m.Kept, err = cache.Keep(dir, m.p.header, m.p.keys); err != nil {
		return err
	}
	if err := putHead(cache.Folder(dir), r.in.teacher, m.p.header.Kind == cache.Hidden, r.Writer); err != nil {
		return err
	}
	m.p.stream, m.p.teacher = r.stream, &teacher.Resident{Model: big}
	m.p.batch = model.NewBatch(r.dev, m.p.header.PassRows, r.SeqLen)
	if r.DocumentMask {
		m.p.batch.SeparateDocuments(r.dev)
	}
	m.tell, m.held = r.Watch.Doing, r.dir.Held
	return nil
}

// make makes rows until one can be read.
func (m *maker) make(key cache.Key) error {
	for {
		lo, hi, missing, err := m.Next(key)
		if err != nil || !missing {
			return err
		}
		m.tell(fmt.Sprintf("pass %d of the teacher, over rows %d to %d of %d", m.done, lo, hi, m.Rows))
		rows, err := m.p.pass(lo, hi)
		if err != nil {
			return err
		}
		m.done++
		if err := m.held(); err != nil {
			return err
		}
		if err := m.Add(rows); err != nil {
			return err
		}
	}
}

// Drawn implements teacher.Rows.
func (m *maker) Drawn(key cache.Key) (cache.Drawn, error) {
	if err := m.make(key); err != nil {
		return cache.Drawn{}, err
	}
	return m.Kept.Drawn(key)
}

// Hidden implements teacher.Rows.
func (m *maker) Hidden(key cache.Key, dst []float32) error {
	if err := m.make(key); err != nil {
		return err
	}
	return m.Kept.Hidden(key, dst)
}

// endOnce seals the cache that was asked for, so that other students can learn from it, and removes one that was not.
func (r *Run) endOnce() error {
	made := r.in.made
	if made == nil {
		return nil
	}
	made.made.p.batch.Free(r.dev)
	if r.MaxSteps > 0 && r.MaxSteps < r.steps {
		return nil // a later attempt reads it
	}
	if err := r.dir.Held(); err != nil {
		return err
	}
	detail := map[string]any{"passes": made.made.done, "path": onceFolder}
	if r.in.logits.Asked != LogitsCache {
		if err := os.RemoveAll(made.Dir); err != nil {
			return fault.In(fault.IO, made.Dir, "cannot be removed").Because(err)
		}
		return r.dir.Event("record", "teacher cache removed", detail, "nobody asked for it: --teacher-logits cache keeps it")
	}
	if !made.made.Whole() { // an earlier attempt had made it, and it was removed
		return r.dir.Event("record", "teacher cache not sealed", detail, "some rows were never asked for")
	}
	r.obs.Phase("sealing the teacher's cache")
	if err := made.made.Seal(headFile); err != nil {
		return err
	}
	return r.dir.Event("record", "teacher cache sealed", detail,
		"other students can learn from it: --cache "+strings.ReplaceAll(filepath.Join(r.Output, onceFolder), "\\", "/"))
}

// recordLogits writes down whether the teacher is computed in every epoch.
func (r *Run) recordLogits() error {
	l := r.in.logits
	if r.Loss.Alpha == 0 || r.in.cache != nil {
		return nil // no logits are computed
	}
	if l.Chosen == LogitsCache {
		r.obs.Detail("teacher logits: computed in the first epoch and read in the others (%s of %s): %s", megabytes(l.Bytes),
			l.Kind, l.Reason)
	} else {
		r.obs.Detail("teacher logits: computed in every epoch: %s", l.Reason)
	}
	return r.dir.Event("decision", logitsDecision, l, l.Reason)
}

// Logits says whether the run's teacher is computed in every epoch, and why.
func (r *Run) Logits() LogitsChoice { return r.in.logits }
