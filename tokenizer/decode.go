package tokenizer

import "apr/internal/fault"

// Bytes returns what id stands for: any bytes, not always whole characters. ok is false for ids without text.
func (t *Tokenizer) Bytes(id int32) (text string, ok bool) {
	if !t.has(id) {
		return "", false
	}
	return t.bytes[id], true
}

// AppendBytes appends the bytes of ids to dst, special tokens included. An id without text is an error
// (fault.Invalid) that names its position.
func (t *Tokenizer) AppendBytes(dst []byte, ids []int32) ([]byte, error) {
	for i, id := range ids {
		if !t.has(id) {
			return dst, t.noText(id).At("position %d", i)
		}
		dst = append(dst, t.bytes[id]...)
	}
	return dst, nil
}

func (t *Tokenizer) noText(id int32) *fault.Error {
	return fault.New(fault.Invalid, "token id %d has no text: the vocabulary has %d ids", id, t.RealIDs()).WithID("E-TOK-014")
}

// Decode returns the text of ids, special tokens included. Bytes that are not UTF-8 become U+FFFD, one for each
// longest piece that could have begun a character (Unicode 3.9, as Rust and the web do it). With SentencePiece, one space
// at the begin is dropped where one was put there, and byte tokens in a row that are not UTF-8 become one U+FFFD each.
func (t *Tokenizer) Decode(ids []int32) (string, error) {
	if t.pieces != nil {
		return t.decodePieces(ids)
	}
	raw, err := t.AppendBytes(nil, ids)
	if err != nil {
		return "", err
	}
	text, _ := appendText(make([]byte, 0, len(raw)), raw, true)
	return string(text), nil
}

// Stream decodes ids one by one, as generation makes them, and never shows half a character: the pieces it returns,
// joined, are what Decode returns for all ids.
type Stream struct {
	t     *Tokenizer
	held  []byte // the beginning of a character, at most 3 bytes; with SentencePiece the byte tokens in a row
	begun bool   // SentencePiece: some text was returned
}

// NewStream returns a stream at its beginning.
func (t *Tokenizer) NewStream() *Stream { return &Stream{t: t} }

// Push returns the text that id completes; it may be empty. An id without text is an error (fault.Invalid).
func (s *Stream) Push(id int32) (string, error) {
	if !s.t.has(id) {
		return "", s.t.noText(id)
	}
	if s.t.pieces != nil {
		return s.pushPiece(id), nil
	}
	text, rest := appendText(nil, append(s.held, s.t.bytes[id]...), false)
	s.held = append([]byte(nil), rest...)
	return string(text), nil
}

// Flush ends the stream: bytes still held back become U+FFFD.
func (s *Stream) Flush() string {
	if s.t.pieces != nil {
		return s.heldBytes("")
	}
	text, _ := appendText(nil, s.held, true)
	s.held = nil
	return string(text)
}

// appendText appends raw to dst as valid UTF-8. Unless this is the end, the beginning of a character at the end of raw
// is returned as rest instead.
func appendText(dst, raw []byte, end bool) (text, rest []byte) {
	for i := 0; i < len(raw); {
		have, need := character(raw[i:])
		switch {
		case have == need:
			dst = append(dst, raw[i:i+have]...)
		case !end && i+have == len(raw) && need > 0:
			return dst, raw[i:]
		default:
			dst = append(dst, "\uFFFD"...)
		}
		i += have
	}
	return dst, nil
}

// character reports how many bytes at the start of b (not empty) are the beginning of a UTF-8 character and how many
// the whole character would need (Unicode table 3-7). A byte that begins none is 1 of 0.
func character(b []byte) (have, need int) {
	lo, hi := byte(0x80), byte(0xBF) // bounds of the second byte
	switch c := b[0]; {
	case c < 0x80:
		return 1, 1
	case c < 0xC2:
		return 1, 0
	case c < 0xE0:
		need = 2
	case c < 0xF0:
		need = 3
		if c == 0xE0 {
			lo = 0xA0
		} else if c == 0xED {
			hi = 0x9F
		}
	case c < 0xF5:
		need = 4
		if c == 0xF0 {
			lo = 0x90
		} else if c == 0xF4 {
			hi = 0x8F
		}
	default:
		return 1, 0
	}
	for have = 1; have < need && have < len(b) && lo <= b[have] && b[have] <= hi; have++ {
		lo, hi = 0x80, 0xBF
	}
	return have, need
}
