package tokenizer

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Values of the subset are string, int, bool, nil (none), undefined, []any and map[string]any.
type undefined string

// jinjaState is a running template.
type jinjaState struct {
	vars  []map[string]any // innermost scope last
	out   strings.Builder
	steps int
}

// render runs a template with variables.
func render(t stmt, vars map[string]any) (string, error) {
	s := &jinjaState{vars: []map[string]any{vars}}
	if err := t(s); err != nil {
		return "", err
	}
	return s.out.String(), nil
}

func (s *jinjaState) step() error {
	if s.steps++; s.steps > maxJinjaSteps {
		return errors.New("the template does not end within its limit of steps")
	}
	return nil
}

func (s *jinjaState) write(text string) error {
	if s.out.Len()+len(text) > maxJinjaOutput {
		return errors.New("the output is over its limit")
	}
	s.out.WriteString(text)
	return s.step()
}

func (s *jinjaState) loop(name string, list expr, body stmt) error {
	v, err := list(s)
	if err != nil {
		return err
	}
	if _, ok := v.(undefined); ok {
		return nil
	}
	items, ok := v.([]any)
	if !ok {
		return fmt.Errorf("a loop over %s is not supported", jinjaType(v))
	}
	defer func(n int) { s.vars = s.vars[:n] }(len(s.vars))
	for i, item := range items {
		if err := s.step(); err != nil {
			return err
		}
		loop := map[string]any{
			"index": i + 1, "index0": i, "revindex": len(items) - i, "revindex0": len(items) - i - 1,
			"first": i == 0, "last": i == len(items)-1, "length": len(items),
		}
		s.vars = append(s.vars, map[string]any{name: item, "loop": loop})
		if err := body(s); err != nil {
			return err
		}
		s.vars = s.vars[:len(s.vars)-1]
	}
	return nil
}

func constant(v any) expr { return func(*jinjaState) (any, error) { return v, nil } }

func variable(name string) expr {
	return func(s *jinjaState) (any, error) {
		for i := len(s.vars) - 1; i >= 0; i-- {
			if v, ok := s.vars[i][name]; ok {
				return v, s.step()
			}
		}
		return undefined(name), s.step()
	}
}

func negate(e expr) expr {
	return func(s *jinjaState) (any, error) {
		v, err := e(s)
		return !jinjaTrue(v), err
	}
}

func subscript(e, key expr) expr {
	return func(s *jinjaState) (any, error) {
		v, err := e(s)
		if err != nil {
			return nil, err
		}
		k, err := key(s)
		if err != nil {
			return nil, err
		}
		switch v := v.(type) {
		case map[string]any:
			name, _ := k.(string)
			if value, ok := v[name]; ok {
				return value, s.step()
			}
			return undefined(name), s.step()
		case []any:
			i, ok := k.(int)
			if ok && i < 0 {
				i += len(v)
			}
			if ok && i >= 0 && i < len(v) {
				return v[i], s.step()
			}
			return undefined(fmt.Sprint(k)), s.step()
		case undefined:
			return nil, fmt.Errorf("%q is undefined", clip(string(v)))
		}
		return nil, fmt.Errorf("a subscript of %s is not supported", jinjaType(v))
	}
}

// binary returns the expression a op b; or and and give one of their operands, as in Python.
func binary(op string, a, b expr) expr {
	return func(s *jinjaState) (any, error) {
		if err := s.step(); err != nil {
			return nil, err
		}
		x, err := a(s)
		if err != nil || op == "or" && jinjaTrue(x) || op == "and" && !jinjaTrue(x) {
			return x, err
		}
		y, err := b(s)
		if err != nil || op == "or" || op == "and" {
			return y, err
		}
		return operate(op, x, y)
	}
}

func operate(op string, x, y any) (any, error) {
	switch op {
	case "==":
		return reflect.DeepEqual(x, y), nil
	case "!=":
		return !reflect.DeepEqual(x, y), nil
	case "~":
		a, errA := jinjaText(x)
		b, errB := jinjaText(y)
		return a + b, errors.Join(errA, errB)
	case "in":
		if text, ok := y.(string); ok {
			if part, ok := x.(string); ok {
				return strings.Contains(text, part), nil
			}
		}
		if list, ok := y.([]any); ok {
			for _, item := range list {
				if reflect.DeepEqual(item, x) {
					return true, nil
				}
			}
			return false, nil
		}
	}
	if a, ok := x.(string); ok && op == "+" {
		if b, ok := y.(string); ok {
			if len(a)+len(b) > maxJinjaOutput {
				return nil, errors.New("a string is over its limit")
			}
			return a + b, nil
		}
	}
	if a, ok := x.(int); ok {
		if b, ok := y.(int); ok {
			return arithmetic(op, a, b)
		}
	}
	return nil, fmt.Errorf("%s %s %s is not supported", jinjaType(x), op, jinjaType(y))
}

func arithmetic(op string, a, b int) (any, error) {
	switch op {
	case "+":
		return a + b, nil
	case "-":
		return a - b, nil
	case "<":
		return a < b, nil
	case ">":
		return a > b, nil
	case "<=":
		return a <= b, nil
	case ">=":
		return a >= b, nil
	}
	return nil, fmt.Errorf("operator %s is not supported", op)
}

func filter(name string, e expr) expr {
	return func(s *jinjaState) (any, error) {
		v, err := e(s)
		if err != nil {
			return nil, err
		}
		switch text, isText := v.(string); {
		case name == "trim" && isText:
			return strings.TrimSpace(text), s.step()
		case name == "length" && isText:
			return len([]rune(text)), s.step()
		case name == "length":
			if list, ok := v.([]any); ok {
				return len(list), s.step()
			}
		}
		return nil, fmt.Errorf("filter %q of %s is not supported", clip(name), jinjaType(v))
	}
}

func test(name string, e expr) expr {
	return func(s *jinjaState) (any, error) {
		v, err := e(s)
		if err != nil {
			return nil, err
		}
		_, isUndefined := v.(undefined)
		_, isText := v.(string)
		switch name {
		case "defined":
			return !isUndefined, s.step()
		case "undefined":
			return isUndefined, s.step()
		case "none":
			return v == nil, s.step()
		case "string":
			return isText, s.step()
		}
		return nil, fmt.Errorf("test %q is not supported", clip(name))
	}
}

func jinjaTrue(v any) bool {
	switch v := v.(type) {
	case bool:
		return v
	case string:
		return v != ""
	case int:
		return v != 0
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return false
}

// jinjaText is what {{ v }} writes.
func jinjaText(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case int:
		return strconv.Itoa(v), nil
	case undefined:
		return "", nil
	}
	return "", fmt.Errorf("writing %s is not supported", jinjaType(v))
}

func jinjaType(v any) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case string:
		return "a string"
	case int:
		return "an integer"
	case bool:
		return "a boolean"
	case []any:
		return "a list"
	case undefined:
		return fmt.Sprintf("undefined %q", clip(string(v)))
	}
	return "a mapping"
}
