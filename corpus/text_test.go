package corpus

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"apr/internal/fault"
	"apr/tokenizer"
)

// TestChatML: the assistant's contents and the token that ends them are targets, nothing else is.
func TestChatML(t *testing.T) {
	tok, err := tokenizer.Load("../testdata/models/gosrc")
	must(t, err)
	file := put(t, "template.jinja", []byte(tokenizer.ChatML))
	data := put(t, "f.jsonl", []byte(`{"messages": [{"role": "user", "content": "func <|im_end|>"}, {"role": "assistant", "content": "return"}]}`))
	special := func(s string) int32 {
		id, ok := tok.Special(s)
		if !ok {
			t.Fatalf("no token %s", s)
		}
		return id
	}
	plain := func(s string) []int32 { return tok.Encode(s, tokenizer.PlainText) }
	start, end, eos := special("<|im_start|>"), special("<|im_end|>"), special("<|endoftext|>")
	parts := []struct {
		ids  []int32
		mask uint8
	}{
		{[]int32{start}, 0}, {plain("user\nfunc <|im_end|>"), 0}, {[]int32{end}, 0}, {plain("\n"), 0},
		{[]int32{start}, 0}, {plain("assistant\n"), 0}, {plain("return"), 1}, {[]int32{end}, 1}, {plain("\n"), 0},
		{[]int32{eos}, 0},
	}
	var ids []int32
	var mask []uint8
	for _, p := range parts {
		ids = append(ids, p.ids...)
		for range p.ids {
			mask = append(mask, p.mask)
		}
	}
	for _, template := range []string{"chatml", file} {
		enc, err := ForTokenizer(tok, template)
		must(t, err)
		k, _, err := Load(context.Background(), []string{data}, enc, EncodeOptions{EOS: eos, Vocab: tok.RealIDs()})
		must(t, err)
		if !slices.Equal(k.IDs, ids) || !slices.Equal(k.Mask, mask) {
			t.Errorf("%s: ids %v mask %v, want %v mask %v", template, k.IDs, k.Mask, ids, mask)
		}
	}
	enc, err := ForTokenizer(tok, "none")
	must(t, err)
	_, _, err = Load(context.Background(), []string{data}, enc, EncodeOptions{EOS: eos, Vocab: tok.RealIDs()})
	wantError(t, err, filepath.Dir(data), "$/f.jsonl: record 1: the conversation cannot be encoded: "+
		"--chat-template: none, but the data holds conversations [E-CORPUS-073]", fault.Invalid)
	_, err = ForTokenizer(tok, filepath.Dir(file)+"/none.jinja")
	wantError(t, err, filepath.Dir(file), "$/none.jinja: file not found [E-FILE-001]", fault.NotFound)
	must(t, os.WriteFile(file, []byte("{{ open('/etc/passwd') }}"), 0o600))
	_, err = ForTokenizer(tok, file)
	wantError(t, err, filepath.Dir(file), "$/template.jinja: line 1: the chat template cannot be rendered: \"open\" is undefined [E-TOK-020]", fault.Unavailable)
	must(t, os.WriteFile(file, []byte("{% for"), 0o600))
	_, err = ForTokenizer(tok, file)
	wantError(t, err, filepath.Dir(file), "$/template.jinja: line 1: the chat template cannot be rendered: a tag without end [E-TOK-020]", fault.Unavailable)
	must(t, os.WriteFile(file, []byte("\n"), 0o600))
	_, err = ForTokenizer(tok, file)
	wantError(t, err, filepath.Dir(file), "$/template.jinja: is empty: a chat template is expected [E-CORPUS-074]", fault.Format)
	if id, err := EndOfText(tok); err != nil || id != eos {
		t.Errorf("end of text %d, %v, want %d", id, err, eos)
	}
}

