package convert

import (
	"fmt"
	"slices"
	"strings"

	"apr/tokenizer"
)

// OllamaModelfile returns the Modelfile with which ollama takes a GGUF file of this name, in the same folder.
// ends are the ids that end an answer, beside that which ends a turn.
//
// ollama has templates of its own language. A model without a chat template gets the text as it is. For one with a template
// that is a sequence of turns, TEMPLATE says the same (see ollamaTemplate); for any other there is no TEMPLATE: ollama knows
// those of well-known models by the one in the GGUF file. templated reports whether there is one. With chats false the
// model has learned no conversations, whatever its chat template: it gets the text as it is.
func OllamaModelfile(tok *tokenizer.Tokenizer, gguf string, ends []int32, chats bool) (text string, templated bool) {
	var b strings.Builder
	fmt.Fprintf(&b, "FROM ./%s\n", gguf)
	template := "{{ .Prompt }}"
	if chats && tok.ChatTemplate() != "" {
		template = ollamaTemplate(tok)
	}
	if templated = template != ""; templated {
		fmt.Fprintf(&b, "TEMPLATE \"\"\"%s\"\"\"\n", template)
	} else {
		b.WriteString("# The chat template is in the GGUF file. ollama knows those of well-known models; ollama show NAME --template\n" +
			"# prints what it took. Where that is {{ .Prompt }}, write a TEMPLATE here: https://docs.ollama.com/modelfile#template\n")
	}
	if chat, err := tokenizer.NewChat(tok, tok.ChatTemplate()); err == nil && chat.End() != tokenizer.None && !slices.Contains(ends, chat.End()) {
		ends = append([]int32{chat.End()}, ends...)
	}
	for _, id := range ends {
		text, _ := tok.Bytes(id)
		if quoted, ok := ollamaQuoted(text); ok {
			fmt.Fprintf(&b, "PARAMETER stop %s\n", quoted)
		}
	}
	return b.String(), templated
}

// ollamaQuoted quotes a text of one line; a Modelfile knows no escapes.
func ollamaQuoted(s string) (string, bool) {
	return `"` + s + `"`, s != "" && !strings.ContainsAny(s, "\"\n\r")
}

// turnForm is a chat template that writes a system message, if there is one, and then turns one after the other.
type turnForm struct {
	lead           string    // before all, unless the tokenizer begins texts with it
	system         [2]string // around the system message
	always         bool      // without a system message there is one too
	standard       string    // that one
	user, assisted [2]string // around turns
	ask            string    // what begins the answer
}

// The contents by which a template is taken apart; no template has them.
const (
	systemMark = "⟦S⟧"
	userMark   = "⟦U⟧"
	answerMark = "⟦A⟧"
	againMark  = "⟦V⟧"
)

// turns is a conversation: a system message unless it is "", then what the user and the assistant say in turn.
func turns(system string, texts ...string) (list []tokenizer.Message) {
	if system != "" {
		list = append(list, tokenizer.Message{Role: "system", Content: system})
	}
	for i, text := range texts {
		list = append(list, tokenizer.Message{Role: []string{"user", "assistant"}[i%2], Content: text})
	}
	return list
}

// ollamaTemplate returns a template of ollama's that writes conversations as the model's own does, "" if none of this form does.
func ollamaTemplate(tok *tokenizer.Tokenizer) string {
	chat, err := tokenizer.NewChat(tok, tok.ChatTemplate())
	if err != nil {
		return ""
	}
	f, ok := takeApart(tok, chat)
	if !ok {
		return ""
	}
	for _, texts := range [][]string{{"x"}, {"one two", "three", "4"}, {"a", "b\nc", "d", "e", "f"}} {
		for _, system := range []string{"", "Be brief."} {
			want, err := chat.Text(turns(system, texts...), true)
			if err != nil || f.text(tok, system, texts) != want {
				return ""
			}
		}
	}
	return f.template()
}

