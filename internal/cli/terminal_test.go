package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lmittmann/tint"

	"apr/internal/fault"
)

// evil clears the screen, rings, sets colours by C1, reverses the rest of the line, forges a line, and is not UTF-8.
const evil = "a\x1b[2J\x1b]0;t\x07\u009b31m\u202egnp\u2066\u2028\x7f\r\nforged\xff\xc3\u200b\U000e0001.apr"

// foreign returns the runes of s that may move a terminal, after the escapes that this package itself makes are taken out.
func foreign(s string, own ...string) (bad []rune) {
	for _, o := range own {
		s = strings.ReplaceAll(s, o, "")
	}
	if strings.Contains(strings.ToValidUTF8(s, "\x00"), "\x00") {
		bad = append(bad, 0)
	}
	for _, r := range s {
		if r != '\n' && r != '\t' && dangerous(r) {
			bad = append(bad, r)
		}
	}
	return bad
}

type evilResult struct {
	Name string `json:"name"`
}

func (r evilResult) Text(p *Page) {
	p.Printf("%s %q %v %-3s %d\n", r.Name, r.Name, []string{r.Name}, fault.New(1, "%s", r.Name), 7)
	p.Printf("%s%s%s\n", p.Bold(r.Name), p.Good(r.Name), p.Bad(r.Name))
	p.Pairs("key", r.Name, r.Name, "value")
	p.Table([]string{r.Name, ">" + r.Name}, [][]string{{r.Name, "b"}})
}

// TestForeignTextIsHarmless prints a hostile name at every door to the terminal.
func TestForeignTextIsHarmless(t *testing.T) {
	styles := []string{"\x1b[1m", "\x1b[m", "\x1b[32m", "\x1b[31m"}
	for _, tt := range []struct {
		name string
		args []string
		own  []string
	}{
		{"plain", nil, nil},
		{"text log", []string{"--log-format", "text", "--verbose"}, nil},
		{"text log in colours", []string{"--log-format", "text", "--color", "always"}, append(styles, "\x1b[2m", "\x1b[0m", "\x1b[93m", "\x1b[92m")},
		{"JSON log", []string{"--log-format", "json"}, nil},
		{"JSON", []string{"--json", "--log-format", "text"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out, errw bytes.Buffer
			app := &App{Name: "apr", In: strings.NewReader(""), Out: &out, Err: &errw, Commands: []*Command{{
				Name: "demo",
				Run: func(_ context.Context, e *Env) (Result, error) {
					e.Log.Warn("reading "+evil, "name", evil, "error", errors.New(evil))
					e.Log.With("file", evil).WithGroup(evil).Warn("x", "literal", `a \x1b[31m b`)
					fmt.Fprintf(e.Err, "stall in %s\n", strings.ReplaceAll(evil, "\n", ""))
					bar := e.Progress("reading "+evil, 10, Bytes)
					bar.Note(evil)
					bar.Close()
					joined := errors.Join(fault.In(fault.Invalid, evil, "bad").WithHint("try\nnot %s", evil), errors.New("second"))
					return evilResult{evil}, joined
				},
			}}}
			code := app.Main(append([]string{"demo", "--no-progress=false"}, tt.args...))
			if code != int(fault.Invalid) {
				t.Errorf("exit %d", code)
			}
			for stream, text := range map[string]string{"stdout": out.String(), "stderr": errw.String()} {
				if bad := foreign(text, tt.own...); len(bad) > 0 {
					t.Errorf("%s: %q in\n%q", stream, bad, text)
				}
				for line := range strings.Lines(text) {
					if strings.HasPrefix(line, "forged") && stream == "stderr" {
						t.Errorf("%s: a line of its own: %q", stream, line)
					}
				}
			}
			if tt.name == "JSON" {
				var got struct {
					Name  string
					Error struct{ Message, Path string }
				}
				want := string([]rune(evil)) // a replacement for each odd byte
				if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Name != want || got.Error.Path != want || !strings.Contains(got.Error.Message, want) {
					t.Errorf("%v: %+v", err, got)
				}
			} else if got := errw.String(); tt.name == "plain" && !strings.Contains(got, "apr: error: second\n") {
				t.Errorf("the second error is not a line of its own:\n%s", got)
			}
		})
	}
}

// TestBarsAreHarmless: the same for bars.
func TestBarsAreHarmless(t *testing.T) {
	var out bytes.Buffer
	p := (&Env{Err: &out, progress: progressBars}).Progress("reading "+evil, 10, Bytes)
	p.Note(evil)
	p.Add(1)
	time.Sleep(300 * time.Millisecond)
	p.Close()
	for _, bad := range []string{"\x1b[2J", "\x07", "\u009b", "\u202e"} {
		if strings.Contains(out.String(), bad) {
			t.Errorf("%q in %q", bad, out.String())
		}
	}
}

// TestPlainHandlerColours: tint turns the four characters \x1b of a quoted value back into an escape; it gets no values.
func TestPlainHandlerColours(t *testing.T) {
	var out bytes.Buffer
	h := plainHandler{Handler: tint.NewTextHandler(&out, &tint.Options{})}
	r := slog.NewRecord(time.Now(), slog.LevelInfo, "m", 0)
	r.Add("k", `a \x1b[2J`)
	if err := h.Handle(t.Context(), r); err != nil || strings.Contains(out.String(), "\x1b[2J") {
		t.Errorf("%v: %q", err, out.String())
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"":             "",
		"dir/naïve 日本": "dir/naïve 日本",
		"a\x1bb":       `a\x1bb`,
		"\u009b\u202e": `\u009b\u202e`,
		"a\nb\tc":      `a\nb\tc`,
		"\xff\xfe":     `\xff\xfe`,
		"\ufffd":       "\ufffd",
		"\U000e0001'":  `\U000e0001'`,
		"'":            "'",
	} {
		if got := Escape(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := escapeText("a\n\tb\r"); got != "a\n\tb\\r" {
		t.Errorf("text: %q", got)
	}
	var v string
	if err := json.Unmarshal(jsonText([]byte("\"\u009b\U000e0001\u202e\"")), &v); err != nil || v != "\u009b\U000e0001\u202e" {
		t.Errorf("JSON: %q, %v", v, err)
	}
}
