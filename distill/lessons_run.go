package distill

import (
	"context"
	"strings"

	"apr/collective"
	"apr/corpus"
	"apr/device"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/model"
	"apr/plan"
	"apr/teacher"
)

// askAhead asks for what the teacher says of step k, of rows b, and of the step after it, which the teaching ranks
// compute while this one trains. What the student is going to write itself nobody can ask about yet.
func (l *leg) askAhead(k int, b corpus.Batch) error {
	p := l.run.pupil
	if p == nil || l.teacher == nil {
		return nil
	}
	// Before the first step the teacher's answers are read several times.
	p.direct = p.passes() && l.trainer.Optimizer.Applied > l.met
	defer func() { p.direct = false }()
	if l.asked <= k {
		if err := l.ask(b, l.trainer.Optimizer.Applied == l.met); err != nil {
			return err
		}
		l.asked = k + 1
	}
	if l.policy != nil || k+1 >= l.last || l.asked > k+1 {
		return nil
	}
	here := l.loader.Position()
	next, err := l.loader.Next()
	if err := l.loader.Seek(here); err != nil {
		return err
	}
	if err != nil {
		return nil // the step itself says so
	}
	l.asked = k + 2
	return l.ask(next, false)
}

// ask asks for the rows of a step that this rank computes, part by part as the step does, and before the first step
// together, too.
func (l *leg) ask(b corpus.Batch, together bool) error {
	lo, hi, all := l.trainer.Ranks.parts()
	if together && hi-lo > 1 {
		if mine := l.trainer.Ranks.rowsOf(b); mine.TargetCount() > 0 {
			if err := l.run.pupil.ask(mine); err != nil {
				return err
			}
		}
	}
	for i := lo; i < hi; i++ {
		from, to := collective.Shard(b.Rows, i, all)
		if part := b.Slice(from, to); part.TargetCount() > 0 {
			if err := l.run.pupil.ask(part); err != nil {
				return err
			}
		}
	}
	return nil
}

// pairs returns the ranks from whose devices that of a rank receives, and those to which it passes: learning ranks
// receive from the teaching ranks that answer them, each section of a split teacher from the one before. Sections that
// several learning ranks have in common answer through the host.
func (g Group) pairs(rank int) (from, to []int) {
	switch {
	case g.Teachers == 0:
	case g.Split && rank < g.World && g.World == 1:
		from = []int{g.All() - 1}
	case g.Split && rank >= g.World:
		if rank > g.World {
			from = []int{rank - 1}
		}
		switch {
		case rank < g.All()-1:
			to = []int{rank + 1}
		case g.World == 1:
			to = []int{0}
		}
	case g.Split:
	case rank < g.World:
		lo, hi := g.teachers(rank)
		for t := lo; t < hi; t++ {
			from = append(from, g.World+t)
		}
	default:
		for s := range g.World {
			if lo, hi := g.teachers(s); g.World+lo <= rank && rank < g.World+hi {
				to = append(to, s)
			}
		}
	}
	return from, to
}

// pairDevices joins the device of this rank with those that it passes to or receives from, where devices can be: who
// passes makes the id, and the other one learns it from those that proved to be of this run. Sections join the next one
// first, so that no ring of ranks waits.
func (r *Run) pairDevices() error {
	dev, ok := r.dev.(device.Pairer)
	g := r.Config.Ranks
	if !ok || g.Teachers == 0 {
		return nil
	}
	r.comm.OnLost(func(l *collective.Lost) { dev.Part(l) })
	from, to := g.pairs(g.Rank)
	for _, peer := range to {
		id, err := dev.GroupID()
		if err == nil {
			err = r.comm.Post(peer, id)
		}
		if err == nil {
			err = dev.Pair(peer, true, id)
		}
		if err != nil {
			return err
		}
	}
	for _, peer := range from {
		_, id, err := r.comm.Take(peer)
		if err == nil {
			err = dev.Pair(peer, false, id)
		}
		if err != nil {
			return err
		}
	}
	if r.pupil != nil {
		r.pupil.paired = len(from) > 0
	}
	return nil
}

// planLessons plans what a rank that only teaches needs for the candidate k: the teacher, or some of its layers, and a
// pass over as many rows as a learning rank has.
func (d DryRun) planLessons(k *Candidate) (err error) {
	target, rows := d.Target(), d.lessonRows(k.plan.BatchSize)
	if k.lessons, err = d.lessonRecords(rows); err != nil {
		return err
	}
	for _, rec := range k.lessons {
		made := plan.Of(plan.Setting{BatchSize: rows, MicroRows: rows}, rec, target.Budget, plan.Rates{})
		made.Memory.Reserve = target.Reserve
		if k.Lessons == nil || made.Memory.Total > k.Lessons.Total {
			k.Lessons = &made.Memory
		}
		if made.Verdict != plan.Ready {
			k.Verdict, k.Memory = made.Verdict, &made.Memory
			k.Reason = "a rank that only teaches " + needs(made)
			return fault.New(fault.Memory, "a rank that only teaches does not hold its layers of the teacher and a pass over "+
				"%d rows of %d positions: it %s", rows, d.SeqLen, needs(made)).
				WithHint("%s\n%s", d.smallerLessons(k.Backend), made.Memory.Table()).WithID("E-RANKS-066")
		}
	}
	return nil
}

// lessonRecords runs a pass of so many rows dry: of each section, or of the whole teacher.
func (d DryRun) lessonRecords(rows int) ([]*dry.Record, error) {
	if d.Ranks.Split {
		return d.planSections(rows)
	}
	return d.planLesson(rows)
}

