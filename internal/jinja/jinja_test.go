package jinja

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"apr/internal/strictjson"
)

// templates is a folder of templates, conversations and what Jinja made of them. make.py there writes it; it can render
// another folder, such as the templates of models one has, for this flag.
var templates = flag.String("templates", "../../testdata/templates", "folder with *.jinja, conversations.json and cases.json.gz")

// start is START of make.py.
var start = time.Date(2026, 7, 4, 9, 5, 7, 0, time.UTC)

// renderCase is one template and conversation.
type renderCase struct {
	Template, Snippet, Conversation string
	Want, Error                     *string
}

func loadCases(t testing.TB) ([]renderCase, map[string]map[string]Value) {
	t.Helper()
	f, err := os.Open(filepath.Join(*templates, "cases.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Cases []renderCase }
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	b, err = os.ReadFile(filepath.Join(*templates, "conversations.json"))
	if err != nil {
		t.Fatal(err)
	}
	root, err := strictjson.Parse(string(b), strictjson.Options{})
	if err != nil {
		t.Fatal(err)
	}
	conversations := map[string]map[string]Value{}
	for name, v := range root.Members() {
		vars := map[string]Value{}
		for key, item := range v.Members() {
			if vars[key], err = FromJSON(item); err != nil {
				t.Fatal(err)
			}
		}
		conversations[name] = vars
	}
	return doc.Cases, conversations
}

func parseFile(t testing.TB, name string) *Template {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(*templates, name))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := Parse(string(b))
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	return parsed
}

// TestLikeJinja renders every template with every conversation: the text is Jinja's, byte for byte, the message of
// raise_exception too, and what is an error there is one here.
func TestLikeJinja(t *testing.T) {
	cases, conversations := loadCases(t)
	parsed := map[string]*Template{}
	texts, failures := 0, 0
	for _, c := range cases {
		if _, ok := parsed[c.Template]; !ok && c.Template != "" {
			parsed[c.Template] = parseFile(t, c.Template)
		}
		template, err := parsed[c.Template], error(nil)
		if c.Snippet != "" {
			template, err = Parse(c.Snippet)
			c.Template = c.Snippet
		}
		var out Output
		if template != nil {
			out, err = template.Render(conversations[c.Conversation], start)
		}
		if c.Want != nil {
			texts++
			if err != nil || out.Text != *c.Want {
				t.Errorf("%s, %s: %v\n%s", c.Template, c.Conversation, err, difference(out.Text, *c.Want))
			}
			continue
		}
		failures++
		raised, isRaised := strings.CutPrefix(*c.Error, "TemplateError: ")
		var e *Error
		switch {
		case !errors.As(err, &e) || e.Line < 1:
			t.Errorf("%s, %s: %q, error %v; Jinja says %s", c.Template, c.Conversation, out.Text, err, *c.Error)
		case e.Raised != isRaised || isRaised && e.Msg != raised:
			t.Errorf("%s, %s: error %v; Jinja says %s", c.Template, c.Conversation, err, *c.Error)
		}
	}
	if texts < 400 || failures < 80 {
		t.Errorf("%d texts and %d errors are too few", texts, failures)
	}
	t.Logf("%d templates, %d texts, %d errors", len(parsed), texts, failures)
}

// difference shows two texts from a little before where they differ.
func difference(got, want string) string {
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	from := max(i-30, 0)
	var b bytes.Buffer
	for _, s := range []string{got, want} {
		b.WriteString("\t" + strings.ToValidUTF8(s[from:min(len(s), i+60)], "?") + "\n")
	}
	return strings.ReplaceAll(b.String(), "\n", "⏎")
}
