package distill

import (
	"context"
	"fmt"
	"math"
	"slices"

	"apr/arch"
	"apr/corpus"
	"apr/device"
	"apr/modelfile"
	runlog "apr/run/log"
	"apr/teacher"
)

// noDivergence is a divergence in nats that arithmetic in float32 makes of zero.
const noDivergence = 1e-6

// agreeing is the part of the teacher's entropy up to which the divergence before the first step says that the student
// agrees with the teacher before it was trained. On gosrc, copies of other shapes measure 0 to 0.04, in codes of 4 bits
// 0.08 to 0.3, students that were trained from other numbers 0.5 and more, new ones 3.
const agreeing = 0.2

// agreeingFrame is that part where both models have the same hidden size, layers, heads and head size, so that the
// student may be a copy with another MLP, another order or codes of few bits.
const agreeingFrame = 0.4

// agreeingTable is that part where the embedding is the teacher's, whatever the layers are: codes of 4 bits after AWQ's
// scales measure up to 0.6. A pruned student of other shapes in its MLP has more to learn, and so has a new one that
// was given the table.
const agreeingTable = 1.0

// agreeingFirst is the part of positions with one first id from which the student is a copy whatever the divergence
// says: its logits may be scaled, or have another number added. Models of one kind that were trained apart agree at up
// to 0.8 of them.
const agreeingFirst = 0.9

// agreeingIDs is the part of positions with one first id below which no divergence says that the student is a copy,
// unless its embedding is the teacher's: a teacher that was never trained has an entropy that any new student is near.
const agreeingIDs = 0.25

// sameTable is the mean cosine of the rows of two embeddings from which they are one. Codes of 4 bits leave 0.99, of 3
// bits 0.94; rows of models that were trained from other numbers measure 0.
const sameTable = 0.9

// firstReading compares the student with the teacher before any training: means over the targets of a batch, at
// temperature 1.
type firstReading struct {
	kl, entropy, top1 float64         // KL(teacher‖student) and H(teacher) in nats, and the part of positions at which both choose the same id
	read              bool            // else these three are taken from the step's record
	tempered          temperedReading // the same with the student's logits at another temperature

	// Of a teacher with another tokenizer: at how many positions that it teaches these were read, or over which spans.
	taught    int
	overSpans spansReading
}

// take reads the record of a step of forward KL at temperature 1.
func (r *firstReading) take(sc device.Scalars) {
	r.kl, r.entropy, r.top1, r.read = sc.D*sc.InvN, sc.Entropy*sc.InvN, float64(sc.Agree)*sc.InvN, true
}

// estimated takes the divergence that draws of a cache estimate, and the entropy that the cache has. A draw is an id of
// the teacher's distribution, so that the id drawn most often is its first nearly always.
func (r *firstReading) estimated(rec Record) {
	r.entropy += r.kl - rec.MeanD
	r.kl = rec.MeanD
}

// described is the teacher's description, also where it is read from a cache.
func (in *inputs) described() arch.Config {
	if in.cache != nil {
		return in.taughtBy
	}
	return in.teacher.Config
}

// side is the teacher that a first reading is of.
type side struct {
	kin    *runlog.Kinship // to the student; nil: not compared, or a new student
	config arch.Config
	name   string // among the files of routed teachers; "": of the run's teacher, or the mixture of several
}

// teacherSide is the side of the run's teacher; of several in a mixture, of the one that is nearest to the student.
func (in *inputs) teacherSide() side {
	at := side{kin: in.kin, config: in.described()}
	if i := slices.Index(in.kins, in.kin); i > 0 {
		at.config = in.teachers()[i].Config
	}
	return at
}

// routeReading is what was read of one of several teachers, on rows of its own.
type routeReading struct {
	of      side
	first   firstReading
	targets int
}

