package tokenizer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The flat form says most of a tokenizer by its model and pre_type. What they do not say is a list of settings,
// "name=value", where value is true or false, a word, or ids with commas between:
//
//	nfc, ignore_merges          of byte-level BPE; unset: what pre_type stands for
//	prefix, strip, fuse_unk     of SentencePiece; see pieceRules
//	unknown                     the id of the unknown token of SentencePiece
//	add_eos                     EOS goes behind a text
//	ends                        further ids that end a turn
//	lstrip, rstrip, normalized  added tokens of this kind
//	userdefined                 added tokens that are listed as normal ones, since merges make them
const settingsPlace = "settings"

// settings returns the settings of t that its model and pre_type do not say.
func (t *Tokenizer) settings() []string {
	var list []string
	flag := func(name string, on, usual bool) {
		if on != usual {
			list = append(list, fmt.Sprintf("%s=%t", name, on))
		}
	}
	ids := func(name string, has func(k token) bool) {
		var found []string
		for id, k := range t.tokens {
			if k.real() && has(k) {
				found = append(found, strconv.Itoa(id))
			}
		}
		if found != nil {
			list = append(list, name+"="+strings.Join(found, ","))
		}
	}
	if p := t.pieces; p != nil {
		list = append(list, "prefix="+string(p.prefix))
		flag("strip", p.strip, p.prefix.inFront())
		flag("fuse_unk", p.fuseUnk, true)
		if p.unk != None {
			list = append(list, fmt.Sprintf("unknown=%d", p.unk))
		}
	} else {
		flag("nfc", t.nfc, t.pattern.nfc)
		flag("ignore_merges", t.whole != nil, t.pattern.ignoreMerges)
	}
	flag("add_eos", t.addEOS, false)
	if len(t.ends) > 0 {
		list = append(list, "ends="+joinIDs(t.ends))
	}
	ids("lstrip", func(k token) bool { return k.lstrip })
	ids("rstrip", func(k token) bool { return k.rstrip })
	ids("normalized", func(k token) bool { return k.normalized })
	ids("userdefined", t.listedNormal)
	return list
}

// inFront reports whether a meta symbol is put in front.
func (p prefix) inFront() bool { return p == prefixEach || p == prefixAlways || p == prefixFirst }

// listedNormal reports whether a user-defined token is a normal one in the flat form: llama.cpp writes such tokens as they
// are stored, with ▁ in place of spaces.
func (t *Tokenizer) listedNormal(k token) bool {
	return t.pieces != nil && k.kind == UserDefined && strings.Contains(k.text, meta)
}

func joinIDs(ids []int32) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = strconv.Itoa(int(id))
	}
	return strings.Join(texts, ",")
}

// apply reads the settings into c, whose tokens are there.
func (c *content) apply(list []string) error {
	seen := map[string]bool{}
	for _, s := range list {
		name, value, _ := strings.Cut(s, "=")
		if seen[name] {
			return refuse("E-TOK-017", settingsPlace, "%q is given twice", clip(name))
		}
		seen[name] = true
		if err := c.applyOne(name, value); err != nil {
			return err
		}
	}
	if c.pieces != nil && !seen["strip"] {
		c.pieces.strip = c.pieces.prefix.inFront()
	}
	return nil
}

func (c *content) applyOne(name, value string) error {
	flags := map[string]*bool{"add_eos": &c.addEOS}
	if c.pieces != nil {
		flags["strip"], flags["fuse_unk"] = &c.pieces.strip, &c.pieces.fuseUnk
	} else {
		flags["nfc"], flags["ignore_merges"] = &c.nfc, &c.ignoreMerges
	}
	bad := func() error {
		return refuse("E-TOK-017", settingsPlace, "%s: %q is not possible", name, clip(value))
	}
	if to, ok := flags[name]; ok {
		if value != "true" && value != "false" {
			return bad()
		}
		*to = value == "true"
		return nil
	}
	if name == "prefix" && c.pieces != nil {
		c.pieces.prefix = prefix(value)
		if !slices.Contains([]prefix{prefixNone, prefixEach, prefixAlways, prefixFirst, prefixNever}, c.pieces.prefix) {
			return bad()
		}
		return nil
	}
	single := name == "unknown" && c.pieces != nil
	mark, ok := map[string]func(*token) bool{
		"lstrip":      func(k *token) bool { k.lstrip = true; return k.added() },
		"rstrip":      func(k *token) bool { k.rstrip = true; return k.added() },
		"normalized":  func(k *token) bool { k.normalized = true; return k.added() },
		"userdefined": func(k *token) bool { was := k.kind; k.kind = UserDefined; return c.pieces != nil && was == Normal },
	}[name]
	if !ok && !single && name != "ends" {
		return refuse("E-TOK-017", settingsPlace, "unknown setting %q", clip(name))
	}
	ids, ok := parseIDList(value, len(c.tokens))
	switch {
	case !ok || single && len(ids) != 1:
		return bad()
	case single:
		c.pieces.unk = ids[0]
		return nil
	case name == "ends":
		c.ends = ids
		return nil
	}
	for _, id := range ids {
		if !mark(&c.tokens[id]) {
			return bad()
		}
	}
	return nil
}

// added reports whether the token is literal text that is looked for.
func (k token) added() bool { return k.kind == Control || k.kind == UserDefined }

// parseIDList reads ids with commas between, each below n.
func parseIDList(s string, n int) ([]int32, bool) {
	var ids []int32
	for text := range strings.SplitSeq(s, ",") {
		id, err := strconv.ParseUint(text, 10, 31)
		if err != nil || id >= uint64(n) {
			return nil, false
		}
		ids = append(ids, int32(id))
	}
	return ids, true
}
