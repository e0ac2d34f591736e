//go:build emulate

package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"apr/internal/contracttest"
)

// TestEmulatedStream: a teacher whose layers come from the host trains the student of one that is on the
// device, and makes the same caches, in passes of several groups of rows. The plan has the bytes and the price;
// a card that holds the teacher is not offered it; what is not built with it is refused.
func TestEmulatedStream(t *testing.T) {
	contracttest.Cases(t, 1)
	openEmulator(t)
	c := randomFamily(t, "qwen3_moe")
	c.apr(0, "quantize", c.path("hf"), "-s", "mxfp4", "-o", c.path("m.apr"))
	data := []string{c.path("m.apr"), "-d", c.path("text.jsonl"), "--batch-size", "2", "--seq-len", "16", "--backend",
		"cuda"}
	young := append(data[:len(data):len(data)], "--student-config", c.path("student.json"), "--steps", "3", "--probe=off")
	distill := func(run string, more ...string) []byte {
		all := append(append([]string{"distill"}, young...), "--eval-every", "0", "--samples", "0", "--control", "none",
			"--data-cache", "off", "-o", c.path(run))
		c.apr(0, append(all, more...)...)
		return read(t, c.path(run+"/student/model.safetensors"))
	}
	plan := func(more ...string) map[string]any {
		return c.apr(0, append(append([]string{"plan"}, young...), more...)...)
	}
	if !slices.Equal(distill("there", "--teacher-backend", "q4k"), distill("run", "--teacher-backend", "stream")) {
		t.Error("the students differ")
	}
	host, device, auto := plan("--teacher-backend", "stream"), plan("--teacher-backend", "q4k"), plan()
	a, b := c.number(host, "memory.teacher"), c.number(device, "memory.teacher")
	if n := c.number(host, "memory.host"); !(n > 0 && b-a >= n) {
		t.Errorf("%v bytes on the host, the device holds %v instead of %v", n, a, b)
	}
	bytes, rate := c.number(host, "costs.host.bytes_per_step"), c.number(host, "costs.host.bytes_per_second")
	if s := c.number(host, "costs.host.seconds_per_step"); !(bytes > 0 && s == bytes/rate) {
		t.Errorf("%v bytes a step, %v a second, %v s", bytes, rate, s)
	}
	if auto["costs"].(map[string]any)["host"] != nil || auto["teacher_backend"] == "stream" {
		t.Error("layers are on the host without need")
	}
	precompute := func(out string, more ...string) map[string]any {
		all := []string{"distill", "--stage", "precompute", "--cache-kind", "hidden", "--data-cache", "off", "-o",
			c.path(out)}
		return c.apr(0, append(append(all, data...), more...)...)
	}
	there := precompute("cache-there", "--teacher-backend", "q4k")
	run := precompute("cache-run", "--teacher-backend", "stream")
	g, n := c.number(run, "pass.group_positions"), c.number(run, "pass.positions")
	if g != 32 || n < 2*g || there["pass"] == nil {
		t.Errorf("a pass has %v positions, %v at a time", n, g)
	}
	shards, err := filepath.Glob(c.path("cache-run/*.shard"))
	if err != nil || len(shards) == 0 {
		shards, _ = filepath.Glob(c.path("cache-run/*"))
		t.Fatalf("no shards: %v, %v", err, shards)
	}
	for _, s := range shards {
		want, err := os.ReadFile(filepath.Join(c.path("cache-there"), filepath.Base(s)))
		if err != nil || !slices.Equal(read(t, s), want) {
			t.Errorf("%s differs: %v", filepath.Base(s), err)
		}
	}
	stream := append(append([]string{"plan"}, young...), "--teacher-backend", "stream")
	c.apr(9, append(stream[:len(stream):len(stream)], "--strategy", "progressive")...)
	c.apr(5, append(stream[:len(stream):len(stream)], "--teacher-experts", "host")...)
	c.apr(9, append(append([]string{"plan"}, young...), "--teacher-backend", "stream", "--backend", "cpu")...)
}
