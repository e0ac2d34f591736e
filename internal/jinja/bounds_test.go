package jinja

import (
	"errors"
	"strings"
	"testing"
	"time"

	"apr/internal/contracttest"
)

// TestRefused: what is not known, and what would take long or much, is an error with its line.
func TestRefused(t *testing.T) {
	cases := []struct {
		name, template string
		line           int
		want           string
	}{
		{"include", "a\n{% include 'x' %}", 2, `statement "include" is not supported`},
		{"import", "{% import 'x' as y %}", 1, `statement "import" is not supported`},
		{"extends", "{% extends 'x' %}", 1, `statement "extends" is not supported`},
		{"block", "{% block x %}{% endblock %}", 1, `statement "block" is not supported`},
		{"do", "{% do x.append(1) %}", 1, `statement "do" is not supported`},
		{"filter", "{{ 1\n| xmlattr }}", 2, `filter "xmlattr" is not supported`},
		{"test", "{{ 1 is nothing }}", 1, `test "nothing" is not supported`},
		{"method", "{{ 'a'.encode() }}", 1, "method encode of str is not supported"},
		{"changes a list", "{{ [].append(1) }}", 1, "method append of list is not supported"},
		{"Go's methods", "{{ messages.Set('a', 1) }}", 1, "no attribute"},
		{"private", "{{ ''.__class__.__mro__ }}", 1, "no attribute"},
		{"lipsum", "{{ lipsum() }}", 1, "function lipsum is not supported"},
		{"undefined", "\n\n{{ x.y }}", 3, `"x" is undefined`},
		{"open tag", "x\n{{ 'a'", 2, "a tag without end"},
		{"open string", "{{ 'a }}", 1, "a string without end"},
		{"open comment", "\n{# a", 2, "a comment without end"},
		{"open raw", "{% raw %}", 1, "raw without endraw"},
		{"open if", "{% if true %}x", 1, "a block without endif"},
		{"wrong end", "{% for a in b %}x{% endif %}", 1, `statement "endif" is not supported`},
		{"break", "{% break %}", 1, "break outside of a loop"},
		{"break in a macro", "{% for a in [1] %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}", 1, "break outside of a loop"},
		{"two values", "{{ 1 2 }}", 1, `unexpected "2"`},
		{"bracket", "{{ (1] }}", 1, `unexpected "]"`},
		{"character", "{{ a ? b }}", 1, "unexpected '?'"},
		{"big number", "{{ 99999999999999999999 }}", 1, "number"},
		{"overflow", "{{ 9223372036854775807 + 1 }}", 1, "beyond 64 bits"},
		{"power", "{{ 10 ** 99 }}", 1, "beyond 64 bits"},
		{"generation in a macro", "{% macro f() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ f() }}", 1, "generation inside of a macro"},
		{"date", "{{ strftime_now('%Q') }}", 1, "%Q is not supported"},
		{"not UTF-8", "\xff", 1, "not UTF-8"},

		{"long", strings.Repeat("x", maxSource+1), 1, "over the limit"},
		{"deep expression", "{{ " + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000) + " }}", 1, "nested more than"},
		{"deep not", "{{ " + strings.Repeat("not ", 5000) + "1 }}", 1, "nested more than"},
		{"deep signs", "{{ " + strings.Repeat("-", 5000) + "1 }}", 1, "nested more than"},
		{"deep blocks", strings.Repeat("{% if 1 %}", 5000), 1, "nested more than"},
		{"long sum", "{{ 1" + strings.Repeat("+1", 5000) + " }}", 1, "in a row"},
		{"long chain", "{{ a" + strings.Repeat(".b", 5000) + " }}", 1, "in a row"},
		{"many filters", "{{ 'a'" + strings.Repeat("|trim", 5000) + " }}", 1, "in a row"},
		{"doubling text", "{% set ns = namespace(a='aaaaaaaa') %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}", 1, "longer than 4 MiB"},
		{"doubling list", "{% set ns = namespace(a=[1]) %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}", 1, "handles more than 256 MiB"},
		{"repeated text", "{{ 'abc' * 99999999999 }}", 1, "longer than 4 MiB"},
		{"repeated list", "{{ [1] * 99999999999 }}", 1, "handles more than 256 MiB"},
		{"replaced text", "{% set a = 'a' * 100000 %}{{ a.replace('a', a) }}", 1, "longer than 4 MiB"},
		{"joined", "{% set a = 'a' * 100000 %}{{ a.join(a) }}", 1, "longer than 4 MiB"},
		{"width", "{{ '%999999999d' % 1 }}", 1, "is not supported"},
		{"indent", "{{ [[1]]|tojson(indent=99999999) }}", 1, "indent is not supported"},
		{"range", "{{ range(999999999)|length }}", 1, "at most 100000"},
		{"loops", "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", 1, "more than 1000000 steps"},
		{"recursion", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", 1, "nested more than"},
		{"recursive loop", "{% for a in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}", 1, "nested more than"},
		{"nested value", "{% set ns = namespace(a=[]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}", 1, "nested more than"},
		{"nested JSON", "{% set ns = namespace(a=[]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a|tojson }}", 1, "nested more than"},
		{"nested comparison", "{% set ns = namespace(a=[], b=[]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% set ns.b = [ns.b] %}{% endfor %}{{ ns.a == ns.b }}", 1, "nested more than"},
		{"cycle", "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", 1, "nested more than"},
		{"searches", "{% set a = 'a' * 4000000 %}{% for i in range(99999) %}{{ 'b' in a }}{% endfor %}", 1, "handles more than 256 MiB"},
		{"much output", "{% set a = 'a' * 4000000 %}{{ a }}{{ a }}", 1, "longer than 4 MiB"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			begin := time.Now()
			err := tryTemplate(c.template)
			var e *Error
			if !errors.As(err, &e) || e.Line != c.line || !strings.Contains(e.Msg, c.want) {
				t.Errorf("error %v, want line %d: %s", err, c.line, c.want)
			}
			if d := time.Since(begin); d > 10*time.Second {
				t.Errorf("took %v", d)
			}
		})
	}
	contracttest.Cases(t, len(cases))
}

// tryTemplate parses and renders a template on one message.
func tryTemplate(template string) error {
	parsed, err := Parse(template)
	if err != nil {
		return err
	}
	d := NewDict()
	d.Set("role", "user")
	d.Set("content", " Hi ")
	_, err = parsed.Render(map[string]Value{"messages": NewList(d), "bos_token": "<s>"}, start)
	return err
}

// FuzzTemplate: no template panics, runs for long, or fails without a line.
func FuzzTemplate(f *testing.F) {
	cases, _ := loadCases(f)
	for _, c := range cases {
		if c.Snippet != "" {
			f.Add(c.Snippet)
		}
	}
	f.Fuzz(func(t *testing.T, template string) {
		err := tryTemplate(template)
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Line < 1) {
			t.Errorf("error %v has no line", err)
		}
	})
}