// lessonsNeed returns how many bytes the ranks that only teach need for a batch size, the one that needs most; 0: there
// are none.
func (d DryRun) lessonsNeed(batchSize int) (most int64, err error) {
	if !d.elsewhere {
		return 0, nil
	}
	all, err := d.lessonRecords(d.lessonRows(batchSize))
	for _, rec := range all {
		most = max(most, rec.Total())
	}
	return most, err
}

// smallerLessons says what would make a teaching rank need less than with this run's settings.
func (d DryRun) smallerLessons(has teacher.Backend) string {
	var all []string
	if has != teacher.Q4K && has != teacher.CPU {
		all = append(all, "--teacher-backend q4k keeps blocks")
	}
	if d.Ranks.Split {
		all = append(all, "a larger --teacher-ranks makes sections smaller")
	} else {
		all = append(all, "--teacher-split divides layers among the ranks that teach")
	}
	return strings.Join(all, ", ") + "; or lower --batch-size, --grad-accum or --seq-len"
}

// planLesson runs a pass of the whole teacher dry.
func (d DryRun) planLesson(rows int) ([]*dry.Record, error) {
	dev := dry.New(d.Target())
	m, err := d.Teacher.LoadFrozen(dev, device.TeacherWeights, d.Form)
	if err != nil {
		return nil, err
	}
	l := newLecturer(dev, dev.NewStream(), m, rows, d.SeqLen, d.Apart)
	b := rowBatch(rows, d.SeqLen, d.Apart)
	for _, last := range []uint8{0, 1} { // compacted rows are beside all of them
		if b.Mask[len(b.Mask)-1] = last; b.TargetCount() > 0 {
			dev.ResetOps()
			l.begin(b)
			l.teacher.End(l.stream)
		}
	}
	return []*dry.Record{dev.Record()}, nil
}

// lessonsOf returns the record of a teaching rank's pass; nil: there is none.
func (k *Candidate) lessonsOf(g Group) *dry.Record {
	switch {
	case len(k.lessons) == 0:
		return nil
	case g.Split:
		return k.lessons[g.Rank-g.World]
	}
	return k.lessons[0]
}

// lessonRows is how many rows a teaching rank computes at a time: those of a learning rank, divided by its teachers.
func (d DryRun) lessonRows(batchSize int) int {
	rows, n := d.Ranks.shareOf(batchSize*d.Accum), 1
	if d.Ranks.Teachers > d.Ranks.World && !d.Ranks.Split {
		n = d.Ranks.Teachers / max(1, d.Ranks.World)
	}
	return (rows + n - 1) / n
}

// teach is the work of a rank that only teaches.
func (r *Run) teach(ctx context.Context) error {
	r.obs.Phase("loading the teacher")
	rows, form, g := r.in.dryRun(r.Config, nil).lessonRows(r.BatchSize), r.in.choice.Chosen.form, r.Config.Ranks
	stopping := func() bool { return ctx.Err() != nil }
	if g.Split {
		x, err := loadSection(r.dev, r.stream, r.in.teacher, form, g.Rank-g.World, g.Teachers, rows, r.SeqLen,
			r.DocumentMask)
		if err != nil {
			return err
		}
		defer func() { x.batch.Free(r.dev) }()
		_, x.paired = r.dev.(device.Pairer)
		r.obs.Phase("teaching")
		return x.teach(r.comm, g, r.in.teacher.Config.Vocab, stopping, r.Watch)
	}
	m, err := model.LoadFrozenAs(r.dev, r.in.teacher, device.TeacherWeights, form)
	if err != nil {
		return err
	}
	l := newLecturer(r.dev, r.stream, m, rows, r.SeqLen, r.DocumentMask)
	defer l.batch.Free(r.dev)
	r.obs.Phase("teaching")
	return l.teach(r.comm, m.Config.Vocab, stopping, r.Watch)
}

// validateTeachers refuses what ranks that only teach cannot be combined with.
func (c Config) validateTeachers() error {
	g := c.Ranks
	if g.Teachers == 0 && g.Split {
		return fault.New(fault.Usage, "--teacher-split has no effect without --teacher-ranks").WithID("E-RANKS-061")
	}
	if g.Teachers == 0 {
		return nil
	}
	what := ""
	switch bad := func(why string) error {
		return fault.New(fault.Usage, "--teacher-ranks %d %s", g.Teachers, why).WithID("E-RANKS-061")
	}; {
	case g.Split && g.Teachers < 2:
		return bad("leaves nothing to divide by --teacher-split, which needs two of them")
	case g.World < 1:
		return bad("leaves no rank that learns: with N ranks at most N-1 teach")
	case c.Loss.Alpha == 0:
		return bad("has no effect with --alpha 0, which needs no teacher")
	case c.Remote != nil:
		return bad("has no effect with a teacher at tcp://, whose processes teach")
	case c.FromCache != "":
		return bad("has no effect with --cache: what the teacher says is read")
	case len(c.Teachers()) > 1 || c.Ensemble.routed():
		what = "--strategy ensemble"
	case c.Guide.any():
		what = "--strategy progressive or --attention-weight, which compare layers"
	case c.TeacherFP8:
		what = "--teacher-gemm fp8"
	case c.HostExperts:
		what = "--teacher-experts host"
	default:
		return nil
	}
	return fault.New(fault.Unavailable, "not built: --teacher-ranks with %s", what).WithID("E-RANKS-062")
}
