package aprfile

import (
	"encoding/binary"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"apr/internal/fault"
)

// Bounds of decompression.
const (
	maxExpanded = 64 << 30
	maxRatio    = 1000
	maxFront    = 64 << 20 // of everything before the data in a compressed file
	zstdWindow  = 32 << 20
)

// packed is a compressed file: its size before compression, counted without storing it, and how to get the content.
// Only the front, up to the data, is decompressed before it is known to be sound.
type packed struct {
	size  int64  // with the header
	front []byte // header, metadata and index
	all   func() ([]byte, error)
}

// unpack looks into a file whose metadata is no JSON object but whose flags say it is compressed: everything behind
// the header is one blob.
func unpack(path string, file io.ReaderAt, size int64, h header) (*packed, error) {
	if h.flags&(LZ4|ZSTD) == LZ4|ZSTD {
		return nil, bad(path, 37, "metadata is no JSON object, and both compression flags are set").At("offset %d", headerSize)
	}
	if h.dataAt > maxFront {
		return nil, bad(path, 37, "data of a compressed file start at %d, over the limit of %d", h.dataAt, maxFront).At("offset 32")
	}
	head := make([]byte, headerSize, max(h.dataAt, headerSize))
	if _, err := file.ReadAt(head, 0); err != nil {
		return nil, fault.In(fault.IO, path, "cannot be read").Because(err).WithID("E-FILE-004")
	}
	blob := io.NewSectionReader(file, headerSize, size-headerSize)
	limit := min(maxExpanded, maxRatio*blob.Size())
	if h.flags&LZ4 != 0 {
		return unpackLZ4(path, head, blob, limit)
	}
	return unpackZSTD(path, head, blob, limit)
}

// capture keeps what fits into its capacity and counts the rest.
type capture struct {
	b []byte
	n int64
}

func (c *capture) Write(p []byte) (int, error) {
	c.b = append(c.b, p[:min(len(p), cap(c.b)-len(c.b))]...)
	c.n += int64(len(p))
	return len(p), nil
}

// unpackZSTD reads a blob of ZSTD frames.
func unpackZSTD(path string, head []byte, blob *io.SectionReader, limit int64) (*packed, error) {
	decode := func(w io.Writer) error {
		d, err := zstd.NewReader(io.NewSectionReader(blob, 0, blob.Size()), zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
		if err == nil {
			defer d.Close()
			_, err = io.Copy(w, io.LimitReader(d, limit+1))
		}
		if err != nil {
			return bad(path, 37, "metadata is no JSON object, and the rest is no ZSTD data: %s", err).At("offset %d", headerSize)
		}
		return nil
	}
	front := &capture{b: head}
	if err := decode(front); err != nil {
		return nil, err
	}
	if front.n > limit {
		return nil, bad(path, 38, "decompressed data are over the limit of %d bytes", limit).At("offset %d", headerSize)
	}
	size := headerSize + front.n
	return &packed{size: size, front: front.b, all: func() ([]byte, error) {
		content := &capture{b: append(make([]byte, 0, size), head...)}
		err := decode(content)
		return content.b, err
	}}, nil
}

// unpackLZ4 reads a blob of a claimed size and one LZ4 block.
func unpackLZ4(path string, head []byte, blob *io.SectionReader, limit int64) (*packed, error) {
	refuse := func(id int, format string, args ...any) (*packed, error) {
		return nil, bad(path, id, format, args...).At("offset %d", headerSize)
	}
	if blob.Size() < 4 {
		return refuse(37, "metadata is no JSON object, and %d bytes are no LZ4 block", blob.Size())
	}
	block := make([]byte, blob.Size())
	if _, err := blob.ReadAt(block, 0); err != nil && err != io.EOF {
		return nil, fault.In(fault.IO, path, "cannot be read").Because(err).WithID("E-FILE-004")
	}
	claimed := int64(binary.LittleEndian.Uint32(block))
	if claimed > limit {
		return refuse(38, "claimed size %d is over the limit of %d bytes", claimed, limit)
	}
	block = block[4:]
	front, n, ok := lz4Front(head, block)
	if !ok {
		return refuse(37, "metadata is no JSON object, and the rest is no LZ4 block")
	}
	if n != claimed {
		return refuse(37, "LZ4 block holds %d bytes, but %d are claimed", n, claimed)
	}
	return &packed{size: headerSize + n, front: front, all: func() ([]byte, error) {
		content := make([]byte, headerSize+n)
		copy(content, head)
		if got, err := lz4.UncompressBlock(block, content[headerSize:]); n > 0 && (err != nil || int64(got) != n) {
			return nil, bad(path, 37, "LZ4 block is broken").At("offset %d", headerSize)
		}
		return content, nil
	}}, nil
}

// lz4Front walks over the sequences of an LZ4 block, checks them and counts the n bytes they make; the first of these
// are appended to front, up to its capacity. A sequence is a token (lengths of literals and match), literals, the
// match's distance backwards; the last one ends after its literals.
func lz4Front(front, block []byte) (_ []byte, n int64, ok bool) {
	base := len(front)
	i := 0
	length := func(nibble byte) (int64, bool) {
		l := int64(nibble)
		if nibble < 15 {
			return l, true
		}
		for i < len(block) {
			b := block[i]
			i++
			l += int64(b)
			if b < 255 {
				return l, true
			}
		}
		return 0, false
	}
	for i < len(block) {
		token := block[i]
		i++
		literals, ok := length(token >> 4)
		if !ok || literals > int64(len(block)-i) {
			return nil, 0, false
		}
		front = append(front, block[i:i+min(int(literals), cap(front)-len(front))]...)
		i += int(literals)
		n += literals
		if i == len(block) {
			return front, n, true
		}
		if i+2 > len(block) {
			return nil, 0, false
		}
		distance := int64(binary.LittleEndian.Uint16(block[i:]))
		i += 2
		if distance == 0 || distance > n {
			return nil, 0, false
		}
		match, ok := length(token & 15)
		if !ok {
			return nil, 0, false
		}
		match += 4
		if int64(len(front)-base) == n { // nothing was left out yet
			for range min(match, int64(cap(front)-len(front))) {
				front = append(front, front[len(front)-int(distance)])
			}
		}
		n += match
	}
	return nil, 0, false
}
