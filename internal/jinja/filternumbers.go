package jinja

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

func sum(s *state, v Value, a args) (Value, error) {
	in, err := a.bind("sum", "attribute", "start")
	if err != nil {
		return nil, err
	}
	list, err := s.iterate(v)
	if err == nil && in[0] != Value(missing{}) && in[0] != nil {
		list, err = s.attributes(list, in[0], missing{})
	}
	if err != nil {
		return nil, err
	}
	var total Value = 0
	if in[1] != Value(missing{}) {
		total = in[1]
	}
	for _, item := range list {
		if total, err = s.operate("+", total, item); err != nil {
			return nil, err
		}
	}
	return total, nil
}

func abs(_ *state, v Value, a args) (Value, error) {
	if _, err := a.bind("abs"); err != nil {
		return nil, err
	}
	if i, ok := asInt(v); ok && i != math.MinInt {
		return max(i, -i), nil
	}
	if f, ok := v.(float64); ok {
		return math.Abs(f), nil
	}
	return nil, fmt.Errorf("%s is not a number", typeName(v))
}

func toInt(_ *state, v Value, a args) (Value, error) {
	in, err := a.bind("int", "default", "base")
	if err != nil {
		return nil, err
	}
	if in[1] != Value(missing{}) && in[1] != Value(10) {
		return nil, errors.New("other bases than 10 are not supported")
	}
	if i, ok := asInt(v); ok {
		return i, nil
	}
	f, ok := v.(float64)
	if text, isText := text1(v); isText {
		text = strings.TrimFunc(text, isSpace)
		if i, err := strconv.Atoi(strings.ReplaceAll(text, "_", "")); err == nil {
			return i, nil
		}
		f, err = strconv.ParseFloat(text, 64)
		ok = err == nil
	}
	if ok && math.Abs(f) < 1<<63 {
		return int(f), nil
	}
	if in[0] != Value(missing{}) {
		return in[0], nil
	}
	return 0, nil
}

func toFloat(_ *state, v Value, a args) (Value, error) {
	in, err := a.bind("float", "default")
	if err != nil {
		return nil, err
	}
	if f, ok := asFloat(v); ok {
		return f, nil
	}
	if text, ok := text1(v); ok {
		if f, err := strconv.ParseFloat(strings.TrimFunc(text, isSpace), 64); err == nil {
			return f, nil
		}
	}
	if in[0] != Value(missing{}) {
		return in[0], nil
	}
	return 0.0, nil
}

// round rounds to a number of digits: common rounds to even of what the float is exactly, as Python does.
func round(_ *state, v Value, a args) (Value, error) {
	in, err := a.bind("round", "precision", "method")
	if err != nil {
		return nil, err
	}
	digits := 0
	if in[0] != Value(missing{}) {
		var ok bool
		if digits, ok = asInt(in[0]); !ok || digits < 0 || digits > 15 {
			return nil, errors.New("the precision is not supported")
		}
	}
	f, ok := asFloat(v)
	if !ok {
		return nil, fmt.Errorf("%s is not a number", typeName(v))
	}
	scale := math.Pow(10, float64(digits))
	switch in[1] {
	case missing{}, "common":
		if i, ok := asInt(v); ok {
			return i, nil
		}
		return strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64)
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	}
	return nil, errors.New("the method is common, ceil or floor")
}
