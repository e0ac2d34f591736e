package jinja

import (
	"slices"
	"strings"
)

// expression parses an expression with its if and else:
//
//	value [if test [else expression]]
func (p *parser) expression() (expr, error) {
	if err := p.deeper(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	e, err := p.or()
	for n := 0; err == nil && p.is("if"); n++ {
		line := p.take().line
		c := &choice{pos: pos(line), then: e}
		if c.test, err = p.or(); err != nil {
			return nil, err
		}
		if p.accept("else") {
			if c.otherwise, err = p.expression(); err != nil {
				return nil, err
			}
		}
		e = c
		if n > maxDepth {
			return nil, p.fail("nested more than %d deep", maxDepth)
		}
	}
	return e, err
}

// chain parses operands that left-associative operators join. A long chain is a deep tree.
func (p *parser) chain(operand func() (expr, error), join func(op token, a, b expr) expr, ops ...string) (expr, error) {
	e, err := operand()
	for n := 0; err == nil; n++ {
		t := p.now()
		if t.kind != operator && t.kind != name || !slices.Contains(ops, t.text) {
			return e, nil
		}
		if n >= maxDepth {
			return nil, p.fail("more than %d operators in a row", maxDepth)
		}
		p.take()
		var right expr
		if right, err = operand(); err == nil {
			e = join(t, e, right)
		}
	}
	return nil, err
}

func joinLogic(op token, a, b expr) expr { return &logic{pos(op.line), op.text == "or", a, b} }
func joinMath(op token, a, b expr) expr  { return &binary{pos(op.line), op.text, a, b} }

func (p *parser) or() (expr, error)  { return p.chain(p.and, joinLogic, "or") }
func (p *parser) and() (expr, error) { return p.chain(p.not, joinLogic, "and") }

func (p *parser) not() (expr, error) {
	if !p.is("not") {
		return p.compare()
	}
	line := p.take().line
	if err := p.deeper(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	e, err := p.not()
	return &not{pos(line), e}, err
}

// compare parses a chain of comparisons, which is true if each is, as in Python.
func (p *parser) compare() (expr, error) {
	first, err := p.sum()
	if err != nil {
		return nil, err
	}
	c := &compare{pos: pos(p.now().line), first: first}
	for {
		op := p.now().text
		switch {
		case p.now().kind == operator && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, op), p.is("in"):
			p.take()
		case p.is("not") && p.look().kind == name && p.look().text == "in":
			p.take()
			p.take()
			op = "not in"
		case len(c.ops) == 0:
			return first, nil
		default:
			return c, nil
		}
		e, err := p.sum()
		if err != nil {
			return nil, err
		}
		c.ops, c.operands = append(c.ops, op), append(c.operands, e)
	}
}

func (p *parser) sum() (expr, error) { return p.chain(p.concat, joinMath, "+", "-") }

func (p *parser) concat() (expr, error) {
	e, err := p.product()
	if err != nil || !p.is("~") {
		return e, err
	}
	c := &concat{pos: pos(p.now().line), parts: []expr{e}}
	for p.accept("~") {
		if e, err = p.product(); err != nil {
			return nil, err
		}
		c.parts = append(c.parts, e)
	}
	return c, nil
}

func (p *parser) product() (expr, error) { return p.chain(p.power, joinMath, "*", "/", "//", "%") }

func (p *parser) power() (expr, error) {
	return p.chain(func() (expr, error) { return p.unary(true) }, joinMath, "**")
}

func (p *parser) unary(filters bool) (e expr, err error) {
	if err := p.deeper(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	if p.now().kind == operator && (p.is("-") || p.is("+")) {
		op := p.take()
		e, err = p.unary(false)
		e = &sign{pos(op.line), op.text == "-", e}
	} else {
		e, err = p.primary()
	}
	if err == nil {
		e, err = p.postfix(e)
	}
	for n := 0; filters && err == nil; n++ {
		if n > maxDepth {
			return nil, p.fail("more than %d filters in a row", maxDepth)
		}
		switch {
		case p.is("|"):
			e, err = p.filter(e, false)
		case p.is("is"):
			e, err = p.test(e)
		case p.is("("):
			e, err = p.callOf(e)
		default:
			return e, nil
		}
	}
	return e, err
}

func (p *parser) primary() (expr, error) {
	t := p.now()
	switch t.kind {
	case name:
		p.take()
		switch t.text {
		case "true", "True":
			return &constant{pos(t.line), true}, nil
		case "false", "False":
			return &constant{pos(t.line), false}, nil
		case "none", "None":
			return &constant{pos(t.line), nil}, nil
		}
		p.names[t.text] = true
		return &variable{pos(t.line), t.text}, nil
	case str:
		var text strings.Builder
		for p.now().kind == str {
			text.WriteString(p.take().value.(string))
		}
		return &constant{pos(t.line), text.String()}, nil
	case integer, float:
		p.take()
		return &constant{pos(t.line), t.value}, nil
	}
	switch {
	case p.accept("("):
		e, err := p.tuple(true, true)
		if err == nil {
			err = p.expect(")")
		}
		return e, err
	case p.accept("["):
		l := &listOf{pos: pos(t.line)}
		err := p.items("]", func() error {
			e, err := p.expression()
			l.items = append(l.items, e)
			return err
		})
		return l, err
	case p.accept("{"):
		d := &dictOf{pos: pos(t.line)}
		err := p.items("}", func() error {
			key, err := p.expression()
			if err == nil {
				err = p.expect(":")
			}
			if err != nil {
				return err
			}
			value, err := p.expression()
			d.keys, d.values = append(d.keys, key), append(d.values, value)
			return err
		})
		return d, err
	}
	return nil, p.fail("unexpected %q", p.describe())
}

// items parses what stands between brackets with commas; the last comma may be followed by nothing.
func (p *parser) items(closing string, one func() error) error {
	for n := 0; !p.is(closing); n++ {
		if n > 0 {
			if err := p.expect(","); err != nil {
				return err
			}
			if p.is(closing) {
				break
			}
		}
		if err := one(); err != nil {
			return err
		}
	}
	return p.expect(closing)
}

// tuple parses an expression, or several with commas.
func (p *parser) tuple(choices, parentheses bool) (expr, error) {
	line := p.now().line
	l := &listOf{pos: pos(line), tuple: true}
	for {
		if k := p.now().kind; k == varEnd || k == tagEnd || p.is(")") || p.is("recursive") && len(l.items) > 0 {
			break
		}
		e, err := expr(nil), error(nil)
		if choices {
			e, err = p.expression()
		} else {
			e, err = p.or()
		}
		if err != nil {
			return nil, err
		}
		l.items = append(l.items, e)
		if !p.is(",") {
			if len(l.items) == 1 {
				return e, nil
			}
			break
		}
		p.take()
	}
	if len(l.items) == 0 && !parentheses {
		return nil, p.fail("an expression is expected, not %q", p.describe())
	}
	return l, nil
}

func (p *parser) postfix(e expr) (expr, error) {
	for n := 0; ; n++ {
		if n > maxDepth {
			return nil, p.fail("more than %d subscripts in a row", maxDepth)
		}
		line := p.now().line
		var err error
		switch {
		case p.accept("."):
			t := p.take()
			switch t.kind {
			case name:
				e = &attribute{pos(line), e, t.text}
			case integer:
				e = &subscript{pos(line), e, &constant{pos(line), t.value}}
			default:
				return nil, failAt(t.line, "a name or number is expected behind the dot")
			}
		case p.accept("["):
			e, err = p.subscript(e, line)
		case p.is("("):
			e, err = p.callOf(e)
		default:
			return e, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) subscript(of expr, line int) (expr, error) {
	s := &slice{pos: pos(line), of: of}
	parts := []*expr{&s.from, &s.to, &s.step}
	colons := 0
	for !p.is("]") {
		if p.accept(":") {
			if colons++; colons == len(parts) {
				return nil, p.fail("a slice has at most three parts")
			}
			continue
		}
		if *parts[colons] != nil {
			return nil, p.fail("subscript with %q is not supported", p.describe())
		}
		e, err := p.expression()
		if err != nil {
			return nil, err
		}
		*parts[colons] = e
	}
	p.take()
	switch {
	case colons > 0:
		return s, nil
	case s.from == nil:
		return nil, failAt(line, "an empty subscript")
	}
	return &subscript{pos(line), of, s.from}, nil
}
