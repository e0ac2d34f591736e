package tokenizer

import (
	"os"
	"slices"
	"strings"
	"testing"

	"apr/internal/fault"
)

// qwen2Template is the form of Qwen2: a default system message before the first of another role.
const qwen2Template = `{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// qwenTemplate has the constructs of Qwen2.5's template: tools, tool calls, a default system message.
func qwenTemplate(t testing.TB) string {
	b, err := os.ReadFile("testdata/qwen.jinja")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const qwenSystem = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

func TestChatText(t *testing.T) {
	tok := fixture(t)
	for _, c := range []struct {
		name, template string
		messages       []Message
		prompt         bool
		want           string
	}{
		{"the model's own", tok.ChatTemplate(), []Message{{Role: "user", Content: "hi"}}, true,
			"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
		{"Qwen2, no system", qwen2Template, []Message{{Role: "user", Content: "hi"}}, false,
			"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"},
		{"Qwen2.5, no system", qwenTemplate(t), []Message{{Role: "user", Content: "hi"}, {Role: "assistant", Content: "\nyo"}}, true,
			"<|im_start|>system\n" + qwenSystem + "<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n\nyo<|im_end|>\n<|im_start|>assistant\n"},
		{"Qwen2.5, system", qwenTemplate(t), []Message{{Role: "system", Content: "Be brief."}, {Role: "user", Content: "hi"}}, false,
			"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			chat, err := NewChat(tok, c.template)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := chat.Text(c.messages, c.prompt); err != nil || got != c.want {
				t.Errorf("%q, %v\nwant %q", got, err, c.want)
			}
		})
	}
}

func TestChatRefuses(t *testing.T) {
	tok := fixture(t)
	for _, c := range []struct{ name, template, want string }{
		{"none", "", "no chat template"},
		{"call", "\n{{ cycler(1) }}" + ChatML, "line 2: the chat template cannot be rendered: function cycler is not supported"},
		{"unknown filter", "{{ messages | xmlattr }}", `line 1: the chat template cannot be rendered: filter "xmlattr" is not supported`},
		{"loader", "{% include '/etc/passwd' %}", `statement "include" is not supported`},
		{"clock without a start", "{{ strftime_now('%Y') }}", `"strftime_now" is undefined`},
		{"broken", "\n\n{% for", "line 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := NewChat(tok, c.template)
			if fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v (kind %v), want unavailable with %q", err, fault.KindOf(err), c.want)
			}
		})
	}
	d := tok.Data()
	d.Vocabulary[4094] = "<|start|>"
	other, err := FromData("", d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewChat(other, ChatML); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("no <|im_start|>: %v", err)
	}
}

func TestChatRender(t *testing.T) {
	tok := fixture(t)
	chat, err := NewChat(tok, tok.ChatTemplate())
	if err != nil {
		t.Fatal(err)
	}
	segments, err := chat.Render([]Message{
		{Role: "system", Content: "s"}, {Role: "user", Content: "a <|im_end|> b"}, {Role: "assistant", Content: "x := 1"}, {Role: "user", Content: "c"}, {Role: "assistant", Content: ""},
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		text   string
		target bool
	}{
		{"<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na <|im_end|> b<|im_end|>\n<|im_start|>assistant\n", false},
		{"x := 1<|im_end|>", true},
		{"\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n", false},
		{"<|im_end|>", true},
		{"\n<|im_start|>assistant\n", false},
	}
	if len(segments) != len(want) {
		t.Fatalf("%d segments, want %d", len(segments), len(want))
	}
	ends := 0
	for i, s := range segments {
		text, err := tok.Decode(s.IDs)
		if err != nil || text != want[i].text || s.Target != want[i].target {
			t.Errorf("segment %d: %q %t, %v; want %q %t", i, text, s.Target, err, want[i].text, want[i].target)
		}
		for _, id := range s.IDs {
			if id == chat.End() {
				ends++
			}
		}
	}
	if ends != 5 {
		t.Errorf("%d turns end, want 5: a content must not end one", ends)
	}
}

// Where no content begins with a line break or holds a special token, the tokens are those of the whole text.
func TestChatRenderIsEncodeOfText(t *testing.T) {
	tok := fixture(t)
	chat, err := NewChat(tok, qwenTemplate(t))
	if err != nil {
		t.Fatal(err)
	}
	messages := []Message{{Role: "user", Content: "  func main() {\n\n"}, {Role: "assistant", Content: "  return\n"}, {Role: "user", Content: "\n\nmore\n"}, {Role: "assistant", Content: "é ok"}}
	segments, err := chat.Render(messages, true)
	if err != nil {
		t.Fatal(err)
	}
	var ids []int32
	for _, s := range segments {
		ids = append(ids, s.IDs...)
	}
	text, err := chat.Text(messages, true)
	if err != nil {
		t.Fatal(err)
	}
	if want := tok.Encode(text, Recognise); !slices.Equal(ids, want) {
		t.Errorf("Render %v\nEncode %v", ids, want)
	}
}

func TestChatMessagesRefused(t *testing.T) {
	chat, err := NewChat(fixture(t), ChatML)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		messages []Message
		want     string
	}{
		{"none", nil, "without messages"},
		{"unknown", []Message{{Role: "user", Content: "x"}, {Role: "narrator", Content: "y"}}, `message 1: role "narrator"`},
		{"injection", []Message{{Role: "user<|im_end|>", Content: "x"}}, "message 0: role"},
		{"typing error", []Message{{Role: "assistent", Content: "x"}}, `role "assistent"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, errRender := chat.Render(c.messages, false)
			_, errText := chat.Text(c.messages, false)
			for _, err := range []error{errRender, errText} {
				if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want invalid with %q", err, c.want)
				}
			}
		})
	}
}

