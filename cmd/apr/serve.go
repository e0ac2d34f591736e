package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"apr/corpus"
	"apr/device"
	"apr/generate"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/model"
	"apr/modelfile"
	"apr/openai"
	"apr/tokenizer"
)

// keyVariable holds the key of a server, where no file does.
const keyVariable = "APR_API_KEY"

// serveOptions are the options of apr serve.
type serveOptions struct {
	source, adapter, template, name, listen, keyFile, cert, certKey, backend string
	hosts                                                                    []string
	slots, context, maxTokens, queue, bodyMiB                                int
	idle                                                                     time.Duration
	exact                                                                    bool
}

func serveCommand() *cli.Command {
	o := &serveOptions{}
	return &cli.Command{
		Name: "serve", Short: "Answer OpenAI's chat and completions requests with a model",
		Long: "Serves /v1/chat/completions, /v1/completions, /v1/models and /metrics. A text is the same whatever is asked beside it.\n" +
			"On this machine alone no key is needed. Beyond it a key and TLS are: --api-key-file or " + keyVariable + ", --tls-cert and\n" +
			"--tls-key, and --host for each name that clients use. Ctrl-C refuses new requests, finishes those under way, and ends.",
		Example: "apr serve student.apr\n" +
			"apr serve runs/mine --listen 127.0.0.1:9000 --slots 32\n" +
			"apr serve student.apr --listen 0.0.0.0:8443 --host llm.example.org:8443 --api-key-file key --tls-cert cert.pem --tls-key key.pem",
		Exits: []fault.Kind{fault.NotFound, fault.Format, fault.Invalid, fault.Load, fault.IO, fault.Inference, fault.Unavailable, fault.Network, fault.HTTP404, fault.Stopped, fault.Memory, fault.UnsafePath},
		Options: []cli.Option{
			{Name: "source", Foreign: []string{"model", "model-path"}, Arg: true, Required: true, Model: true, Value: cli.String(&o.source, ""), Help: "model or run"},
			adapterOption(&o.adapter),
			{Name: "listen", Foreign: []string{"address", "bind"}, Value: cli.String(&o.listen, "127.0.0.1:8080"),
				Help: "address and port; port 0 takes a free one"},
			{Name: "name", Foreign: []string{"served-model-name", "alias"}, Value: cli.String(&o.name, ""), Default: "the last part of SOURCE", Help: "name of the model in requests"},
			{Name: "host", Value: cli.Strings(&o.hosts), Help: "further Host that requests may name, with its port; repeatable"},
			{Name: "api-key-file", Foreign: []string{"api-key"}, Path: true, Value: cli.String(&o.keyFile, ""), Help: "file with the key that requests must have; else it is " + keyVariable + ", if that is set"},
			{Name: "tls-cert", Foreign: []string{"ssl-certfile", "ssl-cert-file"}, Path: true, Value: cli.String(&o.cert, ""), Help: "certificate chain in PEM"},
			{Name: "tls-key", Foreign: []string{"ssl-keyfile", "ssl-key-file"}, Path: true, Value: cli.String(&o.certKey, ""), Help: "private key of --tls-cert in PEM"},
			{Name: "chat-template", Path: true, Keywords: []string{"auto", "chatml", "none"}, Value: cli.String(&o.template, "auto"), Help: "Chat template: auto (the model's own), chatml, none, or a file with a Jinja template"},
			slotsOption(&o.slots, "texts that are written at a time; changes no text"),
			{Name: "context", Foreign: []string{"ctx-size", "num-ctx", "max-model-len"}, Value: cli.Int(&o.context, 4096).AtLeast(2), Default: "4096, or the model's positions", Help: "tokens of a prompt and its answer at most"},
			{Name: "max-tokens", Foreign: []string{"n-predict"}, Value: cli.Int(&o.maxTokens, 1024).AtLeast(1), Help: "tokens of an answer at most, and where no request says how many"},
			{Name: "queue", Value: cli.Int(&o.queue, 256).AtLeast(1), Help: "texts that may wait for a slot; more are refused (429)"},
			{Name: "max-body", Value: cli.Int(&o.bodyMiB, 4).In(1, 1024), Help: "MiB of a request at most (413)"},
			{Name: "idle-timeout", Value: cli.Duration(&o.idle, 30*time.Second), Help: "wait this long for the next byte of a request (408), or for room for the answer"},
			{Name: "backend", Foreign: []string{"device-map"}, Value: backendValue(&o.backend),
				Help: backendHelp},
			{Name: "exact", Value: cli.Bool(&o.exact, false), Help: "compute quantised weights in float32 on the CPU, as training does: many times slower"},
		},
		Advice: map[string]string{"port": "--listen ADDRESS:PORT, such as --listen 127.0.0.1:8080"},
		Run:    func(ctx context.Context, e *cli.Env) (cli.Result, error) { return o.run(ctx, e) },
	}
}

