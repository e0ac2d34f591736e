package report

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"

	runs "apr/run/list"
	runlog "apr/run/log"
)

// listing is what the page of a folder's runs shows.
type listing struct {
	Runs   []listed
	States []Pair // how many runs are in each state
	Texts  []Pair // the held-out texts by their letters, if there are several
}

// listed is a run in the list; Text is the letter of what it is judged by.
type listed struct {
	runs.Summary
	Text string
}

// runStates are the states in the order of the page.
var runStates = []string{runlog.Running, runlog.Completed, runlog.Stopped, runlog.Failed}

// refreshAfter is after how many seconds a list with a run at work is loaded again.
const refreshAfter = 10

// WriteList writes a page that lists runs, with links to runs/NAME/.
func WriteList(w io.Writer, all []runs.Summary) error {
	l, refresh := listingOf(all), 0
	for _, s := range all {
		if s.Status == runlog.Running {
			refresh = refreshAfter
		}
	}
	return document{title: "apr runs", body: l.page(), refresh: refresh}.write(w)
}

// listingOf counts the states, and gives each held-out text a letter.
func listingOf(all []runs.Summary) (l listing) {
	states := map[string]int{}
	marks, texts := letters(all)
	l.Texts = texts
	for i, s := range all {
		states[s.Status]++
		l.Runs = append(l.Runs, listed{s, marks[i]})
	}
	for _, s := range runStates {
		if n := states[s]; n > 0 {
			l.States = append(l.States, Pair{s, count(int64(n))})
		}
	}
	return l
}

// letters gives each held-out text on which a run has a score a letter, and returns those of the runs, and what they stand for.
// Where there is one text, nobody has a letter.
func letters(all []runs.Summary) (ofRuns []string, texts []Pair) {
	ofRuns = make([]string, len(all))
	var scored []string
	for _, s := range all {
		if s.Val != nil {
			scored = append(scored, s.HeldOut)
		}
	}
	known := runs.TextsOf(scored)
	if len(known) < 2 {
		return ofRuns, nil
	}
	named := map[string]bool{}
	for i, s := range all {
		if s.Val == nil {
			continue
		}
		ofRuns[i] = known.Name(s.HeldOut)
		if !named[s.HeldOut] {
			named[s.HeldOut] = true
			texts = append(texts, Pair{ofRuns[i], cmp.Or(s.HeldOutName, "a text that was not written down")})
		}
	}
	return ofRuns, texts
}

func runLink(s runs.Summary) string { return "runs/" + url.PathEscape(filepath.Base(s.Path)) + "/" }

// optional prints a number that may be missing.
func optional(n *runlog.Number) string {
	if n == nil {
		return "–"
	}
	return fixed(4, *n)
}

func when(s runs.Summary) string {
	if s.Started.IsZero() {
		return "–"
	}
	return s.Started.UTC().Format("2006-01-02 15:04 UTC")
}

// spark draws a small curve, 120 wide and 28 high. It holds numbers alone.
func spark(values []runlog.Number) string {
	if len(values) < 2 {
		return ""
	}
	low, high := values[0], values[0]
	for _, v := range values {
		low, high = min(low, v), max(high, v)
	}
	span := max(high-low, 1e-9)
	var points []string
	for i, v := range values {
		if v.Finite() {
			points = append(points, fmt.Sprintf("%.1f,%.1f", 2+116*float64(i)/float64(len(values)-1), 3+22*float64((high-v)/span)))
		}
	}
	return fmt.Sprintf(`<svg class="spark" viewBox="0 0 120 28" role="img" aria-label="loss from %s to %s">`+
		`<polyline points="%s"></polyline></svg>`,
		fixed(3, values[0]), fixed(3, values[len(values)-1]), strings.Join(points, " "))
}