// TestBegin: where the model expects a begin token, every text begins with it.
func TestBegin(t *testing.T) {
	tok, err := tokenizer.Load("../testdata/models/gosrc")
	must(t, err)
	d := tok.Data()
	d.BOS, d.AddBOS = 4094, true
	begins, err := tokenizer.FromData("begins", d)
	must(t, err)
	enc, err := ForTokenizer(begins, "none")
	must(t, err)
	data := put(t, "f.jsonl", []byte("{\"text\": \"func\"}\n{\"text\": \"return\"}\n"))
	k, _, err := Load(context.Background(), []string{data}, enc, EncodeOptions{EOS: 4093, Vocab: tok.RealIDs()})
	must(t, err)
	var want []int32
	for _, text := range []string{"func", "return"} {
		want = append(append(append(want, 4094), tok.Encode(text, tokenizer.PlainText)...), 4093)
	}
	if !slices.Equal(k.IDs, want) {
		t.Errorf("%v, want %v", k.IDs, want)
	}
	plain, err := ForTokenizer(tok, "none")
	must(t, err)
	if plain.Identity() == enc.Identity() {
		t.Error("the identity does not tell the begin token")
	}
}

// TestTemplateTime: the time is part of what decides tokens only if the template reads it.
func TestTemplateTime(t *testing.T) {
	tok, err := tokenizer.Load("../testdata/models/gosrc")
	must(t, err)
	dated := put(t, "dated.jinja", []byte("{{ strftime_now('%d %b') }}"+tokenizer.ChatML))
	day := time.Date(2026, 7, 4, 9, 5, 7, 0, time.UTC)
	ids := map[Hash]bool{}
	for _, c := range []struct {
		template string
		start    time.Time
	}{{dated, day}, {dated, day.Add(24 * time.Hour)}, {"chatml", day}, {"chatml", day.Add(time.Hour)}} {
		enc, err := ForTokenizerAt(tok, c.template, c.start)
		must(t, err)
		ids[enc.Identity()] = true
	}
	if len(ids) != 3 {
		t.Errorf("%d identities, want 3", len(ids))
	}
	enc, err := ForTokenizerAt(tok, dated, day)
	must(t, err)
	got, _, err := enc.AppendChat(nil, nil, []Message{{Role: "user", Content: "func"}})
	must(t, err)
	if text, err := tok.Decode(got); err != nil || !strings.HasPrefix(text, "04 Jul<|im_start|>user\nfunc") {
		t.Errorf("%q, %v", text, err)
	}
	_, err = ForTokenizer(tok, dated)
	wantError(t, err, filepath.Dir(dated), `$/dated.jinja: line 1: the chat template cannot be rendered: "strftime_now" is undefined [E-TOK-020]`, fault.Unavailable)
}

// TestToolCalls: what a message has beside role and content reaches the template, in its order.
func TestToolCalls(t *testing.T) {
	tok, err := tokenizer.Load("../testdata/models/gosrc")
	must(t, err)
	template := put(t, "t.jinja", []byte("{% for m in messages %}{{ m.role }}:{{ m.content }}:{{ m.tool_calls | tojson if m.tool_calls }}{{ m.reasoning_content }};{% endfor %}"))
	data := put(t, "f.jsonl", []byte(`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": [{"z": 1, "b": 2.50}]}, {"role": "tool", "content": "é", "reasoning_content": "r"}]}`))
	enc, err := ForTokenizer(tok, template)
	must(t, err)
	k, _, err := Load(context.Background(), []string{data}, enc, EncodeOptions{EOS: 4093, Vocab: tok.RealIDs()})
	must(t, err)
	want := `user:a:;assistant:None:[{"z": 1, "b": 2.5}];tool:é:r;<|endoftext|>`
	if text, err := tok.Decode(k.IDs); err != nil || text != want {
		t.Errorf("%q, %v, want %q", text, err, want)
	}
	plain := Document{Messages: []Message{{Role: "user", Content: "a"}}}
	more := Document{Messages: []Message{{Role: "user", Content: "a", JSON: "{}"}}}
	if plain.Hash() == more.Hash() {
		t.Error("the hash does not tell what a message has beside its content")
	}
}
