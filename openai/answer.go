package openai

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"apr/generate"
)

// usage counts tokens.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// piece is what a choice has new to show.
type piece struct {
	choice int
	text   string
	tokens []generate.Token
	finish string // at the end: "stop" or "length"
	made   int    // at the end: tokens
	err    error  // at the end
}

// writing is the texts of a request under way.
type writing struct {
	order  order
	all    []*generate.Sequence
	cancel []context.CancelFunc
	end    context.CancelFunc
}

// write begins the texts of a request. The caller calls end.
func (s *Server) write(ctx context.Context, o order) (*writing, error) {
	ctx, end := context.WithCancel(ctx)
	w := &writing{order: o, end: end}
	for _, r := range o.requests {
		one, cancel := context.WithCancel(ctx)
		q, err := s.c.Engine.Submit(one, r)
		if err != nil {
			cancel()
			end()
			return nil, err
		}
		w.all, w.cancel = append(w.all, q), append(w.cancel, cancel)
	}
	return w, nil
}

// follow shows the text of a choice as it is made, and its end.
func (s *Server) follow(w *writing, i int, show func(piece)) {
	q, decoder, cut := w.all[i], s.c.Tok.NewStream(), cutter{stops: w.order.stops}
	made, ended := 0, false
	for t := range q.Tokens {
		if ended {
			continue // the engine has not seen it yet
		}
		made++
		text, err := decoder.Push(t.ID)
		if err != nil {
			show(piece{choice: i, err: err})
			return
		}
		if text, ended = cut.push(text); ended {
			w.cancel[i]()
			show(piece{choice: i, text: text, finish: "stop", made: made})
			continue
		}
		if text != "" || w.order.logProbs {
			show(piece{choice: i, text: text, tokens: []generate.Token{t}})
		}
	}
	if ended {
		return
	}
	r, err := q.Result()
	if err != nil {
		show(piece{choice: i, err: err})
		return
	}
	text, stopped := cut.push(decoder.Flush())
	if !stopped {
		text += cut.rest()
	} else {
		r.FinishReason = "stop"
	}
	show(piece{choice: i, text: text, finish: r.FinishReason, made: made})
}

// pieces follows all choices at once. show is called by one goroutine at a time.
func (s *Server) pieces(w *writing, show func(piece)) {
	var mu sync.Mutex
	var each sync.WaitGroup
	for i := range w.all {
		each.Go(func() {
			s.follow(w, i, func(p piece) {
				mu.Lock()
				defer mu.Unlock()
				show(p)
			})
		})
	}
	each.Wait()
}

// choice is a text that is complete.
type choice struct {
	text, finish string
	tokens       []generate.Token
	made         int
}

// collect waits for all choices.
func (s *Server) collect(w *writing) ([]choice, error) {
	all := make([]choice, len(w.all))
	var failed error
	s.pieces(w, func(p piece) {
		c := &all[p.choice]
		c.text += p.text
		c.tokens = append(c.tokens, p.tokens...)
		if p.err != nil && failed == nil {
			failed = p.err
			w.end()
		}
		if p.finish != "" {
			c.finish, c.made = p.finish, p.made
		}
	})
	return all, failed
}

// used sums tokens up; those of a prompt count once.
func (w *writing) used(made int) usage {
	u := usage{Completion: made}
	for _, r := range w.order.requests {
		if r.Sample == 0 {
			u.Prompt += len(r.Prompt)
		}
	}
	u.Total = u.Prompt + u.Completion
	return u
}

// id names an answer.
func (s *Server) id(kind string) string {
	return fmt.Sprintf("%s-%d-%d", kind, s.created, s.ids.Add(1))
}

// tokenText returns a token's own text.
func (s *Server) tokenText(id int32) (text string, raw []byte) {
	raw, err := s.c.Tok.AppendBytes(nil, []int32{id})
	if err != nil {
		return "", nil
	}
	return visible(raw), raw
}

// events is a stream of server-sent events.
type events struct {
	s    *Server
	w    http.ResponseWriter
	c    *http.ResponseController
	gone bool
}

// stream begins an answer by events.
func (s *Server) stream(w http.ResponseWriter) *events {
	s.requests[http.StatusOK].Add(1)
	w.Header().Set("Content-Type", "text/event-stream")
	e := &events{s: s, w: w, c: http.NewResponseController(w)}
	w.WriteHeader(http.StatusOK)
	return e
}

// send sends an event at once. It reports false if the client has gone, or does not read.
func (e *events) send(data []byte) bool {
	if e.gone {
		return false
	}
	_ = e.c.SetWriteDeadline(time.Now().Add(e.s.c.Limits.Idle))
	_, err := fmt.Fprintf(e.w, "data: %s\n\n", data)
	if err == nil {
		err = e.c.Flush()
	}
	e.gone = err != nil
	return !e.gone
}

// pour sends the pieces of all choices as chunk makes events of them, and the end.
func (s *Server) pour(rw http.ResponseWriter, w *writing, chunk func(choices []any, u *usage) any, show func(piece) any) {
	e, made := s.stream(rw), 0
	s.pieces(w, func(p piece) {
		if p.err != nil {
			e.send(trim(encode(map[string]any{"error": errorOf(p.err)})))
			e.gone = true
			w.end()
			return
		}
		made += p.made
		if !e.send(trim(encode(chunk([]any{show(p)}, nil)))) {
			w.end()
		}
	})
	if w.order.usage {
		u := w.used(made)
		e.send(trim(encode(chunk([]any{}, &u))))
	}
	e.send([]byte("[DONE]"))
}

// trim drops the line end.
func trim(b []byte) []byte { return b[:len(b)-1] }
