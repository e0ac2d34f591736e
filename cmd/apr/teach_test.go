//go:build !windows

package main

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"apr/internal/contracttest"
)

// canaryToken is the token of these tests, which no output and no record may hold.
const canaryToken = "canary-token-0123456789"

// school is a folder with a teacher, a student's configuration, text and a token.
type school struct {
	t    *testing.T
	dir  string
	apr  string
	rows []string // options that decide rows
	said bytes.Buffer
}

func newSchool(t *testing.T) *school {
	t.Helper()
	s := &school{t: t, dir: t.TempDir(), apr: program(t),
		rows: []string{"-d", "data.jsonl", "--seq-len", "16", "--val-fraction", "0", "--backend", "cpu"}}
	teacher, err := filepath.Abs("../../testdata/golden/trajectory/student")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(teacher, filepath.Join(s.dir, "teacher")); err != nil {
		t.Fatal(err)
	}
	var data strings.Builder
	for i := range 40 {
		fmt.Fprintf(&data, `{"text":"package p%d\n\nfunc f%d(x int) int { return x * %d }\n"}`+"\n", i, i, i*i)
	}
	s.file("data.jsonl", data.String())
	s.file("token", canaryToken+"\n")
	s.file("config.json", `{"model_type":"qwen2","hidden_size":32,"num_hidden_layers":1,"num_attention_heads":2,`+
		`"num_key_value_heads":1,"intermediate_size":64,"vocab_size":4096,"max_position_embeddings":64,`+
		`"rope_theta":10000.0,"rms_norm_eps":1e-06,"tie_word_embeddings":true}`)
	return s
}

func (s *school) file(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *school) command(args ...string) *exec.Cmd {
	c := exec.Command(s.apr, args...)
	c.Dir, c.Env = s.dir, append(os.Environ(), "CUDA_VISIBLE_DEVICES=-1", "XDG_CACHE_HOME="+filepath.Join(s.dir, "cache"))
	return c
}

// teach starts a teacher, and returns its address and what ends it.
func (s *school) teach(args ...string) (address string, end func(os.Signal)) {
	s.t.Helper()
	c := s.command(append(append([]string{"teach", "teacher", "--token-file", "token"}, s.rows...), args...)...)
	var log bytes.Buffer
	c.Stderr = &log
	out, err := c.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = c.Wait()
		s.t.Fatalf("%v: %s", err, log.String())
	}
	gone := false
	end = func(how os.Signal) {
		if gone {
			return
		}
		gone = true
		_ = c.Process.Signal(how)
		if err := c.Wait(); err != nil && how != syscall.SIGKILL {
			s.t.Errorf("the teacher ended with %v: %s", err, log.String())
		}
		s.said.Write(log.Bytes())
	}
	s.t.Cleanup(func() { end(syscall.SIGKILL) })
	return strings.TrimSpace(line), end
}

// learner is the command of a student of four epochs.
func (s *school) learner(teacher, out string, args ...string) *exec.Cmd {
	all := append([]string{"distill", teacher, "--student-config", "config.json", "--epochs", "4", "--batch-size", "4",
		"--control", "none", "-o", out}, s.rows...)
	if strings.HasPrefix(teacher, tcp) {
		all = append(all, "--token-file", "token")
	}
	return s.command(append(all, args...)...)
}

// learn trains a student and returns its bytes.
func (s *school) learn(teacher, out string, args ...string) []byte {
	s.t.Helper()
	text, err := s.learner(teacher, out, args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", out, err, text)
	}
	s.said.Write(text)
	return s.student(out)
}

func (s *school) student(out string) []byte {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, out, "student", "model.safetensors"))
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// silent requires the token to be in no output and no file but its own.
func (s *school) silent() {
	s.t.Helper()
	if strings.Contains(s.said.String(), canaryToken) {
		s.t.Error("the token is in an output")
	}
	err := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == "token" {
			return err
		}
		b, err := os.ReadFile(path)
		if err == nil && bytes.Contains(b, []byte(canaryToken)) {
			s.t.Errorf("the token is in %s", path)
		}
		return err
	})
	if err != nil {
		s.t.Error(err)
	}
}

