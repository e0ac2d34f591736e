package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// MarshalTokenizer returns the text of a tokenizer.json that Hugging Face tokenizers and transformers load: indented,
// tokens by id, merges as pairs. Equal tokenizers give equal bytes.
func (t *Tokenizer) MarshalTokenizer() []byte {
	var b bytes.Buffer
	b.WriteString("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": ")
	writeIndented(&b, t.addedTokens(), "  ")
	var parts partsJSON
	if t.pieces != nil {
		parts = t.pieces.parts()
	} else {
		parts = t.byteParts()
	}
	for _, p := range []struct {
		key   string
		value any
	}{{"normalizer", parts.normalizer}, {"pre_tokenizer", parts.pre}, {"post_processor", t.postProcessor()}, {"decoder", parts.decoder}} {
		b.WriteString(",\n  \"" + p.key + "\": ")
		writeIndented(&b, p.value, "  ")
	}
	unk, fuse, inVocab := "null", false, func(k token) bool { return k.kind == Normal }
	if t.pieces != nil {
		fuse, inVocab = t.pieces.fuseUnk, token.real
		if t.pieces.unk != None {
			unk = quote(t.tokens[t.pieces.unk].text)
		}
	}
	fmt.Fprintf(&b, ",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": %s,\n"+
		"    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": %t,\n"+
		"    \"byte_fallback\": %t,\n    \"ignore_merges\": %t,\n    \"vocab\": {", unk, fuse, t.pieces != nil, t.whole != nil)
	separator := "\n"
	for id, k := range t.tokens {
		if inVocab(k) {
			fmt.Fprintf(&b, "%s      %s: %d", separator, quote(k.text), id)
			separator = ",\n"
		}
	}
	b.WriteString("\n    },\n    \"merges\": [")
	separator = "\n"
	for _, p := range t.rules.pairs {
		fmt.Fprintf(&b, "%s      [\n        %s,\n        %s\n      ]", separator, quote(t.tokens[p[0]].text), quote(t.tokens[p[1]].text))
		separator = ",\n"
	}
	if len(t.rules.pairs) > 0 {
		b.WriteString("\n    ")
	}
	b.WriteString("]\n  }\n}")
	return b.Bytes()
}

// MarshalConfig returns the text of a tokenizer_config.json: special tokens, chat template and, unless it is 0, the
// longest text in tokens.
func (t *Tokenizer) MarshalConfig(maxLength int) []byte {
	c := struct {
		Class     string  `json:"tokenizer_class"`
		AddBOS    bool    `json:"add_bos_token"`
		AddEOS    bool    `json:"add_eos_token,omitempty"`
		AddPrefix bool    `json:"add_prefix_space"`
		CleanUp   bool    `json:"clean_up_tokenization_spaces"`
		BOS       *string `json:"bos_token"`
		EOS       *string `json:"eos_token"`
		Pad       *string `json:"pad_token"`
		MaxLength int     `json:"model_max_length,omitempty"`
		Template  string  `json:"chat_template,omitempty"`
	}{
		Class: t.class(), AddBOS: t.addBOS, AddEOS: t.addEOS, BOS: t.name(t.bos), EOS: t.name(t.eos), Pad: t.name(t.pad),
		MaxLength: maxLength, Template: t.chatTemplate,
	}
	var b bytes.Buffer
	writeIndented(&b, c, "")
	b.WriteByte('\n')
	return b.Bytes()
}

// name returns the stored text of a special token, nil for None.
func (t *Tokenizer) name(id int32) *string {
	if id == None {
		return nil
	}
	return &t.tokens[id].text
}

type typed struct {
	Type string `json:"type"`
}

type byteLevelJSON struct {
	Type           string `json:"type"`
	AddPrefixSpace bool   `json:"add_prefix_space"`
	TrimOffsets    bool   `json:"trim_offsets"`
	UseRegex       bool   `json:"use_regex"`
}

type regexJSON struct {
	Regex string `json:"Regex"`
}

type splitJSON struct {
	Type     string    `json:"type"`
	Pattern  regexJSON `json:"pattern"`
	Behavior string    `json:"behavior"`
	Invert   bool      `json:"invert"`
}

type addedJSON struct {
	ID         int    `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// partsJSON are the parts of a tokenizer.json that do not depend on the vocabulary; nil is null.
type partsJSON struct{ normalizer, pre, decoder any }

// class returns the tokenizer_class of transformers.
func (t *Tokenizer) class() string {
	if t.pieces != nil {
		return anyClass
	}
	return t.pattern.class
}

// byteParts are those of byte-level BPE.
func (t *Tokenizer) byteParts() partsJSON {
	p := partsJSON{pre: t.pattern.preTokenizer(), decoder: byteLevelJSON{"ByteLevel", true, true, true}}
	if t.nfc {
		p.normalizer = typed{"NFC"}
	}
	return p
}

// preTokenizer is what readPattern reads.
func (p *pattern) preTokenizer() any {
	type sequence struct {
		typed
		List []any `json:"pretokenizers"`
	}
	own := byteLevelJSON{"ByteLevel", false, true, true}
	switch {
	case p.aloneDigits:
		return sequence{typed{"Sequence"}, []any{digitsJSON{"Digits", true}, own}}
	case p.regex == "":
		return own
	}
	return sequence{typed{"Sequence"}, []any{
		splitJSON{"Split", regexJSON{p.regex}, "Isolated", false},
		byteLevelJSON{"ByteLevel", false, true, false},
	}}
}

type digitsJSON struct {
	Type  string `json:"type"`
	Alone bool   `json:"individual_digits"`
}

type stringJSON struct {
	String string `json:"String"`
}

type replaceJSON struct {
	Type    string     `json:"type"`
	Pattern stringJSON `json:"pattern"`
	Content string     `json:"content"`
}

type prependJSON struct {
	Type    string `json:"type"`
	Prepend string `json:"prepend"`
}

type metaspaceJSON struct {
	Type        string `json:"type"`
	Replacement string `json:"replacement"`
	Scheme      string `json:"prepend_scheme"`
	Split       bool   `json:"split"`
}

type stripJSON struct {
	Type    string `json:"type"`
	Content string `json:"content"`
	Start   int    `json:"start"`
	Stop    int    `json:"stop"`
}

// parts is what readPieceParts reads.
func (p *pieceRules) parts() partsJSON {
	var parts partsJSON
	replace := replaceJSON{"Replace", stringJSON{" "}, meta}
	switch p.prefix {
	case prefixNone:
		parts.normalizer = replace
	case prefixEach:
		parts.normalizer = struct {
			typed
			List []any `json:"normalizers"`
		}{typed{"Sequence"}, []any{prependJSON{"Prepend", meta}, replace}}
	default:
		parts.pre = metaspaceJSON{"Metaspace", meta, string(p.prefix), false}
	}
	decoders := []any{replaceJSON{"Replace", stringJSON{meta}, " "}, typed{"ByteFallback"}, typed{"Fuse"}}
	if p.strip {
		decoders = append(decoders, stripJSON{"Strip", " ", 1, 0})
	}
	parts.decoder = struct {
		typed
		List []any `json:"decoders"`
	}{typed{"Sequence"}, decoders}
	return parts
}

// postProcessor is what readPostProcessor reads: nil if nothing is added to a text.
func (t *Tokenizer) postProcessor() any {
	type piece map[string]map[string]any
	type special struct {
		ID     string   `json:"id"`
		IDs    []int32  `json:"ids"`
		Tokens []string `json:"tokens"`
	}
	var single, pair []piece
	tokens := map[string]special{}
	add := func(id int32) {
		text := t.tokens[id].text
		tokens[text] = special{text, []int32{id}, []string{text}}
		p := piece{"SpecialToken": {"id": text, "type_id": 0}}
		single, pair = append(single, p), append(pair, p)
	}
	bos, eos := t.addBOS && t.bos != None, t.addEOS && t.eos != None
	if !bos && !eos {
		return nil
	}
	if bos {
		add(t.bos)
	}
	single = append(single, piece{"Sequence": {"id": "A", "type_id": 0}})
	pair = append(pair, piece{"Sequence": {"id": "A", "type_id": 0}})
	if eos {
		add(t.eos)
	}
	return struct {
		typed
		Single  []piece            `json:"single"`
		Pair    []piece            `json:"pair"`
		Special map[string]special `json:"special_tokens"`
	}{typed{"TemplateProcessing"}, single, append(pair, piece{"Sequence": {"id": "B", "type_id": 1}}), tokens}
}

func (t *Tokenizer) addedTokens() []addedJSON {
	list := []addedJSON{}
	for id, k := range t.tokens {
		if k.kind == Control || k.kind == UserDefined {
			list = append(list, addedJSON{ID: id, Content: k.text, LStrip: k.lstrip, RStrip: k.rstrip, Normalized: k.normalized, Special: k.kind == Control})
		}
	}
	return list
}

// writeIndented writes v as JSON inside an object indented by prefix. v holds nothing that cannot be written.
func writeIndented(b *bytes.Buffer, v any, prefix string) {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	e.SetIndent(prefix, "  ")
	if err := e.Encode(v); err != nil {
		panic("tokenizer: " + err.Error())
	}
	b.Truncate(b.Len() - 1) // the encoder's line feed
}

// quote returns s as a JSON string without HTML escapes.
func quote(s string) string {
	var b bytes.Buffer
	writeIndented(&b, s, "")
	return b.String()
}
