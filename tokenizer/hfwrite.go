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
	b.WriteString(",\n  \"normalizer\": ")
	if t.nfc {
		writeIndented(&b, typed{"NFC"}, "  ")
	} else {
		b.WriteString("null")
	}
	b.WriteString(",\n  \"pre_tokenizer\": ")
	writeIndented(&b, t.pattern.preTokenizer(), "  ")
	b.WriteString(",\n  \"post_processor\": null,\n  \"decoder\": ")
	writeIndented(&b, byteLevelJSON{"ByteLevel", true, true, true}, "  ")
	b.WriteString(",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n" +
		"    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n" +
		"    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": {")
	separator := "\n"
	for id, k := range t.tokens {
		if k.kind == Normal {
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
		AddPrefix bool    `json:"add_prefix_space"`
		CleanUp   bool    `json:"clean_up_tokenization_spaces"`
		BOS       *string `json:"bos_token"`
		EOS       *string `json:"eos_token"`
		Pad       *string `json:"pad_token"`
		MaxLength int     `json:"model_max_length,omitempty"`
		Template  string  `json:"chat_template,omitempty"`
	}{
		Class: t.pattern.class, AddBOS: t.addBOS, BOS: t.name(t.bos), EOS: t.name(t.eos), Pad: t.name(t.pad),
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

// preTokenizer is what readPattern reads.
func (p *pattern) preTokenizer() any {
	if p.regex == "" {
		return byteLevelJSON{"ByteLevel", false, true, true}
	}
	return struct {
		typed
		List []any `json:"pretokenizers"`
	}{typed{"Sequence"}, []any{
		splitJSON{"Split", regexJSON{p.regex}, "Isolated", false},
		byteLevelJSON{"ByteLevel", false, true, false},
	}}
}

func (t *Tokenizer) addedTokens() []addedJSON {
	list := []addedJSON{}
	for id, k := range t.tokens {
		if k.kind == Control || k.kind == UserDefined {
			list = append(list, addedJSON{ID: id, Content: k.text, Normalized: k.normalized, Special: k.kind == Control})
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
