package main

import (
	"strings"
	"testing"
)

// TestSpeedTable: a step that costs what it may meets its goal, one that costs more or was not measured misses it.
func TestSpeedTable(t *testing.T) {
	measured := func(change func(s *speed)) (all []speed) {
		for _, c := range speedCases {
			phases := map[string]float64{"teacher": 40, "student_forward": 20, "loss": 10, "student_backward": 30}
			s := speed{Name: c.name, Step: 100, Phases: phases, Peak: 9e9}
			switch c.name {
			case "lora":
				s.Phases["student_backward"], s.State = 21, 27e7
			case "blocks":
				s.Step, s.Search = 109, 1
			}
			if c.name == "qlora" || c.name == "lora" || c.name == "blocks" {
				change(&s)
			}
			all = append(all, s)
		}
		return all
	}
	for _, c := range []struct {
		name   string
		change func(s *speed)
		met    bool
		want   string
	}{
		{"as wanted", func(*speed) {}, true, "| 100.0 | 51.0 | 0.850 | 0.85 | 0.27 | 9.0 |"},
		{"a slower backward", func(s *speed) { s.Phases["student_backward"]++ }, false, "| 0.867 | 0.85 |"},
		{"more state", func(s *speed) { s.State += 1e7 }, false, "(wanted: 0.28)"},
		{"a search that costs more", func(s *speed) { s.Search++ }, false, "| 1.110 | 1.10 |"},
		{"more memory", func(s *speed) { s.Peak = 91e8 }, false, "9.1 (wanted: 9.0)"},
		{"not measured", func(s *speed) { s.Why = "no memory" }, false, "qlora was not measured: no memory"},
	} {
		text, met := speedTable(speedSettings{}, measured(c.change))
		if met != c.met || !strings.Contains(text, c.want) {
			t.Errorf("%s: met %v, want %v and %q in\n%s", c.name, met, c.met, c.want, text)
		}
	}
}
