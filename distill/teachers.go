package distill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	runlog "apr/run/log"
	"apr/teacher"
)

// Ensemble says how several teachers teach. Config.Teacher is the first of them.
type Ensemble struct {
	More    []string  // teachers beside Config.Teacher
	Weights []float64 // of all, Config.Teacher first; nil: equal ones
	Logits  bool      // weighs logits instead of probabilities
	Routes  []Route   // instead of a mixture: the source of a document chooses its teacher
	Default bool      // Config.Teacher teaches sources that no route names

	// GroupRows are the sequences that go through a teacher's layer at a time; 0: teacher.GroupRows.
	GroupRows int

	elsewhere bool                                      // other ranks compute the teacher's body
	bring     func(corpus.Batch) (teacher.Heard, error) // what they say; nil on a device that computes nothing

	said *said // rows that are read instead of a teacher's logits; nil: none
	dry  bool  // on a device that computes nothing: no row is read
	// projected is how a teacher with another tokenizer teaches; nil: it has the student's.
	projected *projected
	// words is how a teacher reads other words than the student; nil: it reads the same.
	words *privileged
}

// Route sends the documents of a source to a model.
type Route struct {
	Source string `json:"source"`
	Model  string `json:"model"`
}

// Teachers returns the models of all teachers, each once, Teacher first.
func (c Config) Teachers() []string {
	all := []string{c.Teacher}
	add := func(path string) {
		if !slices.Contains(all, path) {
			all = append(all, path)
		}
	}
	for _, path := range c.Ensemble.More {
		add(path)
	}
	for _, r := range c.Ensemble.Routes {
		add(r.Model)
	}
	return all
}

// routed reports whether documents choose their teacher.
func (e Ensemble) routed() bool { return len(e.Routes) > 0 }

// validateEnsemble refuses what cannot be one ensemble.
func (c Config) validateEnsemble() error {
	e, n := c.Ensemble, len(c.Teachers())
	switch {
	case n == 1 && !e.routed():
		return nil
	case c.Loss.Alpha == 0:
		return fault.New(fault.Usage, "several teachers with --alpha 0, which calls none")
	case c.TeacherFP8:
		return fault.New(fault.Usage, "--teacher-gemm fp8 is judged for one teacher, not for %d", n)
	case e.routed() && (e.Weights != nil || len(e.More) > 0 || e.Logits):
		return fault.New(fault.Usage, "--route chooses one teacher for each row: --teacher, --teacher-weights and --ensemble have no meaning beside it")
	case e.routed() && c.Dataset != "":
		return fault.New(fault.Usage, "--route reads the field \"source\" of documents, which token shards (--dataset) do not have")
	case e.routed():
		seen := map[string]bool{}
		for _, r := range e.Routes {
			if seen[r.Source] {
				return fault.New(fault.Usage, "--route names the source %q twice", r.Source)
			}
			seen[r.Source] = true
		}
		return nil
	case e.Weights == nil:
		return nil
	}
	return teacher.CheckWeights(e.Weights, n)
}

// Shares returns the weight of each of n teachers.
func (e Ensemble) Shares(n int) []float64 {
	if e.Weights != nil {
		return e.Weights
	}
	return teacher.Equal(n)
}

// of makes one teacher of all. The mixture is taken at a temperature.
func (e Ensemble) of(models []*model.Model, info device.Info, seqLen int, temperature float64) teacher.Teacher {
	if e.words == nil {
		return e.joined(models, info, seqLen, temperature)
	}
	return e.words.wrap(e.joined(models, info, e.words.seqLen, temperature), models[0].Device())
}

// joined is of without words of the teacher's own.
func (e Ensemble) joined(models []*model.Model, info device.Info, seqLen int, temperature float64) teacher.Teacher {
	if e.elsewhere {
		return &teacher.Lesson{Resident: teacher.Resident{Model: models[0]}, Bring: e.bring}
	}
	if e.said != nil {
		var rows teacher.Rows
		if !e.dry {
			rows = e.said.rows
		}
		return teacher.FromCache(e.said.Header, rows, models[0])
	}
	if e.projected != nil {
		return e.projected.of(models[0], info, temperature)
	}
	members, group := make([]teacher.Teacher, len(models)), e.GroupRows
	if group == 0 {
		group = teacher.GroupRows(info, seqLen)
	}
	for i, m := range models {
		members[i] = &teacher.Resident{Model: m, Group: group}
	}
	switch {
	case e.routed():
		return &teacher.Routed{Teachers: members}
	case len(members) == 1:
		return members[0]
	case e.Logits:
		temperature = 0
	}
	return &teacher.Ensemble{Teachers: members, Weights: e.Shares(len(members)), Temperature: temperature}
}

// way returns the number of the teacher of a source among Teachers.
func (c Config) way(source string) (int, bool) {
	for _, r := range c.Ensemble.Routes {
		if r.Source == source {
			return slices.Index(c.Teachers(), r.Model), true
		}
	}
	return 0, c.Ensemble.Default
}

// teachers returns the files of all teachers.
func (in *inputs) teachers() []*modelfile.Files {
	return append([]*modelfile.Files{in.teacher}, in.more...)
}

// openFiles returns the files of all teachers, and of the student that is started from.
func (in *inputs) openFiles() (all []*modelfile.Files) {
	for _, f := range append(in.teachers(), in.student) {
		if f != nil {
			all = append(all, f)
		}
	}
	return all
}

