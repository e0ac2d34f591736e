package jinja

import (
	"errors"
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

type binary struct {
	pos
	op   string
	a, b expr
}

func (n *binary) eval(s *state, sc *scope) (Value, error) {
	a, err := s.eval(n.a, sc)
	if err != nil {
		return nil, err
	}
	b, err := s.eval(n.b, sc)
	if err != nil {
		return nil, err
	}
	return s.operate(n.op, a, b)
}

// operate is a op b by Python's rules. Integers have 64 bits: what needs more is an error.
func (s *state) operate(op string, a, b Value) (Value, error) {
	x, okX := asInt(a)
	y, okY := asInt(b)
	if okX && okY {
		return integers(op, x, y)
	}
	f, okF := asFloat(a)
	g, okG := asFloat(b)
	if okF && okG {
		return floats(op, f, g)
	}
	if v, done, err := s.joined(op, a, b); done || err != nil {
		return v, err
	}
	for _, v := range []Value{a, b} {
		if u, ok := v.(undefined); ok {
			return nil, u.fail()
		}
	}
	return nil, fmt.Errorf("%s %s %s is not possible", typeName(a), op, typeName(b))
}

// joined is what strings and lists do.
func (s *state) joined(op string, a, b Value) (v Value, done bool, err error) {
	text, isText := text1(a)
	list, isList := a.(*List)
	switch {
	case op == "%" && isText:
		if _, ok := a.(safe); ok {
			return nil, false, errors.New("% of a safe string is not supported")
		}
		out, err := s.percent(text, b)
		return out, true, err
	case op == "*" && (isText || isList):
		n, ok := asInt(b)
		if !ok {
			return nil, false, nil
		}
		v, err := s.repeated(a, n)
		return v, true, err
	case op == "*":
		if n, ok := asInt(a); ok {
			if _, isText := text1(b); isText {
				v, err := s.repeated(b, n)
				return v, true, err
			}
			if l, isList := b.(*List); isList && l.form <= tuple {
				v, err := s.repeated(b, n)
				return v, true, err
			}
		}
	case op == "+" && isText:
		other, ok := text1(b)
		if !ok {
			return nil, false, nil
		}
		return s.plus(a, b, text, other)
	case op == "+" && isList:
		more, ok := b.(*List)
		if !ok || list.form > tuple || more.form != list.form {
			return nil, false, nil
		}
		n := len(list.Items) + len(more.Items)
		if err := s.work(16 * n); err != nil {
			return nil, false, err
		}
		return &List{form: list.form, Items: append(append(make([]Value, 0, n), list.Items...), more.Items...)}, true, nil
	}
	return nil, false, nil
}

// plus joins two strings. If one is declared safe, the other is escaped, and so is the result.
func (s *state) plus(a, b Value, x, y string) (Value, bool, error) {
	_, safeA := a.(safe)
	_, safeB := b.(safe)
	if safeA && !safeB {
		y = escape(y)
	}
	if safeB && !safeA {
		x = escape(x)
	}
	if err := s.room(len(x) + len(y)); err != nil {
		return nil, false, err
	}
	if safeA || safeB {
		return safe(x + y), true, nil
	}
	return x + y, true, nil
}

// escape is MarkupSafe's escape.
func escape(s string) string { return html.EscapeString(s) }

// repeated is a string or list n times.
func (s *state) repeated(v Value, n int) (Value, error) {
	n = max(n, 0)
	if l, ok := v.(*List); ok {
		if l.form > tuple {
			return nil, fmt.Errorf("%s cannot be repeated", typeName(l))
		}
		if n > 0 && len(l.Items) > maxWork/16/n {
			return nil, errWork
		}
		out := &List{form: l.form}
		for range n * min(len(l.Items), 1) {
			out.Items = append(out.Items, l.Items...)
		}
		return out, s.work(16 * len(out.Items))
	}
	text, _ := text1(v)
	if n > 0 && len(text) > maxOutput/n {
		return nil, errOutput
	}
	if text == "" {
		return v, nil
	}
	return like(v, strings.Repeat(text, n)), s.work(n * len(text))
}

var errOverflow = errors.New("an integer is beyond 64 bits")

func integers(op string, x, y int) (Value, error) {
	switch op {
	case "+":
		if sum := x + y; (sum > x) == (y > 0) {
			return sum, nil
		}
		return nil, errOverflow
	case "-":
		if diff := x - y; (diff < x) == (y > 0) {
			return diff, nil
		}
		return nil, errOverflow
	case "*":
		return product(x, y)
	case "**":
		return power(x, y)
	}
	if y == 0 {
		return nil, errors.New("division by zero")
	}
	if x == math.MinInt && y == -1 {
		return nil, errOverflow
	}
	switch op {
	case "/":
		return float64(x) / float64(y), nil
	case "//":
		q := x / y
		if x%y != 0 && (x < 0) != (y < 0) {
			q--
		}
		return q, nil
	}
	r := x % y
	if r != 0 && (r < 0) != (y < 0) {
		r += y
	}
	return r, nil
}

func product(x, y int) (Value, error) {
	if x == 0 || y == 0 {
		return 0, nil
	}
	p := x * y
	if p/y != x || x == -1 && y == math.MinInt || y == -1 && x == math.MinInt {
		return nil, errOverflow
	}
	return p, nil
}

func power(x, y int) (Value, error) {
	if y < 0 {
		return floats("**", float64(x), float64(y))
	}
	out := 1
	for range min(y, 64) {
		p, err := product(out, x)
		if err != nil {
			return nil, err
		}
		out = p.(int)
	}
	if y > 64 && x != 0 && x != 1 && (x != -1) {
		return nil, errOverflow
	}
	if x == -1 && y > 64 && y%2 == 1 {
		out = -1
	}
	return out, nil
}

func floats(op string, x, y float64) (Value, error) {
	switch op {
	case "+":
		return x + y, nil
	case "-":
		return x - y, nil
	case "*":
		return x * y, nil
	case "**":
		if x == 0 && y < 0 {
			return nil, errors.New("division by zero")
		}
		if p := math.Pow(x, y); !math.IsNaN(p) && !math.IsInf(p, 0) {
			return p, nil
		}
		return nil, errors.New("the power is not a real number")
	}
	if y == 0 {
		return nil, errors.New("division by zero")
	}
	if op == "/" {
		return x / y, nil
	}
	r := math.Mod(x, y)
	if r != 0 && (r < 0) != (y < 0) {
		r += y
	}
	if op == "//" {
		return math.Round((x - r) / y), nil
	}
	return r, nil
}

// percent is Python's format % values, for %s, %r, %d, %i, %f and %x with a width and a precision.
func (s *state) percent(format string, v Value) (string, error) {
	values := []Value{v}
	if l, ok := v.(*List); ok && l.form == tuple {
		values = l.Items
	}
	if err := s.work(len(format)); err != nil {
		return "", err
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		from := i + 1
		for i++; i < len(format) && strings.IndexByte("-0123456789.", format[i]) >= 0; i++ {
		}
		if i == len(format) {
			return "", errors.New("an incomplete format")
		}
		spec, verb := format[from:i], format[i]
		if verb == '%' && spec == "" {
			b.WriteByte('%')
			continue
		}
		if len(values) == 0 {
			return "", errors.New("not enough values for the format")
		}
		out, err := s.formatted(spec, verb, values[0])
		if err != nil {
			return "", err
		}
		values = values[1:]
		b.WriteString(out)
		if err := s.grow(b.Len(), len(out)); err != nil {
			return "", err
		}
	}
	_, isDict := v.(*Dict)
	if len(values) > 0 && !isDict {
		return "", errors.New("not all values are formatted")
	}
	return b.String(), nil
}

func (s *state) formatted(spec string, verb byte, v Value) (string, error) {
	width, precision, _ := strings.Cut(strings.TrimPrefix(spec, "-"), ".")
	for _, n := range []string{width, precision} {
		if k, err := strconv.Atoi(n); n != "" && (err != nil || k > 1000) {
			return "", fmt.Errorf("format %%%s%c is not supported", spec, verb)
		}
	}
	switch verb {
	case 's':
		text, err := s.str(v)
		if strings.HasPrefix(width, "0") {
			break
		}
		return fmt.Sprintf("%"+spec+"s", text), err
	case 'd', 'i', 'x':
		if f, ok := v.(float64); ok && verb != 'x' && math.Abs(f) < 1<<53 {
			v = int(f)
		}
		if i, ok := asInt(v); ok && precision == "" {
			if verb == 'i' {
				verb = 'd'
			}
			return fmt.Sprintf("%"+spec+string(verb), i), nil
		}
	case 'f':
		if f, ok := asFloat(v); ok && !math.IsInf(f, 0) && !math.IsNaN(f) {
			return fmt.Sprintf("%"+spec+"f", f), nil
		}
	case 'r':
		var b strings.Builder
		err := s.repr(&b, v, 0)
		if spec == "" {
			return b.String(), err
		}
	}
	return "", fmt.Errorf("format %%%s%c of %s is not supported", spec, verb, typeName(v))
}
