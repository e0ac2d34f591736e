package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"apr/internal/fault"
	"apr/internal/jinja"
)

// targets returns the spans of a rendered conversation, in bytes, that the assistant writes.
//
// A template with {% generation %} says it. Otherwise the template is rendered on the messages before each turn of the
// assistant, with the generation prompt, and on those up to it: what the latter has more is the turn,
//
//	R[:i+1] without R[:i]+prompt
//
// up to the control token at its end, if there is one: white space behind that token is written by nobody. Where the turn
// comes out differently once others follow, as with templates that drop earlier thoughts, the turn is found by a mark in
// place of its content; see markedTurn. If that does not find it, the conversation is refused.
func (c *Chat) targets(messages []Message, out jinja.Output) ([][2]int, error) {
	if c.template.Generates() {
		return out.Generated, nil
	}
	var spans [][2]int
	for i, m := range messages {
		if m.Role != "assistant" {
			continue
		}
		from, to, err := c.turn(messages, i, out.Text)
		if err != nil {
			return nil, err
		}
		if n := len(spans); n > 0 && from < spans[n-1][1] {
			return nil, noTurn(i)
		}
		if to = c.turnEnd(out.Text, from, to); from < to {
			spans = append(spans, [2]int{from, to})
		}
	}
	return spans, nil
}

func noTurn(i int) error {
	return fault.New(fault.Invalid, "the template writes the turn in a form that does not show where it begins and ends").At("message %d", i).
		WithHint("a template whose turns are inside of {%% generation %%}").WithID("E-TOK-022")
}

// turn returns where the assistant's turn i is in text, the whole conversation.
func (c *Chat) turn(messages []Message, i int, text string) (from, to int, err error) {
	before, err := c.run(messages[:i], true)
	if err != nil {
		return 0, 0, badTemplate(err)
	}
	upTo, err := c.run(messages[:i+1], false)
	if err != nil {
		return 0, 0, badTemplate(err)
	}
	if strings.HasPrefix(upTo.Text, before.Text) && strings.HasPrefix(text, upTo.Text) {
		return len(before.Text), len(upTo.Text), nil
	}
	return c.markedTurn(messages, i, text, before.Text)
}

// markedTurn finds turn i by a mark in place of its content. With H the text before the mark and T the text behind it, and S
// what is behind the mark if the turn is the last one:
//
//	text = H content T    content and S are the turn, if T begins with S
//
// The turn begins where the prompt ends, or where H ends if the prompt goes on beyond it.
func (c *Chat) markedTurn(messages []Message, i int, text, prompt string) (from, to int, err error) {
	mark := unused(text)
	if mark == "" || messages[i].JSON != "" {
		return 0, 0, noTurn(i)
	}
	marked := slices.Clone(messages)
	marked[i].Content = mark
	whole, err := c.run(marked, false)
	if err != nil {
		return 0, 0, badTemplate(err)
	}
	last, err := c.run(marked[:i+1], false)
	if err != nil {
		return 0, 0, badTemplate(err)
	}
	head, tail, ok := strings.Cut(whole.Text, mark)
	_, end, ok2 := strings.Cut(last.Text, mark)
	rest, ok3 := strings.CutPrefix(text, head)
	switch content, ok4 := strings.CutSuffix(rest, tail); {
	case !ok || !ok2 || !ok3 || !ok4 || !strings.HasPrefix(tail, end):
		return 0, 0, noTurn(i)
	case strings.HasPrefix(head, prompt):
		return len(prompt), len(head) + len(content) + len(end), nil
	case strings.HasPrefix(prompt, head):
		return len(head), len(head) + len(content) + len(end), nil
	}
	return 0, 0, noTurn(i)
}

// turnEnd is the end of the control token that ends text[from:to] but for white space, or to.
func (c *Chat) turnEnd(text string, from, to int) int {
	trimmed := from + len(strings.TrimRight(text[from:to], " \t\r\n"))
	for i := from; i < trimmed; {
		_, next, id := c.t.raw[Recognise].find(text[:trimmed], i)
		if id != None && next == trimmed && c.t.tokens[id].kind == Control {
			return trimmed
		}
		i = next
	}
	return to
}

// unused is a noncharacter of Unicode that text does not hold, or "".
func unused(text string) string {
	for r := '\ufdd0'; r <= '\ufdef'; r++ {
		if !strings.ContainsRune(text, r) {
			return string(r)
		}
	}
	return ""
}

// barred returns the offsets in text at which a control token comes from a message and not from the template. The template
// is rendered again with a mark inside of each such token: those that are still found are the template's.
func (c *Chat) barred(messages []Message, prompt bool, text string) (map[int]bool, error) {
	mark, held := unused(text), false
	var failed error
	out, err := c.render(messages, prompt, func(s string) string {
		with, err := c.t.defused(s, mark)
		if err != nil && failed == nil {
			failed = fault.New(fault.Invalid, "a message holds a control token that is looked for after normalisation").Because(err).WithID("E-TOK-021")
		}
		held = held || with != s
		return with
	})
	switch {
	case failed != nil:
		return nil, failed
	case !held:
		return nil, nil
	case err != nil:
		return nil, badTemplate(err)
	case mark == "" || strings.ReplaceAll(out.Text, mark, "") != text:
		return nil, fault.New(fault.Invalid, "a message holds a control token that the chat template looks at").WithID("E-TOK-021")
	}
	own := map[int]bool{}
	c.t.eachControl(out.Text, func(start, _ int) { own[start-strings.Count(out.Text[:start], mark)*len(mark)] = true })
	barred := map[int]bool{}
	c.t.eachControl(text, func(start, _ int) {
		if !own[start] {
			barred[start] = true
		}
	})
	return barred, nil
}

// eachControl calls f for the control tokens in text.
func (t *Tokenizer) eachControl(text string, f func(start, end int)) {
	for i := 0; i < len(text); {
		start, end, id := t.raw[Recognise].find(text, i)
		if id == None {
			return
		}
		if t.tokens[id].kind != UserDefined {
			f(start, end)
		}
		i = end
	}
}

// defused returns s with a mark inside of each control token, and of what may become one together with what follows s.
func (t *Tokenizer) defused(s, mark string) (string, error) {
	if _, _, id := t.cooked[Recognise].find(t.normalise(s), 0); id != None && t.tokens[id].kind != UserDefined {
		return s, fmt.Errorf("token %q", clip(t.tokens[id].text))
	}
	for {
		var b strings.Builder
		at := 0
		t.eachControl(s, func(start, _ int) {
			_, n := utf8.DecodeRuneInString(s[start:])
			b.WriteString(s[at:start+n] + mark)
			at = start + n
		})
		if at == 0 || mark == "" {
			break
		}
		b.WriteString(s[at:])
		s = b.String()
	}
	for i := max(0, len(s)-maxAddedText); i < len(s); i++ {
		if t.raw[Recognise].begins(s[i:]) {
			_, n := utf8.DecodeRuneInString(s[i:])
			return s[:i+n] + mark + s[i+n:], nil
		}
	}
	return s, nil
}
