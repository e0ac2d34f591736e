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
		{"the model's own", tok.ChatTemplate(), []Message{{"user", "hi"}}, true,
			"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
		{"Qwen2, no system", qwen2Template, []Message{{"user", "hi"}}, false,
			"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"},
		{"Qwen2.5, no system", qwenTemplate(t), []Message{{"user", "hi"}, {"assistant", "\nyo"}}, true,
			"<|im_start|>system\n" + qwenSystem + "<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n\nyo<|im_end|>\n<|im_start|>assistant\n"},
		{"Qwen2.5, system", qwenTemplate(t), []Message{{"system", "Be brief."}, {"user", "hi"}}, false,
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
		{"llama", "{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}", "is not ChatML"},
		{"trimmed contents", strings.ReplaceAll(ChatML, "message['content']", "message['content'] | trim"), "is not ChatML"},
		{"no line break after a turn", strings.ReplaceAll(ChatML, "'<|im_end|>' + '\\n'", "'<|im_end|>'"), "is not ChatML"},
		{"no generation prompt", strings.Split(ChatML, "{% if add")[0], "is not ChatML"},
		{"prompt always", strings.ReplaceAll(ChatML, "if add_generation_prompt", "if true"), "is not ChatML"},
		{"begin token first", "{{ '<|endoftext|>' }}" + ChatML, "it begins with"},
		{"two default messages", "{{ '<|im_start|>system\\na<|im_end|>\\n<|im_start|>user\\nb<|im_end|>\\n' }}" + ChatML, "it begins with"},
		{"thoughts removed", strings.ReplaceAll(ChatML, "message['content']", "(message.content.split('</think>') if message.role == 'assistant' else message.content)"), "split(…) is not supported"},
		{"call", "{{ cycler(1) }}" + ChatML, "cycler(…) is not supported"},
		{"broken", "{% for", "tag without end"},
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
		{"system", "s"}, {"user", "a <|im_end|> b"}, {"assistant", "x := 1"}, {"user", "c"}, {"assistant", ""},
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
	messages := []Message{{"user", "  func main() {\n\n"}, {"assistant", "  return\n"}, {"user", "\n\nmore\n"}, {"assistant", "é ok"}}
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
		{"tool", []Message{{"user", "x"}, {"tool", "y"}}, `message 1: role "tool"`},
		{"injection", []Message{{"user<|im_end|>", "x"}}, "message 0: role"},
		{"typing error", []Message{{"assistent", "x"}}, `role "assistent"`},
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
