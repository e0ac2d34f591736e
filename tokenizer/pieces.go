package tokenizer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// meta is U+2581, which stands for a space in the vocabularies of SentencePiece.
const meta = "\u2581"

// A prefix says where a meta symbol is put before a text, so that its first word is like the others.
type prefix string

// The ways to put a meta symbol in front. The first two are normalisers: they go before added tokens are looked for that
// ask for normalised text. The last three are the Metaspace pre-tokenizer, which goes after.
const (
	prefixNone   prefix = "none"   // nowhere; the normaliser replaces spaces
	prefixEach   prefix = "each"   // before every text between added tokens
	prefixAlways prefix = "always" // before every text between added tokens that does not begin with one
	prefixFirst  prefix = "first"  // the same, only at the begin of the whole text
	prefixNever  prefix = "never"  // nowhere; the pre-tokenizer replaces spaces
)

// pieceRules is what a file says about SentencePiece-BPE beside vocabulary and merges.
type pieceRules struct {
	prefix  prefix
	strip   bool      // decoding drops one space at the begin
	fuseUnk bool      // unknown characters in a row are one unknown token
	unk     int32     // the token of characters that have neither token nor bytes; None only if all 256 bytes are there
	model   string    // llama or gemma4, as a file says; or empty
	scores  []float32 // one for each token, as a file gives them, or nil
}

// pieces is SentencePiece-BPE: a whole text is one word, whose symbols are characters, or the bytes of those that the
// vocabulary does not have.
type pieces struct {
	pieceRules
	chars  map[rune]int32   // tokens of one character
	scored func() []float32 // mergeScores, once
}

func (p *pieceRules) normalises() bool { return p.prefix == prefixNone || p.prefix == prefixEach }

// normalise is the normaliser, for a text between added tokens that are found in the text as it is.
func (p *pieceRules) normalise(s string) string {
	s = strings.ReplaceAll(s, " ", meta)
	if p.prefix == prefixEach && s != "" {
		s = meta + s
	}
	return s
}

// pretokenise is the pre-tokenizer, for a text between added tokens of any kind.
func (p *pieceRules) pretokenise(s string, first bool) string {
	if p.normalises() || s == "" {
		return s
	}
	s = strings.ReplaceAll(s, " ", meta)
	if (p.prefix == prefixAlways || p.prefix == prefixFirst && first) && !strings.HasPrefix(s, meta) {
		s = meta + s
	}
	return s
}

// pieceBytes returns what a token stands for when text is decoded: a byte, or its text with spaces.
func pieceBytes(text string) string {
	if b, ok := hexByte(text); ok {
		return string([]byte{b})
	}
	return strings.ReplaceAll(text, meta, " ")
}

// hexByte returns the byte of a token <0x00> to <0xFF>; digits of either case are decoded.
func hexByte(text string) (byte, bool) {
	if len(text) != 6 || text[:3] != "<0x" || text[5] != '>' {
		return 0, false
	}
	high, low := strings.IndexByte(hexDigits, text[3]), strings.IndexByte(hexDigits, text[4])
	if high < 0 || low < 0 {
		return 0, false
	}
	return byte(value(high)<<4 | value(low)), true
}

const hexDigits = "0123456789ABCDEFabcdef"

// value returns the value of a digit by its index in hexDigits.
func value(index int) int {
	if index >= 16 {
		return index - 6
	}
	return index
}

// byteToken returns the text of the token that encodes a byte.
func byteToken(b int) string { return fmt.Sprintf("<0x%02X>", b) }

