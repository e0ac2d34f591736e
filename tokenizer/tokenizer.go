package tokenizer

import (
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"apr/internal/fault"
	"apr/internal/strictjson"
)

// Kind says what a token is; the values are those of tokenizer.token_type.
type Kind int

// The kinds of tokens.
const (
	Normal      Kind = 1 // text in byte-level form, made by merges
	Unknown     Kind = 2 // treated as Control
	Control     Kind = 3 // special token: literal text, recognised only where special tokens are
	UserDefined Kind = 4 // added token that is not special: literal text, always recognised
	Unused      Kind = 5 // padding of the vocabulary: no text, not a real id
	Byte        Kind = 6 // <0x00> to <0xFF> of a SentencePiece vocabulary: one byte
)

// Limits on what a file may claim.
const (
	MaxID        = 1<<22 - 1 // largest token id
	maxAddedText = 256       // bytes of an added token
)

// A token is one id of the vocabulary.
type token struct {
	text       string // as stored: byte-level form for Normal, literal otherwise
	kind       Kind   // 0: the id has no token
	normalized bool   // an added token that is looked for after normalisation

	lstrip, rstrip bool // an added token that takes the white space before it, after it
}

// Tokenizer turns text into ids and back. It does not change after it is made and is safe for concurrent use.
type Tokenizer struct {
	tokens  []token
	bytes   []string // what each id stands for
	byteID  [256]int32
	rules   merges
	listed  int      // merges that the stored form lists
	pattern *pattern // nil for SentencePiece
	classes classes
	nfc     bool
	whole   map[string]int32 // ignore_merges: the id of a whole pre-token, by its bytes; else nil
	pieces  *pieces          // nil for byte-level BPE

	special map[string]int32 // control and user-defined tokens by text
	raw     [2]*addedSet     // looked for in the text as it is, by Mode
	cooked  [2]*addedSet     // looked for after normalisation, by Mode

	bos, eos, pad  int32
	ends           []int32
	addBOS, addEOS bool
	chatTemplate   string

	encoders sync.Pool
}

// content is what every stored form says about a tokenizer.
type content struct {
	tokens        []token
	count         int // tokens placed so far, while a file is read
	merges        [][2]string
	pattern       *pattern
	nfc           bool
	ignoreMerges  bool
	pieces        *pieceRules
	bos, eos, pad int32
	ends          []int32
	addBOS        bool
	addEOS        bool
	chatTemplate  string

	template      strictjson.Value // the post-processor's template, while a file is read
	before, after *int32           // what it adds

	withoutBOS, withoutEOS bool // tokenizer_config.json says that it does not

	// search, if not nil, finds the id of a text in place of tokens, which are not read then.
	search func(text string) (int32, bool)
}

// build makes a tokenizer of c or says what contradicts what.
func build(c content) (*Tokenizer, error) {
	t := &Tokenizer{
		tokens: c.tokens, bytes: make([]string, len(c.tokens)), pattern: c.pattern, nfc: c.nfc,
		bos: c.bos, eos: c.eos, pad: c.pad, ends: c.ends, addBOS: c.addBOS, addEOS: c.addEOS, chatTemplate: c.chatTemplate,
		special: make(map[string]int32),
	}
	if c.pieces != nil {
		t.pieces = &pieces{pieceRules: *c.pieces, chars: make(map[rune]int32)}
	} else {
		t.classes = c.pattern.classes()
	}
	for len(t.tokens) > 0 && !t.tokens[len(t.tokens)-1].real() {
		t.tokens = t.tokens[:len(t.tokens)-1]
	}
	normal, err := t.index()
	if err != nil {
		return nil, err
	}
	if t.pieces != nil {
		err = t.buildPieces(c, normal)
	} else {
		err = t.buildBytes(c, normal)
	}
	if err != nil {
		return nil, err
	}
	named := []specialID{{"bos", t.bos}, {"eos", t.eos}, {"padding", t.pad}}
	for _, id := range t.ends {
		named = append(named, specialID{"end", id})
	}
	for _, s := range named {
		if s.id != None && !t.has(s.id) {
			return nil, notInVocabulary(s.name, s.id, len(t.tokens))
		}
	}
	t.encoders.New = func() any { return t.NewEncoder() }
	return t, nil
}

