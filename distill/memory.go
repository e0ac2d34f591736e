package distill

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"apr/adapter"
	"apr/arch"
	"apr/corpus"
	"apr/device"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/model"
	"apr/optim"
	"apr/plan"
	"apr/teacher/cache"
	"apr/tensor"
)

// DryRun describes an optimiser step without weights and data: enough to run it on a device that computes nothing.
type DryRun struct {
	Target  func() dry.Target // afresh for each run
	Teacher *model.Outline
	More    []*model.Outline // further teachers, which Ensemble joins
	Ensemble
	Form    device.Form // of the teachers' matrices
	Student arch.Config
	Adapter *adapter.Adapter // what trains beside the weights of Base; nil: all of the student
	Base    *model.Outline
	// SameFile: teacher and Base are one file.
	SameFile bool
	Loss     device.LossSpec
	Vocab    int // V: ids that both models share
	SeqLen   int
	Accum    int  // times that the batch size makes a step
	Control  bool // the weights of a distilled student are kept while another one trains
	Apart    bool // documents are kept apart
	Balance  float64
	Guide    Guide                   // of hidden states and attention maps
	Types    map[string]tensor.DType // of a student in blocks, by slot
	Ranks    Group                   // who shares the rows of a step
	OnPolicy OnPolicy
	queue    bool // the student's rows are written in a queue beside the step's
}

// hostPerPosition are the bytes of host memory that a position of a step takes: what a batch holds and its compaction.
const hostPerPosition = 9 + 12

// manyIDs are the bytes of ids that a dry run makes however little memory it plans for.
const manyIDs = 64 << 20

// maxPositions is how many positions a step may have: four times what the largest runs use, and few enough for a dry
// run to hold their ids.
const maxPositions = 1 << 24

// Record runs Trainer.Apply dry. Memory is that of two steps: all targets count in the second, all but the last of each
// micro-batch in the first, where what is compacted is as large as it can be. Operations are those of the second. Of
// several ranks it is the one's that needs most, so that all of them cut their steps alike.
func (d DryRun) Record(s plan.Setting) (most *dry.Record, err error) {
	for rank := range max(1, d.Ranks.World) {
		if rank != d.Ranks.alike(rank, s.BatchSize*d.Accum) {
			continue
		}
		r, err := d.recordOf(rank, s)
		if err != nil {
			return nil, err
		}
		if most == nil || r.Total() > most.Total() {
			most = r
		}
	}
	return most, nil
}

// recordOf is Record of one rank.
func (d DryRun) recordOf(rank int, s plan.Setting) (*dry.Record, error) {
	rows, ok := product(uint64(s.BatchSize), uint64(d.Accum))
	positions, ok2 := product(rows, uint64(d.SeqLen))
	if !ok || !ok2 || positions > maxPositions {
		return nil, fault.New(fault.Memory, "a step of %d × %d rows of %d positions has more than %d positions",
			d.Accum, s.BatchSize, d.SeqLen, maxPositions).WithHint("lower --batch-size, --grad-accum or --seq-len").WithID("E-DISTILL-006")
	}
	target := d.Target()
	mine := uint64(d.Ranks.shareOf(int(rows))) * uint64(d.SeqLen)
	if host := int64(mine * hostPerPosition); target.Budget > 0 && host > max(target.Budget, manyIDs) {
		return &dry.Record{Static: map[device.Component]int64{device.Batch: host}}, nil // its ids alone do not fit
	}
	dev := dry.New(target)
	return d.run(dev, dev.NewStream(), rank, s)
}

