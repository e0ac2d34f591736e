package jinja

import (
	"maps"
)

// target parses what is assigned to: a name, an attribute of a namespace, or several with commas.
func (p *parser) target(namespaces bool, until string) (target, error) {
	line := p.now().line
	var list []target
	several := false
	for !p.is(until) && p.now().kind != tagEnd && !p.is("|") {
		one, err := p.oneTarget(namespaces, until)
		if err != nil {
			return target{}, err
		}
		list = append(list, one)
		if !p.accept(",") {
			break
		}
		several = true
	}
	if len(list) == 0 {
		return target{}, failAt(line, "a name is expected")
	}
	if !several {
		return list[0], nil
	}
	return target{parts: list}, nil
}

func (p *parser) oneTarget(namespaces bool, until string) (target, error) {
	if p.accept("(") {
		if err := p.deeper(); err != nil {
			return target{}, err
		}
		defer func() { p.depth-- }()
		to, err := p.target(namespaces, ")")
		if err == nil {
			err = p.expect(")")
		}
		if err == nil && to.parts == nil && p.tokens[p.at-2].text == "," {
			to = target{parts: []target{to}}
		}
		return to, err
	}
	line := p.now().line
	id, err := p.name()
	if err != nil {
		return target{}, err
	}
	switch id {
	case "true", "false", "none", "True", "False", "None":
		return target{}, failAt(line, "%s cannot be assigned to", id)
	}
	if namespaces && p.accept(".") {
		attribute, err := p.name()
		p.names[id] = true
		return target{name: id, attribute: attribute}, err
	}
	return target{name: id}, nil
}

// signature parses the parameters of a macro.
func (p *parser) signature(m *macro) error {
	if err := p.expect("("); err != nil {
		return err
	}
	for !p.is(")") {
		if len(m.params) == maxArgs {
			return p.fail("more than %d parameters", maxArgs)
		}
		if len(m.params) > 0 {
			if err := p.expect(","); err != nil {
				return err
			}
		}
		id, err := p.name()
		if err != nil {
			return err
		}
		var otherwise expr
		if p.accept("=") {
			if otherwise, err = p.expression(); err != nil {
				return err
			}
		} else if n := len(m.defaults); n > 0 && m.defaults[n-1] != nil {
			return p.fail("a parameter without default follows one with a default")
		}
		m.params, m.defaults = append(m.params, id), append(m.defaults, otherwise)
	}
	return p.expect(")")
}

func (p *parser) macro(line int) (stmt, error) {
	m := &macro{line: line}
	var err error
	if m.name, err = p.name(); err != nil {
		return nil, err
	}
	if err = p.signature(m); err != nil {
		return nil, err
	}
	return m, p.macroBody(m, "endmacro")
}

// macroBody parses a body that no loop outside of it continues.
func (p *parser) macroBody(m *macro, until string) (err error) {
	loops, names := p.loops, p.names
	p.loops, p.names = 0, map[string]bool{}
	m.body, _, err = p.body(until)
	m.reads, p.loops, p.names = p.names, loops, names
	maps.Copy(p.names, m.reads)
	return err
}

func (p *parser) call(line int) (stmt, error) {
	m := &macro{line: line, name: "caller"}
	if p.is("(") {
		if err := p.signature(m); err != nil {
			return nil, err
		}
	}
	e, err := p.expression()
	if err != nil {
		return nil, err
	}
	c, ok := e.(*call)
	if !ok {
		return nil, failAt(line, "a call is expected")
	}
	return &callBlock{line, c, m}, p.macroBody(m, "endcall")
}

func (p *parser) with(line int) (stmt, error) {
	w := &with{line: line}
	for p.now().kind != tagEnd {
		if len(w.targets) > 0 {
			if err := p.expect(","); err != nil {
				return nil, err
			}
		}
		to, err := p.oneTarget(false, "=")
		if err != nil {
			return nil, err
		}
		if err := p.expect("="); err != nil {
			return nil, err
		}
		value, err := p.expression()
		if err != nil {
			return nil, err
		}
		w.targets, w.values = append(w.targets, to), append(w.values, value)
	}
	var err error
	w.body, _, err = p.body("endwith")
	return w, err
}
