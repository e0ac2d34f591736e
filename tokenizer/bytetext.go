package tokenizer

// byteText is the byte-level alphabet: each byte as one printable character. Bytes that print in Latin-1 stand for
// themselves, the other 68 are U+0100 upward in byte order, so that a space is Ġ and a line feed is Ċ.
var byteText, textByte = byteAlphabet()

func byteAlphabet() (text [256]string, back map[rune]byte) {
	back = make(map[rune]byte, 256)
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if !('!' <= r && r <= '~' || 0xA1 <= r && r <= 0xAC || 0xAE <= r && r <= 0xFF) {
			r = next
			next++
		}
		text[b] = string(r)
		back[r] = byte(b)
	}
	return text, back
}

// ByteLetters returns the byte-level alphabet: the character that stands for each byte in stored tokens.
func ByteLetters() [256]string { return byteText }

// fromByteText returns the bytes that byte-level text stands for. It is false for text with a character outside the
// alphabet, which no merge can produce and which stands for itself.
func fromByteText(s string) (string, bool) {
	b := make([]byte, 0, len(s))
	for _, r := range s {
		c, ok := textByte[r]
		if !ok {
			return "", false
		}
		b = append(b, c)
	}
	return string(b), true
}