// run runs a step of a rank on a dry device that nothing was asked of.
func (d DryRun) run(dev *dry.Device, stream device.Stream, rank int, s plan.Setting) (*dry.Record, error) {
	all := s.BatchSize * d.Accum
	teachers, student, err := d.models(dev)
	if err != nil {
		return nil, err
	}
	if d.Control {
		student.Snapshot(stream)
	}
	if d.said != nil && d.said.made != nil {
		dryPass(dev, stream, d.said.Header, 1, teachers[0], d.Apart)
	}
	t := NewTrainer(student, stream, d.Ranks.shareOf(all), d.SeqLen)
	t.Cut(s)
	t.Balance, t.Ranks = d.Balance, d.Ranks.dry(rank, dev.Share().World > 1)
	if d.Apart {
		t.SeparateDocuments()
	}
	t.Loss.Spec, t.Loss.Vocab = d.Loss, d.Vocab
	if d.Loss.Alpha != 0 {
		t.Teacher = d.of(teachers, dev.Info(), d.SeqLen, d.Loss.Temperature)
		if d.routed() {
			t.RouteRows()
		}
	}
	if t.Hidden, err = d.Guide.make(dev, d.Student, d.Teacher.Config, t.Teacher, 0); err != nil {
		return nil, err
	}
	if t.Maps, err = d.Guide.makeMaps(d.Student, d.Teacher.Config, t.Teacher, 0); err != nil {
		return nil, err
	}
	if err := d.dryBeside(dev, all); err != nil {
		return nil, err
	}
	var writer ownWriter
	var beside *dry.Record
	if n := d.OnPolicy.Rows(all); n > 0 && d.Loss.Alpha != 0 {
		if d.queue {
			beside = d.dryQueue(dev, student, all)
		} else {
			writer = d.OnPolicy.newWriter(student.Frozen(), stream, all, d.SeqLen, d.Vocab)
		}
		t.OwnRows(n, d.SeqLen, d.OnPolicy.Sampled)
	}
	t.Optimizer = optim.Optimizer{Schedule: optim.Schedule{Kind: optim.Constant, Steps: 1}}
	b := dryBatch(all, d.SeqLen)
	if d.Apart {
		b.Starts = make([]int32, len(b.Tokens))
	}
	for _, left := range []uint8{0, 1} {
		t.Ranks.maskLasts(b, s.MicroRows, left)
		if b.TargetCount() == 0 {
			continue // micro-batches of one position
		}
		for _, b.Routes = range d.splits(all) {
			dev.ResetOps()
			if writer != nil {
				writer.Rehearse()
			}
			if _, err := t.Apply(context.Background(), b); err != nil {
				return nil, err
			}
		}
	}
	rec := dev.Record()
	rec.Beside = beside
	if d.Ranks.World > 1 && !t.Ranks.Joined {
		t.exchangedByHost(&rec.Exchange)
	}
	return rec, nil
}

// models makes the teachers and the student.
func (d DryRun) models(dev *dry.Device) (teachers []*model.Model, student *model.Model, err error) {
	shared := d.Shares(dev.Info())
	if d.said != nil && d.said.made == nil && d.said.Kind == cache.Draws {
		teachers = []*model.Model{nil}
	} else if !shared {
		for _, o := range append([]*model.Outline{d.Teacher}, d.More...) {
			load := o.LoadFrozen
			if d.elsewhere {
				load = o.LoadHead
			}
			m, err := load(dev, device.TeacherWeights, d.Form)
			if err != nil {
				return nil, nil, err
			}
			teachers = append(teachers, m)
		}
	}
	if d.Adapter == nil {
		return teachers, model.NewTrainableAs(dev, d.Student, d.Types), nil
	}
	if student, err = d.Base.LoadFrozen(dev, device.StudentWeights, baseForm(dev.Info())); err != nil {
		return nil, nil, err
	}
	if shared {
		teachers = []*model.Model{student.Frozen()}
	}
	adapt(student, d.Adapter, 0)
	return teachers, student, nil
}

// splits returns the ways in which routed rows are tried: all of them to each teacher, which bounds memory, and last as
// equal parts, which is what the operations are counted for. Rows that are not routed go one way.
func (d DryRun) splits(rows int) [][]int {
	if !d.routed() || d.Loss.Alpha == 0 {
		return [][]int{nil}
	}
	n := 1 + len(d.More)
	var all [][]int
	for k := range n {
		all = append(all, slices.Repeat([]int{k}, rows))
	}
	equal := make([]int, rows)
	for i := range equal {
		equal[i] = i * n / rows
	}
	return append(all, equal)
}