// buildPieces fills what SentencePiece needs; normal holds the tokens that are not added ones.
func (t *Tokenizer) buildPieces(c content, normal map[string]int32) error {
	missing := 0
	for b := range 256 {
		text := byteToken(b)
		id, ok := normal[text]
		if !ok {
			t.byteID[b] = None
			missing++
			continue
		}
		t.byteID[b], t.tokens[id].kind = id, Byte
		delete(normal, text)
	}
	for text, id := range normal {
		if t.tokens[id].kind == Byte {
			return refuse("E-TOK-004", "token_type", "token %d is %q, and of the type of bytes <0x00> to <0xFF>", id, clip(text))
		}
	}
	if unk := t.pieces.unk; unk != None && !t.has(unk) {
		return notInVocabulary("unknown", unk, len(t.tokens))
	} else if unk == None && missing > 0 {
		return refuse("E-TOK-011", "vocabulary", "%d of the tokens <0x00> to <0xFF> are missing, and there is no unknown token", missing).
			WithHint("characters that are not in the vocabulary would vanish")
	}
	scored := maps.Clone(normal)
	for text, id := range t.special { // merges make those that hold a ▁: a text has spaces in its place
		if t.tokens[id].kind == UserDefined {
			normal[text] = id
		}
	}
	for text, id := range normal {
		if r, n := utf8.DecodeRuneInString(text); n == len(text) {
			t.pieces.chars[r] = id
		}
	}
	if n := len(c.pieces.scores); n > 0 && n < len(t.tokens) {
		return refuse("E-TOK-004", "scores", "%d scores for %d tokens", n, len(t.tokens))
	}
	if c.merges == nil {
		for text, id := range scored {
			if len(text) > maxScored {
				return refuse("E-TOK-004", "vocabulary", "token %d has %d bytes; with scores at most %d are possible", id, len(text), maxScored)
			}
		}
		c.merges = scoredMerges(scored, c.pieces.scores)
	}
	t.listed = len(c.merges)
	if err := t.rules.add(t.reachable(c.merges), normal, meta); err != nil {
		return err
	}
	t.pieces.scores = t.pieces.scores[:min(len(t.tokens), len(t.pieces.scores))]
	t.pieces.scored = sync.OnceValue(t.mergeScores)
	return nil
}

// reachable returns the merges without those that make a control token, or take one. Where special tokens are recognised
// they are found before merges happen; in PlainText none must come to be.
func (t *Tokenizer) reachable(list [][2]string) [][2]string {
	control := func(text string) bool {
		id, ok := t.special[text]
		return ok && t.tokens[id].kind == Control
	}
	return slices.DeleteFunc(slices.Clone(list), func(m [2]string) bool {
		return control(m[0]) || control(m[1]) || control(m[0]+m[1])
	})
}

// appendPieces encodes text between added tokens.
func (e *Encoder) appendPieces(dst []int32, s string, first bool) []int32 {
	p := e.t.pieces
	if e.glued && p.prefix == prefixAlways {
		s = strings.ReplaceAll(s, " ", meta)
	} else {
		s = p.pretokenise(s, first)
	}
	e.glued = false
	ids := e.pieces[:0]
	unknown := false // an unknown token waits: characters in a row may share it
	flush := func() {
		if unknown {
			ids = append(ids, p.unk)
		}
		unknown = false
	}
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		char := s[i : i+n]
		i += n
		if id, ok := p.chars[r]; ok && (r != utf8.RuneError || n > 1) {
			flush()
			ids = append(ids, id)
			continue
		}
		if e.t.hasBytes(char) { // an unknown token that waits goes on waiting, as in Hugging Face's library
			for _, b := range []byte(char) {
				ids = append(ids, e.t.byteID[b])
			}
			continue
		}
		if !p.fuseUnk {
			flush()
		}
		unknown = true
	}
	flush()
	dst = e.m.run(dst, append(e.m.symbols(len(ids))[:0], ids...))
	e.pieces = ids
	if cap(e.pieces) > 1<<16 { // one long text must not hold its memory for ever
		e.pieces = nil
	}
	return dst
}

// hasBytes reports whether every byte of s has a token.
func (t *Tokenizer) hasBytes(s string) bool {
	for _, b := range []byte(s) {
		if t.byteID[b] == None {
			return false
		}
	}
	return true
}

// decodePieces is Decode for SentencePiece.
func (t *Tokenizer) decodePieces(ids []int32) (string, error) {
	var b strings.Builder
	s := t.NewStream()
	for i, id := range ids {
		if !t.has(id) {
			return "", t.noText(id).At("position %d", i)
		}
		b.WriteString(s.pushPiece(id))
	}
	b.WriteString(s.Flush())
	return b.String(), nil
}

// pushPiece is Push for SentencePiece. What a byte token becomes depends on all byte tokens in a row.
func (s *Stream) pushPiece(id int32) string {
	if _, ok := hexByte(s.t.tokens[id].text); ok {
		s.held = append(s.held, s.t.bytes[id]...)
		return ""
	}
	return s.heldBytes(s.t.bytes[id])
}

// heldBytes returns the text of the byte tokens held back and what follows them.
func (s *Stream) heldBytes(after string) string {
	text := after
	if len(s.held) > 0 {
		text = string(s.held)
		if !utf8.ValidString(text) {
			text = strings.Repeat("\uFFFD", len(s.held))
		}
		text, s.held = text+after, nil
	}
	if !s.begun && text != "" {
		s.begun = true
		if s.t.pieces.strip {
			text = strings.TrimPrefix(text, " ")
		}
	}
	return text
}
