package tokenizer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/internal/strictjson"
)

// maxFile is the largest tokenizer.json that is read; those of the largest vocabularies have about 35 MB.
const maxFile = 128 << 20

// Load reads tokenizer.json of a Hugging Face folder, and beside it, where present, tokenizer_config.json (begin, end
// and padding tokens, chat template) and chat_template.jinja, which counts before the template in the former.
//
// Errors are of kind fault.NotFound, fault.IO or fault.Format and name the file and the place in it.
func Load(dir string) (*Tokenizer, error) {
	text, err := readFolder(dir)
	if err != nil {
		return nil, err
	}
	t, err := Parse(filepath.Join(dir, "tokenizer.json"), text[0], text[1])
	if err == nil && text[2] != "" {
		t.chatTemplate = text[2]
	}
	return t, err
}

// readFolder returns the texts of tokenizer.json, tokenizer_config.json and chat_template.jinja; the latter two may be
// missing.
func readFolder(dir string) (text [3]string, err error) {
	for i, name := range []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); i > 0 && errors.Is(err, os.ErrNotExist) {
			continue
		}
		path, err := readfile.Inside(dir, name)
		if err == nil {
			text[i], err = readfile.String(path, maxFile)
		}
		if err != nil {
			return text, err
		}
	}
	return text, nil
}

// Parse makes a tokenizer of the text of tokenizer.json and, unless it is empty, of the tokenizer_config.json beside it.
// path names the former in errors.
//
// Accepted is byte-level BPE with one of the known pre-token patterns and its normaliser; merges are "a b" strings or
// ["a","b"] pairs. Refused, with fault.Format, is everything that would change ids and is not done here, and everything
// in reliability's list for this file: see the package comment.
func Parse(path, tokenizerJSON, configJSON string) (*Tokenizer, error) {
	root, err := strictjson.Parse(tokenizerJSON, strictjson.Options{})
	if err != nil {
		return nil, strictjson.Fault(path, tokenizerJSON, err)
	}
	c := content{bos: None, eos: None, pad: None}
	if err := c.readTokenizer(root); err != nil {
		return nil, inFile(path, strictjson.Fault(path, tokenizerJSON, err))
	}
	if err := c.parseConfig(path, configJSON); err != nil {
		return nil, err
	}
	t, err := build(c)
	return t, inFile(path, err)
}

// parseConfig reads the text of the tokenizer_config.json beside path, if there is one.
func (c *content) parseConfig(path, text string) error {
	if text == "" {
		return nil
	}
	path = filepath.Join(filepath.Dir(path), "tokenizer_config.json")
	config, err := strictjson.Parse(text, strictjson.Options{})
	if err == nil {
		err = c.readConfig(config)
	}
	if err != nil {
		return inFile(path, strictjson.Fault(path, text, err))
	}
	return nil
}

// refuseAt is refuse with the place of v in its file.
func refuseAt(v strictjson.Value, id, format string, args ...any) *fault.Error {
	line, column := strictjson.Position(v.Source(), v.Offset())
	return fault.New(fault.Format, format, args...).At("line %d, column %d", line, column).WithID(id)
}

func (c *content) readTokenizer(root strictjson.Value) error {
	s, err := c.readFrame(root)
	if err != nil {
		return err
	}
	if err := c.readVocab(s.vocab); err != nil {
		return err
	}
	if err := c.readMerges(s.merges); err != nil {
		return err
	}
	return c.readAdded(s.added)
}

// sections are the large parts of a tokenizer.json: an object, an array, and an array or nothing.
type sections struct{ vocab, merges, added strictjson.Value }

