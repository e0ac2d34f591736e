package main

import (
	"reflect"
	"testing"

	runs "apr/run/list"
	runlog "apr/run/log"
)

// TestScoreColumns: scores on different texts do not stand in one column.
func TestScoreColumns(t *testing.T) {
	run := func(text string, val float64) runs.Summary {
		n := runlog.Number(val)
		return runs.Summary{HeldOut: text, Val: &n}
	}
	for name, tt := range map[string]struct {
		all   []runs.Summary
		heads []string
		rows  [][]string
	}{
		"none":     {[]runs.Summary{{}}, []string{">held-out nats"}, [][]string{{"–"}}},
		"one text": {[]runs.Summary{run("x", 1), {}, run("x", 2)}, []string{">held-out nats"}, [][]string{{"1.0000"}, {"–"}, {"2.0000"}}},
		"two":      {[]runs.Summary{run("x", 1), run("y", 2), run("x", 3)}, []string{">held-out A", ">held-out B"}, [][]string{{"1.0000", "–"}, {"–", "2.0000"}, {"3.0000", "–"}}},
		"unknown":  {[]runs.Summary{run("x", 1), run(runs.Unrecorded, 2)}, []string{">held-out A", ">held-out B"}, [][]string{{"1.0000", "–"}, {"–", "2.0000"}}},
		"four": {[]runs.Summary{run("x", 1), run("y", 2), run("z", 3), run("u", 4)}, []string{">held-out A", ">held-out B", ">others"},
			[][]string{{"1.0000", "–", "–"}, {"–", "2.0000", "–"}, {"–", "–", "3.0000 C"}, {"–", "–", "4.0000 D"}}},
	} {
		if heads, rows := scoreColumns(tt.all); !reflect.DeepEqual(heads, tt.heads) || !reflect.DeepEqual(rows, tt.rows) {
			t.Errorf("%s: %q %q, want %q %q", name, heads, rows, tt.heads, tt.rows)
		}
	}
}

// TestMetricRows: the scores of two runs on different texts have a row each; other numbers share one.
func TestMetricRows(t *testing.T) {
	a, b := runlog.Number(1), runlog.Number(2)
	r := runsCompareResult{Comparison: runs.Comparison{Runs: []string{"p", "q"}, HeldOut: []string{"x", "y"},
		Metrics: map[string][]*runlog.Number{"loss": {&a, &b}, "val_nats.teacher": {&a, &b}, "val_nats.control_student": {&a, nil}}}}
	want := [][]string{{"loss", "1", "2"}, {"val_nats.control_student A", "1", "–"}, {"val_nats.teacher A", "1", "–"}, {"val_nats.teacher B", "–", "2"}}
	if got := r.metricRows(); !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	r.HeldOut = []string{"x", ""} // the second has no scores
	r.Metrics["val_nats.teacher"][1] = nil
	want = [][]string{{"loss", "1", "2"}, {"val_nats.control_student", "1", "–"}, {"val_nats.teacher", "1", "–"}}
	if got := r.metricRows(); !reflect.DeepEqual(got, want) {
		t.Errorf("a run without scores: %q, want %q", got, want)
	}
	r.HeldOut, r.Metrics["val_nats.teacher"][1] = []string{"x", "x"}, &b
	want = [][]string{{"loss", "1", "2"}, {"val_nats.control_student", "1", "–"}, {"val_nats.teacher", "1", "2"}}
	if got := r.metricRows(); !reflect.DeepEqual(got, want) {
		t.Errorf("one text: %q, want %q", got, want)
	}
}