// dryBatch returns a batch of ids 0 in which all targets count.
func dryBatch(rows, seqLen int) corpus.Batch {
	n := rows * seqLen
	b := corpus.Batch{Rows: rows, SeqLen: seqLen, Tokens: make([]int32, n), Targets: make([]int32, n), Mask: make([]uint8, n)}
	for i := range b.Mask {
		b.Mask[i] = 1
	}
	return b
}

// Choice is what a plan may choose from. Zero values leave the choice to the planner.
type Choice struct {
	BatchSize int
	MicroRows int
	ChunkRows int
	Recompute []model.Recompute
	Rates     plan.Rates
}

// request lists the settings that are open. What changes the order of sums is chosen on a GPU only: a CPU computes the
// same bits whatever memory is free.
func (d DryRun) request(c Choice, target dry.Target) plan.Request {
	r := plan.Request{BatchSize: c.BatchSize, SeqLen: d.SeqLen, Recompute: c.Recompute, Budget: target.Budget, Rates: c.Rates}
	if len(r.Recompute) == 0 {
		r.Recompute = []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks}
	}
	r.MicroRows, r.ChunkRows = []int{c.BatchSize}, []int{DefaultChunkRows(target.Info)}
	if target.Info.Kind != "cpu" {
		r.MicroRows, r.ChunkRows = plan.Splits(c.BatchSize), []int{1024, 512, 256}
	}
	if c.MicroRows != 0 {
		r.MicroRows = []int{min(c.MicroRows, c.BatchSize)}
	}
	if c.ChunkRows != 0 {
		r.ChunkRows = []int{c.ChunkRows}
	}
	return r
}

// Plan chooses how to cut the step so that it fits the target's budget. If it cannot fit, the plan says what is missing
// and the largest batch size that fits, and the error is a fault of kind Memory with both.
func (d DryRun) Plan(c Choice) (plan.Plan, error) {
	target := d.Target()
	p, err := plan.Choose(d.request(c, target), d.Record)
	p.Memory.Reserve = target.Reserve
	if err != nil || p.Verdict == plan.Ready {
		return p, err
	}
	largest, err := d.largestBatch(c, target)
	if err != nil {
		return p, err
	}
	p.Largest = &largest
	one := int64(0)
	if largest.Size == 0 {
		c.BatchSize = 1
		if one, err = d.request(c, target).Need(d.Record); err != nil {
			return p, err
		}
	}
	return p, d.refusal(p, one)
}

// searched is how many positions the steps have that LargestBatch looks at, and searchedRows how many rows, which may be
// as many micro-batches: a dry run takes time for each. Larger steps than these two million positions fit in few
// memories, and few want them.
const (
	searched     = 1 << 21
	searchedRows = 1 << 13
)

// LargestBatch returns the largest batch size that fits with what c leaves open. It does not depend on c.BatchSize.
func (d DryRun) LargestBatch(c Choice) (plan.LargestBatch, error) {
	return d.largestBatch(c, d.Target())
}

func (d DryRun) largestBatch(c Choice, target dry.Target) (plan.LargestBatch, error) {
	rows := uint64(d.SeqLen) * uint64(d.Accum) // positions of a step, for each row of the batch size
	if over, ok := product(uint64(d.SeqLen), uint64(d.Accum)); !ok || over > maxPositions {
		return plan.LargestBatch{}, nil
	}
	most := maxPositions / rows
	limit := min(most, max(1, min(searched/rows, searchedRows/uint64(d.Accum))))
	n, err := plan.Largest(int(limit), target.Budget, func(n int) (int64, error) {
		c := c
		c.BatchSize = n
		need, err := d.request(c, target).Need(d.Record)
		if err != nil || target.Budget > 0 && need > target.Budget {
			return need, err
		}
		lessons, err := d.lessonsNeed(n)
		return max(need, lessons), err
	})
	return plan.LargestBatch{Size: n, IsBound: n == int(limit) && limit < most}, err
}

