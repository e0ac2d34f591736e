package tokenizer

import (
	"fmt"
	"strconv"
)

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
