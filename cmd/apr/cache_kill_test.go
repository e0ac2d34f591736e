//go:build !windows

package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"apr/internal/contracttest"
	"apr/s3/s3test"
)

// killed are the workers of TestKilledWorkers.
const killed = 20

// TestKilledWorkers: 20 processes share the shards of a cache in a bucket, whose store is busy, cuts bodies and loses answers. Each is
// killed up to twice, at a random moment by the store's requests, and started again. They end in one sealed cache, whose bytes are those of one process and a
// folder; no object was made twice.
func TestKilledWorkers(t *testing.T) {
	work, dir := program(t), t.TempDir()
	teacher, err := filepath.Abs("../../testdata/golden/trajectory/student")
	if err != nil {
		t.Fatal(err)
	}
	var data strings.Builder
	for i := range 40 {
		fmt.Fprintf(&data, `{"text":"package p%d\n\nfunc f%d(x int) int { return x * %d }\n"}`+"\n", i, i, i*i)
	}
	if err := os.WriteFile(filepath.Join(dir, "data.jsonl"), []byte(data.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	server := s3test.New(20)
	defer server.Close()
	for f, share := range map[s3test.Fault]float64{s3test.Busy: 0.05, s3test.Lost: 0.03, s3test.CutPut: 0.03, s3test.CutGet: 0.03} {
		server.Misbehave(f, share)
	}
	command := func(args ...string) *exec.Cmd {
		c := exec.Command(work, append([]string{"distill", teacher, "-d", "data.jsonl", "--seq-len", "16", "--val-fraction", "0", "--stage", "precompute",
			"--backend", "cpu", "--shard-size", "1kB"}, args...)...)
		c.Dir, c.Env = dir, append(os.Environ(), server.Environ()...)
		return c
	}
	if out, err := command("-o", "folder").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var wait sync.WaitGroup
	var mu sync.Mutex
	kills := 0
	for w := range killed {
		random := rand.New(rand.NewPCG(uint64(w), 20))
		wait.Go(func() {
			for attempt := 0; ; attempt++ {
				c := command("-o", "s3://bucket/kd", "--shard", fmt.Sprintf("%d/%d", w, killed))
				var out bytes.Buffer
				c.Stdout, c.Stderr = &out, &out
				if err := c.Start(); err != nil {
					t.Error(err)
					return
				}
				ended := make(chan struct{})
				if attempt < 2 {
					go killAfter(server, random.IntN(500), c.Process, ended)
				}
				err := c.Wait()
				close(ended)
				if err == nil {
					return
				}
				if exit := new(exec.ExitError); attempt < 2 && errors.As(err, &exit) && exit.ExitCode() == -1 {
					mu.Lock()
					kills++
					mu.Unlock()
					continue
				}
				t.Errorf("worker %d, attempt %d: %v\n%s", w, attempt, err, out.String())
				return
			}
		})
	}
	wait.Wait()
	sameAsFolder(t, server, filepath.Join(dir, "folder"))
	t.Logf("%d kills, %d requests", kills, server.Requests())
	if kills > 0 {
		contracttest.Cases(t, kills)
	}
}

// killAfter kills a process when the store has had so many more requests, of whatever process, unless it ends before.
func killAfter(server *s3test.Server, requests int, p *os.Process, ended <-chan struct{}) {
	requests += server.Requests()
	for server.Requests() < requests {
		select {
		case <-ended:
			return
		case <-time.After(2 * time.Millisecond):
		}
	}
	_ = p.Kill() // it may have ended
}

// sameAsFolder requires the objects of a store to be the files of a folder, each made once.
func sameAsFolder(t *testing.T, server *s3test.Server, folder string) {
	t.Helper()
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	if keys := server.Keys(); len(keys) != len(files) || len(files) < 2*killed {
		t.Errorf("%d objects, %d files", len(keys), len(files))
	}
	for _, f := range files {
		want, err := os.ReadFile(filepath.Join(folder, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(server.Object("kd/"+f.Name()), want) {
			t.Errorf("%s differs, or is missing", f.Name())
		}
	}
	for key, n := range server.Made() {
		if n != 1 {
			t.Errorf("%s was made %d times", key, n)
		}
	}
}
