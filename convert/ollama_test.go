package convert

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	"apr/tokenizer"
)

// withTemplate is the tokenizer of the test model with another chat template, and with a begin token before texts or none.
func withTemplate(t *testing.T, text string, bos bool) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Load(shared)
	if err != nil {
		t.Fatal(err)
	}
	d := tok.Data()
	d.ChatTemplate, d.AddBOS = text, bos
	if bos {
		d.BOS = d.EOS
	}
	if tok, err = tokenizer.FromData("test", d); err != nil {
		t.Fatal(err)
	}
	return tok
}

const (
	headers = `{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '<|end|>\n\n' + m.content | trim + '<|im_end|>' }}{% endfor %}` +
		`{% if add_generation_prompt %}{{ '<|im_start|>assistant<|end|>\n\n' }}{% endif %}`
	standard = `{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}` + tokenizer.ChatML
	dated    = `{{ bos_token }}{{ '<|im_start|>system\nToday: 26 Jul 2024\n\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% set messages = messages[1:] %}{% endif %}` +
		`{{ '<|im_end|>' }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}{{ '<|im_start|>assistant\n' }}`
	thinking = `{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}`
)

// TEMPLATE writes, run as ollama runs it, what the model's own template writes; where that is no sequence of turns, there is none.
func TestOllamaTemplate(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join("../testdata/templates", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, tt := range []struct {
		name, template string
		bos, given     bool
	}{
		{"chatml", tokenizer.ChatML, false, true},
		{"a begin token that the tokenizer does not add", headers, false, true},
		{"a begin token that llama.cpp adds", headers, true, true},
		{"a begin token that the template lacks", tokenizer.ChatML, true, false},
		{"a standard system message", standard, false, true},
		{"a system block that is always there", dated, true, true},
		{"an answer that begins otherwise than those before", thinking, false, true},
		{"every second user refused", `{% if messages | length > 3 %}{{ raise_exception('no') }}{% endif %}` + tokenizer.ChatML, false, false},
		{"numbered turns", `{% for m in messages %}{{ loop.index ~ m.role ~ m.content }}{% endfor %}`, false, false},
		{"the system message behind the user's", `{% for m in messages %}{% if m.role != 'system' %}{{ m.role ~ ':' ~ m.content ~ '\n' }}{% endif %}{% endfor %}` +
			`{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}`, false, false},
		{"braces", `{% for m in messages %}{{ '{' ~ '{' ~ m.role ~ m.content }}{% endfor %}`, false, false},
		{"quotes", `{% for m in messages %}{{ '"' ~ m.role ~ '"' ~ m.content ~ '"' }}{% endfor %}`, false, false},
		{"turns.jinja", read("turns.jinja"), false, true},
	} {
		tok := withTemplate(t, tt.template, tt.bos)
		got := ollamaTemplate(tok)
		if (got != "") != tt.given {
			t.Errorf("%s: template %q, want one: %v", tt.name, got, tt.given)
			continue
		}
		if tt.given {
			checkOllama(t, tt.name, tok, got)
		}
	}
}

// checkOllama runs a template of ollama's on conversations: .System is the system message and .Messages has all, as in its
// template package.
func checkOllama(t *testing.T, name string, tok *tokenizer.Tokenizer, text string) {
	t.Helper()
	chat, err := tokenizer.NewChat(tok, tok.ChatTemplate())
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := template.New(name).Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	begin, err := tok.Decode(tok.Begin(nil)) // by llama.cpp
	if err != nil {
		t.Fatal(err)
	}
	for _, system := range []string{"", "You are a pirate.\nSay so."} {
		for _, texts := range [][]string{{"Hi"}, {"How many?", "Seven", "Really?"}} {
			list := turns(system, texts...)
			want, err := chat.Text(list, true)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			if err := parsed.Execute(&b, map[string]any{"System": system, "Messages": list, "Response": ""}); err != nil {
				t.Fatal(err)
			}
			if begin+b.String() != want {
				t.Errorf("%s: %q\ngives %q\nwant  %q", name, text, begin+b.String(), want)
			}
		}
	}
}

func TestOllamaModelfile(t *testing.T) {
	const stops = "PARAMETER stop \"<|endoftext|>\"\n"
	for _, tt := range []struct{ template, want string }{
		{"", "FROM ./a b.gguf\nTEMPLATE \"\"\"{{ .Prompt }}\"\"\"\n" + stops},
		{tokenizer.ChatML, "FROM ./a b.gguf\nTEMPLATE \"\"\"{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}{{ range .Messages }}{{ if eq .Role \"user\" }}" +
			"<|im_start|>user\n{{ .Content }}<|im_end|>\n<|im_start|>assistant\n{{ else if eq .Role \"assistant\" }}{{ .Content }}<|im_end|>\n{{ end }}{{ end }}\"\"\"\nPARAMETER stop \"<|im_end|>\"\n" + stops},
	} {
		tok := withTemplate(t, tt.template, false)
		line := tok.Encode("\n", tokenizer.PlainText)[0] // which a Modelfile cannot hold
		got, templated := OllamaModelfile(tok, "a b.gguf", []int32{tok.EOS(), line}, true)
		if got != tt.want || !templated {
			t.Errorf("%s\nwant\n%s", got, tt.want)
		}
	}
	if got, _ := OllamaModelfile(withTemplate(t, tokenizer.ChatML, false), "a.gguf", nil, false); !strings.Contains(got, "TEMPLATE \"\"\"{{ .Prompt }}\"\"\"") {
		t.Errorf("of a model that learned no conversations: %s", got)
	}
	got, templated := OllamaModelfile(withTemplate(t, `{{ messages[0].content }}`, false), "m.gguf", nil, true)
	if templated || strings.Contains(got, "\nTEMPLATE") || !strings.Contains(got, "# The chat template is in the GGUF file") {
		t.Errorf("%s", got)
	}
}
