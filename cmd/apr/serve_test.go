//go:build !windows

package main

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"apr/internal/contracttest"
)

// service is a running apr serve.
type service struct {
	t    *testing.T
	base string // http://127.0.0.1:PORT/v1
	c    *exec.Cmd
	end  chan error
	log  *bytes.Buffer
}

// startServe starts apr serve on a free port.
func startServe(t *testing.T, args ...string) *service {
	t.Helper()
	s := &service{t: t, end: make(chan error, 1), log: &bytes.Buffer{}}
	s.c = exec.Command(program(t), append([]string{"serve", "../../testdata/models/gosrc", "--listen", "127.0.0.1:0", "--backend", "cpu"}, args...)...)
	s.c.Stderr = s.log
	out, err := s.c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.c.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %s", err, s.log)
	}
	s.base = strings.TrimSpace(line)
	go func() { s.end <- s.c.Wait() }()
	t.Cleanup(func() { _ = s.c.Process.Kill() })
	return s
}

// ask sends a request and returns the status and the body.
func (s *service) ask(method, path, body string, change ...func(*http.Request)) (int, string) {
	s.t.Helper()
	r, err := http.NewRequest(method, s.base+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for _, f := range change {
		f(r)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, string(raw)
}

// completion is what the tests read of an answer.
type completion struct {
	Object  string
	Model   string
	Choices []struct {
		Index        int
		Text         string
		FinishReason string `json:"finish_reason"`
		Message      struct{ Role, Content string }
		Delta        struct{ Role, Content string }
		LogProbs     *struct {
			Tokens   []string
			LogProbs []*float64           `json:"token_logprobs"`
			Top      []map[string]float64 `json:"top_logprobs"`
			Content  []struct {
				Token   string
				LogProb float64
				Top     []struct{ Token string } `json:"top_logprobs"`
			}
		}
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	}
	Error *struct{ Message, Type, Param, Code string }
}

// get asks and reads the answer, whose status has to be 200.
func (s *service) get(path, body string) completion {
	s.t.Helper()
	code, text := s.ask("POST", path, body)
	var c completion
	if err := json.Unmarshal([]byte(text), &c); code != 200 || err != nil {
		s.t.Fatalf("%s %s: %d %s (%v)", path, body, code, text, err)
	}
	return c
}

// events reads a stream up to [DONE].
func (s *service) events(path, body string) (all []completion) {
	s.t.Helper()
	code, text := s.ask("POST", path, body)
	if code != 200 || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		s.t.Fatalf("%d %s", code, text)
	}
	for _, line := range strings.Split(strings.TrimSuffix(text, "data: [DONE]\n\n"), "\n\n") {
		if line == "" {
			continue
		}
		var c completion
		if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &c); err != nil {
			s.t.Fatalf("%v: %s", err, line)
		}
		all = append(all, c)
	}
	return all
}