// specialID is a token that has a name.
type specialID struct {
	name string
	id   int32
}

// buildBytes fills what byte-level BPE needs.
func (t *Tokenizer) buildBytes(c content, normal map[string]int32) error {
	for b := range 256 {
		id, ok := normal[byteText[b]]
		if !ok {
			return refuse("E-TOK-011", "vocabulary", "no token for the byte 0x%02X (%q)", b, byteText[b]).
				WithHint("a byte-level vocabulary has a token for each of the 256 bytes")
		}
		t.byteID[b] = id
	}
	if c.ignoreMerges {
		t.whole = make(map[string]int32, len(normal))
		for text, id := range normal {
			if raw, ok := fromByteText(text); ok {
				t.whole[raw] = id
			}
		}
	}
	t.listed = len(c.merges)
	return t.rules.add(c.merges, normal, "Ġ")
}

// real reports whether the token has text of its own.
func (k token) real() bool { return k.kind != 0 && k.kind != Unused }

// index fills bytes and the sets of added tokens and returns the normal tokens by their stored text.
func (t *Tokenizer) index() (map[string]int32, error) {
	normal := make(map[string]int32, len(t.tokens))
	var raw, cooked [2]map[string]int32
	for m := range raw {
		raw[m], cooked[m] = make(map[string]int32), make(map[string]int32)
	}
	for i, k := range t.tokens {
		id := int32(i)
		if !k.real() {
			continue
		}
		if !utf8.ValidString(k.text) {
			return nil, refuse("E-TOK-004", "vocabulary", "token %d is %q, which is not UTF-8", id, clip(k.text))
		}
		first, twice := t.special[k.text]
		if !twice {
			first, twice = normal[k.text]
		}
		if twice {
			return nil, refuse("E-TOK-005", "vocabulary", "token %q has two ids, %d and %d", clip(k.text), first, id)
		}
		if k.kind == Normal || k.kind == Byte {
			normal[k.text] = id
			t.bytes[id] = t.decoded(k.text)
			continue
		}
		if k.text == "" || len(k.text) > maxAddedText {
			return nil, refuse("E-TOK-007", "added token", "id %d has %d bytes of text; 1 to %d are possible", id, len(k.text), maxAddedText)
		}
		t.special[k.text] = id
		t.bytes[id] = k.text
		if t.pieces != nil {
			t.bytes[id] = t.decoded(k.text)
		}
		into, text := &raw, k.text
		if k.normalized && t.normalises() {
			into, text = &cooked, t.normalise(k.text)
		}
		into[Recognise][text] = id
		if k.kind == UserDefined {
			into[PlainText][text] = id
		}
	}
	for m := range raw {
		t.raw[m], t.cooked[m] = newAddedSet(raw[m]), newAddedSet(cooked[m])
	}
	return normal, nil
}

// decoded returns the bytes that the stored text of a token stands for.
func (t *Tokenizer) decoded(text string) string {
	if t.pieces != nil {
		return pieceBytes(text)
	}
	if raw, ok := fromByteText(text); ok {
		return raw
	}
	return text
}

// normalises reports whether normalise changes any text.
func (t *Tokenizer) normalises() bool {
	return t.nfc || t.pieces != nil && t.pieces.normalises()
}

// normalise is what happens to a text between added tokens.
func (t *Tokenizer) normalise(s string) string {
	if t.nfc {
		return NFC(s)
	}
	if t.pieces != nil && t.pieces.normalises() {
		return t.pieces.normalise(s)
	}
	return s
}

