package openai

import (
	"net/http"

	"apr/generate"
)

// tokenScores is the logprobs of a choice of the completions endpoint. The first token of a prompt has none: null.
type tokenScores struct {
	Tokens   []string             `json:"tokens"`
	LogProbs []*float64           `json:"token_logprobs"`
	Top      []map[string]float64 `json:"top_logprobs"`
	Offsets  []int                `json:"text_offset"`
}

// add appends a token. Its own log-probability is among the likeliest, as clients expect.
func (s *Server) add(l *tokenScores, t generate.Token, scored bool, offset *int) {
	text, _ := s.tokenText(t.ID)
	l.Tokens, l.Offsets = append(l.Tokens, text), append(l.Offsets, *offset)
	*offset += len([]rune(text))
	if !scored {
		l.LogProbs, l.Top = append(l.LogProbs, nil), append(l.Top, nil)
		return
	}
	top := map[string]float64{text: t.LogProb}
	for _, a := range t.Top {
		name, _ := s.tokenText(a.ID)
		if p, ok := top[name]; !ok || a.LogProb > p {
			top[name] = a.LogProb
		}
	}
	p := t.LogProb
	l.LogProbs, l.Top = append(l.LogProbs, &p), append(l.Top, top)
}

// scores describes the tokens of a choice, those of its prompt first if the text has it.
func (s *Server) scores(o order, r generate.Request, prompt, tokens []generate.Token) *tokenScores {
	if !o.logProbs {
		return nil
	}
	l := &tokenScores{Tokens: []string{}, LogProbs: []*float64{}, Top: []map[string]float64{}, Offsets: []int{}}
	offset := 0
	if o.echo {
		s.add(l, generate.Token{ID: r.Prompt[0]}, false, &offset)
		for _, t := range prompt {
			s.add(l, t, true, &offset)
		}
	}
	for _, t := range tokens {
		s.add(l, t, true, &offset)
	}
	return l
}

// completions answers /v1/completions.
func (s *Server) completions(rw http.ResponseWriter, r *http.Request, raw []byte) error {
	o, err := s.completion(raw)
	if err != nil {
		return err
	}
	w, err := s.write(r.Context(), o)
	if err != nil {
		return err
	}
	defer w.end()
	id, now := s.id("cmpl"), s.c.Now().Unix()
	one := func(i int, text, finish string, prompt, tokens []generate.Token) any {
		return map[string]any{"index": i, "text": text, "logprobs": s.scores(o, o.requests[i], prompt, tokens), "finish_reason": reason(finish)}
	}
	if o.stream {
		s.pour(rw, w, func(choices []any, u *usage) any {
			return s.chunk(id, "text_completion", now, choices, u)
		}, func(p piece) any { return one(p.choice, p.text, p.finish, nil, p.tokens) })
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
		if o.echo {
			before, err := s.c.Tok.Decode(o.requests[i].Prompt)
			if err != nil {
				return err
			}
			c.text = before + c.text
		}
		choices = append(choices, one(i, c.text, c.finish, w.all[i].Scores(), c.tokens))
	}
	u := w.used(made)
	s.answer(rw, http.StatusOK, s.chunk(id, "text_completion", now, choices, &u))
	return nil
}
