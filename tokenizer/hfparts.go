package tokenizer

import (
	"apr/internal/strictjson"
)

// absent reports whether a key is missing or null.
func absent(v strictjson.Value) bool {
	return v.Kind() == strictjson.Absent || v.Kind() == strictjson.Null
}

// typeOf returns the type of a part of a tokenizer.json.
func typeOf(v strictjson.Value) (string, error) {
	f := strictjson.NewFields(v)
	kind := f.Str("type")
	return kind, f.Err()
}

// parts returns the members of v if it is a Sequence, else v alone; none if it is absent.
func parts(v strictjson.Value, key string) ([]strictjson.Value, error) {
	if absent(v) {
		return nil, nil
	}
	kind, err := typeOf(v)
	if err != nil || kind != "Sequence" {
		return []strictjson.Value{v}, err
	}
	f := strictjson.NewFields(v)
	f.Only("type", key)
	list := f.Value(key)
	if err := f.Err(); err != nil {
		return nil, err
	}
	if err := list.Expect(strictjson.Array); err != nil {
		return nil, err
	}
	var found []strictjson.Value
	for p := range list.Items() {
		found = append(found, p)
	}
	return found, nil
}

// readPieceParts reads what SentencePiece does to a text before and after its model.
func (c *content) readPieceParts(f *strictjson.Fields) error {
	replaced, err := c.readPieceNormalizer(f.ValueOr("normalizer"))
	if err != nil {
		return err
	}
	if err := c.readPiecePreTokenizer(f.ValueOr("pre_tokenizer"), replaced); err != nil {
		return err
	}
	return c.readPieceDecoder(f.ValueOr("decoder"))
}

// readPieceNormalizer reads the normaliser: none, Replace " " by "▁", or Prepend "▁" and then Replace. It reports whether
// spaces are replaced.
func (c *content) readPieceNormalizer(v strictjson.Value) (replaced bool, err error) {
	list, err := parts(v, "normalizers")
	if err != nil {
		return false, err
	}
	for _, p := range list {
		kind, err := typeOf(p)
		if err != nil {
			return false, err
		}
		switch {
		case kind == "Prepend" && !replaced && c.pieces.prefix == prefixNone:
			f := strictjson.NewFields(p)
			f.Only("type", "prepend")
			if text := f.Str("prepend"); f.Err() == nil && text != meta {
				return false, refuseAt(p, "E-TOK-009", "normalizer Prepend of %q is not supported; %q is", clip(text), meta)
			}
			if f.Err() != nil {
				return false, f.Err()
			}
			c.pieces.prefix = prefixEach
		case kind == "Replace" && !replaced:
			if err := readReplace(p, " ", meta, "E-TOK-009"); err != nil {
				return false, err
			}
			replaced = true
		default:
			return false, refuseAt(p, "E-TOK-009", "normalizer %q is not supported here; Prepend followed by Replace is, and Replace alone", clip(kind))
		}
	}
	if !replaced && c.pieces.prefix == prefixEach {
		return false, refuseAt(v, "E-TOK-009", "normalizer Prepend without Replace is not supported")
	}
	return replaced, nil
}

// readReplace checks that a Replace puts content in the place of a text.
func readReplace(v strictjson.Value, pattern, content, id string) error {
	f := strictjson.NewFields(v)
	f.Only("type", "pattern", "content")
	with := f.Str("content")
	p := strictjson.NewFields(f.Value("pattern"))
	p.Only("String")
	text := p.Str("String")
	switch {
	case f.Err() != nil:
		return f.Err()
	case p.Err() != nil:
		return p.Err()
	case text != pattern || with != content:
		return refuseAt(v, id, "Replace of %q by %q is not supported; %q by %q is", clip(text), clip(with), pattern, content)
	}
	return nil
}

