package tokenizer

import (
	"fmt"
	"strconv"
)

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

// expression compiles `a if test else b` and everything that binds tighter.
func (p *jinjaParser) expression() (expr, error) {
	if p.depth++; p.depth > maxJinjaDepth {
		return nil, p.fail("expressions are nested more than %d deep", maxJinjaDepth)
	}
	defer func() { p.depth-- }()
	value, err := p.or()
	if err != nil || !p.accept("if") {
		return value, err
	}
	test, err := p.or()
	if err != nil {
		return nil, err
	}
	otherwise := constant(undefined("else"))
	if p.accept("else") {
		otherwise, err = p.expression()
	}
	return func(s *jinjaState) (any, error) {
		v, err := test(s)
		if err != nil {
			return nil, err
		}
		if jinjaTrue(v) {
			return value(s)
		}
		return otherwise(s)
	}, err
}

func (p *jinjaParser) or() (expr, error) {
	return p.chain([]string{"or"}, func() (expr, error) {
		return p.chain([]string{"and"}, p.not, binary)
	}, binary)
}

// chain compiles operand (op operand)*, left to right.
func (p *jinjaParser) chain(ops []string, operand func() (expr, error), join func(op string, a, b expr) expr) (expr, error) {
	left, err := operand()
next:
	for err == nil {
		for _, op := range ops {
			if p.accept(op) {
				var right expr
				if right, err = operand(); err == nil {
					left = join(op, left, right)
				}
				continue next
			}
		}
		break
	}
	return left, err
}

func (p *jinjaParser) not() (expr, error) {
	negative := false
	for p.accept("not") {
		negative = !negative
	}
	value, err := p.comparison()
	if !negative || err != nil {
		return value, err
	}
	return negate(value), nil
}

func (p *jinjaParser) comparison() (expr, error) {
	left, err := p.sum()
	if err != nil {
		return nil, err
	}
	for _, op := range []string{"==", "!=", "<=", ">=", "<", ">", "in"} {
		if p.accept(op) {
			right, err := p.sum()
			return binary(op, left, right), err
		}
	}
	if p.accept("not") {
		if err := p.expect("in"); err != nil {
			return nil, err
		}
		right, err := p.sum()
		return negate(binary("in", left, right)), err
	}
	return left, nil
}

func (p *jinjaParser) sum() (expr, error) {
	return p.chain([]string{"+", "-", "~"}, p.filtered, binary)
}

// filtered compiles a value with its filters and tests.
func (p *jinjaParser) filtered() (expr, error) {
	value, err := p.postfix()
	for err == nil {
		if p.accept("|") {
			var name string
			if name, err = p.name(); err == nil {
				value = filter(name, value)
				if p.accept("(") {
					value, err = p.call(name)
				}
			}
			continue
		}
		if !p.accept("is") {
			break
		}
		negative := p.accept("not")
		var name string
		if name, err = p.name(); err == nil {
			value = test(name, value)
			if negative {
				value = negate(value)
			}
		}
	}
	return value, err
}

// postfix compiles a primary with its subscripts.
func (p *jinjaParser) postfix() (expr, error) {
	called := p.tokens[0].text
	value, err := p.primary()
	for err == nil {
		switch {
		case p.accept("."):
			if called, err = p.name(); err == nil {
				value = subscript(value, constant(called))
			}
		case p.accept("["):
			var key expr
			if key, err = p.expression(); err == nil {
				value, err = subscript(value, key), p.expect("]")
			}
		case p.accept("("):
			value, err = p.call(called)
		default:
			return value, nil
		}
	}
	return nil, err
}

// call parses the arguments of a call, which is an error when evaluated.
func (p *jinjaParser) call(name string) (expr, error) {
	for !p.accept(")") {
		if p.tokens[0].kind == 'n' && p.tokens[1].text == "=" {
			p.tokens = p.tokens[2:]
		}
		if _, err := p.expression(); err != nil {
			return nil, err
		}
		if !p.accept(",") {
			if err := p.expect(")"); err != nil {
				return nil, err
			}
			break
		}
	}
	return func(*jinjaState) (any, error) { return nil, fmt.Errorf("%s(…) is not supported", clip(name)) }, nil
}

func (p *jinjaParser) primary() (expr, error) {
	t := p.tokens[0]
	switch t.kind {
	case 's':
		p.tokens = p.tokens[1:]
		return constant(t.text), nil
	case 'i':
		p.tokens = p.tokens[1:]
		n, err := strconv.Atoi(t.text)
		if err != nil || n > 1<<30 {
			return nil, &jinjaError{t.offset, fmt.Sprintf("number %q is not supported", clip(t.text))}
		}
		return constant(n), nil
	case 'n':
		p.tokens = p.tokens[1:]
		switch t.text {
		case "true", "True":
			return constant(true), nil
		case "false", "False":
			return constant(false), nil
		case "none", "None":
			return constant(nil), nil
		}
		return variable(t.text), nil
	}
	if t.text == "-" && t.kind == 'o' && p.tokens[1].kind == 'i' {
		p.tokens = p.tokens[1:]
		value, err := p.primary()
		return binary("-", constant(0), value), err
	}
	if p.accept("(") {
		value, err := p.expression()
		if err == nil {
			err = p.expect(")")
		}
		return value, err
	}
	return nil, p.fail("%q is not supported here", t.text)
}
