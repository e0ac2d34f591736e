package corpus

import (
	"context"
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
)

// chatText shows ids of byteEncoder: a conversation is, per message, < or [ (user, assistant), its content, and /.
func chatText(ids []int32) string {
	var s strings.Builder
	for _, id := range ids {
		s.WriteString(map[int32]string{256: "<", 257: "[", 258: "/", eos: "$"}[id])
		if id < 256 {
			s.WriteByte(byte(id))
		}
	}
	return s.String()
}

// TestTeacherPrompt: of each record the student's prompt, what the teacher reads in its place, and what counts.
func TestTeacherPrompt(t *testing.T) {
	opt := options
	opt.Read.TeacherPrompts = true
	text := chatText
	for _, c := range []struct{ record, ids, counts, prompt, teacher string }{
		{`{"prompt": "a", "teacher_prompt": "bcd", "completion": "xy"}`, "<a/[xy/$", "----+++-", "<a/[", "<bcd/["},
		{`{"prompt": "abc", "teacher_prompt": "d", "completion": ""}`, "<abc/[/$", "------+-", "<abc/[", "<d/["},
		{`{"prompt": "a", "teacher_prompt": "bcd"}`, "<a/[$", "-----", "<a/[", "<bcd/["},
		{`{"prompt": "a", "completion": "x", "teacher_prompt": null}`, "<a/[x/$", "----++-", "<a/[", "<a/["},
		{`{"prompt": "a", "completion": null, "teacher_prompt": "b"}`, "<a/[$", "-----", "<a/[", "<b/["},
		{`{"prompt": "a", "teacher_prompt": [{"role": "user", "content": "b"}, {"role": "assistant", "content": "c"},
			{"role": "user", "content": "d"}], "completion": "x"}`, "<a/[x/$", "----++-", "<a/[", "<b/[c/<d/["},
		{`{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
			{"role": "user", "content": "c"}], "teacher_prompt": "d",
			"completion": [{"role": "assistant", "content": "x"}]}`, "<a/[b/<c/[x/$",
			"----------++-", "<a/[b/<c/[", "<d/["},
		{`{"instruction": "a", "input": "b", "output": "x", "teacher_prompt": "c"}`, "<a\n\nb/[x/$", "-------++-",
			"<a\n\nb/[", "<c/["},
		{`{"prompt": "a", "completion": "x"}`, "<a/[x/$", "----++-", "<a/[", "<a/["},
	} {
		record := strings.ReplaceAll(c.record, "\n", " ")
		tok, _, err := Load(context.Background(), []string{put(t, "d.jsonl", []byte(record))}, byteEncoder{}, opt)
		if err != nil {
			t.Fatalf("%s: %v", record, err)
		}
		var counts strings.Builder
		for _, m := range tok.Mask {
			counts.WriteByte("-+"[m])
		}
		p, err := NewPrompts(tok, PromptOptions{SeqLen: 20})
		if err != nil {
			t.Fatalf("%s: %v", record, err)
		}
		prompt, teacher := p.At(0, 1)
		if text(tok.IDs) != c.ids || counts.String() != c.counts || p.Len() != 1 || text(prompt) != c.prompt ||
			text(teacher) != c.teacher {
			t.Errorf("%s: %q %s, %d prompts, %q and for the teacher %q", record, text(tok.IDs), &counts, p.Len(), text(prompt),
				text(teacher))
		}
		contracttest.Cases(t, 1)
	}
}

// TestPromptAlone: a prompt without a reply, as the student goes on with it. Nothing counts, also of replies within it,
// and whoever needs a reply is told which field is missing.
func TestPromptAlone(t *testing.T) {
	opt := options
	opt.Read.TeacherPrompts, opt.Read.PromptsAlone = true, true
	for _, c := range []struct{ record, prompt, lacks string }{
		{`{"prompt": "ab"}`, "<ab/[", "completion"},
		{`{"prompt": "ab", "completion": null, "teacher_prompt": null}`, "<ab/[", ""},
		{`{"instruction": "a", "input": "b"}`, "<a\n\nb/[", "output"},
		{`{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
			{"role": "user", "content": "c"}]}`, "<a/[b/<c/[", "completion"},
	} {
		record := strings.ReplaceAll(c.record, "\n", " ")
		path := []string{put(t, "d.jsonl", []byte(record))}
		for _, turns := range []Turns{AutoTurns, AllTurns} {
			opt.Turns = turns
			tok, _, err := Load(context.Background(), path, byteEncoder{}, opt)
			if err != nil {
				t.Fatalf("%s: %v", record, err)
			}
			if len(tok.Mask) != len(tok.IDs) || slices.Contains(tok.Mask, 1) {
				t.Errorf("%s: %v counts of %v", record, tok.Mask, tok.IDs)
			}
			p, err := NewPrompts(tok, PromptOptions{SeqLen: 40})
			if err != nil || p.Len() != 1 {
				t.Fatalf("%s: %v", record, err)
			}
			prompt, teacher := p.At(0, 1)
			if !slices.Equal(prompt, teacher) || chatText(prompt) != c.prompt {
				t.Errorf("%s: %q and for the teacher %q", record, chatText(prompt), chatText(teacher))
			}
			if cut := tok.longest(nil, 2); cut.ids > 0 {
				t.Errorf("%s: %d ids of the prompt are held out", record, cut.ids)
			}
			contracttest.Cases(t, 1)
		}
		_, _, err := Load(context.Background(), path, byteEncoder{}, options)
		if c.lacks != "" && (err == nil || !strings.Contains(err.Error(), `without "`+c.lacks+`"; the record has `)) {
			t.Errorf("%s: %v", record, err)
		}
	}
	opt.Turns = options.Turns
	both := put(t, "b.jsonl", []byte(`{"prompt": "a", "instruction": "b", "output": "x"}`))
	tok, _, err := Load(context.Background(), []string{both}, byteEncoder{}, opt)
	if err != nil || chatText(tok.IDs) != "<b/[x/$" {
		t.Errorf("a whole record beside a prompt: %v", err)
	}
}

