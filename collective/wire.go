package collective

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"slices"
	"time"

	"apr/internal/fault"
)

// version is the protocol's. Version 2 has checksums in frames.
const version = 2

// magic begins every connection: a name, then the version.
const (
	magicName = "APRRANK"
	magic     = magicName + string(rune(version))
)

// Field is something that has to be the same on every rank.
type Field struct{ Name, Value string }

// Hello is what a rank says of itself.
type Hello struct {
	Rank       int     `json:"rank"`
	World      int     `json:"world"`
	Generation int     `json:"generation"` // of the run: each restart has a higher one
	Who        string  `json:"who"`        // host and process, for messages
	Fields     []Field `json:"fields"`     // program, configuration, data ...
}

// against returns what of h is not as rank 0 has it, in words; empty: nothing.
func (h Hello) against(zero Hello) string {
	switch {
	case h.Generation != zero.Generation:
		return fmt.Sprintf("generation %d of the run, rank 0 is of generation %d", h.Generation, zero.Generation)
	case h.World != zero.World:
		return fmt.Sprintf("a world of %d ranks, that of rank 0 has %d", h.World, zero.World)
	case h.Rank < 1 || h.Rank >= zero.World:
		return fmt.Sprintf("rank %d is outside 1 to %d", h.Rank, zero.World-1)
	}
	for _, f := range zero.Fields {
		i := slices.IndexFunc(h.Fields, func(g Field) bool { return g.Name == f.Name })
		if i < 0 {
			return fmt.Sprintf("it does not say its %s", f.Name)
		}
		if h.Fields[i].Value != f.Value {
			return fmt.Sprintf("another %s: %s, that of rank 0 is %s", f.Name, h.Fields[i].Value, f.Value)
		}
	}
	if len(h.Fields) != len(zero.Fields) {
		return fmt.Sprintf("it says %d things of itself, rank 0 %d", len(h.Fields), len(zero.Fields))
	}
	return ""
}

// answer is what rank 0 says to a Hello.
type answer struct {
	Refused string `json:"refused"` // empty: welcome
}

// refusal is the error of a rank that rank 0 does not take.
type refusal struct {
	text  string
	fatal bool // rank 0 gives up, too
}

func (r *refusal) Error() string { return r.text }

// otherVersion says why head, the first bytes of a connection, is not magic. If it has the protocol's name, who speaks
// another version; else the answer is none.
func otherVersion(who, none string, head []byte) string {
	if string(head[:len(magicName)]) != magicName {
		return none
	}
	return fmt.Sprintf("%s is another version of the program: it speaks version %d of the protocol between ranks, this "+
		"one version %d", who, head[len(magicName)], version)
}

// maxHello bounds what is read of a stranger.
const maxHello = 64 << 10

// sign returns the HMAC-SHA256 of parts under a secret.
func sign(secret []byte, parts ...[]byte) []byte {
	m := hmac.New(sha256.New, secret)
	for _, p := range parts {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(p)))
		m.Write(n[:])
		m.Write(p)
	}
	return m.Sum(nil)
}

// sendSigned writes a JSON text with its length and its signature.
func sendSigned(w io.Writer, secret []byte, v any, context ...[]byte) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var n [4]byte
	binary.LittleEndian.PutUint32(n[:], uint32(len(text)))
	_, err = w.Write(slices.Concat(n[:], text, sign(secret, append(context, text)...)))
	return err
}

// readSigned reads what sendSigned wrote; a wrong signature is an error.
func readSigned(r io.Reader, secret []byte, v any, context ...[]byte) error {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return err
	}
	size := binary.LittleEndian.Uint32(n[:])
	if size > maxHello {
		return fmt.Errorf("a greeting of %d bytes", size)
	}
	text, mac := make([]byte, size), make([]byte, sha256.Size)
	if _, err := io.ReadFull(r, text); err != nil {
		return err
	}
	if _, err := io.ReadFull(r, mac); err != nil {
		return err
	}
	if !hmac.Equal(mac, sign(secret, append(context, text)...)) {
		return errSecret
	}
	return json.Unmarshal(text, v)
}

var errSecret = fault.New(fault.Invalid, "the shared secret is not the same")

const nonceBytes = 16

// greet is the handshake of rank r > 0: magic and nonce; rank 0's magic, nonce and proof of the secret; Hello; the
// answer.
func greet(c net.Conn, h Hello, secret []byte) error {
	mine := make([]byte, nonceBytes)
	_, _ = rand.Read(mine) // never fails
	if _, err := c.Write(append([]byte(magic), mine...)); err != nil {
		return err
	}
	head := make([]byte, len(magic)+nonceBytes+sha256.Size)
	if _, err := io.ReadFull(c, head); err != nil {
		if errors.Is(err, io.EOF) { // version 1 says nothing to others
			return errors.New("it closes the connection without an answer, as an older version of the program does")
		}
		return err
	}
	theirs, mac := head[len(magic):][:nonceBytes], head[len(magic)+nonceBytes:]
	if string(head[:len(magic)]) != magic {
		return &refusal{text: otherVersion("rank 0", "what answers is not rank 0 of a run", head), fatal: true}
	}
	if !hmac.Equal(mac, sign(secret, []byte("rank 0"), mine, theirs)) {
		return &refusal{text: "rank 0 has another shared secret: it is of another run", fatal: true}
	}
	if err := sendSigned(c, secret, h, []byte("hello"), theirs, mine); err != nil {
		return err
	}
	var a answer
	if err := readSigned(c, secret, &a, []byte("answer"), mine, theirs); err != nil {
		return err
	}
	if a.Refused != "" {
		return &refusal{text: a.Refused, fatal: true}
	}
	return nil
}

