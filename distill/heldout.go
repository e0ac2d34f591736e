package distill

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"apr/corpus"
	"apr/eval"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	runlog "apr/run/log"
)

// HeldOut is what the evaluation at the end of a run came to.
type HeldOut struct {
	Evaluations []Evaluation `json:"evaluations"`
	Margins     []Margin     `json:"margins"`
	Canaries    []Canary     `json:"canaries"`
	Experts     []ExpertUse  `json:"experts,omitempty"`
}

// ExpertUse is how a model spreads the positions of the held-out text over the experts of a layer. Shares are of an
// equal one: all are 1 where each expert serves as many positions.
type ExpertUse struct {
	Model   string  `json:"model"`
	Layer   int     `json:"layer"`
	Experts int     `json:"experts"`
	Unused  int     `json:"unused"` // that serve no position
	Least   float64 `json:"least"`  // the smallest share
	Most    float64 `json:"most"`
}

// expertUse makes the records of a model's experts.
func expertUse(s eval.Scores) (all []ExpertUse) {
	for _, l := range s.Experts {
		sum, unused := int64(0), 0
		for _, n := range l.Slots {
			sum += n
			if n == 0 {
				unused++
			}
		}
		equal := float64(sum) / float64(len(l.Slots))
		all = append(all, ExpertUse{s.Name, l.Layer, len(l.Slots), unused, float64(slices.Min(l.Slots)) / equal, float64(slices.Max(l.Slots)) / equal})
	}
	return all
}

// Evaluation is one line of the final table. KL and Top1 compare with the teacher.
type Evaluation struct {
	Name         string           `json:"name"`
	Targets      int64            `json:"targets"`
	NatsPerToken float64          `json:"nats_per_token"`
	Error        runlog.Number    `json:"nats_standard_error"` // null: too little text to judge
	Interval     [2]runlog.Number `json:"nats_interval_95"`
	Perplexity   runlog.Number    `json:"perplexity"`     // null: beyond float64, of a teacher that is damaged
	BitsPerByte  runlog.Number    `json:"bits_per_byte"`  // see eval.BitsPerByte; null: the bytes of the text are not known
	KL           runlog.Number    `json:"kl"`             // null: there is no teacher, but its cache
	Top1         runlog.Number    `json:"top1_agreement"` // null, likewise
	Acceptance   runlog.Number    `json:"acceptance"`     // as a draft of the teacher: mean Σ min(p, q); null, likewise
}

// Margin is by how many nats per token the distilled student is better than another model on the same text, window by
// window.
type Margin struct {
	Over     string           `json:"over"`
	Nats     runlog.Number    `json:"nats_per_token"`
	Error    runlog.Number    `json:"standard_error"`
	Interval [2]runlog.Number `json:"interval_95"`
	Blocks   int              `json:"blocks"` // of neighbouring windows, by whose spread the error is judged
}

// Canary is a broken variant of the distilled student that went through the same evaluation.
type Canary struct {
	Name       string        `json:"name"`
	What       string        `json:"what"` // was done to the student
	Targets    int64         `json:"targets"`
	Nats       runlog.Number `json:"nats_per_token"`
	Perplexity runlog.Number `json:"perplexity"`
	Margin     Margin        `json:"margin"` // of the student over it
	Caught     bool          `json:"caught"` // the margin is at least eval.CanaryErrors standard errors, or it has no score
}

// PhaseEvaluation is the phase after the last leg.
const PhaseEvaluation = "evaluating on held-out text"

// Names of the models of an evaluation.
const (
	nameTeacher, nameUntrained   = "teacher", "untrained student"
	nameDistilled, nameControl   = "distilled student", "control student"
	canaryZeroed, canaryShuffled = "zeroed", "shuffled"
)

// margin makes the record of an estimate.
func margin(over string, e eval.Estimate) Margin {
	low, high := e.Interval()
	return Margin{over, runlog.Number(e.Mean), runlog.Number(e.StandardError), [2]runlog.Number{runlog.Number(low), runlog.Number(high)}, e.Blocks}
}

