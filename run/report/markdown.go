package report

import (
	"fmt"
	"io"
	"strings"

	runlog "apr/run/log"
)

// WriteMarkdown writes the report without its pictures, for a comment or a page of text.
func WriteMarkdown(w io.Writer, r *runlog.Record) error {
	p := New(r)
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# %s\n", plain(p.Verdict.Headline))
	if p.Verdict.Detail != "" {
		line("%s\n", plain(p.Verdict.Detail))
	}
	if g := p.Verdict.Gap; g != nil && g.To == "teacher" {
		line("%.1f %% of the gap between %s and teacher closed.\n", g.Percent, g.From)
	}
	line("Run %s: %s.", plain(p.RunID), plain(p.Status+because(p.Reason)))
	for _, warning := range p.Warnings {
		line("\n**%s**", plain(warning))
	}
	if len(p.Facts) > 0 {
		line("")
		for _, f := range p.Facts {
			line("- %s: %s", plain(f.Name), plain(f.Value))
		}
	}
	p.markdownSizes(line)
	p.markdownScores(line)
	p.markdownWritten(line)
	if len(p.Phases) > 0 {
		line("\n## Time\n\n| phase | time | share |\n|---|---:|---:|")
		for _, ph := range p.Phases {
			line("| %s | %s | %.1f %% |", plain(ph.Name), duration(ph.Seconds), ph.Percent)
		}
	}
	if len(p.Memory) > 0 {
		line("\n## %s\n\n| component | planned | measured at most |\n|---|---:|---:|", upper(p.memory))
		for _, m := range p.Memory {
			line("| %s | %s | %s |", plain(m.Name), bytesText(m.Planned), bytesText(m.Measured))
		}
	}
	if len(p.Events) > 0 {
		line("\n## Decisions and warnings\n")
		for _, e := range p.Events {
			mark := ""
			if e.Kind == "warning" {
				mark = "**Warning** "
			}
			line("- %s%s", mark, plain(e.Sentence))
		}
	}
	line("\n## Provenance")
	for _, s := range p.Origins {
		line("\n### %s\n\n| | | |\n|---|---|---|", plain(s.Title))
		for _, row := range s.Rows {
			line("| %s | %s | %s |", plain(row.Name), plain(row.Value), plain(row.Note))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// markdownScores writes the tables of the evaluation.
func (p *Page) markdownScores(line func(format string, args ...any)) {
	if len(p.Scores) == 0 {
		return
	}
	line("\n## Evaluation on held-out text\n\n"+
		"| model | nats/token | ± 95 %% | perplexity | bits/byte | top-1 as %[1]s | KL from %[1]s | targets |\n"+
		"|---|---:|---:|---:|---:|---:|---:|---:|", p.reference)
	for _, s := range p.Scores {
		bits := "–"
		if s.BitsPerByte > 0 {
			bits = fixed(4, s.BitsPerByte)
		}
		line("| %s | %s | %s | %s | %s | %s | %s | %s |", plain(s.Name), fixed(4, s.NatsPerToken), fixed(4, s.Interval.Half()), fixed(2, s.Perplexity), bits, percent(s.Top1), fixed(4, s.KL), count(s.Targets))
	}
	for _, c := range p.Canaries {
		line("| canary: %s (%s) | %s | – | %s | – | – | – | %s |", plain(c.Name), plain(c.What), fixed(4, c.Nats), fixed(2, c.Perplexity), count(c.Targets))
	}
	if note := DraftNote(p.Scores); note != "" {
		line("\n%s", note)
	}
	if len(p.Experts) > 0 {
		line("\n| experts of | layer | experts | unused | least used | most used |\n|---|---:|---:|---:|---:|---:|")
		for _, e := range p.Experts {
			line("| %s | %d | %d | %d | %s × | %s × |", plain(e.Model), e.Layer, e.Experts, e.Unused, fixed(2, e.Least), fixed(2, e.Most))
		}
	}
	if len(p.Margins) == 0 {
		return
	}
	line("\n| the %s against | better by, nats/token | 95 %% interval | standard errors |\n|---|---:|---:|---:|",
		Label(p.Verdict.Base, distilledScore))
	for _, m := range p.Margins {
		line("| %s | %s | %s | %s |", plain(m.Over), fixed(4, m.Nats), m.Interval, fixed(1, m.Errors()))
	}
}

// markdownSizes writes what the models take and how fast they write.
func (p *Page) markdownSizes(line func(format string, args ...any)) {
	if len(p.Sizes) == 0 {
		return
	}
	line("\n## Size and speed\n\n| model | parameters | file | weights in memory | tokens/s written |\n|---|---:|---:|---:|---:|")
	for _, s := range p.Sizes {
		line("| %s | %s | %s | %s | %s |", plain(s.Name), count(s.Parameters), bytesText(s.FileBytes), bytesText(s.InBytes), s.Speed)
	}
	if p.Compared != "" {
		line("\n%s", p.Compared)
	}
}

// markdownWritten writes what the models wrote after prompts, one after the other.
func (p *Page) markdownWritten(line func(format string, args ...any)) {
	if len(p.Written) == 0 {
		return
	}
	line("\n## What the models write")
	for i, w := range p.Written {
		line("\n### Prompt %d\n\n%s", i+1, quoted(w.Prompt))
		for _, a := range append(w.Answers, Answer{Name: "the text itself", Text: w.Text}) {
			line("\n**%s**%s\n\n%s", plain(a.Name), plain(strings.TrimSuffix(" "+a.Note, " ")), quoted(a.Text))
		}
	}
}

// quoted writes a text as a quotation that keeps its lines and their indentation.
func quoted(s string) string {
	var b strings.Builder
	for _, l := range strings.Split(s, "\n") {
		text := strings.TrimLeft(l, " \t")
		indent := strings.ReplaceAll(l[:len(l)-len(text)], "\t", "  ")
		fmt.Fprintf(&b, "> %s%s  \n", strings.ReplaceAll(indent, " ", "&nbsp;"), plain(text))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// plain escapes what Markdown, or HTML within it, would take for its own.
func plain(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r < ' ' || r == 0x7f:
			b.WriteByte(' ')
		case strings.ContainsRune("\\`*_{}[]<>|#~&!", r):
			fmt.Fprintf(&b, "&#%d;", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
