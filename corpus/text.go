package corpus

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/tokenizer"
)

// TextEncoder is the Encoder of a tokenizer. Texts and contents are plain text: what looks like a special token in
// them is text.
type TextEncoder struct {
	t        *tokenizer.Tokenizer
	chat     *tokenizer.Chat
	template string       // of chat
	start    time.Time    // what strftime_now of the template reads
	noChat   *fault.Error // why chat is nil
}

// Identity implements IdentifiedEncoder: SHA-256 over the length of the tokenizer's tokenizer.json (little-endian u64), this
// text, and that of the chat template; behind it the time, as RFC 3339, if the template reads it.
func (e *TextEncoder) Identity() Hash {
	text := e.t.MarshalTokenizer()
	h := sha256.New()
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(text))))
	h.Write(text)
	h.Write([]byte(e.template))
	if e.ReadsClock() {
		h.Write([]byte(e.start.Format(time.RFC3339)))
	}
	return Hash(h.Sum(nil))
}

// End returns the id that ends a turn of a conversation, tokenizer.None where there is no chat template.
func (e *TextEncoder) End() int32 {
	if e.chat == nil {
		return tokenizer.None
	}
	return e.chat.End()
}

// Unended says that the chat template ends an answer with text that is no special token; "": it does not.
func (e *TextEncoder) Unended() string {
	if e.chat == nil {
		return ""
	}
	return e.chat.Unended()
}

// ReadsClock reports whether the chat template depends on the time.
func (e *TextEncoder) ReadsClock() bool { return e.chat != nil && e.chat.ReadsClock() }

// maxTemplate bounds the file of a chat template.
const maxTemplate = 1 << 20

// ForTokenizer returns the Encoder of t. template says how conversations are written: auto (or "") by the model's own
// chat template, chatml by plain ChatML, none not at all, and anything else is the path of a template. Conversations
// are refused one by one where there is no template, or the model's own is not supported, so that texts do not suffer.
func ForTokenizer(t *tokenizer.Tokenizer, template string) (*TextEncoder, error) {
	return ForTokenizerAt(t, template, time.Time{})
}

// ForTokenizerAt is ForTokenizer with the time that a template's strftime_now reads, the start of a run. For the zero time
// there is no strftime_now.
func ForTokenizerAt(t *tokenizer.Tokenizer, template string, start time.Time) (*TextEncoder, error) {
	e := &TextEncoder{t: t, start: start}
	if template == "none" {
		e.noChat = fault.In(fault.Invalid, "--chat-template", "none, but the data holds conversations").WithHint("--chat-template auto").WithID("E-CORPUS-073")
		return e, nil
	}
	var err error
	e.chat, e.template, err = Chat(t, template, start)
	if err != nil && (template == "auto" || template == "") {
		e.noChat = fault.New(fault.Invalid, "no usable chat template").Because(err).WithHint("--chat-template chatml").WithID("E-CORPUS-072")
		return e, nil
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Chat returns how conversations are written, and the text of the template that says so: the model's own for auto (or ""),
// plain ChatML for chatml, else that of a file, which errors name. start is what the template's strftime_now reads.
func Chat(t *tokenizer.Tokenizer, name string, start time.Time) (chat *tokenizer.Chat, template string, err error) {
	switch name {
	case "auto", "":
		template = t.ChatTemplate()
	case "chatml":
		template = tokenizer.ChatML
	default:
		return chatOfFile(t, name, start)
	}
	chat, err = tokenizer.NewChatAt(t, template, start)
	return chat, template, err
}

func chatOfFile(t *tokenizer.Tokenizer, path string, start time.Time) (chat *tokenizer.Chat, template string, err error) {
	var f *fault.Error
	template, err = readfile.String(path, maxTemplate)
	if errors.As(err, &f) && f.Kind == fault.NotFound {
		return nil, "", f.WithHint("--chat-template is auto, chatml or the path of a file")
	}
	if err != nil {
		return nil, "", err
	}
	template = strings.TrimPrefix(template, "\ufeff") // a byte order mark
	if strings.TrimSpace(template) == "" {
		return nil, "", fault.In(fault.Format, path, "is empty: a chat template is expected").WithHint("--chat-template chatml").WithID("E-CORPUS-074")
	}
	chat, err = tokenizer.NewChatAt(t, template, start)
	if errors.As(err, &f) {
		f.Path = path
		return nil, "", f
	}
	return chat, template, err
}

// EndOfText returns the id to put behind each document: <|endoftext|>, which the tokenizer of a chat model has beside
// the token that ends its turns, or the tokenizer's end token if there is no such token. Without either it is a
// fault of kind Load.
func EndOfText(t *tokenizer.Tokenizer) (int32, error) {
	if id, ok := t.Special("<|endoftext|>"); ok {
		return id, nil
	}
	if t.EOS() == tokenizer.None {
		return 0, fault.New(fault.Load, "the tokenizer has no end-of-text token").WithID("E-CORPUS-071")
	}
	return t.EOS(), nil
}

// AppendText implements Encoder. Where the model expects its begin token before a text, it goes before each.
func (e *TextEncoder) AppendText(ids []int32, text string) []int32 {
	return e.t.Append(e.t.Begin(ids), text, tokenizer.PlainText)
}

// AppendChat implements Encoder: what the chat template calls targets is what the assistant wrote.
func (e *TextEncoder) AppendChat(ids []int32, written []uint8, messages []Message) ([]int32, []uint8, error) {
	if e.chat == nil {
		return nil, nil, e.noChat
	}
	turns := make([]tokenizer.Message, len(messages))
	for i, m := range messages {
		turns[i] = tokenizer.Message(m)
	}
	segments, err := e.chat.Render(turns, false)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range segments {
		var by uint8
		if s.Target {
			by = 1
		}
		ids = append(ids, s.IDs...)
		for range s.IDs {
			written = append(written, by)
		}
	}
	return ids, written, nil
}