// evaluate scores teacher and students on the held-out windows, then canaries of the student in the file final, and
// writes it down. Of the canaries' weights nothing is kept but in the student's own memory: its weights are lost.
func (r *Run) evaluate(ctx context.Context, teachers []*model.Model, student *model.Model, subjects []eval.Subject, out *Outcome) error {
	if r.in.held == nil {
		r.obs.Detail("no held-out data: nothing is evaluated")
		return nil
	}
	r.obs.Phase(PhaseEvaluation)
	final, err := r.in.openFinal(r.Config)
	if err != nil {
		return err
	}
	defer final.Close()
	out.HeldOut, err = r.scoreHeldOut(ctx, teachers, student, final, subjects)
	if errors.Is(err, context.Canceled) {
		return r.stoppedAfterTraining()
	}
	if err != nil {
		return err
	}
	if err := r.checkTeacher(out.Evaluations); err != nil {
		return err
	}
	for _, c := range out.Canaries {
		if !c.Caught {
			r.obs.Message("the distilled student is not surely better than the canary %q (%s): its score says nothing", c.Name, c.What)
		}
	}
	if len(out.Experts) > 0 {
		if err := r.dir.Event("evaluation", "expert use", out.Experts, "positions of the held-out text by layer, shares of an equal one"); err != nil {
			return err
		}
	}
	return errors.Join(
		r.dir.Event("evaluation", "held-out", out.Evaluations, fmt.Sprintf("windows of %d targets over %d held-out documents", r.SeqLen, len(r.in.held.Docs))),
		r.dir.Event("evaluation", "margins", out.Margins, "of the distilled student, over blocks of neighbouring windows that all models saw"),
		r.dir.Event("evaluation", "canaries", out.Canaries, fmt.Sprintf("broken variants of the distilled student, through the same evaluation; it must beat them by %d standard errors", eval.CanaryErrors)))
}

// recordHeldOut writes down which text the run is scored on, before its first score.
func (r *Run) recordHeldOut() error {
	if r.in.held == nil {
		return nil
	}
	text, ok := r.in.records["eval_data"]
	name := filepath.Base(text.Path)
	switch {
	case ok:
	case r.in.heldName != "":
		name = r.in.heldName
	default:
		name = fmt.Sprintf("%g %% of %s", 100*r.ValFraction, filepath.Base(r.in.records["data"].Path))
	}
	return r.dir.Event("record", runlog.HeldOutText, map[string]any{"sha256": r.heldOutIdentity(), "name": fmt.Sprintf("%s in windows of %d", name, r.SeqLen),
		"tokens": len(r.in.held.IDs), "documents": len(r.in.held.Docs), "cut_tokens": r.in.cut}, "scores of runs can be compared where it is equal")
}

// checkTeacher reports a teacher that knows no more of the held-out text than how often each id occurs in the training
// text, or that each id occurs: it was never trained, its file or configuration is wrong, or the text, or its ids, are
// not what it was trained on.
func (r *Run) checkTeacher(all []Evaluation) error {
	uniform := math.Log(float64(r.in.vocab))
	frequencies := unigram(r.in.train, r.in.held, r.in.vocab)
	if p := r.in.projected; p != nil { // the teacher's score is of its own ids
		uniform, frequencies = math.Log(float64(p.pair.W.TeacherIDs)), math.Inf(1)
	}
	for _, e := range all {
		if e.Name != nameTeacher || !(e.NatsPerToken >= min(uniform, frequencies)) {
			continue
		}
		detail := map[string]any{"nats_per_token": runlog.Number(e.NatsPerToken), "uniform": uniform, "frequencies": runlog.Number(frequencies)}
		if e.NatsPerToken > uniform {
			r.obs.Message("warning: the teacher has %.3f nats per token on the held-out text, more than the %.3f of a model that gives all %d ids the same probability: are text and ids those that it was trained on?",
				e.NatsPerToken, uniform, r.in.vocab)
			return r.dir.Event("warning", runlog.TeacherBelowUniform, detail, "there is nothing to learn from it on this text")
		}
		r.obs.Message("warning: the teacher has %.3f nats per token on the held-out text, and a guess by the frequencies of the training text has %.3f: it knows nothing of this text but how often its tokens occur. Was it trained, are its files whole, is config.json its own (rope_theta, rms_norm_eps), is the text of a kind that it knows?",
			e.NatsPerToken, min(uniform, frequencies))
		return r.dir.Event("warning", runlog.TeacherBelowFrequencies, detail, "it knows nothing of this text but how often its tokens occur")
	}
	return nil
}

