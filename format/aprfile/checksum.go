package aprfile

import (
	"hash/crc32"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// summed computes the checksum over bytes [0,end) of a file from what is read of it anyway, in whatever order and by
// however many goroutines. Only bytes that were not read otherwise are read for the checksum alone, so that checking a
// model costs no second pass over it, and the bytes that were used are the bytes that are judged: of bytes that are
// read twice, the first reading counts.
type summed struct {
	file io.ReaderAt
	end  int64

	whole atomic.Bool // all bytes have been read: nothing is left to note
	mu    sync.Mutex
	spans []span // in ascending order; neighbours do not touch
}

// span is the checksum of bytes [from,to).
type span struct {
	from, to int64
	crc      uint32
}

// ReadAt implements io.ReaderAt.
func (c *summed) ReadAt(b []byte, off int64) (int, error) {
	n, err := c.file.ReadAt(b, off)
	c.note(b[:n], off)
	return n, err
}

// note adds bytes that were read at off. Checksums are computed outside the lock, so that readers do not wait for each
// other.
func (c *summed) note(b []byte, off int64) {
	if c.whole.Load() || off >= c.end {
		return
	}
	b = b[:min(int64(len(b)), c.end-off)]
	for _, gap := range c.gaps(off, off+int64(len(b))) {
		gap.crc = crc32.ChecksumIEEE(b[gap.from-off : gap.to-off])
		c.add(gap)
	}
}

// gaps returns the parts of [from,to) that have not been read.
func (c *summed) gaps(from, to int64) []span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []span
	for i := c.at(from); from < to; i++ {
		next := span{from: math.MaxInt64}
		if i < len(c.spans) {
			next = c.spans[i]
		}
		if from < next.from {
			out = append(out, span{from: from, to: min(to, next.from)})
		}
		from = max(from, next.to)
		if i >= len(c.spans) {
			break
		}
	}
	return out
}

// at returns the first span that ends behind from.
func (c *summed) at(from int64) int {
	i, _ := slices.BinarySearchFunc(c.spans, from, func(s span, x int64) int {
		if s.to > x {
			return 1
		}
		return -1
	})
	return i
}

// add joins a span to its neighbours. One that another goroutine has read in part meanwhile is forgotten: what is left of
// it is read again.
func (c *summed) add(s span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.at(s.from)
	if i < len(c.spans) && c.spans[i].from < s.to {
		return
	}
	if i < len(c.spans) && c.spans[i].from == s.to {
		s = join(s, c.spans[i])
		c.spans = slices.Delete(c.spans, i, i+1)
	}
	if i > 0 && c.spans[i-1].to == s.from {
		i--
		s = join(c.spans[i], s)
		c.spans = slices.Delete(c.spans, i, i+1)
	}
	c.spans = slices.Insert(c.spans, i, s)
	if s.from == 0 && s.to == c.end {
		c.whole.Store(true)
	}
}

// sum reads what has not been read and returns the checksum. A file that ends early is an io.ErrUnexpectedEOF.
func (c *summed) sum() (uint32, error) {
	var buf []byte
	for !c.whole.Load() && c.end > 0 {
		for _, gap := range c.gaps(0, c.end) {
			if buf == nil {
				buf = make([]byte, min(c.end, 1<<20))
			}
			for at := gap.from; at < gap.to; {
				part := buf[:min(int64(len(buf)), gap.to-at)]
				n, err := c.ReadAt(part, at)
				if n < len(part) {
					if err == nil || err == io.EOF {
						err = io.ErrUnexpectedEOF
					}
					return 0, err
				}
				at += int64(n)
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.spans) == 0 {
		return 0, nil
	}
	return c.spans[0].crc, nil
}

// join returns the checksum of two neighbours. CRC-32 is linear: with a the polynomial of the first checksum, the bytes
// behind it shift it by 8 bits each, a·x^(8·length) mod P, and the second's checksum is added. Source: zlib's
// crc32_combine.
func join(a, b span) span {
	return span{a.from, b.to, times(a.crc, power(b.to-b.from)) ^ b.crc}
}

// powers are x^(2^k) mod P for k = 3, 4, …: of 1, 2, 4 … bytes. The coefficient of x^0 is the highest bit.
var powers = func() (p [63]uint32) {
	p[0] = 1 << (31 - 8)
	for k := 1; k < len(p); k++ {
		p[k] = times(p[k-1], p[k-1])
	}
	return p
}()

// power returns x^(8n) mod P.
func power(n int64) uint32 {
	p := uint32(1 << 31)
	for k := 0; n > 0; k, n = k+1, n>>1 {
		if n&1 != 0 {
			p = times(p, powers[k])
		}
	}
	return p
}

// times returns a·b mod P.
func times(a, b uint32) uint32 {
	var p uint32
	for ; a != 0; a <<= 1 {
		p ^= b & -(a >> 31)
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return p
}
