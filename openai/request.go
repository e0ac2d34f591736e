package openai

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"apr/generate"
	"apr/tokenizer"
)

// order is what a client asks for: choices texts, of one prompt or several.
type order struct {
	requests []generate.Request // choices, prompt by prompt
	echo     bool
	stops    []string
	logProbs bool
	stream   bool
	usage    bool // a stream ends with it
}

// common reads what both endpoints have alike. tokens is the default of max_tokens.
func (s *Server) common(p *params, tokens int) (o order, one generate.Request, n int) {
	var model string
	if p.get("model", &model, "a text") && p.err == nil {
		p.err = s.serves(model)
	}
	one.Options = generate.Options{RepeatPenalty: 1, Stop: s.c.Stop}
	one.Temperature = p.number("temperature", 1, 0, 100)
	one.TopP = p.number("top_p", 1, 0, 1)
	one.TopK = p.integer("top_k", 0, 0, 1<<30)
	one.MaxTokens = p.integer("max_tokens", tokens, 0, s.c.Limits.MaxTokens)
	if _, ok := p.v["max_completion_tokens"]; ok {
		one.MaxTokens = p.integer("max_completion_tokens", tokens, 0, s.c.Limits.MaxTokens)
	}
	seed := int64(0)
	if p.get("seed", &seed, "a whole number") {
		one.Seed = uint64(seed)
	} else {
		one.Seed = s.c.Seed()
	}
	n = p.integer("n", 1, 1, s.c.Limits.Choices)
	o.stops = p.stops()
	o.stream = p.boolean("stream")
	var options struct {
		Usage bool `json:"include_usage"`
	}
	p.get("stream_options", &options, "an object")
	if o.usage = options.Usage; o.usage && !o.stream && p.err == nil {
		p.err = refuse(http.StatusBadRequest, "stream_options", "stream_options belongs to stream")
	}
	one.LogProbs = -1
	return o, one, n
}

// fit refuses a prompt that leaves no room, and shortens an answer whose length nobody asked for.
func (s *Server) fit(r *generate.Request, asked bool) *Error {
	room := s.c.Limits.Context - len(r.Prompt)
	switch {
	case len(r.Prompt) == 0:
		return refuse(http.StatusBadRequest, "prompt", "the prompt has no tokens")
	case room < 0, asked && r.MaxTokens > room, room == 0 && r.MaxTokens > 0:
		e := refuse(http.StatusBadRequest, "max_tokens", "a prompt of %d tokens and %d more exceed the context of %d", len(r.Prompt), r.MaxTokens, s.c.Limits.Context)
		e.Code = "context_length_exceeded"
		return e
	}
	r.MaxTokens = min(r.MaxTokens, room)
	return nil
}

// asked reports whether the client has said how long an answer may be.
func (p *params) asked() bool { return p.v["max_tokens"] != nil || p.v["max_completion_tokens"] != nil }

// prompts reads the prompt of the completions endpoint: a text, ids, or a list of either.
func (s *Server) prompts(p *params) (all [][]int32) {
	p.seen["prompt"] = true
	raw := p.v["prompt"]
	var ids []int32
	var lists [][]int32
	switch {
	case raw == nil:
		if p.err == nil {
			p.err = refuse(http.StatusBadRequest, "prompt", "prompt is missing")
		}
		return nil
	case json.Unmarshal(raw, &ids) == nil && len(ids) > 0:
		lists = [][]int32{ids}
	case json.Unmarshal(raw, &lists) == nil && len(lists) > 0:
	default:
		lists = nil // of what it is not
		for _, text := range p.oneOrMore("prompt", s.c.Limits.Choices) {
			all = append(all, s.c.Tok.Append(s.c.Tok.Begin(nil), text, tokenizer.PlainText))
		}
	}
	for _, list := range lists {
		for _, id := range list {
			if id < 0 || int(id) >= s.c.Tok.RealIDs() {
				p.err = refuse(http.StatusBadRequest, "prompt", "id %d is not one of %d", id, s.c.Tok.RealIDs())
				return nil
			}
		}
		all = append(all, list)
	}
	return all
}