// unigram returns the cross-entropy in nats of the targets of held under the frequencies of those of train, of v ids:
// the mean of
//
//	−log (n(id) + 1) / (N + v)
func unigram(train, held *corpus.Tokens, v int) float64 {
	count, all := make([]int64, v), int64(v)
	eachTarget(train, func(id int32) { count[id]++; all++ })
	sum, n := 0.0, 0
	eachTarget(held, func(id int32) {
		sum += math.Log(float64(all)) - math.Log(float64(count[id]+1))
		n++
	})
	return sum / float64(n)
}

func eachTarget(t *corpus.Tokens, f func(id int32)) {
	for i, id := range t.IDs {
		if i > 0 && (t.Mask == nil || t.Mask[i] != 0) {
			f(id)
		}
	}
}

// heldOutIdentity is a hash of what scores are made on: the ids, which of them count, and how they are read.
func (r *Run) heldOutIdentity() string {
	read := fmt.Sprintf("%s, windows of %d, documents apart %v, %d ids", r.in.heldOut, r.SeqLen, r.DocumentMask, r.in.vocab)
	return fmt.Sprintf("%x", sha256.Sum256([]byte(read)))
}

// passes tell how far all passes over the held-out text are, the first of several models, the others of one each.
type passes struct {
	tell        func(done, total int)
	models, all int     // of this pass, and of all
	before      int     // models of the passes before this one
	share       float64 // of this pass that is done
}

// advance takes in how far a pass is. One that is not further than it was is the next.
func (p *passes) advance(done, total int) {
	share := float64(done) / float64(max(1, total))
	if share <= p.share {
		p.before, p.models = p.before+p.models, 1
	}
	p.share = share
	p.tell(min(p.before*total+p.models*done, p.all*total), p.all*total)
}

// heldOutWindows cuts the held-out text into windows that are read as the rows of training.
func (r *Run) heldOutWindows() (*corpus.Windows, error) {
	w, err := corpus.NewWindows(r.in.held, r.SeqLen, r.SeqLen)
	if err == nil {
		w.Documents = r.DocumentMask
	}
	return w, err
}

// scoreHeldOut scores subjects on the held-out windows beside the teacher, and canaries of the model in final in the
// memory of student.
func (r *Run) scoreHeldOut(ctx context.Context, teachers []*model.Model, student *model.Model, final *modelfile.Files, subjects []eval.Subject) (h HeldOut, err error) {
	w, err := r.heldOutWindows()
	if err != nil {
		return h, err
	}
	far := passes{tell: r.obs.Advance, models: len(subjects), all: len(subjects) + 2} // and the canaries
	if student.Adapted() {
		far.all--
	}
	if r.in.projected != nil {
		far.all++
	}
	options := eval.Options{Vocab: r.in.vocab, ChunkRows: r.ChunkRows, Progress: far.advance}
	scores, err := r.compare(ctx, teachers, subjects, w, options)
	if err != nil {
		return h, err
	}
	var distilled eval.Scores
	if r.in.projected != nil {
		if e, ok, err := r.scoreTheirs(ctx, teachers[0], options); err != nil {
			return h, err
		} else if ok {
			h.Evaluations = append(h.Evaluations, e)
		}
	}
	for _, s := range scores {
		h.Evaluations = append(h.Evaluations, r.evaluation(s))
		h.Experts = append(h.Experts, expertUse(s)...)
		if s.Name == nameDistilled {
			distilled = s
		}
	}
	for _, s := range scores {
		if s.Name != nameDistilled && s.Name != nameTeacher {
			h.Margins = append(h.Margins, margin(s.Name, distilled.Margin(s)))
		}
	}
	h.Canaries, err = r.canaries(ctx, student, final, distilled, w, options)
	return h, err
}

