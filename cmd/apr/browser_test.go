//go:build browser

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	runs "apr/run/list"
	runlog "apr/run/log"
	"apr/run/report"
)

// These tests want Chromium, and fail without it: make browser.

// chromium is the program, by the names that systems give it.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("there is no chromium: apt-get install chromium")
	return ""
}

// browse loads a page in a fresh headless browser, and returns its document after so much of the page's own time, and
// the lines that the page wrote to the console, refused content included.
func browse(t *testing.T, page string, budget time.Duration, flags ...string) (dom string, console []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	args := append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--no-proxy-server", "--window-size=1200,1600", "--enable-logging=stderr",
		"--user-data-dir=" + t.TempDir(), fmt.Sprintf("--virtual-time-budget=%d", budget.Milliseconds())}, flags...)
	cmd := exec.CommandContext(ctx, chromium(t), append(args, "--dump-dom", page)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("chromium: %v\n%s", err, errs.String())
	}
	for line := range strings.Lines(errs.String()) {
		if strings.Contains(line, "CONSOLE") {
			console = append(console, strings.TrimSpace(line))
		}
	}
	return out.String(), console
}

// fileURL is the address of a file.
func fileURL(path, fragment string) string { return "file://" + path + fragment }

const evil = `</script><script>document.documentElement.dataset.pwned=1</script><img src=x onerror="document.documentElement.dataset.pwned=2">"'`

// writeBrowsedRun makes a finished run of two legs of n steps, with hostile texts, and returns its directory.
func writeBrowsedRun(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run")
	d, err := runlog.Open(path, false, false)
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(d.WriteManifest(runlog.Manifest{RunID: evil, Command: []string{evil}, Started: time.Now(),
		Inputs: map[string]runlog.Input{"teacher": {Path: evil, Detail: evil}}, Config: map[string]runlog.Value{"data": {Value: evil, Origin: evil}}}))
	must(d.Event("decision", evil, evil, evil))
	rng := rand.New(rand.NewPCG(7, 8))
	for _, leg := range []string{"student", "control"} {
		for k := range n {
			s := runlog.Step{Leg: leg, Step: k, LR: rng.Float64() * 1e-3, Loss: runlog.Number(rng.NormFloat64()), CE: runlog.Number(rng.ExpFloat64()),
				KL: runlog.Number(rng.Float64()), GradNorm: runlog.Number(1e5 * rng.Float64()), Finite: true, Tokens: 8,
				TokensPerSecond: runlog.Number(1e4 * rng.Float64()), CPUs: 1 + rng.Float64(), GPUPercent: new(k % 101),
				MS: runlog.Milliseconds{Total: 1, Student: 1}}
			if leg == "control" {
				s.KL = runlog.Number(math.NaN())
			}
			if k == n/2 { // refused: it has a place on the axis, and no value
				s.Loss, s.Finite = runlog.Number(math.NaN()), false
			}
			must(d.Step(s))
		}
	}
	must(d.Event("evaluation", "held-out", []map[string]any{{"name": "teacher", "nats_per_token": 2, "targets": 9}, {"name": evil, "nats_per_token": 3},
		{"name": "distilled student", "nats_per_token": 3, "targets": 9, "perplexity": 20.1}, {"name": "control student", "nats_per_token": 4, "targets": 9, "perplexity": 54.6},
		{"name": "untrained student", "nats_per_token": 8, "targets": 9}}, ""))
	must(d.Event("evaluation", "margins", []map[string]any{{"over": "control student", "nats_per_token": 1, "standard_error": 0.1, "interval_95": []float64{0.8, 1.2}}}, ""))
	kl := runlog.Number(0.5)
	var tokens []runlog.SampleToken
	for i, text := range []string{"func", " main", "()", evil, "\n", "}"} {
		p := &runlog.Prediction{P: 0.5, Top: []runlog.Choice{{ID: int32(i), Text: text, P: 0.5}, {ID: 99, Text: evil, P: 0.25}}}
		tokens = append(tokens, runlog.SampleToken{ID: int32(i), Text: text, Counts: i > 1, KL: &kl, Teacher: p, Student: p})
	}
	long := strings.Repeat("aVeryLongNameWithoutASpace", 20)
	must(d.Event("evaluation", runlog.SizesEvent, []runlog.ModelSize{{Name: "teacher", Parameters: 7e9, FileBytes: 4e9, MemoryBytes: 15e9, TokensPerSecond: new(runlog.Number(9))},
		{Name: "distilled student", Parameters: 5e8, FileBytes: 1e9, MemoryBytes: 2e9, TokensPerSecond: new(runlog.Number(80))}}, ""))
	must(d.Event("decision", "teacher weights", map[string]any{"device_bytes": 1e9, "file_bytes": 5e8, "path": long}, long))
	must(d.WriteSamples(runlog.Samples{Top: 2, Vocab: 100, Windows: []runlog.Sample{{Tokens: tokens}},
		Continuations: []runlog.Continuation{{Prompt: evil + long, Text: "\t" + long, Answers: []runlog.Answer{
			{Model: "teacher", Text: evil, Finish: "length"}, {Model: "distilled student", Text: long, Tokens: 3, Finish: "time"}, {Model: "control student", Text: "\n\n", Finish: "stop"}}}}}))
	must(d.WriteReceipt(runlog.Receipt{Status: runlog.Completed, By: evil, Outputs: map[string]string{evil: "00"}}))
	must(d.Close())
	return path
}

