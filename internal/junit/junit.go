// Package junit writes test reports in the XML that continuous integration reads: suites of cases, as JUnit's Ant task
// defined them. encoding/xml would do it too, for 94 KB of program.
package junit

import (
	"bytes"
	"fmt"
	"html"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Suite is a group of cases; its counts follow from them.
type Suite struct {
	Name  string
	Cases []Case
}

// Case is one test. At most one of Failure, Error and Skipped is set; none means that it passed.
type Case struct {
	Name, Class, File       string  // File empty: none is named
	Seconds                 float64 // 0: not measured
	Failure, Error, Skipped *Message
}

// Message is why a case did not pass: a line, and a text that may have several.
type Message struct{ Line, Text string }

// Marshal returns the document of several suites under one name.
func Marshal(name string, suites []Suite) []byte {
	var b bytes.Buffer
	b.WriteString("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n")
	fmt.Fprintf(&b, "<testsuites%s>\n", attribute("name", name))
	for _, s := range suites {
		s.write(&b)
	}
	b.WriteString("</testsuites>\n")
	return b.Bytes()
}

func (s Suite) write(b *bytes.Buffer) {
	var failures, errors, skipped int
	for _, c := range s.Cases {
		failures += count(c.Failure)
		errors += count(c.Error)
		skipped += count(c.Skipped)
	}
	fmt.Fprintf(b, "  <testsuite%s tests=\"%d\" failures=\"%d\" errors=\"%d\" skipped=\"%d\">\n", attribute("name", s.Name), len(s.Cases), failures, errors, skipped)
	for _, c := range s.Cases {
		c.write(b)
	}
	b.WriteString("  </testsuite>\n")
}

func count(m *Message) int {
	if m == nil {
		return 0
	}
	return 1
}

func (c Case) write(b *bytes.Buffer) {
	b.WriteString("    <testcase" + attribute("name", c.Name) + attribute("classname", c.Class))
	if c.File != "" {
		b.WriteString(attribute("file", c.File))
	}
	if c.Seconds > 0 {
		b.WriteString(attribute("time", strconv.FormatFloat(c.Seconds, 'f', 3, 64)))
	}
	b.WriteString(">")
	for _, m := range []struct {
		element string
		*Message
	}{{"failure", c.Failure}, {"error", c.Error}, {"skipped", c.Skipped}} {
		if m.Message != nil {
			fmt.Fprintf(b, "<%s%s>%s</%s>", m.element, attribute("message", m.Line), escape(m.Text), m.element)
		}
	}
	b.WriteString("</testcase>\n")
}

// attribute returns an attribute with a space before it. Line ends and tabs are escaped, because a reader of XML makes
// spaces of those that are not.
func attribute(name, value string) string {
	return " " + name + `="` + strings.NewReplacer("\n", "&#10;", "\r", "&#13;", "\t", "&#9;").Replace(escape(value)) + `"`
}

// escape returns text as XML 1.0 has it; characters that it cannot have become U+FFFD.
func escape(text string) string {
	return html.EscapeString(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\r' && r != '\t' || r == 0xfffe || r == 0xffff {
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(text, string(utf8.RuneError))))
}