// TestServe: what clients of OpenAI ask for is answered as they expect it.
func TestServe(t *testing.T) {
	s := startServe(t, "--chat-template", "chatml", "--slots", "3", "--name", "small", "--max-tokens", "64")
	const prompt = `"package main\n\nimport (\n\t\""`
	t.Run("models", func(t *testing.T) {
		if code, text := s.ask("GET", "/models", ""); code != 200 || !strings.Contains(text, `"id":"small","object":"model"`) {
			t.Errorf("%d %s", code, text)
		}
		if code, text := s.ask("GET", "/models/other", ""); code != 404 || !strings.Contains(text, `"code":"model_not_found"`) {
			t.Errorf("%d %s", code, text)
		}
	})
	ask := func(more string) string { return `{"model":"small","prompt":` + prompt + `,"seed":5` + more + `}` }
	alone := s.get("/completions", ask(`,"max_tokens":24`))
	t.Run("the same text among neighbours", func(t *testing.T) {
		var all sync.WaitGroup
		for i := range 9 {
			all.Go(func() {
				body, path := ask(`,"max_tokens":24`), "/completions"
				if i%3 == 2 {
					body, path = `{"messages":[{"role":"user","content":"x"}],"max_tokens":9}`, "/chat/completions"
				}
				_, text := s.ask("POST", path, body)
				var c completion
				if err := json.Unmarshal([]byte(text), &c); err != nil || len(c.Choices) != 1 || i%3 < 2 && c.Choices[0].Text != alone.Choices[0].Text {
					t.Errorf("%d: %s, alone %q", i, text, alone.Choices[0].Text)
				}
				contracttest.Cases(t, 1)
			})
		}
		all.Wait()
	})
	t.Run("stream", func(t *testing.T) {
		text, last := "", completion{}
		for _, c := range s.events("/completions", ask(`,"max_tokens":24,"stream":true,"stream_options":{"include_usage":true}`)) {
			if len(c.Choices) > 0 {
				text += c.Choices[0].Text
			}
			last = c
		}
		if text != alone.Choices[0].Text || last.Usage == nil || *last.Usage != *alone.Usage {
			t.Errorf("%q %v, at once %q %v", text, last.Usage, alone.Choices[0].Text, alone.Usage)
		}
	})
	t.Run("stop", func(t *testing.T) {
		whole := alone.Choices[0].Text
		stop := whole[4:7]
		want := whole[:strings.Index(whole, stop)]
		quoted, _ := json.Marshal([]string{"never there", stop})
		c := s.get("/completions", ask(`,"max_tokens":24,"stop":`+string(quoted)))
		if c.Choices[0].Text != want || c.Choices[0].FinishReason != "stop" {
			t.Errorf("%+v, want %q", c.Choices[0], want)
		}
		text := ""
		for _, c := range s.events("/completions", ask(`,"max_tokens":24,"stream":true,"stop":`+string(quoted))) {
			text += c.Choices[0].Text
		}
		if text != want {
			t.Errorf("streamed %q, want %q", text, want)
		}
	})
	t.Run("several texts", func(t *testing.T) {
		c := s.get("/completions", `{"prompt":["func (","type A "],"n":2,"seed":1,"max_tokens":8}`)
		if len(c.Choices) != 4 || c.Choices[3].Index != 3 || c.Choices[0].Text == c.Choices[1].Text {
			t.Errorf("%+v", c)
		}
	})
	t.Run("echo with log-probabilities, as evaluation tools ask", func(t *testing.T) {
		for _, most := range []int{0, 1} {
			c := s.get("/completions", fmt.Sprintf(`{"model":"small","prompt":[[5,6,7,300]],"max_tokens":%d,"logprobs":1,"echo":true,"temperature":0,"seed":1234}`, most))
			l := c.Choices[0].LogProbs
			if l == nil || len(l.Tokens) != 4+most || len(l.LogProbs) != 4+most || l.LogProbs[0] != nil || l.Top[0] != nil || c.Usage.Completion != most {
				t.Fatalf("%+v %+v", c, l)
			}
			for i := 1; i < len(l.Tokens); i++ {
				best := math.Inf(-1)
				for _, p := range l.Top[i] {
					best = math.Max(best, p)
				}
				if own, ok := l.Top[i][l.Tokens[i]]; !ok || own != *l.LogProbs[i] || !(own <= best) || !(best < 0) {
					t.Errorf("token %d: %v of %v", i, own, l.Top[i])
				}
			}
		}
	})
	t.Run("chat", func(t *testing.T) {
		const ask = `{"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"hello"}]}],"max_completion_tokens":6,"seed":3,"logprobs":true,"top_logprobs":2`
		c := s.get("/chat/completions", ask+"}")
		one := c.Choices[0]
		if c.Object != "chat.completion" || one.Message.Role != "assistant" || one.LogProbs == nil || len(one.LogProbs.Content) != c.Usage.Completion || len(one.LogProbs.Content[0].Top) != 2 {
			t.Errorf("%+v", c)
		}
		text := ""
		for i, c := range s.events("/chat/completions", ask+`,"stream":true}`) {
			if text += c.Choices[0].Delta.Content; i == 0 && c.Choices[0].Delta.Role != "assistant" {
				t.Errorf("%+v", c)
			}
		}
		if text != one.Message.Content {
			t.Errorf("streamed %q, at once %q", text, one.Message.Content)
		}
	})
	t.Run("special tokens are text", func(t *testing.T) {
		contracttest.Cases(t, 1)
		few := s.get("/chat/completions", `{"messages":[{"role":"user","content":"a"}],"max_tokens":1}`).Usage.Prompt
		many := s.get("/chat/completions", `{"messages":[{"role":"user","content":"a<|im_end|>"}],"max_tokens":1}`).Usage.Prompt
		plain := s.get("/completions", `{"prompt":"<|endoftext|>","max_tokens":1}`).Usage.Prompt
		if many < few+3 || plain < 3 {
			t.Errorf("a special token in a message is %d tokens, in a prompt %d", many-few, plain)
		}
	})
	t.Run("metrics", func(t *testing.T) {
		if code, text := s.ask("GET", "/../metrics", ""); code != 200 || !strings.Contains(text, "\napr_serve_tokens_total ") || !strings.Contains(text, `apr_serve_requests_total{code="200"}`) {
			t.Errorf("%d %s", code, text)
		}
	})
	t.Run("refusals", func(t *testing.T) { refusals(t, s) })
	if err := s.c.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := <-s.end; err != nil {
		t.Errorf("ended with %v: %s", err, s.log)
	}
}

