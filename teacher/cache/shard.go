package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"strings"

	"apr/internal/fault"
)

// A shard is
//
//	8  "APRCACHE"
//	4  version, 1
//	4  rows n
//	32 SHA-256 of header.json
//	n × 48: 32 key · 8 offset of the row's bytes in the file · 4 their number · 4 their crc32c
//	4  crc32c of all before
//	   the rows, one behind the other
//
// with all integers little-endian.
const (
	magic        = "APRCACHE"
	shardVersion = 1
	headBytes    = 8 + 4 + 4 + sha256.Size
	entryBytes   = sha256.Size + 8 + 4 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Shard is a part of a cache: rows [Lo,Hi) of those that were asked for.
type Shard struct {
	Name   string // of its file: it follows from the header and the keys
	Lo, Hi int
}

// shardsOf cuts keys into shards.
func shardsOf(h Header, keys []Key) (all []Shard) {
	digest := h.Digest()
	for lo := 0; lo < len(keys); lo += h.ShardRows {
		hi := min(lo+h.ShardRows, len(keys))
		all = append(all, Shard{nameOf(digest, keys[lo:hi]), lo, hi})
	}
	return all
}

// nameBytes are those of the hash in a shard's name.
const nameBytes = 16

// nameOf is the name of a shard: a hash of what was asked for.
func nameOf(header [sha256.Size]byte, keys []Key) string {
	sum := sha256.New()
	sum.Write(header[:])
	for _, k := range keys {
		sum.Write(k[:])
	}
	return hex.EncodeToString(sum.Sum(nil)[:nameBytes]) + shardExt
}

// isShard reports whether a name is that of a shard.
func isShard(name string) bool {
	hash, ok := strings.CutSuffix(name, shardExt)
	_, err := hex.DecodeString(hash)
	return ok && err == nil && len(hash) == 2*nameBytes
}

// encodeShard returns the bytes of a shard of these rows.
func encodeShard(h Header, keys []Key, rows [][]byte) []byte {
	digest := h.Digest()
	size := headBytes + len(keys)*entryBytes + 4
	for _, r := range rows {
		size += len(r)
	}
	b := append(make([]byte, 0, size), magic...)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	binary.LittleEndian.PutUint32(b[8:], shardVersion)
	binary.LittleEndian.PutUint32(b[12:], uint32(len(keys)))
	b = append(b, digest[:]...)
	at := uint64(headBytes + len(keys)*entryBytes + 4)
	for i, k := range keys {
		b = append(b, k[:]...)
		b = binary.LittleEndian.AppendUint64(b, at)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(rows[i])))
		b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(rows[i], castagnoli))
		at += uint64(len(rows[i]))
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	for _, r := range rows {
		b = append(b, r...)
	}
	return b
}

// place is where a row lies.
type place struct {
	shard  int
	offset int64
	size   uint32
	crc    uint32
}

// readIndex reads the head of a shard of a cache, whose file it refuses if it was cut, extended, or has another header.
func readIndex(f File, size int64, path string, h Header, shard int) (keys []Key, places []place, err error) {
	in := io.NewSectionReader(f, 0, size)
	bad := func(offset int64, format string, args ...any) error {
		return fault.In(fault.Format, path, format, args...).At("offset %d", offset).WithHint(remake).WithID("E-CACHE-010")
	}
	head := make([]byte, headBytes)
	if _, err := io.ReadFull(in, head); err != nil || string(head[:8]) != magic {
		return nil, nil, bad(0, "is no shard of a teacher's cache")
	}
	n := int64(binary.LittleEndian.Uint32(head[12:]))
	digest := h.Digest()
	switch v := binary.LittleEndian.Uint32(head[8:]); {
	case v != shardVersion:
		return nil, nil, bad(8, "has version %d, not %d", v, shardVersion)
	case n < 1 || n > int64(h.ShardRows) || headBytes+n*entryBytes+4 > size:
		return nil, nil, bad(12, "says that it has %d rows; a shard of %d bytes has 1 to %d", n, size, h.ShardRows)
	case string(head[16:]) != string(digest[:]):
		return nil, nil, bad(16, "belongs to a cache with another header")
	}
	rest := make([]byte, n*entryBytes+4)
	if _, err := io.ReadFull(in, rest); err != nil {
		return nil, nil, bad(headBytes, "cannot be read")
	}
	index := rest[:n*entryBytes]
	if crc := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, index); crc != binary.LittleEndian.Uint32(rest[len(index):]) {
		return nil, nil, bad(headBytes, "its index differs from its checksum")
	}
	at := headBytes + int64(len(rest))
	for i := range n {
		e := index[i*entryBytes:]
		p := place{shard, int64(binary.LittleEndian.Uint64(e[32:])), binary.LittleEndian.Uint32(e[40:]), binary.LittleEndian.Uint32(e[44:])}
		if p.offset != at || int64(p.size) > h.RowLimit() || int64(p.size) > size-at {
			return nil, nil, bad(headBytes+i*entryBytes, "row %d lies at %d with %d bytes, of a file of %d", i, p.offset, p.size, size)
		}
		at += int64(p.size)
		keys, places = append(keys, Key(e[:32])), append(places, p)
	}
	if at != size {
		return nil, nil, bad(at, "has %d bytes behind its last row", size-at)
	}
	return keys, places, nil
}

// readRow reads the bytes of a row and compares them with their checksum.
func readRow(f File, path string, p place) ([]byte, error) {
	return readRowTo(make([]byte, p.size), f, path, p)
}

// readRowTo is readRow into b, which has the row's size.
func readRowTo(b []byte, f File, path string, p place) ([]byte, error) {
	if _, err := f.ReadAt(b, p.offset); err != nil {
		return nil, fault.In(fault.Format, path, "ends within a row").At("offset %d", p.offset).WithHint(remake).Because(err).WithID("E-CACHE-011")
	}
	if crc := crc32.Checksum(b, castagnoli); crc != p.crc {
		return nil, damagedRow(path, p, fmt.Errorf("its checksum is %08x, not %08x", crc, p.crc))
	}
	return b, nil
}

// damagedRow is the fault of a row that cannot be used.
func damagedRow(path string, p place, err error) error {
	return fault.In(fault.Format, path, "a row is damaged").At("offset %d", p.offset).WithHint(remake).Because(err).WithID("E-CACHE-012")
}

// remake is what helps against a damaged shard.
const remake = "remove this file and manifest.json, and run the command that made the cache again: it makes what is missing"
