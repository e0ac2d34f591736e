package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	runs "apr/run/list"
	runlog "apr/run/log"
)

// comparison is what the page of several runs shows.
type comparison struct {
	Runs  []comparedRun
	Texts []textGroup
	Table []differing
	Note  string
}

// comparedRun is one of the runs: its colour, its verdict, its numbers of a line.
type comparedRun struct {
	Name, ID, Colour, Status string
	Verdict                  Verdict
	Facts                    []Pair
}

// textGroup are the scores of the runs that are judged by one held-out text, the best first.
type textGroup struct {
	Title string
	Rows  []comparedScore
}

// comparedScore is a model of a run on the text of its group.
type comparedScore struct {
	Name, Colour string
	Score        Score
	Control      *runlog.Number
	Margin       Interval // over the control
}

// differing is a setting in which the runs differ.
type differing struct {
	Name   string
	Values []string
}

// runColours is how many colours runs have; a further run begins again with the first.
const runColours = 8

func runColour(i int) string { return fmt.Sprintf("run%d", i%runColours) }

// WriteComparison writes a page that lays the curves of runs over each other, with their verdicts, what they are judged by, and
// the settings in which they differ. It is one file, as a report is.
func WriteComparison(w io.Writer, records []*runlog.Record) error {
	c, names := comparison{}, shortNames(records)
	for i, r := range records {
		p := New(r)
		c.Runs = append(c.Runs, comparedRun{names[i], r.ID(), runColour(i), r.Status, p.Verdict, p.Facts})
	}
	found := runs.Compare(records)
	c.Texts = textGroups(records, names)
	if len(c.Texts) > 1 {
		c.Note = "These runs are judged by different held-out texts. Scores are ranked within a text only."
	}
	for _, d := range found.Differences {
		row := differing{Name: d.Name()}
		for i := range d.Values {
			row.Values = append(row.Values, shortHash(d.Typed(i)))
		}
		c.Table = append(c.Table, row)
	}
	numbers, err := json.Marshal(data{Charts: overlaid(records, names)})
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	footer := "<footer>Numbers come from the runs' own records. " + zoomText + "</footer>\n"
	body := c.comparedPart() + curvesPart + c.differencesPart() + footer
	return document{title: "apr runs compare " + strings.Join(names, " "), body: body, numbers: numbers}.write(w)
}

// shortNames are the names of the runs' folders, or their identities where two folders have one name.
func shortNames(records []*runlog.Record) (names []string) {
	seen := map[string]int{}
	for _, r := range records {
		names = append(names, baseOf(r))
		seen[baseOf(r)]++
	}
	for i, r := range records {
		if seen[names[i]] > 1 {
			names[i] = fmt.Sprintf("%s (%d)", r.ID(), i+1)
		}
	}
	return names
}

func baseOf(r *runlog.Record) string {
	parts := strings.FieldsFunc(r.Path, func(c rune) bool { return c == '/' || c == '\\' })
	if len(parts) == 0 {
		return r.ID()
	}
	return parts[len(parts)-1]
}

// shortHash cuts what is longer than a cell should be.
func shortHash(s string) string {
	const most = 60
	if len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" {
		return s[:12] + "…"
	}
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return cmp.Or(s, "–")
}

// byText groups runs by what they are judged by, in the order of the runs. A run that did not write down its text is alone, and those
// that hold nothing out are in no group.
func byText(records []*runlog.Record) (groups [][]int) {
	at := map[string]int{}
	for i, r := range records {
		id := runs.HeldOut(r)
		if g, ok := at[id]; ok {
			groups[g] = append(groups[g], i)
			continue
		}
		if id == "" {
			continue
		}
		if id != runs.Unrecorded {
			at[id] = len(groups)
		}
		groups = append(groups, []int{i})
	}
	return groups
}

// textGroups are the distilled students by what they are judged by.
func textGroups(records []*runlog.Record, names []string) (groups []textGroup) {
	for _, members := range byText(records) {
		g := textGroup{Title: cmp.Or(runs.HeldOutName(records[members[0]]), "a text that was not written down")}
		for _, i := range members {
			rows := evaluated[Score](records[i], "held-out")
			s := find(rows, distilledScore)
			if s == nil {
				continue
			}
			row := comparedScore{Name: names[i], Colour: runColour(i), Score: *s}
			if k := find(rows, controlScore); k != nil {
				row.Control = &k.NatsPerToken
			}
			for _, m := range evaluated[Margin](records[i], "margins") {
				if m.Over == controlScore {
					row.Margin = m.Interval
				}
			}
			g.Rows = append(g.Rows, row)
		}
		slices.SortStableFunc(g.Rows, func(a, b comparedScore) int { return cmp.Compare(a.Score.NatsPerToken, b.Score.NatsPerToken) })
		if len(g.Rows) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

// overlaid are the curves of the students' legs, a series for each run. Held-out losses on different texts are different pictures.
func overlaid(records []*runlog.Record, names []string) []Chart {
	all := []Chart{}
	perRun := make([][]Chart, len(records))
	for i, r := range records {
		perRun[i] = charts(r, evaluated[Score](r, "held-out"))
	}
	groups := byText(records)
	for g, members := range groups {
		c := overlay("held_out", "student", perRun, names, members)
		if c == nil {
			continue
		}
		if len(groups) > 1 {
			c.ID = fmt.Sprintf("held_out_%d", g)
			if name := runs.HeldOutName(records[members[0]]); name != "" {
				c.Note = "on " + name
			}
		}
		all = append(all, *c)
	}
	every := make([]int, len(records))
	for i := range every {
		every[i] = i
	}
	for _, m := range metrics {
		if c := overlay(m.id, "student", perRun, names, every); c != nil {
			all = append(all, *c)
		}
	}
	return all
}

// overlay takes the curve of a leg out of the chart of that name of each run; nil: none has it.
func overlay(id, leg string, perRun [][]Chart, names []string, members []int) *Chart {
	var c *Chart
	var values []map[int]runlog.Number
	for _, i := range members {
		at := slices.IndexFunc(perRun[i], func(c Chart) bool { return c.ID == id })
		if at < 0 {
			continue
		}
		from := perRun[i][at]
		s := slices.IndexFunc(from.Series, func(s Series) bool { return s.Label == leg })
		if s < 0 {
			continue
		}
		if c == nil {
			c = &Chart{ID: from.ID, Title: from.Title, Unit: from.Unit, Note: from.Note, Digits: from.Digits, Smooth: from.Smooth, Dots: from.Dots}
		}
		points := map[int]runlog.Number{}
		for j, x := range from.X {
			if v := from.Series[s].Values[j]; v.Finite() {
				points[x] = v
			}
		}
		c.Series = append(c.Series, Series{Label: names[i], Kind: runColour(i)})
		values = append(values, points)
	}
	if c != nil {
		c.fill(values)
	}
	return c
}