// reported writes the run's report to a file.
func reported(t *testing.T, path string) string {
	t.Helper()
	rec, err := runlog.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "report.html")
	if _, err := writeReport(rec, file, "html", false); err != nil {
		t.Fatal(err)
	}
	return file
}

var rowPattern, cellPattern = regexp.MustCompile(`<tr>(.*?)</tr>`), regexp.MustCompile(`<t[dh][^>]*>(.*?)</t[dh]>`)

// table returns the cells of the table of numbers below a curve: what the browser has drawn.
func table(t *testing.T, dom, chart string) (rows [][]string) {
	t.Helper()
	_, rest, ok := strings.Cut(dom, `id="chart-`+chart+`"`)
	rest, _, ok2 := strings.Cut(rest, "</figure>")
	if !ok || !ok2 {
		t.Fatalf("there is no chart %s", chart)
	}
	if !strings.Contains(rest, "<canvas") {
		t.Errorf("chart %s is not drawn", chart)
	}
	_, rest, _ = strings.Cut(rest, "<details")
	for _, row := range rowPattern.FindAllStringSubmatch(rest, -1) {
		var cells []string
		for _, c := range cellPattern.FindAllStringSubmatch(row[1], -1) {
			cells = append(cells, html.UnescapeString(c[1]))
		}
		rows = append(rows, cells)
	}
	return rows
}

// recorded reads numbers of steps.jsonl without the program's own reader: by leg and step.
func recorded(t *testing.T, path, key string) map[string]map[int]*float64 {
	t.Helper()
	f, err := os.Open(filepath.Join(path, "steps.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string]map[int]*float64{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var step map[string]any
		if err := json.Unmarshal(lines.Bytes(), &step); err != nil {
			t.Fatal(err)
		}
		leg := step["leg"].(string)
		if all[leg] == nil {
			all[leg] = map[int]*float64{}
		}
		var value *float64
		if v, ok := step[key].(float64); ok {
			value = &v
		}
		all[leg][int(step["step"].(float64))] = value
	}
	return all
}

// The report renders, says nothing on the console, runs nothing that a run's records hold, and its curves carry the numbers
// of steps.jsonl, every digit.
func TestBrowserReport(t *testing.T) {
	const n = 700
	path := writeBrowsedRun(t, n)
	dom, console := browse(t, fileURL(reported(t, path), "#numbers"), 5*time.Second)
	if len(console) > 0 {
		t.Errorf("the console is not silent: %q", console)
	}
	for _, bad := range []string{"data-pwned", "data-errors", "<img"} {
		if strings.Contains(dom, bad) {
			t.Errorf("the document holds %s", bad)
		}
	}
	if !strings.Contains(dom, "Distillation was worth it: 1.0000 nats") {
		t.Error("no verdict")
	}
	for _, key := range []string{"loss", "ce", "kl", "grad_norm", "lr", "tokens_per_second", "cpus", "gpu_percent"} {
		want := recorded(t, path, key)
		rows := table(t, dom, key)
		heads := []string{"step", "student", "control"}
		if key == "kl" {
			heads = heads[:2]
		}
		if len(rows) != n+1 || !slices.Equal(rows[0], heads) {
			t.Fatalf("%s: %d rows under %v", key, len(rows), rows[0])
		}
		for _, row := range rows[1:] {
			step, err := strconv.Atoi(row[0])
			if err != nil {
				t.Fatal(err)
			}
			for i, leg := range heads[1:] {
				w, cell := want[leg][step], row[i+1]
				if w == nil {
					if cell != "" {
						t.Fatalf("%s, %s, step %d: drawn as %s, recorded as null", key, leg, step, cell)
					}
					continue
				}
				if got, err := strconv.ParseFloat(cell, 64); err != nil || got != *w {
					t.Fatalf("%s, %s, step %d: drawn as %s, recorded as %v", key, leg, step, cell, *w)
				}
			}
		}
	}
	if !strings.Contains(dom, "KL 0.5000") || strings.Count(dom, "50.00 %") < 2 {
		t.Error("a token that was chosen shows no predictions")
	}
}

// What the browser's console says is seen by these tests: a page that does what it may not is caught.
func TestBrowserSeesTrouble(t *testing.T) {
	text, err := os.ReadFile(reported(t, writeBrowsedRun(t, 3)))
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"inline script": "<script>document.documentElement.dataset.pwned=1</script>", "image": `<img src="http://127.0.0.1:9/x.png">`,
		"handler": `<p onclick="1" id="x">`, "style": `<p style="color:red">`,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "bad.html")
			if err := os.WriteFile(file, bytes.Replace(text, []byte("<main>"), []byte("<main>"+bad), 1), 0o600); err != nil {
				t.Fatal(err)
			}
			dom, console := browse(t, fileURL(file, ""), 3*time.Second)
			if len(console) == 0 || strings.Contains(dom, "data-pwned") {
				t.Errorf("it was let through: console %q", console)
			}
		})
	}
}

