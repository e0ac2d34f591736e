package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	runlog "apr/run/log"
)

// hostile is what a file name, a text or a reason may hold.
const hostile = `</script><script>document.documentElement.dataset.pwned=1</script><img src=x onerror="document.documentElement.dataset.pwned=2">"'` + "`|\n\\"

// record is a finished run of n steps in each of two legs, in which every text is hostile.
func record(n int) *runlog.Record {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	r := &runlog.Record{Path: "runs/x", Status: runlog.Completed, Manifest: &runlog.Manifest{
		RunID: "run " + hostile, Command: []string{"apr", "distill", hostile}, Started: time.Unix(1.7e9, 0),
		Config:      map[string]runlog.Value{"data": {Value: []string{hostile}, Origin: "flag"}, "seed": {Value: 42, Origin: "default"}, hostile: {Value: hostile, Origin: hostile}},
		Inputs:      map[string]runlog.Input{"teacher": {Path: hostile, Detail: hostile + ", 6.85M parameters", SHA256: hostile, Of: hostile}},
		Version:     map[string]any{hostile: hostile, "modules": map[string]any{"a": hostile}},
		Device:      map[string]any{"name": hostile, "cpu": hostile},
		Environment: map[string]string{"APR_X": hostile},
	}}
	for _, leg := range []string{"student", "control"} {
		for k := range n {
			s := runlog.Step{Leg: leg, Step: k, LR: 1e-3 / float64(k+1), Loss: runlog.Number(5 + rng.Float64()), CE: runlog.Number(4 + rng.Float64()),
				KL: runlog.Number(rng.Float64()), GradNorm: runlog.Number(rng.ExpFloat64()), Finite: true, Targets: 7, Tokens: 8,
				TokensPerSecond: runlog.Number(1000 * rng.Float64()), MemoryBytes: 1 << 20, CPUs: 1 + rng.Float64(), GPUPercent: &k, GPUWatts: new(100 + float64(k)),
				MS: runlog.Milliseconds{Data: 1, Teacher: 2, Student: 3, Loss: 4, Optimizer: 5, Total: 20}}
			if leg == "control" {
				s.KL = runlog.Number(math.NaN())
			} else { // hidden states and attention maps are compared
				hidden, attention := runlog.Number(1/float64(k+1)), runlog.Number(2/float64(k+1))
				s.Hidden, s.Attention, s.Shares = &hidden, &attention, map[string]runlog.Number{"ce": .5, "kl": .25, "hidden": .125, "attention": .125}
			}
			r.Steps = append(r.Steps, s)
		}
	}
	scores := []map[string]any{
		{"name": "teacher", "targets": 100, "nats_per_token": 2.0, "kl": 0, "top1_agreement": 1},
		{"name": "distilled student", "targets": 100, "nats_per_token": 3.5, "perplexity": 33.1, "bits_per_byte": 1.7, "kl": 1.5, "top1_agreement": 0.4},
		{"name": "control student", "targets": 100, "nats_per_token": 4.0, "perplexity": 54.6, "kl": 2, "top1_agreement": 0.3},
		{"name": hostile, "targets": 100, "nats_per_token": 9, "kl": 9, "top1_agreement": 0},
	}
	r.Events = []runlog.Event{
		{Kind: "decision", Name: hostile, Detail: map[string]any{"x": hostile}, Reason: hostile},
		{Kind: "decision", Name: "plan", Detail: map[string]any{"memory": map[string]any{"teacher": 1000, "scratch": 500, "total": 1500, "available": 9000}}},
		{Kind: "evaluation", Name: "held-out during training", Detail: map[string]any{"leg": "student", "step": n / 2, "nats_per_token": 4.25}},
		{Kind: "record", Name: "device memory", Detail: map[string]any{"peak": map[string]any{"teacher": 1000, "scratch": 400}}},
		{Kind: "evaluation", Name: "held-out", Detail: scores},
		{Kind: "evaluation", Name: "margins", Detail: []map[string]any{{"over": hostile, "nats_per_token": 5, "standard_error": 0.5, "interval_95": []float64{4, 6}}}},
		{Kind: "evaluation", Name: "canaries", Detail: []map[string]any{{"name": hostile, "what": hostile, "nats_per_token": 8, "caught": true, "margin": map[string]any{"over": hostile}}}},
	}
	r.Receipt = &runlog.Receipt{Status: runlog.Completed, By: hostile, Tokens: 8 * int64(n), Targets: 7 * int64(n), Finished: time.Unix(1.7e9+60, 0),
		Outputs: map[string]string{hostile: "00"}, Result: map[string]any{"tokens_seen": 8 * n, "duration_seconds": 120.0, "tokens_per_second": 10}}
	r.Events = append(r.Events, runlog.Event{Kind: "evaluation", Name: runlog.SizesEvent, Detail: []runlog.ModelSize{
		{Name: "teacher", Parameters: 4000, FileBytes: 5000, MemoryBytes: 6000, TokensPerSecond: new(runlog.Number(50))},
		{Name: "distilled student", Parameters: 1000, FileBytes: 1200, MemoryBytes: 1500, TokensPerSecond: new(runlog.Number(125))}}})
	kl := runlog.Number(0.75)
	prediction := &runlog.Prediction{P: 0.5, Top: []runlog.Choice{{ID: 1, Text: hostile, P: 0.5}, {ID: 2, Text: "b", P: 0.25}}}
	r.Samples = &runlog.Samples{Top: 2, Vocab: 10, Windows: []runlog.Sample{{Window: 3, Tokens: []runlog.SampleToken{
		{ID: 5, Text: "func\t"}, {ID: 1, Text: hostile, Counts: true, KL: &kl, Teacher: prediction, Student: prediction},
		{ID: 6, Text: "\n", KL: &kl, Teacher: prediction, Student: prediction},
	}}}, Continuations: []runlog.Continuation{{Prompt: hostile, Text: hostile, Answers: []runlog.Answer{
		{Model: "teacher", Text: "\n\tx := 1\u202e\x1b", Tokens: 4, Finish: "length"}, {Model: "distilled student", Text: hostile, Tokens: 7, Finish: "time"}, {Model: hostile, Text: "\n", Finish: "stop"}}}}}
	return r
}

