package aprfile

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"

	"apr/format/internal/checked"
	"apr/internal/fault"
)

// Sizes of the format, in bytes.
const (
	headerSize = 64
	footerSize = 4
	alignment  = 64
	minEntry   = 2 + 1 + 1 + 1 + 8 + 8 // of the index, with a name of one byte and no dimensions
)

// Flags are the bits of the header.
type Flags uint16

// The flags. Those about content are hints that real files often lack: look at metadata and types instead.
const (
	LZ4           Flags = 0x001
	ZSTD          Flags = 0x002
	Encrypted     Flags = 0x004
	Signed        Flags = 0x008
	Sharded       Flags = 0x010
	Quantized     Flags = 0x020
	HasFilterbank Flags = 0x040
	HasModelCard  Flags = 0x080
	Streaming     Flags = 0x100
	HasVocab      Flags = 0x200
	RowMajor      Flags = 0x400
	ColumnMajor   Flags = 0x800

	knownFlags Flags = 0xfff
)

var flagNames = [...]string{"LZ4", "ZSTD", "ENCRYPTED", "SIGNED", "SHARDED", "QUANTIZED", "HAS_FILTERBANK", "HAS_MODEL_CARD", "STREAMING",
	"HAS_VOCAB", "ROW_MAJOR", "COLUMN_MAJOR"}

// Names returns the names of the flags that are set, in order of bit.
func (f Flags) Names() []string {
	var list []string
	for i := range 16 {
		switch bit := Flags(1) << i; {
		case f&bit == 0:
		case i < len(flagNames):
			list = append(list, flagNames[i])
		default:
			list = append(list, fmt.Sprintf("0x%04x", uint16(bit)))
		}
	}
	return list
}

// header is the first 64 bytes.
type header struct {
	magic               [4]byte
	major, minor        uint8
	flags               Flags
	count               uint32
	metaOffset          checked.Size
	metaSize            uint32
	indexOffset, dataAt checked.Size
	reserved            bool // some reserved byte is not zero
}

// headerCRC returns the checksum of bytes 0–39 and 44–63.
func headerCRC(b []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE(b[:40]), crc32.IEEETable, b[44:headerSize])
}

// parseHeader reads the first 64 bytes of a file; b may be shorter. Nothing but magic and version is believed before
// the checksum.
func parseHeader(path string, b []byte) (header, error) {
	if err := checkMagic(path, b); err != nil {
		return header{}, err
	}
	if len(b) < headerSize {
		return header{}, bad(path, 1, "file of %d bytes is too short for a header of %d", len(b), headerSize).At("offset 0")
	}
	le := binary.LittleEndian
	if stored, want := le.Uint32(b[40:]), headerCRC(b); stored != want {
		return header{}, bad(path, 4, "header checksum is %08x, expected %08x", stored, want).At("offset 40")
	}
	h := header{
		major: b[4], minor: b[5], flags: Flags(le.Uint16(b[6:])), count: le.Uint32(b[8:]),
		metaOffset: checked.Size(le.Uint64(b[12:])), metaSize: le.Uint32(b[20:]),
		indexOffset: checked.Size(le.Uint64(b[24:])), dataAt: checked.Size(le.Uint64(b[32:])),
		reserved: strings.Trim(string(b[44:headerSize]), "\x00") != "",
	}
	copy(h.magic[:], b)
	switch {
	case h.major != 2: // "APR2" only; "APR\0" was checked
		return header{}, bad(path, 3, "version %d.%d is not supported, only 2.0", h.major, h.minor).At("offset 4")
	case h.flags&^knownFlags != 0:
		return header{}, bad(path, 5, "unknown flags 0x%04x", uint16(h.flags&^knownFlags)).At("offset 6")
	case h.flags&Encrypted != 0:
		return header{}, bad(path, 6, "encrypted files are not supported").At("offset 6")
	case h.flags&ColumnMajor != 0:
		return header{}, bad(path, 7, "column-major files are not supported").At("offset 6")
	}
	return h, nil
}

// checkMagic distinguishes .apr version 2 from all other known formats, by the first bytes.
func checkMagic(path string, b []byte) error {
	refuse := func(format string, args ...any) error { return bad(path, 2, format, args...).At("offset 0") }
	is := func(magic string) bool { return strings.HasPrefix(string(b[:min(len(b), 8)]), magic) }
	switch {
	case is("APR\x00"):
		if len(b) > 4 && b[4] != 2 {
			return bad(path, 3, "version %d is an older dump, only version 2 is supported", b[4]).At("offset 4")
		}
		return nil
	case is("APR2"):
		return nil // the header checksum tells it from the unrelated older format of that magic
	case is("APRN"):
		return refuse("this is a version 1 container of classical machine learning, not a language model")
	case is("APR1"):
		return refuse("this is the older APR1 container, which is not supported")
	case is("GGUF"):
		return refuse("this is a GGUF file, not .apr")
	case is("PK"):
		return refuse("this is a zip archive (PyTorch?), which is never read")
	case is("\x80\x02"), is("\x80\x03"), is("\x80\x04"), is("\x80\x05"):
		return refuse("this is a pickle, which is never read")
	case len(b) > 8 && b[8] == '{':
		return refuse("this is a safetensors file, not .apr")
	case len(b) < 4:
		return bad(path, 1, "file of %d bytes is too short for a header of %d", len(b), headerSize).At("offset 0")
	}
	return refuse("no .apr file: it begins with %q", b[:4])
}

// checkSections makes sure that metadata, index and data lie in order, apart, inside the size bytes of the file.
func (h header) checkSections(path string, size checked.Size) error {
	metaEnd, err := h.metaOffset.Add(checked.Size(h.metaSize))
	switch {
	case err != nil:
		return bad(path, 8, "metadata at %d+%d %s", h.metaOffset, h.metaSize, err).At("offset 12")
	case h.metaOffset < headerSize:
		return bad(path, 8, "metadata at %d overlaps the header", h.metaOffset).At("offset 12")
	case metaEnd > h.indexOffset:
		return bad(path, 8, "metadata ends at %d, after the start of the index at %d", metaEnd, h.indexOffset).At("offset 24")
	case h.indexOffset > h.dataAt:
		return bad(path, 8, "index starts at %d, after the data at %d", h.indexOffset, h.dataAt).At("offset 24")
	case h.dataAt > size:
		return bad(path, 9, "data starts at %d, past the end of the file at %d", h.dataAt, size).At("offset 32")
	}
	return nil
}

// bad returns a fault of kind Format with identifier E-APR-id.
func bad(path string, id int, format string, args ...any) *fault.Error {
	return fault.In(fault.Format, path, format, args...).WithID(fmt.Sprintf("E-APR-%03d", id))
}
