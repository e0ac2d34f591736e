package tokenizer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"apr/internal/readfile"
)

// Contradictions compares the tokenizer, which was read of tokenizer.json and tokenizer_config.json in dir, with the
// other files of a tokenizer that other programs read and that lie beside them: vocab.json, merges.txt,
// added_tokens.json and special_tokens_map.json. A line names the file and the first token that differs. tokenizer.json
// counts.
func (t *Tokenizer) Contradictions(dir string) (lines []string) {
	return append(t.beside(dir, "tokenizer.json"), configBeside(dir)...)
}

// beside compares the files of a tokenizer in dir other than tokenizer.json and tokenizer_config.json with what counts.
func (t *Tokenizer) beside(dir, counts string) (lines []string) {
	b := &beside{t: t, ids: map[string]int{}}
	for id, k := range t.tokens {
		if k.real() {
			b.ids[k.text] = id
		}
	}
	for _, f := range []struct {
		name    string
		compare func(text string) (string, error)
	}{
		{"vocab.json", b.vocabulary}, {"merges.txt", b.merges}, {"added_tokens.json", b.added}, {"special_tokens_map.json", b.special},
	} {
		if _, err := os.Lstat(filepath.Join(dir, f.name)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		said := ""
		path, err := readfile.Inside(dir, f.name)
		if err == nil {
			var text string
			if text, err = readfile.String(path, maxFile); err == nil {
				said, err = f.compare(text)
			}
		}
		if err != nil {
			said = "it cannot be read: " + err.Error()
		}
		if said != "" {
			lines = append(lines, fmt.Sprintf("%s: contradicts %s, which counts: %s", filepath.Join(dir, f.name), counts, said))
		}
	}
	return lines
}

// BesideAdapter compares the tokenizer, which is that of a base model, with the files of a tokenizer in the folder of
// an adapter. Nothing else is done with them: the base's counts. Lines name the file that says otherwise.
func (t *Tokenizer) BesideAdapter(dir string) (lines []string) {
	const counts = "the base's tokenizer"
	say := func(name, said string) {
		if said != "" {
			lines = append(lines, fmt.Sprintf("%s: contradicts %s, which counts: %s", filepath.Join(dir, name), counts, said))
		}
	}
	var config struct {
		Template any             `json:"chat_template"` // a text, or a list of named ones
		BOS      json.RawMessage `json:"bos_token"`
		EOS      json.RawMessage `json:"eos_token"`
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		text := ""
		path, err := readfile.Inside(dir, name)
		if err == nil {
			text, err = readfile.String(path, maxFile)
		}
		said := ""
		switch {
		case err != nil:
		case name == "tokenizer.json":
			var own *Tokenizer
			if own, err = Parse(path, text, ""); err == nil {
				if d := Compare(own, t); d != nil {
					said = fmt.Sprintf("%s %d is %q, and %q there", d.What, d.At, clip(d.A), clip(d.B))
				}
			}
		case name == "chat_template.jinja":
			said = t.otherTemplate(text)
		default:
			if err = json.Unmarshal([]byte(text), &config); err == nil {
				own, _ := config.Template.(string)
				said = t.otherTemplate(own)
				say(name, t.otherToken("bos_token", config.BOS, t.bos))
				say(name, t.otherToken("eos_token", config.EOS, t.eos))
			}
		}
		if err != nil {
			said = "it cannot be read: " + err.Error()
		}
		say(name, said)
	}
	return append(lines, t.beside(dir, counts)...)
}

// otherTemplate says that a chat template, if there is one, is not the tokenizer's.
func (t *Tokenizer) otherTemplate(text string) string {
	switch text = strings.TrimSpace(text); {
	case text == "" || text == strings.TrimSpace(t.chatTemplate):
		return ""
	case t.chatTemplate == "":
		return "it has a chat template, and there is none there"
	}
	return "its chat template is another one"
}

// otherToken says that a token that is named in a file, if it is, is not the one with the id that counts.
func (t *Tokenizer) otherToken(name string, raw json.RawMessage, counts int32) string {
	text, named := contentOf(raw)
	switch own := t.name(counts); {
	case !named:
	case own == nil:
		return fmt.Sprintf("its %s is %q, and none is there", name, text)
	case *own != text:
		return fmt.Sprintf("its %s is %q, and %q there", name, text, *own)
	}
	return ""
}

// configBeside says that a folder lost tokenizer_config.json, or that its chat template is not that of chat_template.jinja.
func configBeside(dir string) []string {
	text, err := readFolder(dir)
	if err != nil { // told where it is read
		return nil
	}
	path := filepath.Join(dir, "tokenizer_config.json")
	if text[1] == "" {
		return []string{path + ": is missing, which every published tokenizer has: without it a chat template, and what begins " +
			"and ends a text, may be lost"}
	}
	var config struct {
		Template any `json:"chat_template"` // a text, or a list of named ones
	}
	own := ""
	if json.Unmarshal([]byte(text[1]), &config) == nil {
		own, _ = config.Template.(string)
	}
	if own == "" || text[2] == "" || strings.TrimSpace(own) == strings.TrimSpace(text[2]) {
		return nil
	}
	return []string{path + ": its chat_template is another one than chat_template.jinja, which counts"}
}

// controlWord is how templates of most families write their control tokens.
var controlWord = regexp.MustCompile(`<\|[A-Za-z0-9_]+\|>`)

// ForeignTemplate says that of the control words of the chat template none is a token: it is another family's, and text
// that it makes is cut into pieces. Empty: some are, or there are none, or answers end with a token all the same, as
// Zephyr's do with </s>.
func (t *Tokenizer) ForeignTemplate() string {
	words := controlWord.FindAllString(t.chatTemplate, -1)
	if len(words) == 0 || slices.ContainsFunc(t.tokens, func(k token) bool { return k.real() && slices.Contains(words, k.text) }) {
		return ""
	}
	if chat := t.ownChat(); chat != nil && chat.End() != None && chat.lostMark() == "" {
		return ""
	}
	return fmt.Sprintf("its chat template writes %s, and none of its control words is a token: is it another family's?", words[0])
}

type beside struct {
	t   *Tokenizer
	ids map[string]int
}

// first returns the entry with the lowest id that is another one in tokenizer.json; empty: none.
func (b *beside) first(ids map[string]int) string {
	wrong, text, count := -1, "", 0
	for token, id := range ids {
		if own, ok := b.ids[token]; ok && own == id {
			continue
		}
		if count++; wrong < 0 || cmp.Or(cmp.Compare(id, wrong), cmp.Compare(token, text)) < 0 {
			wrong, text = id, token
		}
	}
	if count == 0 {
		return ""
	}
	own := "no token there"
	if id, ok := b.ids[text]; ok {
		own = fmt.Sprintf("%d there", id)
	}
	return fmt.Sprintf("%d tokens differ, the first %q, which has the id %d and is %s", count, text, wrong, own)
}

// vocabulary compares vocab.json, which need not have the added tokens.
func (b *beside) vocabulary(text string) (string, error) {
	var ids map[string]int
	if err := json.Unmarshal([]byte(text), &ids); err != nil {
		return "", err
	}
	if said := b.first(ids); said != "" {
		return said, nil
	}
	lacks, first := 0, ""
	for _, k := range b.t.tokens {
		if k.kind != Normal {
			continue
		}
		if _, ok := ids[k.text]; !ok {
			if lacks++; lacks == 1 {
				first = k.text
			}
		}
	}
	if lacks > 0 {
		return fmt.Sprintf("%d of the %d tokens are missing, the first %q", lacks, len(b.ids), first), nil
	}
	return "", nil
}

// merges compares merges.txt, of byte-level BPE.
func (b *beside) merges(text string) (string, error) {
	if b.t.pieces != nil {
		return "", nil
	}
	lines := strings.Split(strings.TrimRight(text, "\r\n"), "\n")
	if strings.HasPrefix(lines[0], "#version") {
		lines = lines[1:]
	}
	pairs := b.t.rules.pairs
	for i, line := range lines[:min(len(lines), len(pairs))] {
		if own := b.t.tokens[pairs[i][0]].text + " " + b.t.tokens[pairs[i][1]].text; strings.TrimSuffix(line, "\r") != own {
			return fmt.Sprintf("merge %d is %q, and %q there", i, line, own), nil
		}
	}
	if len(lines) != len(pairs) {
		return fmt.Sprintf("it has %d merges, and %d are there", len(lines), len(pairs)), nil
	}
	return "", nil
}

// added compares added_tokens.json.
func (b *beside) added(text string) (string, error) {
	var ids map[string]int
	if err := json.Unmarshal([]byte(text), &ids); err != nil {
		return "", err
	}
	return b.first(ids), nil
}

// special compares special_tokens_map.json: its tokens are there, and begin and end of text are those of
// tokenizer_config.json.
func (b *beside) special(text string) (string, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return "", err
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		token, ok := contentOf(all[name])
		if !ok {
			continue // a list of further tokens
		}
		id, there := b.ids[token]
		if !there {
			return fmt.Sprintf("its %s %q is no token there", name, token), nil
		}
		own := map[string]int32{"bos_token": b.t.bos, "eos_token": b.t.eos}
		if counts, compared := own[name]; compared && counts != None && int(counts) != id {
			return fmt.Sprintf("its %s is %q, and %q is the one that counts", name, token, b.t.tokens[counts].text), nil
		}
	}
	return "", nil
}

// contentOf returns the text of a token: a string, or an object with its content.
func contentOf(raw json.RawMessage) (string, bool) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, text != ""
	}
	var object struct {
		Content string `json:"content"`
	}
	err := json.Unmarshal(raw, &object)
	return object.Content, err == nil && object.Content != ""
}
