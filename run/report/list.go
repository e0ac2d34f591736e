package report

import (
	"fmt"
	"html/template"
	"io"
	"net/url"
	"path/filepath"
	"strings"

	runs "apr/run/list"
	runlog "apr/run/log"
)

var listTemplate = template.Must(template.New("list").Funcs(template.FuncMap{
	"base":  filepath.Base,
	"link":  func(s runs.Summary) string { return "runs/" + url.PathEscape(filepath.Base(s.Path)) + "/" },
	"count": func(n int) string { return count(int64(n)) },
	"number": func(n *runlog.Number) string { // a template's printf would print the pointer
		if n == nil {
			return "–"
		}
		return fixed(4, *n)
	},
	"when": func(s runs.Summary) string {
		if s.Started.IsZero() {
			return "–"
		}
		return s.Started.UTC().Format("2006-01-02 15:04 UTC")
	},
}).Parse(`<h1>Runs</h1>
<div class="card scroll" tabindex="0"><table>
<thead><tr><th>run</th><th>status</th><th>started</th><th class="n">steps</th><th class="n">loss</th><th class="n">held-out nats</th></tr></thead>
<tbody>{{range .}}<tr><td><a href="{{link .}}">{{base .Path}}</a>{{with .Problem}}<br>{{.}}{{end}}</td><td><span class="pill {{.Status}}">{{.Status}}</span></td><td>{{when .}}</td><td class="n">{{count .Steps}}</td><td class="n">{{number .Loss}}</td><td class="n">{{number .Val}}</td></tr>
{{else}}<tr><td colspan="6">no runs yet</td></tr>
{{end}}</tbody></table></div>
`))

// WriteList writes a page that lists runs, with links to runs/NAME/.
func WriteList(w io.Writer, all []runs.Summary) error {
	var b strings.Builder
	b.WriteString("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n" +
		"<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n<title>apr runs</title>\n<style>" + style + "</style>\n</head>\n<body>\n<main>\n")
	if err := listTemplate.Execute(&b, all); err != nil {
		return fmt.Errorf("report: list: %w", err)
	}
	b.WriteString("</main>\n</body>\n</html>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
