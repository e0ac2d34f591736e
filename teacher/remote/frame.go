package remote

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"apr/internal/fault"
	"apr/teacher/cache"
)

// A connection begins with a greeting of the client: 8 bytes "APRTEACH" and the version, 4 bytes. Everything else, in
// both directions, is a frame:
//
//	4 bytes  length n of the payload
//	1 byte   kind
//	n bytes  payload
//
// with all integers little-endian.
//
// Version 2 has a checksum in the header.
const (
	greeting = "APRTEACH"
	version  = 2
)

// Kinds of frames, and who sends them.
const (
	kindToken   = 1 // client: the token
	kindHeader  = 2 // server: 32 bytes SHA-256 of the head, 8 its length, crc32c of these and the rest, header.json
	kindAskHead = 3 // client: empty
	kindHead    = 4 // server: the next part of the head
	kindAskRows = 5 // client: keys of rows, 32 bytes each
	kindRow     = 6 // server: key of a row, crc32c of its bytes, its bytes
	kindPing    = 7 // server: empty
	kindRefused = 9 // server: why it closes the connection, as text
)

// Limits of payloads.
const (
	maxToken   = 4096
	maxText    = 1024
	maxHeader  = 1 << 20
	partBytes  = 1 << 20
	maxKeys    = 1024 // of a frame
	rowPrefix  = keyBytes + crcBytes
	keyBytes   = 32
	sizeBytes  = 8
	headPrefix = sha256.Size + sizeBytes
	crcBytes   = 4
	frameBytes = 5
)

// Times of a connection.
const (
	handshakeTime = 10 * time.Second
	pingEvery     = 5 * time.Second
	idleTime      = 30 * time.Second // without a byte, where one is due
)

// leadBytes bound the rows that a client asks for ahead of their use.
const leadBytes = 256 << 20

// Lead returns how many rows a client may have asked a server for and not received: two passes of the teacher at
// least, so that one is always full, and else as many as leadBytes hold.
func Lead(h cache.Header) int {
	return max(2*h.PassRows, int(min(4096, leadBytes/max(1, h.RowLimit()))))
}

// errGarbage is what a peer sends that no peer sends.
var errGarbage = errors.New("is not what apr sends")

// garbage is the fault of a peer that does not speak the protocol.
func garbage(peer, format string, args ...any) error {
	return fault.In(fault.Format, peer, format, args...).Because(errGarbage).WithID("E-TEACH-010")
}

// wire is a connection that speaks in frames. One goroutine may read and another one write.
type wire struct {
	net.Conn
	r    *bufio.Reader
	peer string // for errors
}

func newWire(c net.Conn, peer string) *wire { return &wire{c, bufio.NewReaderSize(c, 1<<16), peer} }

// due sets a deadline for reading; 0: none.
func (w *wire) due(d time.Duration) {
	var at time.Time
	if d > 0 {
		at = time.Now().Add(d)
	}
	_ = w.SetReadDeadline(at) // a connection that is closed says so when it is read
}

// read reads a frame whose payload has at most limit(kind) bytes; a negative limit is that of a kind that is not due.
// It waits so long for the first byte, 0 for ever, and idleTime for every further one. Nothing is allocated on a claim.
func (w *wire) read(wait time.Duration, limit func(kind byte) int64) (kind byte, payload []byte, err error) {
	var head [frameBytes]byte
	w.due(wait)
	if _, err := io.ReadFull(w.r, head[:1]); err != nil {
		return 0, nil, err
	}
	w.due(idleTime)
	if _, err := io.ReadFull(w.r, head[1:]); err != nil {
		return 0, nil, err
	}
	n, kind := int64(binary.LittleEndian.Uint32(head[:])), head[4]
	switch most := limit(kind); {
	case most < 0:
		return 0, nil, garbage(w.peer, "sent a frame of kind %d, which is not due", kind)
	case n > most:
		return 0, nil, garbage(w.peer, "sent a frame of kind %d with %d bytes, at most %d are due", kind, n, most)
	}
	for int64(len(payload)) < n {
		lo := len(payload)
		payload = append(payload, make([]byte, min(partBytes, n-int64(lo)))...)
		w.due(idleTime)
		if _, err := io.ReadFull(w.r, payload[lo:]); err != nil {
			return 0, nil, err
		}
	}
	return kind, payload, nil
}

// write writes a frame, whose peer has to take each part of it within idleTime.
func (w *wire) write(kind byte, parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	head := append(binary.LittleEndian.AppendUint32(nil, uint32(n)), kind)
	for _, p := range append([][]byte{head}, parts...) {
		for len(p) > 0 {
			k := min(len(p), partBytes)
			if err := w.SetWriteDeadline(time.Now().Add(idleTime)); err != nil {
				return err
			}
			if _, err := w.Conn.Write(p[:k]); err != nil {
				return err
			}
			p = p[k:]
		}
	}
	return nil
}

// only allows payloads of one kind of frame.
func only(kind byte, limit int64) func(byte) int64 {
	return func(k byte) int64 {
		if k != kind {
			return -1
		}
		return limit
	}
}

// keysOf reads the keys of a frame.
func keysOf(peer string, b []byte) (keys []cache.Key, err error) {
	if len(b) == 0 || len(b)%keyBytes != 0 {
		return nil, garbage(peer, "asked for rows in %d bytes, not a multiple of %d", len(b), keyBytes)
	}
	for ; len(b) > 0; b = b[keyBytes:] {
		keys = append(keys, cache.Key(b[:keyBytes]))
	}
	return keys, nil
}

// short is a key for people.
func short(k cache.Key) string { return fmt.Sprintf("%x…", k[:6]) }