// completion reads a request of the completions endpoint.
func (s *Server) completion(raw []byte) (order, error) {
	p, bad := parse(raw)
	if bad != nil {
		return order{}, bad
	}
	o, one, n := s.common(p, min(16, s.c.Limits.MaxTokens))
	prompts := s.prompts(p)
	o.echo = p.boolean("echo")
	if top := p.integer("logprobs", -1, 0, 20); top >= 0 {
		one.LogProbs, o.logProbs = top, true
	}
	p.integer("best_of", n, n, n)
	if one.Score = o.echo && o.logProbs; p.err == nil && o.echo && o.stream {
		p.err = refuse(http.StatusBadRequest, "echo", "echo and stream exclude each other")
	}
	if p.err == nil && one.MaxTokens == 0 && !o.echo {
		p.err = refuse(http.StatusBadRequest, "max_tokens", "max_tokens 0 belongs to echo")
	}
	if p.err == nil && len(prompts)*n > s.c.Limits.Choices {
		p.err = refuse(http.StatusBadRequest, "n", "%d prompts times %d texts are more than %d", len(prompts), n, s.c.Limits.Choices)
	}
	for _, ids := range prompts {
		r := one
		r.Prompt = ids
		if p.err == nil {
			p.err = s.fit(&r, p.asked())
		}
		for i := range n {
			r.Sample = i
			o.requests = append(o.requests, r)
		}
	}
	return o, p.end()
}

// message is a turn of a conversation as clients send it.
type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
	Tools   json.RawMessage `json:"tool_calls"`
}

// conversation reads a request of the chat endpoint.
func (s *Server) conversation(raw []byte) (order, error) {
	p, bad := parse(raw)
	if bad != nil {
		return order{}, bad
	}
	if s.c.Chat == nil {
		return order{}, refuse(http.StatusBadRequest, "", "this model does not converse: %s", s.c.NoChat)
	}
	o, one, n := s.common(p, s.c.Limits.MaxTokens)
	o.logProbs = p.boolean("logprobs")
	if top := p.integer("top_logprobs", 0, 0, 20); o.logProbs {
		one.LogProbs = top
	} else if top > 0 && p.err == nil {
		p.err = refuse(http.StatusBadRequest, "top_logprobs", "top_logprobs belongs to logprobs")
	}
	if p.err == nil && one.MaxTokens == 0 {
		p.err = refuse(http.StatusBadRequest, "max_tokens", "max_tokens has to be at least 1")
	}
	var turns []message
	p.get("messages", &turns, "a list of messages")
	if err := p.end(); err != nil {
		return o, err
	}
	messages, err := readMessages(turns)
	if err != nil {
		return o, err
	}
	segments, render := s.c.Chat.Render(messages, true)
	if render != nil {
		return o, refuse(http.StatusBadRequest, "messages", "the model's chat template refuses the conversation: %s", render)
	}
	for _, segment := range segments {
		one.Prompt = append(one.Prompt, segment.IDs...)
	}
	if err := s.fit(&one, p.asked()); err != nil {
		return o, err
	}
	for i := range n {
		one.Sample = i
		o.requests = append(o.requests, one)
	}
	return o, nil
}

// readMessages takes texts, whole or in parts.
func readMessages(turns []message) (all []tokenizer.Message, err error) {
	if len(turns) == 0 {
		return nil, refuse(http.StatusBadRequest, "messages", "messages is empty")
	}
	for i, turn := range turns {
		if !slices.Contains([]string{"system", "developer", "user", "assistant"}, turn.Role) {
			return nil, refuse(http.StatusBadRequest, fmt.Sprintf("messages[%d].role", i), "the role %q is not system, developer, user or assistant", turn.Role)
		}
		if turn.Tools != nil && string(turn.Tools) != "null" {
			return nil, refuse(http.StatusBadRequest, fmt.Sprintf("messages[%d].tool_calls", i), "calls of tools are not supported")
		}
		m := tokenizer.Message{Role: turn.Role}
		var parts []struct{ Type, Text string }
		switch {
		case json.Unmarshal(turn.Content, &m.Content) == nil && len(turn.Content) > 0:
		case json.Unmarshal(turn.Content, &parts) == nil:
			for _, part := range parts {
				if part.Type != "text" {
					return nil, refuse(http.StatusBadRequest, fmt.Sprintf("messages[%d].content", i), "content of type %q is not supported: text is", part.Type)
				}
				m.Content += part.Text
			}
		default:
			return nil, refuse(http.StatusBadRequest, fmt.Sprintf("messages[%d].content", i), "content has to be a text or a list of texts")
		}
		all = append(all, m)
	}
	return all, nil
}
