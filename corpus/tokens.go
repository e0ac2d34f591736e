package corpus

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"

	"apr/internal/fault"
)

// Tokens is a corpus in memory: the ids of all documents in data order, each with its end-of-text id.
type Tokens struct {
	IDs  []int32
	Mask []uint8 // Mask[i] is 1 if IDs[i] may be a target; nil: all may
	Docs []Doc
	EOS  int32
	// Sources are the fields "source" of each document's record, empty where there is none; nil: ReadOptions.Sources did not ask.
	Sources []string
	// Words are, of each document, what a teacher reads in the place of the prompt, nil where it reads the prompt; nil: no
	// document has such words.
	Words []*Words
	// Routes are, of each document, which way it goes, ascending; nil: all go one way. See Route.
	Routes []int
}

// Doc describes one document of Tokens; it holds IDs[the previous one's End : End].
type Doc struct {
	End   int64
	Bytes int64 // of text; 0 if unknown (token shards)
	Hash  Hash
}

// TextBytes returns the bytes of text of all documents.
func (t *Tokens) TextBytes() int64 {
	var n int64
	for _, d := range t.Docs {
		n += d.Bytes
	}
	return n
}

// Head returns the first n ids of t, or t if it has no more. length is how many bytes of text an id stands for, 0 for one
// that is no text, as the end-of-text id. The document that the cut goes through keeps its share of the bytes it was read
// with, to the nearest byte, whatever a template or a normal form made of it:
//
//	Bytes · Σ_{ids kept} length / Σ_{its ids} length
func (t *Tokens) Head(n int, length func(id int32) int) *Tokens {
	if n >= len(t.IDs) {
		return t
	}
	h := &Tokens{IDs: t.IDs[:n], EOS: t.EOS}
	if t.Mask != nil {
		h.Mask = t.Mask[:n]
	}
	start := int64(0)
	for _, d := range t.Docs {
		if d.End > int64(n) {
			if start < int64(n) {
				h.Docs = append(h.Docs, cutDoc(d, t.IDs[start:d.End], n-int(start), length))
			}
			break
		}
		h.Docs, start = append(h.Docs, d), d.End
	}
	return h
}

// cutDoc returns document d, of these ids, with the first n of them. It has no hash: it is no document that was read.
func cutDoc(d Doc, ids []int32, n int, length func(id int32) int) Doc {
	var part, whole int64
	for i, id := range ids {
		bytes := int64(length(id))
		if whole += bytes; i < n {
			part += bytes
		}
	}
	cut := Doc{End: d.End - int64(len(ids)-n)}
	if whole > 0 {
		cut.Bytes = int64(math.Round(float64(d.Bytes) * (float64(part) / float64(whole))))
	}
	return cut
}

// SHA256 returns, in hexadecimal, SHA-256 of the concatenated document hashes: the identity of the data in its
// order, whatever files it was spread over and however they were compressed.
func (t *Tokens) SHA256() string {
	h := sha256.New()
	for i := range t.Docs {
		h.Write(t.Docs[i].Hash[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// ContentSHA256 returns, in hexadecimal, SHA-256 over ids, mask and ends of documents: all that rows are cut from.
func (t *Tokens) ContentSHA256() string {
	h := sha256.New()
	fmt.Fprintf(h, "%d ids, mask of %d, %d documents, end %d\n", len(t.IDs), len(t.Mask), len(t.Docs), t.EOS)
	buf := make([]byte, 0, 1<<16)
	flush := func(room int) {
		if len(buf)+room > cap(buf) {
			h.Write(buf)
			buf = buf[:0]
		}
	}
	for _, id := range t.IDs {
		flush(4)
		buf = binary.LittleEndian.AppendUint32(buf, uint32(id))
	}
	for i := range t.Docs {
		flush(8)
		buf = binary.LittleEndian.AppendUint64(buf, uint64(t.Docs[i].End))
	}
	h.Write(buf)
	h.Write(t.Mask)
	for i, w := range t.Words {
		if w != nil {
			fmt.Fprintf(h, "words of document %d at %d: %d\n", i, w.At, w.IDs)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// HoldOut splits t by document into a training and a held-out part, each in data order. A document is held out when
// the first 64 bits of its hash, read as a fraction in [0,1), are below fraction; so copies of a document stay
// together, and a document keeps its side when others come or go. If that chooses none, the document with the lowest
// hash is held out, and if all, the one with the highest is kept, as long as there are two different documents; with
// only one the held-out part is empty. t is used up: the training part reuses its memory.
func (t *Tokens) HoldOut(fraction float64) (train, held *Tokens, err error) {
	if !(fraction >= 0 && fraction < 1) {
		return nil, nil, fault.New(fault.Usage, "fraction of held-out documents is %v, not in [0, 1)", fraction).WithID("E-CORPUS-001")
	}
	train, held = t.split(t.chooser(fraction), cutting{})
	return train, held, nil
}

// chooser returns the predicate of HoldOut.
func (t *Tokens) chooser(fraction float64) func(Hash) bool {
	chosen := func(h Hash) bool { return hashFraction(h) < fraction }
	if fraction == 0 || len(t.Docs) == 0 {
		return func(Hash) bool { return false }
	}
	n := 0
	low, high := t.Docs[0].Hash, t.Docs[0].Hash
	for _, d := range t.Docs {
		if chosen(d.Hash) {
			n++
		}
		if bytes.Compare(d.Hash[:], low[:]) < 0 {
			low = d.Hash
		}
		if bytes.Compare(d.Hash[:], high[:]) > 0 {
			high = d.Hash
		}
	}
	switch {
	case low == high:
		return func(Hash) bool { return false }
	case n == 0:
		return func(h Hash) bool { return h == low }
	case n == len(t.Docs):
		return func(h Hash) bool { return h != high }
	}
	return chosen
}

// hashFraction returns the first 53 bits of h as a fraction in [0,1); every such fraction is an exact float64.
func hashFraction(h Hash) float64 {
	return math.Ldexp(float64(binary.BigEndian.Uint64(h[:8])>>11), -53)
}

// CheckOverlap returns an error if a document of held is in train too: a score on text that was trained on says nothing.
// The fault is of kind Invalid and counts the held-out documents concerned.
func CheckOverlap(train, held *Tokens) error {
	in := make(map[Hash]int, len(held.Docs)) // hash → first document, from 1
	for i, d := range held.Docs {
		if _, ok := in[d.Hash]; !ok {
			in[d.Hash] = i + 1
		}
	}
	seen := make(map[Hash]bool)
	first, firstHeld := 0, 0
	for i, d := range train.Docs {
		j, ok := in[d.Hash]
		if !ok {
			continue
		}
		if len(seen) == 0 {
			first, firstHeld = i+1, j
		}
		seen[d.Hash] = true
	}
	if len(seen) == 0 {
		return nil
	}
	return fault.New(fault.Invalid, "%d of %d held-out documents are in the training data too; the first is held-out document %d, training document %d",
		len(seen), len(in), firstHeld, first).
		WithHint("evaluate on other text, or let --val-fraction hold documents out").WithID("E-CORPUS-002")
}
