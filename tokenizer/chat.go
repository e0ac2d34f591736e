package tokenizer

import (
	"errors"
	"strings"
	"time"

	"apr/internal/fault"
	"apr/internal/jinja"
	"apr/internal/strictjson"
)

// ChatML is the plain form of the template, for --chat-template chatml.
const ChatML = `{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// chatMLTokens are what ChatML is made of.
var chatMLTokens = []string{"<|im_start|>", "<|im_end|>"}

// roles are those that a message can have. Templates refuse those that they do not know.
var roles = []string{"system", "developer", "user", "assistant", "tool"}

// A Message is one turn of a conversation.
type Message struct {
	Role    string // one of roles
	Content string

	// JSON is the whole message where it has more than a role and a text, such as tool_calls or reasoning_content, as a
	// JSON object whose keys the template sees in order; else "".
	JSON string
}

// A Segment is a run of tokens that are all targets of training, or all not.
type Segment struct {
	IDs    []int32
	Target bool
}

// Chat renders conversations by a chat template. It does not change and is safe for concurrent use.
type Chat struct {
	t        *Tokenizer
	text     string // of the template
	template *jinja.Template
	start    time.Time
	end      int32
}

// NewChat parses a chat template: t.ChatTemplate(), ChatML or the text of a file. See internal/jinja for what a template can
// do. One that cannot be parsed, or cannot render a user's turn, is an error of kind fault.Unavailable with the line.
func NewChat(t *Tokenizer, template string) (*Chat, error) {
	return NewChatAt(t, template, time.Time{})
}

// NewChatAt is NewChat for templates that write a date: start is the time that strftime_now reads. For the zero time a template
// has no strftime_now.
func NewChatAt(t *Tokenizer, template string, start time.Time) (*Chat, error) {
	if template == "" {
		return nil, noChat("the model has no chat template").WithHint("--chat-template chatml")
	}
	if template == ChatML {
		for _, text := range chatMLTokens {
			if _, ok := t.Special(text); !ok {
				return nil, noChat("the tokenizer has no token %s", text)
			}
		}
	}
	parsed, err := jinja.Parse(template)
	if err != nil {
		return nil, badTemplate(err)
	}
	c := &Chat{t: t, text: template, template: parsed, start: start, end: None}
	var e *jinja.Error
	if _, err := c.run([]Message{{Role: "user", Content: "Hi"}}, true); errors.As(err, &e) && !e.Raised {
		return nil, badTemplate(err)
	}
	c.findEnd()
	return c, nil
}

// ReadsClock reports whether a template depends on the time.
func (c *Chat) ReadsClock() bool { return c.template.Reads("strftime_now") }

// findEnd takes the first control token behind an answer as that which ends a turn.
func (c *Chat) findEnd() {
	after := c.behind()
	for i := 0; i < len(after); {
		_, next, id := c.t.raw[Recognise].find(after, i)
		if id != None && c.t.tokens[id].kind == Control {
			c.end = id
			return
		}
		i = next
	}
}

// run renders the template as transformers does.
func (c *Chat) run(messages []Message, prompt bool) (jinja.Output, error) {
	return c.render(messages, prompt, nil)
}

// render is run with all strings of the messages changed, unless change is nil.
func (c *Chat) render(messages []Message, prompt bool, change func(string) string) (jinja.Output, error) {
	list := jinja.NewList()
	for i, m := range messages {
		v, err := m.value()
		if err != nil {
			return jinja.Output{}, fault.New(fault.Invalid, "the message is not a JSON object").At("message %d", i).Because(err).WithID("E-TOK-021")
		}
		if change != nil {
			v = jinja.Changed(v, change)
		}
		list.Items = append(list.Items, v)
	}
	vars := map[string]jinja.Value{"messages": list, "add_generation_prompt": prompt, "tools": nil, "documents": nil}
	for name, id := range map[string]int32{"bos_token": c.t.bos, "eos_token": c.t.eos, "pad_token": c.t.pad} {
		if id != None {
			vars[name] = c.t.tokens[id].text
		}
	}
	return c.template.Render(vars, c.start)
}

// value is the message as a template sees it.
func (m Message) value() (jinja.Value, error) {
	if m.JSON != "" {
		v, err := strictjson.Parse(m.JSON, strictjson.Options{})
		if err == nil {
			err = v.Expect(strictjson.Object)
		}
		if err != nil {
			return nil, err
		}
		return jinja.FromJSON(v)
	}
	d := jinja.NewDict()
	d.Set("role", m.Role)
	d.Set("content", m.Content)
	return d, nil
}

func noChat(format string, args ...any) *fault.Error {
	return fault.New(fault.Unavailable, format, args...).WithID("E-TOK-020")
}

// badTemplate is an error about a template, or about a conversation that the template itself refuses.
func badTemplate(err error) error {
	var e *jinja.Error
	switch {
	case !errors.As(err, &e):
		return err
	case e.Raised:
		return fault.New(fault.Invalid, "the chat template refuses the conversation: %s", clip(e.Msg)).At("line %d", e.Line).WithID("E-TOK-021")
	}
	return noChat("the chat template cannot be rendered: %s", e.Msg).At("line %d", e.Line)
}

// End returns the id that ends a turn, where generation of an answer stops, or None: the first control token behind an
// answer.
func (c *Chat) End() int32 { return c.end }

// Text renders messages as one string, for people to read. Encode of it is not Render: there a content cannot hold
// control tokens.
func (c *Chat) Text(messages []Message, generationPrompt bool) (string, error) {
	if err := checkMessages(messages); err != nil {
		return "", err
	}
	out, err := c.run(messages, generationPrompt)
	if err != nil {
		return "", badTemplate(err)
	}
	return out.Text, nil
}

// Render returns the tokens of a conversation. Targets are what the assistant writes; see targets. No begin or end token
// is added: the template writes those that the model expects.
//
// Contents are PlainText: a "<|im_end|>" in one ends nothing. What the assistant writes is encoded on its own, as
// generation meets it after the prompt, so that a content that begins with a line break has its own token for it.
// Errors are of kind fault.Invalid, or fault.Unavailable for what the template needs and is not supported.
func (c *Chat) Render(messages []Message, generationPrompt bool) ([]Segment, error) {
	if err := checkMessages(messages); err != nil {
		return nil, err
	}
	out, err := c.run(messages, generationPrompt)
	if err != nil {
		return nil, badTemplate(err)
	}
	spans, err := c.targets(messages, out)
	if err != nil {
		return nil, err
	}
	barred, err := c.barred(messages, generationPrompt, out.Text)
	if err != nil {
		return nil, err
	}
	e := c.t.encoders.Get().(*Encoder)
	defer c.t.encoders.Put(e)
	var segments []Segment
	at, open := 0, false
	piece := func(to int, target bool) {
		if to > at {
			var ids []int32
			ids, open = e.appendPart(nil, out.Text[at:to], Recognise, part{at == 0, open, func(i int) bool { return barred[at+i] }})
			segments = append(segments, Segment{ids, target})
			at = to
		}
	}
	for _, s := range spans {
		piece(s[0], false)
		piece(s[1], true)
	}
	piece(len(out.Text), false)
	return segments, nil
}

func checkMessages(messages []Message) error {
	if len(messages) == 0 {
		return fault.New(fault.Invalid, "a conversation without messages").WithID("E-TOK-021")
	}
next:
	for i, m := range messages {
		for _, role := range roles {
			if m.Role == role {
				continue next
			}
		}
		err := fault.New(fault.Invalid, "role %q is not supported", clip(m.Role)).At("message %d", i).WithID("E-TOK-021")
		if near := fault.Nearest(m.Role, roles); near != "" {
			return err.WithHint("did you mean %s?", near)
		}
		return err.WithHint("roles are %s", strings.Join(roles, ", "))
	}
	return nil
}
