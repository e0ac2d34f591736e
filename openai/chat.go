package openai

import (
	"net/http"

	"apr/generate"
)

// chatToken is a token of an answer with its log-probability.
type chatToken struct {
	Token   string      `json:"token"`
	LogProb float64     `json:"logprob"`
	Bytes   []int       `json:"bytes"`
	Top     []chatToken `json:"top_logprobs,omitempty"`
}

// chatTokens describes tokens as the chat endpoint does.
func (s *Server) chatTokens(tokens []generate.Token) (all []chatToken) {
	one := func(id int32, p float64) chatToken {
		text, raw := s.tokenText(id)
		c := chatToken{Token: text, LogProb: p, Bytes: []int{}}
		for _, b := range raw {
			c.Bytes = append(c.Bytes, int(b))
		}
		return c
	}
	for _, t := range tokens {
		c := one(t.ID, t.LogProb)
		for _, a := range t.Top {
			c.Top = append(c.Top, one(a.ID, a.LogProb))
		}
		all = append(all, c)
	}
	return all
}

// chatLogProbs is the logprobs of a choice; nil: nobody asked for them.
func (s *Server) chatLogProbs(o order, tokens []generate.Token) any {
	if !o.logProbs {
		return nil
	}
	content := s.chatTokens(tokens)
	if content == nil {
		content = []chatToken{}
	}
	return map[string]any{"content": content, "refusal": nil}
}

// chat answers /v1/chat/completions.
func (s *Server) chat(rw http.ResponseWriter, r *http.Request, raw []byte) error {
	o, err := s.conversation(raw)
	if err != nil {
		return err
	}
	w, err := s.write(r.Context(), o)
	if err != nil {
		return err
	}
	defer w.end()
	id, now := s.id("chatcmpl"), s.c.Now().Unix()
	if o.stream {
		begun := make([]bool, len(o.requests))
		s.pour(rw, w, func(choices []any, u *usage) any {
			return s.chunk(id, "chat.completion.chunk", now, choices, u)
		}, func(p piece) any {
			delta := map[string]any{}
			if !begun[p.choice] {
				begun[p.choice] = true
				delta["role"] = "assistant"
			}
			if p.text != "" || delta["role"] != nil {
				delta["content"] = p.text
			}
			return map[string]any{"index": p.choice, "delta": delta, "logprobs": s.chatLogProbs(o, p.tokens), "finish_reason": reason(p.finish)}
		})
		return nil
	}
	all, err := s.collect(w)
	if err != nil {
		return err
	}
	var choices []any
	made := 0
	for i, c := range all {
		made += c.made
		choices = append(choices, map[string]any{
			"index": i, "message": map[string]any{"role": "assistant", "content": c.text, "refusal": nil}, "logprobs": s.chatLogProbs(o, c.tokens), "finish_reason": c.finish,
		})
	}
	u := w.used(made)
	s.answer(rw, http.StatusOK, s.chunk(id, "chat.completion", now, choices, &u))
	return nil
}

// chunk is an answer, or a part of one.
func (s *Server) chunk(id, object string, now int64, choices []any, u *usage) map[string]any {
	m := map[string]any{"id": id, "object": object, "created": now, "model": s.c.Model, "choices": choices}
	if u != nil {
		m["usage"] = u
	}
	return m
}

// reason is null while a text goes on.
func reason(finish string) any {
	if finish == "" {
		return nil
	}
	return finish
}
