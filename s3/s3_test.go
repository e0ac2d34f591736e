package s3

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/s3/s3test"
)

// open makes a store of a server that waits for nothing. What it logs is in the buffer.
func open(t *testing.T, s *s3test.Server) (*Store, *bytes.Buffer) {
	t.Helper()
	w, err := Parse("s3://"+s3test.Bucket+"/some/prefix", s.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	store := Open(t.Context(), w, slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug})))
	store.wait = func(context.Context, time.Duration) error { return nil }
	store.stall = 200 * time.Millisecond
	return store, &said
}

func put(store *Store, name string, b []byte) (bool, error) {
	return store.Put(name, bytes.NewReader(b), int64(len(b)))
}

// read reads an object whole.
func read(store *Store, name string) ([]byte, error) {
	f, size, err := store.Open(name)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, size))
	if err == nil {
		err = f.Close()
	}
	return b, err
}

// TestStore: objects come back, are made once, and are missing by name.
func TestStore(t *testing.T) {
	server := s3test.New(1)
	defer server.Close()
	store, _ := open(t, server)
	for _, size := range []int{0, 1, 3 << 20} {
		name, want := fmt.Sprintf("a %d+ü.shard", size), bytes.Repeat([]byte{7}, size)
		if made, err := put(store, name, want); !made || err != nil {
			t.Fatal(made, err)
		}
		if made, err := put(store, name, []byte("other")); made || err != nil {
			t.Errorf("a second writer: made %v, %v", made, err)
		}
		if got, err := read(store, name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes of %d: %v", len(got), size, err)
		}
		if n, err := store.Size(name); err != nil || n != int64(size) {
			t.Errorf("%d, %v", n, err)
		}
		if !bytes.Equal(server.Object("some/prefix/"+name), want) {
			t.Error("it is not below the prefix")
		}
		contracttest.Cases(t, 1)
	}
	if _, err := store.Size("nothing"); fault.KindOf(err) != fault.NotFound || !strings.Contains(err.Error(), "s3://bucket/some/prefix/nothing") {
		t.Error(err)
	}
	if _, err := read(store, "nothing"); fault.KindOf(err) != fault.NotFound {
		t.Error(err)
	}
}

// TestMisbehaviour: what passes is waited for and ends well; what does not is an error that says what and where. No
// credential is in any error or log.
func TestMisbehaviour(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 6_000)
	for _, tt := range []struct {
		fault      s3test.Fault
		share      float64
		kind       fault.Kind // 0: it ends well
		put        fault.Kind // of a PUT, if it is another
		want       string
		oneRequest bool // it is not tried again
	}{
		{fault: s3test.Busy, share: 0.4},
		{fault: s3test.CutGet, share: 0.4},
		{fault: s3test.CutPut, share: 0.4},
		{fault: s3test.Lost, share: 0.4},
		{fault: s3test.Slow, share: 1},
		{fault: s3test.Hang, share: 0.3},
		{fault: s3test.Busy, share: 1, kind: fault.Network, want: "503 Service Unavailable, SlowDown"},
		{fault: s3test.CutGet, share: 1, kind: fault.Network, put: -1, want: "broke off after 48000 of 96000 bytes"},
		{fault: s3test.Hang, share: 1, kind: fault.Network, put: -1, want: "nothing came or went for 200ms"},
		{fault: s3test.CutPut, share: 1, kind: -1, put: fault.Network, want: "cannot be reached"},
		{fault: s3test.Deny, share: 1, kind: fault.Network, want: "refuses access: 403 Forbidden, AccessDenied", oneRequest: true},
		{fault: s3test.Unknown, share: 1, kind: -1, put: fault.Unavailable, want: "does not know conditional writes", oneRequest: true},
		{fault: s3test.Moved, share: 1, kind: fault.Network, want: "not in region eu-test-1", oneRequest: true},
		{fault: s3test.Echo, share: 1, kind: fault.Network, want: "cannot be reached"},
	} {
		t.Run(fmt.Sprintf("%s %g", tt.fault, tt.share), func(t *testing.T) {
			server := s3test.New(3)
			defer server.Close()
			store, said := open(t, server)
			server.Set("some/prefix/there", body)
			server.Misbehave(tt.fault, tt.share)
			_, put := put(store, "new", body)
			before := server.Requests()
			got, get := read(store, "there")
			for i := 0; tt.kind == 0 && i < 10; i++ { // so that a share of requests is met
				name := fmt.Sprint("more", i)
				if made, err := store.Put(name, bytes.NewReader(body), int64(len(body))); err != nil || !made && tt.fault != s3test.Lost {
					t.Errorf("PUT: made %v, %v", made, err)
				}
				if again, err := read(store, name); err != nil || !bytes.Equal(again, body) || server.Made()["some/prefix/"+name] != 1 {
					t.Errorf("GET: %d bytes, %v", len(again), err)
				}
			}
			if tt.put == 0 {
				tt.put = tt.kind
			}
			for what, err := range map[string]error{"PUT": put, "GET": get} {
				kind := map[string]fault.Kind{"PUT": tt.put, "GET": tt.kind}[what]
				if kind < 1 && err != nil || kind > 0 && (fault.KindOf(err) != kind || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("%s: %v", what, err)
				}
				hidden(t, fmt.Sprintf("%v %#v", err, err))
			}
			if put == nil && !bytes.Equal(server.Object("some/prefix/new"), body) || get == nil && !bytes.Equal(got, body) || server.Made()["some/prefix/new"] > 1 {
				t.Error("the bytes are not those that were written")
			}
			if tt.fault == s3test.Echo && !strings.Contains(get.Error(), "the answer repeats credentials") {
				t.Error(get)
			}
			if tt.oneRequest && (before != 1 || tt.kind > 0 && server.Requests() != 2) {
				t.Errorf("%d and %d requests", before, server.Requests())
			}
			hidden(t, said.String())
			contracttest.Cases(t, 1)
		})
	}
}

