package distill

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"apr/arch"
	"apr/device"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/model"
	"apr/plan"
	"apr/teacher"
)

// Candidate is a way of computing the teacher, as it was judged: planned from the headers of files, and timed if there
// was more than one that fits.
type Candidate struct {
	Backend teacher.Backend `json:"backend"`
	GEMM    string          `json:"gemm"` // arithmetic of the teacher's products
	Verdict string          `json:"verdict"`
	Reason  string          `json:"reason"` // of the verdict
	Setting string          `json:"setting,omitempty"`
	Memory  *plan.Memory    `json:"memory,omitempty"`
	Probe   *Probe          `json:"probe,omitempty"`

	// Rows are the sequences that go through a layer at a time, where layers come from the host; 0: the device's choice
	Rows int `json:"teacher_rows,omitempty"`

	// Lessons is what a rank that only teaches needs; nil: there is none, or no plan can be made for the device.
	Lessons *plan.Memory `json:"lessons,omitempty"`

	form    device.Form
	plan    plan.Plan
	lessons []*dry.Record // a teaching rank's pass: of each section, or of the whole teacher
	err     error         // the plan's refusal
	before  string        // why rows with a lag are written before the step; empty: they are written beside it
	ahead   bool          // there are such rows, and plans can be made for the device
}

// Choice of a backend: all candidates, the chosen one and why.
type teacherChoice struct {
	Asked      teacher.Backend `json:"asked"`
	Candidates []*Candidate    `json:"candidates"`
	Chosen     *Candidate      `json:"-"`
	Backend    teacher.Backend `json:"backend"`
	Reason     string          `json:"reason"`

	reason string // of what is asked for
}

// TeacherChoice says how a run's teacher is computed, and why.
type TeacherChoice struct {
	Backend, GEMM, Reason string
}

// gemm names the arithmetic of the teacher's products.
func gemm(form device.Form, info device.Info) string {
	if form.FP8 {
		return "fp8"
	}
	return info.Activations.String()
}

// choose plans every way of computing the teacher on dev, refuses what does not fit, times what remains, and keeps the
// best in in.choice and in.planned. Without a device that plans can be made for, nothing is planned.
func (in *inputs) choose(ctx context.Context, c Config, dev device.Device, obs Observer) error {
	if in.types != nil {
		if err := model.QuantizedBy(dev, in.studentConfig, in.types); err != nil {
			return err
		}
	}
	if err := in.projectedBy(dev); err != nil {
		return err
	}
	if c.Guide.Attention > 0 && slices.Contains(dev.Info().Lacks, device.Maps) {
		return fault.New(fault.Unavailable, "--attention-weight: %s is not built for %s yet", device.Maps, dev.Info().Kind).
			WithHint("--backend cpu").WithID("E-GUIDE-009")
	}
	planned, ok := dev.(dry.Planned)
	asked := c.TeacherBackend
	if asked == "" {
		asked = teacher.Auto
	}
	if asked == teacher.Stream {
		if err := c.streams(); err != nil {
			return err
		}
	}
	reason := "asked for"
	if before := chosenBefore(c); before != "" && asked == teacher.Auto {
		asked, reason = before, "as before the run was stopped"
	}
	if c.HostExperts {
		var err error
		if asked, err = in.hostExperts(asked, dev.Info()); err != nil {
			return err
		}
		reason += ", with experts in host memory"
	}
	choice := &teacherChoice{Asked: asked, reason: reason}
	in.choice = choice
	cuda, quantised := dev.Info().Kind == "cuda", in.teacherQuantised()
	if _, err := (teacher.Situation{Asked: asked, CUDA: cuda, Quantised: quantised, Fits: true}).Rule(); err != nil {
		return err
	}
	fits, all := false, candidates(asked, c.TeacherCache, cuda, quantised)
	for i := 0; i < len(all); i++ {
		k := &Candidate{Backend: all[i], form: all[i].Form(c.TeacherFP8)}
		k.form.HostExperts = c.HostExperts
		k.GEMM = gemm(k.form, dev.Info())
		choice.Candidates = append(choice.Candidates, k)
		if k.err = in.planCandidate(c, k, planned); k.err != nil && fault.KindOf(k.err) != fault.Memory {
			return k.err
		}
		fits = fits || k.err == nil
		if i == len(all)-1 && !fits && in.mayStream(c, dev) { // the last resort
			all = append(all, teacher.Stream)
			fits = true
		}
	}
	if !ok {
		choice.take(choice.Candidates[0], "nothing else computes on this device")
		in.planned = unplanned(c, dev)
		return in.chooseControl(c, nil)
	}
	if err := choice.decide(ctx, in, c, obs); err != nil {
		return err
	}
	in.planned = choice.Chosen.plan
	return in.chooseControl(c, planned)
}