// add stores the rules in rank order. Both parts and the result of each are normal tokens; blank is a space in their text.
func (m *merges) add(list [][2]string, normal map[string]int32, blank string) error {
	m.rank = make(map[uint64]uint32, len(list))
	m.pairs, m.result = make([][2]int32, len(list)), make([]int32, len(list))
	for rank, parts := range list {
		left, okL := normal[parts[0]]
		right, okR := normal[parts[1]]
		result, ok := normal[parts[0]+parts[1]]
		bad := func(format string, args ...any) error {
			return refuse("E-TOK-006", "merges", format, args...).At("merge %d %q %q", rank, clip(parts[0]), clip(parts[1]))
		}
		switch {
		case parts[0] == "" || parts[1] == "":
			return bad("a part is empty")
		case strings.Contains(parts[0]+parts[1], " "):
			return bad("a part holds a space, which the vocabulary writes as %s", blank)
		case !okL:
			return bad("the left part is not in the vocabulary")
		case !okR:
			return bad("the right part is not in the vocabulary")
		case !ok:
			return bad("the result is not in the vocabulary")
		}
		key := pairKey(left, right)
		if first, twice := m.rank[key]; twice {
			return bad("the same pair is merge %d", first)
		}
		m.rank[key] = uint32(rank)
		m.pairs[rank], m.result[rank] = [2]int32{left, right}, result
	}
	return nil
}

// refuse is an error about a tokenizer's stored form; the path is filled in by the caller who knows it.
func refuse(id, place, format string, args ...any) *fault.Error {
	return fault.New(fault.Format, format, args...).At("%s", place).WithID(id)
}

// inFile names the file in err if no name is there yet.
func inFile(path string, err error) error {
	if e, ok := err.(*fault.Error); ok && e.Path == "" {
		e.Path = path
	}
	return err
}

// clip shortens text for a message.
func clip(s string) string {
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}

// None is the id of a special token that is not set.
const None int32 = -1

// RealIDs returns one more than the largest id that has text. Rows of an embedding beyond it are padding.
func (t *Tokenizer) RealIDs() int { return len(t.tokens) }

// has reports whether id has text.
func (t *Tokenizer) has(id int32) bool {
	return id >= 0 && int(id) < len(t.tokens) && t.tokens[id].real()
}

// BOS, EOS and Pad return the ids of the begin-of-text, end-of-text and padding tokens, or None. Encode adds none of
// them; AddBOS says whether the model expects BOS in front.
func (t *Tokenizer) BOS() int32 { return t.bos }

// EOS returns the id of the end-of-text token, or None.
func (t *Tokenizer) EOS() int32 { return t.eos }

// Pad returns the id of the padding token, or None.
func (t *Tokenizer) Pad() int32 { return t.pad }

// Unknown returns the id of characters that the vocabulary has neither as tokens nor as bytes, or None.
func (t *Tokenizer) Unknown() int32 {
	if t.pieces == nil {
		return None
	}
	return t.pieces.unk
}

// Ends returns the ids that end a turn or a text beside EOS, as the tokenizer's own file names them. A model's
// generation_config.json counts before them.
func (t *Tokenizer) Ends() []int32 { return slices.Clone(t.ends) }

// AddBOS reports whether the model expects BOS before a text. Encode never adds it.
func (t *Tokenizer) AddBOS() bool { return t.addBOS }

// Begin appends BOS if the model expects it before a text, as Hugging Face's tokenizers do. A chat template writes it itself.
func (t *Tokenizer) Begin(ids []int32) []int32 {
	if t.addBOS && t.bos != None {
		ids = append(ids, t.bos)
	}
	return ids
}

// AddEOS reports whether the model expects EOS behind a text. Encode never adds it.
func (t *Tokenizer) AddEOS() bool { return t.addEOS }

// ChatTemplate returns the Jinja text of the chat template, or "".
func (t *Tokenizer) ChatTemplate() string { return t.chatTemplate }

// Special returns the id of the control or user-defined token with this text.
func (t *Tokenizer) Special(text string) (id int32, ok bool) {
	id, ok = t.special[text]
	return id, ok
}

// Kind returns the kind of an id: Unused for ids without text.
func (t *Tokenizer) Kind(id int32) Kind {
	if !t.has(id) {
		return Unused
	}
	return t.tokens[id].kind
}

// CheckRows refuses an embedding of fewer rows than there are ids (fault.Load).
func (t *Tokenizer) CheckRows(rows int) error {
	if n := t.RealIDs(); rows < n {
		return fault.New(fault.Load, "the tokenizer has %d ids, the embedding only %d rows", n, rows).WithID("E-TOK-013")
	}
	return nil
}