// readRoutes reads, for each teacher that documents are routed to, the first rows of the data that are its own: the
// first batch may have none of them. Ranks all read the same ones. A teacher that no row goes to is not read.
func (l *leg) readRoutes(ctx context.Context) error {
	l.routes = l.routes[:0]
	for way, f := range l.run.in.teachers() {
		b := l.loader.FirstOf(way)
		b = b.Slice(0, min(b.Rows, l.run.Config.Ranks.shareOf(l.run.Rows())))
		n := b.TargetCount()
		if n == 0 {
			continue
		}
		at := routeReading{of: side{config: f.Config, name: l.run.Teachers()[way]}, targets: n}
		if kins := l.run.in.kins; kins != nil {
			at.of.kin = kins[way]
		}
		var err error
		if at.of.kin != nil {
			if at.first.tempered, err = l.trainer.tempered(b); err != nil {
				return err
			}
		}
		sc, err := l.trainer.agreement(ctx, b)
		if err != nil {
			return err
		}
		at.first.take(sc)
		l.routes = append(l.routes, at)
	}
	return nil
}

// firstApplied reports whether the step that was applied last was the first with this teacher.
func (l *leg) firstApplied() bool { return l.trainer.Optimizer.Applied == l.met+1 }

// untaught says before what a first reading was made.
func (l *leg) untaught(k int) string {
	if l.met == 0 {
		return "before any training"
	}
	return fmt.Sprintf("before step %d, the first with another teacher,", k)
}

// readFirst reads the first batch before a step with this teacher is applied. For a student that was given it fits the
// temperature of the student's logits. If the run descends another divergence than forward KL at temperature 1, or
// trains with dropout, it computes that one too, without dropout, which the step's record will not have. Each reading
// takes at most the time and the memory of a step, once.
func (l *leg) readFirst(ctx context.Context, b corpus.Batch) (r firstReading, err error) {
	if l.trainer.Optimizer.Applied != l.met || l.teacher == nil || b.TargetCount() == 0 {
		return r, nil
	}
	spec, drops := l.trainer.Loss.Spec, l.trainer.Student.Dropping()
	defer l.trainer.Student.WithoutDropout()()
	if l.partial() {
		return l.readAligned(b)
	}
	if l.run.Ensemble.routed() {
		return r, l.readRoutes(ctx)
	}
	if l.run.in.kin != nil {
		if r.tempered, err = l.trainer.tempered(b); err != nil {
			return r, err
		}
	}
	plain := spec.Divergence == device.ForwardKL && spec.Temperature == 1
	if l.estimates() { // draws are of one temperature
		plain, drops = true, drops && spec.Temperature == 1
	}
	if plain && !drops {
		return r, nil
	}
	sc, err := l.trainer.agreement(ctx, b)
	if err != nil {
		return r, err
	}
	r.take(sc)
	if e, ok := l.teacher.(teacher.Estimator); ok { // as Trainer.estimated corrects a record
		sum, _ := e.Entropy()
		off := (sc.Entropy - sum) * sc.InvN
		r.kl, r.entropy = r.kl+off, r.entropy-off
	}
	return r, nil
}

// agreement computes what a step of forward KL at temperature 1 records of b, and applies nothing. The gradients are
// those of no step; each step zeroes them first.
func (t *Trainer) agreement(ctx context.Context, b corpus.Batch) (device.Scalars, error) {
	spec := t.Loss.Spec
	defer func() { t.Loss.Spec = spec }()
	t.Loss.Spec = device.LossSpec{Alpha: spec.Alpha, Temperature: 1, Divergence: device.ForwardKL}
	t.gradients(b, b.TargetCount())
	sc, err := t.stream.Wait(ctx)
	if err != nil {
		return sc, fmt.Errorf("before step %d: %w", t.Steps, err)
	}
	return sc, nil
}

// checkFirst reports a student that agrees with the teacher before the first step although their values are different:
// a copy that a comparison of values cannot see, such as one with its neurons in another order, or of other shapes. The
// first step is that before which none was applied, or none with this teacher where a run goes on with another one: a
// step that is refused says nothing, and leaves the student as it was. A divergence of nothing is told once, at
// whatever step.
func (l *leg) checkFirst(k int, rec Record, first firstReading) error {
	if l.teacher == nil || rec.Refused() {
		return nil
	}
	if len(l.routes) > 0 && l.firstApplied() {
		told := false
		for _, at := range l.routes {
			l.equal = false // it is told of each
			if err := l.judgeFirst(k, at.of, at.first, at.targets); err != nil {
				return err
			}
			told = told || l.equal
		}
		l.equal = told
		return nil
	}
	of := l.teacherSide()
	if l.partial() && !of.known() {
		return l.checkAligned(k, of, first)
	}
	undropped := first.read
	if !first.read {
		first.take(rec.Scalars)
	}
	if of.known() {
		return l.checkBlocks(k, first)
	}
	if l.estimates() {
		if rec.Soft || l.trainer.Loss.Spec.Temperature != 1 {
			return l.checkEmbedding(k, of, first) // the divergence, or that at temperature 1, is not known
		}
		if !undropped { // else it is estimated
			first.estimated(rec)
		}
	}
	return l.judgeFirst(k, of, first, rec.Targets)
}