// welcome is the handshake of rank 0. take judges a Hello whose signature is right: what it returns is told to the
// rank.
func welcome(c net.Conn, secret []byte, take func(Hello) *refusal) (h Hello, err error) {
	head := make([]byte, len(magic)+nonceBytes)
	if _, err := io.ReadFull(c, head); err != nil {
		return h, err
	}
	if string(head[:len(magic)]) != magic {
		why := otherVersion("a rank", "a stranger that is no rank", head)
		if string(head[:len(magicName)]) == magicName { // it reads as much before it judges the version
			_, _ = c.Write(append([]byte(magic), make([]byte, nonceBytes+sha256.Size)...)) // it is turned away, told or not
		}
		return h, errors.New(why)
	}
	theirs, mine := head[len(magic):], make([]byte, nonceBytes)
	_, _ = rand.Read(mine)
	if _, err := c.Write(slices.Concat([]byte(magic), mine, sign(secret, []byte("rank 0"), theirs, mine))); err != nil {
		return h, err
	}
	if err := readSigned(c, secret, &h, []byte("hello"), mine, theirs); err != nil {
		return h, err
	}
	refused := take(h)
	a := answer{}
	if refused != nil {
		a.Refused = refused.text
	}
	if err := sendSigned(c, secret, a, []byte("answer"), theirs, mine); err != nil {
		return h, err
	}
	if refused != nil {
		return h, refused
	}
	return h, nil
}

// The kinds of frames after the handshake.
const (
	frameData = iota + 1
	frameBeat
	frameBye
	frameAbort // payload: a Lost in JSON
	framePost  // a piece of a message of n bytes between two ranks, those from at on
)

// frame is a piece of an operation of n elements: those from at on.
type frame struct {
	kind, op byte
	peer     uint16 // of framePost: whom it is for, on the way to rank 0; whom it is of, on the way from there
	n, at    uint64
	payload  []byte
}

const (
	frameFields = 1 + 1 + 2 + 4 + 8 + 8
	// frameHead is a frame's header: the fields, the CRC-32C of the payload, the CRC-32C of the header so far.
	frameHead = frameFields + 4 + 4
	// chunk is how many bytes a frame has at most.
	chunk = 1 << 20
)

// castagnoli is the table of CRC-32C, for which processors have an instruction. TCP's own checksum does not suffice: it
// has 16 bits, and a proxy or router that damages bytes computes a checksum of the damaged ones.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// damage is the error of a frame that arrived with other bytes than were sent; its text says which part.
type damage string

func (d damage) Error() string { return string(d) }

func (f frame) append(b []byte) []byte {
	at := len(b)
	b = append(b, f.kind, f.op)
	b = binary.LittleEndian.AppendUint16(b, f.peer)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.payload)))
	b = binary.LittleEndian.AppendUint64(b, f.n)
	b = binary.LittleEndian.AppendUint64(b, f.at)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(f.payload, castagnoli))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
	return append(b, f.payload...)
}

// readFrame reads a frame. heard is called after each piece that arrives. The length is believed only with the
// header's checksum, so that a damaged one is not waited for; a payload that differs from what was sent is a damage.
func readFrame(r io.Reader, heard func()) (f frame, err error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	heard()
	if crc32.Checksum(head[:frameHead-4], castagnoli) != binary.LittleEndian.Uint32(head[frameHead-4:]) {
		return f, damage("the header's CRC-32C differs")
	}
	f.kind, f.op, f.peer = head[0], head[1], binary.LittleEndian.Uint16(head[2:])
	size := binary.LittleEndian.Uint32(head[4:])
	f.n, f.at = binary.LittleEndian.Uint64(head[8:]), binary.LittleEndian.Uint64(head[16:])
	if f.kind < frameData || f.kind > framePost || size > chunk {
		return f, fmt.Errorf("frame of kind %d with %d bytes: not the protocol of ranks", f.kind, size)
	}
	f.payload = make([]byte, size)
	if _, err := io.ReadFull(r, f.payload); err != nil {
		return f, err
	}
	heard()
	if crc32.Checksum(f.payload, castagnoli) != binary.LittleEndian.Uint32(head[frameFields:]) {
		return f, damage(fmt.Sprintf("the CRC-32C of its %d bytes differs", size))
	}
	return f, nil
}

// patience is how long a handshake may take.
const patience = 10 * time.Second