// TestTeach: a cache, a teacher over TCP and draws made within the run give one student, bit for bit; hidden states
// over
// TCP give the live run's.
func TestTeach(t *testing.T) {
	s := newSchool(t)
	drawn := s.learn("teacher", "drawn", "--teacher-logits", "cache", "--cache-kind", "draws", "--draws", "20")
	made := s.command(append([]string{"distill", "teacher", "--stage", "precompute", "--draws", "20", "-o", "kept"},
		s.rows...)...)
	if text, err := made.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	cached := s.learner("", "cached", "--cache", "kept")
	cached.Args = append(cached.Args[:2], cached.Args[3:]...) // without TEACHER
	if text, err := cached.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	address, end := s.teach("--draws", "20")
	far := s.learn(address, "tcp")
	end(os.Interrupt)
	if !bytes.Equal(far, drawn) || !bytes.Equal(far, s.student("cached")) {
		t.Error("draws of a cache, of TCP and of the run itself give other students")
	}
	live := s.learn("teacher", "live", "--teacher-logits", "live")
	if bytes.Equal(live, far) {
		t.Error("draws give the live run's student: nothing was drawn")
	}
	address, end = s.teach("--cache-kind", "hidden")
	if got := s.learn(address, "hidden", "--divergence", "forward-kl"); !bytes.Equal(got, live) {
		t.Error("hidden states over TCP give another student than the live teacher")
	}
	end(os.Interrupt)
	s.silent()
	contracttest.Cases(t, 3)
}

