package corpus

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"apr/internal/fault"
	"apr/internal/strictjson"
)

// Fields of a record that a model wrote, beside prompt and completion.
const (
	writerField = "writer" // who wrote the completion: an identity of the model's values
	sumField    = "sum"    // RecordSum of what was written
)

// RecordSum returns what a record of generated text says of itself: half of the SHA-256 over writer, prompt and
// completion, each behind its length in bytes as little-endian u64, in hexadecimal. An edited record has another one.
func RecordSum(writer, prompt, completion string) string {
	h := sha256.New()
	for _, part := range []string{writer, prompt, completion} {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	return hex.EncodeToString(h.Sum(nil)[:sha256.Size/2])
}

// CheckRecord reports why a line of JSON Lines that is about to be written could not be read back as it is.
func CheckRecord(line []byte) error {
	d, bad := parseRecord(line, ReadOptions{})
	switch {
	case bad != nil:
		return bad
	case d.edited:
		return fault.New(fault.Format, "its text is not what its sum is of").WithID("E-JSONL-004")
	}
	return nil
}

// Written counts the records of one writer.
type Written struct {
	Records int64 `json:"records"`
	Edited  int64 `json:"edited"` // of these, those that are not what was written
}

// writerOf returns the writer of a record, empty if it names none, and whether the record was changed since.
func writerOf(v strictjson.Value) (writer string, edited bool) {
	text := func(name string) string {
		field, ok := v.Get(name)
		if !ok || field.Kind() != strictjson.String {
			return ""
		}
		s, _ := field.Str()
		return s
	}
	if writer = text(writerField); writer == "" || text(sumField) == "" {
		return "", false // another program's field of that name
	}
	written := "completion"
	if _, ok := v.Get(written); !ok {
		written = "text" // of apr run --batch-jsonl
	}
	return writer, text(sumField) != RecordSum(writer, text("prompt"), text(written))
}

// wrote counts a document that a model wrote.
func (r *Report) wrote(d Document) {
	if d.writer == "" {
		return
	}
	if r.Writers == nil {
		r.Writers = map[string]Written{}
	}
	w := r.Writers[d.writer]
	w.Records++
	if d.edited {
		w.Edited++
	}
	r.Writers[d.writer] = w
}
