package tokenizer

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
)

// Files beside tokenizer.json that say the same are passed in silence; of others the file and the first token are
// named.
func TestContradictions(t *testing.T) {
	const from = "../testdata/models/gosrc"
	tok, err := Load(from)
	if err != nil {
		t.Fatal(err)
	}
	vocab, data := map[string]int{}, tok.Data()
	for id, text := range data.Vocabulary {
		if tok.Kind(int32(id)) == Normal {
			vocab[text] = id
		}
	}
	text := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	other := func(change func(v map[string]int)) string {
		v := maps.Clone(vocab)
		change(v)
		return text(v)
	}
	merges := "#version: 0.2\n" + strings.Join(data.Merges, "\n") + "\n"
	at := func(id int) string { return data.Vocabulary[id] }
	end := data.Vocabulary[tok.EOS()]
	for _, tt := range []struct{ name, file, content, says string }{
		{"the same vocabulary", "vocab.json", text(vocab), ""},
		{"the same, with an added token", "vocab.json", other(func(v map[string]int) { v[end] = int(tok.EOS()) }), ""},
		{"two tokens swapped", "vocab.json", other(func(v map[string]int) { v[at(1000)], v[at(1001)] = 1001, 1000 }), "2 tokens differ, the first " + text(at(1001)) + ", which has the id 1000 and is 1001 there"},
		{"a token more", "vocab.json", other(func(v map[string]int) { v["zzzzqq"] = 4000 }), `1 tokens differ, the first "zzzzqq", which has the id 4000 and is no token there`},
		{"a token less", "vocab.json", other(func(v map[string]int) { delete(v, at(1000)) }), "1 of the 4096 tokens are missing, the first " + text(at(1000))},
		{"no JSON", "vocab.json", "{", "cannot be read"},
		{"the same merges", "merges.txt", merges, ""},
		{"the same, as Windows writes them", "merges.txt", strings.ReplaceAll(merges, "\n", "\r\n"), ""},
		{"a merge less", "merges.txt", strings.TrimSuffix(merges, data.Merges[len(data.Merges)-1]+"\n"), "merges, and"},
		{"another merge", "merges.txt", strings.Replace(merges, data.Merges[7], data.Merges[8], 1), "merge 7 is "},
		{"the same added tokens", "added_tokens.json", text(map[string]int{end: int(tok.EOS())}), ""},
		{"other added tokens", "added_tokens.json", `{"<|foo|>":4090,"` + end + `":4000}`, "2 tokens differ, the first \"" + end + "\""},
		{"the same special tokens", "special_tokens_map.json", `{"eos_token":{"content":"` + end + `","lstrip":false},"additional_special_tokens":["x"]}`, ""},
		{"another end", "special_tokens_map.json", `{"eos_token":` + text(at(300)) + `}`, "its eos_token is " + text(at(300)) + ", and "},
		{"no configuration", "tokenizer_config.json", "", "is missing, which every published tokenizer has"},
		{"another template", "chat_template.jinja", "{{ messages }}", "tokenizer_config.json: its chat_template is another one than chat_template.jinja"},
		{"a token that is none", "special_tokens_map.json", `{"pad_token":"<|nothing|>"}`, `its pad_token "<|nothing|>" is no token there`},
	} {
		contracttest.Cases(t, 1)
		dir := t.TempDir()
		for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
			b, err := os.ReadFile(filepath.Join(from, name))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if tt.content == "" {
			if err := os.Remove(filepath.Join(dir, tt.file)); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(filepath.Join(dir, tt.file), []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		got := tok.Contradictions(dir)
		if said := tt.says != ""; said != (len(got) == 1) || said && (!strings.Contains(got[0], tt.says) || !strings.Contains(got[0], tt.file)) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.says)
		}
	}
}

