package tokenizer

import (
	"hash/maphash"
	"strings"
	"unicode"
)

// Mode says what becomes of the text of special tokens inside a text.
type Mode int

// The modes. Text from strangers belongs in PlainText: in Recognise, "<|im_end|>" in a document ends a turn.
const (
	Recognise Mode = iota // special tokens become their ids
	PlainText             // special tokens are text like any other; user-defined tokens are still found
)

// Encode returns the ids of text. It adds no begin or end token. Every string can be encoded, valid UTF-8 or not, and
//
//	Decode(Encode(x, PlainText)) = NFC(x)
//
// or x itself for tokenizers without normaliser, when x is valid UTF-8. In mode Recognise the text between two special
// tokens is normalised on its own, and special tokens with lstrip or rstrip take the white space beside them. With
// SentencePiece ▁ comes back as a space, a space at the begin may be lost, and so may characters that the vocabulary
// has neither as tokens nor as bytes: they come back as the unknown token.
func (t *Tokenizer) Encode(text string, mode Mode) []int32 { return t.Append(nil, text, mode) }

// Append appends the ids of text to dst.
func (t *Tokenizer) Append(dst []int32, text string, mode Mode) []int32 {
	e := t.encoders.Get().(*Encoder)
	defer t.encoders.Put(e)
	return e.Append(dst, text, mode)
}

// Encoder encodes with a cache of words, about 1 MiB. It is for one goroutine; Tokenizer.Encode keeps a pool of them.
type Encoder struct {
	t     *Tokenizer
	m     merger
	seed  maphash.Seed
	words []cachedWord

	pieces []int32 // scratch: the symbols of one text
	glued  bool    // the next text goes on where another one ended: SentencePiece puts no prefix before it
}

// cacheBits is the logarithm of the number of words a cache holds.
const cacheBits = 14

// A cachedWord is one line of the cache, 64 bytes. A word has one possible line; a newer word takes it over.
type cachedWord struct {
	size, count uint8
	key         [30]byte
	ids         [8]int32
}

// NewEncoder returns an encoder with an empty cache.
func (t *Tokenizer) NewEncoder() *Encoder {
	e := &Encoder{t: t}
	if t.pieces == nil {
		e.seed, e.words = maphash.MakeSeed(), make([]cachedWord, 1<<cacheBits)
	}
	e.m.rules = &t.rules
	return e
}

// Append appends the ids of text to dst.
func (e *Encoder) Append(dst []int32, text string, mode Mode) []int32 {
	dst, _ = e.appendPart(dst, text, mode, part{first: true})
	return dst
}

// AppendContinuing appends the ids of text that goes on where other text ended: SentencePiece puts no prefix before it.
func (e *Encoder) AppendContinuing(dst []int32, text string, mode Mode) []int32 {
	dst, _ = e.appendPart(dst, text, mode, part{glued: true})
	return dst
}

// part says what a text is a part of.
type part struct {
	first  bool           // it begins the whole text
	glued  bool           // the part before it did not end with an added token
	barred func(int) bool // offsets at which a special token is text; nil: there are none
}

// appendPart appends the ids of a part of a text. open reports that it does not end with an added token.
func (e *Encoder) appendPart(dst []int32, text string, mode Mode, p part) (ids []int32, open bool) {
	section := func(from, to int) {
		e.glued = p.glued && from == 0
		dst = e.appendNormalised(dst, text[from:to], mode, p.first && from == 0)
		e.glued = false
	}
	set := e.t.raw[mode]
	from, blanksEnd := 0, 0 // where text that is not yet encoded begins; where a run of white space after a token ends
	for i := 0; i < len(text); {
		start, end, id := set.find(text, i)
		if id == None {
			break
		}
		if p.barred != nil && p.barred(start) {
			i = start + 1
			continue
		}
		cut := start
		if e.t.tokens[id].lstrip && from < start {
			cut = from + len(strings.TrimRightFunc(text[from:start], unicode.IsSpace))
		}
		if from < cut {
			section(from, cut)
		}
		dst = append(dst, id)
		i, from = end, end
		if e.t.tokens[id].rstrip {
			if blanksEnd < end {
				blanksEnd = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
			}
			from = blanksEnd
		}
	}
	if from < len(text) {
		section(from, len(text))
	}
	return dst, from < len(text)
}

// appendNormalised encodes text without raw added tokens; first says that it begins the whole text.
func (e *Encoder) appendNormalised(dst []int32, s string, mode Mode, first bool) []int32 {
	s = e.t.normalise(s)
	if e.glued && e.t.pieces != nil && e.t.pieces.prefix == prefixEach {
		s = strings.TrimPrefix(s, meta)
	}
	set := e.t.cooked[mode]
	if set == nil {
		return e.appendWords(dst, s, first)
	}
	for i := 0; i < len(s); {
		start, end, id := set.find(s, i)
		dst = e.appendWords(dst, s[i:start], first && i == 0)
		if id >= 0 {
			dst = append(dst, id)
		}
		i = end
	}
	return dst
}

// appendWords cuts s into pre-tokens and encodes each.
func (e *Encoder) appendWords(dst []int32, s string, first bool) []int32 {
	if e.t.pieces != nil {
		return e.appendPieces(dst, s, first)
	}
	p, c := e.t.pattern, e.t.classes
	for i := 0; i < len(s); {
		end := p.next(c, s, i, p.digits)
		dst = e.appendWord(dst, s[i:end])
		i = end
	}
	return dst
}

// appendWord encodes one pre-token, from the cache if it is there.
func (e *Encoder) appendWord(dst []int32, word string) []int32 {
	if len(word) == 1 {
		return append(dst, e.t.byteID[word[0]])
	}
	if len(word) > len(cachedWord{}.key) {
		return e.merge(dst, word)
	}
	line := &e.words[maphash.String(e.seed, word)&(1<<cacheBits-1)]
	if string(line.key[:line.size]) == word {
		return append(dst, line.ids[:line.count]...)
	}
	n := len(dst)
	dst = e.merge(dst, word)
	if len(dst)-n <= len(line.ids) {
		line.size, line.count = uint8(len(word)), uint8(len(dst)-n)
		copy(line.key[:], word)
		copy(line.ids[:], dst[n:])
	}
	return dst
}

// merge encodes one pre-token.
func (e *Encoder) merge(dst []int32, word string) []int32 {
	if id, ok := e.t.whole[word]; ok {
		return append(dst, id)
	}
	return e.m.merge(dst, word, &e.t.byteID)
}
