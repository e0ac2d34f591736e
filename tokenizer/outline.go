package tokenizer

import (
	"path/filepath"
	"strings"

	"apr/format/gguf"
	"apr/internal/fault"
	"apr/internal/strictjson"
)

// Outline is what can be said of a stored tokenizer without making it: counts, names and special ids. Whether the
// vocabulary and the merges are usable shows only when it is made. Of a tokenizer that can be made, it is the same as
// that one's.
type Outline struct {
	Tokens        int // one more than the largest id that has text
	Merges        int
	PreType       string
	BOS, EOS, Pad int32 // None if there is none
	AddBOS        bool
	ChatTemplate  bool
}

// Outline describes t.
func (t *Tokenizer) Outline() Outline {
	return Outline{
		Tokens: t.RealIDs(), Merges: t.listed, PreType: t.preType(), BOS: t.bos, EOS: t.eos, Pad: t.pad,
		AddBOS: t.addBOS, ChatTemplate: t.chatTemplate != "",
	}
}

// preType names the pattern, or says that there is none.
func (t *Tokenizer) preType() string {
	if t.pieces != nil {
		return sentencePiece
	}
	return t.pattern.name
}

// preType is that of the tokenizer that c becomes.
func (c *content) preType() string {
	if c.pieces != nil {
		return sentencePiece
	}
	return c.pattern.name
}

// check refuses special ids that are not in the vocabulary.
func (o Outline) check() error {
	for _, s := range []struct {
		name string
		id   int32
	}{{"bos", o.BOS}, {"eos", o.EOS}, {"padding", o.Pad}} {
		if s.id != None && (s.id < 0 || int(s.id) >= o.Tokens) {
			return notInVocabulary(s.name, s.id, o.Tokens)
		}
	}
	return nil
}

// OutlineData describes the tokenizer that FromData would make; of its texts, only those at the end are looked at.
func OutlineData(path string, d Data) (Outline, error) {
	if d.Model == "llama" && len(d.Merges) == 0 { // how many merges the scores stand for is known when they are made
		t, err := FromData(path, d)
		if err != nil {
			return Outline{}, err
		}
		return t.Outline(), nil
	}
	o, err := d.outline(len(d.Vocabulary), func(i int) string { return d.Vocabulary[i] })
	o.Merges = len(d.Merges)
	return o, inFile(path, err)
}

// outline describes d with n tokens, whose texts are asked for where d has no types.
func (d Data) outline(n int, text func(int) string) (Outline, error) {
	c, err := d.start()
	if err != nil {
		return Outline{}, err
	}
	if err := d.checkLengths(n); err != nil {
		return Outline{}, err
	}
	for i, k := range d.TokenType {
		if err := d.checkKind(i, Kind(k)); err != nil {
			return Outline{}, err
		}
	}
	for n > 0 && (d.TokenType != nil && d.TokenType[n-1] == int(Unused) || d.TokenType == nil && text(n-1) == "") {
		n--
	}
	o := Outline{Tokens: n, PreType: c.preType(), BOS: d.BOS, EOS: d.EOS, Pad: d.Pad, AddBOS: d.AddBOS, ChatTemplate: d.ChatTemplate != ""}
	return o, o.check()
}

// OutlineGGUF describes the tokenizer in the metadata of a GGUF file; see FromGGUF.
func OutlineGGUF(path string, m *gguf.Metadata) (Outline, error) {
	r := ggufReader{m: m}
	if err := r.checkModel(path); err != nil {
		return Outline{}, err
	}
	d := r.data()
	if d.Model == "llama" && !r.has("tokenizer.ggml.merges") && r.err == nil {
		d.Vocabulary = r.strings("tokenizer.ggml.tokens")
		if r.err != nil {
			return Outline{}, r.err
		}
		return OutlineData(path, d)
	}
	tokens, merges := r.count("tokenizer.ggml.tokens"), r.count("tokenizer.ggml.merges")
	if r.err != nil {
		return Outline{}, r.err
	}
	var texts []string
	o, err := d.outline(tokens, func(i int) string {
		if texts == nil {
			texts = r.strings("tokenizer.ggml.tokens")
		}
		return texts[i]
	})
	o.Merges = merges
	return o, inFile(path, err)
}

// LoadOutline describes the tokenizer of a Hugging Face folder; see Load.
func LoadOutline(dir string) (Outline, error) {
	text, err := readFolder(dir)
	if err != nil {
		return Outline{}, err
	}
	o, err := parseOutline(filepath.Join(dir, "tokenizer.json"), text[0], text[1])
	o.ChatTemplate = o.ChatTemplate || text[2] != ""
	return o, err
}

// parseOutline describes what Parse would make.
func parseOutline(path, tokenizerJSON, configJSON string) (Outline, error) {
	root, err := strictjson.Parse(tokenizerJSON, strictjson.Options{})
	if err != nil {
		return Outline{}, strictjson.Fault(path, tokenizerJSON, err)
	}
	c := content{bos: None, eos: None, pad: None}
	o, err := c.outline(root)
	if err != nil {
		return o, inFile(path, strictjson.Fault(path, tokenizerJSON, err))
	}
	if err := c.parseConfig(path, configJSON); err != nil {
		return o, err
	}
	if err := c.around(); err != nil {
		return o, inFile(path, err)
	}
	o.BOS, o.EOS, o.Pad, o.AddBOS, o.ChatTemplate = c.bos, c.eos, c.pad, c.addBOS, c.chatTemplate != ""
	return o, inFile(path, o.check())
}

// outline counts tokens and merges, and leaves c ready for the configuration: with a search in place of tokens.
func (c *content) outline(root strictjson.Value) (Outline, error) {
	s, err := c.readFrame(root)
	if err != nil {
		return Outline{}, err
	}
	o := Outline{PreType: c.preType(), Merges: s.merges.Len()}
	added := map[string]int32{}
	take := func(v strictjson.Value) (int32, error) {
		id, err := v.Uint64()
		if err == nil && id > MaxID {
			err = refuseAt(v, "E-TOK-004", "id %d is over %d", id, MaxID)
		}
		o.Tokens = max(o.Tokens, int(id)+1)
		return int32(id), err
	}
	for v := range s.vocab.MemberValues() {
		if _, err := take(v); err != nil {
			return o, err
		}
	}
	for item := range s.added.Items() {
		f := strictjson.NewFields(item)
		text, v := f.Str("content"), f.Value("id")
		if err := f.Err(); err != nil {
			return o, err
		}
		if added[strings.Clone(text)], err = take(v); err != nil {
			return o, err
		}
	}
	c.search = func(text string) (int32, bool) {
		if id, ok := added[text]; ok {
			return id, true
		}
		v, ok := s.vocab.Get(text)
		if !ok {
			return None, false
		}
		id, err := v.Uint64()
		return int32(id), err == nil
	}
	return o, nil
}

// notInVocabulary is the fault about a special token.
func notInVocabulary(name string, id int32, tokens int) *fault.Error {
	return refuse("E-TOK-012", name+" token", "id %d is not in the vocabulary of %d tokens", id, tokens)
}