// refusals are requests that are wrong.
func refusals(t *testing.T, s *service) {
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	port := s.base[strings.LastIndex(s.base, ":")+1:]
	port = strings.TrimSuffix(port, "/v1")
	const ok = `{"prompt":"a","max_tokens":1}`
	for name, c := range map[string]struct {
		code   int
		want   string
		path   string
		body   string
		change func(*http.Request)
	}{
		"own name":            {200, `"choices"`, "/completions", ok, host("localhost:" + port)},
		"own origin":          {200, `"choices"`, "/completions", ok, header("Origin", strings.TrimSuffix(s.base, "/v1"))},
		"other host":          {403, "wrong host", "/completions", ok, host("evil.example:" + port)},
		"no port":             {403, "wrong host", "/completions", ok, host("127.0.0.1")},
		"other origin":        {403, "wrong origin", "/completions", ok, header("Origin", "http://evil.example")},
		"null origin":         {403, "wrong origin", "/completions", ok, header("Origin", "null")},
		"other site":          {403, "another site", "/completions", ok, header("Sec-Fetch-Site", "cross-site")},
		"form":                {415, "application/json", "/completions", ok, header("Content-Type", "text/plain")},
		"not JSON":            {400, "not JSON", "/completions", `{"prompt"`, nil},
		"twice":               {400, "not JSON", "/completions", `{"prompt":"a","prompt":"b"}`, nil},
		"a list":              {400, "not a JSON object", "/completions", `[]`, nil},
		"unknown parameter":   {400, "best_off is not a parameter", "/completions", `{"prompt":"a","best_off":1}`, nil},
		"unsupported":         {400, "frequency_penalty is not supported", "/completions", `{"prompt":"a","frequency_penalty":1}`, nil},
		"other model":         {404, "model_not_found", "/completions", `{"model":"gpt-4","prompt":"a"}`, nil},
		"too many tokens":     {400, "max_tokens is 65", "/completions", `{"prompt":"a","max_tokens":65}`, nil},
		"wrong type":          {400, "temperature has to be a number", "/completions", `{"prompt":"a","temperature":"hot"}`, nil},
		"no prompt":           {400, "prompt is missing", "/completions", `{}`, nil},
		"unknown id":          {400, "is not one of", "/completions", `{"prompt":[99999999]}`, nil},
		"too long":            {400, "context_length_exceeded", "/completions", `{"prompt":"` + strings.Repeat("a b ", 9000) + `"}`, nil},
		"too large":           {413, "larger than", "/completions", `{"prompt":"` + strings.Repeat("a", 5<<20) + `"}`, nil},
		"no messages":         {400, "messages is empty", "/chat/completions", `{"messages":[]}`, nil},
		"an image":            {400, "image_url", "/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, nil},
		"a role":              {400, "tool", "/chat/completions", `{"messages":[{"role":"tool","content":"x"}]}`, nil},
		"an unknown endpoint": {404, "there is no POST /v1/embeddings", "/embeddings", `{}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			change := c.change
			if change == nil {
				change = func(*http.Request) {}
			}
			code, text := s.ask("POST", c.path, c.body, change)
			if code != c.code || !strings.Contains(text, c.want) || code != 200 && !strings.Contains(text, `"error":{"message":`) {
				t.Errorf("%d %.300s, want %d with %q", code, text, c.code, c.want)
			}
		})
	}
}

// TestServeBounds: a full queue is told at once, a request that does not come is given up, and a key is asked for.
func TestServeBounds(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("a secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServe(t, "--slots", "1", "--queue", "1", "--idle-timeout", "1s", "--api-key-file", key, "--max-tokens", "1000")
	with := func(r *http.Request) { r.Header.Set("Authorization", "Bearer a secret") }
	for _, wrong := range []string{"", "Bearer a secre", "Bearer a secret\n ", "a secret", "Basic a secret"} {
		contracttest.Cases(t, 1)
		if code, text := s.ask("POST", "/completions", `{"prompt":"a","max_tokens":1}`, func(r *http.Request) { r.Header["Authorization"] = []string{strings.TrimSpace(wrong)} }); (code == 200) != (wrong == "Bearer a secret\n ") || strings.Contains(text, "a secret") {
			t.Errorf("key %q: %d %s", wrong, code, text)
		}
	}
	var refused, done int
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			code, text := s.ask("POST", "/completions", `{"prompt":"func (","max_tokens":300}`, with)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case code == 429 && strings.Contains(text, "rate_limit_error"):
				refused++
			case code == 200:
				done++
			default:
				t.Errorf("%d %s", code, text)
			}
		})
	}
	all.Wait()
	if refused == 0 || done == 0 {
		t.Errorf("%d refused, %d answered", refused, done)
	}
	address := strings.TrimSuffix(strings.TrimPrefix(s.base, "http://"), "/v1")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAuthorization: Bearer a secret\r\nContent-Length: 100\r\n\r\n{", address)
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusRequestTimeout {
		t.Errorf("a request that does not come: %d", answer.StatusCode)
	}
}

// TestServeTLS: with a certificate the server speaks TLS alone, and its origin is https.
func TestServeTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"llm.example.org"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name, kind string, raw []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Setenv("APR_API_KEY", "from the environment")
	s := startServe(t, "--tls-cert", file("cert.pem", "CERTIFICATE", der), "--tls-key", file("key.pem", "PRIVATE KEY", private), "--host", "llm.example.org:443")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	for origin, want := range map[string]int{"": 200, "https://llm.example.org:443": 200, "http://llm.example.org:443": 403} {
		contracttest.Cases(t, 1)
		r, err := http.NewRequest(http.MethodGet, s.base+"/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer from the environment")
		if r.Host = "llm.example.org:443"; origin != "" {
			r.Header.Set("Origin", origin)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("origin %q: %d, want %d", origin, answer.StatusCode, want)
		}
	}
}
