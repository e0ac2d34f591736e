package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

// TestScreen: lines of others go above the changing line.
func TestScreen(t *testing.T) {
	var out bytes.Buffer
	s := &screen{w: &out}
	write := func(text string) {
		if n, err := s.Write([]byte(text)); n != len(text) || err != nil {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	write("a\n")
	s.show("1 %")
	s.show("1 %") // nothing to do
	write("b\n")
	s.show("2 %")
	write("half a line")
	write(", its end\n")
	s.show("")
	want := "a\n" + clearLine + "1 %" + clearLine + "b\n1 %" + clearLine + "2 %" + clearLine + "half a line" + ", its end\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// TestLive: the newest state is shown when it is kept, a line never exceeds the terminal, and no terminal shows nothing.
func TestLive(t *testing.T) {
	var out bytes.Buffer
	e := &Env{progress: progressBars, screen: &screen{w: &out}, env: map[string]string{"COLUMNS": "10"}}
	l := e.Live()
	for _, text := range []string{"first", "second", "the third is long\x1b"} {
		l.Show(func(columns int) string {
			if columns != 10 {
				t.Errorf("%d columns", columns)
			}
			return text
		})
	}
	l.Keep()
	l.Show(func(int) string { return "next" })
	l.Clear()
	want := clearLine + "first" + clearLine + "the third…\n" + clearLine + "next" + clearLine
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	for _, e := range []*Env{{progress: progressOff, screen: &screen{w: &out}}, {progress: progressLines}} {
		out.Reset()
		l := e.Live()
		l.Show(func(int) string { return "x" })
		l.Keep()
		l.Clear()
		if l != nil || out.Len() > 0 {
			t.Errorf("%+v shows %q", e, out.String())
		}
	}
}

func TestFitAndWrap(t *testing.T) {
	for _, c := range []struct {
		got, want string
	}{
		{Fit("abcdef", 6), "abcdef"}, {Fit("abcdef", 5), "abcd…"}, {Fit("äöüß", 3), "äö…"}, {Fit("abc", 0), "abc"},
		{FitEnd("a/b/cdef", 8), "a/b/cdef"}, {FitEnd("a/b/cdef", 5), "…cdef"}, {FitEnd("日本語", 5), "…本語"},
		{Wrap("one two  three", 7), "one two\nthree"}, {Wrap("one two", 6), "one\ntwo"}, {Wrap("longer than", 3), "longer\nthan"}, {Wrap("a b", 0), "a b"}, {Wrap("", 5), ""},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

// TestSay: on stderr for people, in the log where that is JSON, and nowhere with --quiet.
func TestSay(t *testing.T) {
	for args, want := range map[string]string{
		"":                  `"msg":"one two\u001b three"`,
		"--log-format text": "one two\\x1b\nthree\n",
		"--quiet":           "",
	} {
		var out, errs bytes.Buffer
		app := &App{Name: "apr", Out: &out, Err: &errs, Environ: []string{"COLUMNS=12"}, Commands: []*Command{{Name: "speak", Run: speak}}}
		if code := app.Main(append([]string{"speak"}, strings.Fields(args)...)); code != 0 {
			t.Fatalf("%s: exit %d: %s", args, code, errs.String())
		}
		if got := errs.String(); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
}

func speak(_ context.Context, e *Env) (Result, error) {
	e.Explain("one two\x1b three")
	return nil, nil
}