// takeApart finds the form of a template from three conversations.
func takeApart(tok *tokenizer.Tokenizer, chat *tokenizer.Chat) (f turnForm, ok bool) {
	split := func(system string, texts ...string) []string {
		text, err := chat.Text(turns(system, texts...), true)
		if err != nil {
			return nil
		}
		var parts []string
		if system != "" {
			texts = append([]string{system}, texts...)
		}
		for _, mark := range texts {
			before, after, found := strings.Cut(text, mark)
			if !found || strings.Contains(after, mark) {
				return nil
			}
			parts, text = append(parts, before), after
		}
		return append(parts, text)
	}
	alone, whole := split("", userMark), split(systemMark, userMark, answerMark, againMark)
	if alone == nil || whole == nil {
		return f, false
	}
	if begin := tok.Begin(nil); len(begin) > 0 { // llama.cpp puts it there, so the template must not
		bos, err := tok.Decode(begin)
		if err != nil || !strings.HasPrefix(whole[0], bos) || !strings.HasPrefix(alone[0], bos) {
			return f, false
		}
		whole[0], alone[0] = whole[0][len(bos):], alone[0][len(bos):]
	}
	first := alone[0]
	f.user[1] = commonPrefix(whole[2], whole[4])
	f.assisted[0], f.ask = whole[2][len(f.user[1]):], whole[4][len(f.user[1]):]
	switch inner, found := strings.CutPrefix(first, whole[0]); {
	case found && strings.HasSuffix(inner, whole[1]):
		f.always, f.standard = true, strings.TrimSuffix(inner, whole[1])
		f.user[0] = commonSuffix(whole[1], whole[3])
		f.system = [2]string{whole[0], strings.TrimSuffix(whole[1], f.user[0])}
	default:
		f.lead = commonPrefix(first, whole[0])
		if strings.HasSuffix(whole[1], first) { // nothing leads: what both begin with is how turns begin
			f.lead = ""
		}
		f.user[0] = first[len(f.lead):]
		f.system = [2]string{whole[0][len(f.lead):], strings.TrimSuffix(whole[1], f.user[0])}
	}
	f.assisted[1] = strings.TrimSuffix(whole[3], f.user[0])
	return f, true
}

func commonPrefix(a, b string) string {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return a[:n]
}

func commonSuffix(a, b string) string {
	n := 0
	for n < min(len(a), len(b)) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	return a[len(a)-n:]
}

// text writes a conversation as template does, behind what the tokenizer begins texts with.
func (f turnForm) text(tok *tokenizer.Tokenizer, system string, texts []string) string {
	begin, err := tok.Decode(tok.Begin(nil))
	if err != nil {
		return ""
	}
	b := begin + f.lead
	if f.always && system == "" {
		system = f.standard
	}
	if f.always || system != "" {
		b += f.system[0] + system + f.system[1]
	}
	for i, text := range texts {
		around := f.user
		if i%2 == 1 {
			around = f.assisted
		}
		b += around[0] + text + around[1]
	}
	return b + f.ask
}

// template is the form in ollama's language, "" where a part of it cannot be written there.
func (f turnForm) template() string {
	for _, part := range []string{f.lead, f.system[0], f.system[1], f.standard, f.user[0], f.user[1], f.assisted[0], f.assisted[1], f.ask} {
		if strings.Contains(part, "{{") || strings.Contains(part, `"""`) || strings.HasSuffix(part, "{") || strings.HasPrefix(part, `"`) || strings.HasSuffix(part, `"`) {
			return ""
		}
	}
	var b strings.Builder
	b.WriteString(f.lead)
	message := f.system[0] + "{{ .System }}" + f.system[1]
	switch {
	case f.always && f.standard != "":
		b.WriteString(f.system[0] + "{{ if .System }}{{ .System }}{{ else }}" + f.standard + "{{ end }}" + f.system[1])
	case f.always:
		b.WriteString(message)
	default:
		b.WriteString("{{ if .System }}" + message + "{{ end }}")
	}
	b.WriteString(`{{ range .Messages }}{{ if eq .Role "user" }}` + f.user[0] + "{{ .Content }}" + f.user[1] +
		`{{ else if eq .Role "assistant" }}` + f.assisted[0] + "{{ .Content }}" + f.assisted[1] + "{{ end }}{{ end }}" + f.ask)
	return b.String()
}
