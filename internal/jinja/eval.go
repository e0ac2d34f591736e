package jinja

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Output is a rendered template.
type Output struct {
	Text string

	// Generated are the spans of Text, in bytes, that {% generation %} blocks wrote.
	Generated [][2]int
}

// state is a template that is running.
type state struct {
	now   time.Time
	out   *strings.Builder
	main  *strings.Builder // that of the template itself, outside of macros and the like
	spans [][2]int
	steps int
	bytes int // of maxWork
	depth int // of calls and blocks
}

// scope holds variables; those of the outer ones can be seen.
type scope struct {
	vars   map[string]Value
	parent *scope
}

func (sc *scope) set(name string, v Value) {
	if sc.vars == nil {
		sc.vars = map[string]Value{}
	}
	sc.vars[name] = v
}

func (sc *scope) get(name string) (Value, bool) {
	for ; sc != nil; sc = sc.parent {
		if v, ok := sc.vars[name]; ok {
			return v, true
		}
	}
	return nil, false
}

// Render runs the template on variables. now is what strftime_now reads; for
// the zero time there is no such function. The error is an *Error.
func (t *Template) Render(vars map[string]Value, now time.Time) (Output, error) {
	s := &state{now: now, out: new(strings.Builder)}
	s.main = s.out
	outer := &scope{vars: vars}
	if _, err := s.run(t.body, &scope{parent: outer}); err != nil {
		return Output{}, err
	}
	return Output{s.out.String(), s.spans}, nil
}

// at adds the line to an error that has none.
func at(line int, err error) error {
	var e *Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	return failAt(line, "%v", err)
}

var (
	errSteps  = fmt.Errorf("the template takes more than %d steps", maxSteps)
	errWork   = fmt.Errorf("the template handles more than %d MiB", maxWork>>20)
	errOutput = fmt.Errorf("a text is longer than %d MiB", maxOutput>>20)
	errDepth  = fmt.Errorf("calls are nested more than %d deep", maxDepth)
)

func (s *state) step() error {
	if s.steps++; s.steps > maxSteps {
		return errSteps
	}
	return nil
}

// work accounts n bytes that are made or read.
func (s *state) work(n int) error {
	if n > maxWork-s.bytes {
		return errWork
	}
	s.bytes += n
	return nil
}

// made accounts a new string.
func (s *state) made(text string) (string, error) {
	if len(text) > maxOutput {
		return "", errOutput
	}
	return text, s.work(len(text) + 16)
}

// room accounts a string of n bytes before it is made.
func (s *state) room(n int) error {
	if n > maxOutput {
		return errOutput
	}
	return s.work(n + 16)
}

// grow accounts n bytes that are appended to a string of have bytes.
func (s *state) grow(have, n int) error {
	if have+n > maxOutput {
		return errOutput
	}
	return s.work(n + 16)
}

func (s *state) write(text string) error {
	if s.out.Len()+len(text) > maxOutput {
		return errOutput
	}
	s.out.WriteString(text)
	return s.work(len(text))
}

// signal is what ends a body early: a break or a continue.
type signal byte

const (
	none signal = iota
	breaks
	continues
)

// stmt is a statement.
type stmt interface {
	run(s *state, sc *scope) (signal, error)
}

func (s *state) run(body []stmt, sc *scope) (signal, error) {
	if s.depth++; s.depth > maxDepth {
		return none, errDepth
	}
	defer func() { s.depth-- }()
	for _, each := range body {
		if err := s.step(); err != nil {
			return none, err
		}
		if sig, err := each.run(s, sc); err != nil || sig != none {
			return sig, err
		}
	}
	return none, nil
}

// capture runs a body in a scope of its own and returns what it writes.
func (s *state) capture(body []stmt, sc *scope) (string, signal, error) {
	defer func(b *strings.Builder) { s.out = b }(s.out)
	s.out = new(strings.Builder)
	sig, err := s.run(body, sc)
	return s.out.String(), sig, err
}

type text struct{ text string }

func (t *text) run(s *state, _ *scope) (signal, error) { return none, s.write(t.text) }

type output struct{ list []expr }

func (o *output) run(s *state, sc *scope) (signal, error) {
	for _, e := range o.list {
		v, err := s.eval(e, sc)
		if err != nil {
			return none, err
		}
		text, err := s.str(v)
		if err == nil {
			err = s.write(text)
		}
		if err != nil {
			return none, at(e.line(), err)
		}
	}
	return none, nil
}