// openMore opens the teachers beside the first.
func (in *inputs) openMore(c Config) error {
	for _, path := range c.Teachers()[1:] {
		f, err := modelfile.Open(path, c.AllowKeys...)
		if err != nil {
			return err
		}
		in.more = append(in.more, f)
		if err := f.CheckTensors(); err != nil {
			return err
		}
	}
	return nil
}

// alignMore demands of the other teachers that they mean the same by every id.
func (in *inputs) alignMore(c Config) error {
	for i, f := range in.more {
		path := c.Teachers()[1+i]
		var v int
		var err error
		if c.Dataset != "" && len(c.EvalData) == 0 {
			_, v, _, err = teacher.AlignIDs(in.teacher, f, path, f.Config.Vocab)
			if in.unproven != "" && f.Config.Vocab >= in.vocab {
				v = in.vocab // the student's rows, as for the first
			}
		} else {
			_, v, err = teacher.Align(in.teacher, f, path, f.Config.Vocab)
		}
		switch {
		case err != nil:
			return err
		case v != in.vocab:
			return fault.In(fault.Invalid, path, "shares %d ids with the first teacher, %s, which shares %d with the student", v, c.Teacher, in.vocab).WithID("E-VOCAB-004")
		}
	}
	return nil
}

// nameOf is the name of a teacher's record among inputs.
func nameOf(i int) string {
	if i == 0 {
		return "teacher"
	}
	return fmt.Sprintf("teacher_%d", i+1)
}

// load loads all teachers.
func (in *inputs) load(dev device.Device) (all []*model.Model, err error) {
	if in.drawn() {
		return []*model.Model{nil}, nil
	}
	load := model.LoadFrozenAs
	if in.elsewhere {
		load = model.LoadHead
	}
	for _, f := range in.teachers() {
		m, err := load(dev, f, device.TeacherWeights, in.choice.Chosen.form)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// route puts documents in order of their teachers.
func (in *inputs) route(c Config, t *corpus.Tokens) (*corpus.Tokens, error) {
	if t == nil || !c.Ensemble.routed() {
		return t, nil
	}
	out, err := t.Route(c.way)
	var f *fault.Error
	if errors.As(err, &f) {
		var known []string
		for _, r := range c.Ensemble.Routes {
			known = append(known, fmt.Sprintf("%q", r.Source))
		}
		return nil, f.WithHint("--route knows %s; a TEACHER beside the routes teaches the others", strings.Join(known, ", "))
	}
	return out, err
}

// checkRoutes refuses a route for a source that no document of the data has: its teacher would teach nothing.
func (c Config) checkRoutes(t *corpus.Tokens) error {
	if t == nil {
		return nil
	}
	there := slices.Compact(slices.Sorted(slices.Values(t.Sources)))
	for _, r := range c.Ensemble.Routes {
		if slices.Contains(there, r.Source) {
			continue
		}
		hint := fmt.Sprintf("sources of the data: %q", there)
		if near := fault.Nearest(r.Source, there); near != "" {
			hint = fmt.Sprintf("is %q meant? %s", near, hint)
		}
		return fault.New(fault.Invalid, "--route %s=%s: no document of the data has this source", r.Source, r.Model).
			WithHint("%s", hint).WithID("E-DISTILL-119")
	}
	return nil
}

// identifyAll compares every teacher with the student.
func (in *inputs) identifyAll(ctx context.Context, c Config, obs Observer) error {
	first := in.teacher
	defer func() { in.teacher = first }()
	var kin *runlog.Kinship
	in.kins = nil
	for i, f := range in.teachers() {
		in.teacher = f
		one := c
		one.Teacher = c.Teachers()[i]
		if err := in.identify(ctx, one, obs); err != nil {
			return err
		}
		in.kins = append(in.kins, in.kin)
		if kin == nil || nearer(in.kin, kin) { // the first of the nearest
			kin = in.kin
		}
	}
	in.kin = kin
	return nil
}

// nearer reports whether a teacher is nearer to the student than another, by what is known of their values, else by
// their embeddings.
func nearer(a, b *runlog.Kinship) bool {
	if x, y := nearness(a), nearness(b); x != y {
		return x > y
	}
	likeness := func(k *runlog.Kinship) float64 { return max(float64(k.Embedding), float64(k.Angles)) }
	return a != nil && likeness(a) > likeness(b)
}

// nearness orders relations: a model of its own, one with some likeness, the same model.
func nearness(k *runlog.Kinship) int {
	switch {
	case k == nil:
		return -1
	case k.Relation != string(modelfile.Different):
		return 2
	case k.Alike > 0 || k.Moved > 0 || k.Close:
		return 1
	}
	return 0
}

// recordEnsemble writes down how several teachers teach.
func (r *Run) recordEnsemble() error {
	names := r.Teachers()
	switch {
	case r.Ensemble.routed():
		counts := r.in.train.RouteTokens(len(names))
		detail := map[string]any{"routes": r.Ensemble.Routes, "default": r.Ensemble.Default, "teachers": names, "tokens": counts}
		return r.dir.Event("decision", "ensemble", detail, "the source of a document chooses its teacher; rows hold documents of one teacher, and only that one computes them")
	case len(names) == 1:
		return nil
	}
	kind, reason := "probs", "the mixture of the teachers' distributions at the run's temperature; scores on held-out text take it at 1"
	if r.Ensemble.Logits {
		kind, reason = "logits", "the weighted sum of the teachers' logits"
	}
	return r.dir.Event("decision", "ensemble", map[string]any{"kind": kind, "teachers": names, "weights": r.Ensemble.Shares(len(names))}, reason)
}
