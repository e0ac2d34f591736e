package tokenizer

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// jinja.json was written by Jinja itself (its origin says which) for the variables below.
func TestJinja(t *testing.T) {
	b, err := os.ReadFile("testdata/jinja.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct{ Template, Want string }
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 20 {
		t.Fatalf("%d cases", len(file.Cases))
	}
	for _, c := range file.Cases {
		run, err := compileTemplate(c.Template)
		if err != nil {
			t.Errorf("%q: %v", c.Template, err)
			continue
		}
		got, err := render(run, jinjaVars())
		if err != nil || got != c.Want {
			t.Errorf("%q\n got %q, %v\nwant %q", c.Template, got, err, c.Want)
		}
	}
}

func jinjaVars() map[string]any {
	return map[string]any{
		"messages": []any{
			map[string]any{"role": "user", "content": "  hi \n"},
			map[string]any{"role": "assistant", "content": "yo"},
		},
		"tools": nil, "bos_token": "<s>", "a": map[string]any{},
	}
}

func TestJinjaRefuses(t *testing.T) {
	deep := strings.Repeat("(", 60) + "1" + strings.Repeat(")", 60)
	for _, c := range []struct{ name, template, want string }{
		{"macro", "{% macro f() %}{% endmacro %}", `statement "macro" is not supported`},
		{"include", "{% include 'x' %}", `statement "include"`},
		{"namespace", "{% set ns = namespace(a=1) %}", "namespace(…) is not supported"},
		{"call", "{{ raise_exception('no') }}", "raise_exception(…)"},
		{"method", "{{ messages[0].content.split('x') }}", "split(…)"},
		{"filter", "{{ messages | tojson }}", `filter "tojson"`},
		{"slice", "{{ messages[::-1] }}", "not supported"},
		{"attribute of nothing", "{{ x.y }}", `"x" is undefined`},
		{"loop over text", "{% for c in 'abc' %}{% endfor %}", "a loop over a string"},
		{"list as text", "{{ messages }}", "writing a list"},
		{"string plus number", "{{ 'a' + 1 }}", "a string + an integer"},
		{"open tag", "{{ 'a'", "tag without end"},
		{"open string", "{{ 'a }}", "string without end"},
		{"open if", "{% if true %}x", "if ends with"},
		{"open for", "{% for a in b %}x{% endif %}", "for ends with"},
		{"end alone", "x{% endif %}", "endif without a beginning"},
		{"two values", "{{ 1 2 }}", `"2" is not supported here`},
		{"strange character", "{{ a ? b }}", "unexpected"},
		{"escape", `{{ '\x41' }}`, `escape \x`},
		{"big number", "{{ 99999999999999999999 }}", "number"},
		{"deep expression", "{{ " + deep + " }}", "nested more than"},
		{"deep blocks", strings.Repeat("{% if 1 %}", 60) + strings.Repeat("{% endif %}", 60), "nested more than"},
		{"long", strings.Repeat("x", maxTemplate+1), "over the limit"},
		{"doubling", "{% set a = 'aaaaaaaa' %}" + strings.Repeat("{% set a = a + a %}", 40), "over its limit"},
		{"loops in loops", strings.Repeat("{% for a in messages %}", 30) + "x" + strings.Repeat("{% endfor %}", 30), "limit of steps"},
		{"much output", "{% for a in messages %}" + strings.Repeat("x", 40<<10) + "{% endfor %}", "output is over its limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			run, err := compileTemplate(c.template)
			if err == nil {
				_, err = render(run, jinjaVars())
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func FuzzJinja(f *testing.F) {
	for _, s := range []string{ChatML, "{% for m in messages %}{{ m.role }}{% endfor %}", "{%- if a -%}{# x #}{% endif %}", "{{ 'a' ~ (1 if x else 2) | trim }}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, template string) {
		if run, err := compileTemplate(template); err == nil {
			if out, err := render(run, jinjaVars()); err == nil && len(out) > maxJinjaOutput {
				t.Errorf("%d bytes of output", len(out))
			}
		}
	})
}