// A long run's page is thinned and still renders; so does a run that has just begun, in dark colours.
func TestBrowserOtherReports(t *testing.T) {
	for name, n := range map[string]int{"long": 9000, "one step": 1, "no step": 0} {
		t.Run(name, func(t *testing.T) {
			dom, console := browse(t, fileURL(reported(t, writeBrowsedRun(t, n)), ""), 5*time.Second, "--force-dark-mode", "--blink-settings=preferredColorScheme=0")
			if len(console) > 0 || strings.Contains(dom, "data-errors") {
				t.Errorf("console %q", console)
			}
			if thinned := strings.Contains(dom, "thinned from 9,000 steps"); thinned != (n > 4000) {
				t.Errorf("thinned is %v", thinned)
			}
			if drawn := strings.Contains(dom, "<canvas "); drawn != (n > 0) {
				t.Errorf("drawn is %v", drawn)
			}
		})
	}
}

// phonePolicy is where a page says its content security policy.
var phonePolicy = regexp.MustCompile(`<meta http-equiv="Content-Security-Policy"[^>]*>`)

// comparedPage writes the comparison of runs to a file.
func comparedPage(t *testing.T, paths ...string) string {
	t.Helper()
	var records []*runlog.Record
	for _, path := range paths {
		r, err := runlog.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
	}
	file := filepath.Join(t.TempDir(), "compare.html")
	if _, err := writeComparison(records, file, false, false); err != nil {
		t.Fatal(err)
	}
	return file
}

// listPage writes the list of the runs of a folder to a file.
func listPage(t *testing.T, dir string) string {
	t.Helper()
	all, err := runs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := report.WriteList(&b, all); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "list.html")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// No page is wider than a phone, and no table but the long ones of numbers is cut at its edge, with logarithmic axes or
