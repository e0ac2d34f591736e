package junit_test

import (
	"encoding/xml"
	"reflect"
	"testing"

	"apr/internal/junit"
)

// What is written is read back by the standard library: counts, names and texts, whatever is in them.
func TestMarshal(t *testing.T) {
	type message struct {
		Line string `xml:"message,attr"`
		Text string `xml:",chardata"`
	}
	var got struct {
		Name   string `xml:"name,attr"`
		Suites []struct {
			Name     string `xml:"name,attr"`
			Tests    int    `xml:"tests,attr"`
			Failures int    `xml:"failures,attr"`
			Errors   int    `xml:"errors,attr"`
			Skipped  int    `xml:"skipped,attr"`
			Cases    []struct {
				Name    string   `xml:"name,attr"`
				Class   string   `xml:"classname,attr"`
				File    string   `xml:"file,attr"`
				Time    string   `xml:"time,attr"`
				Failure *message `xml:"failure"`
				Error   *message `xml:"error"`
				Skipped *message `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	wild := "<a & \"b\">'\n\tc\x1b[31m\xff"
	text := junit.Marshal("all", []junit.Suite{{Name: wild, Cases: []junit.Case{
		{Name: "passes", Class: "k", Seconds: 1.25},
		{Name: "fails", Class: "k", File: "a/b.yaml", Failure: &junit.Message{Line: wild, Text: wild}},
		{Name: "breaks", Class: "k", Error: &junit.Message{Line: "x", Text: "y"}},
		{Name: "waits", Class: "k", Skipped: &junit.Message{Line: "no card"}},
	}}, {Name: "empty"}})
	if err := xml.Unmarshal(text, &got); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	const tame = "<a & \"b\">'\n\tc�[31m�"
	s := got.Suites[0]
	if got.Name != "all" || len(got.Suites) != 2 || s.Name != tame || got.Suites[1].Tests != 0 {
		t.Errorf("%+v", got)
	}
	if counts := [4]int{s.Tests, s.Failures, s.Errors, s.Skipped}; counts != [4]int{4, 1, 1, 1} {
		t.Errorf("counts %v", counts)
	}
	if c := s.Cases[0]; c.Name != "passes" || c.Time != "1.250" || c.Failure != nil || c.File != "" {
		t.Errorf("%+v", c)
	}
	if c := s.Cases[1]; c.File != "a/b.yaml" || !reflect.DeepEqual(c.Failure, &message{tame, tame}) {
		t.Errorf("%+v", c.Failure)
	}
	if s.Cases[2].Error.Text != "y" || s.Cases[3].Skipped.Line != "no card" {
		t.Errorf("%+v", s.Cases)
	}
}
