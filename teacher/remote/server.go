package remote

import (
	"container/list"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"apr/internal/fault"
	"apr/teacher/cache"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// most clients of a server at a time.
const maxClients = 64

// recentBytes are those of rows that a server keeps for students that come later to them.
const recentBytes = 256 << 20

// Head is the file that a student needs of the teacher beside its rows.
type Head struct {
	Path   string
	SHA256 [sha256.Size]byte
	Bytes  int64
}

// Server answers clients with rows.
type Server struct {
	Header cache.Header
	Head   Head
	Token  string
	Has    func(cache.Key) bool
	// Make returns the encoded rows of up to Header.PassRows distinct keys. One goroutine calls it.
	Make func([]cache.Key) ([][]byte, error)
	Log  func(format string, args ...any) // nil: nobody is told

	mu      sync.Mutex
	wake    *sync.Cond
	clients []*client
	turn    int // of clients, whose next key comes first
	ended   bool

	recent map[cache.Key]*list.Element // of order
	order  *list.List                  // of recentRow, the latest first
	held   int64                       // bytes
	made   int64
	sent   int64
}

type recentRow struct {
	key  cache.Key
	data []byte
}

// reply is a frame to a client: a row, or the head.
type reply struct {
	key  cache.Key
	data []byte
	head bool
}

// client is a connection that was let in.
type client struct {
	w       *wire
	wanted  []cache.Key
	pending int  // rows that were asked for and not sent
	asked   bool // for the head
	out     chan reply
	gone    chan struct{}
	once    sync.Once
}

// quit ends what is sent to the client, leave the connection too.
func (c *client) quit() { c.once.Do(func() { close(c.gone) }) }

func (c *client) leave() {
	c.quit()
	_ = c.w.Close() // it may be closed
}

func (s *Server) log(format string, args ...any) {
	if s.Log != nil {
		s.Log(format, args...)
	}
}

// Serve answers who comes to a listener until ctx ends, which is no error, or a row cannot be made.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.wake, s.recent, s.order = sync.NewCond(&s.mu), map[cache.Key]*list.Element{}, list.New()
	var wait sync.WaitGroup
	stop := context.AfterFunc(ctx, s.end)
	defer stop()
	slots := make(chan struct{}, maxClients)
	wait.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				s.end()
				return
			}
			select {
			case slots <- struct{}{}:
				wait.Go(func() {
					defer func() { <-slots }()
					s.serve(newWire(conn, conn.RemoteAddr().String()))
				})
			default:
				_ = conn.Close()
				s.log("%s was turned away: %d students are served already", conn.RemoteAddr(), maxClients)
			}
		}
	})
	err := s.work()
	s.end()
	_ = l.Close() // ends Accept
	wait.Wait()
	if ctx.Err() != nil && err == nil {
		return nil
	}
	return err
}

// Rows returns how many rows were made, and how many were sent.
func (s *Server) Rows() (made, sent int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made, s.sent
}

// end lets all go.
func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, c := range s.clients {
		c.leave()
	}
	s.wake.Broadcast()
}

// serve serves a connection until it ends.
func (s *Server) serve(w *wire) {
	defer w.Close()
	if err := s.greet(w); err != nil {
		s.log("%s was turned away: %v", w.peer, err)
		return
	}
	c := &client{w: w, out: make(chan reply, s.allowed()+1), gone: make(chan struct{})}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.clients = append(s.clients, c)
	s.mu.Unlock()
	s.log("%s asks for rows", w.peer)
	var wait sync.WaitGroup
	wait.Go(func() { s.send(c) })
	err := s.listen(c)
	c.quit()
	wait.Wait()
	if f := (*fault.Error)(nil); errors.As(err, &f) {
		_ = w.write(kindRefused, []byte(clip(err.Error()))) // who sent garbage may read it
	}
	s.mu.Lock()
	for i, x := range s.clients {
		if x == c {
			s.clients = append(s.clients[:i:i], s.clients[i+1:]...)
			break
		}
	}
	s.mu.Unlock()
	s.log("%s has left: %v", w.peer, err)
}

func clip(text string) string { return text[:min(len(text), maxText)] }

// allowed is how many rows a client may have asked for and not received.
func (s *Server) allowed() int { return Lead(s.Header) + maxKeys }

// greet lets in who knows the token, and says what is served.
func (s *Server) greet(w *wire) error {
	var hello [len(greeting) + 4]byte
	w.due(handshakeTime)
	if _, err := io.ReadFull(w.r, hello[:]); err != nil {
		return err
	}
	if string(hello[:len(greeting)]) != greeting {
		return errGarbage
	}
	if v := binary.LittleEndian.Uint32(hello[len(greeting):]); v != version {
		return w.refuse(speaksVersion+" %d of the protocol, this teacher %d", v, version)
	}
	_, token, err := w.read(handshakeTime, only(kindToken, maxToken))
	if err != nil {
		return err
	}
	a, b := sha256.Sum256(token), sha256.Sum256([]byte(s.Token))
	if s.Token == "" || subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
		return w.refuse("the token is not this teacher's")
	}
	prefix := binary.LittleEndian.AppendUint64(s.Head.SHA256[:], uint64(s.Head.Bytes))
	header := s.Header.JSON()
	return w.write(kindHeader, prefix, binary.LittleEndian.AppendUint32(nil, sumOfHeader(prefix, header)), header)
}

