package distill

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/internal/contracttest"
	runlog "apr/run/log"
	"apr/tensor"
)

// onTexts trains a student one step on texts, a row each.
func onTexts(t *testing.T, texts []string, change func(*Config)) *told {
	t.Helper()
	contracttest.Cases(t, 1)
	return oneStep(t, func(c *Config) {
		c.Packing, c.BatchSize, c.SeqLen = false, len(texts), 8
		c.Data = []string{documentsOf(t, texts)}
		c.EvalData = []string{documentsOf(t, []string{"package main\n\nfunc main() {}\n"})}
		change(c)
	})
}

// documentsOf writes data of one document for each text, from the sources x and y in turn.
func documentsOf(t *testing.T, texts []string) string {
	t.Helper()
	var all strings.Builder
	for i, text := range texts {
		fmt.Fprintf(&all, "{\"source\": %q, \"text\": %q}\n", []string{"x", "y"}[i%2], text)
	}
	path := filepath.Join(t.TempDir(), "texts.jsonl")
	if err := os.WriteFile(path, []byte(all.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// cutStudents are students that were cut out of the teacher, which have its embedding and something to learn.
func cutStudents(t *testing.T) map[string]string {
	layers := func(n int) string {
		return reshapedCopy(t, tensor.F32, func(c *arch.Config) { c.Layers = c.Layers[:n] },
			func(_ string, _ []int, v []float32) []float32 { return v })
	}
	return map[string]string{"3 of 6 layers": layers(3), "5 of 6 layers": layers(5),
		"a third of the neurons": thirdOfNeurons(t)}
}

// thirdOfNeurons writes the teacher with the first third of the neurons of each layer.
func thirdOfNeurons(t *testing.T) string {
	return reshapedCopy(t, tensor.F32, func(c *arch.Config) {
		for i := range c.Layers {
			c.Layers[i].FFN.Width /= 3
		}
	}, func(name string, shape []int, v []float32) []float32 {
		switch {
		case strings.HasSuffix(name, "gate_proj.weight"), strings.HasSuffix(name, "up_proj.weight"):
			return v[:len(v)/3]
		case strings.HasSuffix(name, "down_proj.weight"):
			var out []float32
			for row := range slices.Chunk(v, shape[1]) {
				out = append(out, row[:shape[1]/3]...)
			}
			return out
		}
		return v
	})
}

// turnedRowCodes writes a copy in another order of neurons and of hidden columns, in codes of 4 bits by rows.
func turnedRowCodes(t *testing.T) string {
	return changedCopy(t, tensor.F32, both(both(rowCodes, permuted), turned))
}

// A first step of few targets says nothing of a copy whose rounding decides them: its embedding does.
func TestFirstStepOfFewTargets(t *testing.T) {
	run := func(text, student string) *told { return onTexts(t, []string{text}, from(student)) }
	rounded := permutedCodes(t)
	for text, agrees := range map[string]bool{"c": false, "x": false, "{": false, "y": true} {
		r := run(text, rounded)
		if r.event(runlog.FirstStepAgrees) != agrees || r.event(runlog.EmbeddingAgrees) == agrees || len(r.findings.Findings) != 1 {
			t.Errorf("%q: messages %q; findings %+v", text, r.said, r.findings.Findings)
		}
	}
	cut := reshapedCopy(t, tensor.F32, func(c *arch.Config) { c.Layers = c.Layers[:3] },
		func(_ string, _ []int, v []float32) []float32 { return v })
	for _, text := range []string{"c", "y", ")", "\t"} {
		if r := run(text, cut); r.event(runlog.FirstStepAgrees) || r.event(runlog.EmbeddingAgrees) {
			t.Errorf("cut to 3 layers, %q: messages %q", text, r.said)
		}
	}
	if r := run("x", turnedRowCodes(t)); !r.event(runlog.EmbeddingAgrees) {
		t.Errorf("turned, codes by rows: messages %q", r.said)
	}
}

// Where the teacher's distribution is flat, rounding chooses first ids at any number of positions: a copy there is told
// by its embedding and its divergence. Students that were cut out of the teacher, one with its table, one that was
// trained from other numbers and a new one are not.
func TestFirstStepOfFlatTargets(t *testing.T) {
	letters := strings.Split("bdfghjkm", "")
	alphabet := strings.Split("abcdefghijklmnopqrstuvwxyz", "")
	rounded := changedCopy(t, tensor.F32, both(rowCodes, permuted))
	for _, texts := range [][]string{letters, alphabet} {
		if r := onTexts(t, texts, from(rounded)); !r.event(runlog.FirstStepAgrees) || !hasFinding(r.findings, "agrees") {
			t.Errorf("%d letters: messages %q", len(texts), r.said)
		}
	}
	students := cutStudents(t)
	students["with the table"], students["a new one"] = strangerWithTable(t), ""
	for name, student := range students {
		r := onTexts(t, letters, func(c *Config) {
			if student != "" {
				from(student)(c)
			}
		})
		if strings.Contains(r.said, "is it a copy") {
			t.Errorf("%s: messages %q", name, r.said)
		}
	}
}

// A copy of one of several teachers that documents are routed to is told at few targets, too.
func TestFirstStepOfFewRoutedTargets(t *testing.T) {
	teacher, other := "../testdata/models/gosrc", untrained(t, 8)
	students := cutStudents(t)
	students["a copy"], students["a new one"] = turnedRowCodes(t), ""
	for name, student := range students {
		r := onTexts(t, []string{"x", "b", "x", "b"}, func(c *Config) {
			c.Ensemble = Ensemble{Routes: []Route{{"x", teacher}, {"y", other}}}
			if student != "" {
				from(student)(c)
			}
		})
		want := name == "a copy"
		told := r.event(runlog.EmbeddingAgrees)
		if told != want || strings.Contains(r.said, "warning: "+teacher+": the student has") != want ||
			r.event(runlog.FirstStepAgrees) {
			t.Errorf("%s: told %v: messages %q", name, told, r.said)
		}
	}
}
