package cache

import (
	"encoding/binary"
	"errors"
	"fmt"

	"apr/tensor"
)

// countBits are those of a count.
const countBits = 6

// maxEntropy is above the entropy of any distribution over MaxVocab ids.
const maxEntropy = 16

// Entry is an id that was drawn, and how often.
type Entry struct {
	ID    int32
	Count uint8
}

// Drawn are the draws of the positions of a row: those of position p are Entries[From[p]:From[p+1]], their ids
// ascending.
type Drawn struct {
	From    []int32 // one more than there are positions
	Entries []Entry
	Entropy []float32 // of the teacher at each position, in nats, as a half float keeps it; nil: the cache has none
}

// check says why a row's draws are not those that h describes. What is too large is refused, never cut.
func (h Header) check(d Drawn) error {
	if len(d.From) != h.SeqLen+1 || d.From[0] != 0 || int(d.From[h.SeqLen]) != len(d.Entries) {
		return fmt.Errorf("draws of %d positions, not %d", len(d.From)-1, h.SeqLen)
	}
	if h.Entropy != (d.Entropy != nil) || d.Entropy != nil && len(d.Entropy) != h.SeqLen {
		return fmt.Errorf("%d entropies for %d positions", len(d.Entropy), h.SeqLen)
	}
	for p, e := range d.Entropy {
		if !(e >= 0 && e <= maxEntropy) {
			return fmt.Errorf("position %d: an entropy of %g", p, e)
		}
	}
	for p := range h.SeqLen {
		sum, last := 0, int32(-1)
		for _, e := range d.Entries[d.From[p]:d.From[p+1]] {
			switch {
			case e.ID <= last || int(e.ID) >= h.Vocab:
				return fmt.Errorf("position %d: id %d after %d, of a vocabulary of %d", p, e.ID, last, h.Vocab)
			case e.Count < 1 || e.Count > MaxDraws:
				return fmt.Errorf("position %d: a count of %d, not 1 to %d", p, e.Count, MaxDraws)
			}
			sum, last = sum+int(e.Count), e.ID
		}
		if sum != h.Draws {
			return fmt.Errorf("position %d: counts sum to %d, not %d", p, sum, h.Draws)
		}
	}
	return nil
}

// EncodeDraws returns the bytes of a row:
//
//	u8  how many entries each position has
//	f16 the entropy of each position, little-endian, if the header says so
//	bits of all entries in order, the lowest first: the id, then the count in 6 bits; zeros fill the last byte
func EncodeDraws(h Header, d Drawn) ([]byte, error) {
	if err := h.check(d); err != nil {
		return nil, err
	}
	var b []byte
	for p := range h.SeqLen {
		b = append(b, byte(d.From[p+1]-d.From[p]))
	}
	for _, e := range d.Entropy {
		b = binary.LittleEndian.AppendUint16(b, tensor.F32ToF16(e))
	}
	idBits := h.IDBits()
	var word uint64
	held := 0
	for _, e := range d.Entries {
		word |= (uint64(e.ID) | uint64(e.Count)<<idBits) << held
		for held += idBits + countBits; held >= 8; held -= 8 {
			b = append(b, byte(word))
			word >>= 8
		}
	}
	if held > 0 {
		b = append(b, byte(word))
	}
	return b, nil
}

var errCut = errors.New("is shorter than its counts say")

// DecodeDraws is the inverse of EncodeDraws. It refuses bytes that EncodeDraws does not write.
func DecodeDraws(h Header, b []byte) (d Drawn, err error) {
	if len(b) < h.SeqLen {
		return d, errCut
	}
	d.From = make([]int32, 1, h.SeqLen+1)
	n := int32(0)
	for _, k := range b[:h.SeqLen] {
		n += int32(k)
		d.From = append(d.From, n)
	}
	b = b[h.SeqLen:]
	if h.Entropy {
		if len(b) < 2*h.SeqLen {
			return d, errCut
		}
		d.Entropy = make([]float32, h.SeqLen)
		tensor.Widen(d.Entropy, b[:2*h.SeqLen], tensor.F16)
		b = b[2*h.SeqLen:]
	}
	idBits := h.IDBits()
	if want := (int64(n)*int64(idBits+countBits) + 7) / 8; int64(len(b)) != want {
		return d, fmt.Errorf("has %d bytes of entries, its counts say %d", len(b), want)
	}
	d.Entries = make([]Entry, n)
	var word uint64
	held, at := 0, 0
	for i := range d.Entries {
		for ; held < idBits+countBits; held += 8 {
			word |= uint64(b[at]) << held
			at++
		}
		d.Entries[i] = Entry{int32(word & (1<<idBits - 1)), uint8(word >> idBits & (1<<countBits - 1))}
		word >>= idBits + countBits
		held -= idBits + countBits
	}
	if word != 0 {
		return d, errors.New("has bits behind its last entry")
	}
	return d, h.check(d)
}

// CheckHidden says why bytes are not those of a row of hidden states: SeqLen × Width finite values of the header's
// type, little-endian.
func CheckHidden(h Header, b []byte) error {
	if want := h.RowLimit(); int64(len(b)) != want {
		return fmt.Errorf("hidden states have %d bytes, not %d", len(b), want)
	}
	const infinite = 0x7f80 // the exponent of what is not finite, in the upper 16 bits of either type
	size := h.elementBytes()
	for i := size - 2; i < len(b); i += size {
		if binary.LittleEndian.Uint16(b[i:])&infinite == infinite {
			return fmt.Errorf("hidden states are not finite: value %d", i/size)
		}
	}
	return nil
}

// DecodeHidden reads a row of hidden states, exactly.
func DecodeHidden(h Header, dst []float32, b []byte) error {
	if want := h.RowLimit(); int64(len(b)) != want {
		return fmt.Errorf("has %d bytes, not %d", len(b), want)
	}
	tensor.Widen(dst, b, h.dtype())
	return nil
}

func (h Header) dtype() tensor.DType {
	if h.DType == "f32" {
		return tensor.F32
	}
	return tensor.BF16
}
