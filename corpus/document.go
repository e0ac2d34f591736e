package corpus

import (
	"crypto/sha256"
	"encoding/binary"
)

// Message is one turn of a conversation.
type Message struct {
	Role, Content string

	// JSON is the whole message where it has more than a role and a text, such as tool_calls, else "".
	JSON string `json:",omitempty"`
}

// Document is one text or one conversation.
type Document struct {
	Text     string
	Messages []Message // not nil: a conversation, and Text is empty
	Path     string    // the file it comes from
	Record   int64     // line of JSON Lines, element of an array, row of Parquet or line of a table, from 1; 0 where the file is the document

	// Teacher is what a teacher reads in the place of the first prompt messages, which a student reads; nil: the same.
	Teacher []Message

	Source string // the field "source" of its record, a text; empty: it has none, or was not asked for

	writer string // the model that wrote it, as its record says; empty: it says nothing
	edited bool   // it is not what was written

	form   form // of its record; "": none
	prompt int  // of a question and its answer: the messages of the question
	bare   bool // the answer is a place alone: the record has none
}

// Hash identifies a document by its content, wherever it was read from.
type Hash [sha256.Size]byte

// Hash returns SHA-256 of the text; of a conversation, that of the number of its messages and then of each role and
// content, and the JSON of messages that have more, each preceded by its length, numbers being little-endian u64.
func (d *Document) Hash() Hash {
	if d.Messages == nil {
		return sha256.Sum256([]byte(d.Text))
	}
	h := sha256.New()
	number := func(n int) {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], uint64(n))
		h.Write(b[:])
	}
	number(len(d.Messages))
	for _, m := range d.Messages {
		parts := []string{m.Role, m.Content, m.JSON}
		if m.JSON == "" {
			parts = parts[:2]
		}
		for _, s := range parts {
			number(len(s))
			h.Write([]byte(s))
		}
	}
	return Hash(h.Sum(nil))
}

// Bytes returns the UTF-8 length of the text, or of all contents of the conversation without the template around them.
func (d *Document) Bytes() int64 {
	n := int64(len(d.Text))
	for _, m := range d.Messages {
		n += int64(len(m.Content))
	}
	return n
}