// readPiecePreTokenizer reads the pre-tokenizer. Where the normaliser replaced spaces it may be none, or cut at spaces,
// of which there are none; else it is Metaspace, which replaces them.
func (c *content) readPiecePreTokenizer(v strictjson.Value, replaced bool) error {
	list, err := parts(v, "pretokenizers")
	if err != nil {
		return err
	}
	if len(list) == 0 && replaced {
		return nil
	}
	if len(list) != 1 {
		return refuseAt(v, "E-TOK-008", "%d pre-tokenizers; Metaspace is supported, or none after a normalizer that replaces spaces", len(list))
	}
	kind, err := typeOf(list[0])
	if err != nil {
		return err
	}
	switch {
	case kind == "Split" && replaced:
		return readSpaceSplit(list[0])
	case kind == "Metaspace" && !replaced:
		return c.readMetaspace(list[0])
	}
	return refuseAt(list[0], "E-TOK-008", "pre-tokenizer %q is not supported here", clip(kind)).
		WithHint("Metaspace, or a normalizer that replaces spaces")
}

// readSpaceSplit checks a Split at spaces, which does nothing where there are none.
func readSpaceSplit(v strictjson.Value) error {
	f := strictjson.NewFields(v)
	f.Only("type", "pattern", "behavior", "invert")
	behavior, invert := f.Str("behavior"), f.BoolOr("invert", false)
	p := strictjson.NewFields(f.Value("pattern"))
	p.Only("String")
	text := p.Str("String")
	switch {
	case f.Err() != nil:
		return f.Err()
	case p.Err() != nil:
		return p.Err()
	case text != " " || invert || behavior != "MergedWithPrevious" && behavior != "MergedWithNext" && behavior != "Isolated":
		return refuseAt(v, "E-TOK-008", "Split at %q with behavior %q, invert %t is not supported; \" \", MergedWithPrevious, false is", clip(text), clip(behavior), invert)
	}
	return nil
}

// readMetaspace reads a Metaspace pre-tokenizer that does not cut.
func (c *content) readMetaspace(v strictjson.Value) error {
	f := strictjson.NewFields(v)
	f.Only("type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep")
	replacement, scheme, split := f.Str("replacement"), f.StrOr("prepend_scheme", "always"), f.BoolOr("split", true)
	f.StrOr("str_rep", "")
	prefix, ok := map[string]prefix{"always": prefixAlways, "first": prefixFirst, "never": prefixNever}[scheme]
	if add := f.BoolOr("add_prefix_space", true); !add {
		ok = ok && (prefix == prefixNever || !f.Has("prepend_scheme"))
		prefix = prefixNever
	}
	switch {
	case f.Err() != nil:
		return f.Err()
	case replacement != meta || !ok:
		return refuseAt(v, "E-TOK-008", "Metaspace with replacement %q, prepend_scheme %q is not supported", clip(replacement), clip(scheme)).
			WithHint("%q; first, always or never", meta)
	case split:
		return refuseAt(v, "E-TOK-008", "Metaspace with split is not supported; split false is")
	}
	c.pieces.prefix = prefix
	return nil
}

// readPieceDecoder reads the decoder: Replace "▁" by " ", ByteFallback, Fuse and, where one space at the begin is
// dropped, Strip.
func (c *content) readPieceDecoder(v strictjson.Value) error {
	list, err := parts(v, "decoders")
	if err != nil {
		return err
	}
	var kinds [4]string
	for i, p := range list {
		kind, err := typeOf(p)
		if err != nil {
			return err
		}
		if i < len(kinds) {
			kinds[i] = kind
		}
	}
	want := [4]string{"Replace", "ByteFallback", "Fuse", ""}
	if len(list) == 4 {
		want[3] = "Strip"
	}
	if kinds != want || len(list) < 3 || len(list) > 4 {
		return refuseAt(v, "E-TOK-010", "decoder %q is not supported; Replace, ByteFallback, Fuse and Strip are, in this order", kinds)
	}
	if err := readReplace(list[0], meta, " ", "E-TOK-010"); err != nil || len(list) == 3 {
		return err
	}
	f := strictjson.NewFields(list[3])
	f.Only("type", "content", "start", "stop")
	content, start, stop := f.Str("content"), f.Uint("start"), f.Uint("stop")
	if f.Err() != nil {
		return f.Err()
	}
	if content != " " || start != 1 || stop != 0 {
		return refuseAt(list[3], "E-TOK-010", "Strip of %q, start %d, stop %d is not supported; \" \", 1, 0 is", clip(content), start, stop)
	}
	c.pieces.strip = true
	return nil
}

