package distill

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"apr/corpus"
	"apr/device"
	"apr/eval"
	"apr/internal/fault"
	"apr/model"
	runlog "apr/run/log"
	"apr/teacher"
	"apr/tokenizer"
	"apr/tokenizer/align"
)

// What --align may say of two tokenizers.
const (
	AlignSame    = "same"    // they must be one
	AlignAuto    = "auto"    // project if they are not
	AlignProject = "project" // the teacher's probabilities are moved to the student's ids
	AlignChunk   = "chunk"   // likelihoods of equal spans are compared
)

// projected says how a teacher with another tokenizer teaches.
type projected struct {
	pair  *align.Pair
	most  int // positions of a row of the teacher's
	apart bool
	fresh bool
	text  bool // the text teaches where the teacher does not
	dry   bool // on a device that computes nothing, or in a probe: no text is read
	chunk bool // likelihoods of spans are compared, no distributions
}

// of wraps a teacher.
func (p *projected) of(m *model.Model, info device.Info, temperature float64) teacher.Teacher {
	inner := &teacher.Resident{Model: m, Group: teacher.GroupRows(info, p.most)}
	if p.chunk {
		return &teacher.Chunks{
			Inner: inner, Device: m.Device(), Pair: p.pair, Most: p.most, Rows: chunkLogits, Apart: p.apart, Fresh: p.fresh,
			Dry: p.dry,
		}
	}
	return &teacher.Aligned{
		Inner:  inner,
		Device: m.Device(), Pair: p.pair, Most: p.most, Temperature: temperature, Apart: p.apart, Fresh: p.fresh,
		Text: p.text, Dry: p.dry,
	}
}

// idle returns p for a device that computes nothing.
func (p *projected) idle() *projected {
	if p == nil {
		return nil
	}
	q := *p
	q.dry = true
	return &q
}

// rowsOfTeacher is how many positions of the teacher's a position of the student's may take: text of a row that needs
// more does not teach, and the run says how much that was.
const rowsOfTeacher = 2

// onPolicyFlag is named where tokenizers that differ keep a student from writing rows.
const onPolicyFlag = "--on-policy"

// unprojected is what keeps a teacher with another tokenizer from teaching this run; empty: nothing.
func (in *inputs) unprojected(c Config) string {
	for _, t := range []struct {
		asked bool
		what  string
	}{
		{len(c.Teachers()) > 1 || c.Ensemble.routed(), "several teachers"},
		{c.FromCache != "", "--cache"},
		{c.OnPolicy.On(), onPolicyFlag},
		{c.Ranks.All() > 1 || c.Ranks.SameBits, "several ranks or --deterministic=world"},
		{c.Guide.any(), "--strategy progressive or --attention-weight, which compare position by position"},
		{c.TeacherFP8, "--teacher-gemm fp8"},
		{c.Quantize != nil, "--quantize-aware"},
		{in.adapter != nil && sameFile(c.Teacher, c.Student), "adapters beside the teacher's own weights"},
	} {
		if t.asked {
			return t.what
		}
	}
	return ""
}

// project compares the tokenizers and builds W. The student's tokenizer is that of the run.
func (in *inputs) project(c Config, obs Observer) error {
	if what := in.unprojected(c); what != "" {
		return fault.New(fault.Unavailable, "not built yet: --align %s with %s", c.alignment(), what).
			WithHint("leave that out, or choose models with one tokenizer").WithID("E-ALIGN-011")
	}
	if in.student == nil {
		return fault.New(fault.Usage, "--align %s has no effect with --student-config: a new student takes the "+
			"teacher's tokenizer", c.alignment()).
			WithHint("--student MODEL starts from a model with a tokenizer of its own").WithID("E-ALIGN-014")
	}
	theirs, err := in.teacher.Tokenizer()
	if err != nil {
		return err
	}
	mine, err := in.student.Tokenizer()
	if err != nil {
		return err
	}
	pair, err := align.NewPair(mine, theirs)
	if err != nil {
		return err
	}
	chunk := c.Align == AlignChunk
	if chunk {
		if err := in.checkChunk(c); err != nil {
			return err
		}
	}
	if err := teacher.CheckAligned(pair, c.Teacher, c.Student, in.teacher.Config.Vocab, in.studentConfig.Vocab,
		c.Loss); err != nil {
		return err
	}
	in.tokenizer, in.vocab = mine, mine.RealIDs()
	in.projected = &projected{
		pair: pair, most: min(in.teacher.Config.MaxPositions, rowsOfTeacher*c.SeqLen), apart: c.DocumentMask,
		fresh: !c.Packing, text: teacher.TextTeaches(c.Loss) && !chunk, chunk: chunk,
	}
	in.recordTokenizer(c)
	if chunk {
		return nil
	}
	b := pair.W.Encoding()
	in.records["projection"] = runlog.Input{
		SHA256: pair.W.SHA256(), Of: "sizes, and of each row of the matrix its length, ids and weights", Bytes: int64(len(b)),
		Path: c.Teacher + " → " + c.Student, Detail: pair.W.Audit().Line(),
	}
	obs.Message("projection of the teacher's ids to the student's: %s", pair.W.Audit().Line())
	return nil
}