// TestTeacherPromptRefused: records whose words for the teacher stand for nothing are named.
func TestTeacherPromptRefused(t *testing.T) {
	opt := options
	opt.Read.TeacherPrompts = true
	for _, c := range []struct{ record, want string }{
		{`{"prompt": "a", "teacher_prompt": ""}`, `field "teacher_prompt" is empty`},
		{`{"prompt": "a", "teacher_prompt": 7}`, `field "teacher_prompt" is a number, not a string`},
		{`{"prompt": "a", "teacher_prompt": []}`, `field "teacher_prompt" has no message`},
		{`{"prompt": "a", "teacher_prompt": "b\u0000"}`, `NUL (\u0000) in message 3`},
		{`{"prompt": 7, "teacher_prompt": "b"}`, `field "prompt" is a number, not a string`},
		{`{"teacher_prompt": "b", "completion": "c"}`, `no field "text"`},
		{`{"prompt": [{"role": "user", "content": "a"}], "teacher_prompt": "b",
			"completion": [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]}`,
			`field "completion" beside "teacher_prompt" must be one reply of the assistant, it has 2 messages`},
		{`{"text": "a", "teacher_prompt": "b"}`, `field "teacher_prompt" goes with "prompt" or "instruction"`},
		{`{"messages": [{"role": "user", "content": "a"}], "teacher_prompt": "b"}`, `goes with "prompt" or "instruction"`},
	} {
		record := strings.ReplaceAll(c.record, "\n", " ")
		_, _, err := Load(context.Background(), []string{put(t, "d.jsonl", []byte(record))}, byteEncoder{}, opt)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", record, err, c.want)
		}
		contracttest.Cases(t, 1)
	}
}

// TestTeacherPromptHeldOut: words stay with their documents when some are held out, and what a run learns from has
// another hash with other words.
func TestTeacherPromptHeldOut(t *testing.T) {
	opt := options
	opt.Read.TeacherPrompts = true
	var lines, others strings.Builder
	for c := 'a'; c <= 'z'; c++ {
		line := `{"prompt": "p` + string(c) + `", "completion": "x"`
		if c%2 == 0 {
			line += `, "teacher_prompt": "t` + string(c) + `"`
		}
		lines.WriteString(line + "}\n")
		others.WriteString(strings.Replace(line, `"t`, `"u`, 1) + "}\n")
	}
	load := func(text string) *Tokens {
		tok, _, err := Load(context.Background(), []string{put(t, "d.jsonl", []byte(text))}, byteEncoder{}, opt)
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	tok, other := load(lines.String()), load(others.String())
	if tok.ContentSHA256() == other.ContentSHA256() || tok.SHA256() != other.SHA256() {
		t.Error("other words: the hash of the documents changes, or that of the content does not")
	}
	train, held, err := tok.HoldOut(0.3)
	if err != nil || len(held.Docs) == 0 || len(train.Words) != len(train.Docs) || len(held.Words) != len(held.Docs) {
		t.Fatalf("%v, %v", held, err)
	}
	for _, part := range []*Tokens{train, held} {
		lo := int64(0)
		for i, d := range part.Docs {
			own := byteEncoder{}.AppendText(nil, "t"+string(part.IDs[lo+2]))
			if w := part.Words[i]; (w != nil) != (part.IDs[lo+2]%2 == 0) || w != nil && !slices.Equal(w.IDs[1:3], own) {
				t.Errorf("document %v has the words %v", part.IDs[lo:d.End], w)
			}
			lo = d.End
			contracttest.Cases(t, 1)
		}
	}
}

// quietEncoder is byteEncoder whose replies count without what ends them: one without words leaves no trace.
type quietEncoder struct{ byteEncoder }

func (e quietEncoder) AppendChat(ids []int32, written []uint8, messages []Message) ([]int32, []uint8, error) {
	first := len(ids)
	ids, written, err := e.byteEncoder.AppendChat(ids, written, messages)
	for i := range written[:min(len(written), len(ids)-first)] {
		if ids[first+i] == 258 {
			written[i] = 0
		}
	}
	return ids, written, err
}

// TestReplyWithoutTrace: where the template writes nothing of a reply that is not there yet, no earlier one is taken
// for it.
func TestReplyWithoutTrace(t *testing.T) {
	opt := options
	opt.Read.TeacherPrompts = true
	const asked = `{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
		{"role": "user", "content": "c"}], "teacher_prompt": [{"role": "user", "content": "d"},
		{"role": "assistant", "content": "e"}, {"role": "user", "content": "f"}]`
	for record, want := range map[string]string{
		asked + `}`: "writes no reply of the assistant",
		asked + `, "completion": [{"role": "assistant", "content": "x"}]}`: "",
	} {
		record = strings.ReplaceAll(record, "\n", " ")
		_, _, err := Load(context.Background(), []string{put(t, "d.jsonl", []byte(record))}, quietEncoder{}, opt)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", record, err, want)
		}
		contracttest.Cases(t, 1)
	}
}