// refusal is the fault of a step that does not fit; its hint ends with the plan's table. one is what a
// batch of one row takes, where that does not fit either.
func (d DryRun) refusal(p plan.Plan, one int64) error {
	hint := fmt.Sprintf("not even --batch-size 1 fits, which needs %s: lower --seq-len, or choose smaller models",
		plan.Amount(one))
	if l := p.Largest; l.Size > 0 && l.IsBound {
		hint = fmt.Sprintf("a batch size of %d fits, larger ones were not looked at: lower --batch-size, --grad-accum or --seq-len", l.Size)
	} else if l.Size > 0 {
		hint = fmt.Sprintf("the largest batch size that fits is %d: lower --batch-size, --grad-accum or --seq-len", l.Size)
	}
	setting := p.Setting.String()
	if d.Form.HostLayers {
		setting += ", layers of the teacher from the host"
	}
	return fault.New(fault.Memory, "a step of %d × %d rows of %d positions does not fit: it needs %s, %s are available",
		d.Accum, p.BatchSize, d.SeqLen, plan.Amount(p.Memory.Total), plan.Amount(p.Memory.Available)).
		WithHint("%s\n%s:\n%s", hint, setting, strings.TrimSuffix(p.Memory.Table(), "\n")).WithID("E-DISTILL-005")
}

// Cut makes t run its steps as s says.
func (t *Trainer) Cut(s plan.Setting) {
	t.MicroRows, t.Recompute, t.Loss.ChunkRows = s.MicroRows, s.Recompute, s.ChunkRows
}

// dryRun describes the run's step.
func (in *inputs) dryRun(c Config, target func() dry.Target) DryRun {
	var more []*model.Outline
	for _, f := range in.more {
		more = append(more, model.Describe(f))
	}
	d := DryRun{
		Target: target, Teacher: model.Describe(in.teacher), More: more, Ensemble: c.Ensemble, Student: in.studentConfig, Loss: c.Loss, Vocab: in.vocab,
		SeqLen: c.SeqLen, Accum: c.GradAccum, Control: c.Control, Apart: c.DocumentMask, Balance: c.RouterBalance, Guide: c.Guide, Adapter: in.adapter,
		Types: in.types, Ranks: c.Ranks, OnPolicy: c.OnPolicy,
	}
	d.elsewhere, d.bring = in.elsewhere, nil
	if d.said, d.dry = in.cache, true; in.made != nil {
		d.said = in.made
	}
	d.projected, d.words = in.projected.idle(), in.words.idle()
	if in.choice != nil && in.choice.Chosen != nil {
		d.GroupRows = in.choice.Chosen.Rows
	}
	if d.Adapter != nil {
		d.Base, d.SameFile = model.Describe(in.student), sameFile(c.Teacher, c.Student)
	}
	return d
}

// recordPlan writes down how the steps are cut and what they need.
func (r *Run) recordPlan() error {
	p := r.in.planned
	detail := map[string]any{"micro_rows": p.MicroRows, "chunk_rows": p.ChunkRows, "recompute": p.Recompute.String()}
	reason := "as asked for"
	if p.Record != nil {
		detail["memory"], detail["costs"] = p.Memory, p.Costs
		reason = fmt.Sprintf("the step, run dry, needs %s of %s", plan.Amount(p.Memory.Total), plan.Amount(p.Memory.Available))
		if p.Memory.Available == 0 {
			reason = fmt.Sprintf("the step, run dry, needs %s; how much there is, is not known", plan.Amount(p.Memory.Total))
		}
	}
	r.obs.Detail("plan: %v: %s", p.Setting, reason)
	return r.dir.Event("decision", "plan", detail, reason)
}

// product multiplies, and reports whether the result fits.
func product(factors ...uint64) (uint64, bool) {
	p := uint64(1)
	for _, f := range factors {
		hi, lo := bits.Mul64(p, f)
		if hi != 0 {
			return 0, false
		}
		p = lo
	}
	return p, true
}