// projects reports whether --align asks for a projection of these tokenizers; same is why they are not one.
func projects(c Config, same error) bool {
	f := (*fault.Error)(nil)
	differ := errors.As(same, &f) && f.ID == "E-VOCAB-001"
	return c.Align == AlignProject || c.Align == AlignChunk || c.Align == AlignAuto && differ
}

// alignment is the word of --align that tokenizers that differ are aligned by.
func (c Config) alignment() string {
	if c.Align == AlignChunk {
		return AlignChunk
	}
	return AlignProject
}

// suggestProject adds to a fault about two tokenizers what can be done.
func (in *inputs) suggestProject(c Config, err error) error {
	f := (*fault.Error)(nil)
	if !errors.As(err, &f) || f.ID != "E-VOCAB-001" || c.FromCache != "" || c.Student == "" {
		return err
	}
	switch what := in.unprojected(c); what {
	case "":
		return f.WithHint("--align project moves the teacher's probabilities to the student's ids; --align same needs " +
			"models that turn every text into the same ids")
	case onPolicyFlag:
		return f.WithHint("choose a student with the teacher's tokenizer; without --on-policy, --align project teaches " +
			"this one on text of the data")
	default:
		return f.WithHint("choose models with one tokenizer; --align project is not built with %s", what)
	}
}

// projectedBy refuses a device that cannot move probabilities.
func (in *inputs) projectedBy(dev device.Device) error {
	if in.projected == nil {
		return nil
	}
	if in.projected.chunk {
		if !slices.Contains(dev.Info().Lacks, device.Experts) { // their Combine weighs gradients of positions
			return nil
		}
		return fault.New(fault.Unavailable, "not built yet for %s: weights of positions (--align chunk)", dev.Info().Kind).
			WithHint("--backend cpu").WithID("E-ALIGN-019")
	}
	if !slices.Contains(dev.Info().Lacks, device.Projects) {
		return nil
	}
	return fault.New(fault.Unavailable, "not built yet for %s: %s (--align project)", dev.Info().Kind, device.Projects).
		WithHint("--backend cpu").WithID("E-ALIGN-015")
}

// sampledRows is how many rows are aligned before a run, to say how much of the data teaches.
const sampledRows = 64

// sampleAlignment aligns rows that are spread over the training data. Data of which nothing teaches is a fault of kind
// Invalid.
func (in *inputs) sampleAlignment(c Config, obs Observer) error {
	p := in.projected
	if p == nil {
		return nil
	}
	n := min(sampledRows, in.rows.Len())
	var t teacher.Partial = &teacher.Aligned{Pair: p.pair, Most: p.most, Apart: p.apart, Fresh: p.fresh}
	if p.chunk {
		t = &teacher.Chunks{Pair: p.pair, Most: p.most, Apart: p.apart, Fresh: p.fresh}
	}
	for i := range n {
		b := corpus.Batch{Rows: 1, SeqLen: c.SeqLen, Tokens: make([]int32, c.SeqLen), Targets: make([]int32, c.SeqLen),
			Mask: make([]uint8, c.SeqLen)}
		in.rows.Fill(i*in.rows.Len()/n, b.Tokens, b.Targets, b.Mask)
		if err := t.Align(b); err != nil {
			return err
		}
	}
	counts := t.Counts()
	if counts.Taught == 0 && p.chunk {
		return fault.New(fault.Invalid, "the teacher teaches none of %d positions of the data: no two places are common to "+
			"both tokenizers; %s", counts.Targets, p.counted(counts)).WithID("E-ALIGN-016")
	}
	if counts.Taught == 0 {
		return fault.New(fault.Invalid, "the teacher teaches none of %d positions of the data: no token of both tokenizers "+
			"begins at one place and stands for one id; %s",
			counts.Targets, alignText(counts)).WithID("E-ALIGN-016")
	}
	obs.Message("alignment of %d rows: %s", n, p.counted(counts))
	in.aligned = counts
	return nil
}

// recordProjection writes down what moves the teacher's probabilities, and how much of the data it teaches.
func (r *Run) recordProjection() error {
	p := r.in.projected
	if p == nil {
		return nil
	}
	if p.chunk {
		return r.dir.Event("decision", SpansEvent, map[string]any{"teacher_positions": p.most, "sample": r.in.aligned},
			"the teacher has another tokenizer: likelihoods of spans that both cut at both ends are compared; elsewhere "+
				"cross-entropy keeps its weight")
	}
	detail := map[string]any{
		"sha256": p.pair.W.SHA256(), "audit": p.pair.W.Audit(), "teacher_positions": p.most, "sample": r.in.aligned,
		"text_teaches": p.text,
	}
	elsewhere := "elsewhere the divergence is zero, and cross-entropy keeps its weight"
	if p.text {
		elsewhere = "elsewhere the text's next id has all of the probability"
	}
	return r.dir.Event("decision", ProjectionEvent, detail,
		"the teacher has another tokenizer: it teaches where a token of both begins at one place and the next ids agree; "+
			elsewhere)
}

