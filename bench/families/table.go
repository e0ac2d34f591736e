package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"apr/arch"
	"apr/bench/randmodel"
	"apr/internal/ref"
)

// unavailable is a cell that nothing was measured for.
const unavailable = "UNAVAILABLE"

// row is a family with what was measured of it.
type row struct {
	family  string
	config  arch.Config // of its first random model
	goldens []figures
	randoms []string // names of random models
	cells   []string
}

// heads are the columns.
var heads = []string{
	"family (`model_type`)", "kind", "goldens", "logits", "gradient, worst tensor", "greedy texts equal", "random models", "GGUF and back",
	"difference from llama.cpp", "emulated CUDA, float32: logits, gradient", "emulated CUDA, bfloat16: row cosine", "GPU, float32: logits, gradient", "GPU, bfloat16: row cosine", "training speed, of Qwen2's",
}

// kind names what is new in a family beyond a plain decoder.
func kind(c arch.Config) string {
	if what := c.NotComputed(); what != "" {
		return "described: " + what
	}
	if c.Layers[0].FFN.Act == arch.GELUTanh {
		return "B"
	}
	return "A"
}

// rows returns one for each family that is known, with the names of what it is tested with.
func rows(cpu []figures) (list []*row, err error) {
	for _, name := range arch.Families() {
		r := &row{family: name}
		for _, f := range cpu {
			if f.Family == name {
				r.goldens = append(r.goldens, f)
			}
		}
		for _, m := range randmodel.Models {
			_, c, err := m.Config()
			if err != nil {
				return nil, err
			}
			if c.Family == name {
				if r.randoms = append(r.randoms, m.Name); len(r.randoms) == 1 {
					r.config = c
				}
			}
		}
		if len(r.randoms) == 0 {
			return nil, fmt.Errorf("bench/randmodel has no model of family %s", name)
		}
		list = append(list, r)
	}
	return list, nil
}

// names lists goldens.
func names(list []figures) string {
	var all []string
	for _, f := range list {
		all = append(all, f.Name)
	}
	if all == nil {
		return "none"
	}
	return strings.Join(all, ", ")
}

// summary is the worst of several goldens.
type summary struct {
	n                int // that were computed
	logits, gradient float64
	where            string
	cosine           float64
	ties             ref.Ties
	greedy           int
	refused          string // by the first that was not
}

// worstOf sums up the goldens of a family.
func worstOf(list []figures) summary {
	s := summary{cosine: 1}
	for _, f := range list {
		if f.Refused != "" {
			s.refused = f.Refused
			continue
		}
		s.n++
		s.logits, s.cosine = math.Max(s.logits, f.Logits), math.Min(s.cosine, f.Cosine)
		s.ties.Others, s.ties.All = s.ties.Others+f.Ties.Others, s.ties.All+f.Ties.All
		if !(f.Gradient <= s.gradient) {
			s.gradient, s.where = f.Gradient, f.Where
		}
		if f.Greedy {
			s.greedy++
		}
	}
	return s
}

// of returns the figures of a family.
func of(list []figures, family string) (out []figures) {
	for _, f := range list {
		if f.Family == family {
			out = append(out, f)
		}
	}
	return out
}

// onCPU is the cells of the goldens in float32 on the CPU.
func (r *row) onCPU() (logits, gradient, greedy string) {
	s := worstOf(r.goldens)
	if s.n == 0 {
		return unavailable, unavailable, unavailable
	}
	greedy = fmt.Sprintf("%d of %d", s.greedy, s.n)
	if refused := len(r.goldens) - s.n; refused > 0 {
		greedy += fmt.Sprintf(", %d refused", refused)
	}
	return fmt.Sprintf("%.1e", s.logits), fmt.Sprintf("%.1e, %s", s.gradient, s.where), greedy
}

// onDevice is the cells of a device in float32 and in bfloat16.
func onDevice(float32s, bfloat16s []figures) (exact, rounded string) {
	exact, rounded = unavailable, unavailable
	if s := worstOf(float32s); s.n > 0 {
		exact = fmt.Sprintf("%.1e, %.1e%s", s.logits, s.gradient, s.missing(len(float32s)))
	}
	if s := worstOf(bfloat16s); s.n > 0 {
		rounded = fmt.Sprintf("%.6f", s.cosine)
		if s.ties.All > 0 {
			rounded += fmt.Sprintf("; ties: %d of %d", s.ties.Others, s.ties.All)
		}
		rounded += s.missing(len(bfloat16s))
	}
	return exact, rounded
}

// missing says that some goldens were refused.
func (s summary) missing(all int) string {
	if s.n == all {
		return ""
	}
	return fmt.Sprintf(" (%d of %d; %s)", s.n, all, unavailable)
}

// writeTable writes a headline and the table. The headline counts measured and UNAVAILABLE cells; the table has a row for each family.
func writeTable(w io.Writer, list []*row, origin string) {
	missing, cells := 0, 0
	for _, r := range list {
		for _, c := range r.cells[3:] {
			cells++
			if strings.Contains(c, unavailable) {
				missing++
			}
		}
	}
	computed := len(slices.DeleteFunc(slices.Clone(list), func(r *row) bool { return r.config.NotComputed() != "" }))
	fmt.Fprintf(w, "**%d families, of which %d are computed; %d of %d cells are measured, %d are %s.** %s\n\n", len(list), computed, cells-missing, cells, missing, unavailable, origin)
	fmt.Fprintf(w, "| %s |\n|%s\n", strings.Join(heads, " | "), strings.Repeat("---|", len(heads)))
	for _, r := range list {
		fmt.Fprintf(w, "| %s |\n", strings.Join(r.cells, " | "))
	}
}