// readPostProcessor reads what is put around a text: ByteLevel and nothing add no token, TemplateProcessing may add the
// begin token before and the end token behind. inside: v is a member of a Sequence.
func (c *content) readPostProcessor(v strictjson.Value, inside bool) error {
	if absent(v) {
		return nil
	}
	kind, err := typeOf(v)
	if err != nil {
		return err
	}
	switch {
	case kind == "ByteLevel":
		return nil
	case kind == "TemplateProcessing" && c.template.Kind() == strictjson.Absent:
		c.template = v
		return c.readTemplateProcessing(v)
	case kind == "Sequence" && !inside:
		list, err := parts(v, "processors")
		for _, p := range list {
			if err == nil {
				err = c.readPostProcessor(p, true)
			}
		}
		return err
	}
	return refuseAt(v, "E-TOK-010", "post_processor %q is not supported; ByteLevel and TemplateProcessing are", clip(kind))
}

// readTemplateProcessing reads the template for a single text.
func (c *content) readTemplateProcessing(v strictjson.Value) error {
	f := strictjson.NewFields(v)
	f.Only("type", "single", "pair", "special_tokens")
	single, special := f.Value("single"), f.Value("special_tokens")
	f.ValueOr("pair") // of two texts, which are not encoded here
	if f.Err() != nil {
		return f.Err()
	}
	if err := single.Expect(strictjson.Array); err != nil {
		return err
	}
	texts := 0
	for p := range single.Items() {
		piece := strictjson.NewFields(p)
		piece.Only("Sequence", "SpecialToken")
		if err := piece.Err(); err != nil {
			return err
		}
		if piece.Has("Sequence") && !piece.Has("SpecialToken") {
			texts++
			if s := strictjson.NewFields(piece.Value("Sequence")); s.Str("id") != "A" || s.Err() != nil || texts > 1 {
				return refuseAt(p, "E-TOK-010", "a template for one text has the sequence A once")
			}
			continue
		}
		token := strictjson.NewFields(piece.Value("SpecialToken"))
		name := token.Str("id")
		if piece.Err() != nil || token.Err() != nil {
			return refuseAt(p, "E-TOK-010", "a piece of a template is a Sequence or a SpecialToken")
		}
		to := &c.before
		if texts > 0 {
			to = &c.after
		}
		if *to != nil {
			return refuseAt(p, "E-TOK-010", "post_processor adds more than one token at one end of a text, which is not supported")
		}
		id, err := templateToken(special, name, p)
		if err != nil {
			return err
		}
		*to = &id
	}
	if texts != 1 {
		return refuseAt(v, "E-TOK-010", "a template for one text has the sequence A once")
	}
	return nil
}

// templateToken returns the id of a template's special token; p is the place where it is named.
func templateToken(special strictjson.Value, name string, p strictjson.Value) (int32, error) {
	if err := special.Expect(strictjson.Object); err != nil {
		return None, err
	}
	entry, ok := special.Get(name)
	if !ok {
		return None, refuseAt(p, "E-TOK-010", "special token %q of the template is not in special_tokens", clip(name))
	}
	f := strictjson.NewFields(entry)
	list := f.Value("ids")
	if f.Err() != nil {
		return None, f.Err()
	}
	ids, err := list.Uints()
	if err != nil {
		return None, err
	}
	if len(ids) != 1 || ids[0] > MaxID {
		return None, refuseAt(list, "E-TOK-010", "special token %q of the template stands for %d ids; 1 is supported", clip(name), len(ids))
	}
	return int32(ids[0]), nil
}

// around makes what the post-processor adds the begin and end token; the configuration was read.
func (c *content) around() error {
	for _, s := range []struct {
		id      *int32
		to      *int32
		add     *bool
		without bool
		name    string
	}{{c.before, &c.bos, &c.addBOS, c.withoutBOS, "bos_token"}, {c.after, &c.eos, &c.addEOS, c.withoutEOS, "eos_token"}} {
		switch {
		case s.id == nil:
			continue
		case *s.to == None:
			*s.to = *s.id
		case *s.to != *s.id:
			return refuseAt(c.template, "E-TOK-010", "post_processor adds token %d, but %s is token %d", *s.id, s.name, *s.to)
		}
		*s.add = !s.without
	}
	return nil
}