// hostExperts returns the backend that keeps experts in host memory, or why none does.
func (in *inputs) hostExperts(asked teacher.Backend, info device.Info) (teacher.Backend, error) {
	bad := func(kind fault.Kind, why, hint string) (teacher.Backend, error) {
		return "", fault.In(kind, "--teacher-experts", "host: %s", why).WithHint("%s", hint).WithID("E-DISTILL-095")
	}
	switch {
	case info.Kind != "cuda":
		return bad(fault.Unavailable, "the CPU reads experts where they are", "leave it out: there is no other memory")
	case !slices.ContainsFunc(in.teacher.Config.Layers, func(l arch.Layer) bool { return l.FFN.MoE != (arch.MoE{}) }):
		return bad(fault.Invalid, "the teacher has no experts", "use --teacher-experts device")
	case asked == teacher.Stream:
		return bad(fault.Invalid, "--teacher-backend stream leaves all layers there, with their experts",
			"leave one of them out")
	case asked != teacher.Auto && asked != teacher.Q4K:
		return bad(fault.Invalid, fmt.Sprintf("--teacher-backend %s expands experts at load", asked), "use --teacher-backend q4k or auto")
	}
	return teacher.Q4K, nil
}

// chosenBefore returns the backend of the run that is resumed, as its last decision says; empty if there is none: bits
// depend on it, and a probe may end otherwise another time.
func chosenBefore(c Config) teacher.Backend {
	if c.Resume == "" {
		return ""
	}
	var t teacherChoice
	lastDecision(c.Output, teacherDecision, &t)
	return t.Backend
}

// teacherDecision is the name of the event that records the choice.
const teacherDecision = "teacher backend"

// teacherQuantised reports whether a tensor of a teacher is in quantised blocks.
func (in *inputs) teacherQuantised() bool {
	for _, f := range in.teachers() {
		for _, t := range f.File.Tensors() {
			if t.DType.IsQuantized() {
				return true
			}
		}
	}
	return false
}

// candidates lists the backends to judge. What cache demands is not up for choice.
func candidates(asked teacher.Backend, cache string, cuda, quantised bool) []teacher.Backend {
	switch {
	case !cuda:
		return []teacher.Backend{teacher.CPU}
	case asked != teacher.Auto:
		return []teacher.Backend{asked}
	case !quantised || cache == "bf16":
		return []teacher.Backend{teacher.Cublas}
	case cache == "off":
		return []teacher.Backend{teacher.Q4K}
	}
	return []teacher.Backend{teacher.Cublas, teacher.Q4K}
}

// planCandidate plans the step with a candidate; the error is a fault of kind Memory if it does not fit.
func (in *inputs) planCandidate(c Config, k *Candidate, planned dry.Planned) error {
	if planned == nil {
		k.Verdict, k.Reason = plan.Ready, "no plan can be made for this device"
		return nil
	}
	d := in.dryRun(c, planned.Target)
	d.Form = k.form
	if k.Backend == teacher.Stream {
		k.Rows = chosenRows(c)
	}
	p, err := d.PlanTeacher(Choice{BatchSize: c.BatchSize, ChunkRows: c.ChunkRows, Recompute: c.Recompute}, &k.Rows)
	if err == nil && c.OnPolicy.On() && c.OnPolicy.Lag > 0 {
		if d.Form.HostLayers {
			d.GroupRows = k.Rows
		}
		k.ahead = true
		p, k.before, err = d.planQueue(p)
	}
	k.plan, k.Verdict, k.Memory, k.Setting = p, p.Verdict, &p.Memory, p.Setting.String()
	k.Reason = needs(p)
	if err == nil && in.elsewhere {
		err = d.planLessons(k)
	}
	return err
}

// PlanTeacher is Plan, which for a teacher whose layers come from the host also chooses how many sequences go
// through a layer at a time, unless rows says it: the most that fit, halved from what the device does best. It
// writes them to rows.
func (d DryRun) PlanTeacher(c Choice, rows *int) (p plan.Plan, err error) {
	if !d.Form.HostLayers {
		return d.Plan(c)
	}
	d.GroupRows = *rows
	if *rows == 0 {
		d.GroupRows = min(teacher.GroupRows(d.Target().Info, d.SeqLen), max(1, c.BatchSize*d.Accum))
	}
	for {
		p, err = d.Plan(c)
		if fault.KindOf(err) != fault.Memory || *rows != 0 || d.GroupRows == 1 {
			*rows = d.GroupRows
			return p, err
		}
		d.GroupRows = (d.GroupRows + 1) / 2
	}
}

// mayStream reports whether the layers of a teacher come from the host where nothing else fits.
func (in *inputs) mayStream(c Config, dev device.Device) bool {
	return dev.Info().Kind == "cuda" && in.choice.Asked == teacher.Auto && c.streams() == nil
}

