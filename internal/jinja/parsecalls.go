package jinja

import (
	"slices"
)

// arguments parses what stands between parentheses.
func (p *parser) arguments() (a arguments, err error) {
	if err := p.expect("("); err != nil {
		return a, err
	}
	err = p.items(")", func() (err error) {
		switch {
		case len(a.list)+len(a.keys) == maxArgs:
			return p.fail("more than %d arguments", maxArgs)
		case p.now().kind == operator && (p.is("*") || p.is("**")):
			to := &a.star
			if p.take().text == "**" {
				to = &a.stars
			}
			if *to != nil || a.stars != nil {
				return p.fail("arguments behind more than one star")
			}
			*to, err = p.expression()
			return err
		case a.star != nil || a.stars != nil:
			if p.now().kind != name || p.look().text != "=" || a.stars != nil {
				return p.fail("an argument behind a starred one")
			}
			fallthrough
		case p.now().kind == name && p.look().kind == operator && p.look().text == "=":
			key := p.take().text
			p.take()
			if slices.Contains(a.keys, key) {
				return p.fail("argument %q is given twice", clip(key))
			}
			e, err := p.expression()
			a.keys, a.named = append(a.keys, key), append(a.named, e)
			return err
		case len(a.keys) > 0:
			return p.fail("a positional argument behind a named one")
		}
		e, err := p.expression()
		a.list = append(a.list, e)
		return err
	})
	return a, err
}

func (p *parser) callOf(e expr) (expr, error) {
	line := p.now().line
	a, err := p.arguments()
	return &call{pos(line), e, a}, err
}

// dotted parses a name, which dots may join.
func (p *parser) dotted() (string, error) {
	id, err := p.name()
	for err == nil && p.accept(".") {
		var more string
		more, err = p.name()
		id += "." + more
	}
	return id, err
}

// filter parses filters behind bars; inline: the first has no bar. of is nil where the filters stand for themselves.
func (p *parser) filter(of expr, inline bool) (expr, error) {
	for n := 0; inline || p.is("|"); n++ {
		if n > maxDepth {
			return nil, p.fail("more than %d filters in a row", maxDepth)
		}
		if !inline {
			p.take()
		}
		inline = false
		f := &filter{pos: pos(p.now().line), of: of}
		var err error
		if f.name, err = p.dotted(); err != nil {
			return nil, err
		}
		if p.is("(") {
			if f.args, err = p.arguments(); err != nil {
				return nil, err
			}
		}
		of = f
	}
	return of, nil
}

func (p *parser) test(of expr) (expr, error) {
	line := p.take().line
	negated := p.accept("not")
	t := &test{pos: pos(line), of: of}
	var err error
	if t.name, err = p.dotted(); err != nil {
		return nil, err
	}
	switch k := p.now().kind; {
	case p.is("("):
		t.args, err = p.arguments()
	case p.is("else"), p.is("or"), p.is("and"):
	case p.is("is"):
		return nil, p.fail("tests cannot be chained with is")
	case k == name, k == str, k == integer, k == float, p.is("["), p.is("{"):
		var e expr
		if e, err = p.primary(); err == nil {
			e, err = p.postfix(e)
		}
		t.args.list = []expr{e}
	}
	if negated {
		return &not{pos(line), t}, err
	}
	return t, err
}
