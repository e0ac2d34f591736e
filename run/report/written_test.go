package report

import (
	"bytes"
	"strings"
	"testing"

	runlog "apr/run/log"
)

// What models wrote stands in both reports with its lines and tabs, without characters that have no shape.
func TestWritten(t *testing.T) {
	r := record(3)
	p := New(r)
	w := p.Written[0]
	if got, want := w.Answers[0].Text, "\n\tx := 1\ufffd\u241b"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if w.Answers[1].Note != "cut after 7 tokens: it took too long" || w.Answers[2].Text != "⏎" {
		t.Errorf("%+v", w.Answers)
	}
	if html := page(t, r); !strings.Contains(html, "\n\tx := 1") || !strings.Contains(html, "What the models write") {
		t.Error("the page lacks what the teacher wrote")
	}
	var md bytes.Buffer
	if err := WriteMarkdown(&md, r); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(md.String(), "**teacher**\n\n>   \n> &nbsp;&nbsp;x := 1") {
		t.Errorf("Markdown lacks what the teacher wrote:\n%s", md.String())
	}
}

// Size and speed are those of the record, and the sentence is what they say.
func TestSizes(t *testing.T) {
	r := record(3)
	rows, compared := sizes(r)
	if want := "The student has 25 % of the teacher's parameters and writes 2.5 times as fast."; compared != want || len(rows) != 2 {
		t.Errorf("%q, want %q", compared, want)
	}
	if rows[0].Speed != "50.0" || rows[1].Speed != "125" || rows[1].FileBytes != 1200 {
		t.Errorf("%+v", rows)
	}
	r.Events[len(r.Events)-1].Detail = []runlog.ModelSize{{Name: "teacher", Parameters: 4000}, {Name: "distilled student", Parameters: 1000}}
	if rows, compared := sizes(r); rows[0].Speed != "–" || strings.Contains(compared, "writes") {
		t.Errorf("without a measurement: %+v, %q", rows, compared)
	}
	if rows, compared := sizes(&runlog.Record{}); rows != nil || compared != "" {
		t.Errorf("without a record: %+v, %q", rows, compared)
	}
}

// Decisions are sentences that say what the record says.
func TestDecisions(t *testing.T) {
	for _, c := range []struct {
		event runlog.Event
		want  string
	}{
		{runlog.Event{Kind: "decision", Name: "backend", Detail: map[string]any{"backend": "cpu"}, Reason: "no GPU can be used"}, "The run computes on the CPU: no GPU can be used."},
		{runlog.Event{Kind: "decision", Name: "teacher backend", Detail: map[string]any{"backend": "q4k", "reason": "it is faster", "candidates": []any{
			map[string]any{"backend": "cublas", "reason": "needs 9 GiB of 8 GiB"}, map[string]any{"backend": "q4k", "reason": "needs 3 GiB of 8 GiB"}}}},
			"The teacher is computed by q4k: it is faster; cublas: needs 9 GiB of 8 GiB."},
		{runlog.Event{Kind: "decision", Name: "teacher logits", Detail: map[string]any{"chosen": "cache", "kind": "hidden",
			"bytes": 2000000}, Reason: "it pays"},
			"The teacher is computed in the first epoch, and 1.9 MiB of its hidden states are read in the others: it pays."},
		{runlog.Event{Kind: "decision", Name: "teacher logits", Detail: map[string]any{"chosen": "live"},
			Reason: "asked for"}, "The teacher is computed in every epoch: asked for."},
		{runlog.Event{Kind: "decision", Name: "plan", Detail: map[string]any{"micro_rows": 1, "chunk_rows": 1024, "recompute": "blocks"}, Reason: "as asked for"},
			"A step runs in micro-batches of 1 row, with logits in chunks of 1,024 rows, and the backward pass computes blocks again: as asked for."},
		{runlog.Event{Kind: "decision", Name: "data cache", Detail: map[string]any{"data": map[string]any{"state": "hit"}, "eval_data": map[string]any{"state": "not written", "reason": "few tokens"}}},
			"The tokens of data came from the cache; the tokens of eval_data were encoded and not kept: few tokens."},
		{runlog.Event{Kind: "decision", Name: "resume", Detail: map[string]any{"from": "step-000003", "step": 3}}, "Training went on from step 3, with step-000003."},
		{runlog.Event{Kind: "decision", Name: "something new", Reason: "for a reason"}, "Something new: for a reason."},
		{runlog.Event{Kind: "decision", Name: "plan", Detail: "nothing that is known"}, "A step runs in micro-batches of 0 rows, with logits in chunks of 0 rows, and the backward pass computes nothing again."},
		{runlog.Event{Kind: "warning", Name: "diverging step", Reason: "loss 9"}, "Diverging step: loss 9."},
		{runlog.Event{Kind: "stop", Name: "signal"}, "The run was stopped by a signal."},
		{runlog.Event{Kind: runlog.Attempt, Name: "2"}, "Attempt 2 began: the run was resumed."},
	} {
		if got := sentence(c.event); got != c.want {
			t.Errorf("%s: %q, want %q", c.event.Name, got, c.want)
		}
	}
	r := record(3)
	r.Manifest.Config["control"] = runlog.Value{Value: "none", Origin: "default"}
	if e := New(r).Events; !strings.HasPrefix(e[len(e)-1].Sentence, "No control was asked for") {
		t.Errorf("%+v", e)
	}
	r.Events = append(r.Events, runlog.Event{Kind: "decision", Name: "control", Detail: map[string]any{"on": true, "share": 0.2}, Reason: "it takes 20 % of the training"})
	if e := New(r).Events; e[len(e)-1].Sentence != "A control is trained too, an identical student on the same tokens without the teacher: it takes 20 % of the training." {
		t.Errorf("the run's own word: %+v", e)
	}
}

// A default that is no value that can be given is shown as what it means.
func TestSettingsByRule(t *testing.T) {
	for want, v := range map[string]runlog.Value{"by rule": {Value: -1.0, Origin: "default"}, "-1": {Value: -1, Origin: "flag"}, "0": {Value: 0, Origin: "default"}} {
		if got := settingText(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}
