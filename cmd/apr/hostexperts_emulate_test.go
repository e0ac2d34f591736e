//go:build emulate

package main

import (
	"bytes"
	"testing"

	"apr/internal/contracttest"
)

// TestEmulatedHostExperts: a teacher whose experts are in memory of the host trains the student of one whose experts
// are on the device. The plan has the bytes and the price; nothing but the flag asks for it.
func TestEmulatedHostExperts(t *testing.T) {
	contracttest.Cases(t, 1)
	openEmulator(t)
	c := randomFamily(t, "qwen3_moe")
	c.apr(0, "quantize", c.path("hf"), "-s", "mxfp4", "-o", c.path("m.apr"))
	young := []string{
		c.path("m.apr"), "--student-config", c.path("student.json"), "-d", c.path("text.jsonl"), "--batch-size", "2", "--seq-len", "16", "--steps", "3",
		"--backend", "cuda", "--probe=off",
	}
	distill := func(run string, more ...string) []byte {
		all := append(append([]string{"distill"}, young...), "--eval-every", "0", "--samples", "0", "--control", "none", "--data-cache", "off", "-o", c.path(run))
		c.apr(0, append(all, more...)...)
		return read(t, c.path(run+"/student/model.safetensors"))
	}
	plan := func(more ...string) map[string]any {
		return c.apr(0, append(append([]string{"plan"}, young...), more...)...)
	}
	there := distill("there", "--teacher-backend", "q4k")
	if !bytes.Equal(there, distill("run", "--teacher-experts", "host")) {
		t.Error("the students differ")
	}
	host, device, auto := plan("--teacher-experts", "host"), plan("--teacher-backend", "q4k"), plan()
	if n, a, b := c.number(host, "memory.host"), c.number(host, "memory.teacher"), c.number(device, "memory.teacher"); !(n > 0 && b-a >= n) {
		t.Errorf("%v bytes on the host, the device holds %v instead of %v", n, a, b)
	}
	if bytes, rate, s := c.number(host, "costs.host.bytes_per_step"), c.number(host, "costs.host.bytes_per_second"), c.number(host, "costs.host.seconds_per_step"); !(bytes > 0 && s == bytes/rate) {
		t.Errorf("%v bytes a step, %v a second, %v s", bytes, rate, s)
	}
	if auto["costs"].(map[string]any)["host"] != nil {
		t.Error("experts are on the host without the flag")
	}
	c.apr(5, append(append([]string{"distill"}, young...), "--teacher-experts", "host", "--teacher-backend", "cublas", "-o", c.path("refused"))...)
	c.apr(9, append(append([]string{"plan"}, young...), "--teacher-experts", "host", "--backend", "cpu")...)
}