// hidden requires a text without credentials.
func hidden(t *testing.T, text string) {
	t.Helper()
	for _, secret := range []string{s3test.KeyID, s3test.Secret, s3test.Token} {
		if strings.Contains(text, secret) {
			t.Errorf("a credential is in %q", text)
		}
	}
}

// TestStopReading: a client that stops reading in the middle of an object ends at once, and the server goes on.
func TestStopReading(t *testing.T) {
	server := s3test.New(1)
	defer server.Close()
	server.Set("some/prefix/large", make([]byte, 8<<20))
	store, _ := open(t, server)
	x, p := store.send(request{method: http.MethodGet, name: "large"})
	if p != nil {
		t.Fatal(p.err)
	}
	if _, err := io.ReadFull(x, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	x.close()
	if b, err := read(store, "large"); err != nil || len(b) != 8<<20 {
		t.Error(len(b), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w, err := Parse("s3://bucket/some/prefix", server.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	server.Misbehave(s3test.Hang, 1)
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, _, err := Open(ctx, w, nil).Open("large"); fault.KindOf(err) != fault.Stopped {
		t.Error(err)
	}
}

// TestSignature is the example of Amazon's documentation of Signature Version 4 for S3 (sig-v4-header-based-auth, "GET Object").
func TestSignature(t *testing.T) {
	w := Where{region: "us-east-1", keys: credentials{&aws.Credentials{AccessKeyID: "AKIAIOSFODNN7EXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}}}
	req, err := http.NewRequest(http.MethodGet, "https://examplebucket.s3.amazonaws.com/test.txt", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Range", "bytes=0-9")
	if err := sign(t.Context(), req, w, emptySHA256, time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	want := "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
	if got := req.Header.Get("Authorization"); !strings.HasSuffix(got, want) {
		t.Errorf("%s\nwant %s", got, want)
	}
	contracttest.Cases(t, 1)
}

// TestParse: names, addresses, and what is refused.
func TestParse(t *testing.T) {
	for _, tt := range []struct{ name, env, want, wrong string }{
		{"s3://bucket/a/b", "", "https://bucket.s3.us-east-1.amazonaws.com/", ""},
		{"s3://bucket/", "AWS_REGION=eu-central-1", "https://bucket.s3.eu-central-1.amazonaws.com/", ""},
		{"s3://dotted.bucket/a", "AWS_DEFAULT_REGION=eu-west-1", "https://s3.eu-west-1.amazonaws.com/dotted.bucket/", ""},
		{"s3://bucket/a", "AWS_ENDPOINT_URL=http://localhost:9000", "http://localhost:9000/bucket/", ""},
		{"s3://bucket/a", "AWS_ENDPOINT_URL=http://x AWS_ENDPOINT_URL_S3=https://y/store", "https://y/store/bucket/", ""},
		{"s3://", "", "", "no name of a bucket"},
		{"s3://UPPER/a", "", "", "no name of a bucket"},
		{"s3://key:secret@bucket/a", "", "", "no name of a bucket"},
		{"s3://bucket/a/../b", "", "", "parts that not every store keeps"},
		{"s3://bucket/a//b", "", "", "parts that not every store keeps"},
		{"s3://bucket/a?b", "", "", "parts that not every store keeps"},
		{"s3://bucket/a", "AWS_ACCESS_KEY_ID=a", "", "only one of"},
		{"s3://bucket/a", "AWS_REGION=x/y", "", "no region"},
		{"s3://bucket/a", "AWS_ENDPOINT_URL=ftp://x", "", "AWS_ENDPOINT_URL"},
		{"s3://bucket/a", "AWS_ENDPOINT_URL=http://user:word@x", "", "AWS_ENDPOINT_URL"},
	} {
		w, err := Parse(tt.name, func(name string) string {
			for _, kv := range strings.Fields(tt.env) {
				if v, ok := strings.CutPrefix(kv, name+"="); ok {
					return v
				}
			}
			return ""
		})
		switch {
		case tt.wrong != "" && (fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), tt.wrong) || strings.Contains(err.Error(), "word")):
			t.Errorf("%s %s: %v", tt.name, tt.env, err)
		case tt.wrong == "" && (err != nil || w.endpoint.String() != tt.want):
			t.Errorf("%s %s: %v, %v", tt.name, tt.env, w.endpoint, err)
		}
		contracttest.Cases(t, 1)
	}
}
