package report

import (
	"crypto/sha256"
	_ "embed" // the report's parts
	"encoding/base64"
	"fmt"
	"html"
	"io"
	"strings"

	runlog "apr/run/log"
)

//go:embed assets/uplot/uPlot.iife.min.js
var uplotScript string

//go:embed assets/uplot/uPlot.min.css
var uplotStyle string

// uplotLicence goes into every page: a copy of the library carries it.
//
//go:embed assets/uplot/LICENSE
var uplotLicence string

//go:embed assets/report.js
var script string

//go:embed assets/report.css
var style string

// sectionNames are the parts of a page in their order; "" stands for the charts, which the script draws.
var sectionNames = []string{"verdict", "", "scores", "written", "samples", "costs", "events", "origins"}

// positive prints a number that counts only above 0: bits per byte need documents.
func positive(digits int, n runlog.Number) string {
	if !(n > 0) {
		return "–"
	}
	return fixed(digits, n)
}

// scoreClass is the colour of a model by its name.
func scoreClass(name string) string {
	return map[string]string{distilledScore: "distilled", trainedScore: "distilled", controlScore: "control",
		teacherScore: "teacher", baseScore: "teacher"}[name]
}

func fixed(digits int, n runlog.Number) string {
	if !n.Finite() {
		return "–"
	}
	return fmt.Sprintf("%.*f", digits, float64(n))
}

func percent(n runlog.Number) string {
	if !n.Finite() {
		return "–"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(n))
}

//go:generate go tool -modfile=../../tools/go.mod qtc -skipLineComments -file=sections.qtpl

// Sections renders the parts of a page by name. Everything that comes from the run is escaped.
func (p *Page) Sections() map[string]string {
	return map[string]string{
		"verdict": p.verdictPart(), "scores": p.scoresPart(), "written": p.writtenPart(), "samples": p.samplesPart(),
		"costs": p.costsPart(), "events": p.eventsPart(), "origins": p.originsPart(),
	}
}

// Policy is the content security policy of a page: its own script and style, and nothing else. A live page may ask its
// server.
func Policy(live bool) string {
	hash := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	connect := "'none'"
	if live {
		connect = "'self'"
	}
	return "default-src 'none'; script-src " + hash(uplotScript) + " " + hash(script) + "; style-src " + hash(uplotStyle) + " " + hash(style) +
		"; connect-src " + connect + "; img-src data:; base-uri 'none'; form-action 'none'"
}

// WriteHTML writes the report of a run: one file, which needs no other.
func WriteHTML(w io.Writer, r *runlog.Record) error { return writePage(w, r, "") }

// WriteLive writes the report as a page that keeps asking its server for data.json: what is newer than version.
func WriteLive(w io.Writer, r *runlog.Record, version string) error { return writePage(w, r, version) }

func writePage(w io.Writer, r *runlog.Record, version string) error {
	p := New(r)
	p.Live = version != ""
	parts := p.Sections()
	numbers, err := dataJSON(p, r.Samples)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	var b strings.Builder
	for _, name := range sectionNames {
		if name == "" {
			b.WriteString(curvesPart)
			continue
		}
		b.WriteString("<div id=\"" + name + "\">" + parts[name] + "</div>\n")
	}
	b.WriteString(`<footer>Numbers come from the run's own records; curves hold those of steps.jsonl. ` + zoomText + "</footer>\n")
	return document{title: p.Title, body: b.String(), numbers: numbers, live: version}.write(w)
}

// curvesPart is where the script draws.
const (
	curvesPart = "<h2>Curves</h2>\n<div class=\"tools\" id=\"tools\"></div>\n<div class=\"charts\" id=\"charts\"></div>\n"
	zoomText   = "Drag over a curve to zoom, double-click to zoom out."
)

// document is a page of one file.
type document struct {
	title, body string
	numbers     []byte // that the script draws; nil: the page has no script
	live        string // version of a page that asks its server for what is new; empty: it does not
	refresh     int    // seconds after which the browser loads it again; 0: never
}

// write writes the page with its style, its script and its data.
func (d document) write(w io.Writer) error {
	escape := html.EscapeString
	var b strings.Builder
	attribute := ""
	if d.live != "" {
		attribute = ` data-live="` + escape(d.live) + `"`
	}
	b.WriteString("<!doctype html>\n<html lang=\"en\"" + attribute + ">\n<head>\n<meta charset=\"utf-8\">\n")
	b.WriteString(`<meta http-equiv="Content-Security-Policy" content="` + escape(Policy(d.live != "")) + "\">\n")
	if d.refresh > 0 {
		fmt.Fprintf(&b, "<meta http-equiv=\"refresh\" content=\"%d\">\n", d.refresh)
	}
	b.WriteString("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n")
	b.WriteString("<meta name=\"referrer\" content=\"no-referrer\">\n<link rel=\"icon\" href=\"data:,\">\n<title>" + escape(d.title) + "</title>\n")
	if d.numbers != nil {
		b.WriteString("<style>" + uplotStyle + "</style>\n")
	}
	b.WriteString("<style>" + style + "</style>\n</head>\n<body>\n<main>\n" + d.body)
	b.WriteString("</main>\n<div class=\"lost\" id=\"lost\" role=\"status\"></div>\n")
	if d.numbers != nil {
		b.WriteString("<script type=\"application/json\" id=\"data\">" + string(d.numbers) + "</script>\n")
		b.WriteString("<!-- uPlot\n" + uplotLicence + "-->\n")
		b.WriteString("<script>" + uplotScript + "</script>\n<script>" + script + "</script>\n")
	}
	b.WriteString("</body>\n</html>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