// speaksVersion begins what a client of another version is told.
const speaksVersion = "speaks version"

// refuse says why, and returns it.
func (w *wire) refuse(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return errors.Join(err, w.write(kindRefused, []byte(clip(err.Error()))))
}

// listen takes what a client asks for.
func (s *Server) listen(c *client) error {
	for {
		kind, b, err := c.w.read(0, func(kind byte) int64 {
			switch kind {
			case kindAskHead:
				return 0
			case kindAskRows:
				return maxKeys * keyBytes
			}
			return -1
		})
		if err != nil {
			return err
		}
		if kind == kindAskHead {
			if c.asked {
				return garbage(c.w.peer, "asked for the head twice")
			}
			c.asked = true
			c.out <- reply{head: true} // has room for one beside all rows
			continue
		}
		keys, err := keysOf(c.w.peer, b)
		if err != nil {
			return err
		}
		if err := s.want(c, keys); err != nil {
			return err
		}
	}
}

// want queues rows for a client.
func (s *Server) want(c *client, keys []cache.Key) error {
	for _, k := range keys {
		if !s.Has(k) {
			return fault.In(fault.Invalid, c.w.peer, "asked for the row %s, which is not in the teacher's data", short(k)).
				WithID("E-TEACH-011")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.pending+len(keys) > s.allowed() {
		return garbage(c.w.peer, "asked for %d rows ahead, at most %d", c.pending+len(keys), s.allowed())
	}
	c.pending += len(keys)
	c.wanted = append(c.wanted, keys...)
	s.wake.Signal()
	return nil
}

// send writes to a client what is due, and pings while nothing is.
func (s *Server) send(c *client) {
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	for {
		var err error
		select {
		case <-c.gone:
			return
		case <-ping.C:
			err = c.w.write(kindPing)
		case r := <-c.out:
			if r.head {
				err = s.sendHead(c)
				break
			}
			crc := binary.LittleEndian.AppendUint32(nil, crc32.Checksum(r.data, castagnoli))
			err = c.w.write(kindRow, r.key[:], crc, r.data)
			s.mu.Lock()
			c.pending--
			s.sent++
			s.mu.Unlock()
		}
		if err != nil {
			s.log("%s does not take what it asked for: %v", c.w.peer, err)
			c.leave()
			return
		}
	}
}

// sendHead writes the head, part by part.
func (s *Server) sendHead(c *client) error {
	f, err := os.Open(s.Head.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	part := make([]byte, partBytes)
	for left := s.Head.Bytes; left > 0; {
		n := min(left, partBytes)
		if _, err := io.ReadFull(f, part[:n]); err != nil {
			return err
		}
		if err := c.w.write(kindHead, part[:n]); err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// work makes rows until the server ends.
func (s *Server) work() error {
	for {
		keys, waiting := s.next()
		if keys == nil {
			return nil
		}
		rows, err := s.Make(keys)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.made += int64(len(rows))
		for i, k := range keys {
			s.keep(k, rows[i])
			for _, c := range waiting[k] {
				c.out <- reply{key: k, data: rows[i]} // has room for all that is pending
			}
		}
		s.mu.Unlock()
	}
}

// next returns the keys of a pass, a key of each client in turn, and who waits for each; nil: the server ends. Rows
// that were made lately are sent on the way.
func (s *Server) next() (keys []cache.Key, waiting map[cache.Key][]*client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting = map[cache.Key][]*client{}
	for len(keys) == 0 {
		for len(keys) < s.Header.PassRows {
			c := s.nextClient()
			if c == nil {
				break
			}
			k := c.wanted[0]
			c.wanted = c.wanted[1:]
			if e, ok := s.recent[k]; ok {
				s.order.MoveToFront(e)
				c.out <- reply{key: k, data: e.Value.(recentRow).data}
				continue
			}
			if waiting[k] == nil {
				keys = append(keys, k)
			}
			waiting[k] = append(waiting[k], c)
		}
		if len(keys) > 0 {
			break
		}
		if s.ended {
			return nil, nil
		}
		s.wake.Wait()
	}
	if s.ended {
		return nil, nil
	}
	return keys, waiting
}

// nextClient returns the next client in turn that wants a row; nil: none does.
func (s *Server) nextClient() *client {
	for range s.clients {
		s.turn++
		if c := s.clients[s.turn%len(s.clients)]; len(c.wanted) > 0 {
			return c
		}
	}
	return nil
}

// keep holds a row for students that come to it later.
func (s *Server) keep(k cache.Key, data []byte) {
	s.recent[k] = s.order.PushFront(recentRow{k, data})
	s.held += int64(len(data))
	for s.held > recentBytes && s.order.Len() > 1 {
		e := s.order.Back()
		old := s.order.Remove(e).(recentRow)
		delete(s.recent, old.key)
		s.held -= int64(len(old.data))
	}
}
