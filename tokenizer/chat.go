package tokenizer

import (
	"errors"
	"strings"

	"apr/internal/fault"
)

// The markers of ChatML.
const (
	imStart = "<|im_start|>"
	imEnd   = "<|im_end|>"
)

// ChatML is the plain form of the template, for --chat-template chatml.
const ChatML = `{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// roles are those that a message can have.
var roles = []string{"system", "user", "assistant"}

// A Message is one turn of a conversation.
type Message struct {
	Role    string // system, user or assistant
	Content string
}

// A Segment is a run of tokens that are all targets of training, or all not.
type Segment struct {
	IDs    []int32
	Target bool
}

// Chat renders conversations as ChatML:
//
//	<|im_start|>role\ncontent<|im_end|>\n      for each message
//	<|im_start|>assistant\n                    with a generation prompt
//
// preceded by a default system message if the template has one and the conversation begins with none.
type Chat struct {
	t          *Tokenizer
	system     string // the default system message
	hasSystem  bool
	start, end int32
}

// NewChat recognises a chat template: t.ChatTemplate(), ChatML or the text of a file. The template is run on a few short
// conversations, by an evaluator of a small subset of Jinja that calls nothing and always ends; if each comes out as
// ChatML, with or without a default system message, the template is replaced by Chat. Anything else is an error of
// kind fault.Unavailable that names what is not supported.
func NewChat(t *Tokenizer, template string) (*Chat, error) {
	c := &Chat{t: t}
	for text, id := range map[string]*int32{imStart: &c.start, imEnd: &c.end} {
		var ok bool
		if *id, ok = t.Special(text); !ok {
			return nil, noChat("the tokenizer has no token %s", text)
		}
	}
	if template == "" {
		return nil, noChat("the model has no chat template").WithHint("--chat-template chatml")
	}
	run, err := compileTemplate(template)
	if err != nil {
		return nil, badTemplate(err)
	}
	if err := c.findSystem(run); err != nil {
		return nil, err
	}
	for _, messages := range probes {
		for _, prompt := range []bool{false, true} {
			got, err := c.run(run, messages, prompt)
			if err != nil {
				return nil, err
			}
			if want := c.text(messages, prompt); got != want {
				return nil, noChat("the chat template is not ChatML: it renders %q where ChatML has %q", clip(diffTail(got, want)), clip(diffTail(want, got)))
			}
		}
	}
	return c, nil
}

// probes are conversations in which templates that look like ChatML differ from it: white space around contents, empty
// contents, several turns, a late system message.
var probes = [][]Message{
	{{"user", "one"}},
	{{"user", " two \n"}, {"assistant", "\n three "}},
	{{"system", " four\n\n"}, {"user", "five"}, {"assistant", "six"}, {"user", ""}, {"assistant", ""}},
	{{"user", "a"}, {"assistant", "<think>\nb\n</think>\n\nc"}, {"user", "d"}, {"assistant", "e"}, {"assistant", "f"}},
	{{"user", "a"}, {"system", "b"}, {"user", "c"}},
	{{"system", "only"}},
	{{"assistant", "first"}, {"user", "{{ messages }} {% if %}"}},
}

// findSystem takes what a template puts before the first message as the default system message.
func (c *Chat) findSystem(run stmt) error {
	got, err := c.run(run, probes[0], false)
	if err != nil {
		return err
	}
	before, found := strings.CutSuffix(got, c.text(probes[0], false))
	if !found || before == "" {
		return nil // the comparison that follows says what is wrong, if anything
	}
	text, okHead := strings.CutPrefix(before, imStart+"system\n")
	text, okTail := strings.CutSuffix(text, imEnd+"\n")
	if start, _, _ := c.t.raw[Recognise].find(text, 0); !okHead || !okTail || start < len(text) {
		return noChat("the chat template is not ChatML: it begins with %q", clip(before))
	}
	c.system, c.hasSystem = text, true
	return nil
}

// run renders a template as transformers does.
func (c *Chat) run(run stmt, messages []Message, prompt bool) (string, error) {
	list := make([]any, len(messages))
	for i, m := range messages {
		list[i] = map[string]any{"role": m.Role, "content": m.Content}
	}
	vars := map[string]any{"messages": list, "add_generation_prompt": prompt, "tools": nil, "documents": nil}
	for name, id := range map[string]int32{"bos_token": c.t.bos, "eos_token": c.t.eos, "pad_token": c.t.pad} {
		if id != None {
			vars[name] = c.t.bytes[id]
		}
	}
	text, err := render(run, vars)
	if err != nil {
		return "", badTemplate(err)
	}
	return text, nil
}

func noChat(format string, args ...any) *fault.Error {
	return fault.New(fault.Unavailable, format, args...).WithID("E-TOK-020")
}

func badTemplate(err error) error {
	var at *jinjaError
	if errors.As(err, &at) {
		return noChat("the chat template is not supported: %s", at.msg).At("offset %d", at.offset)
	}
	return noChat("the chat template is not supported: %s", err)
}

// diffTail returns a from a little before its first difference to b.
func diffTail(a, b string) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	return strings.ToValidUTF8(a[max(i-12, 0):], "")
}

// End returns the id that ends a turn: where generation of an answer stops.
func (c *Chat) End() int32 { return c.end }

// withSystem puts the default system message before messages if they begin with none.
func (c *Chat) withSystem(messages []Message) []Message {
	if c.hasSystem && messages[0].Role != "system" {
		return append([]Message{{"system", c.system}}, messages...)
	}
	return messages
}

// text renders messages as one string.
func (c *Chat) text(messages []Message, prompt bool) string {
	var b strings.Builder
	for _, m := range c.withSystem(messages) {
		b.WriteString(imStart + m.Role + "\n" + m.Content + imEnd + "\n")
	}
	if prompt {
		b.WriteString(imStart + "assistant\n")
	}
	return b.String()
}

// Text renders messages as one string, for people to read. Encode of it is not Render: there a content cannot hold
// special tokens.
func (c *Chat) Text(messages []Message, generationPrompt bool) (string, error) {
	if err := checkMessages(messages); err != nil {
		return "", err
	}
	return c.text(messages, generationPrompt), nil
}

// Render returns the tokens of a conversation. Targets are the assistant's contents, each with its <|im_end|>; all else
// is not: the other turns, the line with the role, the line break after a turn, the generation prompt.
//
// Contents are PlainText: a "<|im_end|>" in one ends nothing. The assistant's content is encoded on its own, as
// generation meets it after the prompt, so that a content that begins with a line break has its own token for it.
// Errors are of kind fault.Invalid.
func (c *Chat) Render(messages []Message, generationPrompt bool) ([]Segment, error) {
	if err := checkMessages(messages); err != nil {
		return nil, err
	}
	e := c.t.encoders.Get().(*Encoder)
	defer c.t.encoders.Put(e)
	var out []Segment
	last := func(target bool) *Segment {
		if len(out) == 0 || out[len(out)-1].Target != target {
			out = append(out, Segment{Target: target})
		}
		return &out[len(out)-1]
	}
	begin := func(text string) {
		s := last(false)
		s.IDs = e.Append(append(s.IDs, c.start), text, PlainText)
	}
	for _, m := range c.withSystem(messages) {
		if m.Role == "assistant" {
			begin("assistant\n")
			s := last(true)
			s.IDs = append(e.Append(s.IDs, m.Content, PlainText), c.end)
		} else {
			begin(m.Role + "\n" + m.Content)
			s := last(false)
			s.IDs = append(s.IDs, c.end)
		}
		s := last(false)
		s.IDs = e.Append(s.IDs, "\n", PlainText)
	}
	if generationPrompt {
		begin("assistant\n")
	}
	return out, nil
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