// unrounded is the divergence in nats up to which blocks change nothing of a student. On gosrc its own bfloat16 values
// in Q8_0 measure 5e-4, values that Q8_0 and Q4_K decoded to, in these blocks again, 0 and 2e-6.
const unrounded = 1e-5

// checkBlocks reports, after the first applied step, a student that is its teacher, is trained in quantised blocks, and
// was in them before: it has nothing to learn. Draws only estimate the divergence.
func (l *leg) checkBlocks(k int, first firstReading) error {
	if l.run.Quantize == nil || !l.firstApplied() || l.estimates() || l.partial() {
		return nil
	}
	if !(math.Abs(first.kl) <= unrounded) {
		return nil
	}
	scheme := l.run.Quantize.Scheme
	l.run.obs.Message("warning: the divergence of step %d is %.1e: the student's weights are in %s already, so that "+
		"there is nothing to learn; start from the model that was quantised, or take other blocks", k, first.kl, scheme)
	return l.run.dir.Event("warning", runlog.BlocksChangeNothing, map[string]any{"leg": l.name, "step": k,
		"kl": first.kl, "at_most": unrounded, "scheme": scheme},
		"the student is the teacher, and its blocks hold the same values")
}

// known reports whether the values say that both are one model, so that no reading has to.
func (s side) known() bool { return s.kin != nil && s.kin.Relation != string(modelfile.Different) }

// tell tells and records one warning of a first reading.
func (l *leg) tell(of side, event string, detail map[string]any, reason, format string, args ...any) error {
	who := ""
	if of.name != "" {
		who, detail["teacher"] = of.name+": ", of.name
	}
	l.run.obs.Message("warning: "+who+format, args...)
	return l.run.dir.Event("warning", event, detail, reason)
}

// judgeFirst reports what a first reading of so many positions says of one teacher.
func (l *leg) judgeFirst(k int, of side, first firstReading, positions int) error {
	if of.known() {
		return nil
	}
	if !l.estimates() && math.Abs(first.kl) <= noDivergence && !l.equal {
		l.equal = true
		detail, where := map[string]any{"leg": l.name, "step": k, "kl": first.kl, "at_most": noDivergence}, ""
		if first.taught > 0 {
			detail["positions"], where = first.taught, fmt.Sprintf(" at %d positions that the teacher teaches", first.taught)
		}
		return l.tell(of, runlog.FirstStepEqual, detail,
			"the student computes what the teacher computes, though its file is another one",
			"the divergence of step %d%s is %.1e: before it the student gives the teacher's distribution; "+
				"is it a copy of the teacher?", k, where, first.kl)
	}
	if !l.firstApplied() {
		return nil
	}
	if !(first.top1 >= agreeingIDs) && !(positions >= fewPositions && l.run.in.alikeAndNear(of, first)) {
		return l.judgeFew(k, of, first, positions)
	}
	part, why := l.run.in.agreeingPart(of)
	if positions < fewPositions && smaller(l.run.in.studentConfig, of.config) {
		part, why = agreeing, "" // a pruned student keeps the teacher's embedding and still predicts some ids
	}
	detail := map[string]any{"leg": l.name, "step": k, "top1_agreement": first.top1}
	if !(first.kl <= part*first.entropy) {
		switch t := first.tempered; {
		case t.positions > 0 && t.kl <= part*t.entropy:
			first.kl, first.entropy, detail["temperature"] = t.kl, t.entropy, t.temperature
			why = fmt.Sprintf(" once its logits are divided by %.2g%s", t.temperature, why)
		case first.top1 >= agreeingFirst && positions >= fewPositions:
			return l.sameFirstIDs(k, of, detail, first, positions)
		default:
			return l.judgeFew(k, of, first, positions)
		}
	}
	detail["kl"], detail["entropy"], detail["at_most"] = first.kl, first.entropy, part*first.entropy
	return l.tell(of, runlog.FirstStepAgrees, detail,
		"the student agrees with the teacher before it was trained"+why+": it may be a copy of it, or was made from it",
		"%s the student already agrees with the teacher: the same first id at %.0f %% of %d positions, "+
			"a divergence of %.2g nats, %.2g of the teacher's entropy%s; is it a copy in other shapes or types?",
		l.untaught(k), 100*first.top1, positions, first.kl, first.kl/first.entropy, why)
}

