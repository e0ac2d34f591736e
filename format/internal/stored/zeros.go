package stored

import (
	"encoding/binary"
	"io"
	"sync"

	"apr/internal/fault"
	"apr/tensor"
)

// small is the size of payloads, vectors mostly, of which shorter runs of zeros are noted.
const small = 64 << 10

// grain returns the length of a run of one value that is noted in a payload of size bytes, and the size of a page, so
// small that every such run covers one.
func grain(size int64) (shortest, page int64) {
	if size <= small {
		return 128, 64
	}
	return 4096, 2048
}

// pages notes which pages of a payload were read, and which of them hold more than one value, by the readings that the
// payload is read with anyway, in whatever order and by however many goroutines.
type pages struct {
	mu         sync.Mutex
	read, live []uint64 // a bit per page
}

// note adds bytes of a payload of size bytes that were read at off. A page of a live tensor costs one comparison.
func (p *pages) note(b []byte, off, size int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, pageSize := grain(size)
	if p.read == nil {
		words := (size/pageSize)/64 + 1
		p.read, p.live = make([]uint64, words), make([]uint64, words)
	}
	for len(b) > 0 {
		page := off / pageSize
		n := min(int64(len(b)), (page+1)*pageSize-off)
		word, bit := page/64, uint64(1)<<(page%64)
		p.read[word] |= bit
		if p.live[word]&bit == 0 && repeats(b[:n], 0) < int(n) {
			p.live[word] |= bit
		}
		b, off = b[n:], off+n
	}
}

// period is the length of the longest value that a run repeats.
const period = 8

// repeats returns the end of the run that b[at:] begins with: up to it, every byte equals the one a period before. A
// run has a period's bytes at least, where b has.
func repeats(b []byte, at int) int {
	i := min(at+period, len(b))
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }
	for ; len(b)-i >= period && word(i) == word(i-period); i += period {
	}
	for ; i < len(b) && b[i] == b[i-period]; i++ {
	}
	return i
}

// dead returns the next run [lo,hi) of pages from page on that were read and hold one value each, of a payload of size
// bytes; false: none.
func (p *pages) dead(page, size int64) (lo, hi int64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, pageSize := grain(size)
	count := min((size+pageSize-1)/pageSize, int64(len(p.read))*64)
	is := func(i int64) bool { return (p.read[i/64]&^p.live[i/64])>>(i%64)&1 == 1 }
	for lo = page; lo < count && !is(lo); lo++ {
	}
	for hi = lo; hi < count && is(hi); hi++ {
	}
	return lo, hi, lo < hi
}

// Holes implements tensor.Stored.Holes. What the pages say is read again, to the byte: nothing, of a payload without a
// page of one value.
func (s *Section) Holes() (all []tensor.Hole, err error) {
	shortestHole, pageSize := grain(s.Size)
	for page := int64(0); ; {
		lo, _, ok := s.pages.dead(page, s.Size)
		if !ok {
			return all, nil
		}
		h, err := s.hole(max(0, lo-1)*pageSize, lo*pageSize)
		if err != nil {
			return nil, err
		}
		// Pages behind it may hold another value.
		page = max(lo+1, (h.From+h.Size+pageSize-1)/pageSize)
		if h.Size >= shortestHole || h.Size == s.Size && (h.Fill == 0 || h.Size >= 128) {
			all = append(all, h)
		}
	}
}

// hole returns the run of one value that covers byte at, none of which is before byte before.
func (s *Section) hole(before, at int64) (tensor.Hole, error) {
	h := tensor.Hole{From: before}
	buf := make([]byte, min(1<<16, s.Size-before))
	for off, kept := before, 0; off < s.Size; { // kept are the bytes before off that buf begins with
		b := buf[:kept+int(min(int64(len(buf)-kept), s.Size-off))]
		if n, err := s.File.ReadAt(b[kept:], s.Offset+off); n < len(b)-kept && err != io.EOF {
			return h, s.unread(err)
		}
		begins := off - int64(kept) // in the payload, of b
		for i := int(h.From - begins); ; {
			h.Size = begins + int64(repeats(b, max(i, 0))) - h.From
			end := h.From + h.Size
			if end == begins+int64(len(b)) {
				break
			}
			if end > at {
				return s.placed(h)
			}
			// The next run begins a period before the next byte that repeats.
			i = int(end-begins) - period + 1
			for i+period < len(b) && b[i] != b[i+period] {
				i++
			}
			h.From = begins + int64(i)
		}
		off = begins + int64(len(b))
		kept = copy(buf, b[max(0, len(b)-period):])
	}
	return s.placed(h)
}

// placed adds where in the file h is, and what it holds.
func (s *Section) placed(h tensor.Hole) (tensor.Hole, error) {
	h.Path, h.Offset = s.Path, s.Offset+h.From
	var b [period]byte
	if n, err := s.File.ReadAt(b[:min(period, h.Size)], h.Offset); int64(n) < min(period, h.Size) {
		return h, s.unread(err)
	}
	h.Fill = binary.LittleEndian.Uint64(b[:])
	return h, nil
}

// unread is the fault of a payload that cannot be read.
func (s *Section) unread(err error) error {
	return fault.In(fault.IO, s.Path, "payload cannot be read").At("tensor %q", s.Name).Because(err).WithID("E-FILE-020")
}
