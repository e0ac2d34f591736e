package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"

	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/teacher/cache"
	"apr/teacher/remote"
)

// tcp begins the address of a teacher in another process.
const tcp = "tcp://"

// minToken is the length of a token that cannot be guessed.
const minToken = 16

// tokenOption is the file of a teacher's token.
func tokenOption(p *string) cli.Option {
	return cli.Option{Name: "token-file", Path: true, Value: cli.String(p, ""), Default: remote.TokenVariable,
		Help: "file with the token of a teacher at tcp://HOST:PORT, which apr teach and its students share"}
}

// readToken returns the token of a file, or of the environment.
func readToken(file string, getenv func(string) string) (string, error) {
	token, from := getenv(remote.TokenVariable), remote.TokenVariable
	if file != "" {
		var err error
		if token, err = readfile.String(file, 4096); err != nil {
			return "", err
		}
		from = file
	}
	switch token = strings.TrimSpace(token); {
	case token == "" && file == "":
		return "", fault.New(fault.Usage, "a teacher and its students need a token: --token-file FILE or %s", from).
			WithHint("openssl rand -hex 32 > token makes one").WithID("E-TEACH-020")
	case len(token) < minToken:
		return "", fault.In(fault.Invalid, from, "holds a token of %d bytes, which can be guessed: %d at least", len(token),
			minToken).WithHint("openssl rand -hex 32 > token makes one").WithID("E-TEACH-020")
	}
	return token, nil
}

// remotely reports whether the teacher is in other processes.
func (o *distillOptions) remotely() bool { return strings.HasPrefix(o.Teacher, tcp) }

// askedOf is what a teacher in other processes has to say, as far as it was asked for.
func (o *distillOptions) askedOf(s cli.Settings) (j distill.CacheJob) {
	if s.Given("cache-kind") {
		j.Kind = o.CacheKind
	}
	if s.Given("draws") {
		j.Kind, j.Draws = cache.Draws, o.Draws
	}
	return j
}

// remote says how to reach a teacher in other processes.
func (o *distillOptions) remote(ctx context.Context, e *cli.Env, c *distill.Config) error {
	if !o.remotely() {
		return nil
	}
	if o.precomputes() || o.writes() {
		return fault.New(fault.Usage, "--stage %s needs the teacher's file", o.Stage)
	}
	teachers, err := o.endpoints()
	if err != nil {
		return err
	}
	token, err := readToken(o.TokenFile, e.Getenv)
	if err != nil {
		return err
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return fault.New(fault.IO, "there is no folder for what the teacher sends").Because(err).
			WithHint("set XDG_CACHE_HOME or HOME")
	}
	c.Remote = &distill.Remote{Heads: filepath.Join(user, "apr", "teachers"),
		Dial: func(alive func(string)) (*remote.Client, error) {
			return remote.Dial(ctx, remote.Options{Teachers: teachers, Token: token, Alive: alive})
		}}
	return nil
}

// endpoints reads tcp://HOST:PORT[#sha256=FINGERPRINT],…
func (o *distillOptions) endpoints() (all []remote.Teacher, err error) {
	var trusted *x509.CertPool
	if o.TLSCA != "" {
		text, err := readfile.String(o.TLSCA, 1<<20)
		if err != nil {
			return nil, err
		}
		if trusted = x509.NewCertPool(); !trusted.AppendCertsFromPEM([]byte(text)) {
			return nil, fault.In(fault.Invalid, o.TLSCA, "holds no certificate in PEM")
		}
	}
	for part := range strings.SplitSeq(o.Teacher, ",") {
		bad := func(why string) error {
			return fault.In(fault.Usage, part, "%s", why).
				WithHint("tcp://HOST:PORT, with #sha256= and a fingerprint if need be").
				WithID("E-TEACH-021")
		}
		address, ok := strings.CutPrefix(part, tcp)
		address, pin, pinned := strings.Cut(address, "#sha256=")
		host, port, err := net.SplitHostPort(address)
		if !ok || err != nil || host == "" || port == "" {
			return nil, bad("is no address of a teacher")
		}
		t := remote.Teacher{Address: address}
		sum, err := hex.DecodeString(pin)
		switch {
		case pinned && (err != nil || len(sum) != sha256.Size):
			return nil, bad("its fingerprint is no SHA-256 of 64 hexadecimal digits")
		case pinned:
			t.TLS = pinnedTLS(sum)
		case trusted != nil || !onThisMachine(host):
			t.TLS = &tls.Config{ServerName: host, RootCAs: trusted, MinVersion: tls.VersionTLS13}
		}
		all = append(all, t)
	}
	return all, nil
}

// pinnedTLS trusts the certificate of one fingerprint, and no other.
func pinnedTLS(sum []byte) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // no name and no issuer counts: the certificate itself has to be the pinned one
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) > 0 {
				is := sha256.Sum256(s.PeerCertificates[0].Raw)
				if subtle.ConstantTimeCompare(is[:], sum) == 1 {
					return nil
				}
				return errors.New("its certificate has the fingerprint " + hex.EncodeToString(is[:]))
			}
			return errors.New("it has no certificate")
		},
	}
}

// onThisMachine reports whether a host is reached without leaving this machine.
func onThisMachine(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