// without, in light colours or dark. The page measures itself, so its policy is taken off; what the policy forbids is
// looked for on the page as it is.
func TestBrowserPhone(t *testing.T) {
	const width = 390
	run, empty := writeBrowsedRun(t, 300), writeBrowsedRun(t, 0)
	measure := []byte(`<script>setTimeout(() => parent.postMessage(innerWidth + " " + document.documentElement.scrollWidth + " " + ` +
		`[...document.querySelectorAll("main *")].filter(e => e.matches(".scroll:not(.long)") ? e.scrollWidth > e.clientWidth : !e.closest(".scroll, .prose") && getComputedStyle(e).overflowX === "visible" && e.scrollWidth > innerWidth)` +
		`.map(e => e.tagName + "." + e.className).slice(0, 9).join(" "), "*"), 1000)</script></body>`)
	frame := fmt.Sprintf(`<!doctype html><iframe width="%d" height="844" frameborder="0" src="measured.html"></iframe>`+
		`<script>addEventListener("message", e => { document.documentElement.dataset.measured = e.data; })</script>`, width) // a window cannot be so small
	for name, file := range map[string]string{
		"report": reported(t, run), "empty report": reported(t, empty), "comparison": comparedPage(t, run, empty, writeBrowsedRun(t, 40)), "list": listPage(t, filepath.Dir(run)),
	} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, flags := range [][]string{{}, {"--blink-settings=preferredColorScheme=0"}} {
				dom, console := browse(t, fileURL(file, "#logY&logX"), 3*time.Second, append(flags, "--window-size=500,844")...)
				if len(console) > 0 || strings.Contains(dom, "data-errors") || strings.Contains(dom, "data-pwned") {
					t.Errorf("%v: console %q", flags, console)
				}
			}
			dir := t.TempDir()
			text = bytes.Replace(phonePolicy.ReplaceAll(text, nil), []byte("</body>"), measure, 1)
			for name, text := range map[string][]byte{"measured.html": text, "frame.html": []byte(frame)} {
				if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			dom, _ := browse(t, fileURL(filepath.Join(dir, "frame.html"), ""), 4*time.Second)
			if m := regexp.MustCompile(`data-measured="(\d+) (\d+) ([^"]*)"`).FindStringSubmatch(dom); m == nil || m[1] != strconv.Itoa(width) || m[3] != "" {
				t.Errorf("the page measured %q, want a window of %d and nothing wider", m, width)
			} else if n, err := strconv.Atoi(m[2]); err != nil || n > width {
				t.Errorf("the page is %d wide", n)
			}
		})
	}
}

// A comparison lays the numbers of runs over each other: each in the column of its own name.
func TestBrowserComparison(t *testing.T) {
	a, b := writeBrowsedRun(t, 30), writeBrowsedRun(t, 50)
	dom, console := browse(t, fileURL(comparedPage(t, a, b), "#numbers"), 5*time.Second)
	if len(console) > 0 || strings.Contains(dom, "data-errors") || strings.Contains(dom, "data-pwned") {
		t.Errorf("console %q", console)
	}
	rows := table(t, dom, "ce")
	if len(rows) != 51 {
		t.Fatalf("%d rows", len(rows))
	}
	for i, path := range []string{a, b} {
		want := recorded(t, path, "ce")["student"]
		for _, row := range rows[1:] {
			step, err := strconv.Atoi(row[0])
			if err != nil {
				t.Fatal(err)
			}
			if w, cell := want[step], row[i+1]; w == nil != (cell == "") {
				t.Fatalf("run %d, step %d: drawn as %q, recorded as %v", i, step, cell, w)
			} else if w != nil {
				if got, err := strconv.ParseFloat(cell, 64); err != nil || got != *w {
					t.Fatalf("run %d, step %d: drawn as %s, recorded as %v", i, step, cell, *w)
				}
			}
		}
	}
}

// The live page, opened with the link, goes on drawing while steps are written.
func TestBrowserLive(t *testing.T) {
	dir, run := servedRun(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := newDashboard(dir, l.Addr().String())
	// The browser is sent on to the run's page, as a click on the list would.
	inner := d.handler()
	asked := 0
	s := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/runs/run%201/#numbers", http.StatusSeeOther)
			return
		}
		if strings.HasSuffix(r.URL.Path, "data.json") { // each question finds another step
			asked++
			if err := run.Step(runlog.Step{Leg: "student", Step: asked, Loss: runlog.Number(2.5 - float64(asked)/8), Finite: true}); err != nil {
				t.Error(err)
			}
			if err := run.Flush(); err != nil {
				t.Error(err)
			}
		}
		inner.ServeHTTP(w, r)
	})}
	go s.Serve(l)
	defer s.Close()
	dom, console := browse(t, d.link(), 8*time.Second)
	if len(console) > 0 || strings.Contains(dom, "data-errors") {
		t.Errorf("console %q", console)
	}
	updates := regexp.MustCompile(`data-updates="(\d+)"`).FindStringSubmatch(dom)
	if updates == nil || updates[1] == "1" {
		t.Fatalf("the page asked %d times and drew %v", asked, updates)
	}
	rows := table(t, dom, "loss")
	drawn, err := strconv.Atoi(updates[1])
	if err != nil || len(rows) != drawn+2 || !slices.Equal(rows[3], []string{"2", "2.25"}) {
		t.Errorf("%d updates, then %d rows: %v", drawn, len(rows), rows)
	}
	if !strings.Contains(dom, fmt.Sprintf("Step %d of 8 of the student", drawn+1)) {
		t.Error("the verdict does not follow the steps")
	}
}