// ProjectionEvent is the name of the event that records the matrix between two vocabularies.
const ProjectionEvent = "projection of the teacher's ids"

// SpansEvent is the name of the event that records how likelihoods of spans are compared.
const SpansEvent = "likelihoods of spans"

// counted says how many positions teach.
func (p *projected) counted(c teacher.AlignCounts) string {
	if !p.chunk {
		return alignText(c)
	}
	part := func(n, of int) float64 { return 100 * float64(n) / float64(max(1, of)) }
	s := fmt.Sprintf("%.1f %% of %d positions are in spans that both tokenizers cut at both ends; %.2f %% of %d bytes "+
		"are covered", part(c.Taught, c.Targets), c.Targets, part(c.Bytes-c.Lost, c.Bytes), c.Bytes)
	if c.Lost > 0 {
		s += fmt.Sprintf("; %d are not, as where %s", c.Lost, c.Why)
	}
	return s
}

// recordTaught writes down how much of a leg's steps the teacher taught.
func (l *leg) recordTaught() error {
	if l.taught.Targets == 0 {
		return nil
	}
	said := l.run.in.projected.counted(l.taught.AlignCounts)
	l.run.obs.Message("the teacher taught %s", said)
	return l.run.dir.Event("record", TaughtEvent, map[string]any{"leg": l.name, "counts": l.taught.AlignCounts}, said)
}

// TaughtEvent is the name of the event that says how many positions a teacher with another tokenizer taught.
const TaughtEvent = "positions that the teacher taught"

// partial reports whether the teacher does not teach at every position: where it does not, the student agrees with
// itself.
func (l *leg) partial() bool {
	_, ok := l.teacher.(teacher.Partial)
	return ok
}

// countTaught adds what became of the step's positions, and puts their share into its record.
func (l *leg) countTaught(line *runlog.Step) {
	p, ok := l.teacher.(teacher.Partial)
	if !ok {
		return
	}
	c := p.Counts()
	l.taught.Add(c)
	share := runlog.Number(float64(c.Taught) / float64(max(1, c.Targets)))
	line.Taught = &share
}

// taught counts the positions of a leg.
type taught struct{ teacher.AlignCounts }

func alignText(c teacher.AlignCounts) string {
	part := func(n, of int) float64 { return 100 * float64(n) / float64(max(1, of)) }
	s := fmt.Sprintf("%.1f %% of %d positions: a token of both begins at one place after %.1f %%, and the next ids agree "+
		"at these; %.2f %% of %d bytes are covered",
		part(c.Taught, c.Targets), c.Targets, part(c.Common, c.Targets), part(c.Bytes-c.Lost, c.Bytes), c.Bytes)
	if c.Lost > 0 {
		s += fmt.Sprintf("; %d are not, as where %s", c.Lost, c.Why)
	}
	return s
}

// scoreTheirs scores a teacher with another tokenizer on the held-out text in its own ids: its nats are those of its
// own tokens, and its bits per byte are those of the same text. ok is false if there is nothing to score.
func (r *Run) scoreTheirs(ctx context.Context, big *model.Model, o eval.Options) (e Evaluation, ok bool, err error) {
	held, err := r.in.heldTheirs()
	if err != nil || held == nil {
		return e, false, err
	}
	w, err := corpus.NewWindows(held, r.SeqLen, r.SeqLen)
	if err != nil {
		return e, false, err
	}
	w.Documents = r.DocumentMask
	o.Vocab = r.in.projected.pair.W.TeacherIDs
	scores, err := eval.Compare(ctx, r.stream, nil, []eval.Subject{{Name: nameTeacher, Model: big}}, w, o)
	if err != nil {
		return e, false, err
	}
	e = r.evaluation(scores[0])
	e.BitsPerByte = runlog.Number(eval.BitsPerByte(scores[0].NatsPerToken(), held))
	return e, true, nil
}

// heldTheirs returns the held-out text in the teacher's ids; nil: it is no plain text, or there is none.
func (in *inputs) heldTheirs() (*corpus.Tokens, error) {
	if in.held == nil || in.held.Mask != nil {
		return nil, nil
	}
	p := in.projected.pair
	end, err := corpus.EndOfText(p.Teacher)
	if err != nil {
		return nil, err
	}
	out, from := &corpus.Tokens{EOS: end}, int64(0)
	for _, d := range in.held.Docs {
		ids := slices.DeleteFunc(slices.Clone(in.held.IDs[from:d.End]), func(id int32) bool {
			return p.Student.Kind(id) == tokenizer.Control
		})
		text, err := p.Student.Decode(ids)
		if err != nil {
			return nil, err
		}
		out.IDs = append(p.Teacher.Append(p.Teacher.Begin(out.IDs), text, tokenizer.PlainText), end)
		out.Docs = append(out.Docs, corpus.Doc{End: int64(len(out.IDs)), Bytes: d.Bytes, Hash: d.Hash})
		from = d.End
	}
	return out, nil
}
