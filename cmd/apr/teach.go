package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"

	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/teacher/remote"
)

// teachOptions are those of apr teach: which rows of which teacher, and who may ask for them.
type teachOptions struct {
	*distillOptions
	listen, tokenFile, cert, certKey string
}

// ofTeach are the options of distill that decide what a teacher says of a row.
var ofTeach = append(slices.Clone(ofRows), "temperature", "seed", "seq-len", "packing", "document-mask", "cache-kind",
	"draws", "cache-entropy", "batch-size", "grad-accum", "chunk-rows")

func teachCommand() *cli.Command {
	o := &teachOptions{distillOptions: &distillOptions{}}
	return &cli.Command{
		Name: "teach", Short: "Let a teacher say rows of your text to students in other processes",
		Long: "Runs TEACHER ahead of the students that ask for it, on this machine or another one, and sends draws or " +
			"hidden states of\n" +
			"the rows that they come to. One teacher serves several students, and several teachers may serve one. Students " +
			"need\n" +
			"neither the teacher's file nor its memory; give them the options that decide rows, --temperature and --seed " +
			"alike.\n" +
			"A token is always needed, and beyond this machine TLS: --tls-cert and --tls-key. Ctrl-C ends.",
		Example: "openssl rand -hex 32 > token\n" +
			"apr teach TEACHER -d data.jsonl --token-file token --listen 127.0.0.1:9100\n" +
			"apr distill tcp://127.0.0.1:9100 --student MODEL -d data.jsonl --token-file token -o OUT",
		Exits: []fault.Kind{fault.NotFound, fault.Format, fault.Invalid, fault.Load, fault.IO, fault.Inference,
			fault.Unavailable,
			fault.Network, fault.HTTP404, fault.UnsafePath, fault.Memory},
		Options: o.table(),
		Run:     func(ctx context.Context, e *cli.Env) (cli.Result, error) { return o.run(ctx, e) },
	}
}

func (o *teachOptions) table() []cli.Option {
	var t []cli.Option
	for _, opt := range o.distillOptions.table() {
		if slices.Contains(ofTeach, opt.Name) {
			opt.Group, opt.First = "", false
			switch opt.Name {
			case "teacher":
				opt.Default, opt.Required = "", true
			case "batch-size":
				opt.Help = "rows of the students' steps: with hidden states a GPU reads no more at a time"
			case "cache-kind":
				opt.Default = "draws"
			}
			t = append(t, opt)
		}
	}
	return append(t,
		cli.Option{Name: "listen", Foreign: []string{"port", "address", "bind"}, Value: cli.String(&o.listen, "127.0.0.1:0"),
			Help: "address and port; port 0 takes a free one"},
		tokenOption(&o.tokenFile),
		cli.Option{Name: "tls-cert", Path: true, Value: cli.String(&o.cert, ""), Help: "certificate chain in PEM"},
		cli.Option{Name: "tls-key", Path: true, Value: cli.String(&o.certKey, ""), Help: "private key of --tls-cert in PEM"})
}

// teachResult is the JSON of apr teach, when it ends.
type teachResult struct {
	Address string `json:"address"`
	Backend string `json:"backend"`
	Kind    string `json:"kind"`
	Rows    int    `json:"rows"`
	Made    int64  `json:"rows_made"`
	Sent    int64  `json:"rows_sent"`
}

// Text prints nothing: the address was printed at the beginning.
func (r teachResult) Text(*cli.Page) {}

// door listens; beyond this machine TLS is needed. What students say to reach it comes with it.
func (o *teachOptions) door() (l net.Listener, address string, err error) {
	host, _, err := net.SplitHostPort(o.listen)
	if err != nil {
		return nil, "", fault.New(fault.Usage, "--listen %s is not ADDRESS:PORT", o.listen).WithHint("127.0.0.1:9100")
	}
	if (o.cert == "") != (o.certKey == "") {
		return nil, "", fault.New(fault.Usage, "--tls-cert and --tls-key belong together")
	}
	if o.cert == "" && !onThisMachine(host) {
		return nil, "", fault.New(fault.Usage, "--listen %s is beyond this machine: it needs TLS (--tls-cert, --tls-key)",
			o.listen).
			WithHint("an SSH tunnel reaches 127.0.0.1 without it").WithID("E-TEACH-022")
	}
	pin, secure := "", (*tls.Config)(nil)
	if o.cert != "" {
		pair, err := tls.LoadX509KeyPair(o.cert, o.certKey)
		if err != nil {
			return nil, "", fault.In(fault.Invalid, o.cert, "cannot be used with %s", o.certKey).Because(err)
		}
		sum := sha256.Sum256(pair.Certificate[0])
		secure = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
		pin = "#sha256=" + hex.EncodeToString(sum[:])
	}
	if l, err = net.Listen("tcp", o.listen); err != nil {
		return nil, "", fault.New(fault.IO, "cannot listen on %s", o.listen).Because(err).WithHint("port 0 takes a free port")
	}
	address = tcp + l.Addr().String() + pin
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	return l, address, nil
}

// settle checks the options as those of a precomputation.
func (o *teachOptions) settle(e *cli.Env) (d *distillOptions, err error) {
	d = &distillOptions{}
	all := givenOf(e.Settings, ofTeach)
	all["stage"] = cli.Setting{Value: "precompute", Origin: "apr teach"}
	settings, err := cli.Restore(d.table(), all)
	if err != nil {
		return nil, err
	}
	e.Settings = settings
	return d, nil
}

func (o *teachOptions) run(ctx context.Context, e *cli.Env) (_ cli.Result, err error) {
	token, err := readToken(o.tokenFile, e.Getenv)
	if err != nil {
		return nil, err
	}
	d, err := o.settle(e)
	if err != nil {
		return nil, err
	}
	if d.remotely() {
		return nil, fault.In(fault.Usage, d.Teacher, "teaches already: TEACHER is a model")
	}
	c, err := d.resolve(ctx, e)
	if err != nil {
		return nil, err
	}
	l, address, err := o.door()
	if err != nil {
		return nil, err
	}
	defer l.Close()
	dev, err := backend{name: d.Backend, dtype: d.DType, index: d.Device, expand: d.keepExpanded(),
		kernelLog: d.KernelLog}.openForRun(ctx, e, &c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	show := newDistillDisplay(e, d.LogEvery)
	defer show.close()
	job := distill.CacheJob{Kind: d.CacheKind, Draws: d.Draws, Entropy: d.CacheEntropy, Of: 1}
	r := teachResult{Address: address, Backend: dev.Info().Kind, Kind: job.Kind}
	err = distill.Teach(ctx, c, job, dev.Device, show, func(t distill.Lesson) error {
		show.close()
		out := e.Out
		if e.JSON { // stdout is for the one object
			out = e.Err
		}
		fmt.Fprintln(out, address)
		if err := flush(out); err != nil {
			return err
		}
		s := &remote.Server{Header: t.Header, Head: t.Head, Token: token, Has: t.Has, Make: t.Make,
			Log: func(f string, a ...any) { e.Log.Info(fmt.Sprintf(f, a...)) }}
		err := s.Serve(ctx, l)
		r.Rows = t.Header.Rows
		r.Made, r.Sent = s.Rows()
		return err
	})
	return r, err
}