// compare scores subjects beside the teacher, one of the subjects, which has no model yet.
func (r *Run) compare(ctx context.Context, teachers []*model.Model, subjects []eval.Subject, w *corpus.Windows, o eval.Options) ([]eval.Scores, error) {
	if r.in.cache != nil || r.in.projected != nil { // it has no rows of held-out text, or other ids
		return eval.Compare(ctx, r.stream, nil, subjects[1:], w, o)
	}
	if len(r.in.more) > 0 || r.in.elsewhere {
		o.Reference = r.Ensemble.joined(teachers, r.dev.Info(), r.SeqLen, 1)
		if g := r.Config.Ranks; r.in.elsewhere && g.Split {
			planned := r.in.dryRun(r.Config, nil).lessonRows(r.BatchSize) // of sections
			o.Rows = min(eval.RowsFor(r.SeqLen), planned)
		}
		return eval.Compare(ctx, r.stream, nil, subjects, w, o)
	}
	subjects = slices.Clone(subjects)
	subjects[0].Model = teachers[0]
	return eval.Compare(ctx, r.stream, teachers[0], subjects, w, o)
}

// evaluation is the record of a model's scores.
func (r *Run) evaluation(s eval.Scores) Evaluation {
	kl, compared := s.KL()
	top1, _ := s.Top1()
	acceptance, _ := s.Acceptance()
	if !compared {
		kl, top1, acceptance = math.NaN(), math.NaN(), math.NaN()
	}
	m := margin("", s.Nats())
	return Evaluation{Name: s.Name, Targets: s.Targets, NatsPerToken: s.NatsPerToken(), Error: m.Error, Interval: m.Interval,
		Perplexity: runlog.Number(s.Perplexity()), BitsPerByte: runlog.Number(eval.BitsPerByte(s.NatsPerToken(), r.in.held)),
		KL: runlog.Number(kl), Top1: runlog.Number(top1), Acceptance: runlog.Number(acceptance)}
}

// canaries scores two broken variants of the model in final, in the memory of student: one that knows nothing, and one
// whose weights are the right ones in the wrong places. Each costs one forward pass of the student over the held-out
// text; of a student with adapters it is one, see noiseCanary. All six canaries, and a gate, are those of apr eval.
func (r *Run) canaries(ctx context.Context, student *model.Model, final *modelfile.Files, distilled eval.Scores, w *corpus.Windows, o eval.Options) (all []Canary, err error) {
	score := func(name, what string) (c Canary, err error) {
		scores, err := eval.Compare(ctx, r.stream, nil, []eval.Subject{{Name: name, Model: student.Frozen()}}, w, o)
		// Scored to its end with a loss that is not finite: no score is no good one. A device that fails has no scores.
		failed := fault.KindOf(err) == fault.Inference && len(scores) == 1
		if err != nil && !failed {
			return c, err
		}
		s := scores[0]
		e := distilled.Margin(s)
		return Canary{Name: name, What: what, Targets: s.Targets, Nats: runlog.Number(s.NatsPerToken()),
			Perplexity: runlog.Number(s.Perplexity()), Margin: margin(name, e), Caught: failed || e.Mean > 0 && e.Mean >= eval.CanaryErrors*e.StandardError}, nil
	}
	if student.Adapted() {
		c, err := r.noiseCanary(student, score)
		return []Canary{c}, err
	}
	for _, c := range eval.Canaries(final, r.in.vocab, 0, r.Seed) {
		if c.Name != canaryZeroed && c.Name != canaryShuffled {
			continue
		}
		if err := student.LoadRead(r.stream, c.Files); err != nil {
			return nil, err
		}
		k, err := score(c.Name, c.What)
		if err != nil {
			return nil, err
		}
		all = append(all, k)
	}
	return all, nil
}
