package tokenizer

import (
	"strings"

	"apr/internal/strictjson"
)

// readVocab places the tokens at their ids.
func (c *content) readVocab(v strictjson.Value) error {
	n := v.Len()
	for text, id := range v.Members() {
		if err := c.place(id, token{text: strings.Clone(text), kind: Normal}, n); err != nil {
			return err
		}
	}
	return nil
}

// place puts a token at the id that v holds. The list grows with the ids, but only to twice the number of tokens the
// file holds (and some): an id is a claim.
func (c *content) place(v strictjson.Value, k token, tokens int) error {
	id, err := v.Uint64()
	if err != nil {
		return err
	}
	if id > MaxID || id > uint64(2*(tokens+c.count)+4096) {
		return refuseAt(v, "E-TOK-004", "id %d of token %q is beyond what %d tokens need", id, clip(k.text), tokens)
	}
	for uint64(len(c.tokens)) <= id {
		c.tokens = append(c.tokens, token{})
	}
	if old := c.tokens[id]; old.kind != 0 {
		return refuseAt(v, "E-TOK-004", "id %d belongs to two tokens, %q and %q", id, clip(old.text), clip(k.text))
	}
	c.tokens[id] = k
	c.count++
	return nil
}

// readMerges reads either form; the form of the first rule is the form of all.
func (c *content) readMerges(list strictjson.Value) error {
	c.merges = make([][2]string, 0, list.Len())
	form := strictjson.Absent
	for v := range list.Items() {
		if form == strictjson.Absent {
			form = v.Kind()
		}
		if v.Kind() != form || form != strictjson.String && form != strictjson.Array {
			return refuseAt(v, "E-TOK-006", "merge %d is %s; all merges are strings, or all are pairs", len(c.merges), v.Kind())
		}
		var parts []string
		var err error
		if form == strictjson.Array {
			parts, err = v.Strings()
		} else {
			var s string
			s, err = v.Str()
			parts = strings.Split(s, " ")
		}
		if err != nil {
			return err
		}
		if len(parts) != 2 {
			return refuseAt(v, "E-TOK-006", "merge %d has %d parts; 2 are expected", len(c.merges), len(parts))
		}
		c.merges = append(c.merges, [2]string{parts[0], parts[1]})
	}
	return nil
}

// readAdded places the added tokens or, where the vocabulary has them too, checks that both agree.
func (c *content) readAdded(v strictjson.Value) error {
	if v.Len() == 0 {
		return nil
	}
	ids := make(map[string]int, len(c.tokens))
	for id, k := range c.tokens {
		if k.kind != 0 {
			ids[k.text] = id
		}
	}
	n := v.Len()
	for item := range v.Items() {
		f := strictjson.NewFields(item)
		f.Only("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")
		k := token{text: strings.Clone(f.Str("content")), kind: UserDefined, normalized: f.Bool("normalized")}
		if f.Bool("special") {
			k.kind = Control
		}
		idValue, id := f.Value("id"), f.Uint("id")
		k.lstrip, k.rstrip = f.Bool("lstrip"), f.Bool("rstrip")
		single := f.Bool("single_word")
		switch {
		case f.Err() != nil:
			return f.Err()
		case single:
			return refuseAt(item, "E-TOK-007", "added token %q with single_word is not supported", clip(k.text))
		}
		old, known := ids[k.text]
		switch {
		case !known:
			if err := c.place(idValue, k, n); err != nil {
				return err
			}
			ids[k.text] = int(id)
		case c.tokens[old].kind != Normal:
			return refuseAt(item, "E-TOK-007", "added token %q is given twice", clip(k.text))
		case uint64(old) != id:
			return refuseAt(item, "E-TOK-007", "added token %q has id %d here and %d in the vocabulary", clip(k.text), id, old)
		default:
			c.tokens[old] = k
		}
	}
	return nil
}

// readUnknown finds the unknown token, which the vocabulary of SentencePiece has.
func (c *content) readUnknown(v strictjson.Value) error {
	if c.pieces == nil || absent(v) {
		return nil
	}
	text, err := v.Str()
	if err != nil {
		return err
	}
	id, ok := c.find(text)
	if !ok {
		return refuseAt(v, "E-TOK-012", "unknown token %q is not in the vocabulary", clip(text))
	}
	c.pieces.unk = id
	return nil
}
