package main

import (
	"slices"
	"strconv"
	"strings"

	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
)

// guideTable are the options of a loss that has more than one teacher, or more than logits.
func (o *distillOptions) guideTable() []cli.Option {
	return []cli.Option{
		{Name: "strategy", Value: cli.Enum(&o.Strategy, "standard", "standard", "progressive", "ensemble").Alias("kl", "standard").Alias("gradual", "progressive").Alias("multi", "ensemble"), Help: "what teaches beside the logits of one teacher: progressive compares hidden states, ensemble joins several teachers"},
		{Name: "hidden-weight", Value: cli.Float(&o.HiddenWeight, 1).Above(0), Help: "weight of the squared error of each pair of hidden states (--strategy progressive)"},
		{Name: "layer-map", Pairs: true, Value: cli.Strings(&o.LayerMap, "auto"), Help: "pairs of a student's and a teacher's layer, S:T,… from 0; auto maps every layer, bottom-up brings those in one after another"},
		{Name: "attention-weight", Value: cli.Float(&o.AttentionWeight, 0).AtLeast(0), Default: "off", Help: "weight of the divergence of attention maps, averaged over heads, of the layers that --layer-map pairs; .1 is a good first try"},
		{Name: "teachers", Model: true, Value: cli.Strings(&o.Teachers), Help: "one more teacher over the same vocabulary (--strategy ensemble); repeatable"},
		{Name: "teacher-weights", Value: cli.Strings(&o.TeacherWeights), Default: "equal", Help: "weights of the teachers, TEACHER first, separated by commas; their sum is 1"},
		{Name: "ensemble", Value: cli.Enum(&o.Ensemble, "probs", "probs", "logits"), Help: "what the weights weigh: the teachers' probabilities, or their logits"},
		{Name: "route", Model: true, After: "=", Value: cli.Strings(&o.Routes), Help: "SOURCE=MODEL: the teacher of documents whose field \"source\" is SOURCE; repeatable; TEACHER teaches the others"},
	}
}

// firstTeacher makes the first of several teachers TEACHER, if that was not given.
func (o *distillOptions) firstTeacher(e *cli.Env, opts []cli.Option) error {
	first, from := "", "teachers"
	if len(o.Teachers) > 0 {
		first = o.Teachers[0]
	} else if len(o.Routes) > 0 {
		_, first, _ = strings.Cut(o.Routes[0], "=")
		from = "route"
	}
	if o.Teacher != "" || first == "" {
		return nil
	}
	return e.TakeOver(opts, cli.Earlier{Settings: map[string]cli.Setting{"teacher": {Value: first, Origin: e.Settings.Origin(from)}}})
}

// checkGuides judges the options of guideTable that concern each other.
func (o *distillOptions) checkGuides(s cli.Settings) error {
	several := len(o.Teachers) > 0 || len(o.Routes) > 0
	ensemble, progressive := o.Strategy == "ensemble", o.Strategy == "progressive"
	paired := progressive || o.AttentionWeight != 0
	if ensemble && !several {
		return fault.New(fault.Usage, "--strategy ensemble with one teacher").WithHint("--teachers MODEL adds one, --route SOURCE=MODEL chooses by the documents' field \"source\"")
	}
	return refuseIdle([]idle{
		{"teachers", len(o.Teachers) > 0 && !ensemble, "without --strategy ensemble"},
		{"route", len(o.Routes) > 0 && !ensemble, "without --strategy ensemble"},
		{"teacher-weights", s.Given("teacher-weights") && !ensemble, "without --strategy ensemble"},
		{"ensemble", s.Changed("ensemble") && !ensemble, "without --strategy ensemble"},
		{"hidden-weight", s.Given("hidden-weight") && !progressive, "without --strategy progressive"},
		{"layer-map", s.Given("layer-map") && !paired, "without --strategy progressive or --attention-weight"},
	})
}

// ensemble returns the several teachers of a run.
func (o *distillOptions) ensemble() (e distill.Ensemble, err error) {
	if o.Strategy != "ensemble" {
		return e, nil
	}
	e.Logits, e.Default = o.Ensemble == "logits", true
	for _, path := range o.Teachers {
		if path != o.Teacher {
			e.More = append(e.More, path)
		}
	}
	for _, text := range o.Routes {
		source, model, ok := strings.Cut(text, "=")
		if !ok || source == "" || model == "" {
			return e, fault.New(fault.Usage, "--route %s is not SOURCE=MODEL", text)
		}
		e.Routes = append(e.Routes, distill.Route{Source: source, Model: model})
		e.Default = e.Default && model != o.Teacher
	}
	e.Default = e.Default && len(e.Routes) > 0
	for _, text := range listed(o.TeacherWeights) {
		w, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return e, fault.New(fault.Usage, "--teacher-weights: %q is no number", text)
		}
		e.Weights = append(e.Weights, w)
	}
	return e, nil
}

// listed returns the elements of texts that are separated by commas.
func listed(texts []string) []string {
	all := strings.Split(strings.Join(texts, ","), ",")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}
