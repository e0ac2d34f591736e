package report

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	runs "apr/run/list"
	runlog "apr/run/log"
)

// allTexts is all that a report of a record shows: page, live page, update, Markdown, the list with it, metrics.
func allTexts(t *testing.T, r *runlog.Record) map[string]string {
	t.Helper()
	var live, md, list bytes.Buffer
	for _, err := range []error{WriteLive(&live, r, "v"), WriteMarkdown(&md, r), WriteList(&list, []runs.Summary{runs.Summarise(r)})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	update, err := Update(r, "v")
	if err != nil {
		t.Fatal(err)
	}
	own := func(html string) string { // without the charting library's code
		return strings.ReplaceAll(strings.ReplaceAll(html, uplotScript, ""), script, "")
	}
	return map[string]string{"page": own(page(t, r)), "live page": own(live.String()), "update": string(update), "Markdown": md.String(),
		"list": list.String(), "metrics": Metrics([]*runlog.Record{r})}
}

// states are records of every kind of run.
func states() map[string]*runlog.Record {
	all := map[string]*runlog.Record{"empty": {Manifest: &runlog.Manifest{}, Status: runlog.Failed}}
	for _, status := range []string{runlog.Running, runlog.Completed, runlog.Stopped, runlog.Failed} {
		for _, caught := range []bool{true, false} {
			r := record(3)
			r.Manifest.Config, r.Manifest.Inputs, r.Manifest.Version = nil, nil, nil // hostile names look like anything
			r.Status = status
			if status != runlog.Completed {
				r.Receipt = nil
			}
			r.Events = append(r.Events, runlog.Event{Kind: "evaluation", Name: "margins", Detail: []map[string]any{
				{"over": "control student", "nats_per_token": 0.5, "standard_error": 0.1, "interval_95": []float64{0.3, 0.7}}}},
				runlog.Event{Kind: "evaluation", Name: "canaries", Detail: []map[string]any{{"name": "zeroed", "what": "every weight is 0", "nats_per_token": 8.3, "caught": caught}}})
			all[fmt.Sprintf("%s, canary caught %v", status, caught)] = r
		}
	}
	return all
}

// No page holds what fmt prints for an argument that does not fit its verb, as the list's losses once did.
func TestNoPageHasFormattingErrors(t *testing.T) {
	bad := regexp.MustCompile(`%![a-zA-Z(]|0xc[0-9a-f]{6,}`)
	for name, r := range states() {
		for part, text := range allTexts(t, r) {
			if m := bad.FindStringIndex(text); m != nil {
				t.Errorf("%s, %s: %q", name, part, text[max(0, m[0]-60):min(len(text), m[1]+60)])
			}
		}
	}
}

// A run has one verdict: where the scores say nothing, no sentence says what they say.
func TestOneVerdict(t *testing.T) {
	phrases := regexp.MustCompile(`scores say nothing|was worth it|was not worth it|made no difference|is not known: `)
	for name, r := range states() {
		v := New(r).Verdict
		if found := phrases.FindAllString(v.Headline+" "+v.Detail, -1); len(found) > 1 {
			t.Errorf("%s: %q in %q, %q", name, found, v.Headline, v.Detail)
		}
		if void := strings.Contains(v.Headline, "say nothing"); void != strings.Contains(name, "caught false") || void && v.Gap != nil {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// Time and speed are one number each, wherever they stand, and the time of the whole is no less than the time in the steps.
func TestTimesAgree(t *testing.T) {
	r := record(4)
	facts := func() string {
		var b strings.Builder
		for _, f := range New(r).Facts {
			fmt.Fprintf(&b, "%s %s, ", f.Name, f.Value)
		}
		return b.String()
	}
	metrics := runs.Metrics(r)
	if want := float64(metrics["tokens_per_second"]); want != 400 { // 4 steps of 8 tokens in 20 ms each
		t.Errorf("compare says %v tokens/s, want 400", want)
	}
	for seconds, want := range map[float64]string{120: "time 2m0s", 0.01: "time in steps 160ms"} {
		r.Receipt.Result = map[string]any{"duration_seconds": seconds, "tokens_per_second": 10, "resumed_from": "x"}
		if got := facts(); !strings.Contains(got, "speed 400 tokens/s") || !strings.Contains(got, want) {
			t.Errorf("a receipt of %v s: %s; want 400 tokens/s and %s", seconds, got, want)
		}
		var phases float64
		for _, p := range New(r).Phases {
			phases += p.Seconds
		}
		if want := max(seconds, 0.16); !(phases > want-1e-9 && phases < want+1e-9) {
			t.Errorf("a receipt of %v s: phases of %v s", seconds, phases)
		}
	}
}