// alikeTable is the likeness of two embeddings, a mean cosine or a correlation of angles, from which a student is told
// without a divergence. On gosrc, copies in codes of 4 bits measure, by rows and by groups of 32 to 128, 0.992 to
// 0.995, and with turned columns, by angles alone, 0.989 to 0.992; by the 16 rows of a cache 0.984 to 0.994, by 8 of
// them 0.981 and more. What was cut out of the teacher measures 1; what was trained on from it for 60 steps at a rate
// of 1e-3 0.9996, for 200 at 3e-3 0.986, for 60 at 1e-2 0.967: these are told by their values as well. Models that were
// trained from other numbers measure 0, with 16 rows up to 0.15.
const alikeTable = 0.96

// agreeingCut is the part of positions with one first id from which a student with the teacher's embedding is told
// although it is smaller. On gosrc, by the id that a cache's 50 draws have most often, students that were cut to 2, 3
// and 5 of 6 layers or to a third of the neurons measure 0.21 to 0.50, copies 0.66 (at temperature 2) to 0.90 (at 1).
// At temperature 4 copies measure 0.31 and 0.35, a student with 5 layers 0.23, at 8 all the same.
const agreeingCut = 0.58

// agreeingSpans is the mean difference of the likelihoods of spans, in nats, up to which a smaller student with the
// teacher's embedding is told beside a teacher that is compared by them. On gosrc, a copy without a layer that did
// nothing, its values off by a hundredth, measures 0.03, in codes of 4 bits besides 0.5; students that were cut to 5
// of 6 layers 1.2 and more.
const agreeingSpans = 0.1

// checkEmbedding reports, after the first applied step, a student that has the teacher's embedding, of which the step
// says that both choose the same first id at some of the positions, or how they differ over spans. It stands in for the
// divergence where a step does not record one: a teacher that teaches at some positions only, draws without entropies,
// draws at another temperature. A student that was cut out of the teacher has that embedding too and much to learn, so
// that a smaller one is told only if it agrees.
func (l *leg) checkEmbedding(k int, of side, first firstReading) error {
	if !l.firstApplied() || !of.alike() {
		return nil
	}
	why := "the first step does not say whether it computes the same"
	if smaller(l.run.in.studentConfig, of.config) {
		switch r := first.overSpans; {
		case first.top1 >= agreeingCut:
			why = fmt.Sprintf("it already chooses the teacher's first id at %.0f %% of the positions", 100*first.top1)
		case r.spans >= fewPositions && r.apart <= agreeingSpans:
			why = fmt.Sprintf("it gives %d spans of text likelihoods that differ from the teacher's by %.2g nats on average",
				r.spans, r.apart)
		default:
			return nil
		}
	}
	cosine, angles := of.kin.Embedding, of.kin.Angles
	return l.tell(of, runlog.EmbeddingAgrees, map[string]any{"leg": l.name, "step": k,
		"top1_agreement": first.top1, "cosine": cosine, "angles": angles, "at_least": alikeTable},
		"the student's embedding is the teacher's: it may be a copy of it, or was made from it",
		"the student has the teacher's embedding (mean cosine of rows %.2f, correlation of their angles %.2f), and %s; "+
			"is it a copy?", float64(cosine), float64(angles), why)
}

