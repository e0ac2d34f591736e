package report

import (
	"bytes"
	"strings"
	"testing"

	runs "apr/run/list"
	runlog "apr/run/log"
)

// scored is a run in a folder of that name, judged by a text, with the student's nats on it.
func scored(name, text string, nats float64) *runlog.Record {
	r := record(4)
	r.Path = "runs/" + name
	r.Events = append(r.Events, runlog.Event{Kind: "record", Name: runlog.HeldOutText, Detail: map[string]any{"sha256": text, "name": text}})
	for i := range r.Events {
		if r.Events[i].Name == "held-out" {
			r.Events[i].Detail = []map[string]any{{"name": "distilled student", "targets": 10, "nats_per_token": nats}, {"name": hostile, "nats_per_token": 1}}
		}
	}
	return r
}

func compared(t *testing.T, records ...*runlog.Record) string {
	t.Helper()
	var b bytes.Buffer
	if err := WriteComparison(&b, records); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Runs are ranked among those that are judged by one text, and by no other.
func TestComparisonRanksWithinAText(t *testing.T) {
	html := compared(t, scored("high", "a.txt", 3), scored("low", "a.txt", 2), scored("other", "b.txt", 1))
	first, second, ok := strings.Cut(html, "Scores on b.txt")
	_, first, ok2 := strings.Cut(first, "Scores on a.txt")
	second, _, _ = strings.Cut(second, "</table>")
	if !ok || !ok2 || strings.Index(first, "low") > strings.Index(first, "high") || strings.Contains(first, "other<") || !strings.Contains(second, "other<") || strings.Contains(second, "low<") {
		t.Errorf("on a.txt: %s\non b.txt: %s", first, second)
	}
	if !strings.Contains(html, "different held-out texts") {
		t.Error("the page does not say that the texts differ")
	}
	charts := map[string]int{}
	for _, c := range dataOf(t, html).Charts {
		charts[c.ID] = len(c.Series)
	}
	if charts["held_out_0"] != 2 || charts["held_out_1"] != 1 || charts["loss"] != 3 {
		t.Errorf("curves %v", charts)
	}
	old := []*runlog.Record{scored("old", "a.txt", 3), scored("older", "a.txt", 2)}
	for _, r := range old {
		r.Events = r.Events[:len(r.Events)-1] // versions that wrote no text down
	}
	if n := strings.Count(compared(t, old...), "<h2>Scores on a text that was not written down"); n != 2 {
		t.Errorf("runs that did not write down their text are in %d tables, want 2", n)
	}
	if html := compared(t, scored("high", "a.txt", 3), scored("low", "a.txt", 2)); strings.Contains(html, "different held-out texts") {
		t.Error("one text is called several")
	}
}

// Curves are those of the students, number by number, whatever lengths the runs have.
func TestComparisonCurves(t *testing.T) {
	short, long := record(5), record(9)
	for _, c := range dataOf(t, compared(t, short, long)).Charts {
		if c.ID != "ce" {
			continue
		}
		if len(c.X) != 9 || len(c.Series) != 2 || c.Series[0].Kind != "run0" || c.Series[1].Kind != "run1" {
			t.Fatalf("%v, %+v", c.X, c.Series)
		}
		for i, r := range []*runlog.Record{short, long} {
			for x, v := range c.Series[i].Values {
				if known := x < len(r.Steps)/2; known && v != r.Steps[x].CE || !known && v.Finite() {
					t.Errorf("run %d, step %d: %v", i, x, v)
				}
			}
		}
		return
	}
	t.Fatal("there is no curve of the cross-entropy")
}

// Nothing that comes from a run is markup in a comparison, and it needs no other file.
func TestComparisonOfHostileRuns(t *testing.T) {
	a, b := record(3), record(3)
	a.Path, b.Path = "runs/"+hostile, "runs/"+hostile
	b.Manifest.Config["data"] = runlog.Value{Value: hostile + "2"}
	html := compared(t, a, b, &runlog.Record{Manifest: &runlog.Manifest{}, Status: runlog.Failed})
	for _, bad := range []string{"<img", "</script><script>document", "<script>document", `" onerror`, "style="} {
		if strings.Contains(strings.ReplaceAll(html, uplotScript, ""), bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	if n := strings.Count(html, "<script"); n != 3 {
		t.Errorf("%d script elements, want 3", n)
	}
}

// The list says of which text a score is where there are several, and draws each run's loss.
func TestList(t *testing.T) {
	all := []runs.Summary{runs.Summarise(scored("a", "a.txt", 3)), runs.Summarise(scored("b", "b.txt", 2)), runs.Summarise(scored("c", "a.txt", 2))}
	var b bytes.Buffer
	if err := WriteList(&b, all); err != nil {
		t.Fatal(err)
	}
	html := b.String()
	if n := strings.Count(html, `<span class="letter">A</span>`); n != 3 { // twice in the table, once below
		t.Errorf("%d letters A: %s", n, html)
	}
	if n := strings.Count(html, "<polyline"); n != 3 {
		t.Errorf("%d curves", n)
	}
	if strings.Contains(html, "refresh") || strings.Contains(html, "<script") {
		t.Error("a list of finished runs refreshes itself, or has a script")
	}
	all[0].Status = runlog.Running
	b.Reset()
	if err := WriteList(&b, all[:1]); err != nil {
		t.Fatal(err)
	}
	if html := b.String(); !strings.Contains(html, `http-equiv="refresh"`) || strings.Contains(html, `class="letter"`) {
		t.Error("a list with a run at work stays as it is, or one text has a letter")
	}
}
