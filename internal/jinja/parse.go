package jinja

import (
	"slices"
	"unicode/utf8"
)

// Limits of a template.
const (
	maxSource = 1 << 20   // bytes of a template
	maxDepth  = 200       // nesting of blocks, expressions, calls and values
	maxArgs   = 200       // arguments of a call
	maxName   = 256       // bytes of a name
	maxSteps  = 1_000_000 // evaluated nodes
	maxOutput = 4 << 20   // bytes of output, and of any string
	maxWork   = 256 << 20 // bytes of strings and lists that are made or read
)

// Template is a parsed template. It does not change and is safe for concurrent use.
type Template struct {
	body  []stmt
	names map[string]bool // names that it reads
	marks bool            // it has {% generation %}
}

// Parse parses a template. The error is an *Error.
func Parse(src string) (*Template, error) {
	if len(src) > maxSource {
		return nil, failAt(1, "a template of %d bytes is over the limit of %d", len(src), maxSource)
	}
	if !utf8.ValidString(src) {
		return nil, failAt(1, "the template is not UTF-8")
	}
	tokens, err := lex(src)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens, names: map[string]bool{}}
	body, _, err := p.block()
	if err != nil {
		return nil, err
	}
	return &Template{body: body, names: p.names, marks: p.marks}, nil
}

// Reads reports whether the template reads a variable or calls a function of this name.
func (t *Template) Reads(name string) bool { return t.names[name] }

// Generates reports whether the template has a {% generation %} block.
func (t *Template) Generates() bool { return t.marks }

type parser struct {
	tokens []token
	at     int
	depth  int
	loops  int // how many for loops are open here
	names  map[string]bool
	marks  bool
}

func (p *parser) now() token { return p.tokens[p.at] }

func (p *parser) look() token { return p.tokens[min(p.at+1, len(p.tokens)-1)] }

func (p *parser) take() token {
	t := p.tokens[p.at]
	if t.kind != end {
		p.at++
	}
	return t
}

func (p *parser) fail(format string, args ...any) error { return failAt(p.now().line, format, args...) }

// is reports whether the next token is this operator or name.
func (p *parser) is(text string) bool {
	t := p.now()
	return (t.kind == operator || t.kind == name) && t.text == text
}

func (p *parser) accept(text string) bool {
	if p.is(text) {
		p.at++
		return true
	}
	return false
}

func (p *parser) expect(text string) error {
	if !p.accept(text) {
		return p.fail("%q where %q is expected", p.describe(), text)
	}
	return nil
}

// close takes the end of a tag.
func (p *parser) close(k kind) error {
	if p.now().kind != k {
		return p.fail("unexpected %q", p.describe())
	}
	p.take()
	return nil
}

func (p *parser) describe() string {
	if p.now().kind == end {
		return "end of template"
	}
	return clip(p.now().text)
}

func (p *parser) name() (string, error) {
	if p.now().kind != name {
		return "", p.fail("%q is not a name", p.describe())
	}
	return p.take().text, nil
}

// deeper bounds the nesting.
func (p *parser) deeper() error {
	if p.depth++; p.depth > maxDepth {
		return p.fail("nested more than %d deep", maxDepth)
	}
	return nil
}

// block parses statements up to a tag whose keyword is among ends, which it takes and returns; without ends, up to the end
// of the template.
func (p *parser) block(ends ...string) (list []stmt, keyword string, err error) {
	if err := p.deeper(); err != nil {
		return nil, "", err
	}
	defer func() { p.depth-- }()
	start := p.now().line
	for {
		t := p.take()
		var s stmt
		switch t.kind {
		case end:
			if len(ends) > 0 {
				return nil, "", failAt(start, "a block without %s", ends[len(ends)-1])
			}
			return list, "", nil
		case data:
			s = &text{t.text}
		case varBegin:
			var e expr
			if e, err = p.tuple(true, false); err == nil {
				err = p.close(varEnd)
			}
			s = &output{[]expr{e}}
		default:
			if p.now().kind == name && slices.Contains(ends, p.now().text) {
				return list, p.take().text, nil
			}
			if s, err = p.statement(); err == nil {
				err = p.close(tagEnd)
			}
		}
		if err != nil {
			return nil, "", err
		}
		list = append(list, s)
	}
}

// body parses a tag's end and what follows up to one of ends.
func (p *parser) body(ends ...string) ([]stmt, string, error) {
	if err := p.close(tagEnd); err != nil {
		return nil, "", err
	}
	return p.block(ends...)
}

// statement parses a tag from its keyword up to its end, which it leaves.
func (p *parser) statement() (stmt, error) {
	line := p.now().line
	keyword, err := p.name()
	if err != nil {
		return nil, err
	}
	switch keyword {
	case "for":
		return p.loop(line)
	case "if":
		return p.condition()
	case "set":
		return p.set(line)
	case "macro":
		return p.macro(line)
	case "call":
		return p.call(line)
	case "filter":
		f, err := p.filter(nil, true)
		if err != nil {
			return nil, err
		}
		body, _, err := p.body("endfilter")
		return &filterBlock{line, f, body}, err
	case "with":
		return p.with(line)
	case "generation":
		p.marks = true
		body, _, err := p.body("endgeneration")
		return &generation{line, body}, err
	case "print":
		var list []expr
		for len(list) == 0 || p.accept(",") {
			e, err := p.expression()
			if err != nil {
				return nil, err
			}
			list = append(list, e)
		}
		return &output{list}, nil
	case "break", "continue":
		if p.loops == 0 {
			return nil, failAt(line, "%s outside of a loop", keyword)
		}
		return &jump{keyword == "break"}, nil
	}
	return nil, failAt(line, "statement %q is not supported", clip(keyword))
}

func (p *parser) loop(line int) (stmt, error) {
	f := &loop{line: line}
	var err error
	if f.target, err = p.target(false, "in"); err != nil {
		return nil, err
	}
	if err = p.expect("in"); err != nil {
		return nil, err
	}
	if f.list, err = p.tuple(false, false); err != nil {
		return nil, err
	}
	if p.accept("if") {
		if f.test, err = p.expression(); err != nil {
			return nil, err
		}
	}
	f.recursive = p.accept("recursive")
	p.loops++
	var keyword string
	f.body, keyword, err = p.body("else", "endfor")
	p.loops--
	if err == nil && keyword == "else" {
		f.otherwise, _, err = p.body("endfor")
	}
	return f, err
}

func (p *parser) condition() (stmt, error) {
	c := &condition{}
	keyword := "elif"
	for keyword == "elif" {
		test, err := p.tuple(false, false)
		if err != nil {
			return nil, err
		}
		var body []stmt
		if body, keyword, err = p.body("elif", "else", "endif"); err != nil {
			return nil, err
		}
		c.tests, c.bodies = append(c.tests, test), append(c.bodies, body)
	}
	var err error
	if keyword == "else" {
		c.otherwise, _, err = p.body("endif")
	}
	return c, err
}

func (p *parser) set(line int) (stmt, error) {
	to, err := p.target(true, "=")
	if err != nil {
		return nil, err
	}
	if p.accept("=") {
		value, err := p.tuple(true, false)
		return &set{line, to, value}, err
	}
	s := &setBlock{line: line, target: to}
	if p.is("|") {
		if s.filter, err = p.filter(nil, false); err != nil {
			return nil, err
		}
	}
	s.body, _, err = p.body("endset")
	return s, err
}