// smaller reports whether a has fewer layers than b, a smaller hidden size, less width of its heads or fewer neurons. A
// student that was pruned from b is smaller.
func smaller(a, b arch.Config) bool {
	sizes := func(c arch.Config) (heads, neurons int) {
		for _, l := range c.Layers {
			heads += l.Attn.Heads * l.Attn.HeadDim
			neurons += l.FFN.Width + l.FFN.MoE.Shared + l.FFN.MoE.Experts*l.FFN.MoE.Width
		}
		return heads, neurons
	}
	headsA, neuronsA := sizes(a)
	headsB, neuronsB := sizes(b)
	return len(a.Layers) < len(b.Layers) || a.Hidden < b.Hidden || headsA < headsB || neuronsA < neuronsB
}

// fewPositions are too few to say that first ids agree: half a row of the shortest text.
const fewPositions = 8

// judgeFew reports, after a first step of fewer positions than fewPositions, a student that has the teacher's embedding:
// there, rounding that changes one id may hide a copy. A pruned student has the teacher's embedding too and is not
// reported.
func (l *leg) judgeFew(k int, of side, first firstReading, positions int) error {
	if positions >= fewPositions || smaller(l.run.in.studentConfig, of.config) {
		return nil
	}
	return l.checkEmbedding(k, of, first)
}

// alike reports whether the embeddings are so much alike, by rows or by angles, that no divergence is needed.
func (s side) alike() bool {
	return s.kin != nil && (float64(s.kin.Embedding) >= alikeTable || float64(s.kin.Angles) >= alikeTable)
}

// alikeAndNear reports whether a student that is not smaller than a teacher has its embedding and gives nearly its
// distribution: where that is flat, as after a single letter, rounding chooses most first ids.
func (in *inputs) alikeAndNear(of side, first firstReading) bool {
	table := of.sameAngles(in.studentConfig) || of.kin != nil && float64(of.kin.Embedding) >= sameTable
	return table && !smaller(in.studentConfig, of.config) && first.kl <= agreeing*first.entropy
}

// sameFirstIDs reports a student that chooses the teacher's id nearly everywhere, with other probabilities.
func (l *leg) sameFirstIDs(k int, of side, detail map[string]any, first firstReading, positions int) error {
	detail["kl"], detail["entropy"], detail["at_least"] = runlog.Number(first.kl), first.entropy, agreeingFirst
	return l.tell(of, runlog.FirstStepAgrees, detail,
		"the student chooses the teacher's first id before it was trained: it may be a copy of it, or was made from it",
		"%s the student already chooses the teacher's first id at %.0f %% of %d positions, though their "+
			"probabilities differ (a divergence of %.2g nats); is it a copy with other logits?",
		l.untaught(k), 100*first.top1, positions, first.kl)
}

// sameAngles reports whether the rows of both embeddings stand to each other in one way. Of another hidden size that is
// heeded where a student is as large as the teacher at least and from alikeTable on: most students are of another size,
// and of one text. On gosrc, a copy with each column twice measures 1, in codes of 4 bits 0.99.
func (s side) sameAngles(student arch.Config) bool {
	limit := sameTable
	if student.Hidden != s.config.Hidden {
		if limit = alikeTable; smaller(student, s.config) {
			return false
		}
	}
	return s.kin != nil && float64(s.kin.Angles) >= limit
}

// agreeingPart returns the part of the teacher's entropy up to which a student agrees, and what else than the
// divergence says so.
func (in *inputs) agreeingPart(of side) (part float64, why string) {
	switch {
	case of.kin != nil && float64(of.kin.Embedding) >= sameTable:
		return agreeingTable, fmt.Sprintf(", and the rows of its embedding are the teacher's (mean cosine %.2f)",
			float64(of.kin.Embedding))
	case of.sameAngles(in.studentConfig):
		return agreeingTable, fmt.Sprintf(", and the rows of its embedding stand to each other as the teacher's do "+
			"(correlation %.2f)",
			float64(of.kin.Angles))
	case sameFrame(of.config, in.studentConfig):
		return agreeingFrame, ""
	}
	return agreeing, ""
}

// sameFrame reports whether hidden size, layers, heads and head size are equal.
func sameFrame(a, b arch.Config) bool {
	if a.Hidden != b.Hidden || len(a.Layers) != len(b.Layers) {
		return false
	}
	for i := range a.Layers {
		if x, y := a.Layers[i].Attn, b.Layers[i].Attn; x.Heads != y.Heads || x.HeadDim != y.HeadDim {
			return false
		}
	}
	return true
}