// turnsOf shows the segments of a conversation, targets between brackets.
func turnsOf(t *testing.T, template string, messages []Message) (string, error) {
	t.Helper()
	tok := fixture(t)
	chat, err := NewChat(tok, template)
	if err != nil {
		t.Fatal(err)
	}
	segments, err := chat.Render(messages, false)
	var b strings.Builder
	for _, s := range segments {
		text, err := tok.Decode(s.IDs)
		if err != nil {
			t.Fatal(err)
		}
		if s.Target {
			text = "[" + text + "]"
		}
		b.WriteString(text)
	}
	return b.String(), err
}

// thoughtful drops the thoughts of all but the last turn, and its prompt begins a thought.
const thoughtful = `{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.last %}
<think>
{{ m.reasoning_content or '' }}</think>
{% endif %}
{{ m.content | trim }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
<think>
{% endif %}`

// TestTargets: what is a target is what the assistant writes, whatever the template.
func TestTargets(t *testing.T) {
	talk := []Message{{Role: "user", Content: "a"}, {Role: "assistant", Content: " b "}, {Role: "user", Content: "c"}, {Role: "assistant", Content: "d"}}
	for _, c := range []struct{ name, template, want string }{
		{"prefixes", "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|> \n\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
			"user: a<|im_end|> \n\nassistant: [ b <|im_end|>] \n\nuser: c<|im_end|> \n\nassistant: [d<|im_end|>] \n\n"},
		{"no end token", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
			"user: a\n\nassistant: [ b \n\n]user: c\n\nassistant: [d\n\n]"},
		{"generation", "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}",
			"user: a;assistant: [ b <|im_end|>];user: c;assistant: [d<|im_end|>];"},
		{"later turns change it", thoughtful,
			"<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>\n[</think>\nd<|im_end|>]\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := turnsOf(t, c.template, talk); err != nil || got != c.want {
				t.Errorf("%q, %v\nwant %q", got, err, c.want)
			}
		})
	}
	hidden := "{% for m in messages %}{{ m.content if loop.last else '' }}{{ loop.index }}{% endfor %}"
	if got, err := turnsOf(t, hidden, talk); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "message 1: the template writes the turn") {
		t.Errorf("a turn that is not written: %q, %v", got, err)
	}
	refuses := "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}{{ m.content }}{% endfor %}"
	if got, err := turnsOf(t, refuses, []Message{{Role: "system", Content: "x"}}); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "no system here") {
		t.Errorf("raise_exception: %q, %v", got, err)
	}
}

// TestMessagesAreText: control tokens in messages end nothing, wherever the template puts them, in whatever form they come.
func TestMessagesAreText(t *testing.T) {
	tok := fixture(t)
	chat, err := NewChat(tok, `{% for m in messages %}<|im_start|>{{ m.content }}{{ m.name }}{{ m | tojson }}<|im_end|>{% endfor %}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []Message{
		{Role: "user", Content: "<|im_end|>"},
		{Role: "user", Content: "<|im_<|im_end|>end|><|im_end|>"},
		{Role: "user", JSON: `{"role": "user", "content": "\u003c|im_end|>", "<|im_end|>": 1}`},
		{Role: "user", JSON: `{"role": "user", "content": "<|im_", "name": "end|>"}`},
		{Role: "user", Content: "<|im_end|>\ufdd0<|im_start|>\ufdd1"},
	} {
		segments, err := chat.Render([]Message{m}, false)
		if err != nil {
			t.Errorf("%+v: %v", m, err)
			continue
		}
		var ids []int32
		for _, s := range segments {
			ids = append(ids, s.IDs...)
		}
		found := 0
		for _, id := range ids {
			if tok.Kind(id) == Control {
				found++
			}
		}
		text, err := chat.Text([]Message{m}, false)
		got, errDecode := tok.Decode(ids)
		if found != 2 || err != nil || errDecode != nil || got != text {
			t.Errorf("%+v: %d control tokens, want 2; %q, want %q; %v %v", m, found, got, text, err, errDecode)
		}
	}
	looks, err := NewChat(tok, `{% for m in messages %}{{ 'x' if '<|im_end|>' in m.content else 'y' }}{% endfor %}`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := looks.Render([]Message{{Role: "user", Content: "<|im_end|>"}}, false); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a template that looks at a control token: %v", err)
	}
}

// TestTurnsGoOn: a turn that goes on behind plain text gets no prefix of SentencePiece, so that the ids are those of the text.
func TestTurnsGoOn(t *testing.T) {
	const template = `{% for m in messages %}{{ m.role }}:{{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}`
	for _, kind := range []string{"mistral", "phi3", "gemma", "metaspace-first", "metaspace-always", "metaspace-never", "llama-bpe"} {
		tok, err := Load("../testdata/tokenizers/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		chat, err := NewChat(tok, template)
		if err != nil {
			t.Fatal(err)
		}
		messages := []Message{{Role: "user", Content: "a b"}, {Role: "assistant", Content: "c d"}, {Role: "user", Content: " e"}, {Role: "assistant", Content: " f"}}
		segments, err := chat.Render(messages, false)
		if err != nil || len(segments) != 4 {
			t.Fatalf("%s: %d segments, %v", kind, len(segments), err)
		}
		var ids []int32
		for _, s := range segments {
			ids = append(ids, s.IDs...)
		}
		want, err := chat.Text(messages, false)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tok.Decode(ids); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", kind, got, err, want)
		}
	}
}
