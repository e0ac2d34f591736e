package tokenizer

import "fmt"

// An expr is a compiled expression, a stmt a compiled piece of template.
type (
	expr func(*jinjaState) (any, error)
	stmt func(*jinjaState) error
)

// compileTemplate compiles the subset of Jinja that ChatML templates use: text, {{ }}, for, if, elif, else, set, and
// expressions of if-else, or, and, not, comparisons, in, is (not) defined, none or string, + - ~, filters trim and length,
// subscripts, strings, integers, true, false and none. Calls and other filters can be parsed, so that a branch that is
// never taken may hold them, and are errors when evaluated.
func compileTemplate(src string) (stmt, error) {
	if len(src) > maxTemplate {
		return nil, &jinjaError{maxTemplate, fmt.Sprintf("a template of %d bytes is over the limit of %d", len(src), maxTemplate)}
	}
	pieces, err := splitTemplate(src)
	if err != nil {
		return nil, err
	}
	p := &jinjaParser{pieces: pieces}
	body, end, err := p.block(0)
	if err == nil && end != "" {
		err = p.fail("%s without a beginning", end)
	}
	return body, err
}

type jinjaParser struct {
	pieces []piece
	next   int          // piece
	tokens []jinjaToken // of the current tag; the last one is the end
	depth  int
}

func (p *jinjaParser) fail(format string, args ...any) error {
	offset := 0
	if len(p.tokens) > 0 {
		offset = p.tokens[0].offset
	}
	return &jinjaError{offset, fmt.Sprintf(format, args...)}
}

// accept takes the next token if it is the operator or name text.
func (p *jinjaParser) accept(text string) bool {
	if t := p.tokens[0]; (t.kind == 'o' || t.kind == 'n') && t.text == text {
		p.tokens = p.tokens[1:]
		return true
	}
	return false
}

func (p *jinjaParser) expect(text string) error {
	if !p.accept(text) {
		return p.fail("%q is not supported here; %q is expected", p.tokens[0].text, text)
	}
	return nil
}

func (p *jinjaParser) name() (string, error) {
	if t := p.tokens[0]; t.kind == 'n' {
		p.tokens = p.tokens[1:]
		return t.text, nil
	}
	return "", p.fail("%q is not a name", p.tokens[0].text)
}

// done checks that the tag has no further tokens.
func (p *jinjaParser) done() error {
	if p.tokens[0].kind != 0 {
		return p.fail("%q is not supported here", p.tokens[0].text)
	}
	return nil
}

// block compiles pieces up to a statement that ends or continues a block, whose keyword it returns, or to the end of
// the template.
func (p *jinjaParser) block(depth int) (body stmt, end string, err error) {
	if depth > maxJinjaDepth {
		return nil, "", p.fail("blocks are nested more than %d deep", maxJinjaDepth)
	}
	var list []stmt
	body = func(s *jinjaState) error {
		for _, each := range list {
			if err := each(s); err != nil {
				return err
			}
		}
		return nil
	}
	for p.next < len(p.pieces) {
		piece := p.pieces[p.next]
		p.next++
		if piece.kind == 't' {
			list = append(list, func(s *jinjaState) error { return s.write(piece.text) })
			continue
		}
		p.tokens = piece.tokens
		var each stmt
		if piece.kind == 'e' {
			each, err = p.output()
		} else {
			var keyword string
			if keyword, err = p.name(); err != nil {
				return nil, "", err
			}
			switch keyword {
			case "endfor", "endif", "else", "elif":
				return body, keyword, nil
			}
			each, err = p.statement(keyword, depth)
		}
		if err != nil {
			return nil, "", err
		}
		list = append(list, each)
	}
	return body, "", nil
}

func (p *jinjaParser) output() (stmt, error) {
	value, err := p.expression()
	if err == nil {
		err = p.done()
	}
	return func(s *jinjaState) error {
		v, err := value(s)
		if err != nil {
			return err
		}
		text, err := jinjaText(v)
		if err != nil {
			return err
		}
		return s.write(text)
	}, err
}

func (p *jinjaParser) statement(keyword string, depth int) (stmt, error) {
	switch keyword {
	case "for":
		return p.loop(depth)
	case "if":
		return p.condition(depth)
	case "set":
		name, err := p.name()
		if err != nil {
			return nil, err
		}
		if err := p.expect("="); err != nil {
			return nil, err
		}
		value, err := p.expression()
		if err == nil {
			err = p.done()
		}
		return func(s *jinjaState) error {
			v, err := value(s)
			s.vars[len(s.vars)-1][name] = v
			return err
		}, err
	}
	return nil, p.fail("statement %q is not supported", keyword)
}

func (p *jinjaParser) loop(depth int) (stmt, error) {
	name, err := p.name()
	if err != nil {
		return nil, err
	}
	if err := p.expect("in"); err != nil {
		return nil, err
	}
	list, err := p.expression()
	if err != nil {
		return nil, err
	}
	if err := p.done(); err != nil {
		return nil, err
	}
	body, end, err := p.block(depth + 1)
	if err != nil {
		return nil, err
	}
	if end != "endfor" {
		return nil, p.fail("for ends with %q", end)
	}
	return func(s *jinjaState) error { return s.loop(name, list, body) }, p.done()
}

func (p *jinjaParser) condition(depth int) (stmt, error) {
	test, err := p.expression()
	if err != nil {
		return nil, err
	}
	if err := p.done(); err != nil {
		return nil, err
	}
	then, end, err := p.block(depth + 1)
	if err != nil {
		return nil, err
	}
	otherwise := func(*jinjaState) error { return nil }
	switch end {
	case "elif":
		if otherwise, err = p.condition(depth + 1); err != nil {
			return nil, err
		}
	case "else":
		if otherwise, end, err = p.block(depth + 1); err != nil {
			return nil, err
		}
		fallthrough
	default:
		if end != "endif" {
			return nil, p.fail("if ends with %q", end)
		}
		err = p.done()
	}
	return func(s *jinjaState) error {
		v, err := test(s)
		if err != nil {
			return err
		}
		if jinjaTrue(v) {
			return then(s)
		}
		return otherwise(s)
	}, err
}
