package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"apr/eval"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/modelfile"
)

// canaryResult is what an evaluation said of a broken variant of the model.
type canaryResult struct {
	Name    string   `json:"name"`
	What    string   `json:"what"`
	Score   *float64 `json:"score"` // null: inference failed, which passes no gate
	Passed  *bool    `json:"passed"`
	Margin  *float64 `json:"margin"`          // by how much the model is better, item by item
	Errors  *float64 `json:"standard_errors"` // the same in standard errors; null without two items or without spread
	Failure *string  `json:"inference_error"`

	beaten bool // by five standard errors
}

// gate scores the canaries one after the other by the code that scored the model, and judges both. Before the last of them there
// is no verdict: one that was not scored may have passed.
func (o *evalOptions) gate(ctx context.Context, e *cli.Env, f *modelfile.Files, t task, healthy eval.Score, r *evalResult) error {
	gated := e.Settings.Given("threshold")
	if gated {
		r.Threshold = &o.threshold
	}
	tok, err := f.Tokenizer()
	if err != nil {
		return err
	}
	var void []string
	canaries := eval.Canaries(f, tok.RealIDs(), t.constant(), uint64(o.seed))
	r.Due = len(canaries)
	for _, c := range canaries {
		e.Log.Debug("canary", "name", c.Name)
		cr, err := o.canary(ctx, e, t, c, healthy, gated)
		if err != nil {
			return fmt.Errorf("canary %q: %w", c.Name, err)
		}
		if gated && *cr.Passed {
			void = append(void, fmt.Sprintf("%s (%.4g)", c.Name, *cr.Score))
		}
		if !cr.beaten {
			e.Log.Warn(fmt.Sprintf("canary %q is not worse by %d standard errors: use more data", c.Name, eval.CanaryErrors))
		}
		r.Canaries = append(r.Canaries, cr)
	}
	if !gated {
		return nil
	}
	return o.verdict(healthy, r, void)
}

// deviceLost reports whether an error is a device's end, which says nothing of a model.
func deviceLost(err error) bool {
	var d interface{ DeviceLost() bool }
	return errors.As(err, &d) && d.DeviceLost()
}

// canary scores one. Failed inference is what a broken model may do; any other error is the evaluation's own.
func (o *evalOptions) canary(ctx context.Context, e *cli.Env, t task, c eval.Canary, healthy eval.Score, gated bool) (canaryResult, error) {
	out := canaryResult{Name: c.Name, What: c.What}
	if gated {
		out.Passed = new(bool)
	}
	var r evalResult
	score, err := o.score(ctx, e, t, c.Files, &r)
	if failed := errors.Join(err, r.failure); fault.KindOf(failed) == fault.Inference && !deviceLost(failed) && ctx.Err() == nil {
		text := failed.Error()
		out.Failure, out.beaten = &text, true
		return out, nil
	}
	if err != nil {
		return out, err
	}
	out.Score = &score.Value
	if gated {
		*out.Passed = score.Passes(o.threshold)
	}
	mean, apart := healthy.Advantage(score)
	if !math.IsNaN(mean) {
		out.Margin = &mean
	}
	if !math.IsNaN(apart) && !math.IsInf(apart, 0) {
		out.Errors = &apart
	}
	out.beaten = apart >= eval.CanaryErrors
	return out, nil
}

// verdict turns the scores of the model and of all canaries into an exit.
func (o *evalOptions) verdict(healthy eval.Score, r *evalResult, void []string) error {
	passed := healthy.Passes(o.threshold) && len(void) == 0
	r.Passed = &passed
	side := "above"
	if healthy.Higher {
		side = "below"
	}
	switch {
	case len(void) > 0:
		return fault.New(fault.Invalid, "the gate is void: %g lets canaries pass: %s; the model has %.4g", o.threshold, strings.Join(void, ", "), healthy.Value).
			WithHint("choose a stricter threshold: this one lets a broken model pass").WithID("E-EVAL-001")
	case !passed:
		return fault.New(fault.Invalid, "%s %.4f is %s the threshold %g", o.figure(), healthy.Value, side, o.threshold).WithID("E-EVAL-002")
	}
	return nil
}

// figure names what the gate of the task judges.
func (o *evalOptions) figure() string {
	switch {
	case o.isCode():
		return fmt.Sprintf("pass@%d", o.k)
	case o.task == "perplexity":
		return "perplexity"
	case o.task == "agreement":
		return "mean KL"
	}
	return "accuracy"
}

// canaryTable prints what became of the canaries.
func (r *evalResult) canaryTable(p *cli.Page) {
	if r.Due == 0 {
		return
	}
	number := func(v *float64, format, none string) string {
		if v == nil {
			return none
		}
		return fmt.Sprintf(format, *v)
	}
	var rows [][]string
	for _, c := range r.Canaries {
		verdict := "–"
		if c.Passed != nil {
			verdict = map[bool]string{true: "PASSED", false: "caught"}[*c.Passed]
		}
		rows = append(rows, []string{c.Name, number(c.Score, "%.4g", "no inference"), number(c.Margin, "%.4g", "–"), number(c.Errors, "%.1f", "–"), verdict})
	}
	if len(rows) > 0 {
		p.Printf("\n")
		p.Table([]string{"canary", ">score", ">worse by", ">standard errors", "gate"}, rows)
	}
	if r.Threshold == nil {
		return
	}
	p.Printf("\n")
	switch {
	case r.Passed == nil:
		p.Printf("%s\n", p.Bad(fmt.Sprintf("The gate was not judged: %d of %d canaries scored.", len(r.Canaries), r.Due)))
	case *r.Passed:
		p.Printf("%s\n", p.Good(fmt.Sprintf("The model passes the gate of %g, and no canary does.", *r.Threshold)))
	default:
		p.Printf("%s\n", p.Bad("The gate is not passed."))
	}
}
