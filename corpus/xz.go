package corpus

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
)

// checkXZ walks over the blocks of an .xz file without decompressing them and refuses dictionaries over maxWindow: the
// decompressor would allocate what a block claims, up to 4 GiB. The decompressor then reads the same
// bytes in the same order, so what passes here cannot surprise it; damage found on the way is refused at once.
//
// Layout (The .xz File Format 1.1): stream header 12 bytes; blocks: header of 4(n+1) bytes starting with byte n > 0,
// flags, optional sizes, filter 0x21 with one byte of properties, CRC; LZMA2 chunks, each with its lengths, up to a
// zero byte; padding to 4, check; then index (n = 0) and footer; streams may follow each other, with zeros between.
func checkXZ(f *os.File) error {
	r := &xzWalk{br: bufio.NewReader(io.NewSectionReader(f, 0, math.MaxInt64))}
	for {
		if _, err := r.br.Peek(1); err == io.EOF {
			return nil
		}
		if err := r.stream(); err == io.EOF {
			return io.ErrUnexpectedEOF
		} else if err != nil {
			return err
		}
	}
}

var (
	errDictionary = errors.New("needs a dictionary of more than 128 MiB")
	errFraming    = errors.New("not framed as xz")
)

type xzWalk struct {
	br *bufio.Reader
	at int64 // bytes passed
}

func (x *xzWalk) byte() (byte, error) {
	b, err := x.br.ReadByte()
	if err == nil {
		x.at++
	}
	return b, err
}

func (x *xzWalk) skip(n int64) error {
	for n > 0 {
		k, err := x.br.Discard(int(min(n, 1<<20)))
		x.at += int64(k)
		n -= int64(k)
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *xzWalk) bytes(n int) ([]byte, error) {
	b := make([]byte, n)
	k, err := io.ReadFull(x.br, b)
	x.at += int64(k)
	return b, err
}

func (x *xzWalk) uvarint() (uint64, error) {
	before := x.at
	v, err := binary.ReadUvarint(byteReader{x})
	if x.at-before > 9 {
		return 0, errFraming
	}
	return v, err
}

type byteReader struct{ *xzWalk }

func (b byteReader) ReadByte() (byte, error) { return b.byte() }

// align skips to a multiple of 4 bytes from start.
func (x *xzWalk) align(start int64) error { return x.skip((4 - (x.at-start)%4) % 4) }

// stream passes one stream, or four bytes of padding.
func (x *xzWalk) stream() error {
	magic, err := x.bytes(4)
	if err != nil || bytes.Equal(magic, make([]byte, 4)) {
		return err
	}
	rest, err := x.bytes(8)
	if err != nil {
		return err
	}
	if string(magic)+string(rest[:3]) != "\xfd7zXZ\x00\x00" {
		return errFraming
	}
	check := []int64{0, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64}[rest[3]&15]
	for {
		n, err := x.byte()
		if err != nil {
			return err
		}
		if n == 0 {
			return x.index()
		}
		if err := x.block(n, check); err != nil {
			return err
		}
	}
}

// block passes one block, after its first byte n.
func (x *xzWalk) block(n byte, check int64) error {
	head, err := x.bytes(4*(int(n)+1) - 1)
	if err != nil {
		return err
	}
	if err := checkDictionary(head); err != nil {
		return err
	}
	start := x.at
	if err := x.chunks(); err != nil {
		return err
	}
	if err := x.align(start); err != nil {
		return err
	}
	return x.skip(check)
}

// checkDictionary reads the properties of a block header's only filter.
func checkDictionary(head []byte) error {
	flags, fields := head[0], bytes.NewReader(head[1:])
	for _, present := range []bool{flags&0x40 != 0, flags&0x80 != 0} {
		if present {
			if _, err := binary.ReadUvarint(fields); err != nil {
				return errFraming
			}
		}
	}
	var filter [3]byte // id, size of properties, properties
	if _, err := io.ReadFull(fields, filter[:]); err != nil || flags&3 != 0 || filter[0] != 0x21 || filter[1] != 1 {
		return errFraming
	}
	// Property p means (2 + p mod 2)·2^(⌊p/2⌋+11) bytes; 40 means 2³²−1.
	if p := filter[2]; p > 40 || uint64(2|p&1)<<(p/2+11) > maxWindow {
		return errDictionary
	}
	return nil
}

// chunks passes the LZMA2 chunks of a block.
func (x *xzWalk) chunks() error {
	for {
		control, err := x.byte()
		if err != nil || control == 0 {
			return err
		}
		var n int64
		switch {
		case control <= 2: // stored: size-1 in 2 bytes
			b, err := x.bytes(2)
			if err != nil {
				return err
			}
			n = int64(binary.BigEndian.Uint16(b)) + 1
		case control >= 0x80: // 2 bytes of unpacked size, 2 of packed size-1, then perhaps properties
			b, err := x.bytes(4)
			if err != nil {
				return err
			}
			n = int64(binary.BigEndian.Uint16(b[2:])) + 1
			if control >= 0xc0 {
				n++
			}
		default:
			return errFraming
		}
		if err := x.skip(n); err != nil {
			return err
		}
	}
}

// index passes the index, after its first byte, and the footer.
func (x *xzWalk) index() error {
	start := x.at - 1
	records, err := x.uvarint()
	if err != nil {
		return err
	}
	for range records {
		for range 2 {
			if _, err := x.uvarint(); err != nil {
				return err
			}
		}
	}
	if err := x.align(start); err != nil {
		return err
	}
	return x.skip(4 + 12)
}
