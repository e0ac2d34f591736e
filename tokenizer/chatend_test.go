package tokenizer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
)

// withTokens is a fixture of a tokenizer, some of whose control tokens have other names.
func withTokens(t *testing.T, dir string, names ...string) *Tokenizer {
	t.Helper()
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		return tok
	}
	d := tok.Data()
	for i, text := range d.Vocabulary {
		for k := 0; k < len(names); k += 2 {
			if text == names[k] {
				d.Vocabulary[i] = names[k+1]
			}
		}
	}
	if tok, err = FromData(dir, d); err != nil {
		t.Fatal(err)
	}
	return tok
}

// Templates of all families end an answer with a token of their vocabulary, with nothing, or with text before the
// token: none is warned of.
func TestEndedTemplates(t *testing.T) {
	const gosrc = "../testdata/models/gosrc"
	for name, tt := range map[string]struct {
		dir      string
		names    []string
		template string
	}{
		"tools.jinja":   {dir: gosrc},
		"think.jinja":   {dir: gosrc},
		"train.jinja":   {dir: gosrc},
		"headers.jinja": {dir: gosrc, names: []string{"<|im_end|>", "<|eot_id|>"}},
		"schema.jinja":  {dir: gosrc, names: []string{"<|im_end|>", "<|end|>"}},
		"inst.jinja":    {dir: "../testdata/tokenizers/mistral"},
		"turns.jinja":   {dir: "../testdata/tokenizers/gemma"},
		"qwen":          {dir: gosrc, template: qwen2Template},
		"thoughtful":    {dir: gosrc, template: thoughtful},
		"ChatML":        {dir: gosrc, template: ChatML},
		"no mark":       {dir: gosrc, template: "{% for m in messages %}User: {{ m.content }}\n\n{% endfor %}"},
		"tags": {dir: gosrc, template: "{% for m in messages %}<|user|>\n<answer>{{ m.content }}</answer>{{ eos_token }}\n" +
			"{% endfor %}"},
		"tokens of white space": {dir: gosrc, names: []string{"<|im_start|>", "\n"},
			template: "{% for m in messages %}{{ m.content }}\n<|im_end|>{% endfor %}"},
	} {
		contracttest.Cases(t, 1)
		if tt.template == "" {
			b, err := os.ReadFile(filepath.Join("../testdata/templates", name))
			if err != nil {
				t.Fatal(err)
			}
			tt.template = string(b)
		}
		tok := withTokens(t, tt.dir, tt.names...)
		tok.chatTemplate = tt.template
		if said := tok.UnendedTemplate(); said != "" {
			t.Errorf("%s: %s", name, said)
		}
	}
}

// A mark that ends an answer and is no token is told, with its line and the nearest token.
func TestUnendedTemplates(t *testing.T) {
	const text = " ends the assistant's turn and is no special token of the vocabulary"
	const near = "; the nearest that is one is "
	dir := "../testdata/models/gosrc"
	for _, tt := range []struct{ template, mark, near string }{
		{strings.ReplaceAll(ChatML, "<|im_end|>", "<|im_dnd|>"), `line 1 of the chat template: "<|im_dnd|>"`, "<|im_end|>"},
		{strings.ReplaceAll(ChatML, "<|im_end|>", "<|eot_id|>"), `line 1 of the chat template: "<|eot_id|>"`,
			"<|endoftext|>"},
		{strings.ReplaceAll(ChatML, "<|im_end|>", "<|end▁of▁sentence|>"), "<|end▁of▁sentence|>", "<|endoftext|>"},
		{"{% for m in messages %}\n{{ m.content }}<|im_dnd|>\n{% endfor %}<|endoftext|>",
			`line 2 of the chat template: "<|im_dnd|>"`, "<|im_end|>"},
		{"{% for m in messages %}{{ m.content }}<end_of_turn>\n{% endfor %}", "<end_of_turn>", "<|endoftext|>"},
	} {
		contracttest.Cases(t, 1)
		tok := withTokens(t, dir)
		tok.chatTemplate = tt.template
		said := tok.UnendedTemplate()
		if !strings.Contains(said, tt.mark) || !strings.Contains(said, text) ||
			!strings.HasSuffix(said, near+`"`+tt.near+`"`) {
			t.Errorf("%q: %s", tt.template, said)
		}
	}
	tok := withTokens(t, dir)
	at := strings.Index(ChatML, "<|im_end|>")
	for i := at; i < at+len("<|im_end|>"); i++ {
		for bit := range 8 {
			contracttest.Cases(t, 1)
			b := []byte(ChatML)
			b[i] ^= 1 << bit
			tok.chatTemplate = string(b)
			if _, err := NewChat(tok, string(b)); err == nil && tok.UnendedTemplate() == "" {
				t.Errorf("%q: nothing is said", b)
			}
		}
	}
}