// readFrame reads a tokenizer.json but for its sections.
func (c *content) readFrame(root strictjson.Value) (s sections, err error) {
	f := strictjson.NewFields(root)
	f.Only("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
	version := f.StrOr("version", "1.0")
	for _, key := range []string{"truncation", "padding"} {
		if f.Has(key) {
			return s, refuseAt(f.Value(key), "E-TOK-010", "%s inside a tokenizer is not supported", key).WithHint("set it to null")
		}
	}
	pre, model := f.Value("pre_tokenizer"), f.Value("model")
	if err := f.Err(); err != nil {
		return s, err
	}
	if version != "1.0" {
		return s, refuseAt(root, "E-TOK-002", "version %q is unknown; 1.0 is supported", clip(version))
	}
	if err := c.readPattern(pre); err != nil {
		return s, err
	}
	if err := c.readNormalizer(root, f.ValueOr("normalizer")); err != nil {
		return s, err
	}
	for _, key := range []string{"post_processor", "decoder"} {
		if err := readByteLevel(f.ValueOr(key), key); err != nil {
			return s, err
		}
	}
	s, err = readModel(model)
	s.added = f.ValueOr("added_tokens")
	if k := s.added.Kind(); err == nil && k != strictjson.Absent && k != strictjson.Null {
		err = s.added.Expect(strictjson.Array)
	}
	return s, err
}

// readByteLevel checks that a post-processor or decoder is ByteLevel or nothing: neither changes ids then.
func readByteLevel(v strictjson.Value, key string) error {
	if k := v.Kind(); k == strictjson.Absent || k == strictjson.Null {
		if key == "decoder" {
			return fault.New(fault.Format, "decoder is missing; ByteLevel is supported").WithID("E-TOK-010")
		}
		return nil
	}
	f := strictjson.NewFields(v)
	kind := f.Str("type")
	if err := f.Err(); err != nil {
		return err
	}
	if kind != "ByteLevel" {
		return refuseAt(v, "E-TOK-010", "%s %q is not supported; ByteLevel is", key, clip(kind))
	}
	return nil
}

// readPattern recognises the pre-tokenizer: ByteLevel with its own pattern (GPT-2), or Split by a known pattern
// followed by ByteLevel without one.
func (c *content) readPattern(v strictjson.Value) error {
	f := strictjson.NewFields(v)
	kind := f.Str("type")
	switch kind {
	case "ByteLevel":
		ownPattern, err := byteLevel(v)
		if err != nil {
			return err
		}
		if !ownPattern {
			return refuseAt(v, "E-TOK-008", "ByteLevel without a pattern before it is not supported")
		}
		c.pattern = patternNamed("gpt-2")
		return nil
	case "Sequence":
		list := f.Value("pretokenizers")
		if err := f.Err(); err != nil {
			return err
		}
		var parts []strictjson.Value
		for p := range list.Items() {
			parts = append(parts, p)
		}
		if len(parts) != 2 {
			return refuseAt(list, "E-TOK-008", "%d pre-tokenizers; Split followed by ByteLevel is supported", len(parts))
		}
		ownPattern, err := byteLevel(parts[1])
		if err != nil {
			return err
		}
		if ownPattern {
			return refuseAt(parts[1], "E-TOK-008", "a second pattern (use_regex) after Split is not supported")
		}
		return c.readSplit(parts[0])
	}
	if err := f.Err(); err != nil {
		return err
	}
	return refuseAt(v, "E-TOK-008", "pre-tokenizer %q is not supported", clip(kind)).WithHint("byte-level BPE uses ByteLevel, or Split and ByteLevel")
}

// byteLevel checks a ByteLevel pre-tokenizer and reports whether it splits by its own pattern.
func byteLevel(v strictjson.Value) (ownPattern bool, err error) {
	f := strictjson.NewFields(v)
	f.Only("type", "add_prefix_space", "trim_offsets", "use_regex")
	kind, prefix, own := f.Str("type"), f.Bool("add_prefix_space"), f.BoolOr("use_regex", true)
	f.BoolOr("trim_offsets", true)
	switch {
	case f.Err() != nil:
		return false, f.Err()
	case kind != "ByteLevel":
		return false, refuseAt(v, "E-TOK-008", "pre-tokenizer %q is not supported here; ByteLevel is", clip(kind))
	case prefix:
		return false, refuseAt(v, "E-TOK-008", "add_prefix_space is not supported")
	}
	return own, nil
}

// readSplit recognises the pattern of a Split pre-tokenizer by its text.
func (c *content) readSplit(v strictjson.Value) error {
	f := strictjson.NewFields(v)
	f.Only("type", "pattern", "behavior", "invert")
	kind, behavior, invert := f.Str("type"), f.Str("behavior"), f.BoolOr("invert", false)
	p := strictjson.NewFields(f.Value("pattern"))
	p.Only("Regex")
	regex := p.Str("Regex")
	switch {
	case f.Err() != nil:
		return f.Err()
	case kind != "Split":
		return refuseAt(v, "E-TOK-008", "pre-tokenizer %q is not supported here; Split is", clip(kind))
	case p.Err() != nil:
		return p.Err()
	case behavior != "Isolated" || invert:
		return refuseAt(v, "E-TOK-008", "Split with behavior %q, invert %t is not supported; Isolated, false is", clip(behavior), invert)
	}
	for i := range patterns {
		if patterns[i].regex == regex {
			c.pattern = &patterns[i]
			return nil
		}
	}
	return refuseAt(v, "E-TOK-008", "unknown pattern %q", clip(regex)).
		WithHint("the patterns of %s are known", strings.Join(patternNames(), ", "))
}

// readNormalizer checks that the normaliser is the one that comes with the pattern.
func (c *content) readNormalizer(root, v strictjson.Value) error {
	kind := "none"
	if k := v.Kind(); k != strictjson.Absent && k != strictjson.Null {
		f := strictjson.NewFields(v)
		kind = f.Str("type")
		if err := f.Err(); err != nil {
			return err
		}
	} else {
		v = root
	}
	want := "none"
	if c.pattern.nfc {
		want = "NFC"
	}
	if kind != want {
		return refuseAt(v, "E-TOK-009", "normalizer %q is not supported with the pattern of %s; %s is", clip(kind), c.pattern.name, want)
	}
	return nil
}

// readModel checks the model and returns its vocabulary and merges.
func readModel(v strictjson.Value) (s sections, err error) {
	f := strictjson.NewFields(v)
	if kind := f.StrOr("type", "BPE"); f.Err() == nil && kind != "BPE" {
		return s, refuseAt(v, "E-TOK-003", "model %q is not supported; BPE is", clip(kind))
	}
	f.Only("type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
		"ignore_merges", "vocab", "merges")
	unsupported := ""
	for _, key := range []string{"unk_token", "continuing_subword_prefix", "end_of_word_suffix"} {
		if f.StrOr(key, "") != "" {
			unsupported = key
		}
	}
	for _, key := range []string{"byte_fallback", "ignore_merges"} {
		if f.BoolOr(key, false) {
			unsupported = key
		}
	}
	f.BoolOr("fuse_unk", false)
	if f.FloatOr("dropout", 0) != 0 {
		unsupported = "dropout"
	}
	vocab, list := f.Value("vocab"), f.Value("merges")
	switch {
	case f.Err() != nil:
		return s, f.Err()
	case unsupported != "":
		return s, refuseAt(v, "E-TOK-003", "BPE with %s is not supported", unsupported)
	case vocab.Kind() != strictjson.Object:
		return s, vocab.Expect(strictjson.Object)
	case list.Kind() != strictjson.Array:
		return s, list.Expect(strictjson.Array)
	}
	return sections{vocab: vocab, merges: list}, nil
}

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
		unsupported := ""
		for _, key := range []string{"single_word", "lstrip", "rstrip"} {
			if f.Bool(key) {
				unsupported = key
			}
		}
		switch {
		case f.Err() != nil:
			return f.Err()
		case unsupported != "":
			return refuseAt(item, "E-TOK-007", "added token %q with %s is not supported", clip(k.text), unsupported)
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
