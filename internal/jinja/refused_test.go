package jinja

import (
	"errors"
	"strings"
	"testing"
	"unicode"
)

// What Jinja has and this package has not is an error with its line, not an empty text.
func TestRefusedByLine(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"\n{{ self }}", "self is not supported"},
		{"\n{{ self.x is defined }}", "self is not supported"},
		{"\n{{ range(3).start }}", "attribute start of range is not supported"},
		{"\n{{ range(3)['step'] }}", "attribute step of range is not supported"},
		{"\n{{ {'a': 1}.keys().mapping }}", "attribute mapping of dict_keys is not supported"},
		{"\n{{ ([1]|select).gi_running }}", "attribute gi_running of generator is not supported"},
		{"\n{{ range.x is defined }}", "attribute x of function is not supported"},
		{"\n{{ (3).bit_length() }}", "method bit_length of int is not supported"},
		{"\n{{ (2.5).is_integer() }}", "method is_integer of float is not supported"},
		{"\n{{ ('a'|e).unescape() }}", "attribute unescape of Markup is not supported"},
	} {
		template, err := Parse(c.text)
		if err != nil {
			t.Fatal(err)
		}
		out, err := template.Render(map[string]Value{}, start)
		var e *Error
		if !errors.As(err, &e) || e.Line != 2 || !strings.Contains(e.Msg, c.want) {
			t.Errorf("%q: %q, %v, want %s in line 2", c.text, out.Text, err, c.want)
		}
	}
	template, err := Parse("{% set self = 3 %}{{ self }}")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := template.Render(map[string]Value{"self": 4}, start); err != nil || out.Text != "3" {
		t.Errorf("a variable of that name: %q, %v", out.Text, err)
	}
}

// The tables of digits and numerals hold as many characters as Python 3.11's, which knows Unicode 14.
func TestNumerals(t *testing.T) {
	digits := 0
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if isDigit(r) && !unicode.IsDigit(r) {
			digits++
		}
		if isNumeric(r) && !unicode.IsNumber(r) && !unicode.IsLetter(r) {
			t.Errorf("%U is a numeral and no letter", r)
		}
	}
	if n := len([]rune(numerals)); digits != 128 || n != 81 {
		t.Errorf("%d digits, %d numerals", digits, n)
	}
}
