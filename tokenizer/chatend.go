package tokenizer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"apr/internal/fault"
)

// behind is what the template writes behind an answer that ends a conversation; "": nothing, or it refuses to.
func (c *Chat) behind() string {
	const answer = "\ufdd0answer\ufdd0"
	out, err := c.run([]Message{{Role: "user", Content: "Hi"}, {Role: "assistant", Content: answer}}, false)
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(out.Text, answer)
	return after
}

// bars are what marks of templates are written with: <|im_end|>, and DeepSeek's with the wide form of the bar.
var bars = []string{"<|", "|>", "<｜", "｜>"}

// lostMark is the text behind an answer that ought to be a token and is none. Text without bars may stand before the
// token that ends the turn (</answer>); without such a token no text may. A template that writes nothing ends its turns
// by the next one, or by the end of the text.
func (c *Chat) lostMark() string {
	after := c.behind()
	for i := 0; i < len(after); {
		start, next, id := c.t.raw[Recognise].find(after, i)
		if id == None {
			break
		}
		if strings.TrimSpace(c.t.tokens[id].text) == "" { // Gemma has tokens of line breaks
			i = next
			continue
		}
		text := strings.TrimSpace(after[:start])
		if slices.ContainsFunc(bars, func(bar string) bool { return strings.Contains(text, bar) }) {
			return text
		}
		return ""
	}
	return strings.TrimSpace(after)
}

// Unended says that the template ends an answer with text that is no special token; "": it does not.
func (c *Chat) Unended() string {
	mark := c.lostMark()
	if mark == "" {
		return ""
	}
	where := ""
	if before, _, ok := strings.Cut(c.text, mark); ok {
		where = fmt.Sprintf("line %d of the chat template: ", 1+strings.Count(before, "\n"))
	}
	said := fmt.Sprintf("%s%q ends the assistant's turn and is no special token of the vocabulary: a student "+
		"learns it as letters, and nothing ends its answers", where, clip(mark))
	if near := c.t.nearestControl(mark); near != "" {
		said += fmt.Sprintf("; the nearest that is one is %q", clip(near))
	}
	return said
}

// nearestControl is the control token that is written most like a word, else the one that ends a text, if any.
func (t *Tokenizer) nearestControl(word string) string {
	var all []string
	for _, k := range t.tokens {
		if k.kind == Control {
			all = append(all, k.text)
		}
	}
	end := ""
	if name := t.name(t.eos); name != nil {
		end = *name
	}
	return cmp.Or(fault.Nearest(word, all), end)
}

// ownChat is the tokenizer's own chat template; nil: there is none, or it cannot be rendered, which is told in use.
func (t *Tokenizer) ownChat() *Chat {
	if t.chatTemplate == "" {
		return nil
	}
	chat, err := NewChatAt(t, t.chatTemplate, time.Unix(0, 0))
	if err != nil {
		return nil
	}
	return chat
}

// UnendedTemplate is Unended of the tokenizer's own chat template.
func (t *Tokenizer) UnendedTemplate() string {
	if chat := t.ownChat(); chat != nil {
		return chat.Unended()
	}
	return ""
}
