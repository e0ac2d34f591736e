package collective

import "sync"

// letter is a message that waits to be taken.
type letter struct {
	from int
	text []byte
}

// mailbox holds the messages for one rank, in the order in which they came.
type mailbox struct {
	mu      sync.Mutex
	changed sync.Cond // a message came, or none can come any more
	letters []letter
	partly  map[int][]byte // of messages whose last piece has not come, by sender
}

// put adds a message.
func (m *mailbox) put(from int, text []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.letters = append(m.letters, letter{from, text})
	m.changed.Broadcast()
}

// piece adds bytes at position at of a message of n bytes, and reports whether they are the next ones.
func (m *mailbox) piece(from int, n, at uint64, text []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.partly[from]
	if uint64(len(have)) != at || at+uint64(len(text)) > n {
		return false
	}
	have = append(have, text...)
	delete(m.partly, from)
	if uint64(len(have)) == n {
		m.letters = append(m.letters, letter{from, have})
		m.changed.Broadcast()
		return true
	}
	if m.partly == nil {
		m.partly = map[int][]byte{}
	}
	m.partly[from] = have
	return true
}

// wake lets all that wait look again.
func (m *mailbox) wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changed.Broadcast()
}

// take waits for a message of rank from, or of Anyone, until over returns why none will come.
func (m *mailbox) take(from int, over func() error) (int, []byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		for i, l := range m.letters {
			if from == Anyone || from == l.from {
				m.letters = append(m.letters[:i], m.letters[i+1:]...)
				return l.from, l.text, nil
			}
		}
		if err := over(); err != nil {
			return 0, nil, err
		}
		m.changed.Wait()
	}
}

// Post sends a message to another rank, through rank 0.
func (s *sockets) Post(to int, x []byte) error {
	if s.lost.Load() != nil {
		return s.failed()
	}
	if to < 0 || to >= s.size || to == s.rank {
		panic("collective: Post to a rank that is no other one of the group")
	}
	p, other := s.peers[0], to
	if s.rank == 0 {
		p, other = s.peers[to], 0
	}
	for at := 0; ; at += chunk {
		hi := min(at+chunk, len(x))
		f := frame{kind: framePost, peer: uint16(other), n: uint64(len(x)), at: uint64(at), payload: x[at:hi]}
		if err := s.give(p, f); err != nil || hi == len(x) {
			return err
		}
	}
}

// pass delivers a piece of a message, or passes it on at rank 0. Who passes on does not read meanwhile, so that a
// sender is not faster than the receiver's connection.
func (s *link) pass(p *peer, f frame) {
	from, to := int(f.peer), s.rank
	if s.rank == 0 {
		from, to = p.rank, int(f.peer)
	}
	switch {
	case to >= s.size || from >= s.size:
		s.fail(&Lost{Rank: p.rank, World: s.size, How: Gone, Cause: "it sent a message for a rank that does not exist"})
	case to != s.rank:
		if q := s.peers[to]; q != nil && !q.left.Load() {
			f.peer = uint16(from)
			_ = q.send(f) // its reader finds out why
		}
	case !s.mail.piece(from, f.n, f.at, f.payload):
		s.fail(&Lost{Rank: p.rank, World: s.size, How: Gone, Cause: "it sent pieces of a message out of order"})
	}
}

// Take waits for a message.
func (s *sockets) Take(from int) (int, []byte, error) {
	return s.mail.take(from, func() error {
		if s.lost.Load() != nil {
			return s.failed()
		}
		for _, p := range s.all() { // of ranks above 0: rank 0, through which all comes
			if !p.left.Load() && (from == Anyone || s.rank > 0 || from == p.rank) {
				return nil
			}
		}
		return &Lost{Rank: max(from, 0), World: s.size, How: Gone, Cause: "it has left the group"}
	})
}

// Post puts a copy of a message into the other rank's mailbox.
func (l *local) Post(to int, x []byte) error {
	g := l.g.whole()
	if to < 0 || to >= g.world || to == l.rank {
		panic("collective: Post to a rank that is no other one of the group")
	}
	g.mu.Lock()
	lost := g.lost
	g.mu.Unlock()
	if lost != nil {
		return lost
	}
	g.mail[to].put(l.rank, append([]byte(nil), x...))
	return nil
}

// Take waits for a message.
func (l *local) Take(from int) (int, []byte, error) {
	g := l.g.whole()
	return g.mail[l.rank].take(from, func() error {
		g.mu.Lock()
		defer g.mu.Unlock()
		switch {
		case g.lost != nil:
			return g.lost
		case from == Anyone && len(g.closed) >= g.world-1:
			return &Lost{Rank: 0, World: g.world, How: Gone, Cause: "it has left the group"}
		}
		for _, r := range g.closed {
			if r == from {
				return &Lost{Rank: r, World: g.world, How: Gone, Cause: "it has left the group"}
			}
		}
		return nil
	})
}
