//go:build !windows

package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"apr/hub/hubtest"
)

// TestMain: with APR_TEST_PULL, the test binary is a process that pulls.
func TestMain(m *testing.M) {
	endpoint := os.Getenv("APR_TEST_PULL")
	if endpoint == "" {
		os.Exit(m.Run())
	}
	u, err := url.Parse(endpoint)
	if err == nil {
		_, err = New(Config{Endpoint: u, Cache: os.Getenv("APR_TEST_CACHE")}, nil).Pull(context.Background(), whole, Options{})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// process starts another process that pulls into the same cache.
func (g *rig) process(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "APR_TEST_PULL="+g.Hub.URL, "APR_TEST_CACHE="+g.cache)
	cmd.Stderr = os.Stderr
	return cmd
}

// slowly makes the hub send the weights in small pieces.
func (g *rig) slowly(begun chan<- struct{}) {
	var once sync.Once
	g.Handle(storage(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("ETag", validator)
		g.Serve(&slow{w, func() { once.Do(func() { close(begun) }) }}, r, g.Files[weightsFile])
		return true
	}))
}

type slow struct {
	http.ResponseWriter
	wrote func()
}

func (s *slow) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		k, err = s.ResponseWriter.Write(p[n:min(n+16<<10, len(p))])
		n += k
		_ = http.NewResponseController(s.ResponseWriter).Flush()
		s.wrote()
		time.Sleep(5 * time.Millisecond)
	}
	return n, err
}

// TestTwoProcesses: two processes that pull at once download everything once.
func TestTwoProcesses(t *testing.T) {
	g := newRig(t)
	g.slowly(make(chan struct{}))
	var wg sync.WaitGroup
	for range 2 {
		cmd := g.process(t)
		wg.Go(func() {
			if err := cmd.Run(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	gets := map[string]int{}
	for _, c := range append(g.Calls(hubtest.Get), g.Calls(hubtest.Storage)...) {
		gets[string(c.Kind)+c.Name]++
	}
	for what, n := range gets {
		if n != 1 {
			t.Errorf("%s was asked for %d times", what, n)
		}
	}
	if _, err := g.c.Cached(t.Context(), whole, Options{Verify: true}); err != nil {
		t.Error(err)
	}
}

// TestKilled: what a killed process began, the next one continues.
func TestKilled(t *testing.T) {
	g := newRig(t)
	begun := make(chan struct{})
	g.slowly(begun)
	cmd := g.process(t)
	cmd.Stderr = nil
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-begun
	time.Sleep(60 * time.Millisecond) // some pieces more
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	g.nothingPublished(t)
	g.Handle(nil)
	g.Reset()
	if _, err := g.pull(t, Options{}); err != nil {
		t.Fatal(err)
	}
	if calls := g.Calls(hubtest.Storage); len(calls) != 1 || calls[0].From == 0 {
		t.Errorf("the next process asked for %+v", calls)
	}
	if _, err := g.c.Cached(t.Context(), whole, Options{Verify: true}); err != nil {
		t.Error(err)
	}
}

// TestForeignLock: the lock is the one that other programs take, flock on ETAG.lock, also when they delete it.
func TestForeignLock(t *testing.T) {
	g := newRig(t)
	name := filepath.Join(g.cache, ".locks/models--org--name", hubtest.ETag(weightsFile, g.Files[weightsFile])+".lock")
	if err := os.MkdirAll(filepath.Dir(name), dirMode); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, fileMode)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := g.c.Pull(ctx, whole, Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("with the lock held elsewhere: %v", err)
	}
	if n := len(g.Calls(hubtest.Storage)); n != 0 {
		t.Errorf("%d downloads while the lock is held", n)
	}
	go func() {
		time.Sleep(200 * time.Millisecond)
		_ = os.Remove(name) // as some versions of filelock do
		f.Close()
	}()
	if _, err := g.pull(t, Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(name); err != nil {
		t.Errorf("the lock that was held has no name: %v", err)
	}
}