// A chat template of another family, or another one in each of the two files that may have it, is told.
func TestForeignTemplate(t *testing.T) {
	for template, foreign := range map[string]bool{
		"": false, "{{ messages }}": false, "<|im_start|>{{ messages }}<|im_end|>": false, "<|im_end|><|start_header_id|>": false,
		"<|start_header_id|>user<|end_header_id|>{{ messages }}<|eot_id|>": true,
	} {
		contracttest.Cases(t, 1)
		dir := t.TempDir()
		for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
			b, err := os.ReadFile(filepath.Join("../testdata/models/gosrc", name))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if template != "" {
			if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		tok, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if said := tok.ForeignTemplate(); (said != "") != foreign {
			t.Errorf("%q: %q", template, said)
		}
		said := strings.Join(tok.Contradictions(dir), "\n")
		if other := template != ""; strings.Contains(said, "another one than chat_template.jinja") != other {
			t.Errorf("%q beside tokenizer_config.json's: %q", template, said)
		}
	}
}

// zephyr is the chat template of Zephyr 7B: its control words are no tokens of Mistral's vocabulary; </s> ends turns.
const zephyr = "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + " +
	"message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + " +
	"message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + " +
	"message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n" +
	"{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"

// A template whose control words are no tokens is another family's, unless a token ends its answers.
func TestZephyrsTemplate(t *testing.T) {
	tok, err := Load("../testdata/tokenizers/mistral")
	if err != nil {
		t.Fatal(err)
	}
	for template, foreign := range map[string]bool{
		zephyr: false,
		strings.ReplaceAll(zephyr, "eos_token", "'<|end|>'"):                   true,
		strings.ReplaceAll(zephyr, "eos_token", "'<|end|>'") + "{{eos_token}}": true, // at the end of the text alone
	} {
		contracttest.Cases(t, 1)
		tok.chatTemplate = template
		if said := tok.ForeignTemplate(); (said != "") != foreign {
			t.Errorf("%q: %q", template, said)
		}
		if said := tok.UnendedTemplate(); (said != "") != foreign {
			t.Errorf("%q: %q", template, said)
		}
	}
}

// Merges that nothing needs where a whole word is looked for first, and scores of which nothing comes first, are told.
func TestMergesThatAreNotMissed(t *testing.T) {
	for kind, lose := range map[string]func(*Data){
		"llama-bpe":      func(d *Data) { d.Merges = d.Merges[:len(d.Merges)/4] },
		"mistral-scores": func(d *Data) { d.Merges = nil; clear(d.Scores) },
	} {
		contracttest.Cases(t, 1)
		tok, err := Load(filepath.Join(fixtures, kind))
		if err != nil {
			t.Fatal(err)
		}
		d := tok.Data()
		if said, err := tok.CheckMerges(); said != "" || err != nil {
			t.Errorf("%s as it is: %q, %v", kind, said, err)
		}
		lose(&d)
		if tok, err = FromData(kind, d); err != nil {
			t.Fatal(err)
		}
		if said, err := tok.CheckMerges(); said == "" || err != nil {
			t.Errorf("%s: %q, %v", kind, said, err)
		}
	}
}

// A merge that makes another token of the vocabulary than before is told, with both tokens; no fixture has one.
func TestChangedMerge(t *testing.T) {
	all, err := filepath.Glob("../testdata/tokenizers/*/tokenizer.json")
	if err != nil || len(all) < 18 {
		t.Fatalf("%q, %v", all, err)
	}
	for _, path := range append(all, "../testdata/models/gosrc/tokenizer.json") {
		contracttest.Cases(t, 1)
		tok, err := Load(filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		lost, _, _ := tok.unmade()
		if said := tok.changedMerge(lost); said != "" {
			t.Errorf("%s: %s", path, said)
		}
	}
	tok, err := Load("../testdata/models/gosrc")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, text := range tok.Data().Vocabulary {
		known[text] = true
	}
	told := 0
	for i, m := range tok.Data().Merges {
		left, right, _ := strings.Cut(m, " ")
		b := []byte(right)
		if b[len(b)-1] ^= 1; !known[string(b)] || !known[left+string(b)] {
			continue
		}
		d := tok.Data()
		d.Merges[i] = left + " " + string(b)
		changed, err := FromData("changed", d)
		if err != nil {
			continue // refused
		}
		contracttest.Cases(t, 1)
		said, err := changed.CheckMerges()
		want := fmt.Sprintf("merge %d of %q and %q makes %q, out of order, and none makes %q",
			i, left, b, left+string(b), left+right)
		if err != nil || !strings.HasPrefix(said, want) && !strings.Contains(said, "are made by none") {
			t.Errorf("%q as %q %q: %q, %v", m, left, b, said, err)
		}
		if told++; told == 8 {
			return
		}
	}
	t.Errorf("%d merges could be changed", told)
}
