package remote

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/teacher/cache"
)

const token = "0123456789abcdef"

// header is that of rows of two positions over ten ids.
var header = cache.Header{Kind: cache.Draws, Teacher: hashOf("t"), TeacherConfig: hashOf("c"), Tokenizer: hashOf("k"),
	Template: "none",
	Packing:  "packed",
	SeqLen:   2, Vocab: 10, Temperature: 1, Draws: 3, Seed: 7, Device: "cpu", Algorithms: "a", PassRows: 4, ChunkRows: 512,
	Rows:       99,
	RowsSHA256: hashOf("r"), ShardRows: 4}

// hashOf is the SHA-256 of a text, as headers have it.
func hashOf(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// key is the key of row i.
func key(i int) cache.Key { return cache.KeyOf([]int32{int32(i)}, nil) }

// row is what a teacher says of a row: bytes that depend on it.
func row(k cache.Key) []byte { s := sha256.Sum256(k[:]); return s[:3+s[0]%2] }

// start starts a server on a listener, of which rows below 1000 can be asked.
func start(t *testing.T, l net.Listener, h cache.Header, makes func([]cache.Key) ([][]byte, error)) (s *Server,
	end func()) {
	t.Helper()
	head := filepath.Join(t.TempDir(), "head")
	text := bytes.Repeat([]byte("head"), 1<<19)
	if err := os.WriteFile(head, text, 0o600); err != nil {
		t.Fatal(err)
	}
	known := map[cache.Key]bool{}
	for i := range 1000 {
		known[key(i)] = true
	}
	if makes == nil {
		makes = func(keys []cache.Key) (rows [][]byte, err error) {
			for _, k := range keys {
				rows = append(rows, row(k))
			}
			return rows, nil
		}
	}
	s = &Server{Header: h, Head: Head{head, sha256.Sum256(text), int64(len(text))}, Token: token,
		Has: func(k cache.Key) bool { return known[k] }, Make: makes}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	return s, func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Error("the server does not end")
		}
	}
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// upTo gives the rows of n steps of one.
func upTo(n int) func() (cache.Key, error) {
	i := 0
	return func() (cache.Key, error) {
		if i == n {
			return cache.Key{}, io.EOF
		}
		i++
		return key((i - 1) % 1000), nil
	}
}

// learn reads n rows in order, and does something before each.
func learn(t *testing.T, c *Client, n int, before func(i int)) {
	t.Helper()
	c.Start(upTo(n))
	for i := range n {
		if before != nil {
			before(i)
		}
		got, err := c.Row(context.Background(), key(i%1000))
		if err != nil {
			t.Fatalf("row %d: %v", i, err)
		}
		if !bytes.Equal(got, row(key(i%1000))) {
			t.Fatalf("row %d is another one", i)
		}
	}
}

// TestRows: one teacher and several students, several teachers and one student, rows out of order and twice, and the
// head of the teacher.
func TestRows(t *testing.T) {
	var addresses []Teacher
	var servers []*Server
	for range 3 {
		l := listen(t, "127.0.0.1:0")
		s, end := start(t, l, header, nil)
		defer end()
		servers, addresses = append(servers, s), append(addresses, Teacher{Address: l.Addr().String()})
	}
	var wait sync.WaitGroup
	for _, of := range [][]Teacher{addresses[:1], addresses[:1], addresses} {
		wait.Go(func() {
			c, err := Dial(context.Background(), Options{Teachers: of, Token: token})
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			var head bytes.Buffer
			if err := c.ReadHead(&head); err != nil || head.Len() != 1<<21 {
				t.Errorf("a head of %d bytes, %v", head.Len(), err)
			}
			learn(t, c, 2500, nil)
			for _, i := range []int{7, 3, 7} { // nobody has planned these
				if got, err := c.Row(context.Background(), key(i)); err != nil || !bytes.Equal(got, row(key(i))) {
					t.Errorf("row %d: %x, %v", i, got, err)
				}
			}
			contracttest.Cases(t, 1)
		})
	}
	wait.Wait()
	for i, s := range servers {
		made, sent := s.Rows()
		if sent == 0 || made > sent {
			t.Errorf("teacher %d made %d rows and sent %d", i, made, sent)
		}
		if i == 0 && made > 1100 {
			t.Errorf("%d rows were made for students that share them", made)
		}
	}
}

