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

// grain returns the length of a run of zeros that is noted in a payload of size bytes, and the size of a page, so small that every such
// run covers one.
func grain(size int64) (shortest, page int64) {
	if size <= small {
		return 128, 64
	}
	return 4096, 2048
}

// pages notes which pages of a payload were read, and which of them hold more than zeros, by the readings that the payload is read
// with anyway, in whatever order and by however many goroutines.
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
		if p.live[word]&bit == 0 && zeros(b[:n]) < int(n) {
			p.live[word] |= bit
		}
		b, off = b[n:], off+n
	}
}

// zeros returns how many zeros b begins with.
func zeros(b []byte) (n int) {
	for ; len(b)-n >= 8 && binary.LittleEndian.Uint64(b[n:]) == 0; n += 8 {
	}
	for ; n < len(b) && b[n] == 0; n++ {
	}
	return n
}

// dead returns the next run [lo,hi) of pages from page on that were read and hold zeros, of a payload of size bytes; false: none.
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

// Holes implements tensor.Stored.Holes. What the pages say is read again, to the byte: nothing, of a payload without a page of zeros.
func (s *Section) Holes() (all []tensor.Hole, err error) {
	shortestHole, pageSize := grain(s.Size)
	for page := int64(0); ; {
		lo, hi, ok := s.pages.dead(page, s.Size)
		if !ok {
			return all, nil
		}
		h, err := s.hole(max(0, lo-1)*pageSize, lo*pageSize)
		if err != nil {
			return nil, err
		}
		page = max(hi, (h.From+h.Size)/pageSize)
		if h.Size == s.Size || h.Size >= shortestHole {
			all = append(all, h)
		}
	}
}

// hole returns the run of zeros that covers byte at; it begins behind byte before.
func (s *Section) hole(before, at int64) (tensor.Hole, error) {
	buf := make([]byte, min(1<<16, s.Size))
	h := tensor.Hole{From: before}
	for off := before; off < s.Size; {
		b := buf[:min(int64(len(buf)), s.Size-off)]
		if n, err := s.File.ReadAt(b, s.Offset+off); n < len(b) && err != io.EOF {
			return h, fault.In(fault.IO, s.Path, "payload cannot be read").At("tensor %q", s.Name).Because(err).WithID("E-FILE-020")
		}
		for i := 0; i < len(b); {
			n := zeros(b[i:])
			h.Size = off + int64(i+n) - h.From
			if i += n; i == len(b) {
				break
			}
			if off+int64(i) >= at {
				return s.placed(h), nil
			}
			i++
			h.From, h.Size = off+int64(i), 0
		}
		off += int64(len(b))
	}
	return s.placed(h), nil
}

// placed adds where in the file h is.
func (s *Section) placed(h tensor.Hole) tensor.Hole {
	h.Path, h.Offset = s.Path, s.Offset+h.From
	return h
}
