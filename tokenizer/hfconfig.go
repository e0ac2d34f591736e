package tokenizer

import (
	"slices"
	"strconv"
	"strings"

	"apr/internal/strictjson"
)

// readConfig takes begin, end and padding token and the chat template of a tokenizer_config.json. Other keys do not
// change ids, except for added_tokens_decoder, which has to agree.
func (c *content) readConfig(v strictjson.Value) error {
	f := strictjson.NewFields(v)
	c.addBOS, c.addEOS = f.BoolOr("add_bos_token", false), f.BoolOr("add_eos_token", false)
	if slices.Contains(ownProcessor, strings.TrimSuffix(f.StrOr("tokenizer_class", ""), "Fast")) {
		c.withoutBOS, c.withoutEOS = f.Has("add_bos_token") && !c.addBOS, f.Has("add_eos_token") && !c.addEOS
	}
	template := f.ValueOr("chat_template")
	decoder := f.ValueOr("added_tokens_decoder")
	if err := f.Err(); err != nil {
		return err
	}
	for key, id := range map[string]*int32{"bos_token": &c.bos, "eos_token": &c.eos, "pad_token": &c.pad} {
		if err := c.namedToken(f.ValueOr(key), id); err != nil {
			return err
		}
	}
	for key, k := range decoder.Members() {
		text, err := tokenText(k)
		if err != nil {
			return err
		}
		id, err := strconv.Atoi(key)
		if err != nil || !c.has(id, text) {
			return refuseAt(k, "E-TOK-016", "added token %q with id %q is not in tokenizer.json", clip(text), clip(key))
		}
	}
	return c.readTemplate(template)
}

// ownProcessor are the classes of transformers 4 that make a post-processor of add_bos_token and add_eos_token, in place of the
// one in tokenizer.json. Others leave it as it is.
var ownProcessor = []string{"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer"}

// namedToken sets id to the id of the token that v names: a string, or an object with a content. Null names none.
func (c *content) namedToken(v strictjson.Value, id *int32) error {
	if k := v.Kind(); k == strictjson.Absent || k == strictjson.Null {
		return nil
	}
	text, err := tokenText(v)
	if err != nil {
		return err
	}
	found, ok := c.find(text)
	if !ok {
		return refuseAt(v, "E-TOK-012", "token %q is not in the vocabulary", clip(text))
	}
	*id = found
	return nil
}

// find returns the id of a token's stored text.
func (c *content) find(text string) (int32, bool) {
	if c.search != nil {
		return c.search(text)
	}
	for i, k := range c.tokens {
		if k.text == text && k.real() {
			return int32(i), true
		}
	}
	return None, false
}

// has reports whether the token id has this stored text.
func (c *content) has(id int, text string) bool {
	if c.search != nil {
		found, ok := c.search(text)
		return ok && int(found) == id
	}
	return id >= 0 && id < len(c.tokens) && c.tokens[id].text == text
}

func tokenText(v strictjson.Value) (string, error) {
	if v.Kind() == strictjson.Object {
		f := strictjson.NewFields(v)
		text := f.Str("content")
		return text, f.Err()
	}
	return v.Str()
}

// readTemplate takes the chat template: a string, or the one named default of a list of {name, template}.
func (c *content) readTemplate(v strictjson.Value) (err error) {
	switch v.Kind() {
	case strictjson.Absent, strictjson.Null:
		return nil
	case strictjson.Array:
		for item := range v.Items() {
			f := strictjson.NewFields(item)
			name, text := f.Str("name"), f.Str("template")
			if f.Err() != nil {
				return f.Err()
			}
			if name == "default" {
				c.chatTemplate = text
			}
		}
		return nil
	}
	c.chatTemplate, err = v.Str()
	return err
}