// TestReconnect: a teacher that leaves and comes back, and one of two that leaves for good, lose no row; one that stays
// away is an error with its address.
func TestReconnect(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	address := l.Addr().String()
	_, end := start(t, l, header, nil)
	other := listen(t, "127.0.0.1:0")
	_, endOther := start(t, other, header, nil)
	both := []Teacher{{Address: address}, {Address: other.Addr().String()}}
	c, err := Dial(context.Background(), Options{Teachers: both, Token: token, Patience: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	learn(t, c, 12000, func(i int) {
		switch i {
		case 3000, 6000:
			end()
			_, end = start(t, listen(t, address), header, nil)
		case 9000:
			endOther()
		}
	})
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if notes := strings.Join(c.Notes(), "\n"); !strings.Contains(notes, "has left") || !strings.Contains(notes,
		"is there again") {
		t.Errorf("notes %q", notes)
	}
	c, err = Dial(context.Background(), Options{Teachers: both[:1], Token: token, Patience: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Start(upTo(1 << 20))
	end()
	for i := 0; err == nil; i++ {
		_, err = c.Row(context.Background(), key(i%1000))
	}
	if fault.KindOf(err) != fault.Network || !strings.Contains(err.Error(), address) {
		t.Errorf("the teacher stays away: %v", err)
	}
	contracttest.Cases(t, 4)
}

// TestChangedTeacher: who comes back as another teacher is refused, with the field and both values.
func TestChangedTeacher(t *testing.T) {
	other := func(field, has, asked string) string {
		return fmt.Sprintf("another %s: it has %q, asked for is %q", field, has, asked)
	}
	for _, change := range []struct {
		name string
		to   func(*cache.Header)
		want string
	}{
		{"teacher", func(h *cache.Header) { h.Teacher = hashOf("x") }, other("teacher", hashOf("x"), hashOf("t"))},
		{"tokenizer", func(h *cache.Header) { h.Tokenizer = hashOf("x") }, other("tokenizer", hashOf("x"), hashOf("k"))},
		{"template", func(h *cache.Header) { h.Template = hashOf("x") }, other("template", hashOf("x"), "none")},
		{"packing", func(h *cache.Header) { h.Packing = "x" }, other("packing", "x", "packed")},
		{"temperature", func(h *cache.Header) { h.Temperature = 2 }, `another temperature: it has 2, asked for is 1`},
		{"seed", func(h *cache.Header) { h.Seed = 8 }, `another seed: it has 8, asked for is 7`},
		{"device", func(h *cache.Header) { h.Device = "cuda" }, other("device", "cuda", "cpu")},
	} {
		l, other := listen(t, "127.0.0.1:0"), listen(t, "127.0.0.1:0")
		_, end := start(t, l, header, nil)
		h := header
		change.to(&h)
		_, endOther := start(t, other, h, nil)
		_, err := Dial(context.Background(), Options{Token: token,
			Teachers: []Teacher{{Address: l.Addr().String()}, {Address: other.Addr().String()}}})
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), change.want) {
			t.Errorf("%s: %v", change.name, err)
		}
		end()
		endOther()
		contracttest.Cases(t, 1)
	}
}

// frame is the bytes of a frame.
func frame(kind byte, payload []byte) []byte {
	b := append(binary.LittleEndian.AppendUint32(nil, uint32(len(payload))), kind)
	return append(b, payload...)
}

func hello() []byte { return binary.LittleEndian.AppendUint32([]byte(greeting), version) }

// TestStrangers: whatever a client sends, a server answers with a reason or nothing, lets nobody in without the token,
// makes no row for them, and goes on with the others.
func TestStrangers(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	made := 0
	_, end := start(t, l, header, func(keys []cache.Key) (rows [][]byte, err error) {
		for _, k := range keys {
			rows = append(rows, row(k))
		}
		made += len(keys)
		return rows, nil
	})
	in := append(hello(), frame(kindToken, []byte(token))...)
	k := key(1)
	for name, x := range map[string]struct {
		send []byte
		want string // of what is received
	}{
		"nothing known":       {[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), ""},
		"another version":     {append([]byte(greeting), 9, 0, 0, 0), "speaks version 9"},
		"no token":            {append(hello(), frame(kindToken, nil)...), "token"},
		"another token":       {append(hello(), frame(kindToken, []byte(token+"x"))...), "token"},
		"rows before a token": {append(hello(), frame(kindAskRows, k[:])...), ""},
		"a long token":        {append(hello(), frame(kindToken, make([]byte, maxToken+1))...), ""},
		"too much": {append(bytes.Clone(in), frame(kindAskRows, make([]byte, keyBytes*(maxKeys+1)))...),
			"at most"},
		"half a key": {append(bytes.Clone(in), frame(kindAskRows, k[:31])...), "multiple of 32"},
		"no key":     {append(bytes.Clone(in), frame(kindAskRows, nil)...), "multiple of 32"},
		"an unknown row": {append(bytes.Clone(in), frame(kindAskRows, make([]byte, keyBytes))...),
			"not in the teacher's data"},
		"an unknown kind": {append(bytes.Clone(in), frame(77, []byte("x"))...), "kind 77"},
		"the head twice": {bytes.Join([][]byte{in, frame(kindAskHead, nil), frame(kindAskHead, nil)}, nil),
			"head twice"},
	} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(x.send) // the server may have closed it
		got, err := io.ReadAll(conn)
		if ne := (net.Error)(nil); errors.As(err, &ne) && ne.Timeout() {
			t.Errorf("%s: the connection stays open", name)
		}
		if !strings.Contains(string(got), x.want) || x.want == "" && len(got) > 0 {
			t.Errorf("%s: received %d bytes, %q", name, len(got), got[:min(len(got), 200)])
		}
		_ = conn.Close()
		contracttest.Cases(t, 1)
	}
	c, err := Dial(context.Background(), Options{Teachers: []Teacher{{Address: l.Addr().String()}}, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	learn(t, c, 50, nil)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	end()
	if made != 50 {
		t.Errorf("%d rows were made for one student of 50", made)
	}
}

// TestTooFarAhead: who asks for more rows than the lead without reading any is turned away, and memory stays bounded by
// the lead; a student beside it gets its rows.
func TestTooFarAhead(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	_, end := start(t, l, header, nil)
	defer end()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write(append(hello(), frame(kindToken, []byte(token))...))
	k := key(2)
	ask := frame(kindAskRows, bytes.Repeat(k[:], maxKeys))
	sent := 0
	for range 100000 { // until the server has had enough
		if _, err = conn.Write(ask); err != nil {
			break
		}
		sent += maxKeys
	}
	if err == nil {
		t.Errorf("%d rows may be asked for and not be read", sent)
	}
	c, err := Dial(context.Background(), Options{Teachers: []Teacher{{Address: l.Addr().String()}}, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	learn(t, c, 50, nil)
	contracttest.Cases(t, 1)
}

// headerOf is the payload of a header, of an empty head.
func headerOf(h cache.Header) []byte {
	prefix, json := make([]byte, headPrefix), h.JSON()
	return append(binary.LittleEndian.AppendUint32(prefix, sumOfHeader(prefix, json)), json...)
}

// TestDamagedHeader: a bit that turns over in what a teacher says of itself, wherever it is, is told.
func TestDamagedHeader(t *testing.T) {
	good := headerOf(header)
	if h, err := parseSaid("teacher", good); err != nil || h.header != header {
		t.Fatalf("%+v, %v", h.header, err)
	}
	for i := range good {
		contracttest.Cases(t, 1)
		b := bytes.Clone(good)
		b[i] ^= 1 << (i % 8)
		_, err := parseSaid("teacher", b)
		if fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), "differs from its checksum") {
			t.Errorf("byte %d: %v", i, err)
		}
	}
}

// TestLiars: whatever a server sends, a client believes nothing of it: an error names the server and what was wrong.
func TestLiars(t *testing.T) {
	head := headerOf(header)
	flipped := bytes.Replace(head, []byte(header.Teacher), append([]byte{header.Teacher[0] ^ 1}, header.Teacher[1:]...), 1)
	but := func(change func(*cache.Header)) []byte {
		h := header
		change(&h)
		return frame(kindHeader, headerOf(h))
	}
	good := row(key(0))
	say := func(k cache.Key, crc uint32, data []byte) []byte {
		return frame(kindRow, bytes.Join([][]byte{k[:], binary.LittleEndian.AppendUint32(nil, crc), data}, nil))
	}
	sum := func(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
	big := make([]byte, header.RowLimit()+1)
	for name, x := range map[string]struct {
		first, then []byte // in place of the header, and of rows
		want        string
	}{
		"no frame":               {first: []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), want: "is not due"},
		"a long header":          {first: binary.LittleEndian.AppendUint32(nil, 1<<31), want: "at most"},
		"half a header":          {first: frame(kindHeader, head[:20]), want: "header of 20 bytes"},
		"a header with more":     {first: frame(kindHeader, append(bytes.Clone(head), 'x')), want: "differs from its"},
		"a flipped teacher":      {first: frame(kindHeader, flipped), want: "differs from its checksum"},
		"no teacher":             {first: but(func(h *cache.Header) { h.Teacher = "?" }), want: `teacher is "?"`},
		"no description":         {first: but(func(h *cache.Header) { h.TeacherConfig = "" }), want: `teacher_config is ""`},
		"a long tokenizer":       {first: but(func(h *cache.Header) { h.Tokenizer += "0" }), want: "not a SHA-256"},
		"a template in capitals": {first: but(func(h *cache.Header) { h.Template = "NONE" }), want: "template is"},
		"no rows":                {first: but(func(h *cache.Header) { h.RowsSHA256 = "none" }), want: `rows_sha256 is`},
		"another version":        {first: frame(kindRefused, []byte("speaks version 2, not 3")), want: "one version"},
		"a refusal":              {first: frame(kindRefused, []byte("no")), want: `refuses: "no"`},
		"a row nobody asked for": {then: say(key(999), sum(good), good), want: "not asked for"},
		"a flipped row":          {then: say(key(0), sum(good)^1, good), want: "differs from its checksum"},
		"too long a row":         {then: say(key(0), sum(big), big), want: "at most"},
		"a cut row":              {then: frame(kindRow, make([]byte, 5)), want: "a row of 5 bytes"},
		"an unknown kind":        {then: frame(88, nil), want: "kind 88"},
		"no row at all":          {then: frame(kindRefused, []byte("gone")), want: `refuses: "gone"`},
	} {
		l := listen(t, "127.0.0.1:0")
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				first := x.first
				if first == nil {
					first = frame(kindHeader, head)
				}
				if len(first) == 4 {
					first = append(first, kindHeader)
				}
				_, _ = conn.Write(first)
				_, _ = io.ReadFull(conn, make([]byte, len(hello())+frameBytes+len(token)+frameBytes+keyBytes))
				_, _ = conn.Write(x.then)
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}
		}()
		c, err := Dial(context.Background(), Options{Teachers: []Teacher{{Address: l.Addr().String()}}, Token: token,
			Patience: 1})
		if err == nil {
			c.Start(upTo(1))
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // whom it believes, it waits for
			_, err = c.Row(ctx, key(0))
			cancel()
			_ = c.Close()
		}
		said := fmt.Sprint(err)
		if f := (*fault.Error)(nil); errors.As(err, &f) {
			said += f.Hint
		}
		if k := fault.KindOf(err); k != fault.Format && k != fault.Network || !strings.Contains(said, x.want) ||
			!strings.Contains(said, l.Addr().String()) {
			t.Errorf("%s: %v", name, err)
		}
		_ = l.Close()
		contracttest.Cases(t, 1)
	}
}

// TestStop: waiting for rows ends with its context, and nothing is lost.
func TestStop(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	let := make(chan struct{})
	_, end := start(t, l, header, func(keys []cache.Key) (rows [][]byte, err error) {
		<-let
		for _, k := range keys {
			rows = append(rows, row(k))
		}
		return rows, nil
	})
	defer end()
	c, err := Dial(context.Background(), Options{Teachers: []Teacher{{Address: l.Addr().String()}}, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Start(upTo(3))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Row(ctx, key(0)); fault.KindOf(err) != fault.Stopped {
		t.Fatal(err)
	}
	close(let)
	for i := range 3 {
		if got, err := c.Row(context.Background(), key(i)); err != nil || !bytes.Equal(got, row(key(i))) {
			t.Errorf("row %d: %x, %v", i, got, err)
		}
	}
	contracttest.Cases(t, 1)
}