type condition struct {
	tests     []expr
	bodies    [][]stmt
	otherwise []stmt
}

func (c *condition) run(s *state, sc *scope) (signal, error) {
	for i, test := range c.tests {
		v, err := s.eval(test, sc)
		if err != nil {
			return none, err
		}
		if truth(v) {
			return s.run(c.bodies[i], sc)
		}
	}
	return s.run(c.otherwise, sc)
}

type jump struct{ breaks bool }

func (j *jump) run(*state, *scope) (signal, error) {
	if j.breaks {
		return breaks, nil
	}
	return continues, nil
}

// target is what is assigned to: a name, an attribute of a namespace, or several.
type target struct {
	name, attribute string
	parts           []target
}

func (t *target) assign(s *state, sc *scope, v Value) error {
	switch {
	case t.parts != nil:
		list, err := s.iterate(v)
		if err != nil {
			return fmt.Errorf("%s cannot be unpacked", typeName(v))
		}
		if len(list) != len(t.parts) {
			return fmt.Errorf("%d values for %d names", len(list), len(t.parts))
		}
		for i := range t.parts {
			if err := t.parts[i].assign(s, sc, list[i]); err != nil {
				return err
			}
		}
		return nil
	case t.attribute == "":
		sc.set(t.name, v)
		return nil
	}
	of, _ := sc.get(t.name)
	ns, ok := of.(*namespace)
	if !ok {
		return fmt.Errorf("%s.%s: only attributes of a namespace can be set", t.name, t.attribute)
	}
	ns.Set(t.attribute, v)
	return s.work(16)
}

type set struct {
	line   int
	target target
	value  expr
}

func (a *set) run(s *state, sc *scope) (signal, error) {
	v, err := s.eval(a.value, sc)
	if err != nil {
		return none, err
	}
	return none, at(a.line, a.target.assign(s, sc, v))
}

type setBlock struct {
	line   int
	target target
	filter expr
	body   []stmt
}

func (a *setBlock) run(s *state, sc *scope) (signal, error) {
	v, sig, err := s.filtered(a.body, a.filter, sc)
	if err != nil || sig != none {
		return sig, err
	}
	return none, at(a.line, a.target.assign(s, sc, v))
}

// filtered returns what a body writes, behind filters.
func (s *state) filtered(body []stmt, f expr, sc *scope) (Value, signal, error) {
	inner := &scope{parent: sc}
	text, sig, err := s.capture(body, inner)
	if err != nil || sig != none || f == nil {
		return text, sig, err
	}
	inner.set(bodyName, text)
	v, err := s.eval(f, inner)
	return v, none, err
}

// bodyName is the variable that holds what filters without a value of their own apply to. No template can name it.
const bodyName = " body"

type filterBlock struct {
	line   int
	filter expr
	body   []stmt
}

func (f *filterBlock) run(s *state, sc *scope) (signal, error) {
	v, sig, err := s.filtered(f.body, f.filter, sc)
	if err != nil || sig != none {
		return sig, err
	}
	text, err := s.str(v)
	if err == nil {
		err = s.write(text)
	}
	return none, at(f.line, err)
}

type with struct {
	line    int
	targets []target
	values  []expr
	body    []stmt
}

func (w *with) run(s *state, sc *scope) (signal, error) {
	inner := &scope{parent: sc}
	for i := range w.targets {
		v, err := s.eval(w.values[i], sc)
		if err == nil {
			err = at(w.line, w.targets[i].assign(s, inner, v))
		}
		if err != nil {
			return none, err
		}
	}
	return s.run(w.body, inner)
}

type generation struct {
	line int
	body []stmt
}

// run marks what the body writes. Where the output is not the template's own, its place is not known.
func (g *generation) run(s *state, sc *scope) (signal, error) {
	if s.out != s.main {
		return none, failAt(g.line, "generation inside of a macro, set, call or filter is not supported")
	}
	from := s.out.Len()
	sig, err := s.run(g.body, &scope{parent: sc})
	if to := s.out.Len(); to > from {
		s.spans = append(s.spans, [2]int{from, to})
	}
	return sig, err
}
