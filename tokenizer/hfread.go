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
		if i > 0 && err == nil && strings.TrimSpace(text[i]) == "" {
			err = fault.In(fault.Format, path, "is empty").WithHint("fetch it again; remove it if the model has none").WithID("E-TOK-024")
		}
		if f := (*fault.Error)(nil); i == 0 && errors.As(err, &f) && f.Kind == fault.NotFound && f.Hint == "" {
			f.Hint = missingHint(dir)
		}
		if err != nil {
			return text, err
		}
	}
	return text, nil
}

// missingHint says which file a folder without tokenizer.json lacks.
func missingHint(dir string) string {
	const take = "copy tokenizer.json and tokenizer_config.json from where the model comes from"
	for _, other := range []string{"tokenizer.model", "vocab.json", "vocab.txt", "tekken.json"} {
		if _, err := os.Lstat(filepath.Join(dir, other)); err == nil {
			return other + " is not read: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) of transformers writes " +
				"tokenizer.json, or " + take
		}
	}
	return take + "; a .gguf or .apr file has its tokenizer inside"
}

// Parse makes a tokenizer of the text of tokenizer.json and, unless it is empty, of the tokenizer_config.json beside it.
// path names the former in errors.
//
// Accepted is byte-level BPE with one of the known pre-token patterns, with NFC or without normaliser, and
// SentencePiece-BPE with byte fallback; merges are "a b" strings or ["a","b"] pairs. Refused, with fault.Format, is everything that would change ids and is not done here, and everything
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
	if err := c.around(); err != nil {
		return nil, inFile(path, err)
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
	if err := c.readAdded(s.added); err != nil {
		return err
	}
	return c.readUnknown(s.unk)
}

// sections are the large parts of a tokenizer.json: an object, an array, and an array or nothing. unk names the unknown
// token, or is nothing.
type sections struct{ vocab, merges, added, unk strictjson.Value }

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
	model := f.Value("model")
	if model.Kind() == strictjson.Object && strictjson.NewFields(model).BoolOr("byte_fallback", false) {
		c.pieces = &pieceRules{prefix: prefixNone, unk: None}
	}
	var pre strictjson.Value
	if c.pieces == nil {
		pre = f.Value("pre_tokenizer")
	}
	if err := f.Err(); err != nil {
		return s, err
	}
	if version != "1.0" {
		return s, refuseAt(root, "E-TOK-002", "version %q is unknown; 1.0 is supported", clip(version))
	}
	if s, err = c.readModel(model); err != nil {
		return s, err
	}
	if c.pieces != nil {
		err = c.readPieceParts(f)
	} else {
		err = c.readByteParts(root, pre, f)
	}
	if err == nil {
		err = c.readPostProcessor(f.ValueOr("post_processor"), false)
	}
	if err != nil {
		return s, err
	}
	s.added = f.ValueOr("added_tokens")
	if k := s.added.Kind(); k != strictjson.Absent && k != strictjson.Null {
		err = s.added.Expect(strictjson.Array)
	}
	return s, err
}

// readByteParts reads what byte-level BPE does to a text before and after its model.
func (c *content) readByteParts(root, pre strictjson.Value, f *strictjson.Fields) error {
	if err := c.readPattern(pre); err != nil {
		return err
	}
	if err := c.readNormalizer(root, f.ValueOr("normalizer")); err != nil {
		return err
	}
	v := f.ValueOr("decoder")
	if absent(v) {
		return fault.New(fault.Format, "decoder is missing; ByteLevel is supported").WithID("E-TOK-010")
	}
	kind, err := typeOf(v)
	if err == nil && kind != "ByteLevel" {
		err = refuseAt(v, "E-TOK-010", "decoder %q is not supported; ByteLevel is", clip(kind))
	}
	return err
}

// readPattern recognises the pre-tokenizer: ByteLevel with its own pattern (GPT-2), Digits before it (refact), or Split by
// a known pattern followed by ByteLevel without one.
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
		if kind, _ := typeOf(parts[0]); kind == "Digits" {
			return c.readDigits(parts, ownPattern)
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
	case !(behavior == "Isolated" && !invert || behavior == "Removed" && invert): // both keep the matches, which are all of a text
		return refuseAt(v, "E-TOK-008", "Split with behavior %q, invert %t is not supported; Isolated, false is", clip(behavior), invert)
	}
	if regex != "" {
		if c.pattern = patternOf(regex, c.ignoreMerges); c.pattern != nil {
			return nil
		}
	}
	return refuseAt(v, "E-TOK-008", "unknown pattern %q", clip(regex)).
		WithHint("the patterns of %s are known", strings.Join(patternNames(), ", "))
}

// readDigits recognises the Digits pre-tokenizer before ByteLevel with its own pattern.
func (c *content) readDigits(parts []strictjson.Value, ownPattern bool) error {
	f := strictjson.NewFields(parts[0])
	f.Only("type", "individual_digits")
	alone := f.Bool("individual_digits")
	switch {
	case f.Err() != nil:
		return f.Err()
	case !alone || !ownPattern:
		return refuseAt(parts[0], "E-TOK-008", "Digits with individual_digits %t before ByteLevel with use_regex %t is not supported; true, true is", alone, ownPattern)
	}
	c.pattern = patternNamed("refact")
	return nil
}

// readNormalizer reads the normaliser of byte-level BPE: NFC or none.
func (c *content) readNormalizer(root, v strictjson.Value) error {
	if absent(v) {
		return nil
	}
	kind, err := typeOf(v)
	if err != nil {
		return err
	}
	if kind != "NFC" {
		return refuseAt(v, "E-TOK-009", "normalizer %q is not supported; NFC and none are", clip(kind))
	}
	c.nfc = true
	return nil
}

// readModel checks the model and returns its vocabulary and merges.
func (c *content) readModel(v strictjson.Value) (s sections, err error) {
	f := strictjson.NewFields(v)
	if kind := f.StrOr("type", "BPE"); f.Err() == nil && kind != "BPE" {
		return s, refuseAt(v, "E-TOK-003", "model %q is not supported; BPE is", clip(kind))
	}
	f.Only("type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
		"ignore_merges", "vocab", "merges")
	unsupported := ""
	for _, key := range []string{"continuing_subword_prefix", "end_of_word_suffix"} {
		if f.StrOr(key, "") != "" {
			unsupported = key
		}
	}
	f.BoolOr("byte_fallback", false)
	c.ignoreMerges = f.BoolOr("ignore_merges", false)
	fuse := f.BoolOr("fuse_unk", false)
	if c.pieces != nil {
		c.pieces.fuseUnk, s.unk = fuse, f.ValueOr("unk_token")
		if c.ignoreMerges {
			unsupported = "byte_fallback and ignore_merges"
		}
	} else {
		f.StrOr("unk_token", "") // never used: every byte has a token
	}
	if f.FloatOr("dropout", 0) != 0 {
		unsupported = "dropout"
	}
	s.vocab, s.merges = f.Value("vocab"), f.Value("merges")
	switch {
	case f.Err() != nil:
		return s, f.Err()
	case unsupported != "":
		return s, refuseAt(v, "E-TOK-003", "BPE with %s is not supported", unsupported)
	case s.vocab.Kind() != strictjson.Object:
		return s, s.vocab.Expect(strictjson.Object)
	case s.merges.Kind() != strictjson.Array:
		return s, s.merges.Expect(strictjson.Array)
	}
	return s, nil
}