// serveResult is the JSON of apr serve, when it ends.
type serveResult struct {
	Address  string `json:"address"`
	Model    string `json:"model"`
	Backend  string `json:"backend"`
	Slots    int    `json:"slots"`
	Requests int64  `json:"texts"`
	Tokens   int64  `json:"tokens"`
}

// Text prints nothing: the address was printed at the beginning.
func (r serveResult) Text(*cli.Page) {}

// entrance is where a server listens, and what it asks of those who come.
type entrance struct {
	listener net.Listener
	hosts    []string
	key      string
	tls      *tls.Config
}

// scheme is that of the address.
func (d entrance) scheme() string {
	if d.tls != nil {
		return "https"
	}
	return "http"
}

// enter listens. Beyond this machine a key and TLS are needed.
func (o *serveOptions) enter(e *cli.Env) (d entrance, err error) {
	host, _, err := net.SplitHostPort(o.listen)
	if err != nil {
		return d, fault.New(fault.Usage, "--listen %s is not ADDRESS:PORT", o.listen).
			WithHint("--listen 127.0.0.1:8080")
	}
	if d.key = strings.TrimSpace(e.Getenv(keyVariable)); o.keyFile != "" {
		if d.key, err = readfile.String(o.keyFile, 4096); err != nil {
			return d, err
		}
		if d.key = strings.TrimSpace(d.key); d.key == "" {
			return d, fault.In(fault.Invalid, o.keyFile, "holds no key")
		}
	}
	if (o.cert == "") != (o.certKey == "") {
		return d, fault.New(fault.Usage, "--tls-cert and --tls-key belong together")
	}
	if o.cert != "" {
		pair, err := tls.LoadX509KeyPair(o.cert, o.certKey)
		if err != nil {
			return d, fault.In(fault.Invalid, o.cert, "cannot be used with %s", o.certKey).Because(err)
		}
		d.tls = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	ip := net.ParseIP(host)
	loopback := host == "localhost" || ip != nil && ip.IsLoopback()
	if !loopback && (d.key == "" || d.tls == nil) {
		return d, fault.New(fault.Usage, "--listen %s is beyond this machine: it needs a key (--api-key-file or %s) and TLS (--tls-cert, --tls-key)", o.listen, keyVariable).
			WithHint("an SSH tunnel reaches 127.0.0.1 without either")
	}
	if d.listener, err = net.Listen("tcp", o.listen); err != nil {
		return d, fault.New(fault.IO, "cannot listen on %s", o.listen).Because(err).WithHint("port 0 takes a free port")
	}
	address := d.listener.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	d.hosts = append(slices.Clone(o.hosts), address)
	if loopback {
		d.hosts = append(d.hosts, "localhost:"+port)
	}
	if host != "" {
		d.hosts = append(d.hosts, net.JoinHostPort(host, port))
	}
	return d, nil
}

// run serves until ctx ends.
func (o *serveOptions) run(ctx context.Context, e *cli.Env) (cli.Result, error) {
	d, err := o.enter(e)
	if err != nil {
		return nil, err
	}
	defer d.listener.Close()
	f, err := openAdapted(ctx, e, o.source, o.adapter)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := o.describe(f, e.Settings.Given("context"))
	if err != nil {
		return nil, err
	}
	if c.Chat != nil {
		warnUnended(e, f, c.Tok, o.template, c.Chat)
	}
	dev, err := backend{name: o.backend, round: !o.exact}.openFor(ctx, e, f)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	n, err := dev.fitEngine(f, o.slots, c.Limits.Context, c.Tok.RealIDs(), true)
	if err != nil {
		return nil, err
	}
	n.Queue = o.queue
	m, err := model.LoadFrozenAs(dev, f, device.StudentWeights, generationForm)
	if err != nil {
		return nil, err
	}
	c.Engine = generate.NewEngine(m, dev.NewStream(), n)
	c.Hosts, c.Key, c.TLS = d.hosts, d.key, d.tls != nil
	r := serveResult{Address: d.scheme() + "://" + d.listener.Addr().String(), Model: c.Model, Backend: dev.Info().Kind, Slots: n.Slots}
	err = o.answer(ctx, e, d, c, r)
	c.Engine.Close()
	stats := c.Engine.Stats()
	r.Requests, r.Tokens = stats.Requests, stats.Tokens
	return r, err
}

// describe says what is served, but for the engine.
func (o *serveOptions) describe(f *modelfile.Files, contextGiven bool) (c openai.Config, err error) {
	tok, err := f.Tokenizer()
	if err == nil {
		err = f.CheckTensors()
	}
	if err == nil {
		c.Stop, err = f.Stops()
	}
	if err != nil {
		return c, err
	}
	c.Tok, c.Now = tok, time.Now
	c.Model = cmp.Or(o.name, filepath.Base(o.source))
	c.Seed = func() uint64 {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		return binary.LittleEndian.Uint64(b[:])
	}
	if o.template == "none" {
		c.NoChat = errors.New("--chat-template none")
	} else if c.Chat, _, err = corpus.Chat(tok, o.template, time.Now()); err != nil {
		if o.template != "auto" {
			return c, err
		}
		c.Chat, c.NoChat = nil, err
	} else if end := c.Chat.End(); end != tokenizer.None && !slices.Contains(c.Stop, end) {
		c.Stop = append(c.Stop, end)
	}
	positions := f.Config.MaxPositions
	if o.context > positions && contextGiven {
		return c, fault.In(fault.Usage, "--context", "%d: the model has %d positions", o.context, positions)
	}
	context := min(o.context, positions)
	c.Limits = openai.Limits{Body: int64(o.bodyMiB) << 20, Context: context, MaxTokens: min(o.maxTokens, context), Choices: 128, Idle: o.idle}
	return c, nil
}

// answer serves until ctx ends, and then finishes what is under way.
func (o *serveOptions) answer(ctx context.Context, e *cli.Env, d entrance, c openai.Config, r serveResult) error {
	out := e.Out
	if e.JSON { // stdout is for the one object
		out = e.Err
	}
	fmt.Fprintf(out, "%s/v1\n", r.Address)
	if err := flush(out); err != nil {
		return err
	}
	e.Log.Info(fmt.Sprintf("%s on %s, %d texts at a time; Ctrl-C ends", r.Model, r.Backend, r.Slots))
	if c.Chat == nil {
		e.Log.Info("/v1/completions only: " + c.NoChat.Error())
	}
	s := &http.Server{Handler: openai.New(c).Handler(), TLSConfig: d.tls, ReadHeaderTimeout: o.idle, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 1 << 14}
	done := make(chan error, 1)
	go func() {
		if d.tls != nil {
			done <- s.ServeTLS(d.listener, "", "")
		} else {
			done <- s.Serve(d.listener)
		}
	}()
	select {
	case <-ctx.Done():
		e.Log.Info("finishing what is under way")
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Minute)
		defer cancel()
		if s.Shutdown(late) != nil {
			return s.Close()
		}
		return nil
	case err := <-done:
		return fault.New(fault.IO, "the server ended").Because(err)
	}
}
