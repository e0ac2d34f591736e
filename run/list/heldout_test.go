package runs

import (
	"fmt"
	"testing"

	runlog "apr/run/log"
)

// judgedBy is a record with what decides the held-out text.
func judgedBy(set func(m *runlog.Manifest)) *runlog.Record {
	m := &runlog.Manifest{Config: map[string]runlog.Value{"seq_len": {Value: 256.0}, "val_fraction": {Value: 0.01}, "seed": {Value: 1.0}},
		Inputs: map[string]runlog.Input{"data": {Path: "/x/train.txt", SHA256: "1"}, "tokenizer": {SHA256: "2"}}}
	set(m)
	return &runlog.Record{Manifest: m, InForce: m}
}

// The text that a run is judged by is another one when anything is other that its targets depend on, and the same otherwise.
func TestHeldOutOf(t *testing.T) {
	same := HeldOutOf(judgedBy(func(*runlog.Manifest) {}))
	if same == nil || same.Name != "part of train.txt in windows of 256" {
		t.Fatalf("%+v", same)
	}
	for name, c := range map[string]struct {
		set  func(m *runlog.Manifest)
		same bool
	}{
		"another place": {func(m *runlog.Manifest) { m.Inputs["data"] = runlog.Input{Path: "/y/train.txt", SHA256: "1"} }, true},
		"another seed":  {func(m *runlog.Manifest) { m.Config["seed"] = runlog.Value{Value: 2.0} }, true},
		"other data":    {func(m *runlog.Manifest) { m.Inputs["data"] = runlog.Input{Path: "/x/train.txt", SHA256: "9"} }, false},
		"another part":  {func(m *runlog.Manifest) { m.Config["val_fraction"] = runlog.Value{Value: 0.02} }, false},
		"a text":        {func(m *runlog.Manifest) { m.Inputs["eval_data"] = runlog.Input{Path: "v.txt", SHA256: "1"} }, false},
		"windows":       {func(m *runlog.Manifest) { m.Config["seq_len"] = runlog.Value{Value: 128.0} }, false},
		"tokens":        {func(m *runlog.Manifest) { m.Inputs["tokenizer"] = runlog.Input{SHA256: "9"} }, false},
		"targets":       {func(m *runlog.Manifest) { m.Config["assistant_only"] = runlog.Value{Value: false} }, false},
	} {
		if got := HeldOutOf(judgedBy(c.set)); got == nil || (got.ID == same.ID) != c.same {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for name, set := range map[string]func(m *runlog.Manifest){
		"nothing held out": func(m *runlog.Manifest) { m.Config["val_fraction"] = runlog.Value{Value: 0.0} },
		"no data":          func(m *runlog.Manifest) { delete(m.Inputs, "data") },
		"no hash":          func(m *runlog.Manifest) { m.Inputs["data"] = runlog.Input{Path: "x"} },
	} {
		if got := HeldOutOf(judgedBy(set)); got != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := HeldOutOf(&runlog.Record{}); got != nil {
		t.Errorf("no manifest: %+v", got)
	}
	a, b := &HeldOut{ID: "a"}, &HeldOut{ID: "b"}
	if got := fmt.Sprint(Texts([]*HeldOut{a, b, nil, a, nil})); got != "[[0 3] [1] [2] [4]]" {
		t.Errorf("groups %s", got)
	}
}

// The small curve is of applied and refused steps of the student that have a loss, in order, each point a mean.
func TestCurve(t *testing.T) {
	var steps []runlog.Step
	for k := range 480 {
		steps = append(steps, runlog.Step{Leg: "student", Step: k, Loss: runlog.Number(k / 10)}, runlog.Step{Leg: "control", Step: k, Loss: 99})
	}
	got := curve(steps)
	if len(got) != curvePoints {
		t.Fatalf("%d points", len(got))
	}
	for i, v := range got {
		if v != runlog.Number(i) {
			t.Errorf("point %d is %v", i, v)
		}
	}
	if got := curve(steps[:2]); len(got) != 1 || got[0] != 0 {
		t.Errorf("one step: %v", got)
	}
	if got := curve(nil); got != nil {
		t.Errorf("no step: %v", got)
	}
}
