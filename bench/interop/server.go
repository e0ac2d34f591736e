package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"time"
)

// server is llama.cpp's server with one model, on this machine only.
type server struct {
	url  string
	stop func() // ends the process
	log  *bytes.Buffer
}

// serve starts a server and waits until it has loaded the model. Everything is computed in float32 by one thread.
func (p peer) serve(ctx context.Context, file string, length int) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return nil, err
	}
	words := append(strings.Fields(p.command), "server", "-m", file, "--host", "127.0.0.1", "--port", fmt.Sprint(port), "-c", fmt.Sprint(length), "-np", "1",
		"-t", "1", "-tb", "1", "-ctk", "f32", "-ctv", "f32", "-fa", "off", "--no-warmup", "--no-webui", "--no-repack")
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	s := &server{url: fmt.Sprintf("http://127.0.0.1:%d", port), log: &bytes.Buffer{}}
	cmd.Stdout, cmd.Stderr = s.log, s.log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	s.stop = func() { _ = cmd.Process.Kill(); <-ended }
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		select {
		case <-ended:
			return nil, fmt.Errorf("the peer does not load %s:\n%s", file, lastLines(s.log.String(), 12))
		default:
		}
		r, err := http.Get(s.url + "/health")
		if err != nil {
			continue
		}
		_ = r.Body.Close()
		if r.StatusCode == http.StatusOK {
			return s, nil
		}
	}
	s.stop()
	return nil, fmt.Errorf("the peer's server did not answer in a minute:\n%s", lastLines(s.log.String(), 12))
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// ask sends a JSON request and decodes the answer.
func (s *server) ask(ctx context.Context, path string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", "application/json")
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		var b bytes.Buffer
		_, _ = b.ReadFrom(r.Body)
		return fmt.Errorf("the peer's server: %s: %s", r.Status, b.String())
	}
	return json.NewDecoder(r.Body).Decode(answer)
}

// tokenize returns the ids of a text, with those that are added before and behind it if whole is true.
func (s *server) tokenize(ctx context.Context, text string, whole bool) (ids []int, err error) {
	var answer struct {
		Tokens []int `json:"tokens"`
	}
	err = s.ask(ctx, "/tokenize", map[string]any{"content": text, "add_special": whole, "parse_special": true}, &answer)
	return answer.Tokens, err
}

// continuation is what a server made of a prompt.
type continuation struct {
	text   string
	tokens []chosen
}

// chosen is a token of a continuation, with the log-probability of every id at its place.
type chosen struct {
	id   int
	logs []float64
}

// greedy lets the server continue ids by n tokens; rows is the size of the vocabulary.
func (s *server) greedy(ctx context.Context, ids []int, n, rows int) (c continuation, err error) {
	var answer struct {
		Content string `json:"content"`
		Tokens  []int  `json:"tokens"`
		Steps   []struct {
			ID  int `json:"id"`
			Top []struct {
				ID  int     `json:"id"`
				Log float64 `json:"logprob"`
			} `json:"top_logprobs"`
		} `json:"completion_probabilities"`
	}
	err = s.ask(ctx, "/completion", map[string]any{
		"prompt": ids, "n_predict": n, "n_probs": rows, "temperature": 0, "cache_prompt": false, "return_tokens": true, "samplers": []string{"temperature"},
	}, &answer)
	if err != nil {
		return c, err
	}
	if len(answer.Steps) != len(answer.Tokens) {
		return c, fmt.Errorf("the peer's server reports probabilities of %d tokens, and made %d", len(answer.Steps), len(answer.Tokens))
	}
	c.text = answer.Content
	for _, step := range answer.Steps {
		t := chosen{step.ID, make([]float64, rows)}
		for i := range t.logs {
			t.logs[i] = math.NaN()
		}
		for _, x := range step.Top {
			t.logs[x.ID] = x.Log
		}
		c.tokens = append(c.tokens, t)
	}
	return c, nil
}