// streams is why the layers of a run's teacher cannot come from the host, or nil.
func (c Config) streams() error {
	what := ""
	switch {
	case c.TeacherFP8:
		what = "--teacher-gemm fp8"
	case c.Guide.any():
		what = "--strategy progressive or --attention-weight, which compare layers"
	case c.Ranks.All() > 1 || c.Ranks.SameBits:
		what = "several ranks or --deterministic=world"
	default:
		return nil
	}
	return fault.New(fault.Unavailable, "not built: --teacher-backend stream with %s", what).WithID("E-DISTILL-130")
}

// chosenRows returns Candidate.Rows of the run that is resumed, as bits depend on it; 0: there is none.
func chosenRows(c Config) int {
	var t teacherChoice
	if c.Resume == "" || !lastDecision(c.Output, teacherDecision, &t) {
		return 0
	}
	for _, k := range t.Candidates {
		if k.Backend == t.Backend {
			return k.Rows
		}
	}
	return 0
}

// needs says how much memory a plan needs.
func needs(p plan.Plan) string {
	text := fmt.Sprintf("needs %s of %s", plan.Amount(p.Memory.Total), plan.Amount(p.Memory.Available))
	if p.Costs.Host != nil {
		text += ", and fetches " + p.Costs.Host.String()
	}
	return text
}

// nearest returns the candidate that fits with the largest batch, of equal ones the last, where none fits with the one
// asked for.
func (t *teacherChoice) nearest() *Candidate {
	best := t.Candidates[0]
	for _, k := range t.Candidates[1:] {
		if a, b := best.plan.Largest, k.plan.Largest; a == nil || b != nil && b.Size >= a.Size {
			best = k
		}
	}
	return best
}

// take makes k the choice.
func (t *teacherChoice) take(k *Candidate, reason string) {
	if k.Backend == teacher.Stream && k.plan.Costs.Host != nil {
		reason += ": " + k.plan.Costs.Host.String()
	}
	t.Chosen, t.Backend, t.Reason = k, k.Backend, reason
}

// decide takes one of the candidates that fit: the only one, the fastest, or the one that the rule names.
func (t *teacherChoice) decide(ctx context.Context, in *inputs, c Config, obs Observer) error {
	var fit []*Candidate
	for _, k := range t.Candidates {
		if k.err == nil {
			fit = append(fit, k)
		}
	}
	switch {
	case len(fit) == 0:
		return t.nearest().err
	case t.Asked != teacher.Auto:
		t.take(fit[0], t.reason)
		return nil
	case len(fit) == 1 && len(t.Candidates) == 1:
		t.take(fit[0], "nothing else computes this teacher on this device")
		return nil
	case len(fit) == 1:
		t.take(fit[0], "it alone fits")
		return nil
	case !c.Probe || c.OpenDevice == nil || in.cache != nil || in.elsewhere: // the probe multiplies layers that are here
		return t.byRule(fit)
	}
	timed := make([]teacher.Timed, len(fit))
	for i, k := range fit {
		p, err := in.probe(ctx, c, k, obs)
		if err != nil {
			return fmt.Errorf("the probe of teacher backend %s: %w", k.Backend, err)
		}
		k.Probe = p
		timed[i] = teacher.Timed{Backend: k.Backend, Seconds: p.Milliseconds / 1e3, Bytes: k.Memory.Total}
	}
	best, reason := teacher.Fastest(timed)
	t.take(fit[best], reason)
	return nil
}

// byRule takes what the rule without a probe names.
func (t *teacherChoice) byRule(fit []*Candidate) error {
	s := teacher.Situation{Asked: teacher.Auto, CUDA: true, Quantised: true}
	for _, k := range fit {
		s.Fits = s.Fits || k.Backend == teacher.Cublas
	}
	b, err := s.Rule()
	if err != nil {
		return err
	}
	for _, k := range fit {
		if k.Backend == b {
			t.take(k, "by the rule without a probe: the expanded teacher fits")
			return nil
		}
	}
	return errors.New("the rule named a backend that does not fit")
}

// recordChoice writes down how the teacher is computed, what else was judged, and why.
func (r *Run) recordChoice() error {
	t := r.in.choice
	line := fmt.Sprintf("teacher backend: %s, %s", t.Backend, t.Reason)
	for _, k := range t.Candidates {
		if k != t.Chosen {
			line += fmt.Sprintf("; %s %s", k.Backend, k.Why())
		}
	}
	r.obs.Detail("%s", line)
	return r.dir.Event("decision", teacherDecision, t, fmt.Sprintf("%s, %s", t.Backend, t.Reason))
}

// Why says in a few words how a candidate that was not chosen stands.
func (k *Candidate) Why() string {
	switch {
	case k.err != nil:
		return "does not fit: it " + k.Reason
	case k.Probe != nil:
		return fmt.Sprintf("takes %.1f ms a step and %s", k.Probe.Milliseconds, k.Reason)
	}
	return k.Reason
}

// Teacher returns how the run's teacher is computed.
func (r *Run) Teacher() TeacherChoice {
	return TeacherChoice{string(r.in.choice.Backend), r.in.choice.Chosen.GEMM, r.in.choice.Reason}
}
