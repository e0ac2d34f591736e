package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"apr/internal/strictjson"
)

// encode returns v as JSON.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // numbers are finite
	}
	return b.Bytes()
}

// readAll reads a body. Each piece has to come within idle.
func readAll(r io.Reader, c *http.ResponseController, idle time.Duration) ([]byte, error) {
	var all bytes.Buffer
	piece := make([]byte, 1<<16)
	for {
		n, err := r.Read(piece)
		all.Write(piece[:n])
		if errors.Is(err, io.EOF) {
			return all.Bytes(), nil
		}
		if err != nil {
			return nil, err
		}
		_ = c.SetReadDeadline(time.Now().Add(idle))
	}
}

// params are the members of a request. The first that is wrong is kept.
type params struct {
	v    map[string]json.RawMessage
	seen map[string]bool
	err  *Error
}

// parse reads the object of a request.
func parse(raw []byte) (*params, *Error) {
	if !utf8.Valid(raw) {
		return nil, refuse(http.StatusBadRequest, "", "the request is not text in UTF-8")
	}
	p := &params{seen: map[string]bool{}}
	if _, err := strictjson.Parse(string(raw), strictjson.Options{}); err != nil {
		return nil, refuse(http.StatusBadRequest, "", "the request is not JSON: %s", err)
	}
	if err := json.Unmarshal(raw, &p.v); err != nil || p.v == nil {
		return nil, refuse(http.StatusBadRequest, "", "the request is not a JSON object")
	}
	return p, nil
}

// get decodes a member into dst, which stays as it is if there is none.
func (p *params) get(name string, dst any, what string) bool {
	p.seen[name] = true
	raw, ok := p.v[name]
	if !ok || string(raw) == "null" || p.err != nil {
		return false
	}
	if json.Unmarshal(raw, dst) != nil {
		p.err = refuse(http.StatusBadRequest, name, "%s has to be %s", name, what)
		return false
	}
	return true
}

// number reads a member between bounds.
func (p *params) number(name string, def, lo, hi float64) float64 {
	x := def
	if p.get(name, &x, "a number") && !(x >= lo && x <= hi) {
		p.err = refuse(http.StatusBadRequest, name, "%s is %g, and has to be from %g to %g", name, x, lo, hi)
	}
	return x
}

// integer reads a member between bounds.
func (p *params) integer(name string, def, lo, hi int) int {
	x := def
	if p.get(name, &x, "a whole number") && (x < lo || x > hi) {
		p.err = refuse(http.StatusBadRequest, name, "%s is %d, and has to be from %d to %d", name, x, lo, hi)
	}
	return x
}

// boolean reads a member.
func (p *params) boolean(name string) (x bool) {
	p.get(name, &x, "true or false")
	return x
}

// inert are members that clients send and that change nothing here.
var inert = []string{"user", "metadata", "store", "safety_identifier", "prompt_cache_key"}

// off are members whose only value is the one that does nothing.
var off = map[string][]string{
	"frequency_penalty": {"0", "0.0"}, "presence_penalty": {"0", "0.0"}, "logit_bias": {"{}"}, "tools": {"[]"}, "tool_choice": {`"none"`, `"auto"`}, "functions": {"[]"},
	"parallel_tool_calls": {"true", "false"}, "response_format": {`{"type":"text"}`, `{"type": "text"}`}, "modalities": {`["text"]`}, "suffix": {`""`}, "service_tier": {`"auto"`, `"default"`},
}

// end refuses members that nobody has read.
func (p *params) end() error {
	if p.err != nil {
		return p.err
	}
	var names []string
	for name := range p.v {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		raw := string(p.v[name])
		switch {
		case p.seen[name], slices.Contains(inert, name), raw == "null", slices.Contains(off[name], raw):
		case off[name] != nil:
			return refuse(http.StatusBadRequest, name, "%s is not supported here but as %s", name, off[name][0])
		default:
			return refuse(http.StatusBadRequest, name, "%s is not a parameter of this endpoint", name)
		}
	}
	return nil
}

// oneOrMore reads a text or a list of them.
func (p *params) oneOrMore(name string, most int) []string {
	var one string
	raw := p.v[name]
	if json.Unmarshal(raw, &one) == nil && len(raw) > 0 && raw[0] == '"' {
		p.seen[name] = true
		return []string{one}
	}
	var all []string
	if p.get(name, &all, "a text or a list of texts") && len(all) > most {
		p.err = refuse(http.StatusBadRequest, name, "%s has %d texts: at most %d", name, len(all), most)
	}
	return all
}

// stops reads stop.
func (p *params) stops() []string {
	all := p.oneOrMore("stop", 16)
	if slices.Contains(all, "") && p.err == nil {
		p.err = refuse(http.StatusBadRequest, "stop", "a text that ends an answer is empty")
	}
	return all
}

// cutter ends a text before the first of some texts.
type cutter struct {
	stops []string
	held  string // a beginning of one of them, perhaps
}

// push returns what can be shown of the text so far, and whether it has ended.
func (c *cutter) push(piece string) (show string, end bool) {
	text := c.held + piece
	first := -1
	for _, s := range c.stops {
		if i := strings.Index(text, s); i >= 0 && (first < 0 || i < first) {
			first = i
		}
	}
	if first >= 0 {
		c.held = ""
		return text[:first], true
	}
	keep := 0
	for _, s := range c.stops {
		for n := min(len(s)-1, len(text)); n > keep; n-- {
			if strings.HasSuffix(text, s[:n]) {
				keep = n
			}
		}
	}
	c.held = text[len(text)-keep:]
	return text[:len(text)-keep], false
}

// rest returns what was held at the end.
func (c *cutter) rest() string { return c.held }

// visible returns a token's bytes as a text of its own: "bytes:\xNN…" where they are none.
func visible(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var s strings.Builder
	s.WriteString("bytes:")
	for _, c := range b {
		fmt.Fprintf(&s, "\\x%02x", c)
	}
	return s.String()
}