func page(t *testing.T, r *runlog.Record) string {
	t.Helper()
	var b bytes.Buffer
	if err := WriteHTML(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// dataOf reads the numbers back that a page's script draws.
func dataOf(t *testing.T, html string) data {
	t.Helper()
	_, rest, ok := strings.Cut(html, `<script type="application/json" id="data">`)
	text, _, ok2 := strings.Cut(rest, "</script>")
	var d data
	if err := json.Unmarshal([]byte(text), &d); !ok || !ok2 || err != nil {
		t.Fatalf("the page's data: %v, %v, %v", ok, ok2, err)
	}
	return d
}

// Nothing that comes from a run is markup, and the only script elements are the page's own.
func TestHostileText(t *testing.T) {
	r := record(10)
	html := page(t, r)
	var md bytes.Buffer
	if err := WriteMarkdown(&md, r); err != nil {
		t.Fatal(err)
	}
	live, err := Update(r, hostile)
	if err != nil {
		t.Fatal(err)
	}
	var u update
	if err := json.Unmarshal(live, &u); err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{"page": html, "Markdown": md.String()}
	for name, part := range u.Sections {
		texts["part "+name] = part
	}
	for name, text := range texts {
		for _, bad := range []string{"<img", "</script><script>document", "<script>document", `" onerror`} {
			if strings.Contains(text, bad) {
				t.Errorf("%s holds %q", name, bad)
			}
		}
	}
	if n := strings.Count(html, "<script"); n != 3 {
		t.Errorf("%d script elements, want 3", n)
	}
	if strings.Contains(html, "style=") || regexp.MustCompile(`\son[a-z]+="`).MatchString(html[:strings.Index(html, "<script")]) {
		t.Error("the page has styles or handlers in attributes, which its policy forbids")
	}
	if regexp.MustCompile(`(src|href)="[^d]`).MatchString(html[:strings.Index(html, "<script")]) {
		t.Error("the page refers to another file")
	}
	if got := dataOf(t, html).Samples[0].Tokens[1].Text; got != hostile {
		t.Errorf("the text of a sample came back as %q", got)
	}
}

// Curves hold the numbers of the steps, every bit of them.
func TestCurvesAreTheSteps(t *testing.T) {
	r := record(500)
	d := dataOf(t, page(t, r))
	byID := map[string]Chart{}
	for _, c := range d.Charts {
		byID[c.ID] = c
	}
	want := []string{"attention", "ce", "cpus", "gpu_percent", "gpu_watts", "grad_norm", "held_out", "hidden", "kl", "loss", "lr", "share_attention", "share_ce", "share_hidden", "share_kl", "tokens_per_second"}
	if got := slices.Sorted(maps.Keys(byID)); !slices.Equal(got, want) {
		t.Fatalf("charts %v, want %v", got, want)
	}
	for _, m := range metrics {
		c := byID[m.id]
		if c.Thinned != 0 || len(c.X) != 500 {
			t.Errorf("%s: %d of 500 steps", m.id, len(c.X))
		}
		for _, s := range c.Series {
			for i, k := range c.X {
				step := r.Steps[k]
				if s.Label == "control" {
					step = r.Steps[500+k]
				}
				if step.Leg != s.Label || step.Step != k || s.Values[i] != m.of(step) {
					t.Fatalf("%s, %s, step %d: %v, want %v", m.id, s.Label, k, s.Values[i], m.of(step))
				}
			}
		}
	}
	if n := len(byID["kl"].Series); n != 1 {
		t.Errorf("%d legs have a divergence, want the student alone", n)
	}
	held := byID["held_out"]
	if fmt.Sprint(held.X) != "[250 500]" || fmt.Sprint(held.Series[0].Values) != "[4.25 3.5]" || held.Series[2].Values[0] != 2 || held.Series[1].Values[0].Finite() {
		t.Errorf("held-out curves: %v %+v", held.X, held.Series)
	}
}

// Of a very long run the first, the last, and the extremes of every piece stay; no value is made up.
func TestThin(t *testing.T) {
	const n = 50000
	rng := rand.New(rand.NewPCG(2, 3))
	values := []map[int]runlog.Number{{}, {}}
	x := make([]int, n)
	for k := range n {
		x[k] = k
		for _, m := range values {
			m[k] = runlog.Number(rng.NormFloat64())
		}
	}
	values[0][12345], values[1][23456], values[0][34567] = 1e6, -1e6, runlog.Number(math.NaN())
	got := thin(x, values, maxPoints)
	if len(got) > maxPoints*5/4 || len(got) < maxPoints/2 {
		t.Errorf("%d points, want about %d", len(got), maxPoints)
	}
	for _, k := range []int{0, n - 1, 12345, 23456, 34567} {
		if !slices.Contains(got, k) {
			t.Errorf("step %d is lost", k)
		}
	}
	// Every eighth of the run keeps its extremes.
	for part := range 8 {
		lo, hi := part*n/8, (part+1)*n/8
		for i, m := range values {
			for name, pick := range map[string]func(a, b runlog.Number) runlog.Number{"least": least, "most": most} {
				all, kept := runlog.Number(math.NaN()), runlog.Number(math.NaN())
				for k := lo; k < hi; k++ {
					all = pick(all, m[k])
				}
				for _, k := range got {
					if k >= lo && k < hi {
						kept = pick(kept, m[k])
					}
				}
				if all != kept {
					t.Errorf("part %d, curve %d: %s is %v, of all steps %v", part, i, name, kept, all)
				}
			}
		}
	}
	c := Chart{Series: make([]Series, 2)}
	c.fill(values)
	if c.Thinned != n || len(c.Series[0].Values) != len(c.X) {
		t.Errorf("thinned from %d to %d", c.Thinned, len(c.X))
	}
}

func least(a, b runlog.Number) runlog.Number { return choose(a, b, b < a) }
func most(a, b runlog.Number) runlog.Number  { return choose(a, b, b > a) }

func choose(a, b runlog.Number, second bool) runlog.Number {
	if !b.Finite() || a.Finite() && !second {
		return a
	}
	return b
}

func TestVerdict(t *testing.T) {
	score := func(name string, nats float64) map[string]any {
		return map[string]any{"name": name, "targets": 100, "nats_per_token": nats, "perplexity": math.Exp(nats)}
	}
	rec := func(status string, scores ...map[string]any) *runlog.Record {
		r := record(3)
		r.Status = status
		r.Events = r.Events[:2]
		if scores != nil {
			r.Events = append(r.Events, runlog.Event{Kind: "evaluation", Name: "held-out", Detail: scores})
		}
		r.Events = append(r.Events, runlog.Event{Kind: "record", Name: "leg", Detail: map[string]any{"leg": "control", "steps": 12}})
		return r
	}
	teacher, untrained := score("teacher", 2), score("untrained student", 8)
	judged := func(distilled, low, high float64, caught bool, instead ...map[string]any) *runlog.Record {
		scores := append(instead, score("distilled student", distilled), score("control student", 4), teacher, untrained) // the first of a name counts
		r := rec(runlog.Completed, scores...)
		r.Events = append(r.Events,
			runlog.Event{Kind: "evaluation", Name: "margins", Detail: []map[string]any{{"over": "control student", "nats_per_token": 4 - distilled, "standard_error": (high - low) / 4, "interval_95": []float64{low, high}}}},
			runlog.Event{Kind: "evaluation", Name: "canaries", Detail: []map[string]any{{"name": "zeroed", "what": "every weight is 0", "nats_per_token": 8.3, "caught": caught}}})
		return r
	}
	alone := func(r *runlog.Record, nats, low, high float64) *runlog.Record { // without teacher and control
		r.Manifest = &runlog.Manifest{Config: map[string]runlog.Value{"alpha": {Value: 0.0}}}
		for i := range r.Events {
			switch e := &r.Events[i]; e.Name {
			case "held-out":
				e.Detail = []map[string]any{teacher, untrained, score("distilled student", 3)}
			case "margins":
				e.Detail = []map[string]any{{"over": "untrained student", "nats_per_token": nats, "standard_error": 0.05, "interval_95": []float64{low, high}}}
			}
		}
		return r
	}
	for name, tt := range map[string]struct {
		r        *runlog.Record
		tone     string
		headline string
		gap      string
	}{
		"better":           {rec(runlog.Completed, teacher, untrained, score("distilled student", 3), score("control student", 4)), Neutral, "Whether distillation was worth it is not known: +1.0000 nats per token against training without the teacher, with an error", "untrained student 83.3 66.7"},
		"worse":            {rec(runlog.Completed, teacher, score("distilled student", 4.5), score("control student", 4)), Neutral, "Whether distillation was worth it is not known: -0.5000 nats", ""},
		"the same":         {rec(runlog.Completed, teacher, score("distilled student", 4.00001), score("control student", 4)), Neutral, "Distillation made no difference", ""},
		"surely nothing":   {judged(3.99999, 0.000005, 0.000015, true), Neutral, "Distillation made no difference (95 % interval 0.0000 to 0.0000)", "untrained student 66.7 66.7"},
		"better than all":  {judged(1, 2.9, 3.1, true), Good, "Distillation was worth it: 3.0000", "untrained student 116.7 66.7"},
		"no gap":           {judged(3, 0.9, 1.1, true, score("teacher", 9)), Neutral, "Distillation helped, by which part of the gap to the teacher is not known: 1.0000 nats", ""},
		"hardly better":    {judged(3.976, 0.02, 0.03, true), Neutral, "Distillation helped little, by 0.4 % of the gap to the teacher: 0.0240 nats per token better than without the teacher at equal tokens (95 % interval 0.0200 to 0.0300)", "untrained student 67.1 66.7"},
		"hardly trained":   {judged(3.976, 0.02, 0.03, true, score("untrained student", 4.1)), Neutral, "The student has hardly learned yet: it has closed 5.9 % of the gap to the teacher; 0.0240 nats", "untrained student 5.9 4.8"},
		"no control":       {rec(runlog.Completed, teacher, untrained, score("distilled student", 4)), Neutral, "The distilled student scores 4.0000 nats", "untrained student 66.7"},
		"no teacher":       {alone(judged(3, 0.9, 1.1, true), 1.5, 1.4, 1.6), Neutral, "The student scores 3.0000 nats per token on held-out text, 1.5000 better than before training (95 % interval 1.4000 to 1.6000)", ""},
		"learned nothing":  {alone(judged(3, 0.9, 1.1, true), 0.1, -0.1, 0.3), Neutral, "The student scores 3.0000 nats per token on held-out text, not surely another score", ""},
		"forgot":           {alone(judged(3, 0.9, 1.1, true), -0.2, -0.3, -0.1), Bad, "The student scores 3.0000 nats per token on held-out text, 0.2000 worse", ""},
		"nothing held out": {rec(runlog.Completed), Neutral, "The run is over; nothing was held out", ""},
		"not a number":     {rec(runlog.Completed, teacher, map[string]any{"name": "distilled student", "nats_per_token": nil}), Neutral, "The run is over; nothing was held out", ""},
		"surely better":    {judged(3, 0.9, 1.1, true), Good, "Distillation was worth it: 1.0000 nats per token better than without the teacher at equal tokens (95 % interval 0.9000 to 1.1000)", "untrained student 83.3 66.7"},
		"perhaps better":   {judged(3.9, -0.1, 0.3, true), Neutral, "Whether distillation was worth it is not known: +0.1000 nats per token against training without the teacher (95 % interval -0.1000 to 0.3000)", "untrained student 68.3 66.7"},
		"perhaps worse":    {judged(4.1, -0.3, 0.1, true), Neutral, "Whether distillation was worth it is not known: -0.1000", "untrained student 65.0 66.7"},
		"surely worse": {judged(4.5, -0.6, -0.4, true), Bad, "Distillation was not worth it: 0.5000 nats per token worse " +
			"than without the teacher at equal tokens (95 % interval 0.4000 to 0.6000)", "untrained student 58.3 66.7"},
		"no canary caught": {judged(3, 0.9, 1.1, false), Bad, "The scores say nothing: the distilled student is not surely better than a broken model (zeroed: every weight is 0)", ""},
		"at work":          {rec(runlog.Running), Neutral, "The run is at work", "start 25.0"},
		"stopped":          {rec(runlog.Stopped), Neutral, "The run was stopped and can go on", ""},
		"failed":           {rec(runlog.Failed), Bad, "The run failed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := New(tt.r).Verdict
			gap := ""
			if v.Gap != nil {
				gap = fmt.Sprintf("%s %.1f", v.Gap.From, v.Gap.Percent)
				if v.Gap.Control != nil {
					gap += fmt.Sprintf(" %.1f", *v.Gap.Control)
				}
				if !(v.Gap.Width >= 0 && v.Gap.Width <= 100) {
					t.Errorf("a bar of %g %%", v.Gap.Width)
				}
			}
			if v.Tone != tt.tone || !strings.HasPrefix(v.Headline, tt.headline) || gap != tt.gap {
				t.Errorf("%s, %q, gap %q; want %s, %q, %q", v.Tone, v.Headline, gap, tt.tone, tt.headline, tt.gap)
			}
			page(t, tt.r)
		})
	}
}

// The example's scores of docs/adr/0013-verdict-and-control.md: a sure difference by enough windows is good news, and
// no news by fewer.
func TestVerdictNeedsWindows(t *testing.T) {
	verdict := func(low, high float64, blocks any) Verdict {
		r := record(3)
		r.Events = append(r.Events[:2], runlog.Event{Kind: "evaluation", Name: "held-out", Detail: []map[string]any{
			{"name": "teacher", "targets": 71680, "nats_per_token": 2.205}, {"name": "untrained student", "targets": 71680, "nats_per_token": 8.32},
			{"name": "distilled student", "targets": 71680, "nats_per_token": 3.811}, {"name": "control student", "targets": 71680, "nats_per_token": 3.811 + (low+high)/2}}},
			runlog.Event{Kind: "evaluation", Name: "margins", Detail: []map[string]any{{"over": "control student", "nats_per_token": (low + high) / 2,
				"interval_95": []float64{low, high}, "blocks": blocks}}},
			runlog.Event{Kind: "evaluation", Name: "canaries", Detail: []map[string]any{{"name": "zeroed", "caught": true}}})
		return New(r).Verdict
	}
	const worth, unknown = "Distillation was worth it: 0.1884 nats per token better", "Whether distillation was worth it is not known: "
	for _, tt := range []struct {
		low, high      float64
		blocks         any
		tone, headline string
	}{
		{0.1776, 0.1992, 140, Good, worth}, {0.1776, 0.1992, 16, Good, worth}, {0.1776, 0.1992, nil, Good, worth},
		{0.1776, 0.1992, 15, Neutral, unknown + "15 windows are too few to tell; +0.1884 nats per token against training without the teacher (95 % interval 0.1776 to 0.1992)"},
		{0.1776, 0.1992, 4, Neutral, unknown + "4 windows are too few to tell"},
		{-0.3, 0.2, 4, Neutral, unknown + "4 windows are too few to tell; -0.0500"},
		{-0.2, -0.1, 4, Neutral, unknown + "4 windows are too few to tell; -0.1500"},
		{-0.2, -0.1, 16, Bad, "Distillation was not worth it: 0.1500"},
		{-0.1, 0.3, 140, Neutral, unknown + "+0.1000"},
	} {
		if v := verdict(tt.low, tt.high, tt.blocks); v.Tone != tt.tone || !strings.HasPrefix(v.Headline, tt.headline) || !strings.Contains(v.Detail, "71,680 held-out tokens") {
			t.Errorf("%v blocks: %s, %q, %q; want %s, %q", tt.blocks, v.Tone, v.Headline, v.Detail, tt.tone, tt.headline)
		}
	}
}

// Errors and canaries stand in both tables; what is not known is a dash.
func TestEvaluationTable(t *testing.T) {
	r := record(3)
	r.Events = append(r.Events,
		runlog.Event{Kind: "evaluation", Name: "held-out", Detail: []map[string]any{{"name": "teacher", "nats_per_token": 2, "targets": 9},
			{"name": "distilled student", "nats_per_token": 3, "nats_interval_95": []float64{2.75, 3.25}, "targets": 9}}},
		runlog.Event{Kind: "evaluation", Name: "margins", Detail: []map[string]any{{"over": "control student", "nats_per_token": 0.5, "standard_error": 0.125, "interval_95": []float64{0.25, 0.75}},
			{"over": "untrained student", "nats_per_token": 5, "standard_error": nil, "interval_95": []any{nil, nil}}}},
		runlog.Event{Kind: "evaluation", Name: "canaries", Detail: []map[string]any{{"name": "zeroed", "what": "every weight is 0", "targets": 9, "nats_per_token": 8.25, "perplexity": 3827.6,
			"caught": true, "margin": map[string]any{"over": "zeroed", "nats_per_token": 5.25, "standard_error": 0.5, "interval_95": []float64{4, 6.5}}}}})
	parts := New(r).Sections()
	var md bytes.Buffer
	if err := WriteMarkdown(&md, r); err != nil {
		t.Fatal(err)
	}
	html := regexp.MustCompile(`</?t[dr][^>]*>`).ReplaceAllString(strings.ReplaceAll(parts["scores"], "</td><td", " | </td><td"), "")
	for where, text := range map[string]string{"page": html, "Markdown": md.String()} {
		for _, want := range []string{"teacher | 2.0000 | – | ", "distilled student | 3.0000 | 0.2500 | ", "8.2500 | – | 3827.60 | – | – | – | 9",
			"control student | 0.5000 | 0.2500 to 0.7500 | 4.0", "untrained student | 5.0000 | – | –", "canary: zeroed | 5.2500 | 4.0000 to 6.5000 | 10.5"} {
			if !strings.Contains(text, want) {
				t.Errorf("the %s lacks %q:\n%s", where, want, text)
			}
		}
	}
}

// A run that has hardly begun, or whose records hold other types than they should, has a page too.
func TestPagesOfOddRuns(t *testing.T) {
	for name, r := range map[string]*runlog.Record{
		"empty": {Path: "x", Manifest: &runlog.Manifest{}, Status: runlog.Running},
		"odd details": {Path: "x", Manifest: &runlog.Manifest{}, Status: runlog.Failed, Receipt: &runlog.Receipt{Result: "text"}, Events: []runlog.Event{
			{Kind: "evaluation", Name: "held-out", Detail: "no list"}, {Kind: "decision", Name: "plan", Detail: []int{1}},
			{Kind: "record", Name: "device memory", Detail: 5}, {Kind: "evaluation", Name: "held-out during training", Detail: map[string]any{"leg": 5}}}},
		"not finite": {Path: "x", Manifest: &runlog.Manifest{}, Status: runlog.Failed, Steps: []runlog.Step{
			{Leg: "student", Loss: runlog.Number(math.NaN()), CE: runlog.Number(math.NaN()), KL: runlog.Number(math.NaN()), GradNorm: runlog.Number(math.Inf(1))}}},
	} {
		t.Run(name, func(t *testing.T) {
			html := page(t, r)
			dataOf(t, html)
			if err := WriteMarkdown(&bytes.Buffer{}, r); err != nil {
				t.Error(err)
			}
			if _, err := Update(r, "1"); err != nil {
				t.Error(err)
			}
			Metrics([]*runlog.Record{r})
		})
	}
}

// What a resumed run decides again is told once.
func TestDecisionsOnce(t *testing.T) {
	decided := func(reason string) runlog.Event {
		return runlog.Event{Kind: "decision", Name: "backend", Detail: map[string]any{"backend": "cpu"}, Reason: reason}
	}
	r := record(2)
	r.Events = []runlog.Event{decided("asked for"), {Kind: runlog.Attempt, Name: "2"}, decided("asked for"),
		decided("no GPU")}
	var got []string
	for _, row := range events(r) {
		if row.Name != "control" {
			got = append(got, row.Name+" "+row.Reason)
		}
	}
	if want := "[backend asked for 2  backend no GPU]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}

// The devices of attempts are told apart, and the machine of each that differs has a table of its own.
func TestDevicesOfAttempts(t *testing.T) {
	on := func(kind, name string) *runlog.Manifest {
		return &runlog.Manifest{Device: map[string]any{"kind": kind, "name": name}}
	}
	card, cpu := on("vulkan", "A Card"), on("cpu", "A Processor")
	for _, tt := range []struct {
		resumed []*runlog.Manifest
		want    string
		tables  []string
	}{
		{nil, "vulkan, A Card", []string{"Machine"}},
		{[]*runlog.Manifest{card, card}, "vulkan, A Card", []string{"Machine"}},
		{[]*runlog.Manifest{card, cpu, cpu, card},
			"attempts 1 to 2: vulkan, A Card; attempts 3 to 4: cpu, A Processor; attempt 5: vulkan, A Card",
			[]string{"Machine", "Machine of attempt 3", "Machine of attempt 5"}},
	} {
		r := record(1)
		r.Manifest.Device, r.Resumed = card.Device, tt.resumed
		if got := devices(r); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
		var tables []string
		for _, s := range origins(r) {
			if strings.HasPrefix(s.Title, "Machine") {
				tables = append(tables, s.Title)
			}
		}
		if !slices.Equal(tables, tt.tables) {
			t.Errorf("%v, want %v", tables, tt.tables)
		}
	}
}

// A run at work tells how fast it is by its last steps, and when its leg ends.
func TestPace(t *testing.T) {
	r := record(100)
	r.Receipt, r.Status = nil, runlog.Running
	r.Events = []runlog.Event{{Kind: "record", Name: "leg", Detail: map[string]any{"leg": "control", "steps": 1100}}}
	if got := fmt.Sprint(pace(r)); got != "[{speed now 400 tokens/s} {device memory 1.0 MiB} {left for the control about 20s}]" {
		t.Errorf("pace %s", got)
	}
	r.Steps = r.Steps[:103] // the control has just begun
	if got := fmt.Sprint(pace(r)[0]); got != "{speed now 400 tokens/s}" {
		t.Errorf("pace %s", got)
	}
	r.Manifest.Device = map[string]any{"kind": "cpu"}
	if got := fmt.Sprint(pace(r)[1]); got != "{memory of tensors 1.0 MiB}" {
		t.Errorf("pace %s", got)
	}
	if got := pace(&runlog.Record{}); got != nil {
		t.Errorf("pace of nothing: %v", got)
	}
}

func TestMemoryAndPhases(t *testing.T) {
	r := record(10)
	p := New(r)
	want := "[{teacher 1000 1000} {student -1 0} {gradients -1 0} {optimizer -1 0} {activations -1 0} {logits -1 0} {batch -1 0} {scratch 500 400} {total 1500 1400} {available 9000 -1}]"
	if got := fmt.Sprint(p.Memory); got != want {
		t.Errorf("memory %s\nwant %s", got, want)
	}
	var seconds, percent float64
	for _, ph := range p.Phases {
		seconds += ph.Seconds
		percent += ph.Percent
	}
	if !(math.Abs(seconds-120) < 1e-9) || !(math.Abs(percent-100) < 1e-9) {
		t.Errorf("phases add up to %g s, %g %%", seconds, percent)
	}
}

func TestMetrics(t *testing.T) {
	r := record(2)
	r.Manifest.RunID = "a\"b\\c\nd"
	r.Steps[1].Loss, r.Steps[1].GradNorm = 1.25, runlog.Number(math.Inf(1))
	got := Metrics([]*runlog.Record{r})
	for _, line := range []string{
		`apr_loss{run="a\"b\\c\nd",leg="student"} 1.25`, `apr_kl{run="a\"b\\c\nd",leg="control"} NaN`, `apr_grad_norm{run="a\"b\\c\nd",leg="student"} +Inf`,
		`apr_step{run="a\"b\\c\nd",leg="control"} 1`, `apr_tokens_total{run="a\"b\\c\nd",leg="student"} 16`,
		`apr_run_status{run="a\"b\\c\nd",status="completed"} 1`, `apr_run_status{run="a\"b\\c\nd",status="failed"} 0`, "# TYPE apr_loss gauge", "# TYPE apr_tokens_total counter",
	} {
		if !slices.Contains(strings.Split(got, "\n"), line) {
			t.Errorf("no line %s in\n%s", line, got)
		}
	}
	valid := regexp.MustCompile(`^(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+\{([a-z]+="([^"\\\n]|\\["\\n])*",?)+\} (NaN|[+-]Inf|[-+0-9.e]+))$`)
	for line := range strings.Lines(got) {
		if !valid.MatchString(strings.TrimSuffix(line, "\n")) {
			t.Errorf("not the text format: %q", line)
		}
	}
}

func TestNumbersForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		if got := count(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
	for s, want := range map[float64]string{0.0123: "12ms", 6.36: "6.4s", 125.4: "2m5s", math.NaN(): "–"} {
		if got := duration(s); got != want {
			t.Errorf("%g s is %s, want %s", s, got, want)
		}
	}
	if got := commandLine([]string{"apr", "a b", "it's", "x=1", ""}); got != `apr 'a b' 'it'\''s' x=1 ''` {
		t.Errorf("command line %s", got)
	}
	if got := visible("a\tb\n\x1b\u202e"); got != "a→b⏎␛�" {
		t.Errorf("visible text %q", got)
	}
}

// The vendored library is the published one: SHA-256 of uPlot 1.6.32's files.
func TestVendored(t *testing.T) {
	if !strings.HasPrefix(uplotScript, "/*! https://github.com/leeoniya/uPlot (v1.6.32) */") || strings.Contains(uplotScript, "</script") {
		t.Error("assets/uPlot.iife.min.js is not what it should be")
	}
	if !strings.Contains(uplotLicence, "MIT License") || strings.Contains(uplotLicence, "--") {
		t.Error("assets/uplot/LICENSE cannot stand in a comment of the page")
	}
	for name, want := range map[string]string{
		"uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
		"uPlot.min.css":     "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
	} {
		text, err := os.ReadFile(filepath.Join("assets", "uplot", name))
		if got := fmt.Sprintf("%x", sha256.Sum256(text)); err != nil || got != want {
			t.Errorf("%s: SHA-256 %s (%v), want %s", name, got, err, want)
		}
	}
}

// TestSettingsInForce: after a resumption the report shows the settings that were in force last, and what they had been.
func TestSettingsInForce(t *testing.T) {
	manifest := func(rate float64) *runlog.Manifest {
		return &runlog.Manifest{RunID: "x", Config: map[string]runlog.Value{
			"learning_rate": {Value: rate, Origin: "flag"}, "seed": {Value: 1, Origin: "default"},
		}}
	}
	for _, tt := range []struct {
		inForce *runlog.Manifest
		want    Row
	}{
		{nil, Row{"learning_rate", "0.5", "flag"}},
		{manifest(0.25), Row{"learning_rate", "0.25", "flag; 0.5 before a resumption"}},
	} {
		p := New(&runlog.Record{Manifest: manifest(0.5), InForce: tt.inForce})
		got := p.Origins[len(p.Origins)-1].Rows
		if len(got) != 2 || got[0] != tt.want || got[1] != (Row{"seed", "1", "default"}) {
			t.Errorf("got %v, want %v and the seed", got, tt.want)
		}
	}
}

// TestRefusedStepsAreTold: the verdict says of how many tokens a leg has learned nothing, and the report counts steps,
// not events: a run that was resumed has those of the steps that it did again, too.
func TestRefusedStepsAreTold(t *testing.T) {
	r := record(3)
	r.Steps[4].Diverged = true // of the control
	for range 2 {
		r.Events = append(r.Events, runlog.Event{Kind: "warning", Name: "diverging step", Reason: "loss 9"})
	}
	p := New(r)
	want := "Refused steps taught nothing: 0 of these tokens of the student's, 8 of the control's."
	if !strings.Contains(p.Verdict.Detail, want) {
		t.Errorf("%s", p.Verdict.Detail)
	}
	want = "1 step had a loss far above those before; it left the weights as they were"
	if !strings.Contains(page(t, r), want) {
		t.Error("the report does not say that one step was refused")
	}
	if r = record(3); strings.Contains(New(r).Verdict.Detail, "Refused") {
		t.Error("nothing was refused")
	}
}