// TestTeachSeveral: two students of one teacher, and one student of two, one of which is killed and one stopped and
// started again, have the bits of one student of one teacher; so has a student that is stopped and resumed.
func TestTeachSeveral(t *testing.T) {
	s := newSchool(t)
	address, end := s.teach("--cache-kind", "hidden")
	want := s.learn(address, "want")
	one, two := s.learner(address, "one"), s.learner(address, "two")
	for _, c := range []*exec.Cmd{one, two} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []*exec.Cmd{one, two} {
		if err := c.Wait(); err != nil || !bytes.Equal(s.student([]string{"one", "two"}[i]), want) {
			t.Errorf("student %d of one teacher: %v", i, err)
		}
	}
	other, endOther := s.teach("--cache-kind", "hidden")
	both := s.learner(address+","+other, "both", "--epochs", "40")
	whole := s.learn("teacher", "whole", "--epochs", "40")
	var log bytes.Buffer
	both.Stdout, both.Stderr = &log, &log
	if err := both.Start(); err != nil {
		t.Fatal(err)
	}
	steps := func(n int) {
		for range 600 {
			b, _ := os.ReadFile(filepath.Join(s.dir, "both", "steps.jsonl")) // not there yet
			if bytes.Count(b, []byte("\n")) >= n {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Errorf("the student does not come to step %d: %s", n, log.String())
	}
	steps(3)
	endOther(syscall.SIGKILL)
	steps(20)
	end(syscall.SIGKILL)
	again, _ := s.teach("--cache-kind", "hidden", "--listen", strings.TrimPrefix(address, tcp))
	if again != address {
		t.Errorf("the teacher is at %s again, not at %s", again, address)
	}
	if err := both.Wait(); err != nil || !bytes.Equal(s.student("both"), whole) {
		t.Errorf("a student of two teachers that were killed: %v\n%s", err, log.String())
	}
	stopped := s.learner(address, "stopped")
	stopped.Env = append(stopped.Env, "APR_DISTILL_MAX_STEPS=5")
	if text, err := stopped.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if text, err := s.command("distill", "--resume=stopped").CombinedOutput(); err != nil ||
		!bytes.Equal(s.student("stopped"), want) {
		t.Errorf("resumed: %v\n%s", err, text)
	}
	s.silent()
	contracttest.Cases(t, 4)
}

// TestTeachHandshake: a student of other rows, another temperature, seed or kind, or without the token, is refused with
// the field and both values, or the reason.
func TestTeachHandshake(t *testing.T) {
	s := newSchool(t)
	s.file("other.jsonl",
		`{"text":"other text, which no teacher has seen, and which is long enough for some rows of sixteen"}`+"\n")
	s.file("wrong", "another-token-0123456789")
	s.file("short", "abc")
	address, _ := s.teach("--draws", "20")
	for _, x := range []struct {
		args []string
		exit int
		want string
	}{
		{[]string{"--seed", "43"}, 5, "another seed: it has 42, asked for is 43"},
		{[]string{"--seed", "43"}, 5, "apr teach TEACHER"},
		{[]string{"-d", "other.jsonl"}, 5, "apr teach TEACHER"},
		{[]string{"--temperature", "2"}, 5, "made at temperature 1, asked for is 2"},
		{[]string{"--seq-len", "24"}, 5, "another seq_len: it has 16, asked for is 24"},
		{[]string{"--no-packing"}, 5, `another packing: it has "packed", asked for is "a document a row"`},
		{[]string{"--document-mask"}, 5, `another packing: it has "packed", asked for is "packed, documents apart"`},
		{[]string{"-d", "other.jsonl"}, 5, "another rows: it has "},
		{[]string{"--cache-kind", "hidden"}, 5, `another kind: it has "draws", asked for is "hidden"`},
		{[]string{"--draws", "21"}, 5, "another draws: it has 20, asked for is 21"},
		{[]string{"--divergence", "reverse-kl"}, 5, "forward KL alone"},
		{[]string{"--token-file", "wrong"}, 10, "the token is not this teacher's"},
		{[]string{"--token-file", "short"}, 5, "16 at least"},
		{[]string{"--teacher-logits", "cache"}, 2, "no effect with a teacher in other processes"},
		{[]string{"--tls-ca", "data.jsonl"}, 5, "holds no certificate"},
	} {
		c := s.learner(address, "refused", x.args...)
		text, _ := c.CombinedOutput()
		if code := c.ProcessState.ExitCode(); code != x.exit || !strings.Contains(string(text), x.want) {
			t.Errorf("%v: exit %d, want %d and %q: %s", x.args, code, x.exit, x.want, text)
		}
		contracttest.Cases(t, 1)
	}
	for _, x := range []struct {
		teacher string
		exit    int
		want    string
	}{
		{"tcp://127.0.0.1:1", 10, "cannot be reached"},
		{"tcp://127.0.0.1", 2, "is no address"},
		{address + "#sha256=12", 2, "64 hexadecimal digits"},
		{address + "#sha256=" + strings.Repeat("0", 64), 10, "speaks no TLS"},
	} {
		c := s.learner(x.teacher, "refused")
		text, _ := c.CombinedOutput()
		if code := c.ProcessState.ExitCode(); code != x.exit || !strings.Contains(string(text), x.want) {
			t.Errorf("%s: exit %d, want %d and %q: %s", x.teacher, code, x.exit, x.want, text)
		}
		contracttest.Cases(t, 1)
	}
	for _, x := range []struct {
		args []string
		exit int
		want string
	}{
		{[]string{"--listen", "0.0.0.0:0", "--token-file", "token"}, 2, "beyond this machine: it needs TLS"},
		{[]string{"--tls-cert", "token", "--token-file", "token"}, 2, "belong together"},
		{nil, 2, "need a token"},
		{[]string{"--token-file", "short"}, 5, "which can be guessed"},
	} {
		c := s.command(append(append([]string{"teach", "teacher"}, s.rows...), x.args...)...)
		text, _ := c.CombinedOutput()
		if code := c.ProcessState.ExitCode(); code != x.exit || !strings.Contains(string(text), x.want) {
			t.Errorf("teach %v: exit %d, want %d and %q: %s", x.args, code, x.exit, x.want, text)
		}
		contracttest.Cases(t, 1)
	}
	if _, err := os.Lstat(filepath.Join(s.dir, "refused")); err == nil {
		t.Error("a refused student has a run")
	}
}

// certificate makes a certificate of this machine that signs itself, and returns the names of its files.
func (s *school) certificate(name string) (cert, key string) {
	s.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		s.t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		s.t.Fatal(err)
	}
	s.file(name+".pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	s.file(name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
	return name + ".pem", name + ".key"
}

// TestTeachTLS: the certificate has to be the pinned one or signed by --tls-ca; nothing else is spoken to, and the
// token
// is not sent before.
func TestTeachTLS(t *testing.T) {
	s := newSchool(t)
	cert, key := s.certificate("mine")
	other, _ := s.certificate("other")
	address, _ := s.teach("--listen", "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key)
	place, pin, ok := strings.Cut(address, "#sha256=")
	if !ok || len(pin) != 64 {
		t.Fatalf("the address %s has no fingerprint", address)
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(place, tcp))
	if err != nil {
		t.Fatal(err)
	}
	place = tcp + "127.0.0.1:" + port
	for name, x := range map[string]struct {
		teacher string
		args    []string
		exit    int
		want    string
	}{
		"pinned":         {place + "#sha256=" + pin, nil, 0, ""},
		"by its issuer":  {place, []string{"--tls-ca", cert}, 0, ""},
		"another pin":    {place + "#sha256=" + strings.Repeat("a", 64), nil, 10, "has the fingerprint " + pin},
		"another issuer": {place, []string{"--tls-ca", other}, 10, "certificate is not trusted"},
		"by the system's": {strings.Replace(place, "127.0.0.1", "127.0.0.2", 1), []string{"--tls-ca", cert}, 10,
			"not trusted"},
		"no TLS on this machine": {place, nil, 10, "cannot be reached"},
	} {
		c := s.learner(x.teacher, "run-"+strings.ReplaceAll(name, " ", "-"), append([]string{"--epochs", "1"}, x.args...)...)
		text, _ := c.CombinedOutput()
		if code := c.ProcessState.ExitCode(); code != x.exit || !strings.Contains(string(text), x.want) {
			t.Errorf("%s: exit %d, want %d and %q: %s", name, code, x.exit, x.want, text)
		}
		s.said.Write(text)
		contracttest.Cases(t, 1)
	}
	s.silent()
}
